// Philox4x32-10 by the element [salmon2011]: element e of a tensor, counted row by row in 64 bits, has word e & 3 of the
// four that the counter (e >> 2, offset) gives under the key `seed`, low words first.
#pragma once

struct Words {
    unsigned word[4];
};

// All 64 bits of a·b, by one instruction: of a product in C++ NVRTC makes two, or one and an addition of 0.
__device__ inline unsigned long long wide_product(unsigned a, unsigned b) {
#ifdef TOUCHSTONE_EMULATOR
    return static_cast<unsigned long long>(a) * b;
#else
    unsigned long long product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#endif
}

// The words of the elements 4 * block to 4 * block + 3.
__device__ inline Words philox(unsigned long long block, unsigned long long seed, unsigned long long offset) {
    unsigned c0 = unsigned(block), c1 = unsigned(block >> 32), c2 = unsigned(offset), c3 = unsigned(offset >> 32);
    unsigned k0 = unsigned(seed), k1 = unsigned(seed >> 32);
#pragma unroll
    for (int turn = 0; turn < 10; ++turn) {
        const unsigned long long first = wide_product(0xD2511F53u, c0), second = wide_product(0xCD9E8D57u, c2);
        c0 = unsigned(second >> 32) ^ c1 ^ k0;
        c1 = unsigned(second);
        c2 = unsigned(first >> 32) ^ c3 ^ k1;
        c3 = unsigned(first);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
}
