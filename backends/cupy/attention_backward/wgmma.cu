// wgmma: tensorcore's walk on warpgroups. A block owns 128 keys and walks over the queries that see them. One warpgroup
// has the copy engine bring q and do, two hold 64 keys each: scores are formed transposed, so that pᵀ and dsᵀ are left
// operands in registers for dv and dk, and ds goes through shared memory for dq alone. The exponentials of p run beside
// do * vᵀ, the rest of ds beside dv, the additions to dq beside dk. BLOCK_D (64 or 128) and STAGES come from the
// launcher.
#include "hopper.cuh"

constexpr int THREADS = 384, WARPS = 8, BLOCK_M = 64, BLOCK_N = 128;
constexpr int SIDE = 64, STEP = 16;  // elements of 128 bytes, the width of what the copy engine brings; k of a product
constexpr int Q_PART = BLOCK_M * SIDE, K_PART = BLOCK_N * SIDE, PARTS = BLOCK_D / SIDE;
constexpr int HALF_D = BLOCK_D / 2;  // the columns of dq that a warpgroup forms, from all keys

struct Shared {
    ELEMENT k[PARTS * K_PART], v[PARTS * K_PART];  // of all tokens 64 of the head's dimensions, then the next 64
    ELEMENT q[STAGES][PARTS * Q_PART], grad[STAGES][PARTS * Q_PART];
    ELEMENT ds[2][BLOCK_N * BLOCK_M];  // rows of 64 queries, a key each
    float lse[STAGES][BLOCK_M], delta[STAGES][BLOCK_M];
    Barrier kv_full, kv_empty, full[STAGES], empty[STAGES];
};

using Scores = float[BLOCK_M / 8][4];  // of 16 keys per warp
using Weights = unsigned[BLOCK_M / STEP][4];
using Gradient = float[BLOCK_D / 8][4];
using Part = float[HALF_D / 8][4];

// A block's 128 keys, from `left` on, of a pair of batch and key head; those that most queries see come first. `first`
// is the first tile of queries that see any of them.
struct Tile {
    int tiles, pair, tile, left, first;

    __device__ Tile(int number, int all, int together, int Sk, int shift) {
        tiles = (Sk + BLOCK_N - 1) / BLOCK_N;
        const InOrder place(number, all / tiles, tiles, together);
        tile = place.tile, pair = place.head, left = tile * BLOCK_N;
        first = max(0, left - shift) / BLOCK_M * BLOCK_M;
    }
};

// The query tiles of a block: those of each query head in turn, from another one on in every block, so that blocks do
// not add to the same dq at the same time.
struct Queries {
    int first, tiles, offset, count, number = 0, head = 0, tile;

    __device__ Queries(int first, int Sq, int heads, int turn, int turns) : first(first) {
        tiles = first < Sq ? (Sq - first + BLOCK_M - 1) / BLOCK_M : 0;
        offset = turn * tiles / turns;
        count = tiles * heads;
        tile = offset;
    }

    __device__ bool more() const { return number < count; }
    __device__ int start() const { return first + tile * BLOCK_M; }

    __device__ void next() {
        ++number;
        if (++tile == tiles) tile = 0;
        if (tile == offset) ++head;
    }
};

// One thread's work: the block's keys and values, from token `left` on.
__device__ inline void load_keys(
    Shared& shared, const TensorMap& k, const TensorMap& v, int left, int head, int batch) {
    barrier_expect(&shared.kv_full, 2 * PARTS * K_PART * sizeof(ELEMENT));
    for (int part = 0; part < PARTS; ++part) {
        copy_in(shared.k + part * K_PART, k, part * SIDE, left, head, batch, &shared.kv_full);
        copy_in(shared.v + part * K_PART, v, part * SIDE, left, head, batch, &shared.kv_full);
    }
}

