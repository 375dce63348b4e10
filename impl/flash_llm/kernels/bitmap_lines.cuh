// The lines of a block of the bitmap format (../formats/bitmap.py): those of bits, then those of non-zeros. A lane
// walks down its own column of them, always in its own bank.
#pragma once
#include "parity_decode.cuh"

namespace {

constexpr int LINE = 128;  // bytes: a word of each lane
constexpr int MASK_LINES = 4;

__device__ __forceinline__ Reader column_reader(const unsigned char* column) {
    return Reader(column + MASK_LINES * LINE);
}

}  // namespace
