// Block-sparse attention forward for Tensor Cores of sm_80 and later: out = P v and the log of the denominators over
// the kept blocks of a pattern, with the online softmax.
//
// Tile. A block of threads has one query block, 32 rows per warp as SparkAttention's forward (its source has the
// reasons), and walks over the list of its key blocks, BLOCK_N keys at a time. Registers bind: 256 threads of up to 255
// on an SM, in 2, 4 or 8 blocks for BLOCK 128, 64 and 32, whose waits hide each other's. K and V have one buffer each,
// filled by cp.async half an iteration ahead; the next list entry is read an iteration ahead. Floor. A tile of BLOCK
// queries by BLOCK keys reads 4 BLOCK head_dim bytes from L2 for 4 BLOCK^2 head_dim FLOPs: BLOCK FLOPs per byte, so at
// about 5.5 TB/s of L2 an H200 cannot pass 176 / 352 / 704 TFLOP/s with blocks of 32 / 64 / 128. mma.sync reaches about
// 450.
//
// pruned_as_zero: with n pruned keys in a row, whose logits count as 0, its maximum starts at 0 and its sum at n.
#include "arguments.cuh"
#include "attention/forward_sm80.cuh"
#include "attention/mask_sm80.cuh"
#include "block_lists.cuh"
#include "registers.cuh"

constexpr int kThreads = BLOCK;
constexpr int kScoreUnroll = PADDED_DIM == 128 ? 2 : 4;

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) block_sparse_forward_sm80(FORWARD_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    Element* q_tile = reinterpret_cast<Element*>(shared_memory);
    Element* k_tile = q_tile + BLOCK * PADDED_DIM;
    Element* v_tile = k_tile + BLOCK_N * PADDED_DIM;

    const KeyWalk<BLOCK_N> walk = walk_keys<BLOCK_N>(rows, lengths, SIZE_ARGUMENTS);
    const Work& work = walk.work;
    const int keys = walk.keys, causal_offset = walk.causal_offset, block_row = walk.first_row, steps = walk.steps;

    const int lane = threadIdx.x % 32;
    const int warp_row = threadIdx.x / 32 * kWarpRows;
    int q_offset = rows_first_offset(lane), k_offset = chunks_first_offset(lane);
    Element* warp_q_tile = q_tile + warp_row * PADDED_DIM;
    // This lane's rows of row tile m are first_row + 16 m and 8 below.
    const int first_row = block_row + warp_row + lane / 4;
    const int unmasked_keys = visible_keys(block_row + warp_row, keys, causal_offset);
    const float scale_log2 = softmax_scale * kLog2e;

    q = thread_chunk(q + work.batch * q_batch_stride + work.head * q_head_stride + block_row * q_row_stride,
                     q_row_stride);
    k = thread_chunk(k + work.batch * k_batch_stride + work.head / group * k_head_stride, k_row_stride);
    v = thread_chunk(v + work.batch * v_batch_stride + work.head / group * v_head_stride, v_row_stride);

    int key = 0;
    if (steps > 0) {
        key = walk.key(0);
        load_tile<BLOCK, kThreads>(q_tile, q, q_row_stride, seqlen - block_row, head_dim);
        load_tile<BLOCK_N, kThreads>(k_tile, k + key * k_row_stride, k_row_stride, keys - key, head_dim);
    }

    Output accumulator = {};
    RowValues row_max, row_sum;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int pruned =
                pruned_as_zero
                    ? pruned_keys(walk.blocks, visible_keys(first_row + m * 16 + half * 8, keys, causal_offset))
                    : 0;
            row_max[m][half] = pruned > 0 ? 0.0f : -infinity();
            row_sum[m][half] = lane % 4 == 0 ? pruned : 0.0f;
        }

    for (int step = 0; step < steps; ++step) {
        const bool is_last = step + 1 == steps;
        const int next_key = is_last ? 0 : walk.key(step + 1);
        copy_async_wait<0>();
        __syncthreads();
        load_tile<BLOCK_N, kThreads>(v_tile, v + key * v_row_stride, v_row_stride, keys - key, head_dim);

        forget_origin(q_offset);
        forget_origin(k_offset);
        Scores scores;
        multiply_transposed<kScoreUnroll>(scores, warp_q_tile, k_tile, q_offset, k_offset);

        copy_async_wait<0>();
        __syncthreads();
        if (!is_last)
            load_tile<BLOCK_N, kThreads>(k_tile, k + next_key * k_row_stride, k_row_stride, keys - next_key, head_dim);

        if (key + BLOCK_N > unmasked_keys) mask_keys(scores, first_row, key, keys, causal_offset, lane);
        online_softmax(scores, row_max, row_sum, accumulator, scale_log2);
        multiply_values(accumulator, scores, v_tile, q_offset);
        key = next_key;
    }

    // The output goes through the warp's own rows of the Q tile.
    const long long batch_head = work.batch_head;
    write_output(accumulator, row_max, row_sum, warp_q_tile, out + batch_head * seqlen * head_dim, head_dim,
                 lse + batch_head * seqlen, block_row + warp_row, seqlen, head_dim, softmax_scale, lane);
}
