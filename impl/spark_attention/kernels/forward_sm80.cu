// Fused attention forward for Tensor Cores of sm_80 and later: out = softmax(q k^T * scale) v and its log-sum-exp,
// with the online softmax, so that scores never leave registers (FlashAttention-2's partition of the work).
//
// Tile. A block holds 128 query rows, 32 per warp, and walks over the keys BLOCK_N at a time. A warp with
// 32 rows uses each fragment of K and V for two products, which is what the choice is about: at 128 bytes of shared
// memory per clock and one m16n8k16 (a 256-byte B operand) per 1.6 clocks, the rate mma.sync reaches on sm_90,
// 16 rows per warp would be bound by shared memory, 32 need about 0.8 of it with the reloads of Q.
// BLOCK_N: per thread the accumulators are PADDED_DIM + BLOCK_N registers, so two blocks of 128 threads fit on one SM
// within 255, and one warp's softmax hides behind another's products. At 64 that leaves room for BLOCK_N = 64; at 128
// BLOCK_N = 32 with the steps of q k^T unrolled, so that fragments are loaded ahead, ran 3 to 8 % faster on an H200
// than 64 without. Unaligned rows need registers for their copies: BLOCK_N = 32, at 128 without unrolling.
// Shared memory is Q + K + V = 32 KB at 64 and 48 KB at 128.
//
// Pipeline. K and V have one buffer each, filled by cp.async half an iteration ahead: V while q k^T is computed,
// the next K while the softmax and p v are.
// How tiles lie in shared memory: attention/tiles_sm80.cuh. The softmax and p v: attention/forward_sm80.cuh.
#include "arguments.cuh"
#include "attention/forward_sm80.cuh"
#include "attention/mask_sm80.cuh"
#include "extras_sm80.cuh"

constexpr int kThreads = 128;
constexpr int kBlockRows = 128;
constexpr int kScoreUnroll = PADDED_DIM == 64 ? 4 : ALIGNED ? 8 : 1;

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) spark_attention_forward_sm80(
    FORWARD_PARAMETERS EXTRA_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    Element* q_tile = reinterpret_cast<Element*>(shared_memory);
    Element* k_tile = q_tile + kBlockRows * PADDED_DIM;
    Element* v_tile = k_tile + BLOCK_N * PADDED_DIM;

    const Tile tile = locate_tile(kBlockRows);
    const int lane = threadIdx.x % 32;
    const int warp_row = threadIdx.x / 32 * kWarpRows;
    const int q_offset = rows_first_offset(lane), k_offset = chunks_first_offset(lane), v_offset = q_offset;
    Element* warp_q_tile = q_tile + warp_row * PADDED_DIM;
    // This lane's rows of row tile m are first_row + 16 m and 8 below.
    const int first_row = tile.first_row + warp_row + lane / 4;

    q = thread_chunk(q + tile.batch * q_batch_stride + tile.head * q_head_stride + tile.first_row * q_row_stride,
                     q_row_stride);
    k = thread_chunk(k + tile.batch * k_batch_stride + tile.head / group * k_head_stride, k_row_stride);
    v = thread_chunk(v + tile.batch * v_batch_stride + tile.head / group * v_head_stride, v_row_stride);

    Output accumulator = {};
    RowValues row_max, row_sum;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            row_max[m][half] = -infinity();
            row_sum[m][half] = 0.0f;
        }

    const int last_row = min(tile.first_row + kBlockRows, seqlen_q) - 1;
    const int keys = visible_keys(last_row, seqlen_k, causal_offset);
    const int unmasked_keys = visible_keys(tile.first_row + warp_row, seqlen_k, causal_offset);
    const Dropout dropout = DROPOUT_OF(tile.batch, tile.head);
    const float score_scale = kScoresAreScaled ? 1.0f : softmax_scale;
    const float scale_log2 = score_scale * kLog2e;

    if (keys > 0) {
        load_tile<kBlockRows, kThreads>(q_tile, q, q_row_stride, seqlen_q - tile.first_row, head_dim);
        load_tile<BLOCK_N, kThreads>(k_tile, k, k_row_stride, seqlen_k, head_dim);
    }
    for (int key = 0; key < keys; key += BLOCK_N) {
        copy_async_wait<0>();
        __syncthreads();
        load_tile<BLOCK_N, kThreads>(v_tile, v, v_row_stride, seqlen_k - key, head_dim);
        v += BLOCK_N * v_row_stride;

        Scores scores;
        multiply_transposed<kScoreUnroll>(scores, warp_q_tile, k_tile, q_offset, k_offset);

        copy_async_wait<0>();
        __syncthreads();
        const int next = key + BLOCK_N;
        k += BLOCK_N * k_row_stride;
        if (next < keys) load_tile<BLOCK_N, kThreads>(k_tile, k, k_row_stride, seqlen_k - next, head_dim);

        apply_mask<false>(scores, MASK_OF(tile.batch, tile.head), softmax_scale, tile.first_row + warp_row, key, lane);
        if (next > unmasked_keys) mask_keys(scores, first_row, key, seqlen_k, causal_offset, lane);
        online_softmax(scores, row_max, row_sum, accumulator, scale_log2);
        const unsigned kept = kept_scores<false>(dropout, tile.first_row + warp_row, key, lane);
        drop(scores, kept);
        multiply_values(accumulator, scores, v_tile, v_offset);
    }

    // The output goes through the warp's own rows of the Q tile.
    lse += (static_cast<long long>(tile.batch) * num_heads + tile.head) * seqlen_q;
    out += tile.batch * out_batch_stride + tile.head * out_head_stride;
    write_output(accumulator, row_max, row_sum, warp_q_tile, out, out_row_stride, lse, tile.first_row + warp_row,
                 seqlen_q, head_dim, score_scale, lane, dropout.keep_scale);
}
