// Decoding a block of the bitmap format (../formats/bitmap.py) in registers, straight to A fragments of 16 x 16.
//
// A lane walks down its own column of the block's lines, in which the words that are not zero follow its bits (LINE
// bytes apart, so always in its own bank). Non-zeros number 0, 2, 4... of a lane take the next word's upper half; the
// odd ones take what is left of the last word. Bits are running parities, so a pair of elements and the one before it
// are a code of three adjacent bits that tells all: which of the two are zero, which are odd, and whether a word must
// be read.
//  * Byte permutes with constant tables turn four codes at once into selectors, and one more permute per pair picks
//    two halves out of {zero, left half, new word}. No count, no shift by a variable, no branch.
//  * Whether to read is three-input logic on a whole word of bits (16 pairs); then a bit test per pair predicates
//    the read, the step to the next word and the new left half. These two are multiply-adds, for their pipe is free.
// Per pair: permutes 1 + 1 + 8/16, bit test 1, other 9/16: 4 operations of the integer pipe, 7 instructions, and a
// 4-byte read of shared memory, whatever the density.
#pragma once
#include "permute.cuh"
#include "predicate.cuh"

namespace {

constexpr int SEGMENT = 128;  // columns of a block
constexpr int LINE = 128;     // bytes: a word of each lane
constexpr int MASK_LINES = 4;
constexpr int PAIRS = 16;  // of elements, to a word of bits: 4 registers x 2 fragments x 2 steps of 16 in k

// A fragments of a warp's 32 rows: [step of 16 in k][16 rows][register].
using Fragments = unsigned[2][2][4];

// What byte of {0, 0, left half, word} the two bytes of an element are: selectors of permute() below.
constexpr unsigned ZERO = 0x10, LEFT = 0x32, LOW = 0x54, HIGH = 0x76;

__device__ constexpr unsigned table(unsigned first, unsigned second, unsigned third, unsigned fourth) {
    return first | second << 8 | third << 16 | fourth << 24;
}

// By code = parity before the pair + 2 * parity after its first element + 4 * parity after its second.
constexpr unsigned FIRST_TABLE = table(ZERO, LEFT, HIGH, ZERO);  // the second element does not matter
constexpr unsigned SECOND_TABLE_LOW = table(ZERO, ZERO, LOW, LEFT);
constexpr unsigned SECOND_TABLE_HIGH = table(HIGH, HIGH, ZERO, ZERO);

// Kept in registers: literals would be moved into one before each use. The compiler must not know their values, so
// they are made with a 1 that it does not know.
struct Constants {
    unsigned first;
    unsigned second_low;
    unsigned second_high;
    unsigned one;
    unsigned upper;

    __device__ explicit Constants(unsigned one)
        : first(FIRST_TABLE * one),
          second_low(SECOND_TABLE_LOW * one),
          second_high(SECOND_TABLE_HIGH * one),
          one(one),
          upper(0x10000u * one) {}
};

// Where a lane is in its column of a block's lines.
struct Reader {
    SharedAddress next;   // of the next word
    unsigned left = 0;    // the last word's lower half, in the upper one; zero below
    unsigned before = 0;  // the bits before the next ones

    __device__ explicit Reader(const unsigned char* column) : next(shared_address(column + MASK_LINES * LINE)) {}
};

// The A fragments of two steps of k: 16 pairs, whose bits are `parity`.
__device__ __forceinline__ void decode(Fragments& a, Reader& reader, unsigned parity, const Constants& constants) {
    const unsigned shifted = __funnelshift_l(reader.before, parity, 1);  // bit i: parity before element i
    const unsigned after = parity >> 1;
    const unsigned reads = (~shifted & parity) | (~parity & after);  // bits 2 * pair
    const unsigned even_codes = shifted & 0x77777777u;               // a code in each nibble
    const unsigned odd_codes = after & 0x77777777u;
    reader.before = parity;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        const unsigned even = even_codes >> 16 * step;
        const unsigned odd = odd_codes >> 16 * step;
        const unsigned first[2] = {permute(constants.first, constants.first, even),
                                   permute(constants.first, constants.first, odd)};
        const unsigned second[2] = {permute(constants.second_low, constants.second_high, even),
                                    permute(constants.second_low, constants.second_high, odd)};
#pragma unroll
        for (int pair = 0; pair < PAIRS / 2; ++pair) {
            const unsigned selector = permute(first[pair % 2], second[pair % 2], pair / 2 | (4 + pair / 2) << 4);
            const unsigned bit = 1u << (step * PAIRS + pair * 2);
            const unsigned word = load_next_if(reads, bit, reader.next, constants.one);
            a[step][pair / 4][pair % 4] = permute(reader.left, word, selector);
            multiply_if(reads, bit, reader.left, word, constants.upper);
        }
    }
}

}  // namespace
