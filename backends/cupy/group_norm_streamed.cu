#include "norms.cuh"

// Run number `run` of a group, zeros behind its last one.
__device__ inline Run<ELEMENT, RUN> run_at(const ELEMENT* group, long long stride, long long run, long long runs) {
    return load_run<RUN>(group + run * RUN * stride, stride, 0, run < runs ? RUN : 0);
}

// The sum over the block of f(element) over the elements of a group. Four loads are on their way before the first is used.
template <typename Function>
__device__ inline float group_sum(const ELEMENT* group, long long stride, long long runs, Function f) {
    float sum = 0.0f;
    for (long long start = threadIdx.x; start < runs; start += 4 * blockDim.x) {
        Run<ELEMENT, RUN> loaded[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) loaded[i] = run_at(group, stride, start + i * blockDim.x, runs);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (start + i * blockDim.x >= runs) break;
#pragma unroll
            for (int j = 0; j < RUN; ++j) sum += f(loaded[i][j]);
        }
    }
    return block_sum(sum);
}

// One block per group of any size, whose elements have one stride, in runs of RUN that one access loads or stores. The group
// is read three times; the second and third time it comes from the L2 cache as long as the groups at work fit there.
extern "C" __global__ void __launch_bounds__(1024) group_norm_streamed(
    const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ weight, const ELEMENT* __restrict__ bias,
    ELEMENT* __restrict__ y, long long x_n, long long x_c, long long w_c, long long b_c, long long stride,
    long long groups, long long channels, long long space, float eps) {
    const long long first = blockIdx.x % groups * channels;
    const long long count = channels * space, runs = count / RUN;
    x += blockIdx.x / groups * x_n + first * x_c;
    y += blockIdx.x * count;

    const float mean = group_sum(x, stride, runs, [](float value) { return value; }) / count;
    const auto squared = [mean](float value) { return (value - mean) * (value - mean); };
    const float rstd = rsqrtf(group_sum(x, stride, runs, squared) / count + eps);

    for (long long run = threadIdx.x; run < runs; run += blockDim.x) {
        const Run<ELEMENT, RUN> loaded = run_at(x, stride, run, runs);
        long long position = run * RUN % space, channel = first + run * RUN / space;
        float scale = to_float(weight[channel * w_c]), shift = bias ? to_float(bias[channel * b_c]) : 0.0f;
        float out[RUN];
#pragma unroll
        for (int j = 0; j < RUN; ++j) {
            out[j] = (loaded[j] - mean) * rstd * scale + shift;
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
