// SparkAttention backward for Volta, second of two kernels: dv = sum over the queries of p^T dout and
// dk = scale * sum of ds^T q, with p and ds as in backward_dq_sm70.cu, which ran before and wrote delta.
//
// Tile. A block holds k and v of its keys, 32 per warp at head dim 64 and 16 at 128, and walks over the queries of all
// heads of the group, BLOCK_N at a time. It computes the transposed scores k q^T and v dout^T, whose outputs are the
// keys' rows: their way to the A operands of p^T dout and ds^T q is then the forward's, and every tile serves both as
// rows and as columns as it lies. Each block sums its keys alone and in one order: no atomics, the same bits always.
//
// dk and dv take 2 PADDED_DIM registers for 32 keys of a warp: all 32 at head dim 64, but 16 at 128. There every
// fragment of q and dout serves one product, and loads from shared memory take 1.25 times the products' clocks
// (VOLTA.md).
//
// Pipeline. The next q and dout travel global -> registers while the last two products are computed: the first two need
// the registers for their outputs.
#define ACCUMULATE_FP16 0
#define P_THROUGH_SHARED 0
#include "attention/mask_sm70.cuh"
#include "attention/products_sm70.cuh"
#include "attention/recompute_transposed_sm70.cuh"
#include "backward_arguments_sm70.cuh"
#include "extras_sm70.cuh"

constexpr int kBlockRows = kThreads / 32 * kWarpRows;

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) spark_attention_backward_dkdv_sm70(
    BACKWARD_PARAMETERS EXTRA_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    uint4* k_tile = reinterpret_cast<uint4*>(shared_memory);
    uint4* v_tile = k_tile + kBlockRows * kChunks;
    uint4* q_tile = v_tile + kBlockRows * kChunks;
    uint4* dout_tile = q_tile + BLOCK_N * kChunks;

    const int first_key = blockIdx.x * kBlockRows, head_kv = blockIdx.y, batch = blockIdx.z;
    const int lane = threadIdx.x % 32;
    const int warp_first = threadIdx.x / 32 * kWarpRows;
    const int warp_key = first_key + warp_first;
    uint4* warp_k_tile = k_tile + warp_first * kChunks;
    uint4* warp_v_tile = v_tile + warp_first * kChunks;

    const Rows k_rows = rows_of(k, batch, k_batch_stride, head_kv, k_head_stride, k_row_stride, seqlen_k);
    const Rows v_rows = rows_of(v, batch, v_batch_stride, head_kv, v_head_stride, v_row_stride, seqlen_k);
    StagedTile staged_q, staged_dout;
    for (int row = 0; row < kBlockRows; row += BLOCK_N) {
        staged_q.fetch(k_rows, first_key + row, head_dim);
        staged_q.store(k_tile + row * kChunks);
        staged_dout.fetch(v_rows, first_key + row, head_dim);
        staged_dout.store(v_tile + row * kChunks);
    }
    __syncthreads();  // the loop's own is not enough where no query comes by

    // Key j is seen by the queries from j - causal_offset on.
    const int first_query = max(first_key - causal_offset, 0) / BLOCK_N * BLOCK_N;
    const int unmasked_query = warp_key + kWarpRows - 1 - causal_offset;
    const int end = first_query < seqlen_q ? (head_kv + 1) * group : 0;
    int head = head_kv * group, query = first_query;
    const auto fetch = [&] {
        if (head >= end) return;
        staged_q.fetch(rows_of(q, batch, q_batch_stride, head, q_head_stride, q_row_stride, seqlen_q), query, head_dim);
        staged_dout.fetch(rows_of(dout, batch, dout_batch_stride, head, dout_head_stride, dout_row_stride, seqlen_q),
                          query, head_dim);
    };

    const float score_scale = kScoresAreScaled ? 1.0f : softmax_scale;
    Output dk_output = {}, dv_output = {};
    fetch();
    while (head < end) {
        staged_q.store(q_tile);
        staged_dout.store(dout_tile);
        __syncthreads();

        const long long head_first = (static_cast<long long>(batch) * num_heads + head) * seqlen_q;
        const RowStatistics of_lane = load_statistics(lse + head_first, delta + head_first, query + lane, seqlen_q);
        const Dropout dropout = DROPOUT_OF(batch, head);
        const unsigned kept = kept_scores<true>(dropout, warp_key, query, lane);
        float scores[kRowTiles][kKeyTiles][8] = {}, dp[kRowTiles][kKeyTiles][8] = {};
        multiply_nt(scores, warp_k_tile, q_tile, lane);
        apply_mask<true>(scores, MASK_OF(batch, head), softmax_scale, warp_key, query, lane);
        if (query < unmasked_query) mask_queries(scores, warp_key, query, causal_offset, lane);
        multiply_nt(dp, warp_v_tile, dout_tile, lane);
        Probabilities p[kRowTiles][kKeyTiles], ds[kRowTiles][kKeyTiles];
        recompute(p, ds, scores, dp, of_lane, score_scale, lane, kept, dropout.keep_scale);

        query += BLOCK_N;
        if (query >= seqlen_q) query = first_query, ++head;
        fetch();
        multiply_nn(dk_output, ds, q_tile, lane);
        multiply_nn(dv_output, p, dout_tile, lane);
        __syncthreads();
    }

    const int heads_kv = num_heads / group;
    const long long first = ((static_cast<long long>(batch) * heads_kv + head_kv) * seqlen_k + warp_key) * head_dim;
    const int keys = seqlen_k - warp_key;
    write_rows(dv_output, DROPOUT_OF(0, 0).keep_scale, warp_v_tile, dv + first, head_dim, keys, head_dim, lane);
    write_rows(dk_output, softmax_scale, warp_k_tile, dk + first, head_dim, keys, head_dim, lane);
}
