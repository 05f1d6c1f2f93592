// What the kernels of dropout and its kin share: the rule that keeps elements, and operands of four axes.
#pragma once
#include "common.cuh"
#include "philox.cuh"

// x * scale where the word is `threshold` or more, else 0: x may be NaN, so it is no product with a mask. A threshold of
// 2^32 keeps nothing.
__device__ inline float dropped_out(float x, unsigned word, long long threshold, float scale) {
    return word >= threshold ? x * scale : 0.0f;
}

// Where element e of an operand of four axes lies; n1 to n3 are 1 where one stride reaches all.
__device__ inline long long place(long long e, long long n1, long long n2, long long n3, long long s0, long long s1,
                                  long long s2, long long s3) {
    if (n1 * n2 * n3 == 1) return e * s0;
    return e / n3 / n2 / n1 * s0 + e / n3 / n2 % n1 * s1 + e / n3 % n2 * s2 + e % n3 * s3;
}
