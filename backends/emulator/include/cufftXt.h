// The complex types that kernels share with the library; the library itself is host code.
#pragma once
#include <cufft.h>
