#include "team_rows.cuh"

// Of numbers: their mean, and the sum of the squares of what they are off it.
struct Moments {
    float mean = 0.0f, squares = 0.0f;
};

// Those of `before` numbers and of a vector.
__device__ inline Moments joined(Moments own, int before, const Values& more) {
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < lanes; ++i) sum += more[i];
    const float mean = sum / lanes, share = float(lanes) / (before + lanes), apart = mean - own.mean;
#pragma unroll
    for (int i = 0; i < lanes; ++i) squares += (more[i] - mean) * (more[i] - mean);
    return {own.mean + apart * share, own.squares + squares + apart * apart * before * share};
}

// Those of all lanes, which have `count` numbers each and `all` together.
__device__ inline Moments joined(Moments own, float count, float all) {
    const float mean = warp_sum(count * own.mean) / fmaxf(all, 1.0f), apart = own.mean - mean;
    return {mean, warp_sum(own.squares + count * apart * apart)};
}

// Columns of the warp of that number, of all of a row.
__device__ inline int columns_of_warp(int number, int cols) {
    const int first = (number / warps * part + number % warps * 32) * lanes;
    int sum = 0;
    for (int r = 0; r < VECTORS; ++r) sum += max(0, min(cols - first - r * THREADS * lanes, 32 * lanes));
    return sum;
}

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS * TEAMS, 1) layer_norm_teams(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* y, long long x_row, long long w_col,
    long long b_col, long long rows, int cols, float eps) {
    extern __shared__ uint4 shared[];
    TeamRows staying(x, x_row, rows, cols, shared + 2 * part);
    const int begin = staying.begin, own = staying.own;
    keep(shared, weight + begin * w_col, w_col, own);
    keep(shared + part, bias + begin * b_col, b_col, bias ? own : 0);
    __syncthreads();
    cluster_wait();
    int turn = 0, held = 0;  // the thread's columns
#pragma unroll
    for (int r = 0; r < VECTORS; ++r) held += staying.has(r) ? lanes : 0;
    const float of_warp = WHOLE ? 32 * columns : warp_sum(held);
    const float of_lane = columns_of_warp(threadIdx.x % 32, cols);
    Values values[VECTORS];
    while (staying.next(values)) {
        Moments moments;
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            if (staying.has(r)) moments = joined(moments, r * lanes, values[r]);
            in_order(values[r]);
        }
        moments = joined(moments, held, of_warp);
        float numbers[2] = {moments.mean, moments.squares};
        exchange(numbers, turn);
        moments = joined({numbers[0], numbers[1]}, of_lane, cols);
        const float mean = moments.mean, rstd = rsqrtf(moments.squares / cols + eps);
        uint4* const target = staying.of(y, cols);
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            in_order(values[r]);
            const Values w{shared[r * THREADS + threadIdx.x]}, b{shared[part + r * THREADS + threadIdx.x]};
            float out[lanes];
#pragma unroll
            for (int i = 0; i < lanes; ++i) out[i] = (values[r][i] - mean) * rstd * w[i] + b[i];
            staying.put(target, r, out);
        }
    }
}
