// What the kernels of a sparse W times a skinny X share: a block of WARPS warps owns 32 rows of Y for each of them, and
// TILE_N columns; X's tile in shared memory, and the way Y or its partial sums are written. WARPS, TILE_N: macros.
#pragma once
#include "copy_async.cuh"
#include "mma_sm80.cuh"

namespace {

constexpr int THREADS = WARPS * 32;
constexpr int WARP_ROWS = 32;
constexpr int TILE_ROWS = WARPS * WARP_ROWS;
constexpr int CHUNK = 8;  // halves of 16 bytes: what ldmatrix and cp.async move, and the swizzles permute
constexpr int X_CHUNKS = TILE_N / CHUNK;
constexpr int ROW_FRAGMENTS = WARP_ROWS / 16;

using Accumulators = float[ROW_FRAGMENTS][X_CHUNKS][4];

// Where chunk `chunk` of row `row` of X's tile lies: eight rows of one chunk fill all banks once.
__device__ __forceinline__ unsigned char* x_chunk(unsigned char* tile, int row, int chunk) {
    const int swizzled = chunk ^ ((row * X_CHUNKS / 8) & (X_CHUNKS - 1));
    return tile + (row * X_CHUNKS + swizzled) * 16;
}

// Eight halves of which the first `count` are there and the others 0, for rows of X that are not aligned.
__device__ __forceinline__ uint4 gather_chunk(const unsigned short* from, int count) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned low = 2 * i < count ? from[2 * i] : 0;
        const unsigned high = 2 * i + 1 < count ? from[2 * i + 1] : 0;
        words[i] = low | high << 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

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

// Whether rows of X can be copied by 16 bytes.
__device__ __forceinline__ bool rows_aligned(const unsigned short* x, long long stride, int n) {
    return reinterpret_cast<unsigned long long>(x) % 16 == 0 && stride % CHUNK == 0 && n % CHUNK == 0;
}

__device__ __forceinline__ void store(float* to, float value) {
    *to = value;
}

__device__ __forceinline__ void store(unsigned short* to, float value) {
    *to = static_cast<unsigned short>(pack_f16(value, 0.0f));
}

__device__ __forceinline__ void store_pair(float* to, float first, float second) {
    *reinterpret_cast<float2*>(to) = make_float2(first, second);
}

__device__ __forceinline__ void store_pair(unsigned short* to, float first, float second) {
    *reinterpret_cast<unsigned*>(to) = pack_f16(first, second);
}

// Writes the block's part of out [m, n], fp32 or fp16. An even n keeps every pair aligned and whole.
template <typename Element>
__device__ __forceinline__ void write(Element* out, const Accumulators& sum, int m, int n, int m_begin, int n_begin) {
    const int lane = threadIdx.x % 32;
    const int warp_row = m_begin + threadIdx.x / 32 * WARP_ROWS + lane / 4;
#pragma unroll
    for (int i = 0; i < ROW_FRAGMENTS; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = warp_row + i * 16 + half * 8;
#pragma unroll
            for (int j = 0; j < X_CHUNKS; ++j) {
                const int column = n_begin + j * CHUNK + lane % 4 * 2;
                if (row >= m || column >= n) continue;
                Element* to = out + static_cast<long long>(row) * n + column;
                if (n % 2 == 0) {
                    store_pair(to, sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
                } else {
                    store(to, sum[i][j][half * 2]);
                    if (column + 1 < n) store(to + 1, sum[i][j][half * 2 + 1]);
                }
            }
        }
    }
}

// Share `split` of `splits` of `size` steps.
struct Range {
    int begin;
    int end;
};

__device__ __forceinline__ Range share(int size, int split, int splits) {
    const int begin = split * (size / splits) + min(split, size % splits);
    return {begin, begin + size / splits + (split < size % splits ? 1 : 0)};
}

// The block's rows and columns: fp16 of out [m, n] when k is not split, else fp32 of the split's [m, n].
__device__ __forceinline__ void write_share(void* out, const Accumulators& sum, int m, int n, int m_begin,
                                            int n_begin) {
    if (gridDim.y == 1) {
        write(static_cast<unsigned short*>(out), sum, m, n, m_begin, n_begin);
    } else {
        float* const partial = static_cast<float*>(out) + static_cast<long long>(blockIdx.y) * m * n;
        write(partial, sum, m, n, m_begin, n_begin);
    }
}

}  // namespace
