// Fused attention forward for Hopper: out = softmax(q k^T * scale) v and its log-sum-exp, with the online softmax.
//
// Work. A tile is 64 query rows for each of CONSUMERS warpgroups of a block. Each walks over the keys from the last
// that its rows see to the first, BLOCK_N at a time, so that masked keys come first and the rest need no mask. One
// further warpgroup, of which one thread works, asks the copy engine for tiles of K and V, STAGES of each ahead; it
// gives its registers to the others. Each consumer has a buffer of its own for its rows of Q, or Q_STAGES of them, so
// that one begins the next tile while another ends the last. A block starts with the tile of its number and then
// takes those that are left by ticket, the tiles with most keys first: so all blocks end at about the same time.
//
// Overlap. A consumer issues q k^T of the next keys and p v of the present ones, then computes the softmax of the next
// scores while p v runs. The consumers take turns (named barriers): while one issues its two products, the others are
// in their softmax. Registers per consumer thread: BLOCK_N / 2 scores, BLOCK_N / 4 of p, PADDED_DIM / 2 of the output.
//
// Shared memory. A tile is cut into panels of 64 columns, 128-byte rows, swizzled by the copy engine as wgmma reads
// them. The copy engine fills elements outside a tensor with zeros, so a head dim below PADDED_DIM and the last tile
// of a sequence need no care but the mask. The output leaves through the rows of Q in whole 16-byte chunks: head_dim
// is a multiple of 8, and all rows start at multiples of 16 bytes (forward_sm90.py says which tensors qualify).
#include "attention/log_sum_exp.cuh"
#include "attention/softmax_sm90a.cuh"
#include "attention/tiles_sm90a.cuh"
#include "barrier.cuh"
#include "math.cuh"
#include "mbarrier.cuh"
#include "tma.cuh"

constexpr int kThreads = (CONSUMERS + 1) * kGroup;
constexpr int kBlockRows = 64 * CONSUMERS;
constexpr int kPanelBytes = BLOCK_N * kRowBytes;
constexpr int kTileBytes = kPanels * kPanelBytes;
constexpr int kQueryPanelBytes = 64 * kRowBytes;  // of one consumer
constexpr int kQueryTileBytes = kPanels * kQueryPanelBytes;
constexpr float kLog2e = 1.4426950408889634f;

// Named barriers: a consumer's own, and its turn to issue products.
constexpr int kOwnBarrier = 1, kTurnBarrier = 1 + CONSUMERS;

struct Barriers {
    unsigned long long q_full[Q_STAGES][CONSUMERS], q_empty[Q_STAGES][CONSUMERS], k_full[STAGES], k_empty[STAGES],
        v_full[STAGES], v_empty[STAGES];
    int tile[Q_STAGES][CONSUMERS];  // whose rows of Q these are
};

struct Work {
    int first_row, head, batch, key_tiles;
};

