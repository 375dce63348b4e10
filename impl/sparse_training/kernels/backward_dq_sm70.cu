// Block-sparse attention backward for Volta, first of two kernels: what backward_dq_sm80.cu computes, on mma.m8n8k4.
//
// A block of threads has q and dout of one query block, WARP_ROWS rows per warp, and walks over the list of its key
// blocks, BLOCK_N keys at a time, as SparkAttention's does: the next k and v travel global -> registers while the
// three products are computed.
#define ACCUMULATE_FP16 0
#define P_THROUGH_SHARED 0
#include "arguments.cuh"
#include "attention/mask_sm70.cuh"
#include "attention/recompute_sm70.cuh"
#include "attention/row_products_sm70.cuh"
#include "block_lists.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) block_sparse_backward_dq_sm70(DQ_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    uint4* q_tile = reinterpret_cast<uint4*>(shared_memory);
    uint4* dout_tile = q_tile + BLOCK * kChunks;
    uint4* k_tile = dout_tile + BLOCK * kChunks;
    uint4* v_tile = k_tile + BLOCK_N * kChunks;

    const KeyWalk<BLOCK_N> walk = walk_keys<BLOCK_N>(rows, lengths, SIZE_ARGUMENTS);
    const Work& work = walk.work;
    const int keys = walk.keys, causal_offset = walk.causal_offset, block_row = walk.first_row, steps = walk.steps;

    const int lane = threadIdx.x % 32;
    const int warp_first = threadIdx.x / 32 * kWarpRows, first_row = block_row + warp_first;
    const int unmasked_keys = visible_keys(first_row, keys, causal_offset);
    uint4* warp_q_tile = q_tile + warp_first * kChunks;
    const uint4* warp_dout_tile = dout_tile + warp_first * kChunks;
    const Rows q_rows = rows_of(q, work.batch, q_batch_stride, work.head, q_head_stride, q_row_stride, seqlen);
    const Rows dout_rows =
        rows_of(dout, work.batch, dout_batch_stride, work.head, dout_head_stride, dout_row_stride, seqlen);
    const Rows k_rows = rows_of(k, work.batch, k_batch_stride, work.head / group, k_head_stride, k_row_stride, keys);
    const Rows v_rows = rows_of(v, work.batch, v_batch_stride, work.head / group, v_head_stride, v_row_stride, keys);
    const long long head_first = static_cast<long long>(work.batch_head) * seqlen;
    const Rows out_rows = {out + head_first * head_dim, head_dim, seqlen};
    float* delta = reinterpret_cast<float*>(v_tile) - block_row;  // of the block's rows, until v comes

    StagedTile staged_k, staged_v;
    for (int row = 0; row < BLOCK; row += BLOCK_N) {
        staged_k.fetch(q_rows, block_row + row, head_dim);
        staged_k.store(q_tile + row * kChunks);
        staged_v.fetch(dout_rows, block_row + row, head_dim);
        staged_v.store(dout_tile + row * kChunks);
    }
    compute_delta<BLOCK>(delta, warp_dout_tile, k_tile, out_rows, block_row, warp_first, head_dim, lane);

    RowStatistics of_rows[kRowTiles][kLaneRows];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int r = 0; r < kLaneRows; ++r) {
            const int row = m * 16 + warp_row(lane, r);
            of_rows[m][r] = load_statistics(lse + head_first, delta, first_row + row, seqlen);
            if (warp_column(lane, 0) == 0)
                statistics[(static_cast<long long>(work.batch_head) * blocks + work.block) * BLOCK + warp_first + row] =
                    make_float2(of_rows[m][r].lse, of_rows[m][r].delta);
        }
    __syncthreads();

    Output output = {};
    int key = 0;
    if (steps > 0) {
        key = walk.key(0);
        staged_k.fetch(k_rows, key, head_dim);
        staged_v.fetch(v_rows, key, head_dim);
    }
    for (int step = 0; step < steps; ++step) {
        const int present_key = key;
        staged_k.store(k_tile);
        staged_v.store(v_tile);
        __syncthreads();
        if (step + 1 < steps) {
            key = walk.key(step + 1);
            staged_k.fetch(k_rows, key, head_dim);
            staged_v.fetch(v_rows, key, head_dim);
        }
        float scores[kRowTiles][kKeyTiles][8] = {}, dp[kRowTiles][kKeyTiles][8] = {};
        multiply_nt(scores, warp_q_tile, k_tile, lane);
        if (present_key + BLOCK_N > unmasked_keys) mask_keys(scores, first_row, present_key, keys, causal_offset, lane);
        multiply_nt(dp, warp_dout_tile, v_tile, lane);

        Probabilities ds[kRowTiles][kKeyTiles];
        score_gradients(ds, scores, dp, of_rows, softmax_scale, lane);
        multiply_nn(output, ds, k_tile, lane);
        __syncthreads();
    }

    write_rows(output, softmax_scale, warp_q_tile, dq + (head_first + first_row) * head_dim, head_dim,
               seqlen - first_row, head_dim, lane);
}
