// A list of the tiles of BLOCK_M queries that there are.
#pragma once

// A warp for each sequence, whose place in the list is behind the tiles of those before it: its number and the first
// query of each tile, the last first: with causality it sees most keys. The list has room for `most`.
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
        items[2 * (place + tile) + 1] = (tiles - 1 - tile) * BLOCK_M;
    }
    if (b < B) return;
    for (int left = place + tiles + threadIdx.x; left < most; left += 32) items[2 * left] = -1;
}
