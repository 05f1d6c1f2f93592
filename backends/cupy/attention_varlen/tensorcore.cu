// A block for each tile of the list and each head, on tensor cores.
#include "attention_sweep.cuh"
#include "schedule.cuh"
#include "sequences.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void attention_varlen_tensorcore(
    const ELEMENT* q, long long q_row, long long q_head, long long q_col,
    const ELEMENT* k, long long k_row, long long k_head, long long k_col,
    const ELEMENT* v, long long v_row, long long v_head, long long v_col,
    const int* cu_q, long long cu_q_stride, const int* cu_k, long long cu_k_stride,
    const int* items, ELEMENT* o, float* lse, int B, int Tq, int Hq, int Hkv, int dim, float scale, int causal) {
    const int* item = items + 2 * (blockIdx.x / Hq);
    const int b = item[0];
    if (b < 0) return;
    const int top = item[1];
    const Sequence of(cu_q, cu_q_stride, cu_k, cu_k_stride, b, B, Tq);
    const int head = blockIdx.x % Hq, reader = head / (Hq / Hkv);
    const long long o_row = (long long)Hq * dim;
    q += of.first_q * q_row + head * q_head;
    k += of.first_k * k_row + reader * k_head;
    v += of.first_k * v_row + reader * v_head;
    sweep(
        {q, q_row, q_col, dim}, {k, k_row, k_col, dim}, {v, v_row, v_col, dim},
        o + of.first_q * o_row + head * dim, o_row, lse + (long long)head * Tq + of.first_q, top, of.seq_q, of.seq_k,
        Causal(scale, causal, top, of.seq_q, of.seq_k));
}
