#include "common.cuh"

enum Fault {
    none,
    fill_zero,
    no_barrier_in_reduction,
    reduction_buffer_reused,
    partials_of_absent_warps,
    offset_int,
    stale_sum,
    warp_synchronous,
    maximum_of_a_warp,
    column_stride_ignored,
    store_unguarded,
};

constexpr int most_warps = 32;

__device__ float combine(float a, float b, bool maximum) { return maximum ? fmaxf(a, b) : a + b; }

// Over a block of whole warps; every thread gets the result.
__device__ float reduce(float value, bool maximum, int fault) {
    __shared__ float partials[most_warps];
    for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(all_lanes, value, step), maximum);
    if (fault == maximum_of_a_warp && maximum) return value;
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = value;
    if (fault != no_barrier_in_reduction) __syncthreads();
    const int warps = fault == partials_of_absent_warps ? most_warps : blockDim.x / 32;
    value = partials[0];
    for (int warp = 1; warp < warps; ++warp) value = combine(value, partials[warp], maximum);
    if (fault != reduction_buffer_reused) __syncthreads();
    return value;
}

// Blocks walk over the rows.
extern "C" __global__ void softmax_rows(const ELEMENT* x, ELEMENT* y, int rows, int cols, long long x_row,
                                        long long x_col, int fault) {
    if (fault == column_stride_ignored) x_col = 1;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* in = x + row * x_row;
        if (fault == offset_int) in = x + row * int(x_row);
        ELEMENT* out = y + (long long)row * cols;

        float m = fault == fill_zero ? 0.0f : -INFINITY;
        for (int col = threadIdx.x; col < cols; col += blockDim.x) m = fmaxf(m, to_float(in[col * x_col]));
        m = reduce(m, true, fault);
        float l = 0.0f;
        for (int col = threadIdx.x; col < cols; col += blockDim.x) l += expf(to_float(in[col * x_col]) - m);
        l = reduce(l, false, fault);
        for (int col = threadIdx.x; col < cols; col += blockDim.x)
            out[col] = from_float<ELEMENT>(expf(to_float(in[col * x_col]) - m) / l);
    }
}

// Over a block of 32, 64, 128 or 256 threads by halves, the last of them within one warp; `buffer` is free afterwards.
__device__ float halve(float* buffer, float value, bool maximum, int fault) {
    const int i = threadIdx.x;
    buffer[i] = value;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (i < half) buffer[i] = combine(buffer[i], buffer[i + half], maximum);
        if (half > 32)
            __syncthreads();
        else if (fault != warp_synchronous)
            __syncwarp();
    }
    __syncthreads();
    value = buffer[0];
    __syncthreads();
    return value;
}

extern "C" __global__ void softmax_halves(const ELEMENT* x, ELEMENT* y, int cols, long long x_row, long long x_col,
                                          int fault) {
    __shared__ float buffer[256];
    x += blockIdx.x * x_row;
    y += (long long)blockIdx.x * cols;
    float m = -INFINITY;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) m = fmaxf(m, to_float(x[col * x_col]));
    m = halve(buffer, m, true, fault);
    float l = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) l += expf(to_float(x[col * x_col]) - m);
    l = halve(buffer, l, false, fault);

    const int end = fault == store_unguarded ? int(blockDim.x) * ((cols + blockDim.x - 1) / blockDim.x) : cols;
    for (int col = threadIdx.x; col < end; col += blockDim.x)
        y[col] = from_float<ELEMENT>(expf(to_float(x[min(col, cols - 1) * x_col]) - m) / l);
}

// Blocks walk over the rows; threads add to one sum in shared memory.
extern "C" __global__ void softmax_shared(const ELEMENT* x, ELEMENT* y, int rows, int cols, long long x_row,
                                          long long x_col, int fault) {
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0.0f;
    __syncthreads();
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* in = x + row * x_row;
        ELEMENT* out = y + (long long)row * cols;
        float m = -INFINITY;
        for (int col = 0; col < cols; ++col) m = fmaxf(m, to_float(in[col * x_col]));
        for (int col = threadIdx.x; col < cols; col += blockDim.x)
            atomicAdd(&sum, expf(to_float(in[col * x_col]) - m));
        __syncthreads();
        for (int col = threadIdx.x; col < cols; col += blockDim.x)
            out[col] = from_float<ELEMENT>(expf(to_float(in[col * x_col]) - m) / sum);
        __syncthreads();
        if (threadIdx.x == 0 && fault != stale_sum) sum = 0.0f;
        __syncthreads();
    }
}
