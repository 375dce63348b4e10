// A mask and dropout (extras.cuh) on a warp's scores, which lie as warp_row and warp_column say. TRANSPOSED: rows of
// the warp's tile are keys and columns queries, else the other way round.
#pragma once
#include "attention/probabilities_sm70.cuh"
#include "extras.cuh"
#include "registers.cuh"

template <bool TRANSPOSED>
__device__ __forceinline__ void apply_mask(float (&scores)[kRowTiles][kKeyTiles][8], const Mask& mask,
                                           float softmax_scale, int first_row, int first_column, int lane) {
#if MASK
#    pragma unroll
    for (int tile = 0; tile < kRowTiles * kKeyTiles; ++tile) {
        forget_origin(lane);
        const int m = tile / kKeyTiles, n = tile % kKeyTiles;
#    pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int row = first_row + m * 16 + warp_row(lane, lane_row_of(i));
            const int column = first_column + n * 16 + warp_column(lane, i);
            float& score = scores[m][n][i];
            score = mask.apply(score, softmax_scale, TRANSPOSED ? column : row, TRANSPOSED ? row : column);
        }
    }
#endif
}

// Which of 16 kRowTiles by 16 kKeyTiles scores are kept, in one register: bit 16 m + 8 n + i that of scores[m][n][i].
template <bool TRANSPOSED>
__device__ __forceinline__ unsigned kept_scores(const Dropout& dropout, int first_row, int first_column, int lane) {
#if DROPOUT
    static_assert(kRowTiles <= 2 && kKeyTiles <= 2 && kLaneRows == 2, "32 scores in the fp32 layout");
    forget_origin(lane);
    unsigned kept = 0;
#    pragma unroll
    for (int call = 0; call < 4 * (TRANSPOSED ? kKeyTiles : kRowTiles); ++call) {
        // The scores 4 * upper + element, for upper = 0 and 1, are 8 columns apart.
        const int element = call % 4;
        const int m = TRANSPOSED ? 0 : call / 4, n = TRANSPOSED ? call / 4 : 0;
        const int row = first_row + m * 16 + warp_row(lane, lane_row_of(element));
        const int column = first_column + n * 16 + warp_column(lane, element);
        const int first_eighth = kKeyTiles == 2 ? 0 : column / 8 % 4;  // tiles of 32 columns begin with a whole call's
        const uint4 bits = TRANSPOSED ? dropout.bits(column, row) : dropout.bits(row, column);
#    pragma unroll
        for (int upper = 0; upper < 2; ++upper)
#    pragma unroll
            for (int other = 0; other < (TRANSPOSED ? kRowTiles : kKeyTiles); ++other) {
                const int tiles = TRANSPOSED ? other * 16 + n * 8 : m * 16 + other * 8;
                const bool keeps = TRANSPOSED ? dropout.keeps(bits, upper, row / 8 % 4 + other * 2)
                                              : dropout.keeps(bits, row / 8 % 2, first_eighth + other * 2 + upper);
                if (keeps) kept |= 1u << (tiles + upper * 4 + element);
            }
    }
    return kept;
#else
    return 0xffffffffu;
#endif
}
