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

// Adds one step of COUNT blocks of W, the first one being number FIRST, times 32 rows of X, of which this lane points
// ldmatrix at `row`.
template <int FIRST, int COUNT>
__device__ __forceinline__ void multiply_step(Accumulators& sum, const Fragments (&a)[COUNT],
                                              const unsigned (&metadata)[COUNT], unsigned char* x, int row) {
#pragma unroll
    for (int chunk = 0; chunk < X_CHUNKS; ++chunk) {
        unsigned b[4];
        load_matrix_x4_transposed(b, x_chunk(x, row, chunk));
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            mma_sp_m16n8k32_f16<0>(sum[(FIRST + i) * 2][chunk], a[i][0], b, metadata[i]);
            mma_sp_m16n8k32_f16<1>(sum[(FIRST + i) * 2 + 1][chunk], a[i][1], b, metadata[i]);
        }
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

    __device__ Share(const unsigned char* base, bool there, int lane) : block{base} {
        const unsigned start = block.start(lane);
        flags = there ? block.flags(lane) : 0;
        metadata = reinterpret_cast<const uint4&>(block.metadata(lane, 0));
        steps = there ? gathered_steps(start) : 0;
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

// Step STEP and the ones after it of the blocks' own columns.
template <int STEP>
__device__ __forceinline__ void multiply_own(Accumulators& sum, Share (&shares)[ROW_BLOCKS], unsigned char* x,
                                             int lane) {
    Fragments a[ROW_BLOCKS];
    unsigned metadata[ROW_BLOCKS];
#pragma unroll
    for (int i = 0; i < ROW_BLOCKS; ++i) {
        decode<STEP * REGISTERS>(a[i], shares[i].next, shares[i].flags);
        metadata[i] = shares[i].own_metadata(STEP);
    }
    multiply_step<0>(sum, a, metadata, x + STEP * STEP_COLS * X_ROW_BYTES, lane);
    if constexpr (STEP + 1 < OWN_STEPS) multiply_own<STEP + 1>(sum, shares, x, lane);
}

// The gathered steps of block NUMBER and the ones after it.
template <int NUMBER>
__device__ __forceinline__ void multiply_gathered(Accumulators& sum, Share (&shares)[ROW_BLOCKS], unsigned char* x,
                                                  int lane) {
    Share& share = shares[NUMBER];
#pragma unroll 1
    for (int step = 0; step < share.steps; ++step) {
        Fragments a[1];
        decode<0>(a[0], share.next, share.gathered);
        const int row = share.gathered >> 8;
        const unsigned metadata[1] = {share.gathered_metadata};
        share.read(step + 1, lane);
        multiply_step<NUMBER>(sum, a, metadata, x, row);
    }
    if constexpr (NUMBER + 1 < ROW_BLOCKS) multiply_gathered<NUMBER + 1>(sum, shares, x, lane);
}

// Adds a warp's 32 * ROW_BLOCKS x 128 of W, in shared memory from `base` on, `pitch` bytes from one block to the next,
// times the segment of X at `x`. The first `blocks` of them are there.
__device__ __forceinline__ void multiply(Accumulators& sum, const unsigned char* base, int pitch, int blocks,
                                         unsigned char* x) {
    const int lane = threadIdx.x % 32;
#if ROW_BLOCKS == 1
    Share shares[1] = {{base, true, lane}};
#else
    Share shares[2] = {{base, true, lane}, {blocks > 1 ? base + pitch : base, blocks > 1, lane}};
#endif
    multiply_own<0>(sum, shares, x, lane);
    multiply_gathered<0>(sum, shares, x, lane);
}

}  // namespace
