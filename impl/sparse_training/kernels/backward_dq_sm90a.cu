// Block-sparse attention backward for Hopper, first of two kernels: what backward_dq_sm80.cu computes, its products by
// wgmma.
//
// A block of threads has Q and dout of one query block and walks over its keys (walk_sm90a.cuh). dq += ds k of a tile
// runs with s and dp of the next one. Registers: s and dp 64, ds 16, dq PADDED_DIM / 2.
#include "arguments.cuh"
#include "attention/row_products_sm80.cuh"
#include "block_lists.cuh"
#include "walk_sm90a.cuh"

constexpr float kLog2e = 1.4426950408889634f;

struct Barriers {
    unsigned long long rows_full, full[STAGES];
};

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) block_sparse_backward_dq_sm90a(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap dout_map,
    const Element* __restrict__ dout, const Element* __restrict__ out, const float* __restrict__ lse,
    float2* __restrict__ statistics, Element* __restrict__ dq, const int* __restrict__ rows,
    const int* __restrict__ lengths, long long dout_batch_stride, long long dout_head_stride, long long dout_row_stride,
    SIZES) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    unsigned char* q_tile = shared_memory;
    unsigned char* dout_tile = q_tile + kTileBytes;
    unsigned char* k_tiles = dout_tile + kTileBytes;
    unsigned char* v_tiles = k_tiles + STAGES * kTileBytes;
    Barriers& barriers = *reinterpret_cast<Barriers*>(v_tiles + STAGES * kTileBytes);
    if (threadIdx.x == 0) {
        mbarrier_init(&barriers.rows_full, 1);
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(&barriers.full[stage], 1);
        fence_mbarrier_init();
    }
    __syncthreads();

    const KeyWalk<kTileRows> walk = walk_keys<kTileRows, kTileRows>(rows, lengths, SIZE_ARGUMENTS);
    const Work& work = walk.work;
    const int keys = walk.keys, causal_offset = walk.causal_offset, block_row = walk.first_row, steps = walk.steps;
    const auto load = [&](int step) {
        if (threadIdx.x > 0 || step >= steps) return;
        const unsigned stage = stage_of<STAGES>(step);
        const int key = walk.key(step), head = work.head / group;
        mbarrier_arrive_expect(&barriers.full[stage], 2 * kTileBytes);
        load_rows(k_tiles + stage * kTileBytes, &k_map, &barriers.full[stage], key, head, work.batch);
        load_rows(v_tiles + stage * kTileBytes, &v_map, &barriers.full[stage], key, head, work.batch);
    };
    if (threadIdx.x == 0 && steps > 0) {
        mbarrier_arrive_expect(&barriers.rows_full, 2 * kTileBytes);
        load_rows(q_tile, &q_map, &barriers.rows_full, block_row, work.head, work.batch);
        load_rows(dout_tile, &dout_map, &barriers.rows_full, block_row, work.head, work.batch);
    }
    for (int step = 0; step < STAGES; ++step) load(step);

    // Equal over a warp, which the compiler cannot see from threadIdx.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int warp_row = warp * 16, row = block_row + warp_row + lane / 4;  // this thread's upper row
    const int unmasked_keys = visible_keys(block_row, keys, causal_offset);
    const long long batch_head = work.batch_head;
    const unsigned long long q_rows = matrix_descriptor(q_tile, 0, kPatternBytes);
    const unsigned long long dout_rows = matrix_descriptor(dout_tile, 0, kPatternBytes);
    const unsigned long long k_rows = matrix_descriptor(k_tiles, kPanelBytes, kPatternBytes);
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
            row_lse[half] = saved == -infinity() ? infinity() : saved;
            row_delta[half] = __shfl_sync(0xffffffffu, delta[half], lane / 4 * 4 + lane / 8);
            if (lane % 4 == 0)
                statistics[batch_head * blocks * BLOCK + row + 8 * half] = make_float2(row_lse[half], row_delta[half]);
        }
    }

    float dq_sum[kOutputs];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) dq_sum[i] = 0.0f;
    if (steps > 0) {
        float s[kScores], dp[kScores];
        unsigned ds[kSteps][4];
        const auto start_scores = [&](int step, int key) {
            const unsigned stage = stage_of<STAGES>(step);
            mbarrier_wait(&barriers.full[stage], parity_of<STAGES>(step));
            if (key + kTileRows > keys) {
                clear_rows(k_tiles + stage * kTileBytes, max(keys - key, 0));
                clear_rows(v_tiles + stage * kTileBytes, max(keys - key, 0));
                __syncthreads();
            }
            wgmma_fence();
            multiply_rows(s, q_rows, kPanelBytes, advance_descriptor(k_rows, stage * kTileBytes), kPanelBytes);
            multiply_rows(dp, dout_rows, kPanelBytes, advance_descriptor(v_rows, stage * kTileBytes), kPanelBytes);
        };
        // ds from s and dp, and the start of dq += ds k.
        const auto finish_scores = [&](int step, int key) {
            if (key + kTileRows > unmasked_keys) mask_scores(s, row, key, keys, causal_offset);
#pragma unroll
            for (int i = 0; i < kScores; ++i) {
                const int half = i / 2 % 2;
                // Rounded as the forward's lse was (attention/backward_sm80.cuh).
                const float p = exp2_fast((__fmul_rn(s[i], softmax_scale) - row_lse[half]) * kLog2e);
                dp[i] = p * (dp[i] - row_delta[half]);
            }
            pack_fragments(ds, dp);
            wgmma_fence();
            accumulate_rows(dq_sum, ds, advance_descriptor(k_rows, stage_of<STAGES>(step) * kTileBytes));
        };

        int key = walk.key(0);
        mbarrier_wait(&barriers.rows_full, 0);
        start_scores(0, key);
        wgmma_wait<0>();
        pin_registers(s);
        pin_registers(dp);
        for (int step = 0; step + 1 < steps; ++step) {
            finish_scores(step, key);
            key = walk.key(step + 1);
            start_scores(step + 1, key);
            wgmma_wait<0>();
            pin_registers(s);
            pin_registers(dp);
            pin_registers(dq_sum);
            __syncthreads();
            load(step + STAGES);
        }
        finish_scores(steps - 1, key);
        wgmma_wait<0>();
        pin_registers(dq_sum);
    }
    __syncthreads();  // all have read Q, through whose rows dq leaves

    const float scale[2] = {softmax_scale, softmax_scale};
    store_rows(dq + (batch_head * seqlen + block_row + warp_row) * head_dim, head_dim, dq_sum, scale, q_tile,
               kPanelBytes, warp_row, seqlen - block_row - warp_row, head_dim, lane);
}
