#include "norms.cuh"

// A row in the registers of blockDim.x threads, COLUMNS in each, in vectors of VECTOR that one access loads or stores.
// Rows of one warp share a block, blockDim.y of them.
extern "C" __global__ void __launch_bounds__(1024) softmax_backward_vectorised(
    const ELEMENT* __restrict__ y, const ELEMENT* __restrict__ dy, ELEMENT* __restrict__ dx, long long rows, int cols,
    long long y_row, long long y_col, long long dy_row, long long dy_col) {
    constexpr int vectors = COLUMNS / VECTOR;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return; // a whole warp
    y += row * y_row;
    dy += row * dy_row;
    dx += row * cols;
    const int lead = lead_of<SHIFTED, VECTOR>(row, cols);

    Vector<ELEMENT, VECTOR> weight[vectors], gradient[vectors];
#pragma unroll
    for (int r = 0; r < vectors; ++r) {
        const int col = column<VECTOR>(r, lead);
        weight[r] = load_row<SHIFTED, VECTOR>(y, y_col, col, cols);
        gradient[r] = load_row<SHIFTED, VECTOR>(dy, dy_col, col, cols);
    }

    float delta = 0.0f;
#pragma unroll
    for (int r = 0; r < vectors; ++r) {
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) delta += weight[r][i] * gradient[r][i];
    }
    keep_packed(weight);
    keep_packed(gradient);
    int turn = 0;
    delta = row_sum(delta, turn);

#pragma unroll
    for (int r = 0; r < vectors; ++r) {
        const int col = column<VECTOR>(r, lead);
        float out[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) out[i] = weight[r][i] * (gradient[r][i] - delta);
        store_row<SHIFTED>(dx, col, cols, rounded<ELEMENT>(out));
    }
}
