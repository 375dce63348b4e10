// The instructions that impl/cuda/include/*.cuh wraps, by the wrappers' names. PTX ISA, "mma", "ldmatrix", "cp.async".
#pragma once

#include "conversions.h"
#include "runtime_calls.h"

__forceinline__ size_t __cvta_generic_to_shared(const void* shared) { return emulated_shared_address(shared); }

namespace emulated {

// Special function unit; .ftz takes and gives zero for subnormal numbers.
__forceinline__ float exp2_fast(float x) {
    emulated_count_mufu();
    return flush(__builtin_exp2f(flush(x)));
}

__forceinline__ float log2_fast(float x) {
    emulated_count_mufu();
    return __builtin_log2f(flush(x));
}
__forceinline__ float reciprocal_fast(float x) {
    emulated_count_mufu();
    return flush(1.0f / flush(x));
}

__forceinline__ unsigned pack_f16(float low, float high) {
    return half_bits(low) | static_cast<unsigned>(half_bits(high)) << 16;
}
__forceinline__ unsigned pack_bf16(float low, float high) {
    return bfloat16_bits(low) | static_cast<unsigned>(bfloat16_bits(high)) << 16;
}

// d += a b on the four 8x8x4 products of a warp, with fp32 accumulators, or fp16 ones, two to a register.
#define EMULATED_M8N8K4(name, a_column, b_row)                                                    \
    __forceinline__ void name(float (&d)[8], const unsigned (&a)[2], const unsigned (&b)[2]) {    \
        emulated_mma_m8n8k4(d, a, b, a_column, b_row, true);                                      \
    }                                                                                             \
    __forceinline__ void name(unsigned (&d)[4], const unsigned (&a)[2], const unsigned (&b)[2]) { \
        emulated_mma_m8n8k4(d, a, b, a_column, b_row, false);                                     \
    }
EMULATED_M8N8K4(mma_m8n8k4_row_col, false, false)
EMULATED_M8N8K4(mma_m8n8k4_row_row, false, true)
EMULATED_M8N8K4(mma_m8n8k4_col_col, true, false)
EMULATED_M8N8K4(mma_m8n8k4_col_row, true, true)
#undef EMULATED_M8N8K4

__forceinline__ void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const unsigned b[2] = {b0, b1};
    emulated_mma_m16n8k16(d, a, b, false);
}
__forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const unsigned b[2] = {b0, b1};
    emulated_mma_m16n8k16(d, a, b, true);
}
__forceinline__ void mma_m16n8k8_f16(float (&d)[4], const unsigned (&a)[2], unsigned b) {
    emulated_mma_m16n8k8(d, a, &b);
}

// MATRICES 8x8 matrices of 16-bit elements, 1, 2 or 4; lane l gives the address of row l % 8 of matrix l / 8.
template <int MATRICES>
__forceinline__ void load_matrix(unsigned (&fragment)[MATRICES], const void* shared_row, bool transposed) {
    emulated_load_matrix(fragment, MATRICES, shared_row, transposed);
}

__forceinline__ void copy_async_16(void* shared, const void* global, bool valid) {
    emulated_copy_async(shared, global, 16, valid ? 16 : 0);
}
__forceinline__ void copy_async_commit() { emulated_copy_async_commit(); }
__forceinline__ void copy_async_wait(int pending) { emulated_copy_async_wait(pending); }

// Barriers 1 to 15, of `threads` threads in whole warps.
__forceinline__ void named_barrier_sync(int barrier, int threads) { emulated_named_barrier(barrier, threads, true); }
__forceinline__ void named_barrier_arrive(int barrier, int threads) { emulated_named_barrier(barrier, threads, false); }

}  // namespace emulated
