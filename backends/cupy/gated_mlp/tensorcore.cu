// tensorcore: gate and up side by side on tensor cores.
#include "mma.cuh"

#include "gated.cuh"
