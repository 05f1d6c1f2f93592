// A list of the tiles that there are, and a block for each of them and each head.
#include "tiles.cuh"

// A warp for each sequence, whose place in the list is behind the tiles of those before it: its number and the first
// query of each tile. The list has room for `most`.
extern "C" __global__ void attention_varlen_schedule(
    const int* cu_q, long long cu_q_stride, int* items, int B, int Tq, int most) {
    const long long b = blockIdx.x;
    int place = 0;
    for (long long other = threadIdx.x; other < b; other += 32) {
        const int length = cu_q[(other + 1) * cu_q_stride] - cu_q[other * cu_q_stride];
        place += (length + BLOCK_M - 1) / BLOCK_M;
    }
    for (int step = 16; step > 0; step /= 2) place += __shfl_xor_sync(all_lanes, place, step);
    const int length = (b < B ? cu_q[(b + 1) * cu_q_stride] : Tq) - cu_q[b * cu_q_stride];
    const int tiles = (length + BLOCK_M - 1) / BLOCK_M;
    for (int tile = threadIdx.x; tile < tiles; tile += 32) {
        items[2 * (place + tile)] = b;
        items[2 * (place + tile) + 1] = tile * BLOCK_M;
    }
    if (b < B) return;
    for (int left = place + tiles + threadIdx.x; left < most; left += 32) items[2 * left] = -1;
}

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
