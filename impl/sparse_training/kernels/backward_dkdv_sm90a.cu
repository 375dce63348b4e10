// Block-sparse attention backward for Hopper, second of two kernels: what backward_dkdv_sm80.cu computes, its products
// by wgmma.
//
// A block of threads has K and V of one key block and walks over the query tiles of its column (walk_sm90a.cuh). It
// computes s^T and dp^T, so that p^T and ds^T leave the accumulators as A operands of dv += p^T dout and dk += ds^T q.
// s of the next tile is started, then dv and dk of the present one, which run on while p is computed; dp waits for the
// registers of these. Registers: s and dp 64, p and ds 32, dk and dv PADDED_DIM.
#include "arguments.cuh"
#include "block_lists.cuh"
#include "bulk_copy.cuh"
#include "walk_sm90a.cuh"

constexpr float kLog2e = 1.4426950408889634f;
constexpr int kStatistics = 2 * kTileRows, kStatisticsBytes = kStatistics * sizeof(float);  // of a tile

struct Barriers {
    unsigned long long rows_full, full[STAGES];
    int tile_row[STAGES];  // the first query of each tile; -1 past the last
    QueryWalk walk;        // how far the thread that loads has come
};

// Scores of queries that do not see their key become -inf. `key` is the thread's upper key, `row` the tile's first
// query.
__device__ __forceinline__ void mask_queries(float (&s)[kScores], int key, int row, int keys, int causal_offset) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int this_key = key + 8 * half;
        const int hidden_rows = (this_key < keys ? this_key - causal_offset - row : kTileRows) - threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < kScores / 2; ++i)
            if (i / 2 * 8 + i % 2 < hidden_rows) s[i / 2 * 4 + 2 * half + i % 2] = -infinity();
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) block_sparse_backward_dkdv_sm90a(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap dout_map,
    const float* __restrict__ statistics, Element* __restrict__ dk, Element* __restrict__ dv,
    const int* __restrict__ columns, const int* __restrict__ lengths, SIZES) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    unsigned char* k_tile = shared_memory;
    unsigned char* v_tile = k_tile + kTileBytes;
    unsigned char* q_tiles = v_tile + kTileBytes;
    unsigned char* dout_tiles = q_tiles + STAGES * kTileBytes;
    unsigned char* statistics_tiles = dout_tiles + STAGES * kTileBytes;
    Barriers& barriers = *reinterpret_cast<Barriers*>(statistics_tiles + STAGES * kStatisticsBytes);
    if (threadIdx.x == 0) {
        mbarrier_init(&barriers.rows_full, 1);
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(&barriers.full[stage], 1);
        fence_mbarrier_init();
    }
    __syncthreads();

    const int heads_kv = num_heads / group;
    const Work work = take_work<BLOCK / kTileRows>(columns, blocks, patterns, heads_kv, group, batch, heads_together);
    const int keys = key_count(lengths, work.batch, seqlen), causal_offset = causal ? 0 : keys;
    const int first_key = work.block * BLOCK + work.part * kTileRows;

    // One thread walks over the query tiles; its state would take registers of all.
    const auto load = [&](int step) {
        if (threadIdx.x > 0) return;
        const unsigned stage = stage_of<STAGES>(step);
        QueryWalk walk = barriers.walk;
        int row;
        if (!next_tile<kTileRows>(walk, row, columns, work.block, (work.head + 1) * group, blocks, patterns, causal))
            row = -1;
        barriers.walk = walk;
        barriers.tile_row[stage] = row;
        if (row < 0) return mbarrier_arrive(&barriers.full[stage]);
        const long long batch_head = static_cast<long long>(work.batch) * num_heads + walk.head;
        mbarrier_arrive_expect(&barriers.full[stage], 2 * kTileBytes + kStatisticsBytes);
        load_rows(q_tiles + stage * kTileBytes, &q_map, &barriers.full[stage], row, walk.head, work.batch);
        load_rows(dout_tiles + stage * kTileBytes, &dout_map, &barriers.full[stage], row, walk.head, work.batch);
        bulk_load(statistics_tiles + stage * kStatisticsBytes, statistics + (batch_head * blocks * BLOCK + row) * 2,
                  kStatisticsBytes, &barriers.full[stage]);
    };
    if (threadIdx.x == 0) {
        // Past the last head where no key counts.
        barriers.walk = {first_key < keys ? work.head * group - 1 : (work.head + 1) * group, 0, 0};
        mbarrier_arrive_expect(&barriers.rows_full, 2 * kTileBytes);
        load_rows(k_tile, &k_map, &barriers.rows_full, first_key, work.head, work.batch);
        load_rows(v_tile, &v_map, &barriers.rows_full, first_key, work.head, work.batch);
    }
    for (int step = 0; step < STAGES; ++step) load(step);

    // Equal over a warp, which the compiler cannot see from threadIdx.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int warp_key = warp * 16, last_key = first_key + kTileRows - 1;
    const unsigned long long k_rows = matrix_descriptor(k_tile, 0, kPatternBytes);
    const unsigned long long v_rows = matrix_descriptor(v_tile, 0, kPatternBytes);
    const unsigned long long q_rows = matrix_descriptor(q_tiles, 0, kPatternBytes);
    const unsigned long long dout_rows = matrix_descriptor(dout_tiles, 0, kPatternBytes);
    const unsigned long long q_columns = matrix_descriptor(q_tiles, kPanelBytes, kPatternBytes);
    const unsigned long long dout_columns = matrix_descriptor(dout_tiles, kPanelBytes, kPatternBytes);
    const float scale_log2 = softmax_scale * kLog2e;

    float dk_sum[kOutputs], dv_sum[kOutputs];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) dk_sum[i] = dv_sum[i] = 0.0f;
    mbarrier_wait(&barriers.rows_full, 0);
    if (first_key + kTileRows > keys) {
        clear_rows(k_tile, max(keys - first_key, 0));
        clear_rows(v_tile, max(keys - first_key, 0));
        __syncthreads();
    }

    float s[kScores], dp[kScores];
    unsigned p[kSteps][4], ds[kSteps][4];
    // The first query of a tile, or -1.
    const auto wait_for = [&](int step) {
        mbarrier_wait(&barriers.full[stage_of<STAGES>(step)], parity_of<STAGES>(step));
        return barriers.tile_row[stage_of<STAGES>(step)];
    };
    const auto start_s = [&](int step) {
        wgmma_fence();
        multiply_rows(s, k_rows, kPanelBytes, advance_descriptor(q_rows, stage_of<STAGES>(step) * kTileBytes),
                      kPanelBytes);
    };
    const auto start_dp = [&](int step) {
        wgmma_fence();
        multiply_rows(dp, v_rows, kPanelBytes, advance_descriptor(dout_rows, stage_of<STAGES>(step) * kTileBytes),
                      kPanelBytes);
    };
    const auto start_sums = [&](int step) {
        const unsigned offset = stage_of<STAGES>(step) * kTileBytes;
        wgmma_fence();
        accumulate_rows(dk_sum, ds, advance_descriptor(q_columns, offset));
        accumulate_rows(dv_sum, p, advance_descriptor(dout_columns, offset));
    };
    const auto finish_sums = [&] {
        wgmma_wait<0>();
        pin_registers(dk_sum);
        pin_registers(dv_sum);
    };
    // lse, to base 2, or delta of two queries.
    const auto pair = [&](int step, int i, int which) {
        const unsigned char* tile = statistics_tiles + stage_of<STAGES>(step) * kStatisticsBytes;
        return reinterpret_cast<const float2*>(tile)[which * (kTileRows / 2) + i / 4 * 4 + lane % 4];
    };
    const auto finish_s = [&](int step, int row) {
        pin_registers(s);
        if (last_key >= visible_keys(row, keys, causal_offset))
            mask_queries(s, first_key + warp_key + lane / 4, row, keys, causal_offset);
#pragma unroll
        for (int i = 0; i < kScores; ++i) {
            const float2 lse = pair(step, i, 0);
            s[i] = exp2_fast(fmaf(s[i], scale_log2, -(i % 2 ? lse.y : lse.x)));
        }
    };
    const auto finish_dp = [&](int step) {
        wgmma_wait<0>();
        pin_registers(dp);
#pragma unroll
        for (int i = 0; i < kScores; ++i) {
            const float2 delta = pair(step, i, 1);
            dp[i] = s[i] * (dp[i] - (i % 2 ? delta.y : delta.x));
        }
        pack_fragments(ds, dp);
        pack_fragments(p, s);
    };

    int row = wait_for(0);
    if (row >= 0) {
        start_s(0);
        start_dp(0);
        wgmma_wait<1>();
        finish_s(0, row);
        finish_dp(0);
        int step = 0;
        while ((row = wait_for(step + 1)) >= 0) {
            start_s(step + 1);
            start_sums(step);
            wgmma_wait<2>();
            finish_s(step + 1, row);
            finish_sums();
            start_dp(step + 1);
            __syncthreads();
            load(step + STAGES);
            ++step;
            finish_dp(step);
        }
        start_sums(step);
        finish_sums();
    }
    __syncthreads();

    // All have read K and V, through whose rows dk and dv leave.
    const int warp_first = first_key + warp_key;
    const long long first_element = (static_cast<long long>(work.batch_head) * seqlen + warp_first) * head_dim;
    const float one[2] = {1.0f, 1.0f}, scale[2] = {softmax_scale, softmax_scale};
    store_rows(dk + first_element, head_dim, dk_sum, scale, k_tile, kPanelBytes, warp_key, seqlen - warp_first,
               head_dim, lane);
    store_rows(dv + first_element, head_dim, dv_sum, one, v_tile, kPanelBytes, warp_key, seqlen - warp_first, head_dim,
               lane);
}
