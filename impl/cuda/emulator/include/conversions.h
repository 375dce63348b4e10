// Conversions between floats and 16-bit formats, rounding to nearest even as the hardware does.
#pragma once

#include "keywords.h"

#if defined(__x86_64__)
typedef _Float16 emulated_half;
#else
typedef __fp16 emulated_half;
#endif

namespace emulated {

template <class To, class From>
__forceinline__ To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    __builtin_memcpy(&result, &value, sizeof(To));
    return result;
}

__forceinline__ unsigned short half_bits(float x) { return bits_as<unsigned short>(static_cast<emulated_half>(x)); }

__forceinline__ float half_value(unsigned short bits) { return static_cast<float>(bits_as<emulated_half>(bits)); }

// Double to fp16 with one rounding: to float by rounding to odd, which keeps what the last rounding needs to know.
__forceinline__ unsigned short half_bits(double x) {
    unsigned long long bits = bits_as<unsigned long long>(x);
    const unsigned long long lost = (1ull << 29) - 1;
    if (x == x && (bits & lost)) bits = (bits & ~lost) | (1ull << 29);
    return half_bits(static_cast<float>(bits_as<double>(bits)));
}

__forceinline__ unsigned short bfloat16_bits(float x) {
    const unsigned bits = bits_as<unsigned>(x);
    if (x != x) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

__forceinline__ float bfloat16_value(unsigned short bits) { return bits_as<float>(static_cast<unsigned>(bits) << 16); }

__forceinline__ float flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x; }

}  // namespace emulated
