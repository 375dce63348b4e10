// Reductions over a row of an accumulator of mma.m16n8 or wgmma, which four neighbouring lanes hold.
#pragma once

__device__ __forceinline__ float row_maximum(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float row_total(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
