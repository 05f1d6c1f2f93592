#include "add_norms.cuh"

// A row of h in the registers of blockDim.x threads, COLUMNS in each, in vectors of VECTOR that one access loads or
// stores. Rows of one warp share a block, blockDim.y of them.
extern "C" __global__ void __launch_bounds__(1024) add_rms_norm_vectorised(
    const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ residual, const ELEMENT* __restrict__ weight,
    ELEMENT* __restrict__ y, ELEMENT* __restrict__ h, long long x_row,
    long long x_col, long long r_row, long long r_col, long long w_col, long long rows, int cols, float eps) {
    constexpr int vectors = COLUMNS / VECTOR;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return; // a whole warp
    x += row * x_row;
    residual += row * r_row;
    y += row * cols;
    h += row * cols;
    const int lead = lead_of<SHIFTED, VECTOR>(row, cols);

    // All loads are on their way before the first sum.
    Vector<ELEMENT, VECTOR> values[vectors], other[vectors];
#pragma unroll
    for (int r = 0; r < vectors; ++r) {
        const int col = column<VECTOR>(r, lead);
        values[r] = load_row<SHIFTED, VECTOR>(x, x_col, col, cols);
        other[r] = load_row<SHIFTED, VECTOR>(residual, r_col, col, cols);
    }

    int turn = 0;
    float square = 0.0f;
#pragma unroll
    for (int r = 0; r < vectors; ++r) {
        const int col = column<VECTOR>(r, lead);
        values[r] = add(values[r], other[r]);
        store_row<SHIFTED>(h, col, cols, values[r]);
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
