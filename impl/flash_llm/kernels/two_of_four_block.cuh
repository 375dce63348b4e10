// Where the parts of a block of the format two of four are: ../formats/two_of_four.py.
#pragma once

namespace {

constexpr int STEP_COLS = 32;  // of a product
constexpr int UNIT = 16;       // bytes: blocks begin at multiples
constexpr int REGISTERS = 8;   // of a lane in a step: 2 fragments x 4
constexpr int STEPS_BIT = 13;  // of the count of gathered steps, beside a start
constexpr int OWN_STEPS = 4;   // of the 128 columns of a block
constexpr int OWN_BYTES = 4 * 32 + 2 * 32 + 4 * 32 * OWN_STEPS;
constexpr int GATHERED_BYTES = 4 * 32 + 2 * 32;

// A lane's start also says how many steps are gathered.
__device__ __forceinline__ unsigned first_word(unsigned start) {
    return start & ((1 << STEPS_BIT) - 1);
}
__device__ __forceinline__ int gathered_steps(unsigned start) {
    return start >> STEPS_BIT;
}

struct Block {
    const unsigned char* base;

    __device__ unsigned flags(int lane) const { return *reinterpret_cast<const unsigned*>(base + lane * 4); }
    __device__ unsigned start(int lane) const {
        return *reinterpret_cast<const unsigned short*>(base + 4 * 32 + lane * 2);
    }
    __device__ const unsigned& metadata(int lane, int step) const {  // a lane's four are adjacent, and aligned so
        return *reinterpret_cast<const unsigned*>(base + 6 * 32 + lane * 16 + step * 4);
    }
    __device__ unsigned gathered_metadata(int step, int lane) const {
        return *reinterpret_cast<const unsigned*>(base + OWN_BYTES + step * GATHERED_BYTES + lane * 4);
    }
    // Flags, and from bit 8 on the column of the block that the step's column `lane` is.
    __device__ unsigned gathered(int step, int lane) const {
        return *reinterpret_cast<const unsigned short*>(base + OWN_BYTES + step * GATHERED_BYTES + 4 * 32 + lane * 2);
    }
};

}  // namespace
