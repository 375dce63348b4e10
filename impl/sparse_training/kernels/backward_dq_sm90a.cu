// Block-sparse attention backward for Hopper, first of two kernels: what backward_dq_sm80.cu computes, its products by
// wgmma.
//
// A warpgroup (walk_sm90a.cuh) has Q and dout of one query block. s and dp of the next tile are started, then dq +=
// ds k of the present one: what is computed from s runs beside dp, what is computed from dp beside dq. K, which two
// tiles need at a time, has a ring of one tile more than V. out, for delta, comes as the first tile of V; Q and dout
// have Q_STAGES buffers, so that the next ones come beside the last tiles. Registers: s and dp 64, ds 16, dq
// PADDED_DIM / 2. Three warpgroups share an SM at head dim 64.
#include "arguments.cuh"
#include "block_lists.cuh"
#include "mma_sm80.cuh"
#include "walk_sm90a.cuh"

constexpr int kKeyStages = STAGES + 1;

struct Barriers {
    unsigned long long rows_full[Q_STAGES], rows_empty[Q_STAGES], work_read[Q_STAGES], k_full[kKeyStages],
        k_empty[kKeyStages], v_full[STAGES], v_empty[STAGES];
    int4 work[Q_STAGES];  // first query, batch and head, keys that count, tiles; -1 tiles past the last work
    int key[kKeyPlaces];  // the first of a tile
};
constexpr int kTilesBytes = (2 * Q_STAGES + kKeyStages + STAGES) * kTileBytes;
static_assert(kTilesBytes + sizeof(Barriers) <= kConsumerBytes);

