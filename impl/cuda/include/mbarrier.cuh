// Barriers in shared memory that count arrivals of threads and bytes of asynchronous copies (mbarrier, sm_90).
//
// A barrier goes through phases 0, 1, 2, ...; a phase completes when all its arrivals have come and all bytes that it
// was told to expect have been copied.
#pragma once

// By one thread, before fence_mbarrier_init() and __syncthreads().
__device__ __forceinline__ void mbarrier_init(unsigned long long* barrier, unsigned arrivals) {
#ifdef VOLTABENCH_EMULATED
    emulated::mbarrier_init(barrier, arrivals);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
#endif
}

// Shows initialised barriers to the copy engine.
__device__ __forceinline__ void fence_mbarrier_init() {
#ifndef VOLTABENCH_EMULATED
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void mbarrier_arrive(unsigned long long* barrier) {
#ifdef VOLTABENCH_EMULATED
    emulated::mbarrier_arrive(barrier, 0);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
#endif
}

// Arrives, and lets the phase also wait for `bytes` of copies.
__device__ __forceinline__ void mbarrier_arrive_expect(unsigned long long* barrier, unsigned bytes) {
#ifdef VOLTABENCH_EMULATED
    emulated::mbarrier_arrive(barrier, bytes);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
#endif
}

// Waits until the last phase with this parity (0 or 1) has completed; of a fresh barrier, one of parity 1 counts as
// such.
__device__ __forceinline__ void mbarrier_wait(unsigned long long* barrier, unsigned parity) {
#ifdef VOLTABENCH_EMULATED
    emulated::mbarrier_wait(barrier, parity);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "{\n.reg .pred complete;\n"
        "TRY_AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n@!complete bra TRY_AGAIN;\n}" ::"r"(
            address),
        "r"(parity)
        : "memory");
#endif
}

// In a ring of BUFFERS with barriers of their own: the place of the tile with this number, and the parity of its phase
// there.
template <int BUFFERS>
__device__ __forceinline__ unsigned stage_of(unsigned tile) {
    return tile % BUFFERS;
}

template <int BUFFERS>
__device__ __forceinline__ unsigned parity_of(unsigned tile) {
    return tile / BUFFERS & 1;
}
