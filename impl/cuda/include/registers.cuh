// What the compiler keeps in registers.
#pragma once

// Hides where `value` came from: what a loop derives from it is computed at its use, not once and kept in registers.
__device__ __forceinline__ void forget_origin(int& value) {
#ifndef VOLTABENCH_EMULATED
    asm volatile("" : "+r"(value));
#endif
}
