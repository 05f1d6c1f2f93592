#include "dropout.cuh"

// A thread for each element. All lanes vote, also those beyond the last element: their bits are 0.
extern "C" __global__ void dropout_bitmask_ballot(
    const ELEMENT* x, ELEMENT* y, int* bits, long long size, long long n1, long long n2, long long n3, long long s0,
    long long s1, long long s2, long long s3, long long threshold, float scale, unsigned long long seed,
    unsigned long long offset) {
    const long long e = (long long)blockIdx.x * blockDim.x + threadIdx.x;  // a warp begins at a multiple of 32
    const unsigned word = philox(e >> 2, seed, offset).word[e & 3];
    const unsigned kept = __ballot_sync(all_lanes, e < size && stays(word, threshold));
    if (e >= size) return;
    const float value = to_float(x[place(e, n1, n2, n3, s0, s1, s2, s3)]);
    y[e] = from_float<ELEMENT>(dropped_out(value, word, threshold, scale));
    if (e % 32 == 0) bits[e / 32] = int(kept);
}

// A thread for four elements, and eight for a word of bits: each moves its four to their place, and shuffles join them.
extern "C" __global__ void dropout_bitmask_four(
    const ELEMENT* x, ELEMENT* y, int* bits, long long size, long long n1, long long n2, long long n3, long long s0,
    long long s1, long long s2, long long s3, long long threshold, float scale, unsigned long long seed,
    unsigned long long offset) {
    const long long block = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const Words words = philox(block, seed, offset);
    unsigned kept = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const long long e = 4 * block + i;
        if (e >= size) break;
        const float value = to_float(x[place(e, n1, n2, n3, s0, s1, s2, s3)]);
        y[e] = from_float<ELEMENT>(dropped_out(value, words.word[i], threshold, scale));
        kept |= unsigned(stays(words.word[i], threshold)) << (block % 8 * 4 + i);
    }
#pragma unroll
    for (int step = 1; step < 8; step *= 2) kept |= __shfl_xor_sync(all_lanes, kept, step);
    if (block % 8 == 0 && 4 * block < size) bits[block / 8] = int(kept);
}
