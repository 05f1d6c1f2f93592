// Where the sequences of a packed tensor lie.
#pragma once

// A sequence's first row and length, in q and in k and v. Sequence `number` is the rows of q that belong to none: it
// has no keys.
struct Sequence {
    long long first_q, first_k;
    int seq_q, seq_k;

    __device__ Sequence(
        const int* cu_q, long long cu_q_stride, const int* cu_k, long long cu_k_stride, long long b, int number,
        int total) {
        first_q = cu_q[b * cu_q_stride];
        first_k = cu_k[b * cu_k_stride];
        seq_q = (b < number ? cu_q[(b + 1) * cu_q_stride] : total) - (int)first_q;
        seq_k = b < number ? cu_k[(b + 1) * cu_k_stride] - (int)first_k : 0;
    }
};
