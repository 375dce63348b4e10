// What the sm_80 kernels of a sparse W in blocks of 32 x BLOCK_COLS times a skinny X share: blocks of W and X by
// cp.async.
//
// A block of WARPS warps owns 32 rows of Y for each, x TILE_N columns, and walks along k in segments of as many;
// blockIdx.y picks its share of the segments when k is split. STAGES segments are in flight: X's BLOCK_COLS x TILE_N
// for the block, and for each warp its own block of W, `stage_pieces` pieces at most. One barrier per segment.
//
// Shared memory: STAGES * (2 * BLOCK_COLS * TILE_N + WARPS * stage_pieces * (bytes of a piece)) bytes. Macros:
// BLOCK_COLS, TILE_N, WARPS, STAGES (2 or more).
#pragma once
#include "skinny_tile_sm80.cuh"

namespace {

constexpr int X_BYTES = BLOCK_COLS * TILE_N * 2;

// What a kernel does, one block of it. multiply(sum, w, x) adds a warp's block of W times a segment of X, both in
// shared memory.
//
// W's blocks lie in pieces of PIECE bytes, where `offsets` says. out: fp16 [m, n] when gridDim.y is 1, else fp32
// partial sums [gridDim.y, m, n]. x has rows of `x_stride` halves. Blocks that share rows of W are neighbours, so that
// W comes from L2 when n takes several of them.
template <int PIECE, typename Multiply>
__device__ __forceinline__ void multiply_along_k(const Multiply& multiply, unsigned char* shared_memory,
                                                 const unsigned char* __restrict__ pieces,
                                                 const int* __restrict__ offsets, const unsigned short* __restrict__ x,
                                                 void* __restrict__ out, int m, int n, int k, long long x_stride,
                                                 int stage_pieces) {
    const int w_bytes = stage_pieces * PIECE;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    unsigned char* const x_stages = shared_memory;
    unsigned char* const w_stages = shared_memory + STAGES * X_BYTES + warp * STAGES * w_bytes;

    const int tiles_n = (n + TILE_N - 1) / TILE_N;
    const int segments = (k + BLOCK_COLS - 1) / BLOCK_COLS;
    const int m_begin = blockIdx.x / tiles_n * TILE_ROWS;
    const int n_begin = blockIdx.x % tiles_n * TILE_N;
    const Range range = share(segments, blockIdx.y, gridDim.y);
    const bool aligned = rows_aligned(x, x_stride, n);
    const int warp_row = m_begin / WARP_ROWS + warp;
    const bool active = warp_row * WARP_ROWS < m;
    const int* const bounds = offsets + (active ? static_cast<long long>(warp_row) * segments : 0);

    // Where a segment begins and ends is read a segment ahead of its copy, so that no copy waits for an address.
    int first = bounds[range.begin];
    int last = bounds[range.begin + 1];
    auto fetch = [&](int segment) {
        if (segment < range.end) {
            const int stage = (segment - range.begin) % STAGES;
            const int following = bounds[min(segment + 2, range.end)];
            load_x<BLOCK_COLS>(x_stages + stage * X_BYTES, x, x_stride, k, n, segment * BLOCK_COLS, n_begin, aligned);
            if (active) {
                const unsigned char* const from = pieces + static_cast<long long>(first) * PIECE;
                for (int byte = lane * 16; byte < (last - first) * PIECE; byte += 32 * 16) {
                    copy_async_16(w_stages + stage * w_bytes + byte, from + byte, true);
                }
            }
            first = last;
            last = following;
        }
        copy_async_commit();
    };

    Accumulators sum = {};
    for (int i = 0; i < STAGES - 1; ++i) fetch(range.begin + i);
    for (int segment = range.begin; segment < range.end; ++segment) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // the segment is there for all, and all are done with the one before it
        fetch(segment + STAGES - 1);
        const int stage = (segment - range.begin) % STAGES;
        if (active) multiply(sum, w_stages + stage * w_bytes, x_stages + stage * X_BYTES);
    }
    write_share(out, sum, m, n, m_begin, n_begin);
}

}  // namespace
