// Block-sparse attention backward for Hopper, second of two kernels: what backward_dkdv_sm80.cu computes, its products
// by wgmma.
//
// A warpgroup (walk_sm90a.cuh) has K and V of one key block and walks over the query tiles of its column. It computes
// s^T and dp^T, so that p^T and ds^T leave the accumulators as A operands of dv += p^T dout and dk += ds^T q. s of the
// next tile is started, then dv and dk of the present one, which run on while p is computed; dp waits for the registers
// of these. dk and dv leave through the last tile of Q and dout; so the next K and V come as soon as the last dp is
// there. Registers: s and dp 64, p and ds 32, dk and dv PADDED_DIM. Three warpgroups share an SM at head dim 64.
#include "arguments.cuh"
#include "block_lists.cuh"
#include "bulk_copy.cuh"
#include "walk_sm90a.cuh"

constexpr int kStatistics = 2 * kTileRows, kStatisticsBytes = kStatistics * sizeof(float);  // of a tile

struct Barriers {
    float statistics[STAGES][kStatistics];
    unsigned long long rows_full, rows_empty, work_read, full[STAGES], empty[STAGES];
    int4 work;  // first key, batch and head, keys that count, whether there are tiles; key -1 past the last work
    int2 tile[STAGES];  // its first query, whether there is one more
};
constexpr int kTilesBytes = (2 + 2 * STAGES) * kTileBytes;
static_assert(kTilesBytes + sizeof(Barriers) <= kConsumerBytes);

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

