// The walk of a block along k, whatever the architecture: a tile of Tiled-CSL (../formats/tiled_csl.py) on its way from
// global memory to its expanded place in shared memory, while another is multiplied.
//
// A block of 4 warps owns 128 rows x TILE_N columns of Y and takes steps of one 128 x 64 tile of W; blockIdx.y picks
// its share of the steps when k is split. Shared memory holds two stages of the expanded tile (16 KiB each) and of X's
// 64 x TILE_N. While the tensor cores multiply one stage, the other is zeroed, and its entries and its X are on their
// way; after a barrier they are put to their places.
//  * A warp computes 32 rows, so each of the block's warps reads its own quarter of W's tile once, and all of X's.
//  * HELD 16-byte vectors per thread are loaded ahead: tiles up to half full. What a denser tile has beyond
//    that is loaded when it is scattered: slower, never wrong.
//  * Zeroing is by plain 16-byte stores: they need no wait of their own before the scatter, as cp.async would.
//  * Where the tile's first entry lies is read two steps ahead, so that no step waits for an address.
#pragma once
#include "skinny_tile.cuh"

namespace {

constexpr int TILE_COLS = 64;
constexpr int W_BYTES = TILE_ROWS * TILE_COLS * 2;
constexpr int X_BYTES = TILE_COLS * TILE_N * 2;
constexpr int HELD = 8;

// The vectors of one tile's entries, and those of them that this thread holds.
struct Entries {
    int first;
    int last;
    uint4 held[HELD];
};

__device__ __forceinline__ void fetch_entries(Entries& tile, const uint4* entries) {
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int vector = tile.first + static_cast<int>(threadIdx.x) + i * THREADS;
        if (vector < tile.last) tile.held[i] = entries[vector];
    }
}

__device__ __forceinline__ void scatter_vector(unsigned char* w, const uint4& vector) {
    const unsigned words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<unsigned short*>(w + (words[i] >> 16)) = static_cast<unsigned short>(words[i]);
    }
}

__device__ __forceinline__ void scatter_entries(unsigned char* w, const Entries& tile, const uint4* entries) {
    const int own = tile.first + static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        if (own + i * THREADS < tile.last) scatter_vector(w, tile.held[i]);
    }
    for (int vector = own + HELD * THREADS; vector < tile.last; vector += THREADS) scatter_vector(w, entries[vector]);
}

__device__ __forceinline__ void zero_tile(unsigned char* w) {
#pragma unroll
    for (int i = 0; i < W_BYTES / 16 / THREADS; ++i) {
        reinterpret_cast<uint4*>(w)[threadIdx.x + i * THREADS] = make_uint4(0, 0, 0, 0);
    }
}

// out: fp16 [m, n] when gridDim.y is 1, else fp32 partial sums [gridDim.y, m, n]. x has rows of `x_stride` halves.
// Blocks that share a row of tiles are neighbours, so that W comes from L2 when n takes several of them.
// Arch: Sums; fetch_x(tile, x, x_stride, k, n, k_begin, n_begin, aligned) asks for a tile of X and finish_x(tile) has
// it there, before a barrier; multiply(sum, w, x).
template <typename Arch>
__device__ __forceinline__ void walk(const uint4* entries, const int* offsets, const unsigned short* x, void* out,
                                     int m, int n, int k, long long x_stride, unsigned char* shared) {
    unsigned char* const w_stages = shared;
    unsigned char* const x_stages = shared + 2 * W_BYTES;

    const int tiles_n = (n + TILE_N - 1) / TILE_N;
    const int tiles_k = (k + TILE_COLS - 1) / TILE_COLS;
    const int tile_row = blockIdx.x / tiles_n;
    const int n_begin = blockIdx.x % tiles_n * TILE_N;
    const auto [begin, end] = share(tiles_k, blockIdx.y, gridDim.y);
    const int* const bounds = offsets + static_cast<long long>(tile_row) * tiles_k;
    const bool aligned = rows_aligned(x, x_stride, n);

    Arch arch;
    typename Arch::Sums sum = {};
    Entries tile;
    tile.first = bounds[begin];
    tile.last = bounds[begin + 1];
    int following = bounds[min(begin + 2, end)];

    zero_tile(w_stages);
    fetch_entries(tile, entries);
    arch.fetch_x(x_stages, x, x_stride, k, n, begin * TILE_COLS, n_begin, aligned);
    __syncthreads();
    scatter_entries(w_stages, tile, entries);
    arch.finish_x(x_stages);
    __syncthreads();

    for (int step = begin; step < end; ++step) {
        const int stage = (step - begin) % 2;
        unsigned char* const w_next = w_stages + (1 - stage) * W_BYTES;
        unsigned char* const x_next = x_stages + (1 - stage) * X_BYTES;
        const bool more = step + 1 < end;
        if (more) {
            tile.first = tile.last;
            tile.last = following;
            following = bounds[min(step + 3, end)];
            fetch_entries(tile, entries);
            zero_tile(w_next);
            arch.fetch_x(x_next, x, x_stride, k, n, (step + 1) * TILE_COLS, n_begin, aligned);
        }
        Arch::multiply(sum, w_stages + stage * W_BYTES, x_stages + stage * X_BYTES);
        if (more) {
            __syncthreads();
            scatter_entries(w_next, tile, entries);
            arch.finish_x(x_next);
        }
        __syncthreads();
    }

    write_share(out, sum, m, n, tile_row * TILE_ROWS, n_begin);
}

}  // namespace
