// Fused attention forward for Hopper: out = softmax(q k^T * scale) v and its log-sum-exp, with the online softmax.
//
// Work. A block holds 64 query rows for each of its CONSUMERS warpgroups and walks over the keys from the last tile to
// the first, BLOCK_N at a time, so that masked tiles come first and the rest need no mask. Blocks go over the query
// tiles of the grid by steps of gridDim.x. One further warpgroup, of which one thread works, asks the copy engine for
// tiles of K and V, STAGES of each ahead; it gives its registers to the others.
//
// Overlap. A consumer issues q k^T of the next tile and p v of the present one, then computes the softmax of the next
// scores while p v runs. The consumers take turns (named barriers): while one issues its two products, the others are
// in their softmax. Registers per consumer thread: BLOCK_N / 2 scores, BLOCK_N / 4 of p, PADDED_DIM / 2 of the output.
//
// Shared memory. A tile is cut into panels of 64 columns, 128-byte rows, swizzled by the copy engine as wgmma reads
// them. The copy engine fills elements outside a tensor with zeros, so a head dim below PADDED_DIM and the last tile
// of a sequence need no care but the mask. The output leaves through the rows of Q in whole 16-byte chunks: head_dim
// is a multiple of 8, and all rows start at multiples of 16 bytes (sm90.py says which tensors qualify).
#include "arguments.cuh"
#include "attention/softmax_sm90a.cuh"
#include "barrier.cuh"
#include "math.cuh"
#include "mbarrier.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kThreads = (CONSUMERS + 1) * kGroup;
constexpr int kBlockRows = 64 * CONSUMERS;
constexpr int kPanels = PADDED_DIM / 64;
constexpr int kRowBytes = 128;
constexpr int kPatternBytes = 8 * kRowBytes;  // the swizzle repeats
constexpr int kPanelBytes = BLOCK_N * kRowBytes;
constexpr int kTileBytes = kPanels * kPanelBytes;
constexpr int kQueryPanelBytes = kBlockRows * kRowBytes;
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// Named barriers: a consumer's own, and its turn to issue products.
constexpr int kOwnBarrier = 1, kTurnBarrier = 1 + CONSUMERS;

struct Barriers {
    unsigned long long q_full, q_empty, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

// Place of a tile, counted from the block's first, in a ring of STAGES, and the parity of its phase there.
__device__ __forceinline__ unsigned stage_of(unsigned tile) {
    return tile % STAGES;
}

__device__ __forceinline__ unsigned parity_of(unsigned tile) {
    return tile / STAGES & 1;
}

struct Work {
    int first_row, head, batch, key_tiles;
};

// Tile `index` of the grid, of the query tiles of one head the last first: under a causal mask it has most work.
__device__ __forceinline__ Work locate(int index, int query_tiles, int num_heads, int seqlen_q, int seqlen_k,
                                       int causal_offset) {
    const int heads = index / query_tiles;
    const int first_row = (query_tiles - 1 - index % query_tiles) * kBlockRows;
    const int keys = visible_keys(min(first_row + kBlockRows, seqlen_q) - 1, seqlen_k, causal_offset);
    return {first_row, heads % num_heads, heads / num_heads, (keys + BLOCK_N - 1) / BLOCK_N};
}

// scores = q k^T of a warpgroup; the operands are descriptors of the tiles' first panels.
__device__ __forceinline__ void multiply_keys(float (&scores)[kScores], unsigned long long q, unsigned long long k) {
#pragma unroll
    for (int step = 0; step < PADDED_DIM / 16; ++step) {
        const int panel = step / 4, column = step % 4 * 32;
        const unsigned long long a = advance_descriptor(q, panel * kQueryPanelBytes + column);
        const unsigned long long b = advance_descriptor(k, panel * kPanelBytes + column);
#if BFLOAT16
        wgmma_shared_bf16(scores, a, b, step > 0);
#else
        wgmma_shared_f16(scores, a, b, step > 0);
#endif
    }
    wgmma_commit();
}

// output += p v of a warpgroup.
__device__ __forceinline__ void multiply_values(float (&output)[kOutputs], const unsigned (&p)[kSteps][4],
                                                unsigned long long v) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        const unsigned long long b = advance_descriptor(v, step * 16 * kRowBytes);
#if BFLOAT16
        wgmma_registers_bf16(output, p[step], b, true);
#else
        wgmma_registers_f16(output, p[step], b, true);
#endif
    }
    wgmma_commit();
}

