#include "staying_rows.cuh"

extern "C" __global__ void __launch_bounds__(1024) rms_norm_staged(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* y, long long x_row, long long x_col, long long w_col,
    long long rows, int cols, float eps) {
    extern __shared__ uint4 shared[];
    StayingRows staying(x, x_row, x_col, rows, cols, shared);
    int turn = 0;
    Values values[VECTORS];
    while (staying.next(values)) {
        float square = 0.0f;
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
#pragma unroll
            for (int i = 0; i < lanes; ++i) square += values[r][i] * values[r][i];
        }
        keep_packed(values);
        const float rstd = rsqrtf(sum_of_row(square, turn) / cols + eps);
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            const Values w = load_values(weight, w_col, column(r), cols);
            float out[lanes];
#pragma unroll
            for (int i = 0; i < lanes; ++i) out[i] = values[r][i] * rstd * w[i];
            store_values(y + staying.row * cols, column(r), cols, out);
        }
    }
}
