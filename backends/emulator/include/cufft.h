// The complex types that kernels share with the library; the library itself is host code.
#pragma once
#include <cuComplex.h>
typedef cuComplex cufftComplex;
typedef cuDoubleComplex cufftDoubleComplex;
typedef float cufftReal;
typedef double cufftDoubleReal;
