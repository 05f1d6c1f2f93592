// Philox4x32-10 by the element [salmon2011]: element e of a tensor, counted row by row in 64 bits, has word e & 3 of the
// four that the counter (e >> 2, offset) gives under the key `seed`, low words first.
#pragma once

struct Words {
    unsigned word[4];
};

// The words of the elements 4 * block to 4 * block + 3.
__device__ inline Words philox(unsigned long long block, unsigned long long seed, unsigned long long offset) {
    unsigned c0 = unsigned(block), c1 = unsigned(block >> 32), c2 = unsigned(offset), c3 = unsigned(offset >> 32);
    unsigned k0 = unsigned(seed), k1 = unsigned(seed >> 32);
#pragma unroll
    for (int turn = 0; turn < 10; ++turn) {
        const unsigned first = c0, second = c2;
        c0 = __umulhi(0xCD9E8D57u, second) ^ c1 ^ k0;
        c1 = 0xCD9E8D57u * second;
        c2 = __umulhi(0xD2511F53u, first) ^ c3 ^ k1;
        c3 = 0xD2511F53u * first;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
}
