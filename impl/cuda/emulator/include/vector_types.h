// CUDA's vector types. They stay plain aggregates, as CUDA's are; the compile options keep a copy of one a single
// memory access of its full width.
#pragma once

#include "keywords.h"

#define EMULATED_VECTOR2(name, type, alignment) \
    struct __align__(alignment) name {          \
        type x, y;                              \
    };                                          \
    __forceinline__ name make_##name(type x, type y) { return {x, y}; }
#define EMULATED_VECTOR4(name, type, alignment) \
    struct __align__(alignment) name {          \
        type x, y, z, w;                        \
    };                                          \
    __forceinline__ name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }

EMULATED_VECTOR2(short2, short, 4)
EMULATED_VECTOR2(ushort2, unsigned short, 4)
EMULATED_VECTOR2(int2, int, 8)
EMULATED_VECTOR2(uint2, unsigned, 8)
EMULATED_VECTOR2(float2, float, 8)
EMULATED_VECTOR2(longlong2, long long, 16)
EMULATED_VECTOR2(ulonglong2, unsigned long long, 16)
EMULATED_VECTOR2(double2, double, 16)
EMULATED_VECTOR4(short4, short, 8)
EMULATED_VECTOR4(ushort4, unsigned short, 8)
EMULATED_VECTOR4(uchar4, unsigned char, 4)
EMULATED_VECTOR4(int4, int, 16)
EMULATED_VECTOR4(uint4, unsigned, 16)
EMULATED_VECTOR4(float4, float, 16)
#undef EMULATED_VECTOR2
#undef EMULATED_VECTOR4

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
};
