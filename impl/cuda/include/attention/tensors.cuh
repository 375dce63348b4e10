// What every attention kernel knows of its tensors: [batch, heads, seqlen, head_dim] of 16-bit elements with any
// strides, counted in elements, but a last one of 1. `group` query heads share one key-value head.
#pragma once
#include "half.cuh"

typedef unsigned short Element;  // bf16 where BFLOAT16 is 1, else fp16

// Two floats rounded to elements, `low` in the lower half.
__device__ __forceinline__ unsigned pack(float low, float high) {
#if BFLOAT16
    return pack_bf16(low, high);
#else
    return pack_f16(low, high);
#endif
}

// How many keys query row `row` sees, from key 0 on. The caller passes causal_offset = seqlen_k - seqlen_q for a
// causal mask aligned bottom-right, and seqlen_k for no mask.
__device__ __forceinline__ int visible_keys(int row, int seqlen_k, int causal_offset) {
    const int visible = row + 1 + causal_offset;
    return visible < 0 ? 0 : visible < seqlen_k ? visible : seqlen_k;
}
