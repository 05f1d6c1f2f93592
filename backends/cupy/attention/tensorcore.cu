// Online softmax on tensor cores, BLOCK_M queries a block. Tiles that causality hides are not visited.
#include "attention_sweep.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void attention_tensorcore(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    ELEMENT* o, float* lse, int Hq, int Hkv, int Sq, int Sk, int dim, float scale, int causal) {
    const int tiles = (Sq + BLOCK_M - 1) / BLOCK_M;
    const long long pair = blockIdx.x / tiles;  // (batch, query head)
    const int top = (tiles - 1 - (int)(blockIdx.x % tiles)) * BLOCK_M;  // causal: those that see most keys start first
    q += pair / Hq * q_batch + pair % Hq * q_head;
    k += pair / Hq * k_batch + pair % Hq / (Hq / Hkv) * k_head;
    v += pair / Hq * v_batch + pair % Hq / (Hq / Hkv) * v_head;
    sweep(
        {q, q_row, q_col, dim}, {k, k_row, k_col, dim}, {v, v_row, v_col, dim}, o + pair * Sq * dim, dim,
        lse + pair * Sq, top, Sq, Sk, Causal(scale, causal, top, Sq, Sk));
}
