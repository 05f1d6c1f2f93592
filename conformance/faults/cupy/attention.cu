#include "common.cuh"

enum Fault {
    none,
    output_not_rescaled,
    sum_not_rescaled,
    maximum_from_zero,
    no_barrier_before_use,
    no_barrier_after_use,
    early_return,
    keys_unfilled,
    padded_keys_seen,
    load_unguarded,
    last_keys_dropped,
    offset_int,
    strides_of_k,
    tile_overrun,
    other_group,
};

constexpr int tile = 16, most_dim = 256;

// A block of up to 32 threads has a query each of one head; keys and values pass through shared memory, 16 at a time.
extern "C" __global__ void attention_flash(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col, const ELEMENT* k,
    long long k_batch, long long k_head, long long k_row, long long k_col, const ELEMENT* v, long long v_batch,
    long long v_head, long long v_row, long long v_col, ELEMENT* o, float* lse, int Hq, int Hkv, int Sq, int Sk, int D,
    float scale, int causal, int fault) {
    __shared__ float keys[tile][most_dim];
    __shared__ float values[tile * most_dim];
    const int blocks = (Sq + blockDim.x - 1) / blockDim.x;
    const long long pair = blockIdx.x / blocks, batch = pair / Hq, head = pair % Hq;
    const long long head_kv = fault == other_group ? head % Hkv : head / (Hq / Hkv);
    const int i = blockIdx.x % blocks * blockDim.x + threadIdx.x;
    if (fault == early_return && i >= Sq) return;
    if (fault == strides_of_k) v_row = k_row, v_col = k_col;
    q += batch * q_batch + head * q_head + min(i, Sq - 1) * q_row;
    k += batch * k_batch + head_kv * k_head;
    v += batch * v_batch + head_kv * v_head;
    const int pitch = fault == tile_overrun ? D + 1 : D;

    float m = fault == maximum_from_zero ? 0.0f : -INFINITY, l = 0.0f;
    float acc[most_dim];
    for (int d = 0; d < D; ++d) acc[d] = 0.0f;
    const int tiles = fault == last_keys_dropped ? max(Sk / tile, 1) : (Sk + tile - 1) / tile;
    for (int start = 0; start < tiles * tile; start += tile) {
        for (int index = threadIdx.x; index < tile * D; index += blockDim.x) {
            const int j = start + index / D, d = index % D;
            const bool inside = j < Sk || fault == load_unguarded;
            const long long row_of_k = fault == offset_int ? j * int(k_row) : j * k_row;
            if (inside) {
                keys[index / D][d] = to_float(k[row_of_k + d * k_col]);
                values[index / D * pitch + d] = to_float(v[j * v_row + d * v_col]);
            } else if (fault != keys_unfilled) {
                keys[index / D][d] = values[index / D * pitch + d] = 0.0f;
            }
        }
        if (fault != no_barrier_before_use) __syncthreads();

        for (int index = 0; index < tile; ++index) {
            const int j = start + index;
            float score = 0.0f;
            for (int d = 0; d < D; ++d) score += to_float(q[d * q_col]) * keys[index][d];
            score *= scale;
            if (j >= Sk && fault != padded_keys_seen || causal && j > i + Sk - Sq) score = -INFINITY;
            if (score == -INFINITY) continue;
            const float larger = fmaxf(m, score);
            const float rescale = expf(m - larger), p = expf(score - larger);
            l = l * (fault == sum_not_rescaled ? 1.0f : rescale) + p;
            for (int d = 0; d < D; ++d)
                acc[d] = acc[d] * (fault == output_not_rescaled ? 1.0f : rescale) + p * values[index * pitch + d];
            m = larger;
        }
        if (fault != no_barrier_after_use) __syncthreads();
    }
    if (i >= Sq) return;
    const long long row = pair * Sq + i;
    for (int d = 0; d < D; ++d) o[row * D + d] = from_float<ELEMENT>(l == 0.0f ? 0.0f : acc[d] / l);
    lse[row] = m + logf(l);
}
