#include "dropout.cuh"

// A thread for four elements, which may belong to two rows or more; `bias` may be null.
extern "C" __global__ void bdr_fused(
    const ELEMENT* x, const ELEMENT* bias, const ELEMENT* residual, ELEMENT* y, long long size, long long cols,
    long long x_row, long long x_col, long long bias_step, long long r_row, long long r_col, long long threshold,
    float scale, unsigned long long seed, unsigned long long offset) {
    const long long block = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (4 * block >= size) return;
    const Words words = philox(block, seed, offset);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const long long e = 4 * block + i;
        if (e >= size) break;
        const long long row = e / cols, col = e % cols;
        const float h = to_float(x[row * x_row + col * x_col]) + (bias ? to_float(bias[col * bias_step]) : 0.0f);
        const float other = to_float(residual[row * r_row + col * r_col]);
        y[e] = from_float<ELEMENT>(dropped_out(h, words.word[i], threshold, scale) + other);
    }
}

// A thread for 16 bytes of contiguous matrices, whose rows are whole vectors: all of one row, by one division. As many
// registers as let six blocks run at once.
extern "C" __global__ __launch_bounds__(256, 6) void bdr_vectorised(
    const ELEMENT* x, const ELEMENT* bias, const ELEMENT* residual, ELEMENT* y, long long size, long long cols,
    long long threshold, float scale, unsigned long long seed, unsigned long long offset) {
    constexpr int lanes = lanes_of<ELEMENT>;
    const long long first = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * lanes;
    if (first >= size) return;
    const uint4 packed = *reinterpret_cast<const uint4*>(x + first);
    const uint4 packed_residual = *reinterpret_cast<const uint4*>(residual + first);
    uint4 packed_bias = {};  // zeros
    if (bias) packed_bias = *reinterpret_cast<const uint4*>(bias + first % cols);
    float values[lanes], shift[lanes], other[lanes];
    unpack<ELEMENT>(packed, values);
    unpack<ELEMENT>(packed_bias, shift);
    unpack<ELEMENT>(packed_residual, other);
#pragma unroll
    for (int part = 0; part < lanes; part += 4) {
        const Words words = philox((first + part) / 4, seed, offset);
#pragma unroll
        for (int i = part; i < part + 4; ++i)
            values[i] = dropped_out(values[i] + shift[i], words.word[i - part], threshold, scale) + other[i];
    }
    store16(y + first, values);
}
