// Copies of adjacent bytes between global and shared memory by the copy engine (cp.async.bulk, sm_90). Addresses and
// sizes are multiples of 16 bytes.
#pragma once

// One thread starts the copy; `barrier` gets its bytes.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, unsigned bytes,
                                          unsigned long long* barrier) {
#ifdef VOLTABENCH_EMULATED
    emulated::bulk_load(shared, global, bytes, barrier);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned barrier_address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address),
        "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(barrier_address)
        : "memory");
#endif
}

// As bulk_load, of what no one reads again: it is the first to leave the L2 cache, where other lines then stay.
__device__ __forceinline__ void bulk_load_once(void* shared, const void* global, unsigned bytes,
                                               unsigned long long* barrier) {
#ifdef VOLTABENCH_EMULATED
    emulated::bulk_load(shared, global, bytes, barrier);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned barrier_address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
        "policy;\n}" ::"r"(address),
        "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(barrier_address)
        : "memory");
#endif
}

// One thread starts the copy, which belongs to its group of copies until bulk_commit().
__device__ __forceinline__ void bulk_store(void* global, const void* shared, unsigned bytes) {
#ifdef VOLTABENCH_EMULATED
    emulated::bulk_store(global, shared, bytes);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(global)),
                 "r"(address), "r"(bytes)
                 : "memory");
#endif
}

// As bulk_store, but adds to what is there, each float in one atomic operation.
__device__ __forceinline__ void bulk_add(float* global, const float* shared, unsigned bytes) {
#ifdef VOLTABENCH_EMULATED
    emulated::bulk_add(global, shared, bytes);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(global)),
                 "r"(address), "r"(bytes)
                 : "memory");
#endif
}

// Closes this thread's group of stores.
__device__ __forceinline__ void bulk_commit() {
#ifdef VOLTABENCH_EMULATED
    emulated::bulk_commit();
#else
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Waits until this thread's groups have been read from shared memory, which may then be written again.
__device__ __forceinline__ void bulk_wait_read() {
#ifdef VOLTABENCH_EMULATED
    emulated::bulk_wait();
#else
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

// Waits until this thread's groups are complete: others see them after a release of this thread.
__device__ __forceinline__ void bulk_wait() {
#ifdef VOLTABENCH_EMULATED
    emulated::bulk_wait();
#else
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

// Orders this thread's plain accesses to global memory, an acquire too, before its later copies.
__device__ __forceinline__ void fence_async_proxy_global() {
#ifndef VOLTABENCH_EMULATED
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}
