// wgmma: attention on warpgroups. GROUPS hold 64 queries each with their scores and o in registers, another thread
// has the copy engine bring keys and values. The scores of the next keys are formed while the values of these are used;
// the warpgroups run apart, so that one's exponentials fill another's waits. BLOCK_D (64 or 128), GROUPS (2, up to 64
// also 1 and 3), the KEYS of a tile, the BLOCKS that share a multiprocessor and STAGES come from the launcher.
#include "hopper.cuh"

constexpr int WARPS = 4 * GROUPS, BLOCK_M = 64 * GROUPS, BLOCK_N = KEYS;
// Warpgroups that have a multiprocessor to themselves take the registers that the loading one, whole then, gives away.
constexpr bool ALONE = BLOCKS == 1;
constexpr int LOADER = 128 * GROUPS, THREADS = LOADER + (ALONE ? 128 : 32);
// The warpgroups start their products by turns, so that the exponentials of one run beside the products of the others.
// At D 128 products take twice the time of exponentials, and that gains nothing.
constexpr bool TURNS = BLOCK_D == 64 && GROUPS > 1;
constexpr int SIDE = 64;  // elements of 128 bytes, the width of what the copy engine brings: rows of all tokens
constexpr int PART = BLOCK_N * SIDE, TILE = BLOCK_N * BLOCK_D, STEP = 16, STRIP = 16 * BLOCK_D;

struct Shared {
    // Of all tokens 64 of the head's dimensions, then the next 64.
    ELEMENT q[BLOCK_M * BLOCK_D], k[STAGES][TILE], v[STAGES][TILE];
    ELEMENT strips[WARPS][STRIP];  // of o, where a warp's rows await the copy engine
    Barrier q_full, q_empty, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
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

// This warp's 16 rows of o by the copy engine, through its strip of shared memory: 64 dimensions, then the next 64.
__device__ inline void store(const TensorMap& o, const Output& acc, int row, int pair, ELEMENT* strip) {
    const int lane = threadIdx.x % 32;
    if (lane == 0) copy_out_wait<0>();
    __syncwarp();  // the copy engine has read the rows before
#pragma unroll
    for (int n = 0; n < BLOCK_D / 8; n += 2) {
        ELEMENT* part = strip + n / (SIDE / 8) * 16 * SIDE;
        const int chunk = (n % (SIDE / 8) + lane / 16) ^ lane % 8;
        stmatrix_x4(
            part + lane % 16 * SIDE + chunk * 8, pack_pair<ELEMENT>(acc[n][0], acc[n][1]),
            pack_pair<ELEMENT>(acc[n][2], acc[n][3]), pack_pair<ELEMENT>(acc[n + 1][0], acc[n + 1][1]),
            pack_pair<ELEMENT>(acc[n + 1][2], acc[n + 1][3])
        );
    }
    async_fence();
    __syncwarp();  // the rows are there
    if (lane > 0) return;
#pragma unroll
    for (int part = 0; part < BLOCK_D / SIDE; ++part) copy_out(o, part * SIDE, row, pair, strip + part * 16 * SIDE);
    copy_out_commit();
}

// The same where rows of o do not begin at multiples of 16 bytes; `o` is that of this head.
__device__ inline void store(ELEMENT* o, const Output& acc, int row, int Sq, int dim) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int i = row + 8 * h + lane / 4;
#pragma unroll
        for (int n = 0; n < BLOCK_D / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int d = 8 * n + lane % 4 * 2 + e;
                if (i < Sq && d < dim) o[(long long)i * dim + d] = from_float<ELEMENT>(acc[n][2 * h + e]);
            }
        }
    }
}

// acc becomes this warp's rows of o, and lse, that of this head, is stored.
__device__ inline void finish(Output& acc, Rows& rows, float* lse, int row, int Sq) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float sum = rows.l[h];
        sum += __shfl_xor_sync(all_lanes, sum, 1);
        sum += __shfl_xor_sync(all_lanes, sum, 2);
        if (sum == 0.0f) sum = 1.0f;  // a row that sees nothing: zeros and m = -inf
        rows.alpha[h] = 1.0f / sum;
        const int i = row + 8 * h + lane / 4;
        if (i < Sq && lane % 4 == 0) lse[i] = rows.m[h] * 0.6931471805599453f + logf(sum);
    }
    rescale(acc, rows);
}

// This warp has read a tile.
__device__ inline void release(Barrier* empty) {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty, 0);
}

// One thread's work, before a barrier of the block.
__device__ inline void start_barriers(Shared& shared) {
    barrier_init(&shared.q_full, 1), barrier_init(&shared.q_empty, WARPS);
    for (int stage = 0; stage < STAGES; ++stage) {
        barrier_init(&shared.k_full[stage], 1), barrier_init(&shared.k_empty[stage], WARPS);
        barrier_init(&shared.v_full[stage], 1), barrier_init(&shared.v_empty[stage], WARPS);
    }
    barrier_init_fence();
}

// Tile `number` of queries, of a head of a batch: the queries that see most keys come first. Keys up to `full` are
// visible to all its queries, from `last` on to none; without causality the shift is so large that only Sk hides a key.
struct Tile {
    int pair, top, full, last, shift;

