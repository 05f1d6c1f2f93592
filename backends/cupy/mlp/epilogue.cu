// epilogue: bias and activation where the product of CUDA cores still is in registers.
#include "warptile.cuh"

#include "linear.cuh"