extern "C" __global__ void __launch_bounds__(kThreads, 1) block_sparse_backward_dkdv_sm90a(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap dout_map,
    const float* __restrict__ statistics, Element* __restrict__ dk, Element* __restrict__ dv,
    const int* __restrict__ columns, const int* __restrict__ lengths, int* tickets, SIZES) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    if (threadIdx.x < CONSUMERS) {
        Barriers& barriers = past_tiles<Barriers>(shared_memory, threadIdx.x, kTilesBytes);
        init_ring(&barriers.rows_full, &barriers.rows_empty, 1);
        mbarrier_init(&barriers.work_read, kGroup);
        init_ring(barriers.full, barriers.empty, STAGES);
        fence_mbarrier_init();
    }
    __syncthreads();

    const Role role = role_of_thread();
    const int consumer = role.consumer, lane = role.lane;
    unsigned char* k_tile = shared_memory + consumer * kConsumerBytes;
    unsigned char* v_tile = k_tile + kTileBytes;
    unsigned char* q_tiles = v_tile + kTileBytes;
    unsigned char* dout_tiles = q_tiles + STAGES * kTileBytes;
    Barriers& barriers = past_tiles<Barriers>(shared_memory, consumer, kTilesBytes);
    if (role.loads) {
        give_up_registers<LOADER_REGISTERS>();
        if (consumer < CONSUMERS && lane == 0) {
            const int heads_kv = num_heads / group, works = batch * heads_kv * blocks * (BLOCK / kTileRows);
            unsigned round = 0;
            Place<STAGES> place;
            take_works(consumer, works, tickets, [&](int index) {
                const Work work = take_work<BLOCK / kTileRows>(columns, blocks, patterns, heads_kv, group, batch,
                                                               heads_together, index);
                const int keys = key_count(lengths, work.batch, seqlen);
                const int first_key = work.block * BLOCK + work.part * kTileRows;
                const int end_head = (work.head + 1) * group;
                // Past the last head where no key counts.
                QueryWalk walk = {first_key < keys ? end_head - group - 1 : end_head, 0, 0};
                // The first query of the next tile; -1 past the last.
                int row;
                const auto find = [&] {
                    if (!next_tile<kTileRows>(walk, row, columns, work.block, end_head, blocks, patterns, causal))
                        row = -1;
                };
                find();
                mbarrier_wait(&barriers.rows_empty, round & 1 ^ 1);
                mbarrier_wait(&barriers.work_read, round & 1 ^ 1);
                ++round;
                barriers.work = make_int4(first_key, work.batch_head, keys, row >= 0);
                mbarrier_arrive_expect(&barriers.rows_full, 2 * kTileBytes);
                load_rows(k_tile, &k_map, &barriers.rows_full, first_key, work.head, work.batch);
                load_rows(v_tile, &v_map, &barriers.rows_full, first_key, work.head, work.batch);
                while (row >= 0) {
                    unsigned long long* full = &barriers.full[place.stage];
                    const int head = walk.head, this_row = row;
                    find();
                    mbarrier_wait(&barriers.empty[place.stage], place.parity ^ 1);
                    barriers.tile[place.stage] = make_int2(this_row, row >= 0);
                    mbarrier_arrive_expect(full, 2 * kTileBytes + kStatisticsBytes);
                    load_rows(q_tiles + place.stage * kTileBytes, &q_map, full, this_row, head, work.batch);
                    load_rows(dout_tiles + place.stage * kTileBytes, &dout_map, full, this_row, head, work.batch);
                    bulk_load(
                        barriers.statistics[place.stage],
                        statistics +
                            ((static_cast<long long>(work.batch) * num_heads + head) * blocks * BLOCK + this_row) * 2,
                        kStatisticsBytes, full);
                    place.advance();
                }
            });
            mbarrier_wait(&barriers.work_read, round & 1 ^ 1);
            barriers.work = make_int4(-1, 0, 0, 0);
            mbarrier_arrive(&barriers.rows_full);
        }
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const int warp = role.block_warp % 4, warp_key = warp * 16;
        const unsigned long long k_rows = matrix_descriptor(k_tile, 0, kPatternBytes);
        const unsigned long long v_rows = matrix_descriptor(v_tile, 0, kPatternBytes);
        const unsigned long long q_rows = matrix_descriptor(q_tiles, kPanelBytes, kPatternBytes);
        const unsigned long long dout_rows = matrix_descriptor(dout_tiles, kPanelBytes, kPatternBytes);
        const float scale_log2 = softmax_scale * kLog2e;
        Place<STAGES> place, next;
        next.advance();
        for (unsigned round = 0;; ++round) {
            mbarrier_wait(&barriers.rows_full, round & 1);
            const int4 work = read_work(barriers.work, &barriers.work_read);
            const int first_key = work.x, batch_head = work.y, keys = work.z;
            if (first_key < 0) break;
            const int causal_offset = causal ? 0 : keys, last_key = first_key + kTileRows - 1;
            float dk_sum[kOutputs], dv_sum[kOutputs];
#pragma unroll
            for (int i = 0; i < kOutputs; ++i) dk_sum[i] = dv_sum[i] = 0.0f;

            unsigned char *dk_tile = k_tile, *dv_tile = v_tile;  // through which they leave
            unsigned long long* left = &barriers.rows_empty;
            if (work.w) {
                float s[kScores], dp[kScores];
                unsigned p[kSteps][4], ds[kSteps][4];
                const auto start_s = [&](unsigned stage) {
                    wgmma_fence();
                    multiply_rows(s, k_rows, kPanelBytes, advance_descriptor(q_rows, stage * kTileBytes), kPanelBytes);
                };
                const auto start_dp = [&](unsigned stage) {
                    wgmma_fence();
                    multiply_rows(dp, v_rows, kPanelBytes, advance_descriptor(dout_rows, stage * kTileBytes),
                                  kPanelBytes);
                };
                const auto start_sums = [&](unsigned stage) {
                    wgmma_fence();
                    accumulate_rows(dk_sum, ds, advance_descriptor(q_rows, stage * kTileBytes));
                    accumulate_rows(dv_sum, p, advance_descriptor(dout_rows, stage * kTileBytes));
                };
                const auto finish_sums = [&] {
                    wgmma_wait<0>();
                    pin_registers(dk_sum);
                    pin_registers(dv_sum);
                };
                // lse, to base 2, or delta of two queries.
                const auto pair = [&](unsigned stage, int i, int which) {
                    const float2* pairs = reinterpret_cast<const float2*>(barriers.statistics[stage]);
                    return pairs[which * (kTileRows / 2) + i / 4 * 4 + lane % 4];
                };
                const auto is_masked = [&](int row) { return last_key >= visible_keys(row, keys, causal_offset); };
                const auto finish_s = [&](unsigned stage, int row, bool masked) {
                    pin_registers(s);
                    if (masked) mask_queries(s, first_key + warp_key + lane / 4, row, keys, causal_offset);
#pragma unroll
                    for (int i = 0; i < kScores; ++i) {
                        const float2 lse = pair(stage, i, 0);
                        s[i] = exp2_fast(fmaf(s[i], scale_log2, -(i % 2 ? lse.y : lse.x)));
                    }
                };
                const auto finish_dp = [&](unsigned stage) {
                    wgmma_wait<0>();
                    pin_registers(dp);
#pragma unroll
                    for (int i = 0; i < kScores; ++i) {
                        const float2 delta = pair(stage, i, 1);
                        dp[i] = s[i] * (dp[i] - (i % 2 ? delta.y : delta.x));
                    }
                    pack_fragments(ds, dp);
                    pack_fragments(p, s);
                };

                // Past the sequence's end the copy engine puts zeros.
                if (keys < seqlen && first_key + kTileRows > keys) {
                    wait_for_group();
                    clear_rows(k_tile, max(keys - first_key, 0));
                    clear_rows(v_tile, max(keys - first_key, 0));
                    wait_for_group();
                }
                mbarrier_wait(&barriers.full[place.stage], place.parity);
                start_s(place.stage);
                start_dp(place.stage);
                int2 tile = barriers.tile[place.stage];
                bool masked = is_masked(tile.x);
                wgmma_wait<1>();
                finish_s(place.stage, tile.x, masked);
                finish_dp(place.stage);
                while (tile.y) {
                    mbarrier_wait(&barriers.full[next.stage], next.parity);
                    start_s(next.stage);
                    start_sums(place.stage);
                    tile = barriers.tile[next.stage];
                    masked = is_masked(tile.x);
                    wgmma_wait<2>();
                    finish_s(next.stage, tile.x, masked);
                    finish_sums();
                    start_dp(next.stage);
                    release(&barriers.empty[place.stage], lane);
                    place = next;
                    next.advance();
                    finish_dp(place.stage);
                }
                release(&barriers.rows_empty, lane);
                start_sums(place.stage);
                finish_sums();
                dk_tile = q_tiles + place.stage * kTileBytes;
                dv_tile = dout_tiles + place.stage * kTileBytes;
                left = &barriers.empty[place.stage];
                place = next;
                next.advance();
                wait_for_group();  // all have used the tile
            }

            // Addresses that are used once a work would else take registers in the loop over the queries.
            const int here = computed_here(threadIdx.x), out_lane = here % 32, out_key = here % kGroup / 32 * 16;
            const int warp_first = first_key + out_key;
            const long long first_element = (static_cast<long long>(batch_head) * seqlen + warp_first) * head_dim;
            const float one[2] = {1.0f, 1.0f}, scale[2] = {softmax_scale, softmax_scale};
            store_rows(dk + first_element, head_dim, dk_sum, scale, dk_tile, kPanelBytes, out_key, seqlen - warp_first,
                       head_dim, out_lane);
            store_rows(dv + first_element, head_dim, dv_sum, one, dv_tile, kPanelBytes, out_key, seqlen - warp_first,
                       head_dim, out_lane);
            fence_async_proxy();
            __syncwarp();
            release(left, lane);
        }
    }
}
