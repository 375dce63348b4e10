// Device functions on one thread's values, under CUDA's names.
#pragma once

#include "conversions.h"
#include "runtime_calls.h"

__forceinline__ float __int_as_float(int x) { return emulated::bits_as<float>(x); }
__forceinline__ float __uint_as_float(unsigned x) { return emulated::bits_as<float>(x); }
__forceinline__ int __float_as_int(float x) { return emulated::bits_as<int>(x); }
__forceinline__ unsigned __float_as_uint(float x) { return emulated::bits_as<unsigned>(x); }

__forceinline__ float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
__forceinline__ float fminf(float a, float b) { return __builtin_fminf(a, b); }
__forceinline__ float fabsf(float x) { return __builtin_fabsf(x); }
__forceinline__ float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__forceinline__ float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// Rounded by themselves, never contracted to an fma: the compiler cannot see through the empty statement.
__forceinline__ float __fadd_rn(float a, float b) {
    float sum = a + b;
    asm("" : "+g"(sum));
    return sum;
}
__forceinline__ float __fmul_rn(float a, float b) {
    float product = a * b;
    asm("" : "+g"(product));
    return product;
}
__forceinline__ bool isinf(float x) { return __builtin_isinf(x); }
__forceinline__ bool isnan(float x) { return __builtin_isnan(x); }

// Special function unit. The results are the correctly rounded ones, so within any documented error.
__forceinline__ float exp2f(float x) { return emulated_count_mufu(), __builtin_exp2f(x); }
__forceinline__ float expf(float x) { return emulated_count_mufu(), __builtin_expf(x); }
__forceinline__ float __expf(float x) { return emulated_count_mufu(), __builtin_expf(x); }
__forceinline__ float log2f(float x) { return emulated_count_mufu(), __builtin_log2f(x); }
__forceinline__ float logf(float x) { return emulated_count_mufu(), __builtin_logf(x); }
__forceinline__ float __logf(float x) { return emulated_count_mufu(), __builtin_logf(x); }
__forceinline__ float __log2f(float x) { return emulated_count_mufu(), __builtin_log2f(x); }
__forceinline__ float tanhf(float x) { return emulated_count_mufu(), __builtin_tanhf(x); }
__forceinline__ float sqrtf(float x) { return emulated_count_mufu(), __builtin_sqrtf(x); }
__forceinline__ float rsqrtf(float x) { return emulated_count_mufu(), 1.0f / __builtin_sqrtf(x); }
__forceinline__ float __frsqrt_rn(float x) { return emulated_count_mufu(), 1.0f / __builtin_sqrtf(x); }
__forceinline__ float __frcp_rn(float x) { return emulated_count_mufu(), 1.0f / x; }
__forceinline__ float __fdividef(float a, float b) { return emulated_count_mufu(), a / b; }

#define EMULATED_MIN_MAX(type)                                         \
    __forceinline__ type min(type a, type b) { return b < a ? b : a; } \
    __forceinline__ type max(type a, type b) { return a < b ? b : a; }
EMULATED_MIN_MAX(int)
EMULATED_MIN_MAX(unsigned)
EMULATED_MIN_MAX(long)
EMULATED_MIN_MAX(unsigned long)
EMULATED_MIN_MAX(long long)
EMULATED_MIN_MAX(unsigned long long)
#undef EMULATED_MIN_MAX
__forceinline__ float min(float a, float b) { return fminf(a, b); }
__forceinline__ float max(float a, float b) { return fmaxf(a, b); }

__forceinline__ int __popc(unsigned x) { return __builtin_popcount(x); }
__forceinline__ int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
__forceinline__ int __ffs(int x) { return __builtin_ffs(x); }
__forceinline__ int __ffsll(long long x) { return __builtin_ffsll(x); }
__forceinline__ int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
__forceinline__ int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
__forceinline__ unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned long long>(a) * b >> 32; }

__forceinline__ unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
    return reversed;
}

__forceinline__ unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= (bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}

__forceinline__ unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (static_cast<unsigned long long>(high) << 32 | low) << (shift & 31) >> 32;
}

__forceinline__ unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31);
}
