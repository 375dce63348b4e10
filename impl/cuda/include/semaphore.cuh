// Counters in global memory by which blocks hand results to each other, in the PTX memory model's terms.
#pragma once

// Reads *counter; what was written before the release of the value read is visible after.
__device__ __forceinline__ int load_acquire(int* counter) {
#ifdef VOLTABENCH_EMULATED
    return emulated_atomic_int(kAtomicAdd, counter, 0, 0);
#else
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                 : "=r"(value)
                 : "l"(__cvta_generic_to_global(counter))
                 : "memory");
    return value;
#endif
}

// Writes *counter after all that this thread wrote, or saw by a barrier that others wrote.
__device__ __forceinline__ void store_release(int* counter, int value) {
#ifdef VOLTABENCH_EMULATED
    emulated_atomic_int(kAtomicExchange, counter, value, 0);
#else
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(counter)), "r"(value) : "memory");
#endif
}

// Adds to *counter and gives what it was: store_release and load_acquire in one.
__device__ __forceinline__ int fetch_add(int* counter, int value) {
#ifdef VOLTABENCH_EMULATED
    return emulated_atomic_int(kAtomicAdd, counter, value, 0);
#else
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(counter)), "r"(value)
                 : "memory");
    return before;
#endif
}
