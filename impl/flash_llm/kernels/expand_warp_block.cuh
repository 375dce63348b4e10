// A block of 32 x BLOCK_COLS of W, the share of a warp, expanded by it: the block's pieces are copied to shared memory,
// its format puts the elements in their places of a tile there, and the tile's rows are written by 16 bytes. Rows of
// the tile are 16 bytes longer, so that the four bytes of 32 lanes fall in 32 banks. BLOCK_COLS, WARPS: macros. WARPS
// warps a block, each with 32 * ROW_BYTES + (bytes of a piece) * `longest` bytes of shared memory. Any architecture.
#pragma once
#include "dense_rows.cuh"

namespace {

constexpr int BLOCK_ROWS = 32;
constexpr int ROW_CHUNKS = BLOCK_COLS / ROW_CHUNK;
constexpr int ROW_BYTES = BLOCK_COLS * 2 + 16;

// place(tile, block, lane) puts the elements of a block, staged at `block`, in the tile, whose bytes it owns whole.
template <int PIECE, typename Place>
__device__ __forceinline__ void expand_block(const Place& place, unsigned char* shared_memory,
                                             const uint4* __restrict__ pieces, const int* __restrict__ offsets,
                                             unsigned short* __restrict__ dense, int m, int k, int longest) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int blocks_k = (k + BLOCK_COLS - 1) / BLOCK_COLS;
    const long long block = static_cast<long long>(blockIdx.x) * WARPS + warp;
    const int m_begin = static_cast<int>(block / blocks_k) * BLOCK_ROWS;
    const int k_begin = static_cast<int>(block % blocks_k) * BLOCK_COLS;
    if (m_begin >= m) return;
    unsigned char* const tile = shared_memory + warp * (BLOCK_ROWS * ROW_BYTES + longest * PIECE);
    unsigned char* const staged = tile + BLOCK_ROWS * ROW_BYTES;

    const int first = offsets[block];
    const int chunks = (offsets[block + 1] - first) * (PIECE / 16);
    const uint4* const from = pieces + static_cast<long long>(first) * (PIECE / 16);
    for (int i = lane; i < chunks; i += 32) reinterpret_cast<uint4*>(staged)[i] = from[i];
    __syncwarp();
    place(tile, staged, lane);
    __syncwarp();
    for (int i = lane; i < BLOCK_ROWS * ROW_CHUNKS; i += 32) {
        const int row = i / ROW_CHUNKS;
        const int chunk = i % ROW_CHUNKS;
        const uint4& halves = *reinterpret_cast<const uint4*>(tile + row * ROW_BYTES + chunk * 16);
        write_chunk(dense, halves, m_begin + row, k_begin + chunk * ROW_CHUNK, m, k);
    }
}

}  // namespace
