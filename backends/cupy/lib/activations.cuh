// Activations and their derivatives by number; backends/cupy/lib/activations.py has the same numbers.
#pragma once
#include "common.cuh"

enum Activation {
    unchanged,
    gelu,
    gelu_tanh,
    silu,
    relu,
    logistic,  // "sigmoid"
    quick_gelu,
    mish,
    elu,
    hardswish,
    hardshrink,
    identity,
};

// __expf and __fdividef are off by some units in the last place, as budgets allow, for a third of the instructions.
__device__ inline float sigmoid(float x) {
    const float e = __expf(-fabsf(x));  // at most 1: no overflow at either end
    return __fdividef(x >= 0.0f ? 1.0f : e, 1.0f + e);
}

// The normal distribution, wrong by 2e-7 at most, as 2^P(-|x|) or 1 less that: 12 instructions, where erff takes twice
// as many. P is the polynomial of backends/triton/lib/activations.py.
__device__ inline float normal_cdf(float x) {
    const float t = fabsf(x);
    float p = fmaf(-2.77205436e-06f, t, 3.86208085e-05f);
    p = fmaf(p, t, -0.000182547898f);
    p = fmaf(p, t, -0.000145869388f);
    p = fmaf(p, t, 0.00707547087f);
    p = fmaf(p, t, -0.0525050275f);
    p = fmaf(p, t, -0.459204912f);
    p = fmaf(p, t, -1.15110576f);
    const float tail = exp2f(fmaf(p, t, -1.0f));
    return x < 0.0f ? tail : 1.0f - tail;
}

// a and b with tanh(log(1 + exp(x))) = a / (a + b): ((1 + e^x)^2 - 1) / ((1 + e^x)^2 + 1) over the larger of 1 and
// e^2x.
struct MishParts {
    float above, beside;
};

__device__ inline MishParts mish_parts(float x) {
    const float e = __expf(-fabsf(x));
    if (x >= 0.0f) return {1.0f + 2.0f * e, 2.0f * e * e};
    return {e * (e + 2.0f), 2.0f};
}

// Where the activation is a constant, only its own case is compiled.
__device__ __forceinline__ float activate_inline(float x, int activation) {
    switch (activation) {
        case gelu: return x * normal_cdf(x);
        case gelu_tanh: return x * sigmoid(1.5957691f * (x + 0.044715f * x * x * x));  // 2·√(2/π)
        case silu: return x * sigmoid(x);
        case relu: return x < 0.0f ? 0.0f : x;  // NaN stays
        case logistic: return sigmoid(x);
        case quick_gelu: return x * sigmoid(1.702f * x);
        case mish: {
            const MishParts parts = mish_parts(x);
            return x * __fdividef(parts.above, parts.above + parts.beside);
        }
        case elu: return x > 0.0f ? x : __expf(x) - 1.0f;
        case hardswish: return x <= -3.0f ? 0.0f : x >= 3.0f ? x : x * (x + 3.0f) * 0.16666667f;
        case hardshrink: return fabsf(x) <= 0.5f ? 0.0f : x;
        default: return x;
    }
}

// Not inlined: a hundred copies in the threads of a large tile take a minute to compile.
__device__ __noinline__ float activate(float x, int activation) { return activate_inline(x, activation); }

// x times the sigmoid of y.
__device__ inline float fast_sigmoid_product(float x, float y) { return __fdividef(x, 1.0f + exp2f(y * -1.4426950f)); }

// activate in few instructions, for results that are rounded to 16 bits: wrong by less than 1 in 20,000.
template <int activation> __device__ inline float activate_rounded(float x) {
    if (activation == gelu) {
        // x for positive x, and of all x less |x| times the half of erfc(|x|/√2): its log2 is this
        const float at = fabsf(x), tail = fminf(at, 8.0f);
        float log = fmaf(tail, -1.2624589e-6f, 4.8203301e-5f);
        log = fmaf(tail, log, -8.0724828e-4f);
        log = fmaf(tail, log, 7.9445783e-3f);
        log = fmaf(tail, log, -5.2635378e-2f);
        log = fmaf(tail, log, -4.5995685e-1f);
        log = fmaf(tail, log, -1.1506099f);
        log = fmaf(tail, log, -1.0000431f);
        return fmaf(-tail, exp2f(log), fmaf(0.5f, at, 0.5f * x));
    }
    if (activation == gelu_tanh) return fast_sigmoid_product(x, 1.5957691f * (x + 0.044715f * x * x * x));
    if (activation == silu) return fast_sigmoid_product(x, x);
    if (activation == quick_gelu) return fast_sigmoid_product(x, 1.702f * x);
    return activate_inline(x, activation);
}

// The derivative of activate; relu's at 0 is 0.
__device__ __forceinline__ float slope_inline(float x, int activation) {
    switch (activation) {
        case gelu: {
            const float density = 0.39894228f * __expf(-0.5f * x * x);  // 1/√(2π)
            return normal_cdf(x) + x * density;
        }
        case gelu_tanh: {
            const float s = sigmoid(1.5957691f * (x + 0.044715f * x * x * x));
            return s + x * s * (1.0f - s) * 1.5957691f * (1.0f + 0.134145f * x * x);
        }
        case silu: {
            const float s = sigmoid(x);
            return s * (1.0f + x * (1.0f - s));
        }
        case relu: return x <= 0.0f ? 0.0f : 1.0f;
        case logistic: {
            const float s = sigmoid(x);
            return s * (1.0f - s);
        }
        case quick_gelu: {
            const float s = sigmoid(1.702f * x);
            return s * (1.0f + 1.702f * x * (1.0f - s));
        }
        case mish: {
            const MishParts parts = mish_parts(x);
            const float whole = parts.above + parts.beside;
            const float per = __fdividef(1.0f, whole);
            return parts.above * per + x * (parts.beside * per) * ((parts.above + whole) * per) * sigmoid(x);
        }
        case elu: return x <= 0.0f ? __expf(x) : 1.0f;
        case hardswish: return x <= -3.0f ? 0.0f : x < 3.0f ? x * 0.33333334f + 0.5f : 1.0f;
        case hardshrink: return fabsf(x) <= 0.5f ? 0.0f : 1.0f;
        default: return 1.0f;
    }
}

__device__ __noinline__ float slope(float x, int activation) { return slope_inline(x, activation); }

template <int value> struct Constant {
    static constexpr int number = value;
};

// Calls `body` with the activation as a Constant: one branch for all elements of a thread, and only one activation's
// instructions behind it.
template <typename Body> __device__ __forceinline__ void for_activation(int activation, Body body) {
    switch (activation) {
        case gelu: return body(Constant<gelu>());
        case gelu_tanh: return body(Constant<gelu_tanh>());
        case silu: return body(Constant<silu>());
        case relu: return body(Constant<relu>());
        case logistic: return body(Constant<logistic>());
        case quick_gelu: return body(Constant<quick_gelu>());
        case mish: return body(Constant<mish>());
        case elu: return body(Constant<elu>());
        case hardswish: return body(Constant<hardswish>());
        case hardshrink: return body(Constant<hardshrink>());
        default: return body(Constant<unchanged>());
    }
}
