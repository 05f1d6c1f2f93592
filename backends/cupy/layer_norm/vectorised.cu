#include "norms.cuh"

// A row in the registers of blockDim.x threads, COLUMNS in each, in vectors of VECTOR that one access loads or stores.
// Rows of one warp share a block, blockDim.y of them. Three blocks of 512 threads leave 40 registers to a thread, two
// of 1024 would leave 32: too few around four vectors of x and one of weight and bias each.
constexpr bool narrow = VECTOR > 1 && !SHIFTED && COLUMNS * sizeof(ELEMENT) <= 64;
extern "C" __global__ void __launch_bounds__(narrow ? 512 : 1024, narrow ? 3 : 1) layer_norm_vectorised(
    const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ weight, const ELEMENT* __restrict__ bias,
    ELEMENT* __restrict__ y, long long x_row, long long x_col, long long w_col, long long b_col, long long rows,
    int cols, float eps) {
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
    const Spread spread = row_spread<SHIFTED>(values, lead, cols, turn);
    const float rstd = rsqrtf(spread.square / cols + eps);
    keep_packed(values);

#pragma unroll
    for (int r = 0; r < vectors; ++r) {
        const int col = column<VECTOR>(r, lead);
        if (col >= cols) break;
        const Vector<ELEMENT, VECTOR> w = load_along<SHIFTED, VECTOR>(weight, w_col, col, cols);
        float out[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) out[i] = (values[r][i] - spread.mean) * rstd * w[i];
        if (bias) {
            const Vector<ELEMENT, VECTOR> b = load_along<SHIFTED, VECTOR>(bias, b_col, col, cols);
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) out[i] += b[i];
        }
        store_row<SHIFTED>(y, col, cols, rounded<ELEMENT>(out));
    }
}
