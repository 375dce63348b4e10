// Fused attention backward for Tensor Cores of sm_80 and later: dq, dk, dv with the probabilities recomputed from the
// saved log-sum-exp, p = exp(s - lse), ds = p (dp - delta) (FlashAttention-2's loops, all sums in a fixed order).
//
// Why this order. A block keeps dk and dv of 128 keys in registers and walks over the queries that see them, 64 at a
// time; that takes five products, and dq must be summed over blocks. A second kernel over query blocks would need
// no sum but seven products: at the rate of mma.sync (about 450 TFLOP/s on an H200) at most 320 TFLOP/s of the five
// that count. Atomic adds would change from run to run. So blocks add to dq in the order of their keys, handing each
// tile on by a counter: a read and a write of 16 KB (32 KB at 128) in L2 per tile, which took 5 (10) MFLOP. Block n
// runs one hand-over behind block n - 1, so nobody waits once the first blocks have spread out; walking from the
// last query to the first keeps that so under a causal mask. The last key block of a tile writes dq itself, in 16 bits.
//
// Tile. A warp computes s^T and dp^T of 32 keys by 32 queries: keys are rows, so p^T and ds^T leave the accumulators
// as A operands of dv += p^T dout and dk += ds^T q, 32 keys by 64 dims (128 registers). At 64, 4 warps take both
// halves of the queries in turn, two blocks per SM. At 128, 8 warps: two share their keys, each computes one half of
// the queries and accumulates one half of the dims, and p^T and ds^T of the other half come through shared memory.
// ds^T lies there in any case, for dq = ds k, 32 queries by 32 dims per warp.
// Shared memory: K, V, two stages of Q and dout, ds^T, (p^T,) statistics: 81 KB at 64, 161 KB at 128. A tile takes
// 1,280 (2,560) m16n8k16 and 2,450 (5,000) wavefronts of shared memory, to which dq adds a tenth: 2.1 clocks for each
// product, where mma.sync on sm_90 needs 1.6. It binds, as in FlashAttention-2, whose warp tiles come to as many.
//
// p and ds, and the sums over queries: attention/backward_sm80.cuh.
// Registers: dk and dv 128, s and dp 64 or dq 32 and packed p and ds 32; what is left is little, so addresses are
// computed where they are used (forget_origin).
#include "attention/backward_sm80.cuh"
#include "attention/mask_sm80.cuh"
#include "backward_arguments.cuh"
#include "backward_work.cuh"
#include "extras_sm80.cuh"
#include "registers.cuh"
#include "semaphore.cuh"

constexpr int kThreads = 2 * PADDED_DIM;
constexpr int kBlockKeys = 128;
constexpr int kHalfRows = kBlockRows / 2;
constexpr int kWarpKeys = 32;
constexpr int kWarpDims = 64;
constexpr int kKeyTiles = kWarpKeys / 16;
constexpr int kRowTiles = kHalfRows / 8;
constexpr int kRowSteps = kHalfRows / 16;
constexpr int kDimTiles = kWarpDims / 8;
constexpr bool kSharedKeys = PADDED_DIM > kWarpDims;  // by two warps
constexpr int kHeadsTogether = 16;
constexpr int kScoreUnroll = MASK || DROPOUT ? 1 : PADDED_DIM == 64 && !ALIGNED ? 2 : 4;

typedef unsigned Fragments[kKeyTiles][kRowSteps][4];  // A operands: 32 keys by 32 queries
typedef float KeyGradient[kKeyTiles][kDimTiles][4];   // 32 keys by 64 dims
typedef float QueryGradient[2][4][4];                 // 32 queries by 32 dims

// product += ds k for this warp's 32 queries and 32 dims of it.
__device__ __forceinline__ void multiply_keys(QueryGradient& product, const Element* ds_tile, const Element* k_tile,
                                              int ds_offset, int k_offset, int row_chunk, int dim_chunk) {
#pragma unroll 4
    for (int key = 0; key < kBlockKeys; key += 16) {
        unsigned a[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
            load_matrix_x4_transposed(a[m], ds_tile + key * kBlockRows + at_chunk(ds_offset, row_chunk + m * 2));
#pragma unroll
        for (int d = 0; d < 4; d += 2) {
            unsigned b[4];
            load_matrix_x4_transposed(b, k_tile + key * PADDED_DIM + at_chunk(k_offset, dim_chunk + d));
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                multiply(product[m][d], a[m], b[0], b[1]);
                multiply(product[m][d + 1], a[m], b[2], b[3]);
            }
        }
    }
}