// One warp's work: a tile of queries and what is known of them.
__device__ inline void load_queries(
    Shared& shared, const TensorMap& q, const TensorMap& grad, const float* lse, const float* delta, int start,
    int head, int batch, int Hq, int Sq, const Slot<STAGES>& slot
) {
    const int lane = threadIdx.x, stage = slot.stage;
    const long long row = ((long long)batch * Hq + head) * Sq + start;
    float statistics[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const bool inside = start + lane + i * 32 < Sq;
        statistics[0][i] = inside ? lse[row + lane + i * 32] : INFINITY;
        statistics[1][i] = inside ? delta[row + lane + i * 32] : 0.0f;
    }
    barrier_wait(&shared.empty[stage], slot.parity ^ 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        shared.lse[stage][lane + i * 32] = statistics[0][i], shared.delta[stage][lane + i * 32] = statistics[1][i];
    }
    if (lane == 0) {
        barrier_expect(&shared.full[stage], 2 * PARTS * Q_PART * sizeof(ELEMENT));
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const int x = part * SIDE;
            copy_in(shared.q[stage] + part * Q_PART, q, x, start, head, batch, &shared.full[stage]);
            copy_in(shared.grad[stage] + part * Q_PART, grad, x, start, head, batch, &shared.full[stage]);
        }
    } else {
        barrier_arrive(&shared.full[stage], 0);
    }
}

// s = own * stepᵀ for this warpgroup's 64 keys, started.
__device__ inline void scores(Scores& s, const ELEMENT* own, const ELEMENT* step) {
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < BLOCK_D; d += STEP) {
        const int part = d / SIDE, col = d % SIDE;
        const unsigned long long a = descriptor(own + part * K_PART + col, 0);
        wgmma<true, true>(s, a, descriptor(step + part * Q_PART + col, 0), ELEMENT(), d > 0);
    }
    wgmma_commit();
}

// gradient += weights * step, started.
__device__ inline void accumulate(Gradient& gradient, const Weights& weights, const ELEMENT* step) {
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < BLOCK_M / STEP; ++j) {
        const unsigned long long b = descriptor(step + j * STEP * SIDE, Q_PART * sizeof(ELEMENT));
        wgmma<false>(gradient, weights[j], b, ELEMENT());
    }
    wgmma_commit();
}

// s becomes p = exp2(s * scale - lse); if MASKED, 0 for queries before `first_seen`, the first to see this lane's
// first key (one more a key), for those from `end` on, and for keys past the `keys_left` from that key on.
template <bool MASKED>
__device__ inline void probabilities(
    Scores& s, const float* lse, float scale, int start, int first_seen, int end, int keys_left
) {
    const int member = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < BLOCK_M / 8; ++n) {
        const int i = 8 * n + member * 2;
        const float2 shift = *reinterpret_cast<const float2*>(lse + i);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            s[n][e] = exp2f(fmaf(s[n][e], scale, -(e % 2 ? shift.y : shift.x)));
            const int query = start + i + e % 2, key = 8 * (e / 2);
            if (MASKED && (key >= keys_left || query < first_seen + key || query >= end)) s[n][e] = 0.0f;
        }
    }
}

// Scores, rounded, as the left operand of the next product.
__device__ inline void round(Weights& weights, const Scores& s) {
#pragma unroll
    for (int n = 0; n < BLOCK_M / 8; ++n) {
        weights[n / 2][n % 2 * 2] = pack_pair<ELEMENT>(s[n][0], s[n][1]);
        weights[n / 2][n % 2 * 2 + 1] = pack_pair<ELEMENT>(s[n][2], s[n][3]);
    }
}

// A warpgroup's columns of dq = ds * k, started.
__device__ inline void form_dq(Part& dq, const ELEMENT* ds, const ELEMENT* k) {
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < BLOCK_N; j += STEP) {
        wgmma<false, false>(dq, descriptor(ds + j * BLOCK_M, 0), descriptor(k + j * SIDE, 0), ELEMENT(), j > 0);
    }
    wgmma_commit();
}

// Where this thread's first four sums are of half the columns of a tile of queries; the next are BLOCK_M * 8 on. They
// lie as the product leaves them in registers, so that a warp adds to 512 bytes in one piece.
__device__ inline long long place_of_sums(long long tile, int half) {
    return (tile * 2 + half) * BLOCK_M * HALF_D + threadIdx.x % 128 * 4;
}

// This warp's 16 rows of a product, of which `rows` exist, times `factor`, from column `col` on.
template <int COLS>
__device__ inline void store(ELEMENT* out, const float (&sum)[COLS / 8][4], float factor, int rows, int col, int dim) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int j = lane / 4 + 8 * h;
        if (j >= rows) continue;
