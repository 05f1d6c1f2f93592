#include "common.cuh"

enum Fault {
    none,
    stride_of_b_ignored,
    step_too_long,
    tail_dropped,
    vector_past_the_end,
};

// Blocks step through the elements of two axes.
extern "C" __global__ void elementwise_stepping(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* y, long long a_row, long long a_col, long long b_row, long long b_col,
    long long rows, long long cols, int product, int fault) {
    long long step = (long long)gridDim.x * blockDim.x;
    if (fault == step_too_long) step += blockDim.x;
    if (fault == stride_of_b_ignored) b_row = a_row, b_col = a_col;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < rows * cols; i += step) {
        const float left = to_float(a[i / cols * a_row + i % cols * a_col]);
        const float right = to_float(b[i / cols * b_row + i % cols * b_col]);
        y[i] = from_float<ELEMENT>(product ? left * right : left + right);
    }
}

// Elements side by side from multiples of 16 bytes on, a vector to a thread; the last threads take an element each.
extern "C" __global__ void elementwise_vectors(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* y, long long size, int product, int fault) {
    constexpr int length = lanes_of<ELEMENT>;
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long vectors = fault == vector_past_the_end ? (size + length - 1) / length : size / length;
    float left[length], right[length];
    if (thread < vectors) {
        load16(a + thread * length, left);
        load16(b + thread * length, right);
        for (int i = 0; i < length; ++i) left[i] = product ? left[i] * right[i] : left[i] + right[i];
        store16(y + thread * length, left);
    } else if (vectors * length + thread - vectors < size && fault != tail_dropped) {
        const long long i = vectors * length + thread - vectors;
        y[i] = from_float<ELEMENT>(product ? to_float(a[i]) * to_float(b[i]) : to_float(a[i]) + to_float(b[i]));
    }
}
