// What every backward kernel takes, in this order (backward_sm70.py passes it).
//
// Tensors are [batch, heads, seqlen, head_dim] of 16-bit elements with any strides, counted in elements, but a last one
// of 1; dq, dk and dv are contiguous. lse (natural logarithm, as the forward wrote it) and delta, the dot products of
// the rows of dout and out, are contiguous [batch, heads, seqlen_q]. `group` query heads share one key-value head.
#pragma once
#include "arguments.cuh"

#define BACKWARD_PARAMETERS                                                                                           \
    const Element *__restrict__ dout, const Element *__restrict__ q, const Element *__restrict__ k,                   \
        const Element *__restrict__ v, const Element *__restrict__ out, const float *__restrict__ lse,                \
        float *__restrict__ delta, Element *__restrict__ dq, Element *__restrict__ dk, Element *__restrict__ dv,      \
        long long dout_batch_stride, long long dout_head_stride, long long dout_row_stride, long long q_batch_stride, \
        long long q_head_stride, long long q_row_stride, long long k_batch_stride, long long k_head_stride,           \
        long long k_row_stride, long long v_batch_stride, long long v_head_stride, long long v_row_stride,            \
        long long out_batch_stride, long long out_head_stride, long long out_row_stride, int seqlen_q, int seqlen_k,  \
        int head_dim, int num_heads, int group, int causal_offset, float softmax_scale
