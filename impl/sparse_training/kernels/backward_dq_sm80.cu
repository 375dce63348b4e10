// Block-sparse attention backward, first of two kernels: dq = ds k over the kept key blocks of each query block, and
// the rows' statistics for the second (backward_dkdv_sm80.cu).
//
// Why two kernels, seven products. Both recompute s and dp, which five products would share; but these need dq summed
// over key blocks in a fixed order: a read and a write of fp32 dq for each tile, 8 BLOCK head_dim bytes more than the
// second reading of two tiles here, through L2 or, for long sequences, memory; and blocks of one query block wait for
// each other, in an order that a pattern makes irregular. At block 64, head dim 64 on an H200, a tile takes by count
// 7.9 ns of five products at 330 TFLOP/s and 8.7 ns of L2 at 5.5 TB/s, which hide each other in part; seven take 11.1
// and 6.0 ns, and wait for nothing. The fp16 ds of all kept blocks in memory would save the two, and cost
// density * seqlen^2 * 2 bytes a head.
//
// Tile. 32 query rows per warp, 32 keys a step, two stages of K and V by cp.async. Up to head dim 64, Q and dout are
// held as fragments: their reading again for each tile would be as many wavefronts of shared memory as the rest.
// Registers per thread at 64: dq 64, Q and dout 64, s and dp 64, ds 16. At 128: dq 128, s and dp 64, ds 16.
#include "arguments.cuh"
#include "attention/backward_sm80.cuh"
#include "attention/mask_sm80.cuh"
#include "attention/row_products_sm80.cuh"
#include "block_lists.cuh"
#include "registers.cuh"

constexpr int kThreads = BLOCK;
constexpr int kWarpRows = 32;
constexpr int kRowTiles = kWarpRows / 16;
constexpr int kKeys = PADDED_DIM > 64 ? 16 : 32;  // of a step
constexpr int kKeyTiles = kKeys / 8;
constexpr int kStage = kKeys * PADDED_DIM;
constexpr bool kHeld = PADDED_DIM <= 64;
constexpr int kHeldSteps = kHeld ? PADDED_DIM / 16 : 1;

typedef unsigned Held[kHeldSteps][kRowTiles][4];
typedef float Scores[kRowTiles][kKeyTiles][4];

__device__ __forceinline__ void hold(Held& held, const Element* warp_tile, int offset) {
#pragma unroll
    for (int step = 0; step < kHeldSteps; ++step)
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
            load_matrix_x4(held[step][m], warp_tile + m * 16 * PADDED_DIM + at_chunk(offset, step * 2));
}

