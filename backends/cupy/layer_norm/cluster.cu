#include "shared_rows.cuh"

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, BESIDE) layer_norm_cluster(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* y, long long x_row, long long x_col,
    long long w_col, long long b_col, int cols, float eps) {
    extern __shared__ uint4 shared[];
    const SharedRow values(x, x_row, x_col, cols, shared);
    y += values.row * cols;
    int turn = 0;
    float sum = 0.0f, square = 0.0f;
#pragma unroll 2
    for (int r = 0; r < VECTORS; ++r) {
        const Values some = values[r];
#pragma unroll
        for (int i = 0; i < lanes; ++i) sum += some[i];
    }
    const float mean = sum_of_row(sum, turn) / cols;
#pragma unroll 2
    for (int r = 0; r < VECTORS; ++r) {
        const Values some = values[r];
        const bool all = whole<!ALIGNED || SHIFTED, lanes>(values.column(r), cols);
#pragma unroll
        for (int i = 0; i < lanes; ++i) {
            const float centred = some[i] - mean;
            square += all || inside(values.column(r) + i, cols) ? centred * centred : 0.0f;
        }
    }
    const float rstd = rsqrtf(sum_of_row(square, turn) / cols + eps);
#pragma unroll 2
    for (int r = 0; r < VECTORS; ++r) {
        const Values some = values[r], w = load_past(weight, w_col, values.column(r), cols);
        const Values b = load_past(bias, b_col, values.column(r), bias ? cols : 0);
        float out[lanes];
#pragma unroll
        for (int i = 0; i < lanes; ++i) out[i] = (some[i] - mean) * rstd * w[i] + b[i];
        store_values(y, values.column(r), cols, out);
    }
}
