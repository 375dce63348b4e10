// A block of W in the format two of four (../formats/two_of_four.py) times a skinny X: decoded in registers, which are
// the sparse A of mma.sp.m16n8k32. X is its B, which ldmatrix takes from any rows, so gathered columns of W cost no
// more than its own.
//
// A lane walks down its own words. For each group of its share, a bit test predicates the read of the next word and the
// step to the one after; without a word the register is zero: four instructions for each four columns of a row.
#pragma once
#include "mma_sp_sm80.cuh"
#include "predicate.cuh"
#include "skinny_tile_sm80.cuh"
#include "two_of_four_block.cuh"

namespace {

constexpr int X_ROW_BYTES = TILE_N * 2;

// A fragments of a warp's 32 rows: [16 rows][register].
using Fragments = unsigned[2][4];

// The A fragments of one step, whose flags begin at bit FIRST; `next`: the lane's next word.
template <int FIRST>
__device__ __forceinline__ void decode(Fragments& a, SharedAddress& next, unsigned flags) {
    load_words_if<FIRST>(a[0], flags, next);
    load_words_if<FIRST + 4>(a[1], flags, next);
}

// Adds one step of W times 32 rows of X, of which this lane points ldmatrix at `row`.
__device__ __forceinline__ void multiply_step(Accumulators& sum, const Fragments& a, unsigned metadata,
                                              unsigned char* x, int row) {
#pragma unroll
    for (int chunk = 0; chunk < X_CHUNKS; ++chunk) {
        unsigned b[4];
        load_matrix_x4_transposed(b, x_chunk(x, row, chunk));
        mma_sp_m16n8k32_f16<0>(sum[0][chunk], a[0], b, metadata);
        mma_sp_m16n8k32_f16<1>(sum[1][chunk], a[1], b, metadata);
    }
}

// What a lane knows of a block.
struct Share {
    Block block;
    SharedAddress next;  // of its words
    unsigned flags;
    uint4 metadata;
    int steps;                             // gathered ones
    unsigned gathered, gathered_metadata;  // of the next gathered step: read ahead of its use

    __device__ Share(const unsigned char* base, int lane) : block{base} {
        const unsigned start = block.start(lane);
        flags = block.flags(lane);
        metadata = reinterpret_cast<const uint4&>(block.metadata(lane, 0));
        steps = gathered_steps(start);
        next = shared_address(base + first_word(start) * 4);
        read(0, lane);
    }
    __device__ void read(int step, int lane) {
        if (step >= steps) return;
        gathered = block.gathered(step, lane);
        gathered_metadata = block.gathered_metadata(step, lane);
    }
    __device__ unsigned own_metadata(int step) const {
        return step == 0 ? metadata.x : step == 1 ? metadata.y : step == 2 ? metadata.z : metadata.w;
    }
};

// Step STEP and the ones after it of a block's own columns.
template <int STEP>
__device__ __forceinline__ void multiply_own(Accumulators& sum, Share& share, unsigned char* x, int lane) {
    Fragments a;
    decode<STEP * REGISTERS>(a, share.next, share.flags);
    multiply_step(sum, a, share.own_metadata(STEP), x + STEP * STEP_COLS * X_ROW_BYTES, lane);
    if constexpr (STEP + 1 < OWN_STEPS) multiply_own<STEP + 1>(sum, share, x, lane);
}

// Adds one warp's 32 x 128 of W, in shared memory at `base`, times the segment of X at `x`.
__device__ __forceinline__ void multiply(Accumulators& sum, const unsigned char* base, unsigned char* x) {
    const int lane = threadIdx.x % 32;
    Share share(base, lane);
    multiply_own<0>(sum, share, x, lane);
#pragma unroll 1
    for (int step = 0; step < share.steps; ++step) {
        Fragments a;
        decode<0>(a, share.next, share.gathered);
        const int row = share.gathered >> 8;
        const unsigned metadata = share.gathered_metadata;
        share.read(step + 1, lane);
        multiply_step(sum, a, metadata, x, row);
    }
}

}  // namespace