// Tile `index` of all: of `heads_together` heads at a time, whose keys and values fit L2, the last queries first, which
// under a causal mask see most keys.
__device__ __forceinline__ Work locate(int index, int query_tiles, int num_heads, int batch, int heads_together,
                                       int seqlen_q, int seqlen_k, int causal_offset) {
    const int first_head = index / (heads_together * query_tiles) * heads_together;
    const int heads = min(heads_together, num_heads * batch - first_head);
    const int rest = index - first_head * query_tiles, head = first_head + rest % heads;
    const int first_row = (query_tiles - 1 - rest / heads) * kBlockRows;
    const int keys = visible_keys(min(first_row + kBlockRows, seqlen_q) - 1, seqlen_k, causal_offset);
    return {first_row, head % num_heads, head / num_heads, (keys + BLOCK_N - 1) / BLOCK_N};
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) spark_attention_forward_sm90a(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, Element* __restrict__ out, float* __restrict__ lse, int* tickets,
    long long out_batch_stride, long long out_head_stride, long long out_row_stride, int seqlen_q, int seqlen_k,
    int head_dim, int num_heads, int group, int batch, int heads_together, int causal_offset, int query_tiles,
    int tiles, float softmax_scale) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    unsigned char* q_tiles = shared_memory;
    unsigned char* k_tiles = q_tiles + Q_STAGES * CONSUMERS * kQueryTileBytes;
    unsigned char* v_tiles = k_tiles + STAGES * kTileBytes;
    Barriers& barriers = *reinterpret_cast<Barriers*>(v_tiles + STAGES * kTileBytes);

    if (threadIdx.x == 0) {
        for (int i = 0; i < Q_STAGES * CONSUMERS; ++i) {
            mbarrier_init(&barriers.q_full[0][i], 1);
            mbarrier_init(&barriers.q_empty[0][i], 4);  // one arrival of each warp
        }
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&barriers.k_full[stage], 1);
            mbarrier_init(&barriers.v_full[stage], 1);
            mbarrier_init(&barriers.k_empty[stage], CONSUMERS * 4);
            mbarrier_init(&barriers.v_empty[stage], CONSUMERS * 4);
        }
        fence_mbarrier_init();
    }
    __syncthreads();

    // Equal over a warp, which the compiler cannot see from threadIdx.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (warp >= CONSUMERS * 4) {
        give_up_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x == CONSUMERS * kGroup) {
            tma_prefetch_map(&q_map);
            tma_prefetch_map(&k_map);
            tma_prefetch_map(&v_map);
            unsigned loaded_k = 0, loaded_v = 0;
            int index = blockIdx.x;
            for (unsigned round = 0;; ++round) {
                const Work work =
                    locate(index, query_tiles, num_heads, batch, heads_together, seqlen_q, seqlen_k, causal_offset);
                const auto load = [&](unsigned char* target, const TensorMap* map, unsigned long long* full,
                                      unsigned long long* empty, unsigned& loaded, int tile) {
                    const unsigned stage = stage_of<STAGES>(loaded);
                    mbarrier_wait(&empty[stage], parity_of<STAGES>(loaded) ^ 1);
                    mbarrier_arrive_expect(&full[stage], kTileBytes);
                    for (int panel = 0; panel < kPanels; ++panel)
                        tma_load(target + stage * kTileBytes + panel * kPanelBytes, map, &full[stage], panel * 64,
                                 tile * BLOCK_N, work.head / group, work.batch);
                    ++loaded;
                };
                const unsigned q_stage = stage_of<Q_STAGES>(round);
                for (int consumer = 0; consumer < CONSUMERS; ++consumer) {
                    unsigned long long* full = &barriers.q_full[q_stage][consumer];
                    mbarrier_wait(&barriers.q_empty[q_stage][consumer], parity_of<Q_STAGES>(round) ^ 1);
                    barriers.tile[q_stage][consumer] = index;
                    if (index >= tiles) {
                        mbarrier_arrive(full);
                        continue;
                    }
                    mbarrier_arrive_expect(full, kQueryTileBytes);
                    for (int panel = 0; panel < kPanels; ++panel)
                        tma_load(
                            q_tiles + (q_stage * CONSUMERS + consumer) * kQueryTileBytes + panel * kQueryPanelBytes,
                            &q_map, full, panel * 64, work.first_row + consumer * 64, work.head, work.batch);
                }
                if (index >= tiles) break;
                const int ticket = atomicAdd(tickets, 1);  // early: it takes its time
                // In the order of use: the keys of a tile before the values of the last one.
                for (int tile = work.key_tiles - 1; tile >= -1; --tile) {
                    if (tile >= 0) load(k_tiles, &k_map, barriers.k_full, barriers.k_empty, loaded_k, tile);
                    if (tile + 1 < work.key_tiles)
                        load(v_tiles, &v_map, barriers.v_full, barriers.v_empty, loaded_v, tile + 1);
                }
                index = gridDim.x + ticket;
                // Each block takes one that is too high; so this is the last of all, and the counter is ready again.
                if (ticket == tiles - 1) *tickets = 0;
            }
        }
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const int consumer = warp / 4, lane = threadIdx.x % 32;
        const int warp_row = warp * 16;  // of the block's rows
        const unsigned long long q_base = matrix_descriptor(q_tiles + consumer * kQueryTileBytes, 0, kPatternBytes);
        unsigned long long q_descriptor = q_base;
        const unsigned long long k_descriptor = matrix_descriptor(k_tiles, 0, kPatternBytes);
        const unsigned long long v_descriptor = matrix_descriptor(v_tiles, kPanelBytes, kPatternBytes);
        const float scale_log2 = softmax_scale * kLog2e;
        const int turn = kTurnBarrier + consumer, next_turn = kTurnBarrier + (consumer + 1) % CONSUMERS;
        if (consumer == CONSUMERS - 1) named_barrier_arrive(next_turn, 2 * kGroup);
        const auto release = [&](unsigned long long* empty) {
            if (lane == 0) mbarrier_arrive(empty);
        };
        unsigned used = 0;  // key tiles, with those in use
        const auto start_keys = [&](float (&scores)[kScores]) {
            used = __shfl_sync(0xffffffffu, used, 0);  // equal over the warp: descriptors go to uniform registers
            const unsigned stage = stage_of<STAGES>(used);
            mbarrier_wait(&barriers.k_full[stage], parity_of<STAGES>(used));
            named_barrier_sync(turn, 2 * kGroup);
            wgmma_fence();
            multiply_rows(scores, q_descriptor, kQueryPanelBytes, advance_descriptor(k_descriptor, stage * kTileBytes),
                          kPanelBytes);
            ++used;
        };
        const auto finish_keys = [&](float (&scores)[kScores]) {
            pin_registers(scores);
            release(&barriers.k_empty[stage_of<STAGES>(used - 1)]);
        };
        // The tile of values is `behind` the newest one of keys.
        const auto start_values = [&](float (&output)[kOutputs], const unsigned (&p)[kSteps][4], unsigned behind) {
            const unsigned stage = stage_of<STAGES>(used - 1 - behind);
            mbarrier_wait(&barriers.v_full[stage], parity_of<STAGES>(used - 1 - behind));
            wgmma_fence();
            accumulate_rows(output, p, advance_descriptor(v_descriptor, stage * kTileBytes));
        };
        const auto finish_values = [&](float (&output)[kOutputs], unsigned behind) {
            wgmma_wait<0>();
            pin_registers(output);
            release(&barriers.v_empty[stage_of<STAGES>(used - 1 - behind)]);
        };
        for (unsigned round = 0;; ++round) {
            const unsigned q_stage = stage_of<Q_STAGES>(round);
            mbarrier_wait(&barriers.q_full[q_stage][consumer], parity_of<Q_STAGES>(round));
            const int index = barriers.tile[q_stage][consumer];
            if (index >= tiles) break;
            const Work work =
                locate(index, query_tiles, num_heads, batch, heads_together, seqlen_q, seqlen_k, causal_offset);
            q_descriptor = advance_descriptor(q_base, q_stage * CONSUMERS * kQueryTileBytes);
            const int consumer_row = work.first_row + consumer * 64, last_row = min(consumer_row + 64, seqlen_q) - 1;
            // Keys that none of these 64 rows sees are passed by.
            const int own_tiles =
                last_row < consumer_row ? 0 : (visible_keys(last_row, seqlen_k, causal_offset) + BLOCK_N - 1) / BLOCK_N;
            const int row = work.first_row + warp_row + lane / 4;
            RowState state = {{-infinity(), -infinity()}, {0.0f, 0.0f}};
            float output[kOutputs];
#pragma unroll
            for (int i = 0; i < kOutputs; ++i) output[i] = 0.0f;

            for (int tile = work.key_tiles; tile > own_tiles; --tile) {
                const unsigned stage = stage_of<STAGES>(used);
                mbarrier_wait(&barriers.k_full[stage], parity_of<STAGES>(used));
                named_barrier_sync(turn, 2 * kGroup);
                named_barrier_arrive(next_turn, 2 * kGroup);
                release(&barriers.k_empty[stage]);
                mbarrier_wait(&barriers.v_full[stage], parity_of<STAGES>(used));
                release(&barriers.v_empty[stage]);
                ++used;
            }
            if (own_tiles > 0) {
                float scores[kScores], correction[2];
                unsigned p[kSteps][4];
                const int unmasked_keys = visible_keys(work.first_row + consumer * 64, seqlen_k, causal_offset);
                int key = (own_tiles - 1) * BLOCK_N;

                start_keys(scores);
                named_barrier_arrive(next_turn, 2 * kGroup);
                wgmma_wait<0>();
                finish_keys(scores);
                mask_scores(scores, row, key, seqlen_k, causal_offset);
                online_softmax(scores, state, correction, scale_log2);
                pack_fragments(p, scores);

                for (key -= BLOCK_N; key >= 0; key -= BLOCK_N) {
                    start_keys(scores);
                    start_values(output, p, 1);
                    named_barrier_arrive(next_turn, 2 * kGroup);
                    wgmma_wait<1>();
                    finish_keys(scores);
                    if (key + BLOCK_N > unmasked_keys) mask_scores(scores, row, key, seqlen_k, causal_offset);
                    online_softmax(scores, state, correction, scale_log2);
                    finish_values(output, 1);
                    scale_output(output, correction);
                    pack_fragments(p, scores);
                }
                start_values(output, p, 0);
                finish_values(output, 0);
            }

            // Addresses that are used once a tile would else take registers in the loop over the keys.
            const int here = computed_here(threadIdx.x), out_lane = here % 32, out_warp_row = here % kGroup / 32 * 16;
            const int lse_row = consumer_row + out_warp_row + out_lane / 4;
            float inverse[2];
            float* tile_lse = lse + (static_cast<long long>(work.batch) * num_heads + work.head) * seqlen_q;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float sum = row_total(state.sum[half]);
                inverse[half] = sum == 0.0f ? 0.0f : reciprocal_fast(sum);
                if (out_lane % 4 == 0 && lse_row + 8 * half < seqlen_q)
                    tile_lse[lse_row + 8 * half] = log_sum_exp(state.maximum[half], sum, softmax_scale, scale_log2);
            }

            // Q is no longer needed once all warps of the group have come here.
            named_barrier_sync(kOwnBarrier + consumer, kGroup);
            const int out_row = consumer_row + out_warp_row;
            store_rows(out + work.batch * out_batch_stride + work.head * out_head_stride + out_row * out_row_stride,
                       out_row_stride, output, inverse, q_tiles + (q_stage * CONSUMERS + consumer) * kQueryTileBytes,
                       kQueryPanelBytes, out_warp_row, seqlen_q - out_row, head_dim, out_lane);
            fence_async_proxy();
            __syncwarp();
            release(&barriers.q_empty[q_stage][consumer]);
        }
    }
}
