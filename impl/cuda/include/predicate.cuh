// Predicated instructions that the compiler would otherwise turn into branches, selects or longer chains.
#pragma once
#include "shared_address.cuh"

// When `bits` has `bit`: the word at `next`, which then moves on by STEP bytes; else undefined. `one` is a 1 that the
// compiler does not know: a multiply-add, unlike an addition, leaves the integer pipe free.
template <int STEP>
__device__ __forceinline__ unsigned load_next_if(unsigned bits, unsigned bit, SharedAddress& next, unsigned one) {
    unsigned word;
#ifdef VOLTABENCH_EMULATED
    word = 0xffffffffu;
    if (bits & bit) {
        word = *reinterpret_cast<const unsigned*>(next);
        next += STEP * one;
    }
#else
    asm volatile(
        "{\n.reg .pred set;\n.reg .b32 both;\nand.b32 both, %2, %3;\nsetp.ne.u32 set, both, 0;\n"
        "@set ld.shared.b32 %0, [%1];\n@set mad.lo.u32 %1, %4, %5, %1;\n}"
        : "=r"(word), "+r"(next)
        : "r"(bits), "r"(bit), "r"(one), "n"(STEP));
#endif
    return word;
}

// target = x * y when `bits` has `bit`.
__device__ __forceinline__ void multiply_if(unsigned bits, unsigned bit, unsigned& target, unsigned x, unsigned y) {
#ifdef VOLTABENCH_EMULATED
    if (bits & bit) target = x * y;
#else
    asm("{\n.reg .pred set;\n.reg .b32 both;\nand.b32 both, %1, %2;\nsetp.ne.u32 set, both, 0;\n"
        "@set mul.lo.u32 %0, %3, %4;\n}"
        : "+r"(target)
        : "r"(bits), "r"(bit), "r"(x), "r"(y));
#endif
}

// For each of four bits of `bits` from FIRST on: the word at `next`, which then moves on by 4 bytes, where it is set;
// else 0.
template <int FIRST>
__device__ __forceinline__ void load_words_if(unsigned (&words)[4], unsigned bits, SharedAddress& next) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = 0;
#ifdef VOLTABENCH_EMULATED
    for (int i = 0; i < 4; ++i) {
        if (bits >> (FIRST + i) & 1) {
            words[i] = *reinterpret_cast<const unsigned*>(next);
            next += 4;
        }
    }
#else
#    define LOAD_NEXT(word, bit)                                                          \
        "and.b32 both, %5, " bit ";\nsetp.ne.u32 set, both, 0;\n@set ld.shared.b32 " word \
        ", [%4];\n"                                                                       \
        "@set add.u32 %4, %4, 4;\n"
    asm volatile("{\n.reg .pred set;\n.reg .b32 both;\n" LOAD_NEXT("%0", "%6") LOAD_NEXT("%1", "%7")
                     LOAD_NEXT("%2", "%8") LOAD_NEXT("%3", "%9") "}"
                 : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]), "+r"(next)
                 : "r"(bits), "n"(1u << FIRST), "n"(2u << FIRST), "n"(4u << FIRST), "n"(8u << FIRST));
#    undef LOAD_NEXT
#endif
}
