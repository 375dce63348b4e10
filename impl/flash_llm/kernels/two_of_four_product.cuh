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
#include "registers.cuh"
#include "shared_address.cuh"
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

// Where the chunks of a row of X are. x: at a multiple of 128 bytes, so that chunks differ in bits of their own.
__device__ __forceinline__ void find_chunks(SharedAddress (&chunks)[X_CHUNKS], unsigned char* x, int row) {
    const SharedAddress first = x_chunk(shared_address(x), row, 0);
#pragma unroll
    for (int chunk = 0; chunk < X_CHUNKS; ++chunk) chunks[chunk] = flip_bits(first, chunk * 16);
}

// Adds one step of W times 32 rows of X, of which this lane points ldmatrix at the one whose chunks are OFFSET bytes
// beyond `chunks`.
template <int OFFSET>
__device__ __forceinline__ void multiply_step(Accumulators& sum, const Fragments& a, unsigned metadata,
                                              const SharedAddress (&chunks)[X_CHUNKS]) {
#pragma unroll
    for (int chunk = 0; chunk < X_CHUNKS; ++chunk) {
        unsigned b[4];
        load_matrix_x4_transposed<OFFSET>(b, chunks[chunk]);
        mma_sp_m16n8k32_f16<0>(sum[0][chunk], a[0], b, metadata);
        mma_sp_m16n8k32_f16<1>(sum[1][chunk], a[1], b, metadata);
    }
}

// What a lane knows of a block: addresses that are kept, for making them anew takes several instructions each time.
struct Share {
    SharedAddress parities, metadata;           // of the first two own steps
    SharedAddress gathered, gathered_metadata;  // of the gathered step to be read next
    Reader reader;                              // of its words
    int steps;                                  // gathered ones
    unsigned parity = 0;                        // of the next two own steps: read ahead of its use
    unsigned step, step_metadata;               // the next gathered step: the same

    __device__ Share(Block block, unsigned start, int lane)
        : parities(shared_address(block.parities(0, lane))),
          metadata(shared_address(block.metadata(0, lane))),
          gathered(shared_address(block.gathered(0, lane))),
          gathered_metadata(shared_address(block.gathered_metadata(0, lane))),
          reader(block.words(start)),
          steps(Block::gathered_steps(start)) {
        forget_origin(parities);
        forget_origin(metadata);
        if (steps > 0) read_gathered();
    }
    // Also after the last pair, where something else lies: no test, and nothing uses it.
    __device__ void read_parity(int pair) { parity = load_shared<unsigned>(parities + pair * PARITY_BYTES); }
    __device__ uint2 read_metadata(int pair) const { return load_shared<uint2>(metadata + pair * METADATA_BYTES); }
    __device__ void read_gathered() {
        step = load_shared<unsigned short>(gathered);
        step_metadata = load_shared<unsigned>(gathered_metadata);
        gathered += GATHERED_BYTES;
        gathered_metadata += GATHERED_BYTES;
    }
};

// Adds a block's gathered steps.
__device__ __forceinline__ void multiply_gathered(Accumulators& sum, Share& share, unsigned char* x) {
#pragma unroll 1
    for (int left = share.steps; left > 0; --left) {
        SharedAddress chunks[X_CHUNKS];
        find_chunks(chunks, x, share.step >> 8);
        Fragments a;
        load_gathered(a, share.reader.next, share.step);
        const unsigned metadata = share.step_metadata;
        if (left > 1) share.read_gathered();
        multiply_step<0>(sum, a, metadata, chunks);
    }
}

// Adds one warp's block of W, in shared memory at `base`, times the segment of X at `x`.
__device__ __forceinline__ void multiply(Accumulators& sum, const unsigned char* base, unsigned char* x,
                                         const Constants& constants) {
    const int lane = threadIdx.x % 32;
    const Block block{base};
    Share share(block, block.start(lane), lane);
    share.read_parity(0);
    SharedAddress first[X_CHUNKS];
    find_chunks(first, x, lane);
#pragma unroll
    for (int chunk = 0; chunk < X_CHUNKS; ++chunk) forget_origin(first[chunk]);
#pragma unroll 1
    for (int pair = 0; pair < OWN_PAIRS; ++pair) {
        const Codes codes = codes_of(share.reader, share.parity);
        share.read_parity(pair + 1);
        const uint2 metadata = share.read_metadata(pair);
        SharedAddress chunks[X_CHUNKS];
#pragma unroll
        for (int chunk = 0; chunk < X_CHUNKS; ++chunk) chunks[chunk] = first[chunk] + pair * 2 * STEP_BYTES;
        Fragments a;
        decode_step<0, 4>(a, share.reader, codes, constants);
        multiply_step<0>(sum, a, metadata.x, chunks);
        decode_step<1, 4>(a, share.reader, codes, constants);
        multiply_step<STEP_BYTES>(sum, a, metadata.y, chunks);
    }
    multiply_gathered(sum, share, x);
}

}  // namespace
