// Fused attention backward for Hopper: dq, dk, dv with the probabilities recomputed from the saved log-sum-exp,
// p = exp(s - lse), ds = p (dp - delta), all five products by wgmma, all sums in a fixed order.
//
// Work. A block keeps dk and dv of 128 keys in registers, 64 for each of two consumer warpgroups, and walks over the
// queries that see them, kBlockRows at a time from the last to the first. A consumer computes s^T = k q^T and
// dp^T = v dout^T of its keys, so that p^T and ds^T leave the accumulators as A operands of dv += p^T dout and
// dk += ds^T q. ds^T also goes to shared memory, and when both consumers have written it, each multiplies one half of
// dq = ds k. A third warpgroup has a thread that asks the copy engine for tiles of q and dout, STAGES ahead, and one
// that hands dq to the copy engine, which adds it to the sums in global memory.
//
// Order of sums. Blocks add to the dq of a tile in the order of their keys, handing it on by a counter: block n runs
// one hand-over behind block n - 1, so nobody waits once the first blocks have spread out; walking from the last
// query to the first keeps that so under a causal mask. The first one stores, so that the sums need no zeros.
//
// Shared memory: K, V, STAGES of q, dout and their statistics, two of ds^T, dq. Tiles are cut into panels of 64
// columns, 128-byte rows, swizzled by the copy engine; elements outside a tensor are zero there. dq lies as the
// accumulators do, 16 bytes of each thread in turn; backward_convert_sm90a.cu knows.
#include "attention/tiles_sm90a.cuh"
#include "backward_work.cuh"
#include "barrier.cuh"
#include "bulk_copy.cuh"
#include "math.cuh"
#include "mbarrier.cuh"
#include "semaphore.cuh"
#include "tma.cuh"

constexpr int kConsumers = 2, kThreads = (kConsumers + 1) * kGroup;
constexpr int kBlockKeys = 64 * kConsumers, kBlockRows = BLOCK_ROWS;
constexpr int kKeyPanelBytes = kBlockKeys * kRowBytes, kKeyTileBytes = kPanels * kKeyPanelBytes;
constexpr int kQueryPanelBytes = kBlockRows * kRowBytes, kQueryTileBytes = kPanels * kQueryPanelBytes;
constexpr int kDsBytes = kBlockRows / 64 * kKeyPanelBytes;
constexpr int kDqFloats = kBlockRows * PADDED_DIM;
constexpr int kStatisticsBytes = kBlockRows * sizeof(float2);
constexpr int kScores = kBlockRows / 2, kRowSteps = kBlockRows / 16, kDims = PADDED_DIM / 2;
constexpr int kDqShare = kDqFloats / kConsumers / kGroup;  // of a thread
constexpr int kDsBarrier = 1, kOwnBarrier = 2;
constexpr float kLog2e = 1.4426950408889634f;

struct Barriers {
    unsigned long long k_full, v_full, q_full[STAGES], q_empty[STAGES], dout_full[STAGES], dout_empty[STAGES], dq_full,
        dq_empty;
    int ticket;
};

// dq = ds k for a warpgroup's 64 queries and 64 dims.
__device__ __forceinline__ void multiply_keys(float (&dq)[kDqShare], unsigned long long ds, unsigned long long keys) {
#pragma unroll
    for (int step = 0; step < kBlockKeys / 16; ++step)
        PRODUCT(transposed)(dq, advance_descriptor(ds, step * 16 * kRowBytes),
                            advance_descriptor(keys, step * 16 * kRowBytes), step > 0);
    wgmma_commit();
}

// Scores of pairs that are masked become -inf. `key` is the thread's upper key, `row` the tile's first query.
__device__ __forceinline__ void mask_scores(float (&scores)[kScores], int key, int row, int seqlen_k,
                                            int causal_offset) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int this_key = key + 8 * half;
        const int hidden_rows =
            (this_key < seqlen_k ? this_key - causal_offset - row : kBlockRows) - threadIdx.x % 4 * 2;
