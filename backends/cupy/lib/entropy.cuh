// Targets of 32 or 64 bits, and the loss of a row from its sums.
#pragma once
#include "online.cuh"

// The classes of rows, `stride` integers apart, of 64 bits where `wide`.
struct Targets {
    const void* first;
    long long stride;
    int wide;

    __device__ long long operator[](long long row) const {
        if (wide) return static_cast<const long long*>(first)[row * stride];
        return static_cast<const int*>(first)[row * stride];
    }
};

// The parts of a row whose elements lie side by side: `head` of them before the first multiple of 16 bytes, `body` in
// whole vectors from there on, and others at its end.
struct Pieces {
    static constexpr int lanes = lanes_of<ELEMENT>;
    long long head, body;

    __device__ Pieces(const ELEMENT* row, long long V) {
        head = min(V, (long long)(0 - reinterpret_cast<size_t>(row) / sizeof(ELEMENT)) & (lanes - 1));
        body = (V - head) / lanes * lanes;
    }

    // The column before or behind the body that is the thread's, one of the first threads of a block; V for others.
    __device__ long long edge(long long V) const {
        const int thread = threadIdx.x;
        if (thread < lanes) return thread < head ? thread : V;
        return thread < 2 * lanes ? min(V, head + body + thread - lanes) : V;
    }
};

// The loss of class y. Without smoothing a sum of -inf must not count.
__device__ inline float loss_of(
    float lse, float total, const ELEMENT* z, long long z_col, long long y, long long V, float smoothing,
    float z_loss) {
    const float smooth = smoothing > 0.0f ? smoothing * (lse - total / V) : 0.0f;
    return (1.0f - smoothing) * (lse - to_float(z[y * z_col])) + smooth + z_loss * lse * lse;
}

// The gradient of a row with class y for its logits.
struct Gradient {
    float lse, slope, everywhere, g, smoothing; // slope: 1 + 2·zeta·lse; everywhere: eps/V
    long long y;

    __device__ float operator()(float z, long long col) const {
        const float picked = col == y ? 1.0f - smoothing : 0.0f;
        return (slope * expf(z - lse) - picked - everywhere) * g;
    }
};