#pragma unroll
        for (int n = 0; n < COLS / 8; ++n) {
            const int d = col + 8 * n + lane % 4 * 2;
            const float low = sum[n][2 * h] * factor, high = sum[n][2 * h + 1] * factor;
            ELEMENT* target = out + (long long)j * dim + d;
            if (dim % 2 == 0 && d < dim) *reinterpret_cast<unsigned*>(target) = pack_pair<ELEMENT>(low, high);
            if (dim % 2 == 1 && d < dim) target[0] = from_float<ELEMENT>(low);
            if (dim % 2 == 1 && d + 1 < dim) target[1] = from_float<ELEMENT>(high);
        }
    }
}

// One thread's work, before a barrier of the block.
__device__ inline void start_barriers(Shared& shared) {
    barrier_init(&shared.kv_full, 1), barrier_init(&shared.kv_empty, WARPS);
    for (int stage = 0; stage < STAGES; ++stage) {
        barrier_init(&shared.full[stage], 32), barrier_init(&shared.empty[stage], WARPS);
    }
    barrier_init_fence();
}

// ds = p * (dp - delta), in place of dp: rows are keys, columns the queries whose delta is given.
__device__ inline void score_gradients(Scores& ds, const Scores& p, const float* delta) {
#pragma unroll
    for (int n = 0; n < BLOCK_M / 8; ++n) {
        const float2 delta_n = *reinterpret_cast<const float2*>(delta + 8 * n);
#pragma unroll
        for (int e = 0; e < 4; ++e) ds[n][e] = p[n][e] * (ds[n][e] - (e % 2 ? delta_n.y : delta_n.x));
    }
}

// This warp's rounded ds, 16 rows from `row` on, to shared memory.
__device__ inline void store_ds(ELEMENT* tile, const Weights& dweights, int row, int lane) {
#pragma unroll
    for (int i = 0; i < BLOCK_M / STEP; ++i) {
        const int at = (row + lane % 16) * BLOCK_M + ((i * 2 + lane / 16) ^ lane % 8) * 8;
        stmatrix_x4(tile + at, dweights[i][0], dweights[i][1], dweights[i][2], dweights[i][3]);
    }
}

