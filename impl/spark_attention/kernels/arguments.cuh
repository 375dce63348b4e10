// What every forward kernel takes, in this order (forward.py passes it), and how a block finds its work.
//
// Tensors as in attention/tensors.cuh; lse is contiguous [batch, heads, seqlen_q], natural logarithm. The grid is
// (query tiles, num_heads, batch).
#pragma once
#include "attention/tensors.cuh"

#define FORWARD_PARAMETERS                                                                                            \
    const Element *__restrict__ q, const Element *__restrict__ k, const Element *__restrict__ v,                      \
        Element *__restrict__ out, float *__restrict__ lse, long long q_batch_stride, long long q_head_stride,        \
        long long q_row_stride, long long k_batch_stride, long long k_head_stride, long long k_row_stride,            \
        long long v_batch_stride, long long v_head_stride, long long v_row_stride, long long out_batch_stride,        \
        long long out_head_stride, long long out_row_stride, int seqlen_q, int seqlen_k, int head_dim, int num_heads, \
        int group, int causal_offset, float softmax_scale

// The block's query tile. Tiles are taken from the last to the first, since under a causal mask the last ones
// have most work and should not be left for the end of the grid.
struct Tile {
    int first_row, head, batch;
};

__device__ __forceinline__ Tile locate_tile(int rows) {
    return {static_cast<int>(gridDim.x - 1 - blockIdx.x) * rows, static_cast<int>(blockIdx.y),
            static_cast<int>(blockIdx.z)};
}