// 16 bytes of a panel of Q; `row` counts from the panel's start.
__device__ __forceinline__ unsigned char* output_chunk(unsigned char* q, int row, int chunk) {
    return q + chunk / 8 * kQueryPanelBytes + row * kRowBytes + (chunk % 8 ^ row % 8) * 16;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) spark_attention_forward_sm90a(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, Element* __restrict__ out, float* __restrict__ lse,
    long long out_batch_stride, long long out_head_stride, long long out_row_stride, int seqlen_q, int seqlen_k,
    int head_dim, int num_heads, int group, int causal_offset, int query_tiles, int tiles, float softmax_scale) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    unsigned char* q_tile = shared_memory;
    unsigned char* k_tiles = q_tile + kPanels * kQueryPanelBytes;
    unsigned char* v_tiles = k_tiles + STAGES * kTileBytes;
    Barriers& barriers = *reinterpret_cast<Barriers*>(v_tiles + STAGES * kTileBytes);

    if (threadIdx.x == 0) {
        mbarrier_init(&barriers.q_full, 1);
        mbarrier_init(&barriers.q_empty, CONSUMERS * 4);  // one arrival of each warp
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
            unsigned q_parity = 0, loaded_k = 0, loaded_v = 0;
            for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
                const Work work = locate(index, query_tiles, num_heads, seqlen_q, seqlen_k, causal_offset);
                const auto load = [&](unsigned char* target, const TensorMap* map, unsigned long long* full,
                                      unsigned long long* empty, unsigned& loaded, int tile) {
                    const unsigned stage = stage_of(loaded);
                    mbarrier_wait(&empty[stage], parity_of(loaded) ^ 1);
                    mbarrier_arrive_expect(&full[stage], kTileBytes);
                    for (int panel = 0; panel < kPanels; ++panel)
                        tma_load(target + stage * kTileBytes + panel * kPanelBytes, map, &full[stage], panel * 64,
                                 tile * BLOCK_N, work.head / group, work.batch);
                    ++loaded;
                };
                mbarrier_wait(&barriers.q_empty, q_parity ^ 1);
                q_parity ^= 1;
                if (work.key_tiles == 0) {
                    mbarrier_arrive(&barriers.q_full);
                    continue;
                }
                mbarrier_arrive_expect(&barriers.q_full, kPanels * kQueryPanelBytes);
                for (int panel = 0; panel < kPanels; ++panel)
                    tma_load(q_tile + panel * kQueryPanelBytes, &q_map, &barriers.q_full, panel * 64, work.first_row,
                             work.head, work.batch);
                // In the order of use: the keys of a tile before the values of the last one.
                for (int tile = work.key_tiles - 1; tile >= -1; --tile) {
                    if (tile >= 0) load(k_tiles, &k_map, barriers.k_full, barriers.k_empty, loaded_k, tile);
                    if (tile + 1 < work.key_tiles)
                        load(v_tiles, &v_map, barriers.v_full, barriers.v_empty, loaded_v, tile + 1);
                }
            }
        }
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const int consumer = warp / 4, lane = threadIdx.x % 32;
        const int warp_row = warp * 16;  // of the block's rows
        const unsigned long long q_descriptor = matrix_descriptor(q_tile + consumer * 64 * kRowBytes, 0, kPatternBytes);
        const unsigned long long k_descriptor = matrix_descriptor(k_tiles, 0, kPatternBytes);
        const unsigned long long v_descriptor = matrix_descriptor(v_tiles, kPanelBytes, kPatternBytes);
        const float scale_log2 = softmax_scale * kLog2e;
        const int turn = kTurnBarrier + consumer, next_turn = kTurnBarrier + (consumer + 1) % CONSUMERS;
        if (consumer == CONSUMERS - 1) named_barrier_arrive(next_turn, 2 * kGroup);
        const auto release = [&](unsigned long long* empty) {
            if (lane == 0) mbarrier_arrive(empty);
        };
        unsigned q_parity = 0;
        unsigned used = 0;  // key tiles, with those in use
        const auto start_keys = [&](float (&scores)[kScores]) {
            used = __shfl_sync(0xffffffffu, used, 0);  // equal over the warp: descriptors go to uniform registers
            const unsigned stage = stage_of(used);
            mbarrier_wait(&barriers.k_full[stage], parity_of(used));
            named_barrier_sync(turn, 2 * kGroup);
            wgmma_fence();
            multiply_keys(scores, q_descriptor, advance_descriptor(k_descriptor, stage * kTileBytes));
            ++used;
        };
        const auto finish_keys = [&](float (&scores)[kScores]) {
            pin_registers(scores);
            release(&barriers.k_empty[stage_of(used - 1)]);
        };
        // The tile of values is `behind` the newest one of keys.
        const auto start_values = [&](float (&output)[kOutputs], const unsigned (&p)[kSteps][4], unsigned behind) {
            const unsigned stage = stage_of(used - 1 - behind);
            mbarrier_wait(&barriers.v_full[stage], parity_of(used - 1 - behind));
            wgmma_fence();
            multiply_values(output, p, advance_descriptor(v_descriptor, stage * kTileBytes));
        };
        const auto finish_values = [&](float (&output)[kOutputs], unsigned behind) {
            wgmma_wait<0>();
            pin_registers(output);
            release(&barriers.v_empty[stage_of(used - 1 - behind)]);
        };
        for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
            const Work work = locate(index, query_tiles, num_heads, seqlen_q, seqlen_k, causal_offset);
            const int row = work.first_row + warp_row + lane / 4;
            RowState state = {{-infinity(), -infinity()}, {0.0f, 0.0f}};
            float output[kOutputs];
