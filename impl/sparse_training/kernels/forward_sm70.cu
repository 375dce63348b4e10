// Block-sparse attention forward for Volta: what forward_sm80.cu computes, on mma.m8n8k4.
//
// A block of threads has one query block, WARP_ROWS rows per warp, and walks over the list of its key blocks, BLOCK_N
// keys at a time, as SparkAttention's forward does: V travels global -> registers while q k^T is computed, the next K
// while p v is. Blocks of 32 and 64 have 16 rows per warp, which shared memory bounds: 1.25 clocks of loads for each of
// products.
#define ACCUMULATE_FP16 0
#define P_THROUGH_SHARED 0
#include "arguments.cuh"
#include "attention/mask_sm70.cuh"
#include "attention/softmax_sm70.cuh"
#include "block_lists.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) block_sparse_forward_sm70(FORWARD_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    uint4* q_tile = reinterpret_cast<uint4*>(shared_memory);
    uint4* k_tile = q_tile + BLOCK * kChunks;
    uint4* v_tile = k_tile + BLOCK_N * kChunks;

    const KeyWalk<BLOCK_N> walk = walk_keys<BLOCK_N>(rows, lengths, SIZE_ARGUMENTS);
    const Work& work = walk.work;
    const int keys = walk.keys, causal_offset = walk.causal_offset, block_row = walk.first_row, steps = walk.steps;

    const int lane = threadIdx.x % 32;
    const int warp_first = threadIdx.x / 32 * kWarpRows, first_row = block_row + warp_first;
    const int unmasked_keys = visible_keys(first_row, keys, causal_offset);
    uint4* warp_q_tile = q_tile + warp_first * kChunks;
    const Rows q_rows = rows_of(q, work.batch, q_batch_stride, work.head, q_head_stride, q_row_stride, seqlen);
    const Rows k_rows = rows_of(k, work.batch, k_batch_stride, work.head / group, k_head_stride, k_row_stride, keys);
    const Rows v_rows = rows_of(v, work.batch, v_batch_stride, work.head / group, v_head_stride, v_row_stride, keys);
    const float scale_log2 = softmax_scale * kLog2e;

    Output output = {};
    Softmax state;
    start(state);
    if (pruned_as_zero) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
            for (int r = 0; r < kLaneRows; ++r) {
                const int visible = visible_keys(first_row + m * 16 + warp_row(lane, r), keys, causal_offset);
                see_zeros(state, m, r, pruned_keys(walk.blocks, visible), lane);
            }
    }

    StagedTile staged;
    int key = 0;
    if (steps > 0) {
        for (int row = 0; row < BLOCK; row += BLOCK_N) {
            staged.fetch(q_rows, block_row + row, head_dim);
            staged.store(q_tile + row * kChunks);
        }
        key = walk.key(0);
        staged.fetch(k_rows, key, head_dim);
        staged.store(k_tile);
        __syncthreads();
    }
    for (int step = 0; step < steps; ++step) {
        staged.fetch(v_rows, key, head_dim);
        float scores[kRowTiles][kKeyTiles][8] = {};
        multiply_nt(scores, warp_q_tile, k_tile, lane);
        if (key + BLOCK_N > unmasked_keys) mask_keys(scores, first_row, key, keys, causal_offset, lane);

        Probabilities p[kRowTiles][kKeyTiles];
        advance(state, output, p, scores, scale_log2, nullptr, lane);
        staged.store(v_tile);
        __syncthreads();

        const bool is_last = step + 1 == steps;
        key = is_last ? 0 : walk.key(step + 1);
        if (!is_last) staged.fetch(k_rows, key, head_dim);
        multiply_nn(output, p, v_tile, lane);
        if (!is_last) staged.store(k_tile);
        __syncthreads();
    }

    const long long first = static_cast<long long>(work.batch_head) * seqlen + first_row;
    const int row_count = seqlen - first_row;
    float inverse[kRowTiles][kLaneRows];
    finish(inverse, state, lse + first, row_count, lane);
    write_rows(output, inverse, warp_q_tile, out + first * head_dim, head_dim, row_count, head_dim, lane);
}
