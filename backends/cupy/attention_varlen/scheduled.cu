// A list of the tiles that there are, and a block for each of them and each head.
#include "tiles.cuh"
#include "schedule.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void attention_varlen_scheduled(
    const ELEMENT* q, long long q_row, long long q_head, long long q_col,
    const ELEMENT* k, long long k_row, long long k_head, long long k_col,
    const ELEMENT* v, long long v_row, long long v_head, long long v_col,
    const int* cu_q, long long cu_q_stride, const int* cu_k, long long cu_k_stride,
    const int* items, ELEMENT* o, float* lse, int B, int Tq, int Hq, int Hkv, int dim, float scale, int causal) {
    const int* item = items + 2 * (blockIdx.x / Hq);
    const int b = item[0];
    if (b < 0) return;
    const Sequence of(cu_q, cu_q_stride, cu_k, cu_k_stride, b, B, Tq);
    attend(
        {q, q_row, q_head, q_col}, {k, k_row, k_head, k_col}, {v, v_row, v_head, v_col}, o, lse, of, item[1],
        blockIdx.x % Hq, Tq, Hq, Hkv, dim, scale, causal);
}
