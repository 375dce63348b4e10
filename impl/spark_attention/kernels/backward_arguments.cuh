// What the two backward kernels share: the scratch between them (backward_sm80.py allocates it) and its shapes.
//
// dq, dk and dv are contiguous; the other tensors as in arguments.cuh. Query rows are cut into tiles of kBlockRows.
//   statistics  float2 [batch, heads, query tiles * kBlockRows]: lse (+inf for a row that takes no part) and delta
//   partial_dq  float [batch, heads, query tiles, warps, 1024]: sums over the key blocks so far, as fragments
//   semaphores  int: a ticket counter, then for each [batch, heads, query tiles] how many key blocks are
//               summed; all start at 0
#pragma once
#include "arguments.cuh"

constexpr int kBlockRows = BLOCK_ROWS;

#define PREPARE_PARAMETERS                                                                                            \
    const Element *__restrict__ out, const Element *__restrict__ dout, const float *__restrict__ lse,                 \
        Element *__restrict__ dq, float2 *__restrict__ statistics, long long out_batch_stride,                        \
        long long out_head_stride, long long out_row_stride, long long dout_batch_stride, long long dout_head_stride, \
        long long dout_row_stride, int seqlen_q, int seqlen_k, int head_dim, int num_heads, int causal_offset

#define BACKWARD_PARAMETERS                                                                                          \
    const Element *__restrict__ q, const Element *__restrict__ k, const Element *__restrict__ v,                     \
        const Element *__restrict__ dout, const float2 *__restrict__ statistics, float *partial_dq, int *semaphores, \
        Element *__restrict__ dq, Element *__restrict__ dk, Element *__restrict__ dv, long long q_batch_stride,      \
        long long q_head_stride, long long q_row_stride, long long k_batch_stride, long long k_head_stride,          \
        long long k_row_stride, long long v_batch_stride, long long v_head_stride, long long v_row_stride,           \
        long long dout_batch_stride, long long dout_head_stride, long long dout_row_stride, int seqlen_q,            \
        int seqlen_k, int head_dim, int num_heads, int group, int batch, int causal_offset, float softmax_scale
