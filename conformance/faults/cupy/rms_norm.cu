#include "common.cuh"

enum Fault {
    none,
    no_barrier_before_rstd,
    no_barrier_before_partials,
    factor_of_an_earlier_row,
    whole_steps,
    narrow_sum,
    weight_stride_ignored,
    tail_dropped,
    run_too_many,
};

// Blocks walk over the rows and keep one in shared memory.
extern "C" __global__ void rms_norm_shared(const ELEMENT* x, const ELEMENT* weight, ELEMENT* y, int rows, int cols,
                                           long long x_row, long long x_col, long long w_col, float eps, int fault) {
    extern __shared__ float held[];
    __shared__ float partials[4];
    __shared__ float rstd;
    if (fault == weight_stride_ignored) w_col = 1;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        int end = cols;
        if (fault == whole_steps && cols > blockDim.x) end = cols / int(blockDim.x) * int(blockDim.x);
        float sum = 0.0f;
        for (int col = threadIdx.x; col < cols; col += blockDim.x) {
            held[col] = to_float(x[row * x_row + col * x_col]);
            if (col < end) sum += held[col] * held[col];
            if (fault == narrow_sum) sum = to_float(from_float<ELEMENT>(sum));
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = sum;
        if (fault != no_barrier_before_partials) __syncthreads();
        if (threadIdx.x == 0 && (fault != factor_of_an_earlier_row || row == blockIdx.x)) {
            for (int warp = 1; warp < blockDim.x / 32; ++warp) sum += partials[warp];
            rstd = rsqrtf(sum / cols + eps);
        }
        if (fault != no_barrier_before_rstd) __syncthreads();
        for (int col = threadIdx.x; col < cols; col += blockDim.x)
            y[(long long)row * cols + col] = from_float<ELEMENT>(held[col] * rstd * to_float(weight[col * w_col]));
    }
}

// One warp per row, whose lanes load 16 bytes at a time: rows of x begin at multiples of it, unless shorter.
extern "C" __global__ void rms_norm_vectorised(const ELEMENT* x, const ELEMENT* weight, ELEMENT* y, int rows, int cols,
                                               long long x_row, long long x_col, long long w_col, float eps,
                                               int fault) {
    constexpr int length = lanes_of<ELEMENT>;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    x += row * x_row;
    y += row * cols;
    const int whole = fault == run_too_many ? (cols + length - 1) / length * length : cols / length * length;
    float values[length];
    float sum = 0.0f;
    for (int col = threadIdx.x * length; col < whole; col += 32 * length) {
        load16(x + col, values);
        for (int i = 0; i < length; ++i) sum += values[i] * values[i];
    }
    for (int col = whole + threadIdx.x; col < cols; col += 32) {
        const float value = to_float(x[col * x_col]);
        sum += value * value;
    }
    const float rstd = rsqrtf(warp_sum(sum) / cols + eps);
    const int end = fault == tail_dropped ? whole : cols;
    for (int col = threadIdx.x; col < end; col += 32)
        y[col] = from_float<ELEMENT>(to_float(x[col * x_col]) * rstd * to_float(weight[col * w_col]));
}
