// Built-in variables, barriers, shuffles, votes and atomics, under CUDA's names.
#pragma once

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

__forceinline__ void __syncwarp(unsigned mask = 0xffffffffu) {
    emulated_warp_barrier(mask);
}
__forceinline__ unsigned __activemask() {
    emulated_trap("__activemask() depends on the scheduling of a warp; name the lanes by a mask");
}

#define EMULATED_SHUFFLE(name, mode)                                                                             \
    template <class T>                                                                                           \
    __forceinline__ T name(unsigned mask, T value, int operand, int width = 32) {                                \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 2);                                       \
        unsigned long long bits = 0;                                                                             \
        __builtin_memcpy(&bits, &value, sizeof(T));                                                              \
        bits = emulated_shuffle(mode, mask, bits, operand, width);                                               \
        __builtin_memcpy(&value, &bits, sizeof(T));                                                              \
        return value;                                                                                            \
    }
EMULATED_SHUFFLE(__shfl_sync, 0)
EMULATED_SHUFFLE(__shfl_up_sync, 1)
EMULATED_SHUFFLE(__shfl_down_sync, 2)
EMULATED_SHUFFLE(__shfl_xor_sync, 3)
#undef EMULATED_SHUFFLE

__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate) {
    return emulated_vote(0, mask, predicate != 0);
}
__forceinline__ int __any_sync(unsigned mask, int predicate) {
    return emulated_vote(0, mask, predicate != 0) != 0;
}
__forceinline__ int __all_sync(unsigned mask, int predicate) {
    return emulated_vote(0, mask, predicate == 0) == 0;
}
template <class T>
__forceinline__ unsigned __match_any_sync(unsigned mask, T value) {
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    return emulated_vote(1, mask, bits);
}

#define EMULATED_REDUCE(name, mode, type) \
    __forceinline__ type name(unsigned mask, type value) { return static_cast<type>(emulated_vote(mode, mask, value)); }
EMULATED_REDUCE(__reduce_add_sync, 2, unsigned)
EMULATED_REDUCE(__reduce_add_sync, 2, int)
EMULATED_REDUCE(__reduce_min_sync, 3, unsigned)
EMULATED_REDUCE(__reduce_max_sync, 4, unsigned)
EMULATED_REDUCE(__reduce_min_sync, 5, int)
EMULATED_REDUCE(__reduce_max_sync, 6, int)
#undef EMULATED_REDUCE

__forceinline__ void __threadfence_block() {}
__forceinline__ void __threadfence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

#define EMULATED_ATOMIC(name, operation, type, size, word)                                                          \
    __forceinline__ type name(type* address, type operand) {                                                        \
        return emulated::bits_as<type>(                                                                             \
            emulated_atomic_##size(operation, address, emulated::bits_as<word>(operand), 0));                       \
    }
EMULATED_ATOMIC(atomicExch, 0, int, 32, unsigned)
EMULATED_ATOMIC(atomicExch, 0, unsigned, 32, unsigned)
EMULATED_ATOMIC(atomicExch, 0, float, 32, unsigned)
EMULATED_ATOMIC(atomicAdd, 2, int, 32, unsigned)
EMULATED_ATOMIC(atomicAdd, 2, unsigned, 32, unsigned)
EMULATED_ATOMIC(atomicAdd, 3, float, 32, unsigned)
EMULATED_ATOMIC(atomicMin, 4, int, 32, unsigned)
EMULATED_ATOMIC(atomicMax, 5, int, 32, unsigned)
EMULATED_ATOMIC(atomicMin, 6, unsigned, 32, unsigned)
EMULATED_ATOMIC(atomicMax, 7, unsigned, 32, unsigned)
EMULATED_ATOMIC(atomicAnd, 8, unsigned, 32, unsigned)
EMULATED_ATOMIC(atomicOr, 9, unsigned, 32, unsigned)
EMULATED_ATOMIC(atomicXor, 10, unsigned, 32, unsigned)
EMULATED_ATOMIC(atomicExch, 0, unsigned long long, 64, unsigned long long)
EMULATED_ATOMIC(atomicAdd, 2, unsigned long long, 64, unsigned long long)
#undef EMULATED_ATOMIC
__forceinline__ unsigned atomicCAS(unsigned* address, unsigned compare, unsigned value) {
    return emulated_atomic_32(1, address, value, compare);
}
__forceinline__ int atomicCAS(int* address, int compare, int value) {
    return static_cast<int>(emulated_atomic_32(1, address, value, compare));
}
