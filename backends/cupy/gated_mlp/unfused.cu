// unfused: what comes between the products, element by element.
#include "activations.cuh"

// gate = act(gate) up, both contiguous.
extern "C" __global__ void gated_mlp_act_mul(ELEMENT* gate, const ELEMENT* up, long long size, int activation) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) gate[i] = from_float<ELEMENT>(activate(to_float(gate[i]), activation) * to_float(up[i]));
}
