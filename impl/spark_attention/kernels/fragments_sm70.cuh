// The accumulators of one 8x8 tile of a quad-pair (see mma_sm70.cuh), in the precision that ACCUMULATE_FP16 picks:
// where its eight elements lie, how softmax reads them, and how probabilities become the A operand of the next
// product. The warp's 16x16 tile is cut among the quad-pairs as (pair / 2, pair % 2), so two of them share a row.
#pragma once
#include "half.cuh"
#include "math.cuh"
#include "mma_sm70.cuh"

constexpr unsigned kAllLanes = 0xffffffffu;

#if ACCUMULATE_FP16

// Element i is row T, column i. A lane holds a whole row.
typedef unsigned Accumulator[4];
constexpr int kLaneRows = 1;

__device__ __forceinline__ constexpr int lane_row_of(int) {
    return 0;
}
__device__ __forceinline__ int tile_row(int lane, int) {
    return quad_pair_lane(lane).member;
}
__device__ __forceinline__ int tile_column(int, int i) {
    return i;
}

__device__ __forceinline__ void clear(Accumulator& tile) {
#    pragma unroll
    for (int i = 0; i < 4; ++i) tile[i] = 0;
}

__device__ __forceinline__ float element(const Accumulator& tile, int i) {
    return i % 2 == 0 ? low_f16(tile[i / 2]) : high_f16(tile[i / 2]);
}

__device__ __forceinline__ void mask_element(Accumulator& tile, int i) {
    constexpr unsigned kMinusInfinity = 0xfc00;
    tile[i / 2] =
        i % 2 == 0 ? (tile[i / 2] & 0xffff0000u) | kMinusInfinity : (tile[i / 2] & 0x0000ffffu) | kMinusInfinity << 16;
}

// The A operands of two products, over columns 0..3 and 4..7: the accumulator layout is already theirs.
__device__ __forceinline__ void to_a_operand(unsigned (&a)[2][2], const float (&p)[8], int) {
#    pragma unroll
    for (int i = 0; i < 4; ++i) a[i / 2][i % 2] = pack_f16(p[2 * i], p[2 * i + 1]);
}

#else

// Element i is row lane % 2 + i & 2 + 4 * (lane / 16), column lane & 2 + i & 1 + i & 4. A lane holds halves of two
// rows; lane ^ 2 holds the others.
typedef float Accumulator[8];
constexpr int kLaneRows = 2;

__device__ __forceinline__ constexpr int lane_row_of(int i) {
    return i / 2 % 2;
}
__device__ __forceinline__ int tile_row(int lane, int lane_row) {
    return lane % 2 + lane_row * 2 + lane / 16 * 4;
}
__device__ __forceinline__ int tile_column(int lane, int i) {
    return (lane & 2) + (i & 1) + (i & 4);
}

__device__ __forceinline__ void clear(Accumulator& tile) {
#    pragma unroll
    for (int i = 0; i < 8; ++i) tile[i] = 0.0f;
}

__device__ __forceinline__ float element(const Accumulator& tile, int i) {
    return tile[i];
}

__device__ __forceinline__ void mask_element(Accumulator& tile, int i) {
    tile[i] = -infinity();
}

// The A operands of two products, over columns 0..3 and 4..7. The A layout wants row T whole in one lane, so lanes l
// and l ^ 2 swap one pair per operand: each keeps the row that is its own and sends the other.
__device__ __forceinline__ void to_a_operand(unsigned (&a)[2][2], const float (&p)[8], int lane) {
    const bool upper = lane & 2;
#    pragma unroll
    for (int step = 0; step < 2; ++step) {
        const unsigned first_row = pack_f16(p[4 * step], p[4 * step + 1]);
        const unsigned second_row = pack_f16(p[4 * step + 2], p[4 * step + 3]);
        const unsigned kept = upper ? second_row : first_row;
        const unsigned received = __shfl_xor_sync(kAllLanes, upper ? first_row : second_row, 2);
        a[step][0] = upper ? received : kept;
        a[step][1] = upper ? kept : received;
    }
}

#endif

// Over the lanes and quad-pairs that share a row of the warp's 16x16 tile.
__device__ __forceinline__ float row_maximum(float x) {
    if (kLaneRows == 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
    return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 4));
}

__device__ __forceinline__ float row_total(float x) {
    if (kLaneRows == 2) x += __shfl_xor_sync(kAllLanes, x, 2);
    return x + __shfl_xor_sync(kAllLanes, x, 4);
}
