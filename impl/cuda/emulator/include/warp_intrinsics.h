// Built-in variables, barriers, shuffles, votes and atomics, under CUDA's names.
#pragma once

#include "runtime_calls.h"

#define threadIdx emulated_thread_index()
#define blockIdx emulated_block_index()
#define blockDim emulated_block_dimensions()
#define gridDim emulated_grid_dimensions()
#define warpSize 32

// The source line is that of the caller: a block barrier compares it over its threads.
__forceinline__ void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulated_block_barrier(file, line);
}
__forceinline__ int __syncthreads_count(int predicate, const char* file = __builtin_FILE(),
                                        int line = __builtin_LINE()) {
    return emulated_block_count(predicate != 0, file, line);
}
__forceinline__ int __syncthreads_or(int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return emulated_block_count(predicate != 0, file, line) != 0;
}
__forceinline__ int __syncthreads_and(int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return emulated_block_count(predicate == 0, file, line) == 0;
}

__forceinline__ void __syncwarp(unsigned mask = 0xffffffffu) { emulated_warp_barrier(mask); }
__forceinline__ unsigned __activemask() {
    emulated_trap("__activemask() depends on the scheduling of a warp; name the lanes by a mask");
}

#define EMULATED_SHUFFLE(name, mode)                                              \
    template <class T>                                                            \
    __forceinline__ T name(unsigned mask, T value, int operand, int width = 32) { \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 2);        \
        unsigned long long bits = 0;                                              \
        __builtin_memcpy(&bits, &value, sizeof(T));                               \
        bits = emulated_shuffle(mode, mask, bits, operand, width);                \
        __builtin_memcpy(&value, &bits, sizeof(T));                               \
        return value;                                                             \
    }
EMULATED_SHUFFLE(__shfl_sync, kShuffleIndex)
EMULATED_SHUFFLE(__shfl_up_sync, kShuffleUp)
EMULATED_SHUFFLE(__shfl_down_sync, kShuffleDown)
EMULATED_SHUFFLE(__shfl_xor_sync, kShuffleXor)
#undef EMULATED_SHUFFLE

__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate) {
    return emulated_vote(kBallot, mask, predicate != 0);
}
__forceinline__ int __any_sync(unsigned mask, int predicate) {
    return emulated_vote(kBallot, mask, predicate != 0) != 0;
}
__forceinline__ int __all_sync(unsigned mask, int predicate) {
    return emulated_vote(kBallot, mask, predicate == 0) == 0;
}
template <class T>
__forceinline__ unsigned __match_any_sync(unsigned mask, T value) {
    long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    return emulated_vote(kMatchAny, mask, bits);
}

#define EMULATED_REDUCE(name, mode, type) \
    __forceinline__ type name(unsigned mask, type value) { return static_cast<type>(emulated_vote(mode, mask, value)); }
EMULATED_REDUCE(__reduce_add_sync, kReduceAdd, unsigned)
EMULATED_REDUCE(__reduce_add_sync, kReduceAdd, int)
EMULATED_REDUCE(__reduce_min_sync, kReduceMin, unsigned)
EMULATED_REDUCE(__reduce_min_sync, kReduceMin, int)
EMULATED_REDUCE(__reduce_max_sync, kReduceMax, unsigned)
EMULATED_REDUCE(__reduce_max_sync, kReduceMax, int)
#undef EMULATED_REDUCE

__forceinline__ void __threadfence_block() {}
__forceinline__ void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#define EMULATED_ATOMICS(type, runtime_name)                                                   \
    __forceinline__ type atomicExch(type* address, type value) {                               \
        return emulated_atomic_##runtime_name(kAtomicExchange, address, value, 0);             \
    }                                                                                          \
    __forceinline__ type atomicCAS(type* address, type compare, type value) {                  \
        return emulated_atomic_##runtime_name(kAtomicCompareAndSwap, address, value, compare); \
    }                                                                                          \
    __forceinline__ type atomicAdd(type* address, type value) {                                \
        return emulated_atomic_##runtime_name(kAtomicAdd, address, value, 0);                  \
    }                                                                                          \
    __forceinline__ type atomicMin(type* address, type value) {                                \
        return emulated_atomic_##runtime_name(kAtomicMin, address, value, 0);                  \
    }                                                                                          \
    __forceinline__ type atomicMax(type* address, type value) {                                \
        return emulated_atomic_##runtime_name(kAtomicMax, address, value, 0);                  \
    }                                                                                          \
    __forceinline__ type atomicAnd(type* address, type value) {                                \
        return emulated_atomic_##runtime_name(kAtomicAnd, address, value, 0);                  \
    }                                                                                          \
    __forceinline__ type atomicOr(type* address, type value) {                                 \
        return emulated_atomic_##runtime_name(kAtomicOr, address, value, 0);                   \
    }                                                                                          \
    __forceinline__ type atomicXor(type* address, type value) {                                \
        return emulated_atomic_##runtime_name(kAtomicXor, address, value, 0);                  \
    }
EMULATED_ATOMICS(int, int)
EMULATED_ATOMICS(unsigned, unsigned)
EMULATED_ATOMICS(unsigned long long, unsigned_long_long)
#undef EMULATED_ATOMICS
__forceinline__ float atomicAdd(float* address, float value) { return emulated_atomic_add_float(address, value); }

template <class T>
__forceinline__ T __ldg(const T* address) {
    return *address;
}
