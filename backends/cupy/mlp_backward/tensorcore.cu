// tensorcore: the chain rule where the products of tensor cores still are in registers.
#include "mma.cuh"

#include "activated.cuh"
