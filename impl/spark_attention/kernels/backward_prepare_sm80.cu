// Before the backward: delta = rowsum(dout * out) beside the log-sum-exp, and dq = 0 where a whole tile of
// queries sees no key and so the backward never comes by.
//
// A block holds kBlockRows query rows, 16 per warp (attention/row_products_sm80.cuh). Bound by global memory; 40 to 48
// registers, no shared memory.
#include "attention/row_products_sm80.cuh"
#include "backward_arguments.cuh"
#include "math.cuh"

constexpr int kThreads = kBlockRows / 16 * 32;

extern "C" __global__ void __launch_bounds__(kThreads) spark_attention_backward_prepare_sm80(PREPARE_PARAMETERS) {
    const int tiles = (seqlen_q + kBlockRows - 1) / kBlockRows;
    const long long batch_head = blockIdx.x / tiles;
    const int first_row = blockIdx.x % tiles * kBlockRows;
    const long long batch = batch_head / num_heads, head = batch_head % num_heads;
    const int lane = threadIdx.x % 32;
    const int warp_row = first_row + threadIdx.x / 32 * 16;

    float delta[2];
    row_products(delta, out + batch * out_batch_stride + head * out_head_stride + warp_row * out_row_stride,
                 out_row_stride,
                 dout + batch * dout_batch_stride + head * dout_head_stride + warp_row * dout_row_stride,
                 dout_row_stride, seqlen_q - warp_row, head_dim, lane);
    if (lane / 8 == lane % 4) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = warp_row + half * 8 + lane / 4;
            const bool takes_part = row < seqlen_q && visible_keys(row, seqlen_k, causal_offset) > 0;
            float2 statistic;
            statistic.x = takes_part ? lse[batch_head * seqlen_q + row] * LSE_FACTOR : infinity();
            statistic.y = takes_part ? delta[half] : 0.0f;
            statistics[batch_head * tiles * kBlockRows + row] = statistic;
        }
    }

    const int last_row = min(first_row + kBlockRows, seqlen_q) - 1;
    if (visible_keys(last_row, seqlen_k, causal_offset) == 0) {
        dq += (batch_head * seqlen_q + first_row) * head_dim;
        for (int i = threadIdx.x; i < (last_row - first_row + 1) * head_dim; i += kThreads) dq[i] = 0;
    }
}
