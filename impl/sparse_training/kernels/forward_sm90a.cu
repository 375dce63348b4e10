// Block-sparse attention forward for Hopper: what forward_sm80.cu computes, its products by wgmma.
//
// A warpgroup (walk_sm90a.cuh) has one query block. q k^T of the next tile is started, then p v of the present one,
// which runs on while the softmax of the next scores is computed. Tiles of K and V come through one ring, in the order
// of their use. The output leaves through the last tile of V; so the next Q comes as soon as the last scores are there.
// Registers: 32 scores, 16 of p, PADDED_DIM / 2 of the output. Four warpgroups share an SM at head dim 64. Floor of a
// tile at head dim 64: 256 clocks of an SM, for the products as for the exponentials; docs/performance.md has what was
// measured.
#include "arguments.cuh"
#include "attention/log_sum_exp.cuh"
#include "block_lists.cuh"
#include "walk_sm90a.cuh"

struct Barriers {
    unsigned long long q_full, q_empty, work_read, full[STAGES], empty[STAGES];
    int4 work;            // first query, batch and head, keys that count, tiles; -1 tiles past the last work
    int key[kKeyPlaces];  // the first of a tile
};
constexpr int kTilesBytes = (1 + STAGES) * kTileBytes;
static_assert(kTilesBytes + sizeof(Barriers) <= kConsumerBytes);

