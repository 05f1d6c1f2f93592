// wgmma: attention on warpgroups. One has the copy engine bring keys and values, GROUPS hold 64 queries each with their
// scores and o in registers. The scores of the next keys are formed while the values of these are used; the warpgroups
// run apart, so that one's exponentials fill another's waits. BLOCK_D (64 or 128), GROUPS (2, up to 64 also 3) and
// STAGES come from the launcher.
#include "hopper.cuh"

constexpr int THREADS = 128 + 128 * GROUPS, WARPS = 4 * GROUPS, BLOCK_M = 64 * GROUPS, BLOCK_N = 128;
// The warpgroups start their products by turns, so that the exponentials of one run beside the products of the others.
// At D 128 products take twice the time of exponentials, and that gains nothing.
constexpr bool TURNS = BLOCK_D == 64;
constexpr int SIDE = 64;  // elements of 128 bytes, the width of what the copy engine brings: rows of all 128 tokens
constexpr int PART = BLOCK_N * SIDE, TILE = BLOCK_N * BLOCK_D, STEP = 16;

struct Shared {
    // Of all tokens 64 of the head's dimensions, then the next 64.
    ELEMENT q[BLOCK_M * BLOCK_D], k[STAGES][TILE], v[STAGES][TILE];
    Barrier q_full, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

using Scores = float[BLOCK_N / 8][4];
using Weights = unsigned[BLOCK_N / STEP][4];
using Output = float[BLOCK_D / 8][4];

__device__ inline void load(ELEMENT* tile, const TensorMap& x, int row, int head, int batch, Barrier* full) {
    barrier_expect(full, TILE * sizeof(ELEMENT));
#pragma unroll
    for (int part = 0; part < TILE / PART; ++part) copy_in(tile + part * PART, x, part * SIDE, row, head, batch, full);
}

// The queries, 64 at a time.
__device__ inline void load_queries(Shared& shared, const TensorMap& q, int top, int head, int batch) {
    barrier_expect(&shared.q_full, sizeof(shared.q));
#pragma unroll
    for (int i = 0; i < BLOCK_D / SIDE * GROUPS; ++i) {
        copy_in(shared.q + i * 64 * SIDE, q, i / GROUPS * SIDE, top + i % GROUPS * 64, head, batch, &shared.q_full);
    }
}

// s = q * kᵀ for this warpgroup's queries, started.
__device__ inline void scores(Scores& s, const ELEMENT* q, const ELEMENT* k) {
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < BLOCK_D; d += STEP) {
        const ELEMENT *left = q + d / SIDE * BLOCK_M * SIDE + d % SIDE, *right = k + d / SIDE * PART + d % SIDE;
        wgmma<true, true>(s, descriptor(left, 0), descriptor(right, 0), ELEMENT(), d > 0);
    }
    wgmma_commit();
}

// o += p * v, started.
__device__ inline void values(Output& o, const Weights& p, const ELEMENT* v) {
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < BLOCK_N / STEP; ++j) {
        wgmma<false>(o, p[j], descriptor(v + j * STEP * SIDE, PART * sizeof(ELEMENT)), ELEMENT());
    }
    wgmma_commit();
}

// Keys from `limit` of their row on become -inf; `scale` is applied to all.
__device__ inline void mask(Scores& s, float scale, int start, int row, int keys, int shift) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int limit = min(keys, row + i / 2 * 8 + lane / 4 + shift + 1);
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; ++n) {
            s[n][i] = start + 8 * n + lane % 4 * 2 + i % 2 < limit ? s[n][i] * scale : -INFINITY;
        }
    }
}

// Of the rows group and group + 8: the maximum, this thread's part of the sum, and what o so far has to be scaled by.
struct Rows {
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {}, alpha[2];
};

