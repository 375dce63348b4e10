// The dense matrix [m, k], fp16, of one in the bitmap format (../formats/bitmap.py), where a dense product is the
// faster one. A warp expands one block of 32 x 128: each lane walks down its column of the lines and writes pairs of
// elements to the places that mma.m16n8k16's A fragments give them. Bound by the bytes that are written: four lanes
// write 16 adjacent bytes, which L2 joins. 4 warps a block, no shared memory. Any architecture.
namespace {

constexpr int BLOCK_ROWS = 32;
constexpr int BLOCK_COLS = 128;
constexpr int LANES = 32;
constexpr int MASK_LINES = 4;
constexpr int PAIRS = 16;  // of elements, to a word of bits: 4 registers x 2 fragments x 2 steps of 16 in k

}  // namespace

extern "C" __global__ void __launch_bounds__(128, 12) expand_bitmap(const unsigned* __restrict__ lines,
                                                                    const int* __restrict__ offsets,
                                                                    unsigned short* __restrict__ dense, int m, int k) {
    const int lane = threadIdx.x % LANES;
    const int blocks_k = (k + BLOCK_COLS - 1) / BLOCK_COLS;
    const long long block = static_cast<long long>(blockIdx.x) * (blockDim.x / LANES) + threadIdx.x / LANES;
    const int m_begin = static_cast<int>(block / blocks_k) * BLOCK_ROWS;
    const int k_begin = static_cast<int>(block % blocks_k) * BLOCK_COLS;
    if (m_begin >= m) return;

    const unsigned* const column = lines + static_cast<long long>(offsets[block]) * LANES + lane;
    const unsigned* next = column + MASK_LINES * LANES;
    unsigned word = 0;
    bool odd = false;  // whether the next non-zero is the lower half of `word`
    unsigned before = 0;
#pragma unroll 1
    for (int line = 0; line < MASK_LINES; ++line) {
        const unsigned parity = column[line * LANES];
        const unsigned stored = parity ^ (parity << 1 | before);
        before = parity >> 31;
        for (int pair = 0; pair < PAIRS; ++pair) {
            unsigned halves[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const bool present = stored >> (2 * pair + i) & 1;
                if (present && !odd) {
                    word = *next;
                    next += LANES;
                }
                halves[i] = present ? (odd ? word & 0xffffu : word >> 16) : 0;
                odd ^= present;
            }
            const int fragment = pair / 4 % 2;
            const int row = m_begin + fragment * 16 + pair % 2 * 8 + lane / 4;
            const int col = k_begin + line * 32 + pair / 8 * 16 + pair % 4 / 2 * 8 + lane % 4 * 2;
            if (row >= m || col >= k) continue;
            unsigned short* const to = dense + static_cast<long long>(row) * k + col;
            if (k % 2 == 0) {
                *reinterpret_cast<unsigned*>(to) = halves[0] | halves[1] << 16;
            } else {
                to[0] = static_cast<unsigned short>(halves[0]);
                if (col + 1 < k) to[1] = static_cast<unsigned short>(halves[1]);
            }
        }
    }
}
