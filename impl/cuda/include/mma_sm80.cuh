// Tensor Core operands and products of sm_80: ldmatrix, mma.m16n8k16 with fp32 accumulators.
// Fragment layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16".
#pragma once
#include "half.cuh"
#include "shared_address.cuh"

// Loads four 8x8 matrices of 16-bit elements. Lane l gives the shared address of row l % 8 of matrix l / 8;
// it receives, of each matrix, elements (l / 4, 2 * (l % 4)) and the next one of that row.
__device__ __forceinline__ void load_matrix_x4(unsigned (&fragment)[4], const void* shared_row) {
#ifdef VOLTABENCH_EMULATED
    emulated::load_matrix(fragment, shared_row, false);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared_row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(address)
                 : "memory");
#endif
}

// As load_matrix_x4, each matrix transposed, of the row OFFSET bytes beyond an address.
template <int OFFSET>
__device__ __forceinline__ void load_matrix_x4_transposed(unsigned (&fragment)[4], SharedAddress row) {
#ifdef VOLTABENCH_EMULATED
    emulated::load_matrix(fragment, row + OFFSET, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4 + %5];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(row), "n"(OFFSET)
                 : "memory");
#endif
}

__device__ __forceinline__ void load_matrix_x4_transposed(unsigned (&fragment)[4], const void* shared_row) {
    load_matrix_x4_transposed<0>(fragment, shared_address(shared_row));
}

// d += a b for a 16x16 (row-major), b 16x8 (column-major), fp16 operands.
__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifdef VOLTABENCH_EMULATED
    emulated::mma_m16n8k16_f16(d, a, b0, b1);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// As mma_m16n8k16_f16 for bf16 operands.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifdef VOLTABENCH_EMULATED
    emulated::mma_m16n8k16_bf16(d, a, b0, b1);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// d += a b for a 16x8 (row-major), b 8x8 (column-major), fp16 operands.
__device__ __forceinline__ void mma_m16n8k8_f16(float (&d)[4], const unsigned (&a)[2], unsigned b) {
#ifdef VOLTABENCH_EMULATED
    emulated::mma_m16n8k8_f16(d, a, b);
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
#endif
}
