#include "norms.cuh"

// A row in the registers of blockDim.x threads, COLUMNS in each, in runs of RUN that one access loads or stores.
// Rows of one warp share a block, blockDim.y of them.
extern "C" __global__ void __launch_bounds__(1024) softmax_backward_vectorised(
    const ELEMENT* __restrict__ y, const ELEMENT* __restrict__ dy, ELEMENT* __restrict__ dx, long long rows, int cols,
    long long y_row, long long y_col, long long dy_row, long long dy_col) {
    constexpr int runs = COLUMNS / RUN;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return; // a whole warp
    y += row * y_row;
    dy += row * dy_row;
    dx += row * cols;
    const int lead = lead_of<SHIFTED, RUN>(row, cols);

    Run<ELEMENT, RUN> weight[runs], gradient[runs];
#pragma unroll
    for (int r = 0; r < runs; ++r) {
        const int col = column<RUN>(r, lead);
        weight[r] = load_row<SHIFTED, RUN>(y, y_col, col, cols);
        gradient[r] = load_row<SHIFTED, RUN>(dy, dy_col, col, cols);
    }

    float delta = 0.0f;
#pragma unroll
    for (int r = 0; r < runs; ++r) {
#pragma unroll
        for (int i = 0; i < RUN; ++i) delta += weight[r][i] * gradient[r][i];
    }
    keep_packed(weight);
    keep_packed(gradient);
    int turn = 0;
    delta = row_sum(delta, turn);

#pragma unroll
    for (int r = 0; r < runs; ++r) {
        const int col = column<RUN>(r, lead);
        float out[RUN];
#pragma unroll
        for (int i = 0; i < RUN; ++i) out[i] = weight[r][i] * (gradient[r][i] - delta);
        store_row<SHIFTED>(dx, col, cols, rounded<ELEMENT>(out));
    }
}
