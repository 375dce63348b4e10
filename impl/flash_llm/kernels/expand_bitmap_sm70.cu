// The dense matrix [m, k], fp16, of one in the bitmap format (../formats/bitmap.py), where a dense product is the
// faster one: a warp decodes a block as the product does, and puts the A fragments in their places. Any architecture.
#include "bitmap_lines.cuh"
#include "expand_warp_block.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * 32) expand_bitmap(const uint4* __restrict__ lines,
                                                                       const int* __restrict__ offsets,
                                                                       unsigned short* __restrict__ dense, int m, int k,
                                                                       int longest) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const Constants constants(gridDim.z);
    const auto place = [&](unsigned char* tile, const unsigned char* block, int lane) {
        const unsigned char* const column = block + lane * 4;
        unsigned char* const own = tile + lane / 4 * ROW_BYTES + lane % 4 * 4;
        Reader reader = column_reader(column);
        for (int line = 0; line < MASK_LINES; ++line) {
            TwoSteps a;
            decode<LINE>(a, reader, *reinterpret_cast<const unsigned*>(column + line * LINE), constants);
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) {
                const int step = i / 8;
                const int fragment = i / 4 % 2;
                const int reg = i % 4;  // rows 8 further down when odd, columns 8 further right from 2 on
                *reinterpret_cast<unsigned*>(own + (fragment * 16 + reg % 2 * 8) * ROW_BYTES +
                                             (line * 32 + step * 16 + reg / 2 * 8) * 2) = a[step][fragment][reg];
            }
        }
    };
    expand_block<LINE>(place, shared_memory, lines, offsets, dense, m, k, longest);
}
