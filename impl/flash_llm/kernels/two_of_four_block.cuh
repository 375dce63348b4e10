// Where the parts of a block of the format two of four are: ../formats/two_of_four.py.
#pragma once

namespace {

constexpr int STEP_COLS = 32;                            // of a product
constexpr int UNIT = 16;                                 // bytes: blocks begin at multiples
constexpr int REGISTERS = 8;                             // of a lane in a step: 2 fragments x 4
constexpr int STEPS_BIT = 12;                            // of the count of gathered steps, beside a start
constexpr int OWN_PAIRS = BLOCK_COLS / (2 * STEP_COLS);  // of steps
constexpr int PARITY_BYTES = 4 * 32;                     // of two own steps
constexpr int METADATA_BYTES = 8 * 32;                   // the same
constexpr int STARTS = OWN_PAIRS * PARITY_BYTES;         // bytes before them
constexpr int METADATA = STARTS + 2 * 32;
constexpr int OWN_BYTES = METADATA + OWN_PAIRS * METADATA_BYTES;
constexpr int GATHERED_BYTES = 4 * 32 + 2 * 32;

struct Block {
    const unsigned char* base;

    // Of the own steps 2 * pair and the one after it: where the parities of a lane's slots are, and its metadata.
    __device__ const unsigned* parities(int pair, int lane) const {
        return reinterpret_cast<const unsigned*>(base + (pair * 32 + lane) * 4);
    }
    __device__ const uint2* metadata(int pair, int lane) const {
        return reinterpret_cast<const uint2*>(base + METADATA + (pair * 32 + lane) * 8);
    }
    // Where a lane's words begin, after the gathered steps; from STEPS_BIT on how many these are.
    __device__ unsigned start(int lane) const {
        return *reinterpret_cast<const unsigned short*>(base + STARTS + lane * 2);
    }
    __device__ static int gathered_steps(unsigned start) { return start >> STEPS_BIT; }
    __device__ const unsigned char* words(unsigned start) const {
        return base + OWN_BYTES + gathered_steps(start) * GATHERED_BYTES + (start & ((1 << STEPS_BIT) - 1)) * 4;
    }
    // The same of a gathered step.
    __device__ const unsigned* gathered_metadata(int step, int lane) const {
        return reinterpret_cast<const unsigned*>(base + OWN_BYTES + step * GATHERED_BYTES + lane * 4);
    }
    // Where its flags are, and from bit 8 on the column of the block that its column `lane` is.
    __device__ const unsigned short* gathered(int step, int lane) const {
        return reinterpret_cast<const unsigned short*>(base + OWN_BYTES + step * GATHERED_BYTES + 4 * 32 + lane * 2);
    }
};

}  // namespace
