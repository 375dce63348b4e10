// A tile of a sparse W times a skinny X on sm_80: X by cp.async, sums as mma.m16n8k16 has them.
#pragma once
#include "copy_async.cuh"
#include "mma_sm80.cuh"
#include "skinny_tile.cuh"

namespace {

constexpr int ROW_FRAGMENTS = WARP_ROWS / 16;

using Accumulators = float[ROW_FRAGMENTS][X_CHUNKS][4];

// ROWS rows from k_begin and TILE_N columns from n_begin of X, zeros outside it.
template <int ROWS>
__device__ __forceinline__ void load_x(unsigned char* tile, const unsigned short* x, long long stride, int k, int n,
                                       int k_begin, int n_begin, bool aligned) {
    for (int i = threadIdx.x; i < ROWS * X_CHUNKS; i += THREADS) {
        const int row = i / X_CHUNKS;
        const int chunk = i % X_CHUNKS;
        const int column = n_begin + chunk * CHUNK;
        const unsigned short* from = x + (k_begin + row) * stride + column;
        unsigned char* to = x_chunk(tile, row, chunk);
        if (aligned) {
            copy_async_16(to, from, k_begin + row < k && column < n);
        } else {
            *reinterpret_cast<uint4*>(to) = gather_chunk(from, k_begin + row < k ? n - column : 0);
        }
    }
}

// Calls write(row, column, first, second) for this thread's pairs of neighbours.
template <typename Write>
__device__ __forceinline__ void each_pair(const Accumulators& sum, int m_begin, int n_begin, Write write) {
    const int lane = threadIdx.x % 32;
    const int warp_row = m_begin + threadIdx.x / 32 * WARP_ROWS + lane / 4;
#pragma unroll
    for (int i = 0; i < ROW_FRAGMENTS; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int j = 0; j < X_CHUNKS; ++j) {
                write(warp_row + i * 16 + half * 8, n_begin + j * CHUNK + lane % 4 * 2, sum[i][j][half * 2],
                      sum[i][j][half * 2 + 1]);
            }
        }
    }
}

}  // namespace
