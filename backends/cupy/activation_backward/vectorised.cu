#include "activations.cuh"
#include "norms.cuh"
#include "pointwise.cuh"

// A block (32, 8) has the columns of 32 vectors and one part of the rows, of which its warps take each eighth; of a part's
// turn of eight rows those of the next part are neighbours. WIDE: all three matrices have rows of whole vectors, which is
// compiled in: with both ways in one kernel a thread needs 96 registers where it needs 48.
extern "C" __global__ void activation_backward_vectorised(
    const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ bias, const ELEMENT* __restrict__ dy, long long x_row,
    long long x_col, long long b_col, long long dy_row, long long dy_col, ELEMENT* __restrict__ dx, float* partial,
    long long rows, long long cols, int parts, int activation) {
    constexpr int lanes = lanes_of<ELEMENT>;
    const int part = blockIdx.x % parts;
    const long long col = (blockIdx.x / parts * 32ll + threadIdx.x) * lanes;
    const long long end = WIDE ? col + lanes : cols;
    float sum[lanes] = {}, shift[lanes] = {};
    if (col < cols) {
        if (bias) {
#pragma unroll
            for (int i = 0; i < lanes; ++i)
                if (col + i < end) shift[i] = to_float(bias[(col + i) * b_col]);
        }
        for_activation(activation, [&](auto chosen) {
            for (long long row = part * 8ll + threadIdx.y; row < rows; row += parts * 8ll) {
                float z[lanes], gradient[lanes];
                unpack<ELEMENT>(load_line(x + row * x_row, x_col, col, end, WIDE), z);
                unpack<ELEMENT>(load_line(dy + row * dy_row, dy_col, col, end, WIDE), gradient);
#pragma unroll
                for (int i = 0; i < lanes; ++i) {
                    gradient[i] *= slope_inline(z[i] + shift[i], chosen.number);
                    sum[i] += gradient[i];
                }
                store_line(dx + row * cols, col, end, WIDE, gradient);
            }
        });
    }
    column_sums(sum);
    if (threadIdx.y > 0 || col >= cols) return;
#pragma unroll
    for (int i = 0; i < lanes; ++i)
        if (col + i < end) partial[part * cols + col + i] = sum[i];
}
