// tensorcore: bias and activation where the product of tensor cores still is in registers.
#include "mma.cuh"

#include "linear.cuh"
