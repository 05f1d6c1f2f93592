#include "common.cuh"

enum Fault {
    none,
    no_threadfence,
    one_part,
    parts_not_zeroed,
    last_rows_dropped,
    reduction_buffer_reused,
    part_too_many,
    rstd_stride_ignored,
    mean_gradient_left_out,
    ticket_of_each_thread,
};

// Over a block of whole warps, up to four; every thread gets the result.
__device__ float total(float value, int fault) {
    __shared__ float partials[4];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = value;
    __syncthreads();
    value = partials[0];
    for (int warp = 1; warp < blockDim.x / 32; ++warp) value += partials[warp];
    if (fault != reduction_buffer_reused) __syncthreads();
    return value;
}

// Blocks walk over the rows, each adding dweight and dbias up in its own part; the last to finish sums the parts.
// parts (blocks, 2, cols) may hold anything, done is 0.
extern "C" __global__ void layer_norm_backward_rows(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* mean, const float* rstd, ELEMENT* dx,
    ELEMENT* dweight, ELEMENT* dbias, float* parts, int* done, int rows, int cols, long long x_row, long long x_col,
    long long w_col, long long dy_row, long long dy_col, long long mean_row, long long rstd_row, float eps,
    int fault) {
    __shared__ int ticket;
    float* part = parts + (fault == one_part ? 0 : (long long)blockIdx.x * 2 * cols);
    if (fault != parts_not_zeroed)
        for (int i = threadIdx.x; i < cols; i += blockDim.x) part[i] = part[cols + i] = 0.0f;

    const int end = fault == last_rows_dropped ? rows / int(gridDim.x) * int(gridDim.x) : rows;
    for (int row = blockIdx.x; row < end; row += gridDim.x) {
        const ELEMENT* in = x + row * x_row;
        const ELEMENT* gradient = dy + row * dy_row;
        float centre, factor, sum = 0.0f, square = 0.0f;
        for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += to_float(in[i * x_col]);
        centre = total(sum, fault) / cols;
        if (mean) centre = mean[row * mean_row];
        for (int i = threadIdx.x; i < cols; i += blockDim.x) {
            const float centred = to_float(in[i * x_col]) - centre;
            square += centred * centred;
        }
        factor = rsqrtf(total(square, fault) / cols + eps);
        if (rstd) factor = rstd[row * (fault == rstd_stride_ignored ? 1 : rstd_row)];

        float dots = 0.0f, sums = 0.0f;
        for (int i = threadIdx.x; i < cols; i += blockDim.x) {
            const float normed = (to_float(in[i * x_col]) - centre) * factor, dy_i = to_float(gradient[i * dy_col]);
            const float scaled = dy_i * to_float(weight[i * w_col]);
            dots += scaled * normed;
            sums += scaled;
            part[i] += dy_i * normed;
            part[cols + i] += dy_i;
        }
        dots = total(dots, fault) / cols;
        sums = fault == mean_gradient_left_out ? 0.0f : total(sums, fault) / cols;
        for (int i = threadIdx.x; i < cols; i += blockDim.x) {
            const float normed = (to_float(in[i * x_col]) - centre) * factor;
            const float scaled = to_float(gradient[i * dy_col]) * to_float(weight[i * w_col]);
            dx[(long long)row * cols + i] = from_float<ELEMENT>(factor * (scaled - sums - normed * dots));
        }
    }

    __syncthreads();
    if (fault == ticket_of_each_thread) {
        __threadfence();
        const int mine = atomicAdd(done, 1);
        if (threadIdx.x == 0) ticket = mine;
    } else if (threadIdx.x == 0) {
        if (fault != no_threadfence) __threadfence();
        ticket = atomicAdd(done, 1);
        if (fault != no_threadfence) __threadfence();
    }
    __syncthreads();
    if (ticket != gridDim.x - 1) return;
    const int blocks = fault == part_too_many ? gridDim.x + 1 : gridDim.x;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) {
        float sum = 0.0f, sum_of_dy = 0.0f;
        for (int block = 0; block < blocks; ++block) {
            sum += parts[(long long)block * 2 * cols + i];
            sum_of_dy += parts[(long long)block * 2 * cols + cols + i];
        }
        dweight[i] = from_float<ELEMENT>(sum);
        dbias[i] = from_float<ELEMENT>(sum_of_dy);
    }
}
