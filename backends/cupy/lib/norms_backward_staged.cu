#include "norms_backward_staged.cuh"

// The sum of a row's x.
__device__ inline float row_sum_of(const uint4* xs, int threads, int& turn) {
    float sum[1] = {0.0f};
#pragma unroll
    for (int r = 0; r < VECTORS; ++r) {
        const Values values{xs[r * threads]};
#pragma unroll
        for (int i = 0; i < lanes; ++i) sum[0] += values[i];
    }
    sums_of_row(sum, turn);
    return sum[0];
}

// Over a row, of g * (x - mean), of (x - mean)^2 where `square`, and of g.
__device__ inline void moments_of(
    const uint4* xs, const uint4* dys, const uint4* ws, int threads, float mean, bool square, int cols,
    float (&sums)[3], int& turn) {
#pragma unroll
    for (int i = 0; i < 3; ++i) sums[i] = 0.0f;
    if (square) {
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            const Values values{xs[r * threads]};
#pragma unroll
            for (int i = 0; i < lanes; ++i) {
                const float centred = values[i] - mean;
                sums[1] += column(r) + (ALIGNED ? 0 : i) < cols ? centred * centred : 0.0f;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < VECTORS; ++r) {
        const Values values{xs[r * threads]}, slopes{dys[r * threads]}, w{ws[r * threads]};
#pragma unroll
        for (int i = 0; i < lanes; ++i) {
            const float g = slopes[i] * w[i];
            sums[0] += g * (values[i] - mean);
            sums[2] += g;
        }
    }
    sums_of_row(sums, turn);
}

// The gradients of layer norm, or, where not CENTRED, those of RMS norm: as if mean and mean(g) were 0, without dbias.
// The sums of the rows that a group of CLUSTER blocks saw are one row of `partial` (1 + CENTRED, groups, cols).
// Longer than a screen: what remains in one piece is the ring of stages, where a row is read for the last time as the
// row that takes its place is sent for.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(512) norms_backward_staged(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* given_mean, const float* given_rstd,
    ELEMENT* dx, float* partial, long long x_row, long long x_col, long long w_col, long long dy_row, long long dy_col,
    long long mean_row, long long rstd_row, long long rows, int all_cols, float eps) {
    extern __shared__ uint4 shared[];  // weight's vectors, then STAGES times x's and dy's: [VECTORS][threads] each
    const int threads = blockDim.x * blockDim.y, line = VECTORS * threads;
    uint4* const ws = shared + threadIdx.y * blockDim.x + threadIdx.x;

    // The block's columns of a row, and the rows of its group.
    const int begin = blockIdx.x % CLUSTER * blockDim.x * columns, cols = all_cols - begin;
    const long long group = blockIdx.x / CLUSTER, groups = gridDim.x / CLUSTER, step = groups * blockDim.y;
    x += begin * x_col, weight += begin * w_col, dy += begin * dy_col, dx += begin, partial += begin;

    long long row = group * blockDim.y + threadIdx.y;
    for (int s = 0; s < STAGES; ++s) {
        const long long ahead = row + s * step;
        const int count = ahead < rows ? cols : 0;
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            stage(ws + (2 * s + 1) * line + r * threads, x + ahead * x_row, x_col, column(r), count);
            stage(ws + (2 * s + 2) * line + r * threads, dy + ahead * dy_row, dy_col, column(r), count);
        }
        cp_async_commit();
    }
#pragma unroll
    for (int r = 0; r < VECTORS; ++r) ws[r * threads] = load_values(weight, w_col, column(r), cols).raw;

    float dweight[columns], dbias[columns];
#pragma unroll
    for (int i = 0; i < columns; ++i) dweight[i] = dbias[i] = 0.0f;
    float next_mean = statistic(given_mean, mean_row, row, rows);
    float next_rstd = statistic(given_rstd, rstd_row, row, rows);
    const float inverse = 1.0f / all_cols;
    int turn = 0, s = 0;
#if CLUSTER > 1
    begin_in_cluster();
    cluster_wait();
#endif
    // The rows of a block go along together, where its threads meet barriers: in a cluster they do not.
    for (long long base = group * blockDim.y; base < rows; base += step, row += step) {
        uint4 *const xs = ws + (2 * s + 1) * line, *const dys = xs + line;
        s = s + 1 == STAGES ? 0 : s + 1;
        float mean = next_mean, rstd = next_rstd;
        next_mean = statistic(given_mean, mean_row, row + step, rows);
        next_rstd = statistic(given_rstd, rstd_row, row + step, rows);
        cp_async_wait<STAGES - 1>();

        if (CENTRED && !given_mean) mean = row_sum_of(xs, threads, turn) * inverse;
        float sums[3];
        moments_of(xs, dys, ws, threads, mean, !given_rstd, cols, sums, turn);
        if (!given_rstd) rstd = rsqrtf(sums[1] * inverse + eps);
        // dx = rstd * (g - mean(g) - normed * mean(g * normed)), of which the last two terms with rstd:
        const float dot = sums[0] * inverse * rstd * rstd, shift = CENTRED ? sums[2] * inverse * rstd : 0.0f;

        const long long ahead = row + STAGES * step;
        const int count = ahead < rows ? cols : 0;
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            const Values values{xs[r * threads]}, slopes{dys[r * threads]}, w{ws[r * threads]};
            stage(xs + r * threads, x + ahead * x_row, x_col, column(r), count);
            stage(dys + r * threads, dy + ahead * dy_row, dy_col, column(r), count);
            if (row >= rows) continue;
            float out[lanes];
#pragma unroll
            for (int i = 0; i < lanes; ++i) {
                const float normed = (values[i] - mean) * rstd;
                out[i] = slopes[i] * w[i] * rstd - (normed * dot + shift);
                dweight[r * lanes + i] += slopes[i] * normed;
                dbias[r * lanes + i] += slopes[i];
            }
            store_values(dx + row * all_cols, column(r), cols, out);
        }
        cp_async_commit();
    }
    cp_async_wait<0>();
    float* const room = reinterpret_cast<float*>(shared);
    store_sums(partial + group * all_cols, dweight, room, cols);
    if (CENTRED) store_sums(partial + (groups + group) * all_cols, dbias, room, cols);
}
