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
// the next K while the softmax and p v are. P stays in registers: the accumulator layout of two 8-key tiles is the
// A-operand layout of one 16-key step.
// How tiles lie in shared memory: tiles_sm80.cuh.
#include "arguments.cuh"
#include "attention/row_reductions.cuh"
#include "attention/tiles_sm80.cuh"
#include "math.cuh"

constexpr int kThreads = 128;
constexpr int kBlockRows = 128;
constexpr int kWarpRows = 32;
constexpr int kRowTiles = kWarpRows / 16;
constexpr int kKeyTiles = BLOCK_N / 8;
constexpr int kDimTiles = PADDED_DIM / 8;
constexpr int kScoreUnroll = PADDED_DIM == 64 ? 4 : ALIGNED ? 8 : 1;
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// accumulator += p v for the warp's rows; p are BLOCK_N probabilities in the layout of `multiply_transposed`.
__device__ __forceinline__ void multiply_values(float (&accumulator)[kRowTiles][kDimTiles][4],
                                                const float (&p)[kRowTiles][kKeyTiles][4], const Element* v_tile,
                                                int v_offset) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
        unsigned a[kRowTiles][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float (&pair)[4] = p[m][n + i / 2];
                a[m][i] = pack(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
            }
#pragma unroll
        for (int d = 0; d < kDimTiles; d += 2) {
            unsigned b[4];
            load_matrix_x4_transposed(b, v_tile + n * 8 * PADDED_DIM + at_chunk(v_offset, d));
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m) {
                multiply(accumulator[m][d], a[m], b[0], b[1]);
                multiply(accumulator[m][d + 1], a[m], b[2], b[3]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) spark_attention_forward_sm80(FORWARD_PARAMETERS) {
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

    float accumulator[kRowTiles][kDimTiles][4] = {};
    float row_max[kRowTiles][2], row_sum[kRowTiles][2];
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
    const float scale_log2 = softmax_scale * kLog2e;

    if (keys > 0) {
        load_tile<kBlockRows, kThreads>(q_tile, q, q_row_stride, seqlen_q - tile.first_row, head_dim);
        load_tile<BLOCK_N, kThreads>(k_tile, k, k_row_stride, seqlen_k, head_dim);
    }
    for (int key = 0; key < keys; key += BLOCK_N) {
        copy_async_wait<0>();
        __syncthreads();
        load_tile<BLOCK_N, kThreads>(v_tile, v, v_row_stride, seqlen_k - key, head_dim);
        v += BLOCK_N * v_row_stride;

        float scores[kRowTiles][kKeyTiles][4];
        multiply_transposed<kScoreUnroll>(scores, warp_q_tile, k_tile, q_offset, k_offset);

        copy_async_wait<0>();
        __syncthreads();
        const int next = key + BLOCK_N;
        k += BLOCK_N * k_row_stride;
        if (next < keys) load_tile<BLOCK_N, kThreads>(k_tile, k, k_row_stride, seqlen_k - next, head_dim);

        if (next > unmasked_keys) {
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int visible = visible_keys(first_row + 16 * m + i / 2 * 8, seqlen_k, causal_offset);
                    const int column = visible - key - lane % 4 * 2 - i % 2;
#pragma unroll
                    for (int n = 0; n < kKeyTiles; ++n)
                        if (n * 8 >= column) scores[m][n][i] = -infinity();
                }
        }

#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float maximum = row_max[m][half];
#pragma unroll
                for (int n = 0; n < kKeyTiles; ++n)
                    maximum = fmaxf(maximum, fmaxf(scores[m][n][half * 2], scores[m][n][half * 2 + 1]));
                maximum = row_maximum(maximum);
                // A row that has seen no key yet has maximum -inf; any finite base gives it p = 0.
                const float base = maximum == -infinity() ? 0.0f : __fmul_rn(maximum, scale_log2);
                // The old base, rounded as it was then: with an fma, an unchanged maximum would not give exactly 1.
                const float correction = exp2_fast(__fmul_rn(row_max[m][half], scale_log2) - base);
                row_max[m][half] = maximum;
                float sum = row_sum[m][half] * correction;
#pragma unroll
                for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
                    for (int i = half * 2; i < half * 2 + 2; ++i) {
                        scores[m][n][i] = exp2_fast(fmaf(scores[m][n][i], scale_log2, -base));
                        sum += scores[m][n][i];
                    }
                row_sum[m][half] = sum;
#pragma unroll
                for (int d = 0; d < kDimTiles; ++d) {
                    accumulator[m][d][half * 2] *= correction;
                    accumulator[m][d][half * 2 + 1] *= correction;
                }
            }
        multiply_values(accumulator, scores, v_tile, v_offset);
    }

    // The output goes through the warp's own rows of the Q tile, to leave in whole chunks.
    lse += (static_cast<long long>(tile.batch) * num_heads + tile.head) * seqlen_q;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = m * 16 + half * 8 + lane / 4;
            const float sum = row_total(row_sum[m][half]);
            const float inverse = sum == 0.0f ? 0.0f : reciprocal_fast(sum);
            if (lane % 4 == 0 && tile.first_row + warp_row + row < seqlen_q) {
                // The sum has the maximum's base as it was rounded. Of one key that counts, the lse is then its score
                // as a float, which gives the backward p = 1 however large it is.
                const float maximum = row_max[m][half];
                const float rounding = fmaf(maximum, scale_log2, -__fmul_rn(maximum, scale_log2));
                lse[tile.first_row + warp_row + row] =
                    sum == 0.0f ? -infinity() : __fmul_rn(maximum, softmax_scale) + (log2_fast(sum) - rounding) * kLn2;
            }
#pragma unroll
            for (int d = 0; d < kDimTiles; ++d)
                *reinterpret_cast<unsigned*>(chunk_at(warp_q_tile, row, d) + lane % 4 * 2) =
                    pack(accumulator[m][d][half * 2] * inverse, accumulator[m][d][half * 2 + 1] * inverse);
        }
    __syncwarp();
    out += tile.batch * out_batch_stride + tile.head * out_head_stride;
    const int chunk = lane % kChunks;
    for (int row = lane / kChunks; row < kWarpRows; row += 32 / kChunks) {
        const int out_row = tile.first_row + warp_row + row;
        const int columns = out_row < seqlen_q ? head_dim - chunk * kChunk : 0;
        const Element* from = chunk_at(warp_q_tile, row, chunk);
        Element* to = out + out_row * out_row_stride + chunk * kChunk;
#if ALIGNED
        if (columns > 0) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
#else
        for (int i = 0; i < kChunk; ++i)
            if (i < columns) to[i] = from[i];
#endif
    }
}
