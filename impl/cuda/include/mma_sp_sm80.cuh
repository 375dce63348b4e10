// Products of a 2:4 sparse A (mma.sp, sm_80): of each four neighbours in a row of A at most two are stored. PTX ISA,
// "Matrix Fragments for sparse mma.m16n8k32 with .f16 and .bf16 types".
#pragma once

// d += a b for a 16x32 (row-major, two of each four stored), b 32x8 (column-major), fp16 operands, fp32 sums.
//
// Register i of lane l has the two stored elements of row l / 4 + i % 2 * 8 and group l % 4 + i / 2 * 4 of four
// columns, the left one low. b and d lie as in two steps of mma.m16n8k16. `metadata` has four bits for each group: the
// places of the two elements in it, the left one's lower and smaller. Lanes SELECTOR * 2 and SELECTOR * 2 + 1 of each
// four are read: the first one's has groups 0 to 3 of row l / 4 from bit 0, of row l / 4 + 8 from bit 16; the second
// one's groups 4 to 7 likewise.
template <int SELECTOR>
__device__ __forceinline__ void mma_sp_m16n8k32_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[4],
                                                    unsigned metadata) {
#ifdef VOLTABENCH_EMULATED
    emulated::mma_sp_m16n8k32_f16(d, a, b, metadata, SELECTOR);
#else
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(metadata),
          "n"(SELECTOR));
#endif
}
