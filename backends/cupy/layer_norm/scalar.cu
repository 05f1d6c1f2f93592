#include "norms.cuh"

// One block per row, in three passes over memory. There may be more rows than a grid has blocks.
extern "C" __global__ void layer_norm_block(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* y, long long x_row, long long x_col,
    long long w_col, long long b_col, long long rows, long long cols, float eps) {
    int turn = 0;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* line = x + row * x_row;

        float sum = 0.0f;
        for (long long col = threadIdx.x; col < cols; col += blockDim.x) sum += to_float(line[col * x_col]);
        const float mean = row_sum(sum, turn) / cols;

        float square = 0.0f;
        for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
            const float centred = to_float(line[col * x_col]) - mean;
            square += centred * centred;
        }
        const float rstd = rsqrtf(row_sum(square, turn) / cols + eps);

        for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
            float value = (to_float(line[col * x_col]) - mean) * rstd * to_float(weight[col * w_col]);
            if (bias) value += to_float(bias[col * b_col]);
            y[row * cols + col] = from_float<ELEMENT>(value);
        }
    }
}

// How many values, their mean, and the sum of their squared distances from it.
struct Moments {
    float count, mean, square;
};

__device__ inline Moments merge(Moments a, Moments b) {
    const float count = a.count + b.count;
    if (count == 0.0f) return a;
    const float delta = b.mean - a.mean, share = b.count / count;
    return {count, a.mean + delta * share, a.square + b.square + delta * delta * a.count * share};
}

// Lane 0's tree for every lane: merge(a, b) and merge(b, a) round differently.
__device__ inline Moments merge_warp(Moments moments) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        moments = merge(
            moments, {__shfl_down_sync(all_lanes, moments.count, step), __shfl_down_sync(all_lanes, moments.mean, step),
                      __shfl_down_sync(all_lanes, moments.square, step)});
    }
    return {__shfl_sync(all_lanes, moments.count, 0), __shfl_sync(all_lanes, moments.mean, 0),
            __shfl_sync(all_lanes, moments.square, 0)};
}

// One block per row; the statistics in one pass, value after value in each thread, merged at its end.
extern "C" __global__ void layer_norm_welford(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* y, long long x_row, long long x_col,
    long long w_col, long long b_col, long long cols, float eps) {
    __shared__ Moments partials[32];
    x += blockIdx.x * x_row;
    y += blockIdx.x * cols;

    Moments moments = {0.0f, 0.0f, 0.0f};
    for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
        const float value = to_float(x[col * x_col]);
        const float delta = value - moments.mean;
        moments.count += 1.0f;
        moments.mean += delta / moments.count;
        moments.square += delta * (value - moments.mean);
    }
    moments = merge_warp(moments);
    const int lane = threadIdx.x % 32;
    if (lane == 0) partials[threadIdx.x / 32] = moments;
    __syncthreads();
    moments = merge_warp(lane < blockDim.x / 32 ? partials[lane] : Moments{0.0f, 0.0f, 0.0f});
    const float rstd = rsqrtf(moments.square / cols + eps);

    for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
        float value = (to_float(x[col * x_col]) - moments.mean) * rstd * to_float(weight[col * w_col]);
        if (bias) value += to_float(bias[col * b_col]);
        y[col] = from_float<ELEMENT>(value);
    }
}

// One warp per row, every lane with every 32nd column in its registers.
extern "C" __global__ void layer_norm_warp(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* y, long long x_row, long long x_col,
    long long w_col, long long b_col, long long rows, int cols, float eps) {
    constexpr int held = 32;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;  // a whole warp
    x += row * x_row;
    y += row * cols;

    float values[held];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        values[i] = col < cols ? to_float(x[col * x_col]) : 0.0f;
        sum += values[i];
    }
    const float mean = warp_sum(sum) / cols;

    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        values[i] -= mean;
        if (i * 32 + threadIdx.x < cols) square += values[i] * values[i];
    }
    const float rstd = rsqrtf(warp_sum(square) / cols + eps);

#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        if (col >= cols) break;
        float value = values[i] * rstd * to_float(weight[col * w_col]);
        if (bias) value += to_float(bias[col * b_col]);
        y[col] = from_float<ELEMENT>(value);
    }
}
