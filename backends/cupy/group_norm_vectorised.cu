#include "norms.cuh"

// One block per group, whose elements have one stride; a copy of it stays in shared memory, in runs of RUN that one access
// loads or stores. A thread reads back the runs it wrote, so the barriers within the sums are the only ones.
extern "C" __global__ void __launch_bounds__(1024) group_norm_vectorised(
    const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ weight, const ELEMENT* __restrict__ bias,
    ELEMENT* __restrict__ y, long long x_n, long long x_c, long long w_c, long long b_c, long long stride,
    long long groups, int channels, int space, float eps) {
    extern __shared__ uint4 pieces[];
    Run<ELEMENT, RUN>* copy = reinterpret_cast<Run<ELEMENT, RUN>*>(pieces);
    const long long first = blockIdx.x % groups * channels;
    const int count = channels * space, runs = count / RUN;
    x += blockIdx.x / groups * x_n + first * x_c;
    y += (long long)blockIdx.x * count;

    float sum = 0.0f;
    for (int start = threadIdx.x; start < runs; start += 4 * blockDim.x) {
        // Four loads are on their way before the first is used.
        Run<ELEMENT, RUN> loaded[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) loaded[i] = load_run<RUN>(x, stride, (start + i * blockDim.x) * RUN, count);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (start + i * blockDim.x < runs) copy[start + i * blockDim.x] = loaded[i];
#pragma unroll
            for (int j = 0; j < RUN; ++j) sum += loaded[i][j];
        }
    }
    const float mean = block_sum(sum) / count;

    float square = 0.0f;
    for (int run = threadIdx.x; run < runs; run += blockDim.x) {
#pragma unroll
        for (int j = 0; j < RUN; ++j) square += (copy[run][j] - mean) * (copy[run][j] - mean);
    }
    const float rstd = rsqrtf(block_sum(square) / count + eps);

    for (int run = threadIdx.x; run < runs; run += blockDim.x) {
        int position = run * RUN % space;
        long long channel = first + run * RUN / space;
        float scale = to_float(weight[channel * w_c]), shift = bias ? to_float(bias[channel * b_c]) : 0.0f;
        float out[RUN];
#pragma unroll
        for (int j = 0; j < RUN; ++j) {
            out[j] = (copy[run][j] - mean) * rstd * scale + shift;
            // Not after the run's last element: behind the last channel there is no weight.
            if (++position == space && j + 1 < RUN) {
                position = 0;
                ++channel;
                scale = to_float(weight[channel * w_c]);
                shift = bias ? to_float(bias[channel * b_c]) : 0.0f;
            }
        }
        store_run(y + run * RUN, out);
    }
}
