#include "norms.cuh"

// A row in the registers of blockDim.x threads, COLUMNS in each, in vectors of VECTOR that one access loads or stores.
// Rows of one warp share a block, blockDim.y of them.
extern "C" __global__ void __launch_bounds__(1024, blocks_at_once<ELEMENT>(COLUMNS, VECTOR, SHIFTED))
rms_norm_vectorised(
    const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ weight, ELEMENT* __restrict__ y, long long x_row,
    long long x_col, long long w_col, long long rows, int cols, float eps) {
    constexpr int vectors = COLUMNS / VECTOR;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;  // a whole warp
    x += row * x_row;
    y += row * cols;
    const int lead = lead_of<SHIFTED, VECTOR>(row, cols);

    Vector<ELEMENT, VECTOR> values[vectors];
#pragma unroll
    for (int r = 0; r < vectors; ++r) {
        values[r] = load_row<SHIFTED, VECTOR>(x, x_col, column<VECTOR>(r, lead), cols);
    }

    int turn = 0;
    float square = 0.0f;
#pragma unroll
    for (int r = 0; r < vectors; ++r) {
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) square += values[r][i] * values[r][i];
    }
    keep_packed(values);
    const float rstd = rsqrtf(row_sum(square, turn) / cols + eps);

#pragma unroll
    for (int r = 0; r < vectors; ++r) {
        const int col = column<VECTOR>(r, lead);
        if (col >= cols) break;
        const Vector<ELEMENT, VECTOR> w = load_along<SHIFTED, VECTOR>(weight, w_col, col, cols);
        float out[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) out[i] = values[r][i] * rstd * w[i];
        store_row<SHIFTED>(y, col, cols, rounded<ELEMENT>(out));
    }
}
