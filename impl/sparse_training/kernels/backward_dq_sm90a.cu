// Block-sparse attention backward for Hopper, first of two kernels: what backward_dq_sm80.cu computes, its products by
// wgmma.
//
// A block of threads has Q and dout of one query block and walks over its keys (walk_sm90a.cuh). s and dp of the next
// tile are started, then dq += ds k of the present one: what is computed from s runs beside dp, what is computed from
// dp beside dq. K, which two tiles need at a time, has a ring of three tiles, V one of two. Registers: s and dp 64, ds
// 16, dq PADDED_DIM / 2.
#include "arguments.cuh"
#include "attention/row_products_sm80.cuh"
#include "block_lists.cuh"
#include "walk_sm90a.cuh"

constexpr float kLog2e = 1.4426950408889634f;

constexpr int kKeyStages = STAGES + 1;

struct Barriers {
    unsigned long long rows_full, k_full[kKeyStages], v_full[STAGES];
};

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) block_sparse_backward_dq_sm90a(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap dout_map,
    const Element* __restrict__ dout, const Element* __restrict__ out, const float* __restrict__ lse,
    float* __restrict__ statistics, Element* __restrict__ dq, const int* __restrict__ rows,
    const int* __restrict__ lengths, long long dout_batch_stride, long long dout_head_stride, long long dout_row_stride,
    SIZES) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    unsigned char* q_tile = shared_memory;
    unsigned char* dout_tile = q_tile + kTileBytes;
    unsigned char* k_tiles = dout_tile + kTileBytes;
    unsigned char* v_tiles = k_tiles + kKeyStages * kTileBytes;
    Barriers& barriers = *reinterpret_cast<Barriers*>(v_tiles + STAGES * kTileBytes);
    if (threadIdx.x == 0) {
        mbarrier_init(&barriers.rows_full, 1);
        for (int stage = 0; stage < kKeyStages; ++stage) mbarrier_init(&barriers.k_full[stage], 1);
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(&barriers.v_full[stage], 1);
        fence_mbarrier_init();
    }
    __syncthreads();

    const KeyWalk<kTileRows> walk = walk_keys<kTileRows, kTileRows>(rows, lengths, SIZE_ARGUMENTS);
    const Work& work = walk.work;
    const int keys = walk.keys, causal_offset = walk.causal_offset, block_row = walk.first_row, steps = walk.steps;
    const auto load = [&](unsigned char* tile, const TensorMap* map, unsigned long long* full, int step) {
        if (threadIdx.x > 0 || step >= steps) return;
        mbarrier_arrive_expect(full, kTileBytes);
        load_rows(tile, map, full, walk.key(step), work.head / group, work.batch);
    };
    const auto load_keys = [&](int step) {
        const unsigned stage = stage_of<kKeyStages>(step);
        load(k_tiles + stage * kTileBytes, &k_map, &barriers.k_full[stage], step);
    };
    const auto load_values = [&](int step) {
        const unsigned stage = stage_of<STAGES>(step);
        load(v_tiles + stage * kTileBytes, &v_map, &barriers.v_full[stage], step);
    };
    if (threadIdx.x == 0 && steps > 0) {
        mbarrier_arrive_expect(&barriers.rows_full, 2 * kTileBytes);
        load_rows(q_tile, &q_map, &barriers.rows_full, block_row, work.head, work.batch);
        load_rows(dout_tile, &dout_map, &barriers.rows_full, block_row, work.head, work.batch);
    }
    for (int step = 0; step < STAGES; ++step) {
        load_keys(step);
        load_values(step);
    }
    load_keys(STAGES);

    // Equal over a warp, which the compiler cannot see from threadIdx.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int warp_row = warp * 16, row = block_row + warp_row + lane / 4;  // this thread's upper row
    const int unmasked_keys = visible_keys(block_row, keys, causal_offset);
    const long long batch_head = work.batch_head;
    const unsigned long long q_rows = matrix_descriptor(q_tile, 0, kPatternBytes);
    const unsigned long long dout_rows = matrix_descriptor(dout_tile, 0, kPatternBytes);
    const unsigned long long k_rows = matrix_descriptor(k_tiles, 0, kPatternBytes);
    const unsigned long long k_columns = matrix_descriptor(k_tiles, kPanelBytes, kPatternBytes);
    const float scale_log2 = softmax_scale * kLog2e;
    const unsigned long long v_rows = matrix_descriptor(v_tiles, 0, kPatternBytes);

    float row_lse[2], row_delta[2];
    {
        float delta[2];
        const int first_row = block_row + warp_row;
        row_products(delta, out + (batch_head * seqlen + first_row) * head_dim, head_dim,
                     dout + work.batch * dout_batch_stride + work.head * dout_head_stride + first_row * dout_row_stride,
                     dout_row_stride, seqlen - first_row, head_dim, lane);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float saved = row + 8 * half < seqlen ? lse[batch_head * seqlen + row + 8 * half] : -infinity();
            row_lse[half] = saved == -infinity() ? infinity() : saved * kLog2e;
            row_delta[half] = __shfl_sync(0xffffffffu, delta[half], lane / 4 * 4 + lane / 8);
            if (lane % 4 == 0) {
                // Of a tile, all lse (to base 2) and then all delta.
                float* tile = statistics + (batch_head * blocks * BLOCK + block_row) * 2;
                tile[row + 8 * half - block_row] = row_lse[half];
                tile[row + 8 * half - block_row + kTileRows] = row_delta[half];
            }
        }
    }

    float dq_sum[kOutputs];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) dq_sum[i] = 0.0f;
    if (steps > 0) {
        float s[kScores], dp[kScores];
        unsigned ds[kSteps][4];
        const auto start_scores = [&](int step, int key) {
            unsigned char* k_tile = k_tiles + stage_of<kKeyStages>(step) * kTileBytes;
            unsigned char* v_tile = v_tiles + stage_of<STAGES>(step) * kTileBytes;
            mbarrier_wait(&barriers.k_full[stage_of<kKeyStages>(step)], parity_of<kKeyStages>(step));
            mbarrier_wait(&barriers.v_full[stage_of<STAGES>(step)], parity_of<STAGES>(step));
            if (key + kTileRows > keys) {
                clear_rows(k_tile, max(keys - key, 0));
                clear_rows(v_tile, max(keys - key, 0));
                __syncthreads();
            }
            wgmma_fence();
            multiply_rows(s, q_rows, kPanelBytes, advance_descriptor(k_rows, stage_of<kKeyStages>(step) * kTileBytes),
                          kPanelBytes);
            multiply_rows(dp, dout_rows, kPanelBytes, advance_descriptor(v_rows, stage_of<STAGES>(step) * kTileBytes),
                          kPanelBytes);
        };
        const auto finish_s = [&](int key) {
            pin_registers(s);
            if (key + kTileRows > unmasked_keys) mask_scores(s, row, key, keys, causal_offset);
#pragma unroll
            for (int i = 0; i < kScores; ++i) s[i] = exp2_fast(fmaf(s[i], scale_log2, -row_lse[i / 2 % 2]));
        };
        const auto finish_dp = [&] {
            pin_registers(dp);
#pragma unroll
            for (int i = 0; i < kScores; ++i) dp[i] = s[i] * (dp[i] - row_delta[i / 2 % 2]);
        };
        const auto start_dq = [&](int step) {
            wgmma_fence();
            accumulate_rows(dq_sum, ds, advance_descriptor(k_columns, stage_of<kKeyStages>(step) * kTileBytes));
        };

        int key = walk.key(0);
        mbarrier_wait(&barriers.rows_full, 0);
        start_scores(0, key);
        wgmma_wait<1>();
        finish_s(key);
        wgmma_wait<0>();
        finish_dp();
        pack_fragments(ds, dp);
        __syncthreads();
        load_values(STAGES);
        for (int step = 0; step + 1 < steps; ++step) {
            key = walk.key(step + 1);
            start_scores(step + 1, key);
            start_dq(step);
            wgmma_wait<2>();
            finish_s(key);
            wgmma_wait<1>();
            finish_dp();
            wgmma_wait<0>();
            pin_registers(dq_sum);
            __syncthreads();
            load_keys(step + kKeyStages);
            load_values(step + 1 + STAGES);
            pack_fragments(ds, dp);
        }
        start_dq(steps - 1);
        wgmma_wait<0>();
        pin_registers(dq_sum);
    }
    __syncthreads();  // all have read Q, through whose rows dq leaves

    const float scale[2] = {softmax_scale, softmax_scale};
    store_rows(dq + (batch_head * seqlen + block_row + warp_row) * head_dim, head_dim, dq_sum, scale, q_tile,
               kPanelBytes, warp_row, seqlen - block_row - warp_row, head_dim, lane);
}
