#include "activations.cuh"
#include "norms.cuh"
#include "pointwise.cuh"

// A block (32, 8) has the columns of 32 vectors and one part of the rows, of which its warps take each eighth; of a part's
// turn of eight rows those of the next part are neighbours. `wide`: all three matrices have rows of whole vectors.
extern "C" __global__ void __launch_bounds__(256, 4) activation_backward_vectorised(
    const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ bias, const ELEMENT* __restrict__ dy, long long x_row,
    long long x_col, long long b_col, long long dy_row, long long dy_col, ELEMENT* __restrict__ dx, float* partial,
    long long rows, long long cols, int parts, int wide, int activation) {
    constexpr int lanes = lanes_of<ELEMENT>;
    const int part = blockIdx.x % parts;
    const long long col = (blockIdx.x / parts * 32ll + threadIdx.x) * lanes;
    float sum[lanes] = {}, shift[lanes] = {};
    if (col < cols) {
        if (bias) {
#pragma unroll
            for (int i = 0; i < lanes; ++i)
                if (col + i < cols) shift[i] = to_float(bias[(col + i) * b_col]);
        }
        for_activation(activation, [&](auto chosen) {
            for (long long row = part * 8ll + threadIdx.y; row < rows; row += parts * 8ll) {
                float z[lanes], gradient[lanes];
                unpack<ELEMENT>(load_line(x + row * x_row, x_col, col, cols, wide), z);
                unpack<ELEMENT>(load_line(dy + row * dy_row, dy_col, col, cols, wide), gradient);
#pragma unroll
                for (int i = 0; i < lanes; ++i) {
                    gradient[i] *= slope_inline(z[i] + shift[i], chosen.number);
                    sum[i] += gradient[i];
                }
                store_line(dx + row * cols, col, cols, wide, gradient);
            }
        });
    }
    column_sums(sum);
    if (threadIdx.y > 0 || col >= cols) return;
#pragma unroll
    for (int i = 0; i < lanes; ++i)
        if (col + i < cols) partial[part * cols + col + i] = sum[i];
}
