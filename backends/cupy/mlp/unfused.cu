// unfused: what comes between the products, element by element.
#include "activations.cuh"

// z = act(z + bias) for a contiguous z of `cols` columns; `bias` may be null.
extern "C" __global__ void mlp_bias_act(
    ELEMENT* z, const ELEMENT* bias, long long size, long long cols, long long stride_bias, int activation
) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    float value = to_float(z[i]);
    if (bias) value += to_float(bias[i % cols * stride_bias]);
    z[i] = from_float<ELEMENT>(activate(value, activation));
}
