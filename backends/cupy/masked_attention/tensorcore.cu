// Online softmax on tensor cores, BLOCK_M queries a block. Tiles of keys that causality, the window and segments hide
// are not visited, and of those that all queries see the scores are taken as they are.
#include "attention_sweep.cuh"
#include "masks.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

// The least and the greatest of numbers; of none, the greatest is less.
struct Range {
    int low = 0x7fffffff, high = -0x7fffffff - 1;

    // Of `count` numbers, taken by the lanes of a warp in turn.
    __device__ Range(const int* first, long long step, int count) {
        for (int i = threadIdx.x % 32; i < count; i += 32) {
            low = min(low, first[i * step]);
            high = max(high, first[i * step]);
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            low = min(low, __shfl_xor_sync(all_lanes, low, step));
            high = max(high, __shfl_xor_sync(all_lanes, high, step));
        }
    }
};

// What attention_sweep.cuh asks about the keys of a block's queries and about their scores. EDITED says whether scores
// or weights are more than scaled and masked.
struct Masked {
    const Mods& mods;
    const Given& given;
    long long pair;
    int top, first, last;
    float scale;
    Range queries;  // of segments

    __device__ Masked(const Mods& mods, const Given& given, long long pair, int top)
        : mods(mods), given(given), pair(pair), top(top), scale(mods.scale * LOG2_E),
          queries(given.seg_q + top * mods.seg_q[1], mods.seg_q[1], given.seg_q ? min(BLOCK_M, mods.Sq - top) : 0) {
        const int own = top + mods.Sk - mods.Sq, after = mods.causal ? 0 : mods.window - 1;
        last = min(mods.Sk, max(0, own + BLOCK_M + after));
        first = next(max(0, own - mods.window + 1) / BLOCK_N * BLOCK_N - BLOCK_N);
    }

    __device__ Range keys(int start) const {
        return Range(given.seg_k + start * mods.seg_k[1], mods.seg_k[1], min(BLOCK_N, mods.Sk - start));
    }

    __device__ int next(int start) const {
        do {
            start += BLOCK_N;
            if (!given.seg_q || start >= last) break;
            const Range others = keys(start);
            if (others.low <= queries.high && queries.low <= others.high) break;
        } while (true);
        return start;
    }

    __device__ bool whole(int start) const {
        const int own = top + mods.Sk - mods.Sq, end = start + BLOCK_N - 1;
        if (EDITED || scale < 0.0f || end >= mods.Sk || own + BLOCK_M - 1 - start >= mods.window) return false;
        if (mods.causal ? end > own : end - own >= mods.window) return false;
        if (!given.seg_q) return true;
        const Range others = keys(start);
        return min(others.low, queries.low) == max(others.high, queries.high);
    }

    // masks.cuh's `sees` in ints, which leaves its registers to the scores.
    __device__ bool seen(int i, int j) const {
        const int apart = i + (mods.Sk - mods.Sq) - j;
        bool found = apart < mods.window && apart > (mods.causal ? -1 : -mods.window);
        if (given.seg_q) found = found && given.seg_q[i * mods.seg_q[1]] == given.seg_k[j * mods.seg_k[1]];
        return found;
    }

    __device__ void edit(Scores& s, int start, int row, int lane) const {
        each(s, start, row, lane, [&](float dot, int i, int j) {
            if (i >= mods.Sq || j >= mods.Sk) return -INFINITY;
            if (EDITED) return masked_score(dot, given, mods, i, j).value * LOG2_E;
            return seen(i, j) ? dot * scale : -INFINITY;
        });
    }

    __device__ void edit_weights(Scores& p, int start, int row, int lane) const {
        if (!EDITED || mods.threshold == 0) return;
        each(p, start, row, lane, [&](float weight, int i, int j) {
            return weight > 0.0f ? after_dropout(weight, mods, pair, i, j) : weight;
        });
    }

    // Replaces each element of s by change(element, query, key).
    template <typename Change>
    __device__ void each(Scores& s, int start, int row, int lane, const Change& change) const {
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; ++n) {
#pragma unroll
            for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int i = row + 16 * t + e / 2 * 8 + lane / 4, j = start + 8 * n + lane % 4 * 2 + e % 2;
                    s[t][n][e] = change(s[t][n][e], i, j);
                }
            }
        }
    }
};

extern "C" __global__ __launch_bounds__(THREADS) void masked_tensorcore(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    const ELEMENT* bias, const float* slopes, const int* seg_q, const int* seg_k, const Mods mods,
    ELEMENT* o, float* lse, int kv_heads, int dim) {
    const int tiles = (mods.Sq + BLOCK_M - 1) / BLOCK_M;
    const long long pair = blockIdx.x / tiles, reader = pair % mods.heads / (mods.heads / kv_heads);
    const int top = (tiles - 1 - (int)(blockIdx.x % tiles)) * BLOCK_M;  // causal: those that see most keys start first
    q += pair / mods.heads * q_batch + pair % mods.heads * q_head;
    k += pair / mods.heads * k_batch + reader * k_head;
    v += pair / mods.heads * v_batch + reader * v_head;
    const Given given(bias, slopes, seg_q, seg_k, mods, pair);
    sweep(
        {q, q_row, q_col, dim}, {k, k_row, k_col, dim}, {v, v_row, v_col, dim}, o + pair * mods.Sq * dim, dim,
        lse + pair * mods.Sq, top, mods.Sq, mods.Sk, Masked(mods, given, pair, top));
}