// Scores become exp2(s * scale - m) under the new maxima m, zero for hidden keys unless `all` are seen. scale >= 0.
__device__ inline void softmax(
    Scores& s, Rows& rows, float scale, bool all, int start, int row, int keys, int shift
) {
    if (!all) mask(s, scale, start, row, keys, shift), scale = 1.0f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float top = -INFINITY;
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(all_lanes, top, 1));
        top = fmaxf(top, __shfl_xor_sync(all_lanes, top, 2));
        const float m_new = fmaxf(rows.m[h], top * scale);
        const float base = fabsf(m_new) == INFINITY ? 0.0f : m_new;  // inf - inf is NaN: such a row stays unshifted
        rows.alpha[h] = exp2f(rows.m[h] - base);
        rows.m[h] = m_new;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; ++n) {
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; ++e) {
                s[n][e] = exp2f(fmaf(s[n][e], scale, -base));
                sum += s[n][e];
            }
        }
        rows.l[h] = rows.l[h] * rows.alpha[h] + sum;
    }
}

__device__ inline void rescale(Output& o, const Rows& rows) {
#pragma unroll
    for (int n = 0; n < BLOCK_D / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[n][i] *= rows.alpha[i / 2];
    }
}

// Scores, rounded, as the left operand of the next product.
__device__ inline void round(Weights& p, const Scores& s) {
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; ++j) {
        p[j / 2][j % 2 * 2] = pack_pair<ELEMENT>(s[j][0], s[j][1]);
        p[j / 2][j % 2 * 2 + 1] = pack_pair<ELEMENT>(s[j][2], s[j][3]);
    }
}

// o and lse are those of this head; `row` is this warp's first query.
__device__ inline void store(ELEMENT* o, float* lse, const Output& acc, const Rows& rows, int row, int Sq, int dim) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float sum = rows.l[h];
        sum += __shfl_xor_sync(all_lanes, sum, 1);
        sum += __shfl_xor_sync(all_lanes, sum, 2);
        if (sum == 0.0f) sum = 1.0f;  // a row that sees nothing: zeros and m = -inf
        const int i = row + 8 * h + lane / 4;
        if (i >= Sq) continue;
        const float inverse = 1.0f / sum;
#pragma unroll
        for (int n = 0; n < BLOCK_D / 8; ++n) {
            const int d = 8 * n + lane % 4 * 2;
            const float low = acc[n][2 * h] * inverse, high = acc[n][2 * h + 1] * inverse;
            ELEMENT* target = o + (long long)i * dim + d;
            if (dim % 2 == 0 && d < dim) *reinterpret_cast<unsigned*>(target) = pack_pair<ELEMENT>(low, high);
            if (dim % 2 == 1 && d < dim) target[0] = from_float<ELEMENT>(low);
            if (dim % 2 == 1 && d + 1 < dim) target[1] = from_float<ELEMENT>(high);
        }
        if (lane % 4 == 0) lse[i] = rows.m[h] * 0.6931471805599453f + logf(sum);
    }
}

// This warp has read a tile.
__device__ inline void release(Barrier* empty) {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty, 0);
}

// One thread's work, before a barrier of the block.
__device__ inline void start_barriers(Shared& shared) {
    barrier_init(&shared.q_full, 1);
    for (int stage = 0; stage < STAGES; ++stage) {
        barrier_init(&shared.k_full[stage], 1), barrier_init(&shared.k_empty[stage], WARPS);
        barrier_init(&shared.v_full[stage], 1), barrier_init(&shared.v_empty[stage], WARPS);
    }
    barrier_init_fence();
}

// One thread's work: the keys and values of a head up to `last`, as soon as a stage of theirs is empty.
__device__ inline void load_keys(
    Shared& shared, const TensorMap& k, const TensorMap& v, int last, int head, int batch) {
    Slot<STAGES> slot;
    for (int start = 0; start < last; start += BLOCK_N, slot.next()) {
        const int stage = slot.stage;
        barrier_wait(&shared.k_empty[stage], slot.parity ^ 1);
        load(shared.k[stage], k, start, head, batch, &shared.k_full[stage]);
        barrier_wait(&shared.v_empty[stage], slot.parity ^ 1);
        load(shared.v[stage], v, start, head, batch, &shared.v_full[stage]);
    }
}

