// Reads of what the L2 cache is asked to give up last (evict_last). Kernels that write as much as they read are up to 6 %
// faster so on an H200, though no byte comes from memory twice without; docs/results/h200-bench.md.
#pragma once
#include "ptx.cuh"

__device__ inline unsigned long long evict_last() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// 16 bytes at a multiple of 16. sm_80.
__device__ inline uint4 load_kept(const void* global) {
#ifdef TOUCHSTONE_EMULATOR
    return *static_cast<const uint4*>(global);
#else
    uint4 value;
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(global), "l"(evict_last()));
    return value;
#endif
}

// cp_async_16 of such bytes. sm_80.
__device__ inline void cp_async_16_kept(void* shared, const void* global, int bytes) {
#ifdef TOUCHSTONE_EMULATOR
    cp_async_16(shared, global, bytes);
#else
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "l"(evict_last())
                 : "memory");
#endif
}
