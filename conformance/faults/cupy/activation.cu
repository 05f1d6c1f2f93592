#include "activations.cuh"

enum Fault {
    none,
    tail_dropped,
    vector_past_the_end,
    bias_stride_ignored,
    bias_not_wrapped,
    one_bias_a_vector,
};

// x and y are `size` elements side by side from multiples of 16 bytes on: a vector to a thread, and what is left over
// an element each to the threads after those.
extern "C" __global__ void activation_vectors(
    const ELEMENT* x, const ELEMENT* bias, ELEMENT* y, long long b_col, long long size, long long cols, int activation,
    int fault) {
    constexpr int length = lanes_of<ELEMENT>;
    if (fault == bias_stride_ignored) b_col = 1;
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long vectors = fault == vector_past_the_end ? (size + length - 1) / length : size / length;
    if (thread < vectors) {
        float values[length];
        load16(x + thread * length, values);
        for (int i = 0; i < length; ++i) {
            long long col = (thread * length + i) % cols;
            if (fault == bias_not_wrapped) col = thread * length % cols + i;
            if (fault == one_bias_a_vector) col = thread * length % cols;
            if (bias) values[i] += to_float(bias[col * b_col]);
            values[i] = activate(values[i], activation);
        }
        store16(y + thread * length, values);
        return;
    }
    const long long i = vectors * length + thread - vectors;
    if (i >= size || fault == tail_dropped) return;
    float value = to_float(x[i]);
    if (bias) value += to_float(bias[i % cols * b_col]);
    y[i] = from_float<ELEMENT>(activate(value, activation));
}
