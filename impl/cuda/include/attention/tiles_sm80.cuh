// Tiles of 16-bit elements in shared memory, how they are filled from global memory, and products of them.
//
// Rows are cut into 16-byte chunks; chunk c of row r lies at c ^ (r % 8), in rows of 32 elements at c ^ (r / 2 % 4), so
// that ldmatrix's eight rows and the copies touch all banks. A head dim below PADDED_DIM is filled with zeros in shared
// memory only. ALIGNED says that all rows start at multiples of 16 bytes and head_dim is a multiple of 8; without it,
// plain 16-bit loads.
#pragma once
#include "copy_async.cuh"
#include "mma_sm80.cuh"
#include "tensors.cuh"

constexpr int kChunk = 8;
constexpr int kChunks = PADDED_DIM / kChunk;

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if BFLOAT16
    mma_m16n8k16_bf16(d, a, b0, b1);
#else
    mma_m16n8k16_f16(d, a, b0, b1);
#endif
}

// WIDTH is the elements of one row of the tile.
template <int WIDTH>
__device__ __forceinline__ int swizzle(int row) {
    return WIDTH == 32 ? row / 2 & 3 : row & 7;
}

template <int WIDTH = PADDED_DIM>
__device__ __forceinline__ Element* chunk_at(Element* tile, int row, int chunk) {
    return tile + row * WIDTH + ((chunk ^ swizzle<WIDTH>(row)) * kChunk);
}

// Starts to fill `tile` with ROWS rows by the block's THREADS threads; rows past `rows_left` and columns past
// `head_dim` become zero. `source` is this thread's chunk of the first row it copies (thread_chunk).
template <int ROWS, int THREADS>
__device__ __forceinline__ void load_tile(Element* tile, const Element* source, long long row_stride, int rows_left,
                                          int head_dim) {
    constexpr int kRowStep = THREADS / kChunks;
    const int row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    const int columns = head_dim - chunk * kChunk;
    Element* first = chunk_at(tile, row, chunk);
#pragma unroll(ALIGNED ? ROWS / kRowStep : 1)
    for (int step = 0; step < ROWS / kRowStep; ++step) {
        const int valid = row + step * kRowStep < rows_left ? columns : 0;
        // 8 rows on, a chunk has the same place in its row.
        Element* to =
            kRowStep % 8 == 0 ? first + step * kRowStep * PADDED_DIM : chunk_at(tile, row + step * kRowStep, chunk);
#if ALIGNED
        copy_async_16(to, source, valid > 0);
#else
        for (int i = 0; i < kChunk; ++i) to[i] = i < valid ? source[i] : 0;
#endif
        source += kRowStep * row_stride;
    }
    copy_async_commit();
}

__device__ __forceinline__ const Element* thread_chunk(const Element* source, long long row_stride,
                                                       unsigned thread = threadIdx.x) {
    return source + thread / kChunks * row_stride + thread % kChunks * kChunk;
}

// ldmatrix reads four 8x8 matrices, 16 rows by two chunks; this lane's row and chunk of them as an element offset
// into a tile. The matrices go down the rows first, or along the chunks: so each product finds both registers of its
// B operand side by side, and the four of its A operand in order.
template <int WIDTH = PADDED_DIM>
__device__ __forceinline__ int rows_first_offset(int lane) {
    return lane % 16 * WIDTH + (lane / 16 ^ swizzle<WIDTH>(lane % 8)) * kChunk;
}

template <int WIDTH = PADDED_DIM>
__device__ __forceinline__ int chunks_first_offset(int lane) {
    return (lane / 16 * 8 + lane % 8) * WIDTH + (lane / 8 % 2 ^ swizzle<WIDTH>(lane % 8)) * kChunk;
}

// The same offset for the two chunks from `chunk` (even) on: moving by whole chunks is a xor below 8, an addition
// above.
__device__ __forceinline__ int at_chunk(int offset, int chunk) {
    return (offset ^ ((chunk & 6) * kChunk)) + (chunk & 8) * kChunk;
}

// product = a b^T for 16 * M_TILES rows of one tile and 8 * N_TILES of another, PADDED_DIM wide, UNROLL steps of two
// chunks at a time. `a_offset` is the lane's rows_first_offset, `b_offset` its chunks_first_offset.
template <int UNROLL, int M_TILES, int N_TILES>
__device__ __forceinline__ void multiply_transposed(float (&product)[M_TILES][N_TILES][4], const Element* a_tile,
                                                    const Element* b_tile, int a_offset, int b_offset) {
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) product[m][n][i] = 0.0f;
#pragma unroll(UNROLL)
    for (int chunk = 0; chunk < kChunks; chunk += 2) {
        unsigned a[M_TILES][4];
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
            load_matrix_x4(a[m], a_tile + m * 16 * PADDED_DIM + at_chunk(a_offset, chunk));
#pragma unroll
        for (int n = 0; n < N_TILES; n += 2) {
            unsigned b[4];
            load_matrix_x4(b, b_tile + n * 8 * PADDED_DIM + at_chunk(b_offset, chunk));
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
                multiply(product[m][n], a[m], b[0], b[1]);
                multiply(product[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Writes a warp's 32 rows of a tile in whole chunks to out + row * row_stride, for rows below `row_count`; `warp_row`
// is the first of them.
__device__ __forceinline__ void store_rows(Element* warp_tile, Element* out, long long row_stride, int warp_row,
                                           int row_count, int head_dim, int lane) {
    const int chunk = lane % kChunks;
    for (int row = lane / kChunks; row < 32; row += 32 / kChunks) {
        const int out_row = warp_row + row;
        const int columns = out_row < row_count ? head_dim - chunk * kChunk : 0;
        const Element* from = chunk_at(warp_tile, row, chunk);
        Element* to = out + out_row * row_stride + chunk * kChunk;
#if ALIGNED
        if (columns > 0) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
#else
        for (int i = 0; i < kChunk; ++i)
            if (i < columns) to[i] = from[i];
#endif
    }
}
