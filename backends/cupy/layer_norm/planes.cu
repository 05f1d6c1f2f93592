// Clusters that stay, as in team_rows.cuh, for rows that may begin anywhere in 16 bytes. A block keeps each weight beside
// its bias, as a pair, and the pairs of every `lanes`-th column side by side in a plane. Then the first elements of a
// row's vectors belong to one plane, wherever the row begins, and so do the second ones: neighbours read neighbours.
#define ALIGNED 1
#include "staged_rows.cuh"

constexpr int line = 128 / sizeof(ELEMENT);  // a block's vectors begin at lines of the caches, before the row maybe
constexpr int warps = THREADS / 32, places = warps * CLUSTER;

struct alignas(2 * sizeof(ELEMENT)) Pair {
    ELEMENT weight, bias;
};

// Of two bfloat16 each is one instruction, as in `unpack`.
__device__ inline float2 weight_and_bias(const Pair& pair) {
    if constexpr (sizeof(ELEMENT) == 2) {
        uint4 packed = {0, 0, 0, 0};
        memcpy(&packed.x, &pair, sizeof(Pair));
        float values[lanes];
        unpack<ELEMENT>(packed, values);
        return {values[0], values[1]};
    } else {
        return {to_float(pair.weight), to_float(pair.bias)};
    }
}

// Numbers: how many, their mean, and the sum of the squares of what they are off it.
struct Moments {
    float count, mean, squares;
};

// The block's `part` vectors of a row: `x` is where they begin, `y` the same place of the result; columns count from
// there, and those of the row are from `begin` to `end`. Threads have its whole vectors, and the first of them an
// element each of the others.
struct Part {
    const ELEMENT* x;
    ELEMENT* y;
    int lead, begin, end, come;  // `come` vectors come by the copy engine: all that do not reach beyond the last row

    __device__ inline Part(
        const ELEMENT* x, ELEMENT* y, long long x_row, long long row, long long rows, int cols, int part) {
        lead = lead_of<SHIFTED, line>(row, cols);
        begin = lead - int(blockIdx.x % CLUSTER) * part * lanes, end = min(cols + begin, part * lanes);
        this->x = x + row * x_row - begin, this->y = y + row * cols - begin;
        const long long left = (rows - 1 - row) * x_row + cols + begin;
        come = max(0, int(min(left / lanes, (end + lanes - 1LL) / lanes)));
    }

    __device__ inline bool has(int r) const { return column(r) >= begin && column(r) + lanes <= end; }

    // The column of the thread's element at either edge of the row, -1 if there is none.
    __device__ inline int edge() const {
        const bool first = int(threadIdx.x) < lanes;
        const int at = (first ? begin : end) / lanes * lanes + int(threadIdx.x) % lanes;
        const bool is = first ? begin > 0 && begin % lanes > 0 && at >= begin : at < end;
        return SHIFTED && threadIdx.x < 2 * lanes && is ? at : -1;
    }
};

// By all threads of a block: pairs of its columns and the line before them, in planes of `pitch`; zeros for what is not
// of the row.
__device__ inline void keep(
    Pair* planes, int pitch, const ELEMENT* weight, const ELEMENT* bias, long long w_col, long long b_col, int cols,
    int part) {
    const int first = int(blockIdx.x % CLUSTER) * part * lanes - line;
    for (int v = threadIdx.y * THREADS + threadIdx.x; v < pitch; v += TEAMS * THREADS) {
        const int col = first + v * lanes;
        Pair pairs[lanes];
#pragma unroll
        for (int i = 0; i < lanes; ++i) {
            const bool is = inside(col + i, cols);
            pairs[i].weight = is ? weight[(col + i) * w_col] : from_float<ELEMENT>(0.0f);
            pairs[i].bias = is && bias ? bias[(col + i) * b_col] : from_float<ELEMENT>(0.0f);
        }
#pragma unroll
        for (int i = 0; i < lanes; ++i) planes[i * pitch + v] = pairs[i];
    }
}

// About one value of the thread, as row_spread; `edge` is one more where `at` is not -1.
__device__ inline Moments moments_of(Values (&values)[VECTORS], float edge, int at, const Part& here) {
    const float first = here.has(0) ? values[0][0] : here.has(VECTORS > 1) ? values[VECTORS > 1][0] : edge;
    const float apart = at < 0 ? 0.0f : edge - first;
    float count = at < 0 ? 0.0f : 1.0f, sum = apart, squares = apart * apart;
#pragma unroll
    for (int r = 0; r < VECTORS; ++r) {
        if (here.has(r)) {
            count += lanes;
            float numbers[lanes];
            unpack<ELEMENT>(values[r].raw, numbers);
#pragma unroll
            for (int i = 0; i < lanes; ++i) {
                const float distance = numbers[i] - first;
                sum += distance, squares += distance * distance;
            }
        }
        in_order(values[r]);
    }
    const float off = count > 0.0f ? sum / count : 0.0f;
    return {count, first + off, squares - sum * off};
}

