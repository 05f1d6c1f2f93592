// epilogue: the chain rule where the products of CUDA cores still are in registers.
#include "warptile.cuh"

#include "activated.cuh"
