// A mask and dropout (extras.cuh) on a warp's scores, which lie as mma.m16n8k16 leaves them: (m, n, i) is row
// 16 m + 8 (i / 2) + lane / 4, column 8 n + 2 (lane % 4) + i % 2. TRANSPOSED: rows are keys and columns queries, else
// the other way round.
#pragma once
#include "extras.cuh"
#include "registers.cuh"

template <bool TRANSPOSED, int M, int N>
__device__ __forceinline__ void apply_mask(float (&scores)[M][N][4], const Mask& mask, float softmax_scale,
                                           int first_row, int first_column, int lane) {
#if MASK
#    pragma unroll
    for (int n = 0; n < N; ++n) {
        forget_origin(lane);  // addresses would be kept from tile to tile
#    pragma unroll
        for (int m = 0; m < M; ++m)
#    pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = first_row + m * 16 + i / 2 * 8 + lane / 4;
                const int column = first_column + n * 8 + lane % 4 * 2 + i % 2;
                float& score = scores[m][n][i];
                score = mask.apply(score, softmax_scale, TRANSPOSED ? column : row, TRANSPOSED ? row : column);
            }
    }
#endif
}

// Whether `kept` has the bit of scores[m][n][i].
__device__ __forceinline__ bool is_kept(unsigned kept, int m, int n, int i) {
    return kept >> (m * 16 + n * 4 + i) & 1;
}

template <int M, int N>
__device__ __forceinline__ void drop(float (&p)[M][N][4], unsigned kept) {
#if DROPOUT
#    pragma unroll
    for (int m = 0; m < M; ++m)
#    pragma unroll
        for (int n = 0; n < N; ++n)
#    pragma unroll
            for (int i = 0; i < 4; ++i)
                if (!is_kept(kept, m, n, i)) p[m][n][i] = 0.0f;
#endif
}

// Which of 32 by 32 scores dropout keeps, in one register, for want of others beside the scores.
template <bool TRANSPOSED>
__device__ __forceinline__ unsigned kept_scores(const Dropout& dropout, int first_row, int first_column, int lane) {
#if DROPOUT
    unsigned kept = 0;
#    pragma unroll
    for (int call = 0; call < 4; ++call) {
        forget_origin(lane);
        // The other bit of m or n, what lies 8 or 16 rows or columns apart, is in one call's bits.
        const int tile = call / 2, odd = call % 2;
        const int row = first_row + lane / 4 + (TRANSPOSED ? 0 : tile * 16);
        const int column = first_column + lane % 4 * 2 + odd + (TRANSPOSED ? tile * 16 : 0);
        const uint4 bits = TRANSPOSED ? dropout.bits(column, row) : dropout.bits(row, column);
#    pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int eighth_row = i / 4, eighth_column = i % 4;  // of queries, of keys
            const int m = TRANSPOSED ? eighth_column / 2 : tile, n = TRANSPOSED ? tile * 2 + eighth_row : eighth_column;
            const int half = TRANSPOSED ? eighth_column % 2 : eighth_row;
            if (dropout.keeps(bits, eighth_row, eighth_column)) kept |= 1u << (m * 16 + n * 4 + half * 2 + odd);
        }
    }
    return kept;
#else
    return 0xffffffffu;
#endif
}
