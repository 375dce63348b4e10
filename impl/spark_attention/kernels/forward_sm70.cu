// SparkAttention forward for Volta: out = softmax(q k^T * scale) v and its log-sum-exp in one kernel on mma.m8n8k4,
// with the online softmax, so that scores never leave registers.
//
// Tile. A block holds 128 query rows, 32 per warp, and walks over the keys BLOCK_N at a time: 64 at head dim 64, 32
// at 128 and with fp16 accumulators. A warp's product is 16x16x4, its quad-pairs (0,0) (0,8) (8,0) (8,8), so that
// fp32 outputs take PADDED_DIM registers for 32 rows and every fragment of V serves two products. What bounds the
// choice is the feed from shared memory: an m8n8k4 takes 2 clocks of an SM, a 128-bit load 4. Per key tile and warp
// that is 320 clocks of loads to 512 of products at head dim 64, 384 to 512 at 128. Splitting 32 rows over the
// quad-pairs (32x8x4) would need no exchange between them, but 1 to 1.25 clocks of loads for each of products.
//
// P. Probabilities become A operands in registers, by shuffles (probabilities_sm70.cuh).
//
// Pipeline. Volta has no cp.async: V travels global -> registers while q k^T is computed and is stored to shared
// memory after it; the next K travels while p v is. One buffer each, two barriers per key tile. 32 KB of shared
// memory at head dim 64, 48 KB at 128, at most 255 registers: two blocks, 2 warps per sub-core (24 KB, 168 registers
// and three blocks with fp16 accumulators at head dim 64).
//
// Shared rows are cut into 16-byte chunks; chunk c of row r lies at c ^ (r % 8). The 8 lanes that a 128-bit access
// serves at once read rows of K all different mod 8, and 4 rows of V at one chunk and the 4 others at another: no bank
// conflicts.
//
// ACCUMULATE_FP16. Both products accumulate in fp16, kSumChunks chunks of the head dim or one key tile at a time, and
// these sums are added in fp32: one fp16 sum over the head dim errs 2 to 4 times as much as fp16 matmul and softmax
// do, and over a row of keys it loses a bit per fourfold length. Q is scaled first by the power of two in
// softmax_scale, which is exact and keeps sums clear of overflow. An m8n8k4 takes half the issue slots, not less time.
//
// A head dim below PADDED_DIM is filled with zeros in shared memory only. ALIGNED says that all rows start at
// multiples of 16 bytes and head_dim is a multiple of 8; without it, plain 16-bit accesses.
#define WARP_ROWS 32
#include "arguments.cuh"
#include "attention/mask_sm70.cuh"
#include "attention/softmax_sm70.cuh"
#include "extras_sm70.cuh"

constexpr int kBlockRows = 128;

#if ACCUMULATE_FP16
// Multiplies the warp's rows of Q.
__device__ __forceinline__ void scale_rows(uint4* warp_q_tile, float factor, int lane) {
    unsigned* words = reinterpret_cast<unsigned*>(warp_q_tile);
    for (int i = lane; i < kWarpRows * PADDED_DIM / 2; i += 32)
        words[i] = pack_f16(low_f16(words[i]) * factor, high_f16(words[i]) * factor);
    __syncwarp();
}
#endif

extern "C" __global__ void
    __launch_bounds__(kThreads, MIN_BLOCKS) spark_attention_forward_sm70(FORWARD_PARAMETERS EXTRA_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    uint4* q_tile = reinterpret_cast<uint4*>(shared_memory);
    uint4* k_tile = q_tile + kBlockRows * kChunks;
    uint4* v_tile = k_tile + BLOCK_N * kChunks;

    const Tile tile = locate_tile(kBlockRows);
    const int lane = threadIdx.x % 32;
    const int warp_row = threadIdx.x / 32 * kWarpRows;
    const int first_row = tile.first_row + warp_row;
    uint4* warp_q_tile = q_tile + warp_row * kChunks;
    uint2* warp_p_tile = reinterpret_cast<uint2*>(v_tile + BLOCK_N * kChunks) + warp_row * (BLOCK_N / 4);

    const Rows q_rows = {q + tile.batch * q_batch_stride + tile.head * q_head_stride, q_row_stride, seqlen_q};
    const Rows k_rows = {k + tile.batch * k_batch_stride + tile.head / group * k_head_stride, k_row_stride, seqlen_k};
    const Rows v_rows = {v + tile.batch * v_batch_stride + tile.head / group * v_head_stride, v_row_stride, seqlen_k};

    const int keys = visible_keys(min(tile.first_row + kBlockRows, seqlen_q) - 1, seqlen_k, causal_offset);
    const int warp_keys = visible_keys(first_row + kWarpRows - 1, seqlen_k, causal_offset);
    const int unmasked_keys = visible_keys(first_row, seqlen_k, causal_offset);

    const Mask mask_of_head = MASK_OF(tile.batch, tile.head);
    const Dropout dropout = DROPOUT_OF(tile.batch, tile.head);
    float scale_log2 = (kScoresAreScaled ? 1.0f : softmax_scale) * kLog2e;

    Output output = {};
    Softmax state;
    start(state);

    StagedTile staged;
    for (int row = 0; row < kBlockRows; row += BLOCK_N) {
        staged.fetch(q_rows, tile.first_row + row, head_dim);
        staged.store(q_tile + row * kChunks);
    }
    staged.fetch(k_rows, 0, head_dim);
    staged.store(k_tile);
    __syncthreads();
#if ACCUMULATE_FP16
    const float power_of_two = __int_as_float(__float_as_int(softmax_scale) & 0x7f800000);
    scale_rows(warp_q_tile, power_of_two, lane);
    scale_log2 /= power_of_two;
#endif

    for (int key = 0; key < keys; key += BLOCK_N) {
        staged.fetch(v_rows, key, head_dim);
        const bool active = key < warp_keys;
        Probabilities p[kRowTiles][kKeyTiles];
        if (active) {
            const unsigned kept = kept_scores<false>(dropout, first_row, key, lane);
            float scores[kRowTiles][kKeyTiles][8] = {};
            multiply_nt(scores, warp_q_tile, k_tile, lane);

            apply_mask<false>(scores, mask_of_head, softmax_scale, first_row, key, lane);
            if (key + BLOCK_N > unmasked_keys) mask_keys(scores, first_row, key, seqlen_k, causal_offset, lane);

            advance(state, output, p, scores, scale_log2, warp_p_tile, lane, kept);
        }
        staged.store(v_tile);
        __syncthreads();

        const int next = key + BLOCK_N;
        if (next < keys) staged.fetch(k_rows, next, head_dim);
        if (active) multiply_nn(output, p, v_tile, lane);
        if (next < keys) staged.store(k_tile);
        __syncthreads();
    }

    lse += (static_cast<long long>(tile.batch) * num_heads + tile.head) * seqlen_q + first_row;
    out += tile.batch * out_batch_stride + tile.head * out_head_stride + first_row * out_row_stride;
    const int rows = seqlen_q - first_row;
    float inverse[kRowTiles][kLaneRows];
    finish(inverse, state, lse, rows, lane, dropout.keep_scale);
    write_rows(output, inverse, warp_q_tile, out, out_row_stride, rows, head_dim, lane);
}
