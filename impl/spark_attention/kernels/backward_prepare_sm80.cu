// Before the backward: delta = rowsum(dout * out) beside the log-sum-exp, and dq = 0 where a whole tile of
// queries sees no key and so the backward never comes by.
//
// A block holds kBlockRows query rows, 16 per warp. delta is the diagonal of out dout^T by the same instructions, in
// the same order over head_dim, that give the backward's dout v^T: for a row with one key, where out = v, their
// difference is exactly 0. Global memory binds: both tiles are asked for at once, in whole rows.
#include "attention/tiles_sm80.cuh"
#include "backward_arguments.cuh"
#include "math.cuh"

constexpr int kThreads = kBlockRows / 16 * 32;

extern "C" __global__ void __launch_bounds__(kThreads) spark_attention_backward_prepare_sm80(PREPARE_PARAMETERS) {
    const int tiles = (seqlen_q + kBlockRows - 1) / kBlockRows;
    const long long batch_head = blockIdx.x / tiles;
    const int first_row = blockIdx.x % tiles * kBlockRows;
    const long long batch = batch_head / num_heads, head = batch_head % num_heads;
    const int lane = threadIdx.x % 32;
    const int warp_row = threadIdx.x / 32 * 16;

    extern __shared__ __align__(128) unsigned char shared_memory[];
    Element* out_tile = reinterpret_cast<Element*>(shared_memory);
    Element* dout_tile = out_tile + kBlockRows * PADDED_DIM;
    out += batch * out_batch_stride + head * out_head_stride + first_row * out_row_stride;
    dout += batch * dout_batch_stride + head * dout_head_stride + first_row * dout_row_stride;
    load_tile<kBlockRows, kThreads>(out_tile, thread_chunk(out, out_row_stride), out_row_stride, seqlen_q - first_row,
                                    head_dim);
    load_tile<kBlockRows, kThreads>(dout_tile, thread_chunk(dout, dout_row_stride), dout_row_stride,
                                    seqlen_q - first_row, head_dim);
    copy_async_wait<0>();
    __syncthreads();
    float products[1][2][4];  // rows 0..15 of out with rows 0..7 and with rows 8..15 of dout
    multiply_transposed<4>(products, out_tile + warp_row * PADDED_DIM, dout_tile + warp_row * PADDED_DIM,
                           rows_first_offset(lane), chunks_first_offset(lane));
    // The diagonals lie in the lanes whose row, lane / 4, is one of their two columns.
    if (lane / 8 == lane % 4) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + warp_row + half * 8 + lane / 4;
            const float row_lse = row < seqlen_q ? lse[batch_head * seqlen_q + row] : -infinity();
            const bool takes_part = row_lse != -infinity();
            float2 statistic;
            statistic.x = takes_part ? row_lse * LSE_FACTOR : infinity();
            statistic.y = takes_part ? products[0][half][half * 2 + lane / 4 % 2] : 0.0f;
            statistics[batch_head * tiles * kBlockRows + row] = statistic;
        }
    }

    const int last_row = min(first_row + kBlockRows, seqlen_q) - 1;
    if (visible_keys(last_row, seqlen_k, causal_offset) == 0) {
        dq += (batch_head * seqlen_q + first_row) * head_dim;
        for (int i = threadIdx.x; i < (last_row - first_row + 1) * head_dim; i += kThreads) dq[i] = 0;
    }
}
