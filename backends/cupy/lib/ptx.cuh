// One PTX instruction a function, and a plain twin of each where the emulator compiles.
// Fragments are laid out over the lanes as the PTX ISA says: group = lane / 4, member = lane % 4.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Starts copying `bytes` (0 to 16) from global to shared memory and zeros up to 16. Both addresses are multiples of 16;
// nothing is read where `bytes` is 0. sm_80.
__device__ inline void cp_async_16(void* shared, const void* global, int bytes = 16) {
#ifdef TOUCHSTONE_EMULATOR
    uint4 value = make_uint4(0, 0, 0, 0);
    if (bytes == 16) {
        value = *static_cast<const uint4*>(global);
    } else {
        unsigned char read[16] = {};
        for (int i = 0; i < bytes; ++i) read[i] = static_cast<const unsigned char*>(global)[i];
        memcpy(&value, read, 16);
    }
    *static_cast<uint4*>(shared) = value;
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
#endif
}

// Closes the group of the copies that this thread has started since the last group. sm_80.
__device__ inline void cp_async_commit() {
#ifndef TOUCHSTONE_EMULATOR
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `pending` of this thread's groups are under way; a barrier shows the data to the others. sm_80.
template <int pending> __device__ inline void cp_async_wait() {
#ifndef TOUCHSTONE_EMULATOR
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

// Four 8 x 8 matrices of 16-bit elements: lane i gives the 16-byte aligned address of row i % 8 of matrix i / 8, and
// gets of each matrix elements (group, 2 * member) and (group, 2 * member + 1). sm_75.
__device__ inline void ldmatrix_x4(unsigned (&matrix)[4], const void* row) {
#ifdef TOUCHSTONE_EMULATOR
    touchstone::ldmatrix_x4(matrix, row, false);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

// The same of the four matrices transposed. sm_75.
__device__ inline void ldmatrix_x4_trans(unsigned (&matrix)[4], const void* row) {
#ifdef TOUCHSTONE_EMULATOR
    touchstone::ldmatrix_x4(matrix, row, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

// Two matrices; lanes 0 to 15 give the addresses. sm_75.
__device__ inline void ldmatrix_x2(unsigned (&matrix)[2], const void* row) {
#ifdef TOUCHSTONE_EMULATOR
    touchstone::ldmatrix_x2(matrix, row, false);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(matrix[0]), "=r"(matrix[1])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

__device__ inline void ldmatrix_x2_trans(unsigned (&matrix)[2], const void* row) {
#ifdef TOUCHSTONE_EMULATOR
    touchstone::ldmatrix_x2(matrix, row, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(matrix[0]), "=r"(matrix[1])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

// d = a * b + c for a (16, 16), b (16, 8), c and d (16, 8); the last argument only gives the element type of a and b.
// a: rows group and group + 8 by columns 2 * member and 2 * member + 8, in the order (row, row + 8) of the left half,
// then of the right; b: rows 2 * member and 2 * member + 8 of column group; c and d: columns 2 * member and
// 2 * member + 1 of row group, then of row group + 8. sm_80.
__device__ inline void mma_m16n8k16(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4], __half type
) {
#ifdef TOUCHSTONE_EMULATOR
    touchstone::mma_m16n8k16(d, a, b, c, type);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#endif
}

__device__ inline void mma_m16n8k16(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4], __nv_bfloat16 type
) {
#ifdef TOUCHSTONE_EMULATOR
    touchstone::mma_m16n8k16(d, a, b, c, type);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#endif
}

// d = a * b + c for a (16, 8), b (8, 8), c and d (16, 8); a and b hold the bits of tf32 numbers, one a register.
// a: (group, member), (group + 8, member), (group, member + 4), (group + 8, member + 4); b: rows member and member + 4
// of column group; c and d as above. sm_80.
__device__ inline void mma_m16n8k8_tf32(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4]
) {
#ifdef TOUCHSTONE_EMULATOR
    touchstone::mma_m16n8k8_tf32(d, a, b, c);
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#endif
}

// The nearest tf32 number (10 bits of mantissa), ties away from zero, as bits. sm_80.
__device__ inline unsigned to_tf32(float value) {
#ifdef TOUCHSTONE_EMULATOR
    const unsigned bits = __float_as_uint(value);
    if (value != value) return 0x7fffffffu;
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
#else
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
#endif
}

// tanh with a relative error of 2^-11 at most. sm_75.
__device__ inline float tanh_approximate(float value) {
#ifdef TOUCHSTONE_EMULATOR
    if (isnan(value)) return value;  // whose bits the addition below may carry into the sign: 0
    return __uint_as_float((__float_as_uint(tanhf(value)) + 0x800u) & 0xfffff000u);  // rounded to 11 bits
#else
    float result;
    asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
#endif
}
