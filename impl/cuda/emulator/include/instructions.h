// The instructions that impl/cuda/include/*.cuh wraps, by the wrappers' names. PTX ISA, "mma", "ldmatrix", "cp.async",
// "mbarrier", "wgmma".
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

__forceinline__ void mma_sp_m16n8k32_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[4],
                                         unsigned metadata, int selector) {
    emulated_mma_sp_m16n8k32(d, a, b, metadata, selector);
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

__forceinline__ void mbarrier_init(unsigned long long* barrier, unsigned arrivals) {
    emulated_mbarrier_init(barrier, arrivals);
}
__forceinline__ void mbarrier_arrive(unsigned long long* barrier, unsigned bytes) {
    emulated_mbarrier_arrive(barrier, bytes);
}
__forceinline__ void mbarrier_wait(unsigned long long* barrier, unsigned parity) {
    emulated_mbarrier_wait(barrier, parity);
}
__forceinline__ void tma_load(void* shared, const void* map, unsigned long long* barrier, int column, int row, int head,
                              int batch) {
    emulated_tma_load(shared, map, barrier, column, row, head, batch);
}
__forceinline__ void bulk_load(void* shared, const void* global, unsigned bytes, unsigned long long* barrier) {
    emulated_bulk_load(shared, global, bytes, barrier);
}
__forceinline__ void bulk_store(void* global, const void* shared, unsigned bytes) {
    emulated_bulk_store(global, shared, bytes, false);
}
__forceinline__ void bulk_add(float* global, const float* shared, unsigned bytes) {
    emulated_bulk_store(global, shared, bytes, true);
}
__forceinline__ void bulk_commit() { emulated_bulk_commit(); }
__forceinline__ void bulk_wait() { emulated_bulk_wait(); }

__forceinline__ void wgmma_fence() { emulated_wgmma_fence(); }
__forceinline__ void wgmma_commit() { emulated_wgmma_commit(); }
__forceinline__ void wgmma_wait(int pending) { emulated_wgmma_wait(pending); }

#define EMULATED_WGMMA(type, bfloat16)                                                                               \
    template <int REGISTERS>                                                                                         \
    __forceinline__ void wgmma_shared_##type(float (&d)[REGISTERS], unsigned long long a, unsigned long long b,      \
                                             bool accumulate) {                                                      \
        emulated_wgmma(d, 2 * REGISTERS, nullptr, a, b, false, false, accumulate, bfloat16);                         \
    }                                                                                                                \
    template <int REGISTERS>                                                                                         \
    __forceinline__ void wgmma_transposed_##type(float (&d)[REGISTERS], unsigned long long a, unsigned long long b,  \
                                                 bool accumulate) {                                                  \
        emulated_wgmma(d, 2 * REGISTERS, nullptr, a, b, true, true, accumulate, bfloat16);                           \
    }                                                                                                                \
    template <int REGISTERS>                                                                                         \
    __forceinline__ void wgmma_registers_##type(float (&d)[REGISTERS], const unsigned (&a)[4], unsigned long long b, \
                                                bool accumulate) {                                                   \
        emulated_wgmma(d, 2 * REGISTERS, a, 0, b, false, true, accumulate, bfloat16);                                \
    }
EMULATED_WGMMA(f16, false)
EMULATED_WGMMA(bf16, true)
#undef EMULATED_WGMMA

template <int REGISTERS>
__forceinline__ void wgmma_sparse_f16(float (&d)[REGISTERS], const unsigned (&a)[4], unsigned long long b,
                                      unsigned metadata, int selector) {
    emulated_wgmma_sparse(d, 2 * REGISTERS, a, b, metadata, selector);
}

}  // namespace emulated
