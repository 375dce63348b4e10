// What the block-sparse kernels take, in the order in which attention.py passes it.
//
// Tensors as in attention/tensors.cuh, one seqlen for queries and keys; out, dq, dk and dv are contiguous, lse and
// statistics float [batch, heads, seqlen] and float2 [batch, heads, blocks * BLOCK]: lse (+inf for a row that takes no
// part) and delta; for Hopper of 64 rows all lse, to base 2, before all delta. `rows` and `columns` are the pattern's
// lists (block_lists.cuh). `lengths` [batch] or null: the keys of a sequence that count, from the first.
#pragma once
#include "attention/tensors.cuh"

#define SIZES                                                                                                    \
    int seqlen, int head_dim, int batch, int num_heads, int group, int patterns, int blocks, int heads_together, \
        int causal, float softmax_scale

#define SIZE_ARGUMENTS \
    seqlen, head_dim, batch, num_heads, group, patterns, blocks, heads_together, causal, softmax_scale

#define FORWARD_PARAMETERS                                                                                          \
    const Element *__restrict__ q, const Element *__restrict__ k, const Element *__restrict__ v,                    \
        Element *__restrict__ out, float *__restrict__ lse, const int *__restrict__ rows,                           \
        const int *__restrict__ lengths, long long q_batch_stride, long long q_head_stride, long long q_row_stride, \
        long long k_batch_stride, long long k_head_stride, long long k_row_stride, long long v_batch_stride,        \
        long long v_head_stride, long long v_row_stride, int pruned_as_zero, SIZES

#define DQ_PARAMETERS                                                                                               \
    const Element *__restrict__ q, const Element *__restrict__ k, const Element *__restrict__ v,                    \
        const Element *__restrict__ dout, const Element *__restrict__ out, const float *__restrict__ lse,           \
        float2 *__restrict__ statistics, Element *__restrict__ dq, const int *__restrict__ rows,                    \
        const int *__restrict__ lengths, long long q_batch_stride, long long q_head_stride, long long q_row_stride, \
        long long k_batch_stride, long long k_head_stride, long long k_row_stride, long long v_batch_stride,        \
        long long v_head_stride, long long v_row_stride, long long dout_batch_stride, long long dout_head_stride,   \
        long long dout_row_stride, SIZES

#define DKDV_PARAMETERS                                                                                             \
    const Element *__restrict__ q, const Element *__restrict__ k, const Element *__restrict__ v,                    \
        const Element *__restrict__ dout, const float2 *__restrict__ statistics, Element *__restrict__ dk,          \
        Element *__restrict__ dv, const int *__restrict__ columns, const int *__restrict__ lengths,                 \
        long long q_batch_stride, long long q_head_stride, long long q_row_stride, long long k_batch_stride,        \
        long long k_head_stride, long long k_row_stride, long long v_batch_stride, long long v_head_stride,         \
        long long v_row_stride, long long dout_batch_stride, long long dout_head_stride, long long dout_row_stride, \
        SIZES

// How many keys of sequence `batch` count.
__device__ __forceinline__ int key_count(const int* lengths, int batch, int seqlen) {
    return lengths ? min(max(lengths[batch], 0), seqlen) : seqlen;
}
