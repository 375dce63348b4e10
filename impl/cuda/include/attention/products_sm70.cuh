// The products of a warp's rows that every attention kernel is made of, a b^T and p b, and the way of an output to
// global memory. Tiles in shared memory are those of staged_tile_sm70.cuh.
#pragma once
#include "fragments_sm70.cuh"
#include "probabilities_sm70.cuh"
#include "staged_tile_sm70.cuh"

constexpr int kDimTiles = PADDED_DIM / 32;
constexpr int kSumChunks = 2;

// A warp's fp32 outputs of `p b`: column n of [d][j] is dim 32 d + 16 * (pair % 2) + 8 * (n / 4) + 4 j + n % 4.
typedef float Output[kRowTiles][kDimTiles][2][8];

// The fragments of two products over 4 columns each, which lie in one chunk.
__device__ __forceinline__ void load_fragments(unsigned (&fragments)[2][2], const uint4* chunk) {
    const uint4 words = *chunk;
    fragments[0][0] = words.x, fragments[0][1] = words.y, fragments[1][0] = words.z, fragments[1][1] = words.w;
}

// scores += a b^T for the warp's rows of a and the first 16 TILES rows of b. Outputs lie as warp_row and warp_column
// say, so lane l loads row l % 8 + 8 * (l / 16) of b.
template <int TILES>
__device__ __forceinline__ void multiply_nt(float (&scores)[kRowTiles][TILES][8], const uint4* a_tile,
                                            const uint4* b_tile, int lane) {
    const int a_first = quad_pair_lane(lane).pair / 2 * 8 + quad_pair_lane(lane).member;
    const int b_first = lane % 8 + lane / 16 * 8;
    const uint4* a_row = a_tile + a_first * kChunks;
    const uint4* b_row = b_tile + b_first * kChunks;
#pragma unroll(ACCUMULATE_FP16 ? 1 : kChunks)
    for (int first = 0; first < kChunks; first += kSumChunks) {
        PartialSums sums[kRowTiles][TILES];
#pragma unroll
        for (int chunk = first; chunk < first + kSumChunks; ++chunk) {
            const int a_chunk = chunk ^ a_first % 8, b_chunk = chunk ^ b_first % 8;
            unsigned a[kRowTiles][2][2];
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m) load_fragments(a[m], a_row + a_chunk + m * 16 * kChunks);
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
                unsigned b[2][2];
                load_fragments(b, b_row + b_chunk + n * 16 * kChunks);
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int m = 0; m < kRowTiles; ++m) multiply_row_col(scores[m][n], sums[m][n], a[m][half], b[half]);
            }
        }
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
            for (int n = 0; n < TILES; ++n) add_sums(scores[m][n], sums[m][n]);
    }
}

// output += p b for the warp's rows and the first 16 TILES rows of b, which are p's columns. A lane loads the fragments
// of products j = 0 and 1 as one chunk.
template <int TILES>
__device__ __forceinline__ void multiply_nn(Output& output, const Probabilities (&p)[kRowTiles][TILES],
                                            const uint4* b_tile, int lane) {
    const int side = quad_pair_lane(lane).pair % 2;
    const int first_chunk = side * 2 + lane / 16;
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
        PartialSums sums[kRowTiles][2];
#pragma unroll
        for (int step = 0; step < TILES * 4; ++step) {
            const int n = step / 4, eight = step / 2 % 2, other = step % 2;
            const int row = (side ^ other) * 4 + lane % 4;
            const int chunk = d / 2 * 8 + (d % 2 * 4 ^ first_chunk ^ row);
            unsigned b[2][2];
            load_fragments(b, b_tile + (n * 16 + eight * 8 + row) * kChunks + chunk);
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
                for (int j = 0; j < 2; ++j) multiply_row_row(output[m][d][j], sums[m][j], p[m][n][other][eight], b[j]);
        }
#pragma unroll
        for (int i = 0; i < kRowTiles * 2; ++i) add_sums(output[i / 2][d][i % 2], sums[i / 2][i % 2]);
    }
}

// Writes the first `rows` of the warp's rows of `output`, each times its factor, from `to` on. They go through `tile`,
// shared memory for kWarpRows rows, to leave in whole chunks.
__device__ __forceinline__ void write_rows(const Output& output, const float (&factor)[kRowTiles][kLaneRows],
                                           uint4* tile, Element* to, long long row_stride, int rows, int head_dim,
                                           int lane) {
    const int side = quad_pair_lane(lane).pair % 2;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int i = 0; i < kDimTiles * 16; i += 2) {
            const int r = lane_row_of(i % 8), d = i / 16, j = i / 8 % 2, column = tile_column(lane, i % 8);
            const float (&values)[8] = output[m][d][j];
            uint4* chunk = chunk_at(tile, m * 16 + warp_row(lane, r), d * 4 + side * 2 + column / 4);
            reinterpret_cast<unsigned*>(chunk)[j * 2 + column % 4 / 2] =
                pack_f16(values[i % 8] * factor[m][r], values[i % 8 + 1] * factor[m][r]);
        }
    __syncwarp();
    const int chunk = lane % kChunks;
    for (int row = lane / kChunks; row < kWarpRows && row < rows; row += 32 / kChunks) {
        const uint4* from = chunk_at(tile, row, chunk);
        Element* target = to + row * row_stride + chunk * kChunk;
#if ALIGNED
        if (chunk * kChunk < head_dim) *reinterpret_cast<uint4*>(target) = *from;
#else
        for (int i = 0; i < kChunk; ++i)
            if (chunk * kChunk + i < head_dim) target[i] = reinterpret_cast<const Element*>(from)[i];
#endif
    }
}

// As above, all rows times one factor.
__device__ __forceinline__ void write_rows(const Output& output, float factor, uint4* tile, Element* to,
                                           long long row_stride, int rows, int head_dim, int lane) {
    float factors[kRowTiles][kLaneRows];
#pragma unroll
    for (int i = 0; i < kRowTiles * kLaneRows; ++i) factors[i / kLaneRows][i % kLaneRows] = factor;
    write_rows(output, factors, tile, to, row_stride, rows, head_dim, lane);
}