#pragma unroll
        for (int tile = 0; tile < kBlockRows / 8; ++tile)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (tile * 8 + i < hidden_rows) scores[4 * tile + 2 * half + i] = -infinity();
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) spark_attention_backward_sm90a(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap dout_map,
    const float2* __restrict__ statistics, float* partial_dq, int* semaphores, Element* __restrict__ dk,
    Element* __restrict__ dv, int seqlen_q, int seqlen_k, int head_dim, int num_heads, int group, int batch,
    int heads_together, int causal_offset, float softmax_scale) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    unsigned char* k_tile = shared_memory;
    unsigned char* v_tile = k_tile + kKeyTileBytes;
    unsigned char* q_tiles = v_tile + kKeyTileBytes;
    unsigned char* dout_tiles = q_tiles + STAGES * kQueryTileBytes;
    unsigned char* ds_tiles = dout_tiles + STAGES * kQueryTileBytes;
    float* dq_tile = reinterpret_cast<float*>(ds_tiles + 2 * kDsBytes);
    unsigned char* statistics_tiles = reinterpret_cast<unsigned char*>(dq_tile + kDqFloats);
    Barriers& barriers = *reinterpret_cast<Barriers*>(statistics_tiles + STAGES * kStatisticsBytes);

    if (threadIdx.x == 0) {
        mbarrier_init(&barriers.k_full, 1);
        mbarrier_init(&barriers.v_full, 1);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&barriers.q_full[stage], 1);
            mbarrier_init(&barriers.dout_full[stage], 1);
            mbarrier_init(&barriers.q_empty[stage], kConsumers * 4);  // one arrival of each warp
            mbarrier_init(&barriers.dout_empty[stage], kConsumers * 4);
        }
        mbarrier_init(&barriers.dq_full, kConsumers * 4);
        mbarrier_init(&barriers.dq_empty, 1);
        fence_mbarrier_init();
    }
    const int heads_kv = num_heads / group;
    const Work work = take_work(semaphores, &barriers.ticket, (seqlen_k + kBlockKeys - 1) / kBlockKeys,
                                batch * heads_kv, heads_together);
    const int batch_index = work.batch_head / heads_kv, head_kv = work.batch_head % heads_kv;
    const int first_key = work.key_block * kBlockKeys;
    const int tiles = (seqlen_q + kBlockRows - 1) / kBlockRows;
    const int first_tile = max(first_key - causal_offset, 0) / kBlockRows;
    const unsigned steps = group * max(tiles - first_tile, 0);
    const int head_tiles = work.batch_head * group * tiles;  // those of all heads before these

    // Equal over a warp, which the compiler cannot see from threadIdx.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (warp >= kConsumers * 4) {
        give_up_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x == kConsumers * kGroup && steps > 0) {
            tma_prefetch_map(&q_map);
            tma_prefetch_map(&k_map);
            tma_prefetch_map(&v_map);
            tma_prefetch_map(&dout_map);
            const auto load_keys = [&](unsigned char* target, const TensorMap* map, unsigned long long* full) {
                mbarrier_arrive_expect(full, kKeyTileBytes);
                for (int panel = 0; panel < kPanels; ++panel)
                    tma_load(target + panel * kKeyPanelBytes, map, full, panel * 64, first_key, head_kv, batch_index);
            };
            const auto load_queries = [&](unsigned char* target, const TensorMap* map, unsigned long long* full,
                                          int head, int tile) {
                for (int panel = 0; panel < kPanels; ++panel)
                    tma_load(target + panel * kQueryPanelBytes, map, full, panel * 64, tile * kBlockRows,
                             head_kv * group + head, batch_index);
            };
            load_keys(k_tile, &k_map, &barriers.k_full);
            int head = 0, tile = tiles;
            for (unsigned step = 0; step < steps; ++step) {
                if (tile-- == first_tile) {
                    tile = tiles - 1;
                    ++head;
                }
                const unsigned stage = stage_of<STAGES>(step), parity = parity_of<STAGES>(step) ^ 1;
                mbarrier_wait(&barriers.q_empty[stage], parity);
                mbarrier_arrive_expect(&barriers.q_full[stage], kQueryTileBytes + kStatisticsBytes);
                load_queries(q_tiles + stage * kQueryTileBytes, &q_map, &barriers.q_full[stage], head, tile);
                bulk_load(statistics_tiles + stage * kStatisticsBytes,
                          statistics + static_cast<long long>(head_tiles + head * tiles + tile) * kBlockRows,
                          kStatisticsBytes, &barriers.q_full[stage]);
                if (step == 0) load_keys(v_tile, &v_map, &barriers.v_full);
                mbarrier_wait(&barriers.dout_empty[stage], parity);
                mbarrier_arrive_expect(&barriers.dout_full[stage], kQueryTileBytes);
                load_queries(dout_tiles + stage * kQueryTileBytes, &dout_map, &barriers.dout_full[stage], head, tile);
            }
        } else if (threadIdx.x == kConsumers * kGroup + 32) {
            int head_tile = head_tiles + tiles, tile = tiles;
            for (unsigned step = 0; step < steps; ++step) {
                if (tile-- == first_tile) {
                    tile = tiles - 1;
                    head_tile += 2 * tiles - first_tile;
                }
                --head_tile;
                int* summed = semaphores + 1 + head_tile;
                mbarrier_wait(&barriers.dq_full, step & 1);
                float* sums = partial_dq + static_cast<long long>(head_tile) * kDqFloats;
                if (work.key_block == 0) {
                    bulk_store(sums, dq_tile, kDqFloats * sizeof(float));
                } else {
                    while (load_acquire(summed) < work.key_block) {
                    }
                    fence_async_proxy_global();
                    bulk_add(sums, dq_tile, kDqFloats * sizeof(float));
                }
                bulk_commit();
                bulk_wait_read();
                mbarrier_arrive(&barriers.dq_empty);
                bulk_wait();
                store_release(summed, work.key_block + 1);
            }
            bulk_wait();
        }
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const int consumer = warp / 4, lane = threadIdx.x % 32;
        const int warp_key = warp * 16;
        const int own_keys = consumer * 64 * kRowBytes;
        const unsigned long long k_rows = matrix_descriptor(k_tile + own_keys, 0, kPatternBytes);
        const unsigned long long v_rows = matrix_descriptor(v_tile + own_keys, 0, kPatternBytes);
        const unsigned long long q_rows = matrix_descriptor(q_tiles, kQueryPanelBytes, kPatternBytes);
        const unsigned long long dout_rows = matrix_descriptor(dout_tiles, kQueryPanelBytes, kPatternBytes);
        // A consumer's share of dq is 64 of 128 queries, or of 128 dims.
        const unsigned long long ds_queries =
            matrix_descriptor(ds_tiles + (kPanels == 1 ? consumer * kKeyPanelBytes : 0), 0, kPatternBytes);
        const unsigned long long k_dims =
            matrix_descriptor(k_tile + (kPanels == 1 ? 0 : consumer * kKeyPanelBytes), 0, kPatternBytes);
        const float scale_log2 = softmax_scale * kLog2e;
        const auto release = [&](unsigned long long* empty) {
            if (lane == 0) mbarrier_arrive(empty);
        };

        float dk_sum[kDims], dv_sum[kDims];
