#include "philox.cuh"

extern "C" __global__ void philox_words(int* out, long long start, unsigned long long seed, unsigned long long offset) {
    const long long block = start / 4 + (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const Words words = philox(block, seed, offset);
    for (int i = 0; i < 4; ++i) out[4 * block - start + i] = int(words.word[i]);
}
