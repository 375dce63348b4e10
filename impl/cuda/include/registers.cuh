// What the compiler keeps in registers.
#pragma once

// Hides where `value` came from: what a loop derives from it is computed at its use, not once and kept in registers.
template <typename Integer>
__device__ __forceinline__ void forget_origin(Integer& value) {
#ifndef VOLTABENCH_EMULATED
    asm volatile("" : "+r"(value));
#endif
}

// `value`, the same in all lanes, kept in a register: the compiler cannot make anew what comes from a shuffle. It must
// not know either that lanes agree, or it drops the shuffle, so 0 is added: blocks have one dimension.
__device__ __forceinline__ unsigned kept(unsigned value) {
#ifdef VOLTABENCH_EMULATED
    return value;
#else
    return __shfl_sync(0xffffffffu, value + threadIdx.y, 0);
#endif
}
