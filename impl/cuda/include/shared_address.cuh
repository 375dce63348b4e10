// Shared memory by addresses of 32 bits: what is computed from a pointer takes the instructions of 64 bits.
#pragma once

#ifdef VOLTABENCH_EMULATED
using SharedAddress = const unsigned char*;
#else
using SharedAddress = unsigned;
#endif

__device__ __forceinline__ SharedAddress shared_address(const void* shared) {
#ifdef VOLTABENCH_EMULATED
    return static_cast<SharedAddress>(shared);
#else
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
#endif
}

// The address that differs in `bits`.
__device__ __forceinline__ SharedAddress flip_bits(SharedAddress address, unsigned bits) {
#ifdef VOLTABENCH_EMULATED
    return reinterpret_cast<SharedAddress>(reinterpret_cast<unsigned long long>(address) ^ bits);
#else
    return address ^ bits;
#endif
}

// A Value at an address: of 2, 4 or 2 x 4 bytes.
template <typename Value>
__device__ __forceinline__ Value load_shared(SharedAddress address) {
#ifdef VOLTABENCH_EMULATED
    return *reinterpret_cast<const Value*>(address);
#else
    Value value;
    if constexpr (sizeof(Value) == 2) {
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address));
    } else if constexpr (sizeof(Value) == 4) {
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address));
    } else {
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address));
    }
    return value;
#endif
}
