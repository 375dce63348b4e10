// Block-sparse attention backward for Volta, second of two kernels: what backward_dkdv_sm80.cu computes, on mma.m8n8k4.
//
// A block of threads has k and v of one key block, WARP_ROWS keys per warp, and walks over the query blocks of its
// column, BLOCK_N queries at a time, through the query heads of its group, as SparkAttention's does: it computes the
// transposed scores, and the next q and dout travel global -> registers while the last two products are computed. At
// BLOCK 32 and head dim 128 two more warps help to load: alone, those with keys would hold too many rows in registers.
#define ACCUMULATE_FP16 0
#define P_THROUGH_SHARED 0
#include "arguments.cuh"
#include "attention/mask_sm70.cuh"
#include "attention/products_sm70.cuh"
#include "attention/recompute_transposed_sm70.cuh"
#include "block_lists.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) block_sparse_backward_dkdv_sm70(DKDV_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    uint4* k_tile = reinterpret_cast<uint4*>(shared_memory);
    uint4* v_tile = k_tile + BLOCK * kChunks;
    uint4* q_tile = v_tile + BLOCK * kChunks;
    uint4* dout_tile = q_tile + BLOCK_N * kChunks;

    const Work work = take_work(columns, blocks, patterns, num_heads / group, group, batch, heads_together);
    const int keys = key_count(lengths, work.batch, seqlen), causal_offset = causal ? 0 : seqlen;
    const int first_key = work.block * BLOCK;
    const int lane = threadIdx.x % 32;
    const int warp_first = threadIdx.x / 32 * kWarpRows, warp_key = first_key + warp_first;
    const bool has_keys = kThreads / 32 * kWarpRows <= BLOCK || warp_first < BLOCK;
    uint4* warp_k_tile = k_tile + warp_first * kChunks;
    uint4* warp_v_tile = v_tile + warp_first * kChunks;
    const Rows k_rows = rows_of(k, work.batch, k_batch_stride, work.head, k_head_stride, k_row_stride, keys);
    const Rows v_rows = rows_of(v, work.batch, v_batch_stride, work.head, v_head_stride, v_row_stride, keys);

    StagedTile staged_q, staged_dout;
    for (int row = 0; row < BLOCK; row += BLOCK_N) {
        staged_q.fetch(k_rows, first_key + row, head_dim);
        staged_q.store(k_tile + row * kChunks);
        staged_dout.fetch(v_rows, first_key + row, head_dim);
        staged_dout.store(v_tile + row * kChunks);
    }
    __syncthreads();  // the loop's own is not enough where no query comes by

    QueryWalk walk = {work.head * group - 1, 0, 0};
    int query = 0;  // the tile's first
    const auto fetch_next = [&] {
        if (!next_tile<BLOCK_N>(walk, query, columns, work.block, (work.head + 1) * group, blocks, patterns, causal))
            return false;
        staged_q.fetch(rows_of(q, work.batch, q_batch_stride, walk.head, q_head_stride, q_row_stride, seqlen), query,
                       head_dim);
        staged_dout.fetch(
            rows_of(dout, work.batch, dout_batch_stride, walk.head, dout_head_stride, dout_row_stride, seqlen), query,
            head_dim);
        return true;
    };

    Output dk_output = {}, dv_output = {};
    bool more = first_key < keys && fetch_next();
    while (more) {
        staged_q.store(q_tile);
        staged_dout.store(dout_tile);
        __syncthreads();

        const long long batch_head = static_cast<long long>(work.batch) * num_heads + walk.head;
        const float2 statistic = statistics[batch_head * blocks * BLOCK + query + lane % BLOCK_N];
        const RowStatistics of_lane = {statistic.x, statistic.y};
        Probabilities p[kRowTiles][kKeyTiles], ds[kRowTiles][kKeyTiles];
        if (has_keys) {
            float scores[kRowTiles][kKeyTiles][8] = {}, dp[kRowTiles][kKeyTiles][8] = {};
            multiply_nt(scores, warp_k_tile, q_tile, lane);
            if (query < warp_key + kWarpRows - 1 - causal_offset)
                mask_queries(scores, warp_key, query, causal_offset, lane);
            multiply_nt(dp, warp_v_tile, dout_tile, lane);
            recompute(p, ds, scores, dp, of_lane, softmax_scale, lane);
        }
        more = fetch_next();
        if (has_keys) {
            multiply_nn(dk_output, ds, q_tile, lane);
            multiply_nn(dv_output, p, dout_tile, lane);
        }
        __syncthreads();
    }
    if (!has_keys) return;

    // A key past the last that counts got scores of 0, not -inf: its gradients are 0 here.
    float ones[kRowTiles][kLaneRows], scales[kRowTiles][kLaneRows];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int r = 0; r < kLaneRows; ++r) {
            ones[m][r] = warp_key + m * 16 + warp_row(lane, r) < keys ? 1.0f : 0.0f;
            scales[m][r] = ones[m][r] * softmax_scale;
        }
    const long long first = (static_cast<long long>(work.batch_head) * seqlen + warp_key) * head_dim;
    write_rows(dv_output, ones, warp_v_tile, dv + first, head_dim, seqlen - warp_key, head_dim, lane);
    write_rows(dk_output, scales, warp_k_tile, dk + first, head_dim, seqlen - warp_key, head_dim, lane);
}
