#include "dropout.cuh"

// A thread for 16 bytes of a contiguous x: four elements or eight, with a call of Philox for each four of them.
extern "C" __global__ void dropout_vectorised(
    const ELEMENT* x, ELEMENT* y, long long size, long long threshold, float scale, unsigned long long seed,
    unsigned long long offset) {
    constexpr int lanes = lanes_of<ELEMENT>;
    const long long first = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * lanes;
    if (first >= size) return;
    const bool whole = first + lanes <= size;  // else the last vector
    float values[lanes];
    if (whole) {
        load16(x + first, values);
    } else {
#pragma unroll
        for (int i = 0; i < lanes; ++i) values[i] = first + i < size ? to_float(x[first + i]) : 0.0f;
    }
#pragma unroll
    for (int part = 0; part < lanes / 4; ++part) {
        const Words words = philox(first / 4 + part, seed, offset);
#pragma unroll
        for (int i = 0; i < 4; ++i) values[4 * part + i] = dropped_out(values[4 * part + i], words.word[i], threshold, scale);
    }
    if (whole) {
        store16(y + first, values);
    } else {
#pragma unroll
        for (int i = 0; i < lanes; ++i)
            if (first + i < size) y[first + i] = from_float<ELEMENT>(values[i]);
    }
}