// `scale` carries log2 e and is not negative. In one piece: each wgmma_wait counts the products that are under way
// around it, so that their order has to be seen.
extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_wgmma(
    const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
    ELEMENT* o, float* lse, int Hq, int Hkv, int Sq, int Sk, int dim, float scale, int causal
) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    const int tiles = (Sq + BLOCK_M - 1) / BLOCK_M, pair = blockIdx.x / tiles;  // (batch, query head)
    const int top = (tiles - 1 - int(blockIdx.x % tiles)) * BLOCK_M;  // causal: those that see most keys start first
    // Keys up to `full` are visible to all queries of the tile, from `last` on to none; without causality the shift is
    // so large that only Sk hides a key.
    const int shift = causal ? Sk - Sq : Sk;
    const int full = min(Sk, max(0, top + shift + 1)) / BLOCK_N * BLOCK_N;
    const int last = min(Sk, max(0, top + BLOCK_M + shift));
    if (threadIdx.x == 0) start_barriers(shared);
    __syncthreads();  // the barriers are there
    if (threadIdx.x < 128) {
        give_registers<GROUPS == 2 ? 24 : 32>();
        if (threadIdx.x == 0) {
            const int batch = pair / Hq;
            load_queries(shared, q, top, pair % Hq, batch);
            load_keys(shared, k, v, last, pair % Hq / (Hq / Hkv), batch);
        }
    } else {
        take_registers<GROUPS == 2 ? 240 : 160>();
        const int row = top + (threadIdx.x / 32 - 4) * 16, group = threadIdx.x / 128 - 1, next = (group + 1) % GROUPS;
        const ELEMENT* queries = shared.q + group * 64 * SIDE;
        Output acc = {};
        Rows rows;
        Weights p;
        Scores s;
        Slot<STAGES> keys, used;  // where the keys are, and the values, which are used a step later
        barrier_wait(&shared.q_full, 0);
        if (last > 0) {
            barrier_wait(&shared.k_full[0], 0);
            scores(s, queries, shared.k[0]);
            wgmma_wait<0>();
            wgmma_settle(s);
            release(&shared.k_empty[0]);
            softmax(s, rows, scale, full > 0, 0, row, Sk, shift);
            round(p, s);
            keys.next();
        }
        if (TURNS && group == GROUPS - 1 && last > BLOCK_N) arrive_threads<256>(1);
        for (int start = BLOCK_N; start < last; start += BLOCK_N, keys.next(), used.next()) {
            barrier_wait(&shared.k_full[keys.stage], keys.parity);
            if (TURNS) sync_threads<256>(1 + group);
            scores(s, queries, shared.k[keys.stage]);
            barrier_wait(&shared.v_full[used.stage], used.parity);
            values(acc, p, shared.v[used.stage]);
            if (TURNS && (next > 0 || start + BLOCK_N < last)) arrive_threads<256>(1 + next);
            wgmma_wait<1>();
            wgmma_settle(s);
            release(&shared.k_empty[keys.stage]);
            softmax(s, rows, scale, start < full, start, row, Sk, shift);
            wgmma_wait<0>();
            wgmma_settle(acc);
            release(&shared.v_empty[used.stage]);
            rescale(acc, rows);
            round(p, s);
        }
        if (last > 0) {
            barrier_wait(&shared.v_full[used.stage], used.parity);
            values(acc, p, shared.v[used.stage]);
            wgmma_wait<0>();
            wgmma_settle(acc);
        }
        store(o + (long long)pair * Sq * dim, lse + (long long)pair * Sq, acc, rows, row, Sq, dim);
    }
}
