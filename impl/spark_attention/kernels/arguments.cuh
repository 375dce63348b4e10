// What every forward kernel takes, in this order (geometry.py passes it), and how a block finds its work.
//
// Tensors are [batch, heads, seqlen, head_dim] of 16-bit elements with any strides, counted in elements, but a
// last one of 1; lse is contiguous [batch, heads, seqlen_q], natural logarithm. `group` query heads share one
// key-value head. The grid is (query tiles, num_heads, batch).
#pragma once

typedef unsigned short Element;

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

// How many keys query row `row` sees, from key 0 on. The caller passes causal_offset = seqlen_k - seqlen_q for a
// causal mask aligned bottom-right, and seqlen_k for no mask.
__device__ __forceinline__ int visible_keys(int row, int seqlen_k, int causal_offset) {
    const int visible = row + 1 + causal_offset;
    return visible < 0 ? 0 : visible < seqlen_k ? visible : seqlen_k;
}
