// The dense matrix [m, k], fp16, of one in the format two of four (../formats/two_of_four.py), where a dense product is
// the faster one: a lane decodes its registers as the product does, and puts their values in their columns. Any
// architecture. Macros, beside that one's: MIN_BLOCKS_PER_SM.
#include "expand_warp_block.cuh"
#include "parity_decode.cuh"
#include "two_of_four_block.cuh"

namespace {

// Whose metadata are those of register `i` of this lane, in a step.
__device__ __forceinline__ int source(int i, int lane) {
    return lane / 4 * 4 + i / 4 * 2 + i % 4 / 2;
}

// The halves of register `i` of a step go where `metadata` of their source say, in columns of the step, of which
// home(column) is the one of the block.
template <typename Home>
__device__ __forceinline__ void place_word(unsigned char* tile, unsigned word, int i, unsigned metadata, int lane,
                                           const Home& home) {
    const int row = i / 4 * 16 + i % 2 * 8 + lane / 4;
    const unsigned places = metadata >> (i % 2 * 16 + lane % 4 * 4);
    for (int value = 0; value < 2; ++value) {
        const unsigned short bits = word >> 16 * value;
        if (bits == 0) continue;  // a place that another column's value may have
        const int column = home(i % 4 / 2 * 16 + lane % 4 * 4 + (places >> 2 * value & 3));
        *reinterpret_cast<unsigned short*>(tile + row * ROW_BYTES + column * 2) = bits;
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS_PER_SM) expand_two_of_four(
    const uint4* __restrict__ units, const int* __restrict__ offsets, unsigned short* __restrict__ dense, int m, int k,
    int longest) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const Constants constants(gridDim.z);  // 1
    const auto place = [&](unsigned char* tile, const unsigned char* base, int lane) {
        for (int i = lane; i < BLOCK_ROWS * ROW_BYTES / 16; i += 32)
            reinterpret_cast<uint4*>(tile)[i] = make_uint4(0, 0, 0, 0);
        __syncwarp();
        const Block block{base};
        const unsigned start = block.start(lane);
        Reader reader(block.words(start));
#pragma unroll 1
        for (int pair = 0; pair < OWN_PAIRS; ++pair) {
            TwoSteps a;
            decode<4>(a, reader, *block.parities(pair, lane), constants);
#pragma unroll
            for (int i = 0; i < REGISTERS; ++i) {
                const uint2 metadata = *block.metadata(pair, source(i, lane));
                const int first = pair * 2 * STEP_COLS;
                place_word(tile, a[0][i / 4][i % 4], i, metadata.x, lane, [&](int column) { return first + column; });
                place_word(tile, a[1][i / 4][i % 4], i, metadata.y, lane,
                           [&](int column) { return first + STEP_COLS + column; });
            }
        }
#pragma unroll 1
        for (int step = 0; step < Block::gathered_steps(start); ++step) {
            const unsigned flags = *block.gathered(step, lane);
            unsigned a[2][4];
            load_words_if<0>(a[0], flags, reader.next);
            load_words_if<4>(a[1], flags, reader.next);
#pragma unroll
            for (int i = 0; i < REGISTERS; ++i) {
                place_word(tile, a[i / 4][i % 4], i, *block.gathered_metadata(step, source(i, lane)), lane,
                           [&](int column) { return *block.gathered(step, column) >> 8; });
            }
        }
    };
    expand_block<UNIT>(place, shared_memory, units, offsets, dense, m, k, longest);
}
