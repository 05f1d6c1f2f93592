// attention's sweep over materialised keys and values, with scores of two parts: queries with keys of their own head,
// rotary queries with keys that all heads share.
#include "attention_sweep.cuh"

// Tokens of (B, heads, seq, dim).
__device__ inline Tokens head_of(
    const ELEMENT* x, long long b, long long h, long long x_b, long long x_h, long long x_s, long long x_d, int dim) {
    return {x + b * x_b + h * x_h, x_s, x_d, dim};
}

extern "C" __global__ __launch_bounds__(THREADS) void mla_tensorcore(
    const ELEMENT* q, const ELEMENT* r, const ELEMENT* k, const ELEMENT* t, const ELEMENT* v, ELEMENT* o, float* lse,
    long long q_b, long long q_h, long long q_s, long long q_d, long long r_b, long long r_h, long long r_s,
    long long r_d, long long k_b, long long k_h, long long k_s, long long k_d, long long t_b, long long t_s,
    long long t_d, long long v_b, long long v_h, long long v_s, long long v_d, float scale, int heads, int Sq, int Sk,
    int dim, int rotary, int dim_v, bool causal) {
    const int tiles = (Sq + BLOCK_M - 1) / BLOCK_M;
    const long long pair = blockIdx.x / tiles, b = pair / heads, h = pair % heads;
    const int top = (tiles - 1 - (int)(blockIdx.x % tiles)) * BLOCK_M;  // causal: those that see most keys start first
    sweep(
        head_of(q, b, h, q_b, q_h, q_s, q_d, dim), head_of(k, b, h, k_b, k_h, k_s, k_d, dim),
        head_of(v, b, h, v_b, v_h, v_s, v_d, dim_v), o + pair * Sq * dim_v, dim_v, lse + pair * Sq, top, Sq, Sk,
        Causal(scale, causal, top, Sq, Sk), head_of(r, b, h, r_b, r_h, r_s, r_d, rotary),
        head_of(t, b, h, t_b, 0, t_s, t_d, rotary));
}
