#include "staying_rows.cuh"

extern "C" __global__ void __launch_bounds__(1024) layer_norm_staged(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* y, long long x_row, long long x_col,
    long long w_col, long long b_col, long long rows, int cols, float eps) {
    extern __shared__ uint4 shared[];
    StayingRows staying(x, x_row, x_col, rows, cols, shared);
    int turn = 0;
    Values values[VECTORS];
    while (staying.next(values)) {
        float sum = 0.0f, square = 0.0f;
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
#pragma unroll
            for (int i = 0; i < lanes; ++i) sum += values[r][i];
        }
        keep_packed(values);
        const float mean = sum_of_row(sum, turn) / cols;
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
#pragma unroll
            for (int i = 0; i < lanes; ++i) {
                const float centred = values[r][i] - mean;
                square += column(r) + (ALIGNED ? 0 : i) < cols ? centred * centred : 0.0f;
            }
        }
        keep_packed(values);
        const float rstd = rsqrtf(sum_of_row(square, turn) / cols + eps);
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            const Values w = load_values(weight, w_col, column(r), cols);
            const Values b = load_values(bias, b_col, column(r), bias ? cols : 0);
            float out[lanes];
#pragma unroll
            for (int i = 0; i < lanes; ++i) out[i] = (values[r][i] - mean) * rstd * w[i] + b[i];
            store_values(y + staying.row * cols, column(r), cols, out);
        }
    }
}
