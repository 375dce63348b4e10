// The attention map averaged over batch and heads, for Tensor Cores of sm_80 and later: map[i][j] is the mean of
// exp(score - lse) over all heads of all sequences, with the log-sum-exp that a forward has left. Exact to the rounding
// of float, and always in the same order.
//
// Tile. A block of threads has 128 queries by 128 keys of the map and walks over the heads of its share of the batch;
// the sums stay in registers, so the maps of single heads exist nowhere. Its warps have 32 by 64 each, of which the
// scores of 16 keys exist at a time: with 64 sums that is 128 registers a thread, and two blocks on an SM. Q and K are
// read by cp.async a head ahead. Floor. A pair costs one exponential, and an SM has 16 of them in a clock: 3.7 pairs
// a picosecond on an H200. Beside it the product (64 FLOPs a pair at head_dim 32), 1 byte of L2 and 6 bytes of shared
// memory a pair take at most three quarters of their time. It reaches 43 % of that rate: a warp's loads, products and
// exponentials follow each other, and four warps to a scheduler do not quite fill the gaps.
//
// Sequences that end before the block's keys are passed by. The grid begins with the first keys, which all have.
#include "attention/mask_sm80.cuh"
#include "attention/tiles_sm80.cuh"
#include "registers.cuh"

constexpr int kTile = 128;
constexpr int kWarpRows = 32, kWarpKeys = 64;
constexpr int kThreads = kTile / kWarpRows * (kTile / kWarpKeys) * 32;
constexpr int kRowTiles = kWarpRows / 16;
constexpr int kKeyTiles = 2;  // of 8 keys, whose scores exist at a time
constexpr int kGroups = kWarpKeys / 8 / kKeyTiles;
constexpr float kLog2e = 1.4426950408889634f;

// One head of one sequence, of which the first `keys` keys count.
struct Turn {
    int batch, head, keys;
};

// Goes on to the next head of a sequence that has keys from `key` on; false past the last, before `end`.
__device__ __forceinline__ bool next_turn(Turn& turn, const int* lengths, int key, int end, int num_heads, int seqlen) {
    if (turn.keys > key && ++turn.head < num_heads) return true;
    turn.head = 0;
    while (++turn.batch < end) {
        turn.keys = lengths ? min(lengths[turn.batch], seqlen) : seqlen;
        if (turn.keys > key) return true;
    }
    return false;
}

// `map` is float [parts, seqlen, seqlen]; a part sums over its share of the batch, all multiplied by `factor`. The grid
// is (query tiles, parts, key tiles). lse is float [batch, heads, seqlen]; lengths [batch], or null: all count.
extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) attention_map_sm80(
    const Element* __restrict__ q, const Element* __restrict__ k, const float* __restrict__ lse,
    const int* __restrict__ lengths, float* __restrict__ map, long long q_batch_stride, long long q_head_stride,
    long long q_row_stride, long long k_batch_stride, long long k_head_stride, long long k_row_stride, int batch,
    int num_heads, int seqlen, int head_dim, float softmax_scale, float factor) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    Element* tiles = reinterpret_cast<Element*>(shared_memory);  // two stages of Q, then K
    constexpr int kStage = 2 * kTile * PADDED_DIM;

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp % (kTile / kWarpRows) * kWarpRows, warp_key = warp / (kTile / kWarpRows) * kWarpKeys;
    const int row = blockIdx.x * kTile, key = blockIdx.z * kTile;
    const int first_row = row + warp_row + lane / 4;  // of this lane; then every 8 rows
    int q_offset = rows_first_offset(lane), k_offset = chunks_first_offset(lane);
    const float scale_log2 = softmax_scale * kLog2e;
    q = thread_chunk(q + row * q_row_stride, q_row_stride);
    k = thread_chunk(k + key * k_row_stride, k_row_stride);

    const int share = (batch + gridDim.y - 1) / gridDim.y, first = blockIdx.y * share;
    const int end = min(first + share, batch);
    Turn turn = {first - 1, 0, 0};
    const auto load_turn = [&](Element* tile) {
        load_tile<kTile, kThreads>(tile, q + turn.batch * q_batch_stride + turn.head * q_head_stride, q_row_stride,
                                   seqlen - row, head_dim);
        load_tile<kTile, kThreads>(tile + kTile * PADDED_DIM,
                                   k + turn.batch * k_batch_stride + turn.head * k_head_stride, k_row_stride,
                                   turn.keys - key, head_dim);
    };

    float sums[kGroups][kRowTiles][kKeyTiles][4] = {};
    bool more = next_turn(turn, lengths, key, end, num_heads, seqlen);
    if (more) load_turn(tiles);
    for (int stage = 0; more; stage ^= 1) {
        const int keys = turn.keys;
        float base[kRowTiles][2];  // log-sum-exps to base 2
        const float* turn_lse = lse + static_cast<long long>(turn.batch * num_heads + turn.head) * seqlen;
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                base[m][half] = turn_lse[min(first_row + m * 16 + half * 8, seqlen - 1)] * kLog2e;
        copy_async_wait<0>();
        __syncthreads();
        more = next_turn(turn, lengths, key, end, num_heads, seqlen);
        if (more) load_turn(tiles + (stage ^ 1) * kStage);
        const Element* q_tile = tiles + stage * kStage + warp_row * PADDED_DIM;
        const Element* k_tile = tiles + stage * kStage + (kTile + warp_key) * PADDED_DIM;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            const int group_key = key + warp_key + group * kKeyTiles * 8;
            forget_origin(q_offset);
            forget_origin(k_offset);
            float scores[kRowTiles][kKeyTiles][4];
            multiply_transposed<1>(scores, q_tile, k_tile + group * kKeyTiles * 8 * PADDED_DIM, q_offset, k_offset);
            if (group_key + kKeyTiles * 8 > keys) mask_keys(scores, first_row, group_key, keys, keys, lane);
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
                for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        sums[group][m][n][i] += exp2_fast(fmaf(scores[m][n][i], scale_log2, -base[m][i / 2]));
        }
    }

    map += static_cast<long long>(blockIdx.y) * seqlen * seqlen;
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
            for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int map_row = first_row + m * 16 + i / 2 * 8;
                    const int map_key = key + warp_key + (group * kKeyTiles + n) * 8 + lane % 4 * 2 + i % 2;
                    if (map_row < seqlen && map_key < seqlen)
                        map[static_cast<long long>(map_row) * seqlen + map_key] = sums[group][m][n][i] * factor;
                }
}
