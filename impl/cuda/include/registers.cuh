// What the compiler keeps in registers.
#pragma once

// Hides where `value` came from: what a loop derives from it is computed at its use, not once and kept in registers.
template <typename Integer>
__device__ __forceinline__ void forget_origin(Integer& value) {
#ifndef VOLTABENCH_EMULATED
    asm volatile("" : "+r"(value));
#endif
}
