#include "dropout.cuh"

enum Fault {
    none,
    counter_of_thread,
    step_of_a_block,
    tail_unguarded,
    signed_words,
    stride_ignored,
};

// Threads of a few blocks walk over groups of four elements.
extern "C" __global__ void dropout_walk(
    const ELEMENT* x, ELEMENT* y, long long size, long long n1, long long n2, long long n3, long long s0, long long s1,
    long long s2, long long s3, long long threshold, float scale, unsigned long long seed, unsigned long long offset,
    int fault) {
    const long long step = fault == step_of_a_block ? blockDim.x : (long long)gridDim.x * blockDim.x;
    const long long first = fault == step_of_a_block ? threadIdx.x : (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long block = first; 4 * block < size; block += step) {
        const Words words = philox(fault == counter_of_thread ? first : block, seed, offset);
        for (int i = 0; i < 4; ++i) {
            const long long e = 4 * block + i;
            if (e >= size && fault != tail_unguarded) break;
            const long long at = fault == stride_ignored ? e : place(e, n1, n2, n3, s0, s1, s2, s3);
            const bool kept = fault == signed_words ? int(words.word[i]) >= threshold : words.word[i] >= threshold;
            y[e] = from_float<ELEMENT>(kept ? to_float(x[at]) * scale : 0.0f);
        }
    }
}