// delta = rowsum(dout * out) of a thread's two rows, as the diagonal of out dout^T: as of backward_dq_sm80.cu, but from
// tiles in shared memory.
__device__ __forceinline__ void row_products(float (&delta)[2], unsigned char* out, unsigned char* dout, int warp,
                                             int lane) {
    float products[2][4] = {};  // the warp's rows of out with its rows 0..7 and with its rows 8..15 of dout
#pragma unroll
    for (int step = 0; step < PADDED_DIM / 16; ++step) {
        unsigned a[4], b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = warp * 16 + lane / 4 + i % 2 * 8, chunk = step * 2 + i / 2;
            a[i] = *reinterpret_cast<const unsigned*>(chunk_at(out, kPanelBytes, row, chunk) + lane % 4 * 4);
            b[i] = *reinterpret_cast<const unsigned*>(chunk_at(dout, kPanelBytes, row, chunk) + lane % 4 * 4);
        }
#if BFLOAT16
        mma_m16n8k16_bf16(products[0], a, b[0], b[2]);
        mma_m16n8k16_bf16(products[1], a, b[1], b[3]);
#else
        mma_m16n8k16_f16(products[0], a, b[0], b[2]);
        mma_m16n8k16_f16(products[1], a, b[1], b[3]);
#endif
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        // The diagonals lie in the lanes whose row, lane / 4, is one of their two columns.
        const float diagonal = lane / 4 % 2 ? products[half][half * 2 + 1] : products[half][half * 2];
        delta[half] = __shfl_sync(0xffffffffu, diagonal, lane / 4 * 4 + lane / 8);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) block_sparse_backward_dq_sm90a(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap dout_map,
    const __grid_constant__ TensorMap out_map, const float* __restrict__ lse, float* __restrict__ statistics,
    Element* __restrict__ dq, const int* __restrict__ rows, const int* __restrict__ lengths, int* tickets, SIZES) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    if (threadIdx.x < CONSUMERS) {
        Barriers& barriers = past_tiles<Barriers>(shared_memory, threadIdx.x, kTilesBytes);
        init_ring(barriers.rows_full, barriers.rows_empty, Q_STAGES);
        for (int stage = 0; stage < Q_STAGES; ++stage) mbarrier_init(&barriers.work_read[stage], kGroup);
        init_ring(barriers.k_full, barriers.k_empty, kKeyStages);
        init_ring(barriers.v_full, barriers.v_empty, STAGES);
        fence_mbarrier_init();
    }
    __syncthreads();

    const Role role = role_of_thread();
    const int consumer = role.consumer, lane = role.lane;
    unsigned char* q_tiles = shared_memory + consumer * kConsumerBytes;
    unsigned char* dout_tiles = q_tiles + Q_STAGES * kTileBytes;
    unsigned char* k_tiles = dout_tiles + Q_STAGES * kTileBytes;
    unsigned char* v_tiles = k_tiles + kKeyStages * kTileBytes;
    Barriers& barriers = past_tiles<Barriers>(shared_memory, consumer, kTilesBytes);
    if (role.loads) {
        give_up_registers<LOADER_REGISTERS>();
        if (consumer < CONSUMERS && lane == 0) {
            Place<Q_STAGES> place;
            unsigned loaded = 0;  // tiles of K
            Place<STAGES> v_place;
            const auto load_v = [&](const TensorMap* map, int row, int head, int batch_index) {
                unsigned long long* full = &barriers.v_full[v_place.stage];
                mbarrier_wait(&barriers.v_empty[v_place.stage], v_place.parity ^ 1);
                mbarrier_arrive_expect(full, kTileBytes);
                load_rows(v_tiles + v_place.stage * kTileBytes, map, full, row, head, batch_index);
                v_place.advance();
            };
            const int works = batch * num_heads * blocks * (BLOCK / kTileRows);
            take_works(consumer, works, tickets, [&](int index) {
                const KeyWalk<kTileRows> walk = walk_keys<kTileRows, kTileRows>(rows, lengths, SIZE_ARGUMENTS, index);
                const int row = walk.first_row, head = walk.work.head, batch_index = walk.work.batch;
                unsigned long long* rows_full = &barriers.rows_full[place.stage];
                mbarrier_wait(&barriers.rows_empty[place.stage], place.parity ^ 1);
                mbarrier_wait(&barriers.work_read[place.stage], place.parity ^ 1);
                barriers.work[place.stage] = make_int4(row, walk.work.batch_head, walk.keys, walk.steps);
                mbarrier_arrive_expect(rows_full, 2 * kTileBytes);
                load_rows(q_tiles + place.stage * kTileBytes, &q_map, rows_full, row, head, batch_index);
                load_rows(dout_tiles + place.stage * kTileBytes, &dout_map, rows_full, row, head, batch_index);
                place.advance();
                load_v(&out_map, row, head, batch_index);
                const int head_kv = head / group;
                for (int step = 0; step < walk.steps; ++step) {
                    const int key = walk.key(step);
                    const unsigned stage = stage_of<kKeyStages>(loaded);
                    unsigned long long* full = &barriers.k_full[stage];
                    mbarrier_wait(&barriers.k_empty[stage], parity_of<kKeyStages>(loaded) ^ 1);
                    barriers.key[key_place(loaded)] = key;
                    ++loaded;
                    mbarrier_arrive_expect(full, kTileBytes);
                    load_rows(k_tiles + stage * kTileBytes, &k_map, full, key, head_kv, batch_index);
                    load_v(&v_map, key, head_kv, batch_index);
                }
            });
            mbarrier_wait(&barriers.work_read[place.stage], place.parity ^ 1);
            barriers.work[place.stage] = make_int4(0, 0, 0, -1);
            mbarrier_arrive(&barriers.rows_full[place.stage]);
        }
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const int warp = role.block_warp % 4;
        const float scale_log2 = softmax_scale * kLog2e;
        const unsigned long long first_q = matrix_descriptor(q_tiles, 0, kPatternBytes);
        const unsigned long long first_dout = matrix_descriptor(dout_tiles, 0, kPatternBytes);
        const unsigned long long k_rows = matrix_descriptor(k_tiles, kPanelBytes, kPatternBytes);
        const unsigned long long v_rows = matrix_descriptor(v_tiles, 0, kPatternBytes);
        unsigned used = 0, used_v = 0;  // tiles, with those in use
        for (unsigned round = 0;; ++round) {
            const unsigned stage = stage_of<Q_STAGES>(round);
            unsigned char* q_tile = q_tiles + stage * kTileBytes;
            unsigned char* dout_tile = dout_tiles + stage * kTileBytes;
            mbarrier_wait(&barriers.rows_full[stage], parity_of<Q_STAGES>(round));
            const int4 work = read_work(barriers.work[stage], &barriers.work_read[stage]);
            const int block_row = work.x, batch_head = work.y, keys = work.z, steps = work.w;
            if (steps < 0) break;
            const int causal_offset = causal ? 0 : keys;
            const int row = block_row + warp * 16 + lane / 4;  // this thread's upper row
            const int unmasked_keys = visible_keys(block_row, keys, causal_offset);
            const unsigned long long q_rows = advance_descriptor(first_q, stage * kTileBytes);
            const unsigned long long dout_rows = advance_descriptor(first_dout, stage * kTileBytes);

            float row_lse[2], row_delta[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float saved = row + 8 * half < seqlen
                                        ? lse[static_cast<long long>(batch_head) * seqlen + row + 8 * half]
                                        : -infinity();
                row_lse[half] = saved == -infinity() ? infinity() : saved * kLog2e;
            }
            mbarrier_wait(&barriers.v_full[stage_of<STAGES>(used_v)], parity_of<STAGES>(used_v));
            row_products(row_delta, v_tiles + stage_of<STAGES>(used_v) * kTileBytes, dout_tile, warp, lane);
            __syncwarp();
            release(&barriers.v_empty[stage_of<STAGES>(used_v)], lane);
            ++used_v;
            if (lane % 4 == 0) {
                // Of a tile, all lse (to base 2) and then all delta.
                float* tile = statistics + (static_cast<long long>(batch_head) * blocks * BLOCK + block_row) * 2;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    tile[row + 8 * half - block_row] = row_lse[half];
                    tile[row + 8 * half - block_row + kTileRows] = row_delta[half];
                }
            }

            float dq_sum[kOutputs];
#pragma unroll
            for (int i = 0; i < kOutputs; ++i) dq_sum[i] = 0.0f;
            if (steps > 0) {
                float s[kScores], dp[kScores];
                unsigned ds[kSteps][4];
                // Returns the tile's first key.
                const auto start_scores = [&] {
                    used = __shfl_sync(0xffffffffu, used, 0);  // equal over the warp: descriptors are uniform
                    used_v = __shfl_sync(0xffffffffu, used_v, 0);
                    const unsigned k_stage = stage_of<kKeyStages>(used), v_stage = stage_of<STAGES>(used_v);
                    mbarrier_wait(&barriers.k_full[k_stage], parity_of<kKeyStages>(used));
                    const int key = barriers.key[key_place(used)];
                    mbarrier_wait(&barriers.v_full[v_stage], parity_of<STAGES>(used_v));
                    // Past the sequence's end the copy engine puts zeros.
                    if (keys < seqlen && key + kTileRows > keys) {
                        wait_for_group();
                        clear_rows(k_tiles + k_stage * kTileBytes, max(keys - key, 0));
                        clear_rows(v_tiles + v_stage * kTileBytes, max(keys - key, 0));
                        wait_for_group();
                    }
                    wgmma_fence();
                    multiply_rows(s, q_rows, kPanelBytes, advance_descriptor(k_rows, k_stage * kTileBytes),
                                  kPanelBytes);
                    multiply_rows(dp, dout_rows, kPanelBytes, advance_descriptor(v_rows, v_stage * kTileBytes),
                                  kPanelBytes);
                    ++used;
                    ++used_v;
                    return key;
                };
                const auto finish_s = [&](int key) {
                    pin_registers(s);
                    if (key + kTileRows > unmasked_keys) mask_scores(s, row, key, keys, causal_offset);
#pragma unroll
                    for (int i = 0; i < kScores; ++i) s[i] = exp2_fast(fmaf(s[i], scale_log2, -row_lse[i / 2 % 2]));
                };
                const auto finish_dp = [&] {
                    pin_registers(dp);
                    release(&barriers.v_empty[stage_of<STAGES>(used_v - 1)], lane);
#pragma unroll
                    for (int i = 0; i < kScores; ++i) dp[i] = s[i] * (dp[i] - row_delta[i / 2 % 2]);
                };
                const auto start_dq = [&](unsigned tile) {
                    wgmma_fence();
                    accumulate_rows(dq_sum, ds, advance_descriptor(k_rows, stage_of<kKeyStages>(tile) * kTileBytes));
                };
                const auto finish_dq = [&](unsigned tile) {
                    wgmma_wait<0>();
                    pin_registers(dq_sum);
                    release(&barriers.k_empty[stage_of<kKeyStages>(tile)], lane);
                };

                int key = start_scores();
                wgmma_wait<1>();
                finish_s(key);
                wgmma_wait<0>();
                finish_dp();
                pack_fragments(ds, dp);
                for (int step = 1; step < steps; ++step) {
                    key = start_scores();
                    start_dq(used - 2);
                    wgmma_wait<2>();
                    finish_s(key);
                    wgmma_wait<1>();
                    finish_dp();
                    finish_dq(used - 2);
                    pack_fragments(ds, dp);
                }
                start_dq(used - 1);
                finish_dq(used - 1);
            }

            // Addresses that are used once a work would else take registers in the loop over the keys.
            const int here = computed_here(threadIdx.x), out_lane = here % 32, warp_row = here % kGroup / 32 * 16;
            wait_for_group();  // all have read Q, through whose rows dq leaves
            const float scale[2] = {softmax_scale, softmax_scale};
            store_rows(dq + (static_cast<long long>(batch_head) * seqlen + block_row + warp_row) * head_dim, head_dim,
                       dq_sum, scale, q_tile, kPanelBytes, warp_row, seqlen - block_row - warp_row, head_dim, out_lane);
            fence_async_proxy();
            __syncwarp();
            release(&barriers.rows_empty[stage], lane);
        }
    }
}
