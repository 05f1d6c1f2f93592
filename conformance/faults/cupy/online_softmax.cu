#include "common.cuh"

enum Fault {
    none,
    sum_not_rescaled,
    merge_not_rescaled,
    maximum_from_zero,
    lanes_left_out,
    no_barrier_before_result,
    lse_of_each_warp,
    infinite_shift,
};

// exp(x - shift(m)) is never that of inf - inf, which would poison the sum of a row that begins with -inf.
__device__ float shift(float m, int fault) { return fabsf(m) == INFINITY && fault != infinite_shift ? 0.0f : m; }

// m is the maximum and l the sum of exp(x - m) of a thread's columns, then of a warp's, then of the row's.
extern "C" __global__ void online_softmax_block(const ELEMENT* x, ELEMENT* y, float* lse, int rows, int cols,
                                                long long x_row, long long x_col, int fault) {
    __shared__ float maxima[4];
    __shared__ float sums[4];
    __shared__ float result[2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* in = x + row * x_row;
        ELEMENT* out = y + (long long)row * cols;
        float m = fault == maximum_from_zero ? 0.0f : -INFINITY, l = 0.0f;
        for (int col = threadIdx.x; col < cols; col += blockDim.x) {
            const float value = to_float(in[col * x_col]);
            const float larger = fmaxf(m, value);
            if (fault != sum_not_rescaled) l *= expf(m - shift(larger, fault));
            l += expf(value - shift(larger, fault));
            m = larger;
        }

        if (fault != lanes_left_out || threadIdx.x < cols) {
            for (int step = 16; step > 0; step /= 2) {
                const float other = __shfl_xor_sync(all_lanes, m, step);
                const float sum = __shfl_xor_sync(all_lanes, l, step);
                const float larger = fmaxf(m, other);
                if (fault == merge_not_rescaled)
                    l += sum;
                else
                    l = l * expf(m - shift(larger, fault)) + sum * expf(other - shift(larger, fault));
                m = larger;
            }
        }
        if (lane == 0) {
            maxima[warp] = m;
            sums[warp] = l;
            if (fault == lse_of_each_warp) lse[row] = shift(m, fault) + logf(l);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int i = 1; i < blockDim.x / 32; ++i) {
                const float larger = fmaxf(m, maxima[i]);
                l = l * expf(m - shift(larger, fault)) + sums[i] * expf(maxima[i] - shift(larger, fault));
                m = larger;
            }
            result[0] = shift(m, fault);
            result[1] = m == INFINITY ? __int_as_float(0x7fc00000) : l; // as torch has it: a row with +inf is NaN
            if (fault != lse_of_each_warp) lse[row] = shift(m, fault) + logf(l);
        }
        if (fault != no_barrier_before_result) __syncthreads();
        for (int col = threadIdx.x; col < cols; col += blockDim.x)
            out[col] = from_float<ELEMENT>(expf(to_float(in[col * x_col]) - result[0]) / result[1]);
    }
}