__device__ __forceinline__ void start_sum(QueryGradient& sum, const float4* partial, int* summed, int key_block) {
    if (key_block > 0)
        while (load_acquire(summed) < key_block) {
        }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int d = 0; d < 4; ++d) {
            float4 value = {};
            if (key_block > 0) value = partial[(m * 4 + d) * 32];
            sum[m][d][0] = value.x;
            sum[m][d][1] = value.y;
            sum[m][d][2] = value.z;
            sum[m][d][3] = value.w;
        }
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) spark_attention_backward_sm80(
    BACKWARD_PARAMETERS EXTRA_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    constexpr int kStage = kBlockRows * PADDED_DIM;
    Element* k_tile = reinterpret_cast<Element*>(shared_memory);
    Element* v_tile = k_tile + kBlockKeys * PADDED_DIM;
    Element* q_tiles = v_tile + kBlockKeys * PADDED_DIM;
    Element* dout_tiles = q_tiles + 2 * kStage;
    Element* ds_tile = dout_tiles + 2 * kStage;
    Element* p_tile = ds_tile + kBlockKeys * kBlockRows;
    float2* statistics_tiles = reinterpret_cast<float2*>(kSharedKeys ? p_tile + kBlockKeys * kBlockRows : p_tile);

    const int heads_kv = num_heads / group;
    const Work work = take_work(semaphores, reinterpret_cast<int*>(ds_tile), (seqlen_k + kBlockKeys - 1) / kBlockKeys,
                                batch * heads_kv, kHeadsTogether);
    const long long batch_index = work.batch_head / heads_kv, head_kv = work.batch_head % heads_kv;
    const int first_key = work.key_block * kBlockKeys;

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_key = warp % 4 * kWarpKeys;
    const int own_half = warp / 4, dim_chunk = warp / 4 * (kWarpDims / kChunk);
    const int dq_row = warp % 2 * kHalfRows, dq_dim = warp / 2 * 32;
    int rows_first = rows_first_offset(lane), chunks_first = chunks_first_offset(lane);
    int ds_offset = chunks_first_offset<kBlockRows>(lane);

    q += batch_index * q_batch_stride + head_kv * group * q_head_stride;
    dout += batch_index * dout_batch_stride + head_kv * group * dout_head_stride;
    k += batch_index * k_batch_stride + head_kv * k_head_stride + first_key * k_row_stride;
    v += batch_index * v_batch_stride + head_kv * v_head_stride + first_key * v_row_stride;
    const float score_scale = kScoresAreScaled ? 1.0f : softmax_scale;
    const int tiles = (seqlen_q + kBlockRows - 1) / kBlockRows;
    const int first_tile = max(first_key - causal_offset, 0) / kBlockRows;
    const int steps = group * (tiles - first_tile);
    partial_dq += warp * 1024 + lane * 4;

    // `head` is the query head within the group; `head_tile` numbers the tiles of all heads of all batches.
    const auto load_queries = [&](int head, int tile, int head_tile, int stage) {
        const int row = tile * kBlockRows;
        if (threadIdx.x < kBlockRows / 2)
            copy_async_16(statistics_tiles + stage * kBlockRows + threadIdx.x * 2,
                          statistics + static_cast<long long>(head_tile) * kBlockRows + threadIdx.x * 2, true);
        load_tile<kBlockRows, kThreads>(q_tiles + stage * kStage,
                                        thread_chunk(q + head * q_head_stride + row * q_row_stride, q_row_stride),
                                        q_row_stride, seqlen_q - row, head_dim);
        load_tile<kBlockRows, kThreads>(
            dout_tiles + stage * kStage,
            thread_chunk(dout + head * dout_head_stride + row * dout_row_stride, dout_row_stride), dout_row_stride,
            seqlen_q - row, head_dim);
    };

    KeyGradient dk_sum = {}, dv_sum = {};
    int head = 0, tile = tiles - 1, stage = 0;
    int head_tile = (work.batch_head * group + 1) * tiles - 1;  // batch * num_heads + head_kv * group is their product
    int handed_over = -1;
    int* summed = semaphores + 1;
    if (steps > 0) {
        load_tile<kBlockKeys, kThreads>(k_tile, thread_chunk(k, k_row_stride), k_row_stride, seqlen_k - first_key,
                                        head_dim);
        load_tile<kBlockKeys, kThreads>(v_tile, thread_chunk(v, v_row_stride), v_row_stride, seqlen_k - first_key,
                                        head_dim);
        load_queries(head, tile, head_tile, stage);
    }
    for (int step = 0; step < steps; ++step) {
        copy_async_wait<0>();
        __syncthreads();
        // Only now: the stores have long arrived, and the release has nothing to wait for.
        if (threadIdx.x == 0 && step > 0) store_release(summed + handed_over, work.key_block + 1);
        const bool head_ends = tile == first_tile;
        const int next_head = head + head_ends;
        const int next_tile = head_ends ? tiles - 1 : tile - 1;
        const int next_head_tile = head_tile + (head_ends ? tiles + next_tile - tile : -1);
        if (step + 1 < steps) load_queries(next_head, next_tile, next_head_tile, stage ^ 1);

        forget_origin(rows_first);
        forget_origin(chunks_first);
        forget_origin(ds_offset);

        const Element* q_tile = q_tiles + stage * kStage;
        const Element* dout_tile = dout_tiles + stage * kStage;
        float4* partial =
            reinterpret_cast<float4*>(partial_dq + static_cast<long long>(head_tile) * kBlockRows * PADDED_DIM);
        QueryGradient dq_sum;
        Fragments p, ds;

#pragma unroll
        for (int pass = 0; pass < (kSharedKeys ? 1 : 2); ++pass) {
            const int half = kSharedKeys ? own_half : pass;
            const int row = tile * kBlockRows + half * kHalfRows;
            const Dropout dropout = DROPOUT_OF(batch_index, head_kv * group + head);
            const unsigned kept = kept_scores<true>(dropout, first_key + warp_key, row, lane);
            float s[kKeyTiles][kRowTiles][4], dp[kKeyTiles][kRowTiles][4];
            multiply_transposed<kScoreUnroll>(s, k_tile + warp_key * PADDED_DIM, q_tile + half * kHalfRows * PADDED_DIM,
                                              rows_first, chunks_first);
            multiply_transposed<kScoreUnroll>(dp, v_tile + warp_key * PADDED_DIM,
                                              dout_tile + half * kHalfRows * PADDED_DIM, rows_first, chunks_first);

            apply_mask<true>(s, MASK_OF(batch_index, head_kv * group + head), softmax_scale, first_key + warp_key, row,
                             lane);
            if (first_key + warp_key + kWarpKeys > visible_keys(row, seqlen_k, causal_offset))
                mask_queries(s, first_key + warp_key + lane / 4, row, seqlen_k, causal_offset, lane);

            const float4* statistics_pairs =
                reinterpret_cast<const float4*>(statistics_tiles + stage * kBlockRows + half * kHalfRows);
            recompute(p, ds, s, dp, statistics_pairs, score_scale, lane, kept, dropout.keep_scale);
            store_fragments<kBlockRows>(ds_tile + warp_key * kBlockRows, ds, half * kRowTiles, lane);
            if (kSharedKeys) store_fragments<kBlockRows>(p_tile + warp_key * kBlockRows, p, half * kRowTiles, lane);
            // Early, to have the sums when the product comes to them; not earlier, for want of registers.
            if (!kSharedKeys && pass == 1) start_sum(dq_sum, partial, summed + head_tile, work.key_block);
            accumulate(dv_sum, p, dout_tile + half * kHalfRows * PADDED_DIM, rows_first, dim_chunk);
            accumulate(dk_sum, ds, q_tile + half * kHalfRows * PADDED_DIM, rows_first, dim_chunk);
        }
        __syncthreads();
        if (kSharedKeys) {
            const int half = own_half ^ 1;
            start_sum(dq_sum, partial, summed + head_tile, work.key_block);
            load_fragments<kBlockRows>(p, p_tile + warp_key * kBlockRows, half * kRowTiles, lane);
            accumulate(dv_sum, p, dout_tile + half * kHalfRows * PADDED_DIM, rows_first, dim_chunk);
            load_fragments<kBlockRows>(ds, ds_tile + warp_key * kBlockRows, half * kRowTiles, lane);
            accumulate(dk_sum, ds, q_tile + half * kHalfRows * PADDED_DIM, rows_first, dim_chunk);
        }
        multiply_keys(dq_sum, ds_tile, k_tile, ds_offset, rows_first, dq_row / kChunk, dq_dim / kChunk);

        const int last_row = min((tile + 1) * kBlockRows, seqlen_q) - 1;
        const bool is_last = first_key + kBlockKeys >= visible_keys(last_row, seqlen_k, causal_offset);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int d = 0; d < 4; ++d) {
                const float (&value)[4] = dq_sum[m][d];
                if (is_last)
                    store_pairs(dq + static_cast<long long>(work.batch_head * group + head) * seqlen_q * head_dim,
                                value, softmax_scale, tile * kBlockRows + dq_row + m * 16 + lane / 4,
                                dq_dim + d * 8 + lane % 4 * 2, seqlen_q, head_dim);
                else
                    partial[(m * 4 + d) * 32] = {value[0], value[1], value[2], value[3]};
            }
        handed_over = head_tile;
        head = next_head;
        tile = next_tile;
        head_tile = next_head_tile;
        stage ^= 1;
    }
    __syncthreads();
    if (threadIdx.x == 0 && steps > 0) store_release(summed + handed_over, work.key_block + 1);

    const long long first_element = (static_cast<long long>(work.batch_head) * seqlen_k + first_key) * head_dim;
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m)
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) {
            const int key = warp_key + m * 16 + lane / 4, column = dim_chunk * kChunk + d * 8 + lane % 4 * 2;
            store_pairs(dk + first_element, dk_sum[m][d], softmax_scale, key, column, seqlen_k - first_key, head_dim);
            store_pairs(dv + first_element, dv_sum[m][d], DROPOUT_OF(0, 0).keep_scale, key, column,
                        seqlen_k - first_key, head_dim);
        }
}
