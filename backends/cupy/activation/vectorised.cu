#include "activations.cuh"
#include "pointwise.cuh"
#include "ptx.cuh"

__device__ inline float approximate_sigmoid(float x) { return 0.5f + 0.5f * tanh_approximate(0.5f * x); }

template <int activation> __device__ inline float approximately(float x) {
    switch (activation) {
        case gelu_tanh: return x * approximate_sigmoid(1.5957691f * (x + 0.044715f * x * x * x));
        case silu: return x * approximate_sigmoid(x);
        case logistic: return approximate_sigmoid(x);
        case quick_gelu: return x * approximate_sigmoid(1.702f * x);
        default: return activate_inline(x, activation);
    }
}

// Lines of `cols` columns, which are rows of `width`, or all rows one behind the other; `bias` may be null, and where
// it is `wide_bias` each vector's part of it is one too.
extern "C" __global__ void activation_vectorised(
    const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ bias, ELEMENT* __restrict__ y, long long x_row,
    long long x_col, long long b_col, long long rows, long long cols, long long width, int wide, int wide_bias,
    int activation, int approximate) {
    const Place at = place_of_vector(rows, cols);
    if (at.row >= rows) return;
    float values[lanes_of<ELEMENT>];
    unpack<ELEMENT>(load_line(x + at.row * x_row, x_col, at.col, cols, wide), values);
    if (bias) {
        long long col = at.col % width;
        float shift[lanes_of<ELEMENT>];
        if (wide_bias) load16(bias + col, shift);
#pragma unroll
        for (int i = 0; i < lanes_of<ELEMENT>; ++i) {
            values[i] += wide_bias ? shift[i] : to_float(bias[col * b_col]);
            if (++col == width) col = 0;
        }
    }
    for_activation(activation, [&](auto chosen) {
#pragma unroll
        for (int i = 0; i < lanes_of<ELEMENT>; ++i)
            values[i] = approximate ? approximately<chosen.number>(values[i])
                                    : activate_inline(values[i], chosen.number);
    });
    store_line(y + at.row * cols, at.col, cols, wide, values);
}
