#include "common.cuh"

extern "C" __global__ void rows(const ELEMENT* x, ELEMENT* y, long long cols, long long x_row, long long x_col) {
    __shared__ float shared[128];
    x += blockIdx.x * x_row;
    y += blockIdx.x * cols;
    float m = -INFINITY;
    for (long long col = threadIdx.x; col < cols; col += blockDim.x) m = fmaxf(m, to_float(x[col * x_col]));
    shared[threadIdx.x] = m;
    for (int half = 64; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    __syncthreads();
    m = shared[0];
    __syncthreads();
    float l = 0.0f;
    for (long long col = threadIdx.x; col < cols; col += blockDim.x) l += expf(to_float(x[col * x_col]) - m);
    shared[threadIdx.x] = l;
    for (int half = 64; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    __syncthreads();
    l = shared[0];
    for (long long col = threadIdx.x; col < cols; col += blockDim.x)
        y[col] = from_float<ELEMENT>(expf(to_float(x[col * x_col]) - m) / l);
}
