// What the sm_90a kernels of a sparse W times a skinny X share: equal shares of the work, the copies ahead of it, and
// the sums of tiles that several blocks work on.
//
// Work. A tile is 32 rows of Y for each of WARPS warps x TILE_N columns; a unit is a tile's next BLOCK_COLS of k. The
// blocks, as many as fit on the machine at once, take equal shares of all units, in order, whatever tile they end in. A
// block that has only part of a tile writes fp32 sums to `partials`; the last of a tile's blocks to come adds them in
// their order, so that the result does not depend on who is last.
//
// A warp asks the copy engine for its own blocks of W, STAGES units ahead: adjacent bytes, `stage_pieces` pieces of
// them at most, and what their first line of 128 bytes has before them, for a copy that begins within a line is slower.
// X's BLOCK_COLS x TILE_N are for all warps; the first one asks for them, STAGES - 1 units ahead, for it must know that
// no warp needs what they overwrite. There is no barrier in the loop.
//
// Shared memory: STAGES * 2 * BLOCK_COLS * TILE_N + STAGES * WARPS * (bytes of a stage's lines) bytes, Control.
// Macros: BLOCK_COLS, TILE_N, WARPS, STAGES (2 or more).
#pragma once
#include "bulk_copy.cuh"
#include "elect.cuh"
#include "mbarrier.cuh"
#include "semaphore.cuh"
#include "skinny_tile_sm80.cuh"
#include "tma.cuh"

namespace {

constexpr int X_BYTES = BLOCK_COLS * TILE_N * 2;
constexpr int WINDOW = 31;  // blocks of W, of which a warp's lanes know where they lie

struct Control {
    unsigned long long w_full[STAGES][WARPS], x_full[STAGES], x_empty[STAGES];
    struct {
        int index, first, last;  // a tile and the blocks that have parts of it
        bool finish;             // whether this block is the last of them to come
    } tiles[2];                  // this block's first and last one
};

// Units 0 to `units`, of which each block has an equal share, the first blocks one more.
struct Shares {
    int size, rest;

    __device__ Shares(int units, int blocks) : size(units / blocks), rest(units % blocks) {}
    __device__ int begin(int block) const { return block * size + min(block, rest); }
    __device__ int owner(int unit) const {
        const int longer = rest * (size + 1);
        return unit < longer ? unit / (size + 1) : rest + (unit - longer) / size;
    }
};

// A stage of a ring, and the parity of its phase there.
struct Place {
    int stage = 0;
    unsigned parity = 0;

