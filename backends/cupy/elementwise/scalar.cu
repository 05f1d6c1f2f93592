#include "elementwise.cuh"

// Sizes or strides of four axes.
struct Axes {
    long long first, second, third, last;
};

// Where the element number i of a tensor of these sizes lies.
__device__ inline long long offset(long long i, const Axes& sizes, const Axes& strides) {
    long long at = i % sizes.last * strides.last;
    i /= sizes.last;
    at += i % sizes.third * strides.third;
    i /= sizes.third;
    return at + i % sizes.second * strides.second + i / sizes.second * strides.first;
}

extern "C" __global__ void elementwise_naive(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* y, long long n0, long long n1, long long n2, long long n3,
    long long a0, long long a1, long long a2, long long a3, long long b0, long long b1, long long b2, long long b3,
    long long y0, long long y1, long long y2, long long y3, int function) {
    const Axes sizes = {n0, n1, n2, n3};
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n0 * n1 * n2 * n3) return;
    const float left = to_float(a[offset(i, sizes, {a0, a1, a2, a3})]);
    const float right = to_float(b[offset(i, sizes, {b0, b1, b2, b3})]);
    y[offset(i, sizes, {y0, y1, y2, y3})] = from_float<ELEMENT>(combine(left, right, function));
}

extern "C" __global__ void elementwise_gridstride(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* y, long long n0, long long n1, long long n2, long long n3,
    long long a0, long long a1, long long a2, long long a3, long long b0, long long b1, long long b2, long long b3,
    long long y0, long long y1, long long y2, long long y3, int function) {
    const Axes sizes = {n0, n1, n2, n3};
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n0 * n1 * n2 * n3; i += step) {
        const float left = to_float(a[offset(i, sizes, {a0, a1, a2, a3})]);
        const float right = to_float(b[offset(i, sizes, {b0, b1, b2, b3})]);
        y[offset(i, sizes, {y0, y1, y2, y3})] = from_float<ELEMENT>(combine(left, right, function));
    }
}
