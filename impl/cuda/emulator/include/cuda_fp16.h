// __half and __half2 as cuda_fp16.h has them: every operation rounds once, to nearest even, as the hardware does.
// Found before CUDA's own header when g++ compiles a kernel.
#pragma once

#include "arithmetic.h"

struct __half_raw {
    unsigned short x;
};

struct __align__(2) __half {
    unsigned short bits;
    __half() = default;
    __forceinline__ __half(__half_raw raw) : bits(raw.x) {}
    __forceinline__ __half(float x) : bits(emulated::half_bits(x)) {}
    __forceinline__ __half(double x) : bits(emulated::half_bits(x)) {}
    __forceinline__ __half(int x) : bits(emulated::half_bits(static_cast<double>(x))) {}
    __forceinline__ operator float() const { return emulated::half_value(bits); }
    __forceinline__ operator __half_raw() const { return {bits}; }
};

struct __align__(4) __half2 {
    __half x, y;
};

typedef __half half;
typedef __half2 half2;

__forceinline__ unsigned short __half_as_ushort(__half h) { return h.bits; }
__forceinline__ short __half_as_short(__half h) { return static_cast<short>(h.bits); }
__forceinline__ __half __ushort_as_half(unsigned short bits) { return __half_raw{bits}; }
__forceinline__ __half __short_as_half(short bits) { return __half_raw{static_cast<unsigned short>(bits)}; }

__forceinline__ float __half2float(__half h) { return h; }
__forceinline__ __half __float2half(float x) { return x; }
__forceinline__ __half __float2half_rn(float x) { return x; }
__forceinline__ __half __int2half_rn(int x) { return x; }

__forceinline__ __half2 make_half2(__half x, __half y) { return {x, y}; }
__forceinline__ __half2 __halves2half2(__half x, __half y) { return {x, y}; }
__forceinline__ __half2 __half2half2(__half x) { return {x, x}; }
__forceinline__ __half2 __float2half2_rn(float x) { return {x, x}; }
__forceinline__ __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
__forceinline__ __half2 __float22half2_rn(float2 v) { return {v.x, v.y}; }
__forceinline__ float2 __half22float2(__half2 h) { return {h.x, h.y}; }
__forceinline__ __half __low2half(__half2 h) { return h.x; }
__forceinline__ __half __high2half(__half2 h) { return h.y; }
__forceinline__ float __low2float(__half2 h) { return h.x; }
__forceinline__ float __high2float(__half2 h) { return h.y; }
__forceinline__ __half2 __low2half2(__half2 h) { return {h.x, h.x}; }
__forceinline__ __half2 __high2half2(__half2 h) { return {h.y, h.y}; }
__forceinline__ __half2 __lowhigh2highlow(__half2 h) { return {h.y, h.x}; }
__forceinline__ __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
__forceinline__ __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }

// In fp32 the sum, difference, product, quotient and root of two halves, rounded again to fp16, equal the exact ones
// rounded once: 24 bits are at least 2 * 11 + 2. A fused multiply-add needs double.
__forceinline__ __half __hadd(__half a, __half b) { return float(a) + float(b); }
__forceinline__ __half __hsub(__half a, __half b) { return float(a) - float(b); }
__forceinline__ __half __hmul(__half a, __half b) { return float(a) * float(b); }
__forceinline__ __half __hdiv(__half a, __half b) { return float(a) / float(b); }
__forceinline__ __half __hfma(__half a, __half b, __half c) { return double(float(a)) * float(b) + double(float(c)); }
__forceinline__ __half __hneg(__half a) { return __half_raw{static_cast<unsigned short>(a.bits ^ 0x8000)}; }
__forceinline__ __half __habs(__half a) { return __half_raw{static_cast<unsigned short>(a.bits & 0x7fff)}; }
__forceinline__ __half __hmax(__half a, __half b) { return __builtin_fmaxf(a, b); }
__forceinline__ __half __hmin(__half a, __half b) { return __builtin_fminf(a, b); }
__forceinline__ __half hexp2(__half a) { return emulated_count_mufu(), __builtin_exp2f(a); }
__forceinline__ __half hrcp(__half a) { return emulated_count_mufu(), 1.0f / float(a); }

#define EMULATED_HALF2(name, scalar) \
    __forceinline__ __half2 name(__half2 a, __half2 b) { return {scalar(a.x, b.x), scalar(a.y, b.y)}; }
EMULATED_HALF2(__hadd2, __hadd)
EMULATED_HALF2(__hsub2, __hsub)
EMULATED_HALF2(__hmul2, __hmul)
EMULATED_HALF2(__h2div, __hdiv)
EMULATED_HALF2(__hmax2, __hmax)
EMULATED_HALF2(__hmin2, __hmin)
#undef EMULATED_HALF2
__forceinline__ __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
__forceinline__ __half2 __hneg2(__half2 a) { return {__hneg(a.x), __hneg(a.y)}; }
__forceinline__ __half2 __habs2(__half2 a) { return {__habs(a.x), __habs(a.y)}; }
__forceinline__ __half2 h2exp2(__half2 a) { return {hexp2(a.x), hexp2(a.y)}; }

__forceinline__ bool __heq(__half a, __half b) { return float(a) == float(b); }
__forceinline__ bool __hne(__half a, __half b) { return float(a) != float(b); }
__forceinline__ bool __hlt(__half a, __half b) { return float(a) < float(b); }
__forceinline__ bool __hle(__half a, __half b) { return float(a) <= float(b); }
__forceinline__ bool __hgt(__half a, __half b) { return float(a) > float(b); }
__forceinline__ bool __hge(__half a, __half b) { return float(a) >= float(b); }
__forceinline__ bool __hisnan(__half a) { return __builtin_isnan(float(a)); }

__forceinline__ __half operator+(__half a, __half b) { return __hadd(a, b); }
__forceinline__ __half operator-(__half a, __half b) { return __hsub(a, b); }
__forceinline__ __half operator*(__half a, __half b) { return __hmul(a, b); }
__forceinline__ __half operator/(__half a, __half b) { return __hdiv(a, b); }
__forceinline__ __half2 operator+(__half2 a, __half2 b) { return __hadd2(a, b); }
__forceinline__ __half2 operator-(__half2 a, __half2 b) { return __hsub2(a, b); }
__forceinline__ __half2 operator*(__half2 a, __half2 b) { return __hmul2(a, b); }

__forceinline__ __half2 atomicAdd(__half2* address, __half2 value) {
    return emulated::bits_as<__half2>(emulated_atomic_add_half2(address, emulated::bits_as<unsigned>(value)));
}
