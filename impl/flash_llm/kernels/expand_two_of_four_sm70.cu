// The dense matrix [m, k], fp16, of one in the format two of four (../formats/two_of_four.py), where a dense product is
// the faster one: a lane puts the two values of each of its words in their columns. Any architecture.
#include "expand_warp_block.cuh"
#include "two_of_four_block.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * 32) expand_two_of_four(const uint4* __restrict__ units,
                                                                            const int* __restrict__ offsets,
                                                                            unsigned short* __restrict__ dense, int m,
                                                                            int k, int longest) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const auto place = [](unsigned char* tile, const unsigned char* base, int lane) {
        for (int i = lane; i < BLOCK_ROWS * ROW_BYTES / 16; i += 32)
            reinterpret_cast<uint4*>(tile)[i] = make_uint4(0, 0, 0, 0);
        __syncwarp();
        const Block block{base};
        const unsigned start = block.start(lane);
        const unsigned* next = reinterpret_cast<const unsigned*>(base) + first_word(start);
        for (int step = 0; step < OWN_STEPS + gathered_steps(start); ++step) {
            const int gathered = step - OWN_STEPS;
            const unsigned flags =
                gathered < 0 ? block.flags(lane) >> step * REGISTERS : block.gathered(gathered, lane);
            for (int i = 0; i < REGISTERS; ++i) {
                if (!(flags >> i & 1)) continue;
                const int row = i / 4 * 16 + i % 2 * 8 + lane / 4;
                const int half = i % 4 / 2;  // of the step
                const int source = lane / 4 * 4 + i / 4 * 2 + half;
                const unsigned metadata =
                    gathered < 0 ? block.metadata(source, step) : block.gathered_metadata(gathered, source);
                const unsigned places = metadata >> (i % 2 * 16 + lane % 4 * 4);
                const unsigned word = *next++;
                for (int value = 0; value < 2; ++value) {
                    const unsigned short bits = word >> 16 * value;
                    const int column = half * 16 + lane % 4 * 4 + (places >> 2 * value & 3);
                    if (bits == 0) continue;  // a place that another column's value may have
                    const int home = gathered < 0 ? step * STEP_COLS + column : block.gathered(gathered, column) >> 8;
                    *reinterpret_cast<unsigned short*>(tile + row * ROW_BYTES + home * 2) = bits;
                }
            }
        }
    };
    expand_block<UNIT>(place, shared_memory, units, offsets, dense, m, k, longest);
}
