// Tensor Core products of sm_70, Volta's only tensor instruction: mma.m8n8k4 on fp16 operands.
//
// One warp instruction is four independent products d += a b of 8x4 by 4x8, one per quad-pair: quad-pair q is lanes
// 4q..4q+3 and 16+4q..16+4q+3. With T = lane % 4 + 4 * (lane / 16), the lane's place in its quad-pair, and V the
// index of an element in the lane's registers (PTX ISA, "Matrix Fragments for mma.m8n8k4"):
//   a, row-major      a[m = T][k = V]
//   a, column-major   a[m = 4 * (T / 4) + V][k = T % 4]
//   b, column-major   b[k = V][n = T]
//   b, row-major      b[k = T % 4][n = 4 * (T / 4) + V]
//   d in fp16         d[m = T][n = V]
//   d in fp32         d[m = lane % 2 + V & 2 + 4 * (T / 4)][n = lane & 2 + V & 1 + V & 4]
// An fp16 pair is one register, the element of even V in its lower half.
#pragma once

struct QuadPairLane {
    int pair;    // 0..3
    int member;  // T, 0..7
};

__device__ __forceinline__ QuadPairLane quad_pair_lane(int lane) {
    return {lane / 4 % 4, lane % 4 + lane / 16 * 4};
}

// mma_m8n8k4_<a>_<b>(d, a, b): d += a b, for the layouts <a> and <b> of its operands, row or col(umn)-major; with fp32
// accumulators, or fp16 ones, two to a register.
#define MMA_M8N8K4(name, a_layout, b_layout)                                                                 \
    __device__ __forceinline__ void name(float (&d)[8], const unsigned (&a)[2], const unsigned (&b)[2]) {    \
        MMA_M8N8K4_F32(a_layout, b_layout);                                                                  \
    }                                                                                                        \
    __device__ __forceinline__ void name(unsigned (&d)[4], const unsigned (&a)[2], const unsigned (&b)[2]) { \
        MMA_M8N8K4_F16(a_layout, b_layout);                                                                  \
    }

#ifdef VOLTABENCH_EMULATED
#    define MMA_M8N8K4_F32(a_layout, b_layout) emulated::mma_m8n8k4_##a_layout##_##b_layout(d, a, b)
#    define MMA_M8N8K4_F16(a_layout, b_layout) emulated::mma_m8n8k4_##a_layout##_##b_layout(d, a, b)
#else
#    define MMA_M8N8K4_F32(a_layout, b_layout)                                                                        \
        asm volatile("mma.sync.aligned.m8n8k4." #a_layout "." #b_layout                                               \
                     ".f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "                      \
                     "{%0, %1, %2, %3, %4, %5, %6, %7};"                                                              \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]) \
                     : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]))
#    define MMA_M8N8K4_F16(a_layout, b_layout)                                                  \
        asm volatile("mma.sync.aligned.m8n8k4." #a_layout "." #b_layout                         \
                     ".f16.f16.f16.f16 {%0, %1, %2, %3}, {%4, %5}, {%6, %7}, {%0, %1, %2, %3};" \
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                           \
                     : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]))
#endif

MMA_M8N8K4(mma_m8n8k4_row_col, row, col)
MMA_M8N8K4(mma_m8n8k4_row_row, row, row)
MMA_M8N8K4(mma_m8n8k4_col_col, col, col)
MMA_M8N8K4(mma_m8n8k4_col_row, col, row)
#undef MMA_M8N8K4
#undef MMA_M8N8K4_F32
#undef MMA_M8N8K4_F16
