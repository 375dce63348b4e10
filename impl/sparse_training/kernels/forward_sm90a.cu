// Block-sparse attention forward for Hopper: what forward_sm80.cu computes, its products by wgmma.
//
// A block of threads has one query block (walk_sm90a.cuh). q k^T of the next tile is started, then p v of the present
// one, which runs on while the softmax of the next scores is computed. K and V have rings of two tiles: the engine
// fetches K three and V two tiles ahead of the p v that has just ended. Registers: 32 scores, 16 of p, PADDED_DIM / 2
// of the output. Four blocks of 128 threads share an SM at head dim 64. Floor of a tile at head dim 64: 256 clocks of
// an SM, for the products as for the exponentials; docs/performance.md has what was measured.
#include "arguments.cuh"
#include "attention/log_sum_exp.cuh"
#include "block_lists.cuh"
#include "walk_sm90a.cuh"

constexpr float kLog2e = 1.4426950408889634f;

struct Barriers {
    unsigned long long q_full, k_full[STAGES], v_full[STAGES];
};

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) block_sparse_forward_sm90a(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, Element* __restrict__ out, float* __restrict__ lse,
    const int* __restrict__ rows, const int* __restrict__ lengths, int pruned_as_zero, SIZES) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    unsigned char* q_tile = shared_memory;
    unsigned char* k_tiles = q_tile + kTileBytes;
    unsigned char* v_tiles = k_tiles + STAGES * kTileBytes;
    Barriers& barriers = *reinterpret_cast<Barriers*>(v_tiles + STAGES * kTileBytes);
    if (threadIdx.x == 0) {
        mbarrier_init(&barriers.q_full, 1);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&barriers.k_full[stage], 1);
            mbarrier_init(&barriers.v_full[stage], 1);
        }
        fence_mbarrier_init();
    }
    __syncthreads();

    const KeyWalk<kTileRows> walk = walk_keys<kTileRows, kTileRows>(rows, lengths, SIZE_ARGUMENTS);
    const Work& work = walk.work;
    const int keys = walk.keys, causal_offset = walk.causal_offset, block_row = walk.first_row, steps = walk.steps;
    const auto load = [&](unsigned char* tiles, const TensorMap* map, unsigned long long* full, int step) {
        if (threadIdx.x > 0 || step >= steps) return;
        const unsigned stage = stage_of<STAGES>(step);
        mbarrier_arrive_expect(&full[stage], kTileBytes);
        load_rows(tiles + stage * kTileBytes, map, &full[stage], walk.key(step), work.head / group, work.batch);
    };
    if (threadIdx.x == 0 && steps > 0) {
        mbarrier_arrive_expect(&barriers.q_full, kTileBytes);
        load_rows(q_tile, &q_map, &barriers.q_full, block_row, work.head, work.batch);
    }
    for (int step = 0; step < STAGES; ++step) {
        load(k_tiles, &k_map, barriers.k_full, step);
        load(v_tiles, &v_map, barriers.v_full, step);
    }

    // Equal over a warp, which the compiler cannot see from threadIdx.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int row = block_row + warp * 16 + lane / 4;  // this thread's upper row
    const int unmasked_keys = visible_keys(block_row, keys, causal_offset);
    const float scale_log2 = softmax_scale * kLog2e;
    const unsigned long long q_rows = matrix_descriptor(q_tile, 0, kPatternBytes);
    const unsigned long long k_rows = matrix_descriptor(k_tiles, 0, kPatternBytes);
    const unsigned long long v_rows = matrix_descriptor(v_tiles, kPanelBytes, kPatternBytes);

    RowState state;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int pruned =
            pruned_as_zero ? pruned_keys(walk.blocks, visible_keys(row + 8 * half, keys, causal_offset)) : 0;
        state.maximum[half] = pruned > 0 ? 0.0f : -infinity();
        state.sum[half] = lane % 4 == 0 ? pruned : 0.0f;
    }
    float output[kOutputs];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) output[i] = 0.0f;

    if (steps > 0) {
        float scores[kScores], correction[2];
        unsigned p[kSteps][4];
        const auto start_keys = [&](int step) {
            mbarrier_wait(&barriers.k_full[stage_of<STAGES>(step)], parity_of<STAGES>(step));
            wgmma_fence();
            multiply_rows(scores, q_rows, kPanelBytes, advance_descriptor(k_rows, stage_of<STAGES>(step) * kTileBytes),
                          kPanelBytes);
        };
        const auto start_values = [&](int step, int key) {
            const unsigned stage = stage_of<STAGES>(step);
            mbarrier_wait(&barriers.v_full[stage], parity_of<STAGES>(step));
            if (key + kTileRows > keys) {
                clear_rows(v_tiles + stage * kTileBytes, max(keys - key, 0));
                __syncthreads();
            }
            wgmma_fence();
            accumulate_rows(output, p, advance_descriptor(v_rows, stage * kTileBytes));
        };
        // Turns scores into p against the new maximum.
        const auto softmax = [&](int key) {
            if (key + kTileRows > unmasked_keys) mask_scores(scores, row, key, keys, causal_offset);
            online_softmax(scores, state, correction, scale_log2);
        };

        int key = walk.key(0);
        mbarrier_wait(&barriers.q_full, 0);
        start_keys(0);
        wgmma_wait<0>();
        pin_registers(scores);
        __syncthreads();
        load(k_tiles, &k_map, barriers.k_full, STAGES);
        softmax(key);
        pack_fragments(p, scores);
        for (int step = 0; step + 1 < steps; ++step) {
            start_keys(step + 1);
            start_values(step, key);
            key = walk.key(step + 1);
            wgmma_wait<1>();
            pin_registers(scores);
            softmax(key);
            wgmma_wait<0>();
            pin_registers(output);
            __syncthreads();
            load(v_tiles, &v_map, barriers.v_full, step + STAGES);
            load(k_tiles, &k_map, barriers.k_full, step + 1 + STAGES);
            scale_output(output, correction);
            pack_fragments(p, scores);
        }
        start_values(steps - 1, key);
        wgmma_wait<0>();
        pin_registers(output);
    }
    __syncthreads();  // all have read Q, through whose rows the output leaves

    const long long batch_head = work.batch_head;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float sum = row_total(state.sum[half]);
        inverse[half] = sum == 0.0f ? 0.0f : reciprocal_fast(sum);
        if (lane % 4 == 0 && row + 8 * half < seqlen)
            lse[batch_head * seqlen + row + 8 * half] =
                log_sum_exp(state.maximum[half], sum, softmax_scale, scale_log2);
    }
    const int warp_row = warp * 16;
    store_rows(out + (batch_head * seqlen + block_row + warp_row) * head_dim, head_dim, output, inverse, q_tile,
               kPanelBytes, warp_row, seqlen - block_row - warp_row, head_dim, lane);
}
