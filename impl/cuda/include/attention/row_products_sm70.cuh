// delta = rowsum(dout * out), as the diagonal of dout out^T.
#pragma once
#include "products_sm70.cuh"

// Writes delta of the warp's rows, of the BLOCK_ROWS of its block. All threads of the block come here; `buffer` holds
// BLOCK_N rows.
template <int BLOCK_ROWS>
__device__ __forceinline__ void compute_delta(float* delta, const uint4* warp_dout_tile, uint4* buffer,
                                              const Rows& out_rows, int tile_row, int warp_row_in_tile, int head_dim,
                                              int lane) {
    StagedTile staged;
    for (int row = 0; row < BLOCK_ROWS; row += BLOCK_N) {
        staged.fetch(out_rows, tile_row + row, head_dim);
        staged.store(buffer);
        __syncthreads();
        const int own = warp_row_in_tile - row;
        if (own >= 0 && own < BLOCK_N) {
            float products[kRowTiles][kRowTiles][8] = {};
            multiply_nt(products, warp_dout_tile, buffer + own * kChunks, lane);
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const int in_tile = warp_row(lane, lane_row_of(i));
                    const int query = tile_row + warp_row_in_tile + m * 16 + in_tile;
                    if (in_tile == warp_column(lane, i) && query < out_rows.count) delta[query] = products[m][m][i];
                }
        }
        __syncthreads();
    }
}
