// What a call of masked attention does to its scores, and to probabilities after the softmax.
#pragma once
#include "dropout.cuh"

// The numbers of a call, as lib/masks.py packs them: strides of the optional operands, dropout's rule, sizes. `window`
// counts a query's own key; a soft-cap of 0 is none.
struct Mods {
    long long bias[4], slope, seg_q[2], seg_k[2];
    long long threshold;
    unsigned long long seed, offset;
    float scale, softcap, keep_scale;
    int causal, window, heads, Sq, Sk;
};

// The optional operands from one (batch, head) on; null where they are None.
struct Given {
    const ELEMENT* bias;
    const float* slopes;
    const int *seg_q, *seg_k;

    __device__ Given(const ELEMENT* bias, const float* slopes, const int* seg_q, const int* seg_k, const Mods& mods,
                     long long pair)
        : bias(bias), slopes(slopes), seg_q(seg_q), seg_k(seg_k) {
        const long long b = pair / mods.heads, h = pair % mods.heads;
        if (bias) this->bias += b * mods.bias[0] + h * mods.bias[1];
        if (slopes) this->slopes += h * mods.slope;
        if (seg_q) this->seg_q += b * mods.seg_q[0], this->seg_k += b * mods.seg_k[0];
    }
};

// Whether query i sees key j.
__device__ inline bool sees(const Given& given, const Mods& mods, long long i, long long j) {
    const long long apart = i + (mods.Sk - mods.Sq) - j;
    if (apart >= mods.window || -apart >= mods.window || (mods.causal && apart < 0)) return false;
    return !given.seg_q || given.seg_q[i * mods.seg_q[1]] == given.seg_k[j * mods.seg_k[1]];
}

struct Score {
    float value, slope;  // slope in scale * q . k
};

// The score of query i and key j, which exist, from their product.
__device__ inline Score masked_score(float dot, const Given& given, const Mods& mods, long long i, long long j) {
    if (!sees(given, mods, i, j)) return {-INFINITY, 0.0f};
    Score s{dot * mods.scale, 1.0f};
    if (mods.softcap > 0.0f) {
        const float bent = tanhf(s.value / mods.softcap);
        s = {mods.softcap * bent, 1.0f - bent * bent};
    }
    if (given.slopes) s.value -= *given.slopes * fabsf(float(i + (mods.Sk - mods.Sq) - j));
    if (given.bias) s.value += to_float(given.bias[i * mods.bias[2] + j * mods.bias[3]]);
    return s;
}

// p of query i and key j after dropout, whose index runs over (batch, heads, queries, keys).
__device__ inline float after_dropout(float p, const Mods& mods, long long pair, long long i, long long j) {
    if (mods.threshold == 0) return p;
    const long long e = (pair * mods.Sq + i) * mods.Sk + j;
    return dropped_out(p, philox(e >> 2, mods.seed, mods.offset).word[e & 3], mods.threshold, mods.keep_scale);
}
