// Asynchronous copies from global to shared memory (cp.async, sm_80).
#pragma once

// Copies 16 bytes when `valid`, else writes 16 zero bytes. Both addresses must be 16-byte aligned;
// `global` is not read when not valid. L1 is passed by: each byte is used by one block only.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool valid) {
#ifdef VOLTABENCH_EMULATED
    emulated::copy_async_16(shared, global, valid);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(bytes)
                 : "memory");
#endif
}

// Closes the group of copies this thread has issued since the last commit.
__device__ __forceinline__ void copy_async_commit() {
#ifdef VOLTABENCH_EMULATED
    emulated::copy_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most PENDING of this thread's newest groups are still in flight.
template <int PENDING>
__device__ __forceinline__ void copy_async_wait() {
#ifdef VOLTABENCH_EMULATED
    emulated::copy_async_wait(PENDING);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}
