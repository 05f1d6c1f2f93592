// A block for each tile of the longest sequence, of each sequence and head.
#include "tiles.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void attention_varlen_flash(
    const ELEMENT* q, long long q_row, long long q_head, long long q_col,
    const ELEMENT* k, long long k_row, long long k_head, long long k_col,
    const ELEMENT* v, long long v_row, long long v_head, long long v_col,
    const int* cu_q, long long cu_q_stride, const int* cu_k, long long cu_k_stride,
    ELEMENT* o, float* lse, int B, int Tq, int Hq, int Hkv, int dim, int tiles, float scale, int causal) {
    const long long pair = blockIdx.x / tiles;  // (sequence, query head)
    const Sequence of(cu_q, cu_q_stride, cu_k, cu_k_stride, pair / Hq, B, Tq);
    // Only the rows of no sequence may be more than there are tiles for: one round is all that a sequence has.
    for (int top = blockIdx.x % tiles * BLOCK_M; top < of.seq_q; top += tiles * BLOCK_M) {
        __syncthreads();  // the queries of the round before are used
        attend(
            {q, q_row, q_head, q_col}, {k, k_row, k_head, k_col}, {v, v_row, v_head, v_col}, o, lse, of, top, pair % Hq,
            Tq, Hq, Hkv, dim, scale, causal);
    }
}