extern "C" __global__ void __launch_bounds__(kThreads, 1) block_sparse_forward_sm90a(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, Element* __restrict__ out, float* __restrict__ lse,
    const int* __restrict__ rows, const int* __restrict__ lengths, int* tickets, int pruned_as_zero, SIZES) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    if (threadIdx.x < CONSUMERS) {
        Barriers& barriers = past_tiles<Barriers>(shared_memory, threadIdx.x, kTilesBytes);
        init_ring(&barriers.q_full, &barriers.q_empty, 1);
        mbarrier_init(&barriers.work_read, kGroup);
        init_ring(barriers.full, barriers.empty, STAGES);
        fence_mbarrier_init();
    }
    __syncthreads();

    const Role role = role_of_thread();
    const int consumer = role.consumer, lane = role.lane;
    unsigned char* q_tile = shared_memory + consumer * kConsumerBytes;
    unsigned char* ring = q_tile + kTileBytes;
    Barriers& barriers = past_tiles<Barriers>(shared_memory, consumer, kTilesBytes);
    if (role.loads) {
        give_up_registers<LOADER_REGISTERS>();
        if (consumer < CONSUMERS && lane == 0) {
            unsigned round = 0, loaded = 0;
            const int works = batch * num_heads * blocks * (BLOCK / kTileRows);
            take_works(consumer, works, tickets, [&](int index) {
                const KeyWalk<kTileRows> walk = walk_keys<kTileRows, kTileRows>(rows, lengths, SIZE_ARGUMENTS, index);
                const int steps = walk.steps, head = walk.work.head / group;
                mbarrier_wait(&barriers.q_empty, round & 1 ^ 1);
                mbarrier_wait(&barriers.work_read, round & 1 ^ 1);
                ++round;
                barriers.work = make_int4(walk.first_row, walk.work.batch_head, walk.keys, steps);
                mbarrier_arrive_expect(&barriers.q_full, kTileBytes);
                load_rows(q_tile, &q_map, &barriers.q_full, walk.first_row, walk.work.head, walk.work.batch);
                // K of step 0, K of 1, V of 0, K of 2, V of 1, and so on.
#pragma unroll 1
                for (int turn = 0; turn < 2 * steps + 2; ++turn) {
                    const bool values = turn % 2;
                    const int step = turn / 2 - values;
                    if (step < 0 || step >= steps) continue;
                    const unsigned stage = stage_of<STAGES>(loaded);
                    const int key = walk.key(step);
                    mbarrier_wait(&barriers.empty[stage], parity_of<STAGES>(loaded) ^ 1);
                    barriers.key[key_place(loaded)] = key;
                    ++loaded;
                    mbarrier_arrive_expect(&barriers.full[stage], kTileBytes);
                    load_rows(ring + stage * kTileBytes, values ? &v_map : &k_map, &barriers.full[stage], key, head,
                              walk.work.batch);
                }
            });
            mbarrier_wait(&barriers.work_read, round & 1 ^ 1);
            barriers.work = make_int4(0, 0, 0, -1);
            mbarrier_arrive(&barriers.q_full);
        }
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const int warp = role.block_warp % 4;
        const float scale_log2 = softmax_scale * kLog2e;
        const unsigned long long q_rows = matrix_descriptor(q_tile, 0, kPatternBytes);
        const unsigned long long k_rows = matrix_descriptor(ring, 0, kPatternBytes);
        const unsigned long long v_rows = matrix_descriptor(ring, kPanelBytes, kPatternBytes);
        unsigned used = 0;  // tiles of the ring before the present step's keys, or before the values of the step before
        for (unsigned round = 0;; ++round) {
            mbarrier_wait(&barriers.q_full, round & 1);
            const int4 work = read_work(barriers.work, &barriers.work_read);
            const int block_row = work.x, batch_head = work.y, keys = work.z, steps = work.w;
            if (steps < 0) break;
            const int causal_offset = causal ? 0 : keys;
            const int row = block_row + warp * 16 + lane / 4;  // this thread's upper row
            const int unmasked_keys = visible_keys(block_row, keys, causal_offset);

            RowState state = {{-infinity(), -infinity()}, {0.0f, 0.0f}};
            if (pruned_as_zero) {
                const KeyBlocks list = visible_blocks(lists_of(rows, blocks, patterns, batch_head % num_heads), blocks,
                                                      block_row / BLOCK, keys);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int pruned = pruned_keys(list, visible_keys(row + 8 * half, keys, causal_offset));
                    state.maximum[half] = pruned > 0 ? 0.0f : -infinity();
                    state.sum[half] = lane % 4 == 0 ? pruned : 0.0f;
                }
            }
            float output[kOutputs];
#pragma unroll
            for (int i = 0; i < kOutputs; ++i) output[i] = 0.0f;

            unsigned char* staging = q_tile;  // through which the output leaves
            if (steps > 0) {
                float scores[kScores], correction[2];
                unsigned p[kSteps][4];
                const auto start_keys = [&](unsigned tile) {
                    const unsigned stage = stage_of<STAGES>(tile);
                    mbarrier_wait(&barriers.full[stage], parity_of<STAGES>(tile));
                    wgmma_fence();
                    multiply_rows(scores, q_rows, kPanelBytes, advance_descriptor(k_rows, stage * kTileBytes),
                                  kPanelBytes);
                };
                const auto start_values = [&](unsigned tile) {
                    const unsigned stage = stage_of<STAGES>(tile);
                    mbarrier_wait(&barriers.full[stage], parity_of<STAGES>(tile));
                    // Past the sequence's end the copy engine puts zeros.
                    if (keys < seqlen && barriers.key[key_place(tile)] + kTileRows > keys) {
                        const int first = max(keys - barriers.key[key_place(tile)], 0);
                        wait_for_group();
                        clear_rows(ring + stage * kTileBytes, first);
                        wait_for_group();
                    }
                    wgmma_fence();
                    accumulate_rows(output, p, advance_descriptor(v_rows, stage * kTileBytes));
                };
                // The softmax of the scores; their tile is not needed any more.
                const auto finish_keys = [&](unsigned tile) {
                    pin_registers(scores);
                    const int key = barriers.key[key_place(tile)];
                    if (key + kTileRows > unmasked_keys) mask_scores(scores, row, key, keys, causal_offset);
                    __syncwarp();
                    release(&barriers.empty[stage_of<STAGES>(tile)], lane);
                    online_softmax(scores, state, correction, scale_log2);
                };
                const auto finish_values = [&] {
                    wgmma_wait<0>();
                    pin_registers(output);
                };

                used = __shfl_sync(0xffffffffu, used, 0);  // equal over the warp: descriptors go to uniform registers
                start_keys(used);
                wgmma_wait<0>();
                finish_keys(used);
                pack_fragments(p, scores);
                for (int step = 1; step < steps; ++step) {
                    used = __shfl_sync(0xffffffffu, used, 0);
                    start_keys(used + 1);
                    start_values(used + 2);
                    wgmma_wait<1>();
                    finish_keys(used + 1);
                    finish_values();
                    release(&barriers.empty[stage_of<STAGES>(used + 2)], lane);
                    scale_output(output, correction);
                    pack_fragments(p, scores);
                    used += 2;
                }
                release(&barriers.q_empty, lane);
                start_values(used + 1);
                finish_values();
                staging = ring + stage_of<STAGES>(used + 1) * kTileBytes;
                used += 2;
                wait_for_group();  // all have used these values
            }

            // Addresses that are used once a work would else take registers in the loop over the keys.
            const int here = computed_here(threadIdx.x), out_lane = here % 32, warp_row = here % kGroup / 32 * 16;
            const int lse_row = block_row + warp_row + out_lane / 4;
            const long long first_row = static_cast<long long>(batch_head) * seqlen;
            float inverse[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float sum = row_total(state.sum[half]);
                inverse[half] = sum == 0.0f ? 0.0f : reciprocal_fast(sum);
                if (out_lane % 4 == 0 && lse_row + 8 * half < seqlen)
                    lse[first_row + lse_row + 8 * half] =
                        log_sum_exp(state.maximum[half], sum, softmax_scale, scale_log2);
            }
            store_rows(out + (first_row + block_row + warp_row) * head_dim, head_dim, output, inverse, staging,
                       kPanelBytes, warp_row, seqlen - block_row - warp_row, head_dim, out_lane);
            fence_async_proxy();
            __syncwarp();
            release(steps > 0 ? &barriers.empty[stage_of<STAGES>(used - 1)] : &barriers.q_empty, lane);
        }
    }
}
