// Fast arithmetic that plain C++ lacks.
#pragma once

__device__ __forceinline__ float infinity() {
    return __int_as_float(0x7f800000);
}

// 2^x on the special function unit (ex2.approx, 2 ulp); 0 for -inf.
__device__ __forceinline__ float exp2_fast(float x) {
#ifdef VOLTABENCH_EMULATED
    return emulated::exp2_fast(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// log2 x (lg2.approx); -inf for 0.
__device__ __forceinline__ float log2_fast(float x) {
#ifdef VOLTABENCH_EMULATED
    return emulated::log2_fast(x);
#else
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// 1 / x (rcp.approx, 1 ulp).
__device__ __forceinline__ float reciprocal_fast(float x) {
#ifdef VOLTABENCH_EMULATED
    return emulated::reciprocal_fast(x);
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}
