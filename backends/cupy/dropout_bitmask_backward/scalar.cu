#include "dropout.cuh"

// A thread for each element; the 32 of a warp read one word of bits.
extern "C" __global__ void dropout_bitmask_backward_naive(
    const ELEMENT* dy, const int* bits, ELEMENT* dx, long long size, long long n1, long long n2, long long n3,
    long long s0, long long s1, long long s2, long long s3, long long bits_stride, float scale) {
    const long long e = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= size) return;
    const bool kept = unsigned(bits[e / 32 * bits_stride]) >> (e % 32) & 1;
    dx[e] = from_float<ELEMENT>(kept ? to_float(dy[place(e, n1, n2, n3, s0, s1, s2, s3)]) * scale : 0.0f);
}
