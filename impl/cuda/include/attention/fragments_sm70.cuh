// The outputs of one 8x8 tile of a quad-pair (see mma_sm70.cuh), in the layout of the accumulators that
// ACCUMULATE_FP16 picks: where a lane's eight lie, how they are summed, and how probabilities become the A operands
// of the next product. The warp's 16x16 tile is cut among the quad-pairs as (pair / 2, pair % 2), so two of them
// share a row.
#pragma once
#include "half.cuh"
#include "mma_sm70.cuh"

constexpr unsigned kAllLanes = 0xffffffffu;

#if ACCUMULATE_FP16

// Output i is row T, column i. A lane holds a whole row.
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

// Sums of a few products in fp16, on their way into fp32 outputs.
struct PartialSums {
    unsigned pairs[4] = {0, 0, 0, 0};
};

__device__ __forceinline__ void multiply_row_col(float (&)[8], PartialSums& sums, const unsigned (&a)[2],
                                                 const unsigned (&b)[2]) {
    mma_m8n8k4_row_col(sums.pairs, a, b);
}

__device__ __forceinline__ void multiply_row_row(float (&)[8], PartialSums& sums, const unsigned (&a)[2],
                                                 const unsigned (&b)[2]) {
    mma_m8n8k4_row_row(sums.pairs, a, b);
}

__device__ __forceinline__ void add_sums(float (&outputs)[8], const PartialSums& sums) {
#    pragma unroll
    for (int i = 0; i < 8; ++i) outputs[i] += i % 2 == 0 ? low_f16(sums.pairs[i / 2]) : high_f16(sums.pairs[i / 2]);
}

// The A operands of two products, over columns 0..3 and 4..7, of pairs of outputs: the layout is already theirs.
__device__ __forceinline__ void to_a_operands(unsigned (&a)[2][2], const unsigned (&pairs)[4], int) {
#    pragma unroll
    for (int i = 0; i < 4; ++i) a[i / 2][i % 2] = pairs[i];
}

#else

// Output i is row lane % 2 + i & 2 + 4 * (lane / 16), column lane & 2 + i & 1 + i & 4. A lane holds halves of two
// rows; lane ^ 2 holds the others.
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

// Nothing: fp32 products go straight into the outputs.
struct PartialSums {};

__device__ __forceinline__ void multiply_row_col(float (&outputs)[8], PartialSums&, const unsigned (&a)[2],
                                                 const unsigned (&b)[2]) {
    mma_m8n8k4_row_col(outputs, a, b);
}

__device__ __forceinline__ void multiply_row_row(float (&outputs)[8], PartialSums&, const unsigned (&a)[2],
                                                 const unsigned (&b)[2]) {
    mma_m8n8k4_row_row(outputs, a, b);
}

__device__ __forceinline__ void add_sums(float (&)[8], const PartialSums&) {}

// The A operands of two products, over columns 0..3 and 4..7, of pairs of outputs. The A layout wants row T whole in
// one lane, so lanes l and l ^ 2 swap one pair per operand: each keeps the row that is its own and sends the other.
__device__ __forceinline__ void to_a_operands(unsigned (&a)[2][2], const unsigned (&pairs)[4], int lane) {
    const bool upper = lane & 2;
#    pragma unroll
    for (int step = 0; step < 2; ++step) {
        const unsigned first_row = pairs[2 * step], second_row = pairs[2 * step + 1];
        const unsigned kept = upper ? second_row : first_row;
        const unsigned received = __shfl_xor_sync(kAllLanes, upper ? first_row : second_row, 2);
        a[step][0] = upper ? received : kept;
        a[step][1] = upper ? kept : received;
    }
}

#endif

// Where in the warp's 16x16 tile a lane's outputs lie. Which column of b is which of a fragment is free; this order
// lets 8 lanes, the group that a 128-bit access serves at once, read rows that all differ mod 8.
__device__ __forceinline__ int warp_row(int lane, int lane_row) {
    return quad_pair_lane(lane).pair / 2 * 8 + tile_row(lane, lane_row);
}
__device__ __forceinline__ int warp_column(int lane, int i) {
    const int column = tile_column(lane, i);
    return column % 4 + quad_pair_lane(lane).pair % 2 * 4 + column / 4 * 8;
}

// Over the lanes and quad-pairs that share a row of the warp's 16x16 tile.
__device__ __forceinline__ float row_maximum(float x) {
    if (kLaneRows == 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
    return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 4));
}

__device__ __forceinline__ float row_total(float x) {
    if (kLaneRows == 2) x += __shfl_xor_sync(kAllLanes, x, 2);
    return x + __shfl_xor_sync(kAllLanes, x, 4);
}