// dk and dv; dq / scale is added to `sums`, which holds zeros for each tile of queries. `scale2` is scale * log2 e. A
// block takes several of the `tiles` of keys: the next one's operands come while it ends this one.
// Longer than a screen: each wgmma_wait counts the products under way around it, so that their order has to be seen.
extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_backward_wgmma(
    const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
    const __grid_constant__ TensorMap grad, const float* delta, const float* lse2, float* sums, ELEMENT* dk,
    ELEMENT* dv, int tiles, int together, int Hq, int Hkv, int Sq, int Sk, int dim, float scale, float scale2,
    int causal
) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    // Queries before `first` see no key of the tile; without causality the shift is so large that all see all.
    const int shift = causal ? Sk - Sq : Sk, group = Hq / Hkv;
    if (threadIdx.x == 0) start_barriers(shared);
    __syncthreads();  // the barriers are there
    Slot<STAGES> slot;
    Slot<1> owned;
    if (threadIdx.x < 128) {
        give_registers<24>();
        if (threadIdx.x >= 32) return;
        for_tiles(tiles, [&](int number) {
            const Tile tile(number, tiles, together, Sk, shift);
            const int batch = tile.pair / Hkv, head_kv = tile.pair % Hkv;
            Queries queries(tile.first, Sq, group, tile.tile, tile.tiles);
            for (; queries.more(); queries.next(), slot.next()) {
                const int head = head_kv * group + queries.head;
                load_queries(shared, q, grad, lse2, delta, queries.start(), head, batch, Hq, Sq, slot);
                if (queries.number > 0) continue;
                barrier_wait(&shared.kv_empty, owned.parity ^ 1);
                if (threadIdx.x == 0) load_keys(shared, k, v, tile.left, head_kv, batch);
                owned.next();
            }
        });
        return;
    }
    take_registers<240>();
    const int warpgroup = __shfl_sync(all_lanes, threadIdx.x / 128 - 1, 0);  // known to the compiler as one of the warp
    const int lane = threadIdx.x % 32, row = (threadIdx.x / 32 - 4) * 16;
    const ELEMENT *own_k = shared.k + warpgroup * 64 * SIDE, *own_v = shared.v + warpgroup * 64 * SIDE;
    const int key = row + lane / 4, tiles_of_queries = (Sq + BLOCK_M - 1) / BLOCK_M;
    int buffer = 0;
    for_tiles(tiles, [&](int number) {
        const Tile tile(number, tiles, together, Sk, shift);
        const int batch = tile.pair / Hkv, head = tile.pair % Hkv * group, left = tile.left, keys = Sk - left;
        Queries queries(tile.first, Sq, group, tile.tile, tile.tiles);
        Gradient dk_acc = {}, dv_acc = {};
        // Zeros that are set later would part the products that are under way.
        wgmma_settle(dk_acc), wgmma_settle(dv_acc);
        if (queries.more()) barrier_wait(&shared.kv_full, owned.parity);
        for (; queries.more(); queries.next(), slot.next(), buffer ^= 1) {
            const int stage = slot.stage, start = queries.start();
            const int tile_of_queries = (batch * Hq + head + queries.head) * tiles_of_queries + start / BLOCK_M;
            const bool masked = keys < BLOCK_N || left + row + 15 > start + shift || start + BLOCK_M > Sq;
            const float* delta_i = shared.delta[stage] + lane % 4 * 2;
            Weights weights, dweights;
            Scores p, ds;
            Part dq;
            barrier_wait(&shared.full[stage], slot.parity);
            scores(p, own_k, shared.q[stage]);
            scores(ds, own_v, shared.grad[stage]);
            wgmma_wait<1>();
            wgmma_settle(p);
            const int first_seen = left + key - shift;
            if (masked) probabilities<true>(p, shared.lse[stage], scale2, start, first_seen, Sq, keys - key);
            else probabilities<false>(p, shared.lse[stage], scale2, start, first_seen, Sq, keys - key);
            round(weights, p);
            accumulate(dv_acc, weights, shared.grad[stage]);
            wgmma_wait<1>();
            wgmma_settle(ds);
            score_gradients(ds, p, delta_i);
            round(dweights, ds);
            store_ds(shared.ds[buffer], dweights, row, lane);
            async_fence();
            // The tile before has been read; told so here, not at its end, the next scores begin sooner.
            if (lane == 0 && queries.number > 0) barrier_arrive(&shared.empty[(stage + STAGES - 1) % STAGES], 0);
            sync_threads<256>(1);  // ds is there; the other buffer has been read by all
            form_dq(dq, shared.ds[buffer], shared.k + warpgroup * (HALF_D == SIDE ? K_PART : HALF_D));
            accumulate(dk_acc, dweights, shared.q[stage]);
            wgmma_wait<1>();
            wgmma_settle(dq);
            float* target = sums + place_of_sums(tile_of_queries, warpgroup);
#pragma unroll
            for (int n = 0; n < HALF_D / 8; ++n) atomic_add(target + n * BLOCK_M * 8, dq[n]);
            wgmma_wait<0>();
        }
        wgmma_settle(dk_acc), wgmma_settle(dv_acc);
        if (queries.number > 0) {
            if (lane == 0) barrier_arrive(&shared.empty[(slot.stage + STAGES - 1) % STAGES], 0);
            if (lane == 0) barrier_arrive(&shared.kv_empty, 0);
            owned.next();
        }
        const long long at = ((long long)tile.pair * Sk + left + row) * dim;
        store<BLOCK_D>(dk + at, dk_acc, scale, keys - row, 0, dim);
        store<BLOCK_D>(dv + at, dv_acc, 1.0f, keys - row, 0, dim);
    });
}

// A block rounds half the columns of a tile of queries.
extern "C" __global__ void __launch_bounds__(128) round_dq(
    const float* sums, ELEMENT* dq, int Sq, int dim, float scale) {
    const int tiles = (Sq + BLOCK_M - 1) / BLOCK_M, half = blockIdx.x % 2, number = blockIdx.x / 2;
    const int row = number % tiles * BLOCK_M + threadIdx.x / 32 * 16;
    const float* source = sums + place_of_sums(number, half);
    Part sum;
#pragma unroll
    for (int n = 0; n < HALF_D / 8; ++n) load16(source + n * BLOCK_M * 8, sum[n]);
    store<HALF_D>(dq + ((long long)number / tiles * Sq + row) * dim, sum, scale, Sq - row, half * HALF_D, dim);
}
