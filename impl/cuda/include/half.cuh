// Pairs of 16-bit floats in one register.
#pragma once

// What pack_f16_scaled multiplies by: the difference of the exponents' biases.
constexpr int kF16BiasLog2 = 112;

// 2^kF16BiasLog2 times two floats from 0 up to 2^-97, rounded to fp16 (halves up), `low` in the lower half. The bits of
// such floats, shifted, are those of fp16; results below 2^-14 must be 0 already, as exp2_fast leaves them. On Volta a
// conversion takes the unit of the exponentials, and this integer instructions only.
__device__ __forceinline__ unsigned pack_f16_scaled(float low, float high) {
    constexpr unsigned kHalf = 1 << 12;  // of the last bit that fp16 keeps
    return (__float_as_int(low) + kHalf) >> 13 | ((__float_as_int(high) + kHalf) << 3 & 0xffff0000u);
}

// Two floats rounded to fp16, `low` in the lower half.
__device__ __forceinline__ unsigned pack_f16(float low, float high) {
#ifdef VOLTABENCH_EMULATED
    return emulated::pack_f16(low, high);
#else
    unsigned packed;
#    if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#    else
    asm("{\n.reg .f16 low, high;\ncvt.rn.f16.f32 low, %1;\ncvt.rn.f16.f32 high, %2;\nmov.b32 %0, {low, high};\n}"
        : "=r"(packed)
        : "f"(low), "f"(high));
#    endif
    return packed;
#endif
}

// The fp16 number in the lower half.
__device__ __forceinline__ float low_f16(unsigned packed) {
#ifdef VOLTABENCH_EMULATED
    return emulated::half_value(packed & 0xffff);
#else
    float value;
    asm("{\n.reg .f16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}" : "=f"(value) : "r"(packed));
    return value;
#endif
}

// The fp16 number in the upper half.
__device__ __forceinline__ float high_f16(unsigned packed) {
#ifdef VOLTABENCH_EMULATED
    return emulated::half_value(packed >> 16);
#else
    float value;
    asm("{\n.reg .f16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, high;\n}" : "=f"(value) : "r"(packed));
    return value;
#endif
}

// Two floats rounded to bf16, `low` in the lower half (sm_80).
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
#ifdef VOLTABENCH_EMULATED
    return emulated::pack_bf16(low, high);
#else
    unsigned packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#endif
}
