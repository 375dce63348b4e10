// Decoding halves of a lane straight to A fragments, in registers: the elements of a block of the bitmap format
// (../formats/bitmap.py), and the slots of the sparse A of mma.sp in the format two of four
// (../formats/two_of_four.py).
//
// A lane walks down its own words, WORD_STEP bytes apart, which hold what is not zero, two halves to a word. Non-zeros
// number 0, 2, 4... of a lane take the next word's upper half; the odd ones take what is left of the last word. Bits
// are running parities, so a pair of halves and the one before it are a code of three adjacent bits that tells all:
// which of the two are zero, which are odd, and whether a word must be read.
//  * Byte permutes with constant tables turn four codes at once into selectors, and one more permute per pair picks
//    two halves out of {zero, left half, new word}. No count, no shift by a variable, no branch.
//  * Whether to read is three-input logic on a whole word of bits (16 pairs); then a bit test per pair predicates
//    the read, the step to the next word and the new left half. These two are multiply-adds, for their pipe is free.
// Per pair: permutes 1 + 1 + 8/16, bit test 1, other 9/16: 4 operations of the integer pipe, 7 instructions, and a
// 4-byte read of shared memory, whatever the density.
#pragma once
#include "permute.cuh"
#include "predicate.cuh"
#include "registers.cuh"

namespace {

constexpr int PAIRS = 16;  // of halves, to a word of bits: 4 registers x 2 fragments x 2 steps in k

// A fragments of a warp's 32 rows in two steps: [step][16 rows][register].
using TwoSteps = unsigned[2][2][4];

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

    // Where the compiler would rather make them anew at each use, from the 1.
    __device__ void keep() {
        first = kept(first);
        second_low = kept(second_low);
        second_high = kept(second_high);
    }
};

// Where a lane is in its words.
struct Reader {
    SharedAddress next;   // of the next word
    unsigned left = 0;    // the last word's lower half, in the upper one; zero below
    unsigned before = 0;  // the bits before the next ones

    __device__ explicit Reader(const unsigned char* words) : next(shared_address(words)) {}
};

// What a word of bits, `parity`, says of two steps of k: 16 pairs.
struct Codes {
    unsigned reads;      // bits 2 * pair: a word must be read
    unsigned even, odd;  // of the pairs: a code in each nibble
};

__device__ __forceinline__ Codes codes_of(Reader& reader, unsigned parity) {
    const unsigned shifted = __funnelshift_l(reader.before, parity, 1);  // bit i: parity before half i
    const unsigned after = parity >> 1;
    reader.before = parity;
    return {(~shifted & parity) | (~parity & after), shifted & 0x77777777u, after & 0x77777777u};
}

// The A fragments of the first or second STEP of them.
template <int STEP, int WORD_STEP>
__device__ __forceinline__ void decode_step(unsigned (&a)[2][4], Reader& reader, const Codes& codes,
                                            const Constants& constants) {
    const unsigned even = codes.even >> 16 * STEP;
    const unsigned odd = codes.odd >> 16 * STEP;
    const unsigned first[2] = {permute(constants.first, constants.first, even),
                               permute(constants.first, constants.first, odd)};
    const unsigned second[2] = {permute(constants.second_low, constants.second_high, even),
                                permute(constants.second_low, constants.second_high, odd)};
#pragma unroll
    for (int pair = 0; pair < PAIRS / 2; ++pair) {
        const unsigned selector = permute(first[pair % 2], second[pair % 2], pair / 2 | (4 + pair / 2) << 4);
        const unsigned bit = 1u << (STEP * PAIRS + pair * 2);
        const unsigned word = load_next_if<WORD_STEP>(codes.reads, bit, reader.next, constants.one);
        a[pair / 4][pair % 4] = permute(reader.left, word, selector);
        multiply_if(codes.reads, bit, reader.left, word, constants.upper);
    }
}

// The A fragments of two steps of k, whose bits are `parity`.
template <int WORD_STEP>
__device__ __forceinline__ void decode(TwoSteps& a, Reader& reader, unsigned parity, const Constants& constants) {
    const Codes codes = codes_of(reader, parity);
    decode_step<0, WORD_STEP>(a[0], reader, codes, constants);
    decode_step<1, WORD_STEP>(a[1], reader, codes, constants);
}

}  // namespace
