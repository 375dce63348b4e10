// What the kernels of a sparse W times a skinny X share, on any architecture: a block of WARPS warps owns 32 rows of Y
// for each of them, and TILE_N columns; X's tile in shared memory, and the way Y or its partial sums are written.
// WARPS, TILE_N: macros.
#pragma once
#include "half.cuh"

namespace {

constexpr int THREADS = WARPS * 32;
constexpr int WARP_ROWS = 32;
constexpr int TILE_ROWS = WARPS * WARP_ROWS;
constexpr int CHUNK = 8;  // halves of 16 bytes: what ldmatrix and cp.async move, and the swizzles permute
constexpr int X_CHUNKS = TILE_N / CHUNK;

// Where chunk `chunk` of row `row` of X's tile lies: eight rows of one chunk fill all banks once.
template <typename Address>
__device__ __forceinline__ Address x_chunk(Address tile, int row, int chunk) {
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

// Writes two neighbours to out [m, n], as far as they are in it. An even n keeps every pair aligned and whole.
template <typename Element>
struct PairWriter {
    Element* out;
    int m, n;

    __device__ void operator()(int row, int column, float first, float second) const {
        if (row >= m || column >= n) return;
        Element* const to = out + static_cast<long long>(row) * n + column;
        if (n % 2 == 0) {
            store_pair(to, first, second);
        } else {
            store(to, first);
            if (column + 1 < n) store(to + 1, second);
        }
    }
};

// Share `split` of `splits` of `size` steps.
struct Range {
    int begin;
    int end;
};

__device__ __forceinline__ Range share(int size, int split, int splits) {
    const int begin = split * (size / splits) + min(split, size % splits);
    return {begin, begin + size / splits + (split < size % splits ? 1 : 0)};
}

// The block's sums: fp16 of out [m, n] when k is not split, else fp32 of the split's [m, n]. each_pair(sum, m_begin,
// n_begin, write), which belongs to the sums' layout, calls `write` for all pairs that this thread has.
template <typename Sums>
__device__ __forceinline__ void write_share(void* out, const Sums& sum, int m, int n, int m_begin, int n_begin) {
    if (gridDim.y == 1) {
        each_pair(sum, m_begin, n_begin, PairWriter<unsigned short>{static_cast<unsigned short*>(out), m, n});
    } else {
        float* const partial = static_cast<float*>(out) + static_cast<long long>(blockIdx.y) * m * n;
        each_pair(sum, m_begin, n_begin, PairWriter<float>{partial, m, n});
    }
}

}  // namespace
