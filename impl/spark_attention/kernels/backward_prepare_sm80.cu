// Before the backward: delta = rowsum(dout * out) beside the log-sum-exp, and dq = 0 where a whole tile of
// queries sees no key and so the backward never comes by.
//
// A block holds kBlockRows query rows, 16 per warp. delta is the diagonal of dout out^T by the same instructions, in
// the same order over head_dim, that give the backward's dout v^T: for a row with one key, where out = v, their
// difference is exactly 0. Fragments come straight from global memory, which this kernel is bound by; 40 to 48
// registers, no shared memory.
#include "attention/tiles_sm80.cuh"
#include "backward_arguments.cuh"
#include "math.cuh"

constexpr int kThreads = kBlockRows / 16 * 32;

// Two adjacent elements of a row, 0 past `columns`.
__device__ __forceinline__ unsigned load_pair(const Element* row, int column, int columns) {
#if ALIGNED
    return column < columns ? *reinterpret_cast<const unsigned*>(row + column) : 0;
#else
    const unsigned low = column < columns ? row[column] : 0, high = column + 1 < columns ? row[column + 1] : 0;
    return low | high << 16;
#endif
}

extern "C" __global__ void __launch_bounds__(kThreads) spark_attention_backward_prepare_sm80(PREPARE_PARAMETERS) {
    const int tiles = (seqlen_q + kBlockRows - 1) / kBlockRows;
    const long long batch_head = blockIdx.x / tiles;
    const int first_row = blockIdx.x % tiles * kBlockRows;
    const long long batch = batch_head / num_heads, head = batch_head % num_heads;
    const int lane = threadIdx.x % 32;
    const int warp_row = first_row + threadIdx.x / 32 * 16;

    const Element *out_rows[2], *dout_rows[2];
    int columns[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = warp_row + half * 8 + lane / 4;
        columns[half] = row < seqlen_q ? head_dim : 0;
        out_rows[half] = out + batch * out_batch_stride + head * out_head_stride + row * out_row_stride;
        dout_rows[half] = dout + batch * dout_batch_stride + head * dout_head_stride + row * dout_row_stride;
    }
    float products[2][4] = {};  // rows 0..15 of out with rows 0..7 and with rows 8..15 of dout
#pragma unroll 4
    for (int step = 0; step < PADDED_DIM; step += 16) {
        unsigned a[4], b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int column = step + i / 2 * 8 + lane % 4 * 2;
            a[i] = load_pair(out_rows[i % 2], column, columns[i % 2]);
            b[i] = load_pair(dout_rows[i % 2], column, columns[i % 2]);
        }
        multiply(products[0], a, b[0], b[2]);
        multiply(products[1], a, b[1], b[3]);
    }
    // The diagonals lie in the lanes whose row, lane / 4, is one of their two columns.
    if (lane / 8 == lane % 4) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = warp_row + half * 8 + lane / 4;
            const bool takes_part = row < seqlen_q && visible_keys(row, seqlen_k, causal_offset) > 0;
            const float delta = products[half][half * 2 + lane / 4 % 2];
            float2 statistic;
            statistic.x = takes_part ? lse[batch_head * seqlen_q + row] * LSE_FACTOR : infinity();
            statistic.y = takes_part ? delta : 0.0f;
            statistics[batch_head * tiles * kBlockRows + row] = statistic;
        }
    }

    const int last_row = min(first_row + kBlockRows, seqlen_q) - 1;
    if (visible_keys(last_row, seqlen_k, causal_offset) == 0) {
        dq += (batch_head * seqlen_q + first_row) * head_dim;
        for (int i = threadIdx.x; i < (last_row - first_row + 1) * head_dim; i += kThreads) dq[i] = 0;
    }
}
