// What the kernels of dropout and its kin share: the rule that keeps elements, and operands of four axes.
#pragma once
#include "common.cuh"
#include "philox.cuh"

// Whether the word is `threshold` or more: a comparison of 32 bits, though a threshold of 2^32 keeps nothing.
__device__ inline bool stays(unsigned word, long long threshold) {
    return word >= unsigned(threshold) && threshold <= 0xffffffffll;
}

// x * scale where the element stays, else 0: x may be NaN, so it is no product with a mask.
__device__ inline float dropped_out(float x, unsigned word, long long threshold, float scale) {
    return stays(word, threshold) ? x * scale : 0.0f;
}

// Where element e of an operand of four axes lies; n1 to n3 are 1 where one stride reaches all.
__device__ inline long long place(long long e, long long n1, long long n2, long long n3, long long s0, long long s1,
                                  long long s2, long long s3) {
    if (n1 * n2 * n3 == 1) return e * s0;
    return e / n3 / n2 / n1 * s0 + e / n3 / n2 % n1 * s1 + e / n3 % n2 * s2 + e % n3 * s3;
}
