#include "dropout.cuh"
#include "pointwise.cuh"

// A thread for 16 bytes of a contiguous x, and four or eight for a word of bits: each moves its own to their place, and
// shuffles join them, in which also threads beyond the last element take part.
extern "C" __global__ void dropout_bitmask_vectorised(
    const ELEMENT* x, ELEMENT* y, int* bits, long long size, long long threshold, float scale, unsigned long long seed,
    unsigned long long offset) {
    constexpr int lanes = lanes_of<ELEMENT>, threads = 32 / lanes;  // elements of a thread, threads of a word
    const long long vector = (long long)blockIdx.x * blockDim.x + threadIdx.x, first = vector * lanes;
    float values[lanes];
    unpack<ELEMENT>(load_line(x, 1, first, size, true), values);
    unsigned kept = 0;
#pragma unroll
    for (int part = 0; part < lanes; part += 4) {
        const Words words = philox((first + part) / 4, seed, offset);
#pragma unroll
        for (int i = part; i < part + 4; ++i) {
            values[i] = dropped_out(values[i], words.word[i - part], threshold, scale);
            kept |= unsigned(first + i < size && stays(words.word[i - part], threshold)) << i;
        }
    }
    store_line(y, first, size, true, values);
    kept <<= vector % threads * lanes;
#pragma unroll
    for (int step = 1; step < threads; step *= 2) kept |= __shfl_xor_sync(all_lanes, kept, step);
    if (vector % threads == 0 && first < size) bits[first / 32] = int(kept);
}
