// A tile of Tiled-CSL (../formats/tiled_csl.py) on its way from global memory to its expanded place in shared memory.
//  * HELD 16-byte vectors per thread are loaded ahead: tiles up to half full. What a denser tile has beyond
//    that is loaded when it is scattered: slower, never wrong.
//  * Zeroing is by plain 16-byte stores: they need no wait of their own before the scatter, as cp.async would.
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

}  // namespace
