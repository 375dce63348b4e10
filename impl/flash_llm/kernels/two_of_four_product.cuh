// A block of W in the format two of four (../formats/two_of_four.py) times a skinny X: decoded in registers, which are
// the sparse A of mma.sp.m16n8k32. X is its B, which ldmatrix takes from any rows, so gathered columns of W cost no
// more than its own.
//
// A lane walks down its own words: through halves, two steps at a time, as in a bitmap (parity_decode.cuh); then, of
// the gathered steps, whose registers are mostly empty, through whole words. There, for each group of its share, a bit
// test predicates the read of the next word and the step to the one after; without a word the register is zero.
#pragma once
#include "mma_sp_sm80.cuh"
#include "parity_decode.cuh"
#include "skinny_tile_sm80.cuh"
#include "two_of_four_block.cuh"

namespace {

constexpr int X_ROW_BYTES = TILE_N * 2;
constexpr int STEP_BYTES = STEP_COLS * X_ROW_BYTES;

// A fragments of a warp's 32 rows: [16 rows][register].
using Fragments = unsigned[2][4];

// The A fragments of a gathered step, by its flags; `next`: the lane's next word.
__device__ __forceinline__ void load_gathered(Fragments& a, SharedAddress& next, unsigned flags) {
    load_words_if<0>(a[0], flags, next);
    load_words_if<4>(a[1], flags, next);
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
    Reader reader;                         // of its words
    int steps;                             // gathered ones
    unsigned gathered, gathered_metadata;  // of the next gathered step: read ahead of its use

    __device__ Share(Block block, unsigned start, int lane)
        : block(block), reader(block.words(start)), steps(Block::gathered_steps(start)) {
        read(0, lane);
    }
    __device__ void read(int step, int lane) {
        if (step >= steps) return;
        gathered = block.gathered(step, lane);
        gathered_metadata = block.gathered_metadata(step, lane);
    }
};

// Adds a block's gathered steps.
__device__ __forceinline__ void multiply_gathered(Accumulators& sum, Share& share, unsigned char* x, int lane) {
#pragma unroll 1
    for (int step = 0; step < share.steps; ++step) {
        Fragments a;
        load_gathered(a, share.reader.next, share.gathered);
        const int row = share.gathered >> 8;
        const unsigned metadata = share.gathered_metadata;
        share.read(step + 1, lane);
        multiply_step(sum, a, metadata, x, row);
    }
}

// Adds one warp's block of W, in shared memory at `base`, times the segment of X at `x`.
__device__ __forceinline__ void multiply(Accumulators& sum, const unsigned char* base, unsigned char* x,
                                         const Constants& constants) {
    const int lane = threadIdx.x % 32;
    const Block block{base};
    Share share(block, block.start(lane), lane);
#pragma unroll 1
    for (int pair = 0; pair < OWN_PAIRS; ++pair) {
        const Codes codes = codes_of(share.reader, block.parities(pair, lane));
        const uint2 metadata = block.metadata(pair, lane);
        Fragments a;
        decode_step<0, 4>(a, share.reader, codes, constants);
        multiply_step(sum, a, metadata.x, x + pair * 2 * STEP_BYTES, lane);
        decode_step<1, 4>(a, share.reader, codes, constants);
        multiply_step(sum, a, metadata.y, x + (pair * 2 + 1) * STEP_BYTES, lane);
    }
    multiply_gathered(sum, share, x, lane);
}

}  // namespace
