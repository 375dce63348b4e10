// The attention map averaged over batch and heads, for Tensor Cores of sm_80 and later: map[i][j] is the mean of
// exp(score - lse) over all heads of all sequences, with the log-sum-exp that a forward has left. Exact to the rounding
// of float, and always in the same order.
//
// Tile. A block of threads has 128 queries by 128 keys of the map and walks over the heads of its share of the batch;
// the sums stay in registers, so the maps of single heads exist nowhere. Its warps have 16 queries each, held as
// fragments; the scores of 32 keys exist at a time: with 64 sums that is 128 registers a thread, and two blocks on an
// SM. Q, K and the log-sum-exps are read by cp.async a head ahead. Floor. A pair costs one exponential, and an SM has
// 16 of them in a clock: 3.7 pairs a picosecond on an H200. Beside it at head_dim 32 the products (64 FLOPs a pair)
// take half to four fifths of that time, the issue of instructions by count the same, shared memory three fifths.
//
// Sequences that end before the block's keys are passed by. The grid begins with the first keys, which all have.
#include "attention/mask_sm80.cuh"
#include "attention/tiles_sm80.cuh"
#include "registers.cuh"

constexpr int kTile = 128;
constexpr int kWarpRows = 16;  // by all keys of the tile
constexpr int kThreads = kTile / kWarpRows * 32;
constexpr int kKeyTiles = 4;  // of 8 keys, whose scores exist at a time
constexpr int kGroupKeys = kKeyTiles * 8;
constexpr int kGroups = kTile / kGroupKeys;
constexpr int kSteps = PADDED_DIM / 16;
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
        turn.keys = min(lengths[turn.batch], seqlen);
        if (turn.keys > key) return true;
    }
    return false;
}

// `map` is float [parts, seqlen, seqlen]; a part sums over its share of the batch, all multiplied by `factor`. The grid
// is (query tiles, parts, key tiles). lse_log2 is float [batch, heads, query tiles * kTile], to base 2; lengths
// [batch].
extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) attention_map_sm80(
    const Element* __restrict__ q, const Element* __restrict__ k, const float* __restrict__ lse_log2,
    const int* __restrict__ lengths, float* __restrict__ map, long long q_batch_stride, long long q_head_stride,
    long long q_row_stride, long long k_batch_stride, long long k_head_stride, long long k_row_stride, int batch,
    int num_heads, int seqlen, int head_dim, float scale_log2, float factor) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    Element* tiles = reinterpret_cast<Element*>(shared_memory);  // two stages of Q, then K
    constexpr int kStage = 2 * kTile * PADDED_DIM;
    float* bases = reinterpret_cast<float*>(tiles + 2 * kStage);  // two stages of log-sum-exps, to base 2

    const int row = blockIdx.x * kTile, key = blockIdx.z * kTile;
    q += row * q_row_stride;
    k += key * k_row_stride;

    const int share = (batch + gridDim.y - 1) / gridDim.y, first = blockIdx.y * share;
    const int end = min(first + share, batch);
    Turn turn = {first - 1, 0, 0};
    const auto load_turn = [&](int stage) {
        if (threadIdx.x < kTile / 4) {
            const long long tile_row =
                static_cast<long long>(turn.batch * num_heads + turn.head) * gridDim.x + blockIdx.x;
            copy_async_16(bases + stage * kTile + threadIdx.x * 4, lse_log2 + tile_row * kTile + threadIdx.x * 4, true);
        }
        Element* tile = tiles + stage * kStage;
        unsigned thread = threadIdx.x;
        forget_origin(thread);
        const Element* turn_q = q + turn.batch * q_batch_stride + turn.head * q_head_stride;
        const Element* turn_k = k + turn.batch * k_batch_stride + turn.head * k_head_stride;
        load_tile<kTile, kThreads>(tile, thread_chunk(turn_q, q_row_stride, thread), q_row_stride, seqlen - row,
                                   head_dim);
        load_tile<kTile, kThreads>(tile + kTile * PADDED_DIM, thread_chunk(turn_k, k_row_stride, thread), k_row_stride,
                                   turn.keys - key, head_dim);
    };

    float sums[kGroups][kKeyTiles][4] = {};
    bool more = next_turn(turn, lengths, key, end, num_heads, seqlen);
    if (more) load_turn(0);
    for (int stage = 0; more; stage ^= 1) {
        const int keys = turn.keys - key;
        copy_async_wait<0>();
        __syncthreads();
        more = next_turn(turn, lengths, key, end, num_heads, seqlen);
        if (more) load_turn(stage ^ 1);
        unsigned thread = threadIdx.x;
        forget_origin(thread);  // what follows from it would else take registers throughout
        const int lane = thread % 32, warp_row = thread / 32 * kWarpRows;
        const int q_offset = rows_first_offset(lane), k_offset = chunks_first_offset(lane);
        const Element* q_tile = tiles + stage * kStage + warp_row * PADDED_DIM;
        const Element* k_tile = tiles + stage * kStage + kTile * PADDED_DIM;
        const float* warp_bases = bases + stage * kTile + warp_row + lane / 4;
        const float base[2] = {warp_bases[0], warp_bases[8]};
        unsigned held[kSteps][4];
#pragma unroll
        for (int step = 0; step < kSteps; ++step) load_matrix_x4(held[step], q_tile + at_chunk(q_offset, step * 2));
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            __syncwarp();  // else the reads of all groups are started at once, and registers do not suffice
            float scores[1][kKeyTiles][4] = {};
#pragma unroll
            for (int step = 0; step < kSteps; ++step)
#pragma unroll
                for (int n = 0; n < kKeyTiles; n += 2) {
                    unsigned b[4];
                    load_matrix_x4(b, k_tile + (group * kKeyTiles + n) * 8 * PADDED_DIM + at_chunk(k_offset, step * 2));
                    multiply(scores[0][n], held[step], b[0], b[1]);
                    multiply(scores[0][n + 1], held[step], b[2], b[3]);
                }
            const int first_key = group * kGroupKeys;
            if (first_key + kGroupKeys > keys) mask_keys(scores, 0, first_key, keys, keys, lane);  // all rows alike
#pragma unroll
            for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sums[group][n][i] += exp2_fast(fmaf(scores[0][n][i], scale_log2, -base[i / 2]));
        }
    }

    const int lane = threadIdx.x % 32;
    const int first_row = row + threadIdx.x / 32 * kWarpRows + lane / 4;
    map += static_cast<long long>(blockIdx.y) * seqlen * seqlen;
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int map_row = first_row + i / 2 * 8;
                const int map_key = key + group * kGroupKeys + n * 8 + lane % 4 * 2 + i % 2;
                if (map_row < seqlen && map_key < seqlen)
                    map[static_cast<long long>(map_row) * seqlen + map_key] = sums[group][n][i] * factor;
            }
}
