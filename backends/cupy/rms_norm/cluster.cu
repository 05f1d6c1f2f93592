#include "shared_rows.cuh"

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, BESIDE) rms_norm_cluster(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* y, long long x_row, long long x_col, long long w_col, int cols,
    float eps) {
    extern __shared__ uint4 shared[];
    const SharedRow values(x, x_row, x_col, cols, shared);
    y += values.row * cols;
    int turn = 0;
    float square = 0.0f;
#pragma unroll 2
    for (int r = 0; r < VECTORS; ++r) {
        const Values some = values[r];
#pragma unroll
        for (int i = 0; i < lanes; ++i) square += some[i] * some[i];
    }
    const float rstd = rsqrtf(sum_of_row(square, turn) / cols + eps);
#pragma unroll 2
    for (int r = 0; r < VECTORS; ++r) {
        const Values some = values[r], w = load_past(weight, w_col, values.column(r), cols);
        float out[lanes];
#pragma unroll
        for (int i = 0; i < lanes; ++i) out[i] = some[i] * rstd * w[i];
        store_values(y, values.column(r), cols, out);
    }
}
