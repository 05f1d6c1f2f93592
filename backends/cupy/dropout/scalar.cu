#include "dropout.cuh"

// A thread for each element, which takes one of Philox's four words.
extern "C" __global__ void dropout_naive(
    const ELEMENT* x, ELEMENT* y, long long size, long long n1, long long n2, long long n3, long long s0, long long s1,
    long long s2, long long s3, long long threshold, float scale, unsigned long long seed, unsigned long long offset) {
    const long long e = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= size) return;
    const unsigned word = philox(e >> 2, seed, offset).word[e & 3];
    const float value = to_float(x[place(e, n1, n2, n3, s0, s1, s2, s3)]);
    y[e] = from_float<ELEMENT>(dropped_out(value, word, threshold, scale));
}

// A thread for four elements.
extern "C" __global__ void dropout_four(
    const ELEMENT* x, ELEMENT* y, long long size, long long n1, long long n2, long long n3, long long s0, long long s1,
    long long s2, long long s3, long long threshold, float scale, unsigned long long seed, unsigned long long offset) {
    const long long block = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (4 * block >= size) return;
    const Words words = philox(block, seed, offset);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const long long e = 4 * block + i;
        if (e >= size) break;
        const float value = to_float(x[place(e, n1, n2, n3, s0, s1, s2, s3)]);
        y[e] = from_float<ELEMENT>(dropped_out(value, words.word[i], threshold, scale));
    }
}
