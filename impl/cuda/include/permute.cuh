// Bytes picked from two registers.
#pragma once

// Byte i of the result is the byte of {low, high}, 0 to 7, that nibble i of `selector` names; the nibbles are below 8.
// Bits 16 and up are ignored. (__byte_perm masks the nibbles first, which costs an operation.)
__device__ __forceinline__ unsigned permute(unsigned low, unsigned high, unsigned selector) {
#ifdef VOLTABENCH_EMULATED
    return __byte_perm(low, high, selector);
#else
    unsigned result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
    return result;
#endif
}