#pragma unroll
        for (int i = 0; i < kDims; ++i) dk_sum[i] = dv_sum[i] = 0.0f;
        if (steps > 0) {
            float s[kScores];
            const auto start_scores = [&](unsigned step) {
                const unsigned stage = stage_of<STAGES>(step);
                mbarrier_wait(&barriers.q_full[stage], parity_of<STAGES>(step));
                wgmma_fence();
                multiply_rows(s, k_rows, kKeyPanelBytes, advance_descriptor(q_rows, stage * kQueryTileBytes),
                              kQueryPanelBytes);
            };
            mbarrier_wait(&barriers.k_full, 0);
            start_scores(0);
            mbarrier_wait(&barriers.v_full, 0);
            int tile = tiles;
            unsigned step = 0;
            do {
                if (tile-- == first_tile) tile = tiles - 1;
                const int row = tile * kBlockRows;
                const unsigned stage = stage_of<STAGES>(step);
                const unsigned long long q = advance_descriptor(q_rows, stage * kQueryTileBytes);
                const unsigned long long dout = advance_descriptor(dout_rows, stage * kQueryTileBytes);
                float dp[kScores];
                mbarrier_wait(&barriers.dout_full[stage], parity_of<STAGES>(step));
                wgmma_wait<0>();
                pin_registers(s);
                wgmma_fence();
                multiply_rows(dp, v_rows, kKeyPanelBytes, dout, kQueryPanelBytes);

                if (first_key + consumer * 64 + 64 > visible_keys(row, seqlen_k, causal_offset))
                    mask_scores(s, first_key + warp_key + lane / 4, row, seqlen_k, causal_offset);
                const float4* pairs =
                    reinterpret_cast<const float4*>(statistics_tiles + stage * kStatisticsBytes) + lane % 4;
#pragma unroll
                for (int n = 0; n < kBlockRows / 8; ++n) {
                    const float4 pair = pairs[n * 4];  // lse, delta of two queries
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        s[4 * n + i] = exp2_fast(fmaf(s[4 * n + i], scale_log2, -(i % 2 ? pair.z : pair.x)));
                }
                unsigned p[kRowSteps][4], ds[kRowSteps][4];
                wgmma_wait<0>();
                pin_registers(dp);
#pragma unroll
                for (int n = 0; n < kBlockRows / 8; ++n) {
                    const float4 pair = pairs[n * 4];
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        dp[4 * n + i] = s[4 * n + i] * (dp[4 * n + i] - (i % 2 ? pair.w : pair.y));
                }
                pack_fragments(ds, dp);
                unsigned char* ds_tile = ds_tiles + step % 2 * kDsBytes;
#pragma unroll
                for (int i = 0; i < kRowSteps; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        *reinterpret_cast<unsigned*>(
                            chunk_at(ds_tile, kKeyPanelBytes, warp_key + lane / 4 + j % 2 * 8, i * 2 + j / 2) +
                            lane % 4 * 4) = ds[i][j];
                fence_async_proxy();
                pack_fragments(p, s);
                wgmma_fence();
                accumulate_rows(dv_sum, p, dout);
                accumulate_rows(dk_sum, ds, q);

                named_barrier_sync(kDsBarrier, kConsumers * kGroup);
                float dq[kDqShare];
                wgmma_wait<1>();
                wgmma_fence();
                multiply_keys(dq, advance_descriptor(ds_queries, step % 2 * kDsBytes), k_dims);
                start_scores(min(step + 1, steps - 1));  // the last again: a branch would serialise the wgmmas
                wgmma_wait<1>();
                pin_registers(dq);
                pin_registers(dk_sum);
                pin_registers(dv_sum);
                release(&barriers.q_empty[stage]);
                release(&barriers.dout_empty[stage]);

                mbarrier_wait(&barriers.dq_empty, step & 1 ^ 1);
                float4* dq_chunks = reinterpret_cast<float4*>(dq_tile) + consumer * (kDqShare / 4 * kGroup);
#pragma unroll
                for (int i = 0; i < kDqShare / 4; ++i) {
                    const float4 chunk = {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]};
                    dq_chunks[i * kGroup + threadIdx.x % kGroup] = chunk;
                }
                fence_async_proxy();
                __syncwarp();
                release(&barriers.dq_full);
            } while (++step < steps);
            wgmma_wait<0>();
        }

        // No warp reads the rows of V of another one's warpgroup.
        named_barrier_sync(kOwnBarrier + consumer, kGroup);
        const long long first_element =
            (static_cast<long long>(work.batch_head) * seqlen_k + first_key + warp_key) * head_dim;
        const int row_count = seqlen_k - first_key - warp_key;
        const float one[2] = {1.0f, 1.0f}, scale[2] = {softmax_scale, softmax_scale};
        store_rows(dv + first_element, head_dim, dv_sum, one, v_tile, kKeyPanelBytes, warp_key, row_count, head_dim,
                   lane);
        __syncwarp();
        store_rows(dk + first_element, head_dim, dk_sum, scale, v_tile, kKeyPanelBytes, warp_key, row_count, head_dim,
                   lane);
    }
}