    __device__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// Sums of one thread, as products of 16 rows have them in registers.
using Sums = float[ROW_FRAGMENTS][TILE_N / 2];

constexpr int QUADS = TILE_N / 4;  // of a thread's sums

__device__ __forceinline__ void clear(Sums& sum) {
#pragma unroll
    for (int i = 0; i < 4 * QUADS; ++i) sum[i / (TILE_N / 2)][i % (TILE_N / 2)] = 0.0f;
}

// This thread's sums of a part, next to those of the other threads; a block has parts of two tiles at most.
__device__ __forceinline__ float4* part_of(float* partials, int block, bool second) {
    const long long index = (static_cast<long long>(blockIdx.y) * gridDim.x + block) * 2 + second;
    return reinterpret_cast<float4*>(partials + index * (TILE_ROWS * TILE_N)) + threadIdx.x;
}

// Leaves the sums of a part for the tile's last block.
__device__ __forceinline__ void leave(const Sums& sum, float4* part) {
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const float* from = &sum[i / (TILE_N / 8)][i % (TILE_N / 8) * 4];
        part[i * THREADS] = make_float4(from[0], from[1], from[2], from[3]);
    }
}

// The sums of a tile: those of blocks `first` to `last`, in their order. Several blocks' are read at once, so that
// fewer reads wait for each other.
__device__ __forceinline__ void collect(Sums& sum, float* partials, const Shares& shares, int first, int last,
                                        int tile_begin) {
    constexpr int TOGETHER = 16 / QUADS;
    clear(sum);
#pragma unroll 1
    for (int block = first; block <= last; block += TOGETHER) {
        float4 parts[TOGETHER][QUADS] = {};
#pragma unroll
        for (int j = 0; j < TOGETHER; ++j) {
            if (block + j > last) break;
            const float4* const in = part_of(partials, block + j, shares.begin(block + j) < tile_begin);
#pragma unroll
            for (int i = 0; i < QUADS; ++i) parts[j][i] = in[i * THREADS];
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; ++j) {
#pragma unroll
            for (int i = 0; i < QUADS; ++i) {
                float* to = &sum[i / (TILE_N / 8)][i % (TILE_N / 8) * 4];
                to[0] += parts[j][i].x;
                to[1] += parts[j][i].y;
                to[2] += parts[j][i].z;
                to[3] += parts[j][i].w;
            }
        }
    }
}

// What a kernel does, one block of it. multiply(sum, w, x, active) adds a warp's block of W, in shared memory at `w`,
// times stage `x` of X's ring, which begins at shared memory's begin; not `active` are warps below the last row of W.
//
// W's blocks lie in pieces of PIECE bytes, where `offsets` says. y: fp16 [m, n]. blockIdx.y: which TILE_N columns.
// partials: fp32 [gridDim.y, gridDim.x, 2, TILE_ROWS * TILE_N], needs no values. counters [gridDim.y, tiles]: 0, and 0
// again at the end. x_map: X in tiles of BLOCK_COLS x TILE_N.
template <int PIECE, typename Multiply>
__device__ __forceinline__ void multiply_share(const Multiply& multiply, unsigned char* shared_memory,
                                               const TensorMap& x_map, const unsigned char* __restrict__ pieces,
                                               const int* __restrict__ offsets, unsigned short* __restrict__ y,
                                               float* partials, int* counters, int m, int n, int segments,
                                               int stage_pieces) {
    static_assert(128 % PIECE == 0);
    constexpr int LINE_PIECES = 128 / PIECE;
    const int w_bytes = (stage_pieces + 2 * (LINE_PIECES - 1)) / LINE_PIECES * LINE_PIECES * PIECE;  // whole lines
    const int lane = threadIdx.x % 32;
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    unsigned char* const x_stages = shared_memory;
    unsigned char* const w_stages = x_stages + STAGES * X_BYTES + warp * STAGES * w_bytes;
    Control& control = *reinterpret_cast<Control*>(x_stages + STAGES * X_BYTES + WARPS * STAGES * w_bytes);

    const int tiles = (m + TILE_ROWS - 1) / TILE_ROWS;
    const Shares shares(tiles * segments, gridDim.x);
    const int begin = shares.begin(blockIdx.x), end = shares.begin(blockIdx.x + 1);
    int tile = begin / segments, segment = begin % segments;

    // What a warp asks for next, by one lane. Each lane knows where one of WINDOW + 1 blocks of W begins.
    int w_row = tile * WARPS + warp, w_segment = segment, x_segment = segment;
    int window, known, left;  // of the window
    const auto look_ahead = [&] {
        known = left = min(WINDOW, segments - w_segment);
        const long long block = static_cast<long long>(w_row) * segments + w_segment;
        window = w_row * WARP_ROWS < m ? offsets[block + min(lane, left)] : 0;
    };
    look_ahead();

    if (threadIdx.x == 0) {
        tma_prefetch_map(&x_map);
        for (int stage = 0; stage < STAGES; ++stage)
            for (int i = 0; i < WARPS; ++i) mbarrier_init(&control.w_full[stage][i], 1);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&control.x_full[stage], 1);
            mbarrier_init(&control.x_empty[stage], WARPS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();

    int skipped[STAGES] = {};  // pieces before the block, of a stage's copy; by constant indices, so in registers
    const auto fetch_w = [&](int stage) {
        if (left == 0) look_ahead();
        const int block = __shfl_sync(0xffffffffu, window, known - left);
        const int from = block & ~(LINE_PIECES - 1);
        if constexpr (LINE_PIECES > 1) {
#pragma unroll
            for (int i = 0; i < STAGES; ++i)
                if (i == stage) skipped[i] = block - from;
        }
        const unsigned bytes = (__shfl_sync(0xffffffffu, window, known - left + 1) - from) * PIECE;
        if (bytes > 0 && elect_lane()) {
            unsigned long long* const full = &control.w_full[stage][warp];
            mbarrier_arrive_expect(full, bytes);
            bulk_load_once(w_stages + stage * w_bytes, pieces + static_cast<long long>(from) * PIECE, bytes, full);
        }
        --left;
        if (++w_segment == segments) {
            w_segment = 0;
            w_row += WARPS;
        }
    };
    const auto fetch_x = [&](int stage) {
        mbarrier_arrive_expect(&control.x_full[stage], X_BYTES);
        tma_load(x_stages + stage * X_BYTES, &x_map, &control.x_full[stage], blockIdx.y * TILE_N,
                 x_segment * BLOCK_COLS, 0, 0);
        if (++x_segment == segments) x_segment = 0;
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES - 1 && i < end - begin; ++i) fetch_x(i);
    }
    __syncwarp();
    for (int i = 0; i < STAGES && i < end - begin; ++i) fetch_w(i);

    if (threadIdx.x < 2) {
        auto& shared = control.tiles[threadIdx.x];
        shared.index = (threadIdx.x == 0 ? begin : end - 1) / segments;
        shared.first = shares.owner(shared.index * segments);
        shared.last = shares.owner(shared.index * segments + segments - 1);
        if (threadIdx.x == 1 && shared.index == tile) shared.last = shared.first;  // once is enough
    }
    Place place;
    Sums sum = {};
    for (int unit = begin; unit < end; ++unit) {
        if (threadIdx.x == 0 && unit + STAGES - 1 < end) {
            const int stage = place.stage == 0 ? STAGES - 1 : place.stage - 1;  // of the unit before this one
            if (unit > begin) mbarrier_wait(&control.x_empty[stage], place.parity ^ (place.stage == 0));
            fetch_x(stage);
        }
        __syncwarp();
        const bool active = (tile * WARPS + warp) * WARP_ROWS < m;
        if (active) mbarrier_wait(&control.w_full[place.stage][warp], place.parity);
        mbarrier_wait(&control.x_full[place.stage], place.parity);
        const unsigned char* w = w_stages + place.stage * w_bytes;
        if constexpr (LINE_PIECES > 1) {
#pragma unroll
            for (int i = 0; i < STAGES; ++i)
                if (i == place.stage) w += skipped[i] * PIECE;
        }
        multiply(sum, w, place.stage, active);
        __syncwarp();  // all lanes have read what may be overwritten now
        if (lane == 0) mbarrier_arrive(&control.x_empty[place.stage]);
        if (unit + STAGES < end) fetch_w(place.stage);
        place.advance();
        if (++segment == segments || unit + 1 == end) {
            const int tile_begin = tile * segments;
            if (tile_begin >= begin && tile_begin + segments <= end) {
                each_pair(reinterpret_cast<const Accumulators&>(sum), tile * TILE_ROWS, blockIdx.y * TILE_N,
                          PairWriter<unsigned short>{y, m, n});
            } else {
                leave(sum, part_of(partials, blockIdx.x, begin < tile_begin));
            }
            clear(sum);
            segment = 0;
            ++tile;
        }
    }

    // Of the tiles that this block has only a part of, it finishes those that it comes to last of all their blocks.
    __syncthreads();
    if (threadIdx.x < 2) {
        auto& shared = control.tiles[threadIdx.x];
        const int others = shared.last - shared.first;
        int* const counter = counters + blockIdx.y * tiles + shared.index;
        shared.finish = others > 0 && fetch_add(counter, 1) == others;
        if (shared.finish) *counter = 0;  // as the next launch wants it
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
        const auto& shared = control.tiles[i];
        if (!shared.finish) continue;
        collect(sum, partials, shares, shared.first, shared.last, shared.index * segments);
        each_pair(reinterpret_cast<const Accumulators&>(sum), shared.index * TILE_ROWS, blockIdx.y * TILE_N,
                  PairWriter<unsigned short>{y, m, n});
    }
}

}  // namespace
