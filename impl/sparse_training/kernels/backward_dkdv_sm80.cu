// Block-sparse attention backward, second of two kernels: dk = ds^T q and dv = p^T dout of each key block, over the
// kept query blocks of its column. backward_dq_sm80.cu says why there are two, and computes the statistics used here.
//
// Tile. As SparkAttention's backward: a warp computes s^T and dp^T of 32 keys by queries, so that p^T and ds^T leave
// the accumulators as A operands. 32 queries a step, two stages of Q and dout by cp.async. Up to head dim 64 a warp has
// its keys for itself, dk and dv being 128 registers; at 128 two warps share 32 keys: each computes one half of the
// queries and accumulates one half of the dims, and p^T and ds^T of the other half come through shared memory.
#include "arguments.cuh"
#include "attention/backward_sm80.cuh"
#include "attention/mask_sm80.cuh"
#include "block_lists.cuh"
#include "registers.cuh"

constexpr int kWarpKeys = 32;
constexpr int kKeyTiles = kWarpKeys / 16;
constexpr int kRows = 32;          // queries of a step
constexpr int kSharing = SHARING;  // warps that share keys, 1 or 2
constexpr int kThreads = BLOCK * kSharing;
constexpr int kRowTiles = kRows / kSharing / 8;
constexpr int kDimTiles = PADDED_DIM / kSharing / 8;
constexpr int kStage = kRows * PADDED_DIM;

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) block_sparse_backward_dkdv_sm80(DKDV_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    Element* k_tile = reinterpret_cast<Element*>(shared_memory);
    Element* v_tile = k_tile + BLOCK * PADDED_DIM;
    Element* q_tiles = v_tile + BLOCK * PADDED_DIM;
    Element* dout_tiles = q_tiles + 2 * kStage;
    float2* statistics_tiles = reinterpret_cast<float2*>(dout_tiles + 2 * kStage);
    Element* p_tile = reinterpret_cast<Element*>(statistics_tiles + 2 * kRows);  // these two when keys are shared
    Element* ds_tile = p_tile + BLOCK * kRows;

    const int heads_kv = num_heads / group;
    const Work work = take_work(columns, blocks, patterns, heads_kv, group, batch, heads_together);
    const int keys = key_count(lengths, work.batch, seqlen), causal_offset = causal ? 0 : keys;
    const int first_key = work.block * BLOCK;

    const int warp = threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    const int warp_key = warp % (BLOCK / kWarpKeys) * kWarpKeys, half = warp / (BLOCK / kWarpKeys);
    const int half_row = half * kRowTiles * 8, half_chunk = half * kDimTiles;
    int rows_first = rows_first_offset(lane), chunks_first = chunks_first_offset(lane);
    Element* warp_p_tile = p_tile + warp_key * kRows;
    Element* warp_ds_tile = ds_tile + warp_key * kRows;

    k += work.batch * k_batch_stride + work.head * k_head_stride + first_key * k_row_stride;
    v += work.batch * v_batch_stride + work.head * v_head_stride + first_key * v_row_stride;
    // Registers are short: addresses are made of the parameters at each tile.
    QueryWalk walk = {work.head * group - 1, 0, 0};
    int row;  // the tile's first
    const auto load_next = [&](int stage) {
        if (!next_tile<kRows>(walk, row, columns, work.block, (work.head + 1) * group, blocks, patterns, causal))
            return false;
        const int head = walk.head;
        const long long batch_head = static_cast<long long>(work.batch) * num_heads + head;
        if (threadIdx.x < kRows / 2)
            copy_async_16(statistics_tiles + stage * kRows + threadIdx.x * 2,
                          statistics + batch_head * blocks * BLOCK + row + threadIdx.x * 2, true);
        load_tile<kRows, kThreads>(
            q_tiles + stage * kStage,
            thread_chunk(q + work.batch * q_batch_stride + head * q_head_stride + row * q_row_stride, q_row_stride),
            q_row_stride, seqlen - row, head_dim);
        load_tile<kRows, kThreads>(
            dout_tiles + stage * kStage,
            thread_chunk(dout + work.batch * dout_batch_stride + head * dout_head_stride + row * dout_row_stride,
                         dout_row_stride),
            dout_row_stride, seqlen - row, head_dim);
        return true;
    };

    float dk_sum[kKeyTiles][kDimTiles][4] = {}, dv_sum[kKeyTiles][kDimTiles][4] = {};
    bool more = first_key < keys && load_next(0);
    if (more) {
        load_tile<BLOCK, kThreads>(k_tile, thread_chunk(k, k_row_stride), k_row_stride, keys - first_key, head_dim);
        load_tile<BLOCK, kThreads>(v_tile, thread_chunk(v, v_row_stride), v_row_stride, keys - first_key, head_dim);
    }
    for (int stage = 0; more; stage ^= 1) {
        const int first_row = row + half_row;
        copy_async_wait<0>();
        __syncthreads();
        more = load_next(stage ^ 1);

        forget_origin(lane);
        forget_origin(rows_first);
        forget_origin(chunks_first);
        const Element* q_tile = q_tiles + stage * kStage;
        const Element* dout_tile = dout_tiles + stage * kStage;
        float s[kKeyTiles][kRowTiles][4], dp[kKeyTiles][kRowTiles][4];
        multiply_transposed<4>(s, k_tile + warp_key * PADDED_DIM, q_tile + half_row * PADDED_DIM, rows_first,
                               chunks_first);
        multiply_transposed<4>(dp, v_tile + warp_key * PADDED_DIM, dout_tile + half_row * PADDED_DIM, rows_first,
                               chunks_first);
        if (first_key + warp_key + kWarpKeys > visible_keys(first_row, keys, causal_offset))
            mask_queries(s, first_key + warp_key + lane / 4, first_row, keys, causal_offset, lane);

        unsigned p[kKeyTiles][kRowTiles / 2][4], ds[kKeyTiles][kRowTiles / 2][4];
        recompute(p, ds, s, dp, reinterpret_cast<const float4*>(statistics_tiles + stage * kRows + half_row),
                  softmax_scale, lane);
        if (kSharing == 2) {
            store_fragments<kRows>(warp_p_tile, p, half * kRowTiles, lane);
            store_fragments<kRows>(warp_ds_tile, ds, half * kRowTiles, lane);
        }
        accumulate(dv_sum, p, dout_tile + half_row * PADDED_DIM, rows_first, half_chunk);
        accumulate(dk_sum, ds, q_tile + half_row * PADDED_DIM, rows_first, half_chunk);
        if (kSharing == 2) {
            __syncthreads();
            const int other = half ^ 1, other_row = other * kRowTiles * 8;
            load_fragments<kRows>(p, warp_p_tile, other * kRowTiles, lane);
            accumulate(dv_sum, p, dout_tile + other_row * PADDED_DIM, rows_first, half_chunk);
            load_fragments<kRows>(ds, warp_ds_tile, other * kRowTiles, lane);
            accumulate(dk_sum, ds, q_tile + other_row * PADDED_DIM, rows_first, half_chunk);
        }
    }

    const long long first_element = (static_cast<long long>(work.batch_head) * seqlen + first_key) * head_dim;
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m)
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) {
            const int key = warp_key + m * 16 + lane / 4, column = (half_chunk + d) * 8 + lane % 4 * 2;
            store_pairs(dk + first_element, dk_sum[m][d], softmax_scale, key, column, seqlen - first_key, head_dim);
            store_pairs(dv + first_element, dv_sum[m][d], 1.0f, key, column, seqlen - first_key, head_dim);
        }
}
