#include "norms.cuh"

// Vector number `vector` of a group, zeros behind its last one.
__device__ inline Vector<ELEMENT, VECTOR> vector_at(
    const ELEMENT* group, long long stride, long long vector, long long vectors) {
    return load_vector<VECTOR>(group + vector * VECTOR * stride, stride, 0, vector < vectors ? VECTOR : 0);
}

// The sum over the block of f(element) over the elements of a group. Four loads are on their way before the first is
// used.
template <typename Function>
__device__ inline float group_sum(const ELEMENT* group, long long stride, long long vectors, Function f) {
    float sum = 0.0f;
    for (long long start = threadIdx.x; start < vectors; start += 4 * blockDim.x) {
        Vector<ELEMENT, VECTOR> loaded[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) loaded[i] = vector_at(group, stride, start + i * blockDim.x, vectors);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (start + i * blockDim.x >= vectors) break;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) sum += f(loaded[i][j]);
        }
    }
    return block_sum(sum);
}

// One block per group of any size, whose elements have one stride, in vectors of VECTOR that one access loads or
// stores. The group is read three times; the second and third time it comes from the L2 cache as long as the groups at
// work fit there.
extern "C" __global__ void __launch_bounds__(1024) group_norm_streamed(
    const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ weight, const ELEMENT* __restrict__ bias,
    ELEMENT* __restrict__ y, long long x_n, long long x_c, long long w_c, long long b_c, long long stride,
    long long groups, long long channels, long long space, float eps) {
    const long long first = blockIdx.x % groups * channels;
    const long long count = channels * space, vectors = count / VECTOR;
    x += blockIdx.x / groups * x_n + first * x_c;
    y += blockIdx.x * count;

    const float mean = group_sum(x, stride, vectors, [](float value) { return value; }) / count;
    const auto squared = [mean](float value) { return (value - mean) * (value - mean); };
    const float rstd = rsqrtf(group_sum(x, stride, vectors, squared) / count + eps);

    for (long long vector = threadIdx.x; vector < vectors; vector += blockDim.x) {
        const Vector<ELEMENT, VECTOR> loaded = vector_at(x, stride, vector, vectors);
        long long position = vector * VECTOR % space, channel = first + vector * VECTOR / space;
        float scale = to_float(weight[channel * w_c]), shift = bias ? to_float(bias[channel * b_c]) : 0.0f;
        float out[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            out[j] = (loaded[j] - mean) * rstd * scale + shift;
            // Not after the vector's last element: behind the last channel there is no weight.
            if (++position == space && j + 1 < VECTOR) {
                position = 0;
                ++channel;
                scale = to_float(weight[channel * w_c]);
                shift = bias ? to_float(bias[channel * b_c]) : 0.0f;
            }
        }
        store_vector(y + vector * VECTOR, out);
    }
}
