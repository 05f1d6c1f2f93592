#include "common.cuh"

// A thread for 16 bytes of a contiguous dy, whose four or eight bits are neighbours in one word.
extern "C" __global__ void dropout_bitmask_backward_vectorised(
    const ELEMENT* dy, const int* bits, ELEMENT* dx, long long size, long long bits_stride, float scale) {
    constexpr int lanes = lanes_of<ELEMENT>;
    const long long first = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * lanes;
    if (first >= size) return;
    const unsigned kept = unsigned(bits[first / 32 * bits_stride]) >> (first % 32);
    float values[lanes];
    if (first + lanes <= size) {
        load16(dy + first, values);
#pragma unroll
        for (int i = 0; i < lanes; ++i) values[i] = kept >> i & 1 ? values[i] * scale : 0.0f;
        store16(dx + first, values);
    } else {
        for (int i = 0; first + i < size; ++i)
            dx[first + i] = from_float<ELEMENT>(kept >> i & 1 ? to_float(dy[first + i]) * scale : 0.0f);
    }
}