// product = a b^T, a held or in `a_tile`.
__device__ __forceinline__ void multiply_keys(Scores& product, const Held& a, const Element* a_tile,
                                              const Element* b_tile, int a_offset, int b_offset) {
    if (!kHeld) return multiply_transposed<4>(product, a_tile, b_tile, a_offset, b_offset);
#pragma unroll
    for (int i = 0; i < kRowTiles * kKeyTiles * 4; ++i) product[i / 4 / kKeyTiles][i / 4 % kKeyTiles][i % 4] = 0.0f;
#pragma unroll
    for (int step = 0; step < kHeldSteps; ++step)
#pragma unroll
        for (int n = 0; n < kKeyTiles; n += 2) {
            unsigned b[4];
            load_matrix_x4(b, b_tile + n * 8 * PADDED_DIM + at_chunk(b_offset, step * 2));
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m) {
                multiply(product[m][n], a[step][m], b[0], b[1]);
                multiply(product[m][n + 1], a[step][m], b[2], b[3]);
            }
        }
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) block_sparse_backward_dq_sm80(DQ_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    Element* q_tile = reinterpret_cast<Element*>(shared_memory);
    Element* dout_tile = q_tile + BLOCK * PADDED_DIM;
    Element* k_tiles = dout_tile + BLOCK * PADDED_DIM;
    Element* v_tiles = k_tiles + 2 * kStage;

    const KeyWalk<kKeys> walk = walk_keys<kKeys>(rows, lengths, SIZE_ARGUMENTS);
    const Work& work = walk.work;
    const int keys = walk.keys, causal_offset = walk.causal_offset, block_row = walk.first_row, steps = walk.steps;

    const int lane = threadIdx.x % 32;
    const int warp_row = threadIdx.x / 32 * kWarpRows;
    int rows_first = rows_first_offset(lane), chunks_first = chunks_first_offset(lane);
    Element* warp_q_tile = q_tile + warp_row * PADDED_DIM;
    const Element* warp_dout_tile = dout_tile + warp_row * PADDED_DIM;
    const int first_row = block_row + warp_row + lane / 4;
    const int unmasked_keys = visible_keys(block_row + warp_row, keys, causal_offset);
    const long long batch_head = work.batch_head;

    q += work.batch * q_batch_stride + work.head * q_head_stride + block_row * q_row_stride;
    dout += work.batch * dout_batch_stride + work.head * dout_head_stride + block_row * dout_row_stride;
    k = thread_chunk(k + work.batch * k_batch_stride + work.head / group * k_head_stride, k_row_stride);
    v = thread_chunk(v + work.batch * v_batch_stride + work.head / group * v_head_stride, v_row_stride);

    int key = 0;
    const auto load_keys = [&](int step, int stage) {
        key = walk.key(step);
        load_tile<kKeys, kThreads>(k_tiles + stage * kStage, k + key * k_row_stride, k_row_stride, keys - key,
                                   head_dim);
        load_tile<kKeys, kThreads>(v_tiles + stage * kStage, v + key * v_row_stride, v_row_stride, keys - key,
                                   head_dim);
    };
    if (steps > 0) {
        load_tile<BLOCK, kThreads>(q_tile, thread_chunk(q, q_row_stride), q_row_stride, seqlen - block_row, head_dim);
        load_tile<BLOCK, kThreads>(dout_tile, thread_chunk(dout, dout_row_stride), dout_row_stride, seqlen - block_row,
                                   head_dim);
        load_keys(0, 0);
    }

    float row_lse[kRowTiles][2], row_delta[kRowTiles][2];
    statistics += (batch_head * blocks + work.block) * BLOCK + warp_row;
    out += (batch_head * seqlen + block_row + warp_row) * head_dim;
    dout += warp_row * dout_row_stride;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
        float delta[2];
        row_products(delta, out + m * 16 * head_dim, head_dim, dout + m * 16 * dout_row_stride, dout_row_stride,
                     seqlen - block_row - warp_row - m * 16, head_dim, lane);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = m * 16 + half * 8 + lane / 4;
            const bool exists = block_row + warp_row + row < seqlen;
            const float saved = exists ? lse[batch_head * seqlen + block_row + warp_row + row] : -infinity();
            row_lse[m][half] = saved == -infinity() ? infinity() : saved;
            row_delta[m][half] = __shfl_sync(0xffffffffu, delta[half], lane / 4 * 4 + lane / 8);
            if (lane % 4 == 0) statistics[row] = make_float2(row_lse[m][half], row_delta[m][half]);
        }
    }

    float dq_sum[kRowTiles][PADDED_DIM / 8][4] = {};
    Held q_held, dout_held;
    for (int step = 0; step < steps; ++step) {
        const int stage = step % 2, present_key = key;
        copy_async_wait<0>();
        __syncthreads();
        if (step + 1 < steps) load_keys(step + 1, stage ^ 1);
        if (kHeld && step == 0) {
            hold(q_held, warp_q_tile, rows_first);
            hold(dout_held, warp_dout_tile, rows_first);
        }

        forget_origin(rows_first);
        forget_origin(chunks_first);
        const Element* k_tile = k_tiles + stage * kStage;
        Scores s, dp;
        multiply_keys(s, q_held, warp_q_tile, k_tile, rows_first, chunks_first);
        multiply_keys(dp, dout_held, warp_dout_tile, v_tiles + stage * kStage, rows_first, chunks_first);
        if (present_key + kKeys > unmasked_keys) mask_keys(s, first_row, present_key, keys, causal_offset, lane);

        unsigned ds[kRowTiles][kKeyTiles / 2][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
            for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float value[2];
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const float score = s[m][n][half * 2 + i];
                        // Rounded as the forward's lse was (attention/backward_sm80.cuh).
                        const float p = exp2_fast((__fmul_rn(score, softmax_scale) - row_lse[m][half]) * kLog2e);
                        value[i] = p * (dp[m][n][half * 2 + i] - row_delta[m][half]);
                    }
                    ds[m][n / 2][n % 2 * 2 + half] = pack(value[0], value[1]);
                }
        accumulate(dq_sum, ds, k_tile, rows_first, 0);
    }

    // dq goes through the warp's own rows of the Q tile, to leave in whole chunks.
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int d = 0; d < PADDED_DIM / 8; ++d)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *reinterpret_cast<unsigned*>(chunk_at(warp_q_tile, m * 16 + half * 8 + lane / 4, d) + lane % 4 * 2) =
                    pack(dq_sum[m][d][half * 2] * softmax_scale, dq_sum[m][d][half * 2 + 1] * softmax_scale);
    __syncwarp();
    store_rows(warp_q_tile, dq + batch_head * seqlen * head_dim, head_dim, block_row + warp_row, seqlen, head_dim,
               lane);
}
