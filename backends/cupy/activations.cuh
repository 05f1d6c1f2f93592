// Activations and their derivatives by number; backends/cupy/activations.py has the same numbers.
#pragma once
#include "common.cuh"

enum Activation { none, gelu, gelu_tanh, silu, relu };

__device__ inline float sigmoid(float x) {
    const float e = expf(-fabsf(x));  // at most 1: no overflow at either end
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

__device__ inline float activate(float x, int activation) {
    switch (activation) {
        case gelu: return 0.5f * x * (1.0f + erff(x * 0.70710678f));  // 1/√2
        case gelu_tanh: return x * sigmoid(1.5957691f * (x + 0.044715f * x * x * x));  // 2·√(2/π)
        case silu: return x * sigmoid(x);
        case relu: return x < 0.0f ? 0.0f : x;  // NaN stays
        default: return x;
    }
}

// The derivative of activate; relu's at 0 is 0.
__device__ inline float slope(float x, int activation) {
    switch (activation) {
        case gelu: {
            const float density = 0.39894228f * expf(-0.5f * x * x);  // 1/√(2π)
            return 0.5f * (1.0f + erff(x * 0.70710678f)) + x * density;
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
        default: return 1.0f;
    }
}
