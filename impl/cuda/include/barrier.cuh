// Barriers of some of a block's warps, numbered 1 to 15 (0 is __syncthreads).
#pragma once

// Waits until `threads` threads, a multiple of 32, have come to `barrier` by this function or the next one.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
#ifdef VOLTABENCH_EMULATED
    emulated::named_barrier_sync(barrier, threads);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
#endif
}

// Comes to `barrier` without waiting.
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
#ifdef VOLTABENCH_EMULATED
    emulated::named_barrier_arrive(barrier, threads);
#else
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
#endif
}
