// SparkAttention backward for Volta, first of two kernels: delta = rowsum(dout * out) and
// dq = scale * sum over the keys of ds k, where ds = p (dout v^T - delta) and p = exp(scale * q k^T - lse).
//
// Tile. A block holds q and dout of its query rows, 32 per warp at head dim 64 and 16 at 128, and walks over the keys
// BLOCK_N at a time, as the forward does; k serves as rows for q k^T and as columns for ds k, as it lies. Nothing is
// summed across blocks: dk and dv, which sum over the queries, have their own kernel (backward_dkdv_sm70.cu). The price
// of no atomics is that q k^T and dout v^T are computed twice, seven products for five.
//
// Delta comes from the same Tensor Core product as dout v^T, the diagonal of dout out^T, so that both round alike: a
// row with one key, whose out is that key's v, has ds of exactly 0. The other kernel reads it from memory.
//
// Pipeline. The next k and v travel global -> registers while the three products are computed.
#define ACCUMULATE_FP16 0
#define P_THROUGH_SHARED 0
#include "attention/mask_sm70.cuh"
#include "attention/recompute_sm70.cuh"
#include "attention/row_products_sm70.cuh"
#include "backward_arguments_sm70.cuh"
#include "extras_sm70.cuh"

constexpr int kBlockRows = kThreads / 32 * kWarpRows;

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) spark_attention_backward_dq_sm70(
    BACKWARD_PARAMETERS EXTRA_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    uint4* q_tile = reinterpret_cast<uint4*>(shared_memory);
    uint4* dout_tile = q_tile + kBlockRows * kChunks;
    uint4* k_tile = dout_tile + kBlockRows * kChunks;
    uint4* v_tile = k_tile + BLOCK_N * kChunks;

    const Tile tile = locate_tile(kBlockRows);
    const int lane = threadIdx.x % 32;
    const int warp_first = threadIdx.x / 32 * kWarpRows;
    const int first_row = tile.first_row + warp_first;
    uint4* warp_q_tile = q_tile + warp_first * kChunks;
    const uint4* warp_dout_tile = dout_tile + warp_first * kChunks;

    const int head_kv = tile.head / group;
    const Rows q_rows = rows_of(q, tile.batch, q_batch_stride, tile.head, q_head_stride, q_row_stride, seqlen_q);
    const Rows dout_rows =
        rows_of(dout, tile.batch, dout_batch_stride, tile.head, dout_head_stride, dout_row_stride, seqlen_q);
    const Rows out_rows =
        rows_of(out, tile.batch, out_batch_stride, tile.head, out_head_stride, out_row_stride, seqlen_q);
    const Rows k_rows = rows_of(k, tile.batch, k_batch_stride, head_kv, k_head_stride, k_row_stride, seqlen_k);
    const Rows v_rows = rows_of(v, tile.batch, v_batch_stride, head_kv, v_head_stride, v_row_stride, seqlen_k);
    const long long head_first = (static_cast<long long>(tile.batch) * num_heads + tile.head) * seqlen_q;

    const int keys = visible_keys(min(tile.first_row + kBlockRows, seqlen_q) - 1, seqlen_k, causal_offset);
    const int warp_keys = visible_keys(first_row + kWarpRows - 1, seqlen_k, causal_offset);
    const int unmasked_keys = visible_keys(first_row, seqlen_k, causal_offset);

    StagedTile staged_k, staged_v;
    for (int row = 0; row < kBlockRows; row += BLOCK_N) {
        staged_k.fetch(q_rows, tile.first_row + row, head_dim);
        staged_k.store(q_tile + row * kChunks);
        staged_v.fetch(dout_rows, tile.first_row + row, head_dim);
        staged_v.store(dout_tile + row * kChunks);
    }
    compute_delta<kBlockRows>(delta + head_first, warp_dout_tile, k_tile, out_rows, tile.first_row, warp_first,
                              head_dim, lane);

    RowStatistics statistics[kRowTiles][kLaneRows];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int r = 0; r < kLaneRows; ++r)
            statistics[m][r] =
                load_statistics(lse + head_first, delta + head_first, first_row + m * 16 + warp_row(lane, r), seqlen_q);

    const Mask mask_of_head = MASK_OF(tile.batch, tile.head);
    const Dropout dropout = DROPOUT_OF(tile.batch, tile.head);
    const float score_scale = kScoresAreScaled ? 1.0f : softmax_scale;
    Output output = {};
    if (keys > 0) {
        staged_k.fetch(k_rows, 0, head_dim);
        staged_v.fetch(v_rows, 0, head_dim);
    }
    for (int key = 0; key < keys; key += BLOCK_N) {
        staged_k.store(k_tile);
        staged_v.store(v_tile);
        __syncthreads();
        const int next = key + BLOCK_N;
        if (next < keys) {
            staged_k.fetch(k_rows, next, head_dim);
            staged_v.fetch(v_rows, next, head_dim);
        }
        if (key < warp_keys) {
            const unsigned kept = kept_scores<false>(dropout, first_row, key, lane);
            float scores[kRowTiles][kKeyTiles][8] = {}, dp[kRowTiles][kKeyTiles][8] = {};
            multiply_nt(scores, warp_q_tile, k_tile, lane);
            apply_mask<false>(scores, mask_of_head, softmax_scale, first_row, key, lane);
            if (next > unmasked_keys) mask_keys(scores, first_row, key, seqlen_k, causal_offset, lane);
            multiply_nt(dp, warp_dout_tile, v_tile, lane);

            Probabilities ds[kRowTiles][kKeyTiles];
            score_gradients(ds, scores, dp, statistics, score_scale, lane, kept, dropout.keep_scale);
            multiply_nn(output, ds, k_tile, lane);
        }
        __syncthreads();
    }

    write_rows(output, softmax_scale, warp_q_tile, dq + (head_first + first_row) * head_dim, head_dim,
               seqlen_q - first_row, head_dim, lane);
}
