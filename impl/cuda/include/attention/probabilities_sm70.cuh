// How the probabilities of a warp's rows and BLOCK_N keys become the A operands of p v.
//
// A lane's outputs of q k^T lie in its quad-pair's 8x8 tiles; as A operands it needs one row of its quad-pair's rows
// whole, half of which the quad-pair of the other eight columns (lane ^ 4) holds. Two ways, bit for bit the same:
// in registers by shuffles, or, with P_THROUGH_SHARED, stored to shared memory and read back (VOLTA.md counts both).
//
// Quad-pairs take their own four keys of eight first and the other's second: the order of keys is free for each of
// them, so that nothing is selected; only the address of V differs.
#pragma once
#include "fragments_sm70.cuh"

constexpr int kWarpRows = WARP_ROWS;
constexpr int kRowTiles = kWarpRows / 16;
constexpr int kKeyTiles = BLOCK_N / 16;

// A operands for a 16x16 tile: [this quad-pair's share of the keys, the other's][its first four keys, its last].
typedef unsigned Probabilities[2][2][2];

// Whether `kept`, one bit for each of a lane's scores, has the bit of scores[m][n][i]. With dropout there are at most
// 32; without it all bits are 1.
__device__ __forceinline__ bool is_kept(unsigned kept, int m, int n, int i) {
    return kept >> (m * 16 + n * 8 + i) % 32 & 1;
}

#if P_THROUGH_SHARED

constexpr int kUnits = BLOCK_N / 4;  // of four keys, 8 bytes

// Unit u of row r lies at u ^ swizzle(r). A half-warp reads eight rows that differ in bits 0, 1 and 3, and two units; a
// warp stores to eight rows that differ in bits 0, 2 and 3, and two units. Both meet all banks once.
__device__ __forceinline__ constexpr int swizzle(int row) {
    return BLOCK_N == 64 ? (row & 1) * 2 + ((row >> 1 ^ row >> 2) & 1) * 4 + (row & 8)
                         : ((row >> 1 ^ row >> 2) & 1) * 2 + (row & 8) / 2;
}

// Stores a lane's probabilities of 16x16 tile (m, n), as pairs.
__device__ __forceinline__ void convert(Probabilities&, uint2* warp_p_tile, int m, int n, const unsigned (&pairs)[4],
                                        int lane) {
    const QuadPairLane place = quad_pair_lane(lane);
    const int first_row = warp_row(lane, 0);
    const int first_unit = place.pair % 2 ^ swizzle(first_row);
    uint2* first = warp_p_tile + first_row * kUnits;
#    pragma unroll
    for (int i = 0; i < 8; i += 4 / kLaneRows) {
        const int row = lane_row_of(i) * 2;
        uint2* unit = first + (m * 16 + row) * kUnits + (n * 4 + i / 4 * 2 ^ swizzle(row) ^ first_unit);
#    if ACCUMULATE_FP16
        *unit = make_uint2(pairs[i / 2], pairs[i / 2 + 1]);
#    else
        reinterpret_cast<unsigned*>(unit)[lane % 4 / 2] = pairs[i / 2];
#    endif
    }
}

// Reads the operands of all tiles, once all are stored.
__device__ __forceinline__ void collect(Probabilities (&p)[kRowTiles][kKeyTiles], uint2* warp_p_tile, int lane) {
    const QuadPairLane place = quad_pair_lane(lane);
    const int first_row = place.pair / 2 * 8 + place.member;
    const int first_unit = place.pair % 2 ^ swizzle(first_row);
    const uint2* first = warp_p_tile + first_row * kUnits;
    __syncwarp();
#    pragma unroll
    for (int i = 0; i < kRowTiles * kKeyTiles * 4; ++i) {
        const int m = i / 4 / kKeyTiles, n = i / 4 % kKeyTiles, other = i / 2 % 2, eight = i % 2;
        const uint2 operand = first[m * 16 * kUnits + (n * 4 + eight * 2 + other ^ first_unit)];
        p[m][n][other][eight][0] = operand.x;
        p[m][n][other][eight][1] = operand.y;
    }
}

#else

__device__ __forceinline__ void convert(Probabilities& operands, uint2*, int, int, const unsigned (&pairs)[4],
                                        int lane) {
    to_a_operands(operands[0], pairs, lane);
#    pragma unroll
    for (int i = 0; i < 4; ++i) operands[1][i / 2][i % 2] = __shfl_xor_sync(kAllLanes, operands[0][i / 2][i % 2], 4);
}

__device__ __forceinline__ void collect(Probabilities (&)[kRowTiles][kKeyTiles], uint2*, int) {}

#endif

__device__ __forceinline__ void convert(Probabilities& operands, uint2* warp_p_tile, int m, int n, const float (&p)[8],
                                        int lane) {
    unsigned pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = pack_f16(p[2 * i], p[2 * i + 1]);
    convert(operands, warp_p_tile, m, n, pairs, lane);
}
