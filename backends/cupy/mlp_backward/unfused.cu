// unfused: what comes between the products, element by element, and the sums of columns.
#include "activations.cuh"

// z += bias and hidden = act(z), both contiguous with `cols` columns; `bias` may be null.
extern "C" __global__ void mlp_backward_hidden(
    ELEMENT* z, const ELEMENT* bias, ELEMENT* hidden, long long size, long long cols, long long stride_bias,
    int activation
) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    float value = to_float(z[i]);
    if (bias) {
        value += to_float(bias[i % cols * stride_bias]);
        z[i] = from_float<ELEMENT>(value);
    }
    hidden[i] = from_float<ELEMENT>(activate(value, activation));
}

// dz = dhidden act'(z) over dhidden, both contiguous.
extern "C" __global__ void mlp_backward_chain(ELEMENT* dhidden, const ELEMENT* z, long long size, int activation) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) dhidden[i] = from_float<ELEMENT>(to_float(dhidden[i]) * slope(to_float(z[i]), activation));
}

// A warp's lanes take 32 columns, the block's warps every eighth row of them.
extern "C" __global__ void __launch_bounds__(256) mlp_backward_column_sum(
    const ELEMENT* x, ELEMENT* total, int rows, int cols, long long stride_row, long long stride_col
) {
    __shared__ float partial[8][32];
    const int lane = threadIdx.x, warp = threadIdx.y, col = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    for (int row = warp; row < rows && col < cols; row += 8) sum += to_float(x[row * stride_row + col * stride_col]);
    partial[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && col < cols) {
        for (int other = 1; other < 8; ++other) sum += partial[other][lane];
        total[col] = from_float<ELEMENT>(sum);
    }
}