// Those of all lanes together, each of which has `count` of them.
template <int count> __device__ inline Moments joined(const Moments (&own)[count]) {
    float all = 0.0f, sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        all += own[i].count;
        sum += own[i].count > 0.0f ? own[i].count * own[i].mean : 0.0f;
    }
    all = warp_sum(all);
    const float mean = warp_sum(sum) / fmaxf(all, 1.0f);
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const float apart = own[i].mean - mean;
        squares += own[i].count > 0.0f ? own[i].squares + own[i].count * apart * apart : 0.0f;
    }
    return {all, mean, warp_sum(squares)};
}

// From those of each thread those of the row.
__device__ inline Moments exchange(const Moments& own, int& turn) {
    __shared__ float of_teams[TEAMS][2][3][places];
    auto& numbers = of_teams[threadIdx.y];
    const int half = turn % 2, lane = threadIdx.x % 32;
    const Moments of_warp = joined({own});
    const float told[3] = {of_warp.count, of_warp.mean, of_warp.squares};
    tell(numbers, blockIdx.x % CLUSTER * warps + threadIdx.x / 32, told, turn);
    constexpr int each = (places + 31) / 32;
    Moments of_lane[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
        const int at = i * 32 + lane;
        of_lane[i] = {0.0f, 0.0f, 0.0f};
        if (at < places) of_lane[i] = {numbers[half][0][at], numbers[half][1][at], numbers[half][2][at]};
    }
    return joined(of_lane);
}

__device__ inline void send_for(const Part& part, uint4* place, Barrier* come) {
    barrier_expect(come, part.come * 16);
    if (part.come > 0) copy_in_kept(place, part.x, part.come * 16, come);
}

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS * TEAMS, 1) layer_norm_planes(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* y, long long x_row, long long w_col,
    long long b_col, long long rows, int cols, int part, float eps) {
    extern __shared__ uint4 shared[];
    __shared__ Barrier come[TEAMS];
    uint4* const place = shared + threadIdx.y * part;
    Pair* const planes = reinterpret_cast<Pair*>(shared + TEAMS * part);
    const int pitch = part + line / lanes, clusters = gridDim.x / CLUSTER, step = clusters * TEAMS;
    long long row = blockIdx.x / CLUSTER + threadIdx.y * clusters;
    if (threadIdx.x == 0) barrier_init(&come[threadIdx.y], 1);
    begin_in_cluster();
    if (threadIdx.x == 0 && row < rows) send_for(Part(x, y, x_row, row, rows, cols, part), place, &come[threadIdx.y]);
    keep(planes, pitch, weight, bias, w_col, b_col, cols, part);
    __syncthreads();
    cluster_wait();

    int turn = 0, parity = 0;
    Values values[VECTORS];
    for (; row < rows; row += step, parity ^= 1) {
        const Part here(x, y, x_row, row, rows, cols, part);
        barrier_wait(&come[threadIdx.y], parity);
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            values[r].raw = here.has(r) ? place[r * THREADS + threadIdx.x] : uint4{0, 0, 0, 0};
        }
        const int at = here.edge();
        float edge = 0.0f;
        if (at >= 0) edge = to_float(at < here.come * lanes ? reinterpret_cast<const ELEMENT*>(place)[at] : here.x[at]);
        sync_threads<THREADS>(1 + threadIdx.y);  // all have read what the next row takes the place of
        if (threadIdx.x == 0 && row + step < rows) {
            send_for(Part(x, y, x_row, row + step, rows, cols, part), place, &come[threadIdx.y]);
        }
        const Moments moments = exchange(moments_of(values, edge, at, here), turn);
        const float mean = moments.mean, rstd = rsqrtf(moments.squares / cols + eps);

        const int from = line - here.lead;  // of the planes, what belongs to the block's first column
        if (at >= 0) {
            const float2 pair = weight_and_bias(planes[(from + at) % lanes * pitch + (from + at) / lanes]);
            here.y[at] = from_float<ELEMENT>((edge - mean) * rstd * pair.x + pair.y);
        }
        const Pair* of_element[lanes];  // in the thread's first vector
#pragma unroll
        for (int i = 0; i < lanes; ++i) {
            of_element[i] = planes + (from + i) % lanes * pitch + (from + i) / lanes + threadIdx.x;
        }
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            in_order(values[r]);
            if (!here.has(r)) continue;
            float out[lanes];
            unpack<ELEMENT>(values[r].raw, out);
#pragma unroll
            for (int i = 0; i < lanes; ++i) {
                const float2 pair = weight_and_bias(of_element[i][r * THREADS]);
                out[i] = (out[i] - mean) * rstd * pair.x + pair.y;
            }
            __stcs(reinterpret_cast<uint4*>(here.y + column(r)), pack<ELEMENT>(out));
        }
    }
}