#pragma unroll
            for (int i = 0; i < kOutputs; ++i) output[i] = 0.0f;

            mbarrier_wait(&barriers.q_full, q_parity);  // and the buffer is this tile's, for its output at least
            q_parity ^= 1;
            if (work.key_tiles > 0) {
                float scores[kScores], correction[2];
                unsigned p[kSteps][4];
                const int unmasked_keys = visible_keys(work.first_row + consumer * 64, seqlen_k, causal_offset);
                int key = (work.key_tiles - 1) * BLOCK_N;

                start_keys(scores);
                named_barrier_arrive(next_turn, 2 * kGroup);
                wgmma_wait<0>();
                finish_keys(scores);
                mask_scores(scores, row, key, seqlen_k, causal_offset);
                online_softmax(scores, state, correction, scale_log2);
                pack_probabilities(p, scores);

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
                    pack_probabilities(p, scores);
                }
                start_values(output, p, 0);
                finish_values(output, 0);
            }

            // Addresses that are used once a tile would else take registers in the loop over the keys.
            const int here = computed_here(threadIdx.x), out_lane = here % 32, out_warp_row = here / 32 * 16;
            const int lse_row = work.first_row + out_warp_row + out_lane / 4;
            float inverse[2];
            float* tile_lse = lse + (static_cast<long long>(work.batch) * num_heads + work.head) * seqlen_q;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float sum = row_total(state.sum[half]);
                inverse[half] = sum == 0.0f ? 0.0f : reciprocal_fast(sum);
                if (out_lane % 4 == 0 && lse_row + 8 * half < seqlen_q)
                    tile_lse[lse_row + 8 * half] =
                        sum == 0.0f ? -infinity() : (state.maximum[half] * scale_log2 + log2_fast(sum)) * kLn2;
            }
            scale_output(output, inverse);

            // Q is no longer needed once all warps of the group have come here.
            named_barrier_sync(kOwnBarrier + consumer, kGroup);
#pragma unroll
            for (int i = 0; i < kOutputs; i += 2)
                *reinterpret_cast<unsigned*>(output_chunk(q_tile, out_warp_row + out_lane / 4 + i / 2 % 2 * 8, i / 4) +
                                             out_lane % 4 * 4) = pack(output[i], output[i + 1]);
            __syncwarp();
            Element* tile_out = out + work.batch * out_batch_stride + work.head * out_head_stride;
            constexpr int kChunks = PADDED_DIM / 8;
            const int chunk = out_lane % kChunks;
#pragma unroll
            for (int r = out_lane / kChunks; r < 16; r += 32 / kChunks) {
                const int out_row = work.first_row + out_warp_row + r;
                if (out_row < seqlen_q && chunk * 8 < head_dim)
                    *reinterpret_cast<uint4*>(tile_out + out_row * out_row_stride + chunk * 8) =
                        *reinterpret_cast<const uint4*>(output_chunk(q_tile, out_warp_row + r, chunk));
            }
            fence_async_proxy();
            __syncwarp();
            release(&barriers.q_empty);
        }
    }
}
