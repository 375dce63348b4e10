// Scores that the causal mask or the end of the keys hides, in a warp's tiles of products_sm70.cuh.
#pragma once
#include "math.cuh"
#include "probabilities_sm70.cuh"
#include "tensors.cuh"

// Rows are queries from `first_row` on, columns keys from `key` on: those a row does not see become -inf.
template <int TILES>
__device__ __forceinline__ void mask_keys(float (&scores)[kRowTiles][TILES][8], int first_row, int key, int seqlen_k,
                                          int causal_offset, int lane) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int row = first_row + m * 16 + warp_row(lane, lane_row_of(i));
            const int visible = visible_keys(row, seqlen_k, causal_offset) - key - warp_column(lane, i);
#pragma unroll
            for (int n = 0; n < TILES; ++n)
                if (n * 16 >= visible) scores[m][n][i] = -infinity();
        }
}

// Rows are keys from `first_key` on, columns queries from `query` on: those that do not see the row's key become -inf.
// Keys past the last need no mask, their rows are never written.
template <int TILES>
__device__ __forceinline__ void mask_queries(float (&scores)[kRowTiles][TILES][8], int first_key, int query,
                                             int causal_offset, int lane) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int key = first_key + m * 16 + warp_row(lane, lane_row_of(i));
            const int first_to_see = key - causal_offset - query - warp_column(lane, i);
#pragma unroll
            for (int n = 0; n < TILES; ++n)
                if (n * 16 < first_to_see) scores[m][n][i] = -infinity();
        }
}
