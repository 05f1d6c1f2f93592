#include "dropout.cuh"

enum Fault {
    none,
    bits_without_atomics,
    lane_by_the_block,
    unused_bits_vote,
};

// A thread for an element; the vote of a warp is a word of bits.
extern "C" __global__ void dropout_bitmask_vote(
    const ELEMENT* x, ELEMENT* y, int* bits, long long size, long long n1, long long n2, long long n3, long long s0,
    long long s1, long long s2, long long s3, long long threshold, float scale, unsigned long long seed,
    unsigned long long offset, int fault) {
    const long long e = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned word = philox(e >> 2, seed, offset).word[e & 3];
    bool kept = word >= threshold;
    if (fault != unused_bits_vote) kept = kept && e < size;
    const unsigned vote = __ballot_sync(all_lanes, kept);
    if (e >= size) return;
    y[e] = from_float<ELEMENT>(kept ? to_float(x[place(e, n1, n2, n3, s0, s1, s2, s3)]) * scale : 0.0f);
    if (fault == bits_without_atomics) {
        if (e % 32 == 0) bits[e / 32] = 0;
        bits[e / 32] |= int(unsigned(kept) << (e % 32));
    } else if (fault == lane_by_the_block ? threadIdx.x == 0 : e % 32 == 0) {
        bits[e / 32] = int(vote);
    }
}
