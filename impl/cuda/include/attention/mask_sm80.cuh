// Scores that the causal mask or the end of the keys hides, in the accumulators of mma.m16n8: they become -inf.
#pragma once
#include "math.cuh"
#include "tensors.cuh"

// Rows are queries, `first_row` this lane's first; columns are keys from `key` on.
template <int M, int N>
__device__ __forceinline__ void mask_keys(float (&scores)[M][N][4], int first_row, int key, int seqlen_k,
                                          int causal_offset, int lane) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int visible = visible_keys(first_row + 16 * m + i / 2 * 8, seqlen_k, causal_offset);
            const int column = visible - key - lane % 4 * 2 - i % 2;
#pragma unroll
            for (int n = 0; n < N; ++n)
                if (n * 8 >= column) scores[m][n][i] = -infinity();
        }
}

// Rows are keys, `first_key` this lane's first; columns are queries from `row` on.
template <int M, int N>
__device__ __forceinline__ void mask_queries(float (&scores)[M][N][4], int first_key, int row, int seqlen_k,
                                             int causal_offset, int lane) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int key = first_key + m * 16 + i / 2 * 8;
            const int hidden_rows = key < seqlen_k ? key - causal_offset - row : N * 8;
#pragma unroll
            for (int n = 0; n < N; ++n)
                if (n * 8 + lane % 4 * 2 + i % 2 < hidden_rows) scores[m][n][i] = -infinity();
        }
}