    __device__ Tile(int number, int pairs, int together, int Sq, int Sk, int causal) {
        const int tiles = (Sq + BLOCK_M - 1) / BLOCK_M;
        const InOrder place(number, pairs, tiles, together);
        pair = place.head, top = (tiles - 1 - place.tile) * BLOCK_M;
        shift = causal ? Sk - Sq : Sk;
        full = min(Sk, max(0, top + shift + 1)) / BLOCK_N * BLOCK_N;
        last = min(Sk, max(0, top + BLOCK_M + shift));
    }
};

// One thread's work: of a tile the queries, the keys and the values, as soon as there is room.
__device__ inline void load_tile(
    Shared& shared, const TensorMap& q, const TensorMap& k, const TensorMap& v, const Tile& tile, int Hq, int Hkv,
    Slot<STAGES>& slot, Slot<1>& queries
) {
    const int batch = tile.pair / Hq, head = tile.pair % Hq, head_kv = head / (Hq / Hkv);
    for (int start = 0; start < tile.last; start += BLOCK_N, slot.next()) {
        const int stage = slot.stage;
        barrier_wait(&shared.k_empty[stage], slot.parity ^ 1);
        load(shared.k[stage], k, start, head_kv, batch, &shared.k_full[stage]);
        if (start == 0) {
            barrier_wait(&shared.q_empty, queries.parity ^ 1);
            load_queries(shared, q, tile.top, head, batch);
            queries.next();
        }
        barrier_wait(&shared.v_empty[stage], slot.parity ^ 1);
        load(shared.v[stage], v, start, head_kv, batch, &shared.v_full[stage]);
    }
}

// A block takes several of the `tiles`: the next one's operands come while it ends this one. `scale` carries log2 e and
// is not negative.
// Longer than a screen: each wgmma_wait counts the products that are under way around it, so that their order has to be
// seen.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention_wgmma(
    const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
    const __grid_constant__ TensorMap o_map, ELEMENT* o, float* lse, int tiles, int together, int Hq, int Hkv, int Sq,
    int Sk, int dim, float scale, int causal
) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    const int pairs = tiles / ((Sq + BLOCK_M - 1) / BLOCK_M);
    if (threadIdx.x == 0) start_barriers(shared);
    __syncthreads();  // the barriers are there
    if (threadIdx.x >= LOADER) {
        if (ALONE) give_registers<GROUPS == 2 ? 24 : 32>();
        if (threadIdx.x > LOADER) return;
        Slot<STAGES> slot;
        Slot<1> queries;
        for_tiles(tiles, [&](int number) {
            load_tile(shared, q, k, v, Tile(number, pairs, together, Sq, Sk, causal), Hq, Hkv, slot, queries);
        });
        return;
    }
    if (ALONE) take_registers<GROUPS == 2 ? 240 : 160>();
    const int group = __shfl_sync(all_lanes, threadIdx.x / 128, 0);  // known to the compiler as one of the whole warp
    const int next = (group + 1) % GROUPS;
    const ELEMENT* mine = shared.q + group * 64 * SIDE;
    Slot<STAGES> keys, used;  // where the keys are, and the values, which are used a step later
    Slot<1> queries;
    for_tiles(tiles, [&](int number) {
        const Tile tile(number, pairs, together, Sq, Sk, causal);
        const int row = tile.top + threadIdx.x / 32 * 16, last = tile.last;
        Output acc = {};
        Rows rows;
        Weights p;
        Scores s;
        if (last > 0) {
            barrier_wait(&shared.q_full, queries.parity);
            barrier_wait(&shared.k_full[keys.stage], keys.parity);
            scores(s, mine, shared.k[keys.stage]);
            wgmma_wait<0>();
            wgmma_settle(s);
            release(&shared.k_empty[keys.stage]);
            softmax(s, rows, scale, tile.full > 0, 0, row, Sk, tile.shift);
            round(p, s);
            keys.next();
        }
        if (TURNS && group == GROUPS - 1 && last > BLOCK_N) arrive_threads<256>(1);
        for (int start = BLOCK_N; start < last; start += BLOCK_N, keys.next(), used.next()) {
            barrier_wait(&shared.k_full[keys.stage], keys.parity);
            if (TURNS) sync_threads<256>(1 + group);
            scores(s, mine, shared.k[keys.stage]);
            barrier_wait(&shared.v_full[used.stage], used.parity);
            values(acc, p, shared.v[used.stage]);
            if (TURNS && (next > 0 || start + BLOCK_N < last)) arrive_threads<256>(1 + next);
            wgmma_wait<1>();
            wgmma_settle(s);
            release(&shared.k_empty[keys.stage]);
            softmax(s, rows, scale, start < tile.full, start, row, Sk, tile.shift);
            wgmma_wait<0>();
            wgmma_settle(acc);
            release(&shared.v_empty[used.stage]);
            rescale(acc, rows);
            round(p, s);
        }
        if (last > 0) {
            release(&shared.q_empty), queries.next();
            barrier_wait(&shared.v_full[used.stage], used.parity);
            values(acc, p, shared.v[used.stage]);
            wgmma_wait<0>();
            wgmma_settle(acc);
            release(&shared.v_empty[used.stage]), used.next();
        }
        finish(acc, rows, lse + (long long)tile.pair * Sq, row, Sq);
        if (dim % 8 == 0) store(o_map, acc, row, tile.pair, shared.strips[threadIdx.x / 32]);
        else store(o + (long long)tile.pair * Sq * dim, acc, row, Sq, dim);
    });
    copy_out_wait<0>();  // the strips are those of the block
}
