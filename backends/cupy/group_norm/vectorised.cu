#include "norms.cuh"

// One block per group, whose elements have one stride; a copy of it stays in shared memory, in vectors of VECTOR that
// one access loads or stores. A thread reads back the vectors it wrote, so the barriers within the sums are the only
// ones.
extern "C" __global__ void __launch_bounds__(1024) group_norm_vectorised(
    const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ weight, const ELEMENT* __restrict__ bias,
    ELEMENT* __restrict__ y, long long x_n, long long x_c, long long w_c, long long b_c, long long stride,
    long long groups, int channels, int space, float eps) {
    extern __shared__ uint4 pieces[];
    Vector<ELEMENT, VECTOR>* copy = reinterpret_cast<Vector<ELEMENT, VECTOR>*>(pieces);
    const long long first = blockIdx.x % groups * channels;
    const int count = channels * space, vectors = count / VECTOR;
    x += blockIdx.x / groups * x_n + first * x_c;
    y += (long long)blockIdx.x * count;

    float sum = 0.0f;
    for (int start = threadIdx.x; start < vectors; start += 4 * blockDim.x) {
        // Four loads are on their way before the first is used.
        Vector<ELEMENT, VECTOR> loaded[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            loaded[i] = load_vector<VECTOR>(x, stride, (start + i * blockDim.x) * VECTOR, count);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (start + i * blockDim.x < vectors) copy[start + i * blockDim.x] = loaded[i];
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) sum += loaded[i][j];
        }
    }
    const float mean = block_sum(sum) / count;

    float square = 0.0f;
    for (int vector = threadIdx.x; vector < vectors; vector += blockDim.x) {
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) square += (copy[vector][j] - mean) * (copy[vector][j] - mean);
    }
    const float rstd = rsqrtf(block_sum(square) / count + eps);

    for (int vector = threadIdx.x; vector < vectors; vector += blockDim.x) {
        int position = vector * VECTOR % space;
        long long channel = first + vector * VECTOR / space;
        float scale = to_float(weight[channel * w_c]), shift = bias ? to_float(bias[channel * b_c]) : 0.0f;
        float out[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            out[j] = (copy[vector][j] - mean) * rstd * scale + shift;
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
