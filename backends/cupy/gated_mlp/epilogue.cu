// epilogue: gate and up side by side on CUDA cores.
#include "warptile.cuh"

#include "gated.cuh"
