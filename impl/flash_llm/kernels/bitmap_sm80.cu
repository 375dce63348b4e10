// Y[m, n] = W[m, k] X[k, n] with W in the bitmap format (../bitmap.py), fp16 in and out, fp32 accumulators. W is
// decoded in registers, straight to the A fragments. Written for sm_80: cp.async, ldmatrix, mma.m16n8k16.
//
// A block of WARPS warps owns 32 rows of Y for each, x TILE_N columns, and walks along k in segments of 256; blockIdx.y
// picks its share of the segments when k is split. STAGES segments are in flight by cp.async: X's 256 x TILE_N for the
// block, and for each warp its own 32 x 256 of W, `stage_lines` lines of 128 bytes at most. One barrier per segment.
//
// A lane walks down its own column of the lines, in which the words that are not zero follow its bits (LINE bytes
// apart, so always in its own bank). Non-zeros number 0, 2, 4... of a lane take the next word; the odd ones take what
// is left of the last word. Bits are running parities, so a pair of elements and the one before it are a code of three
// adjacent bits that tells all: which of the two are zero, which are odd, and whether a word must be read.
//  * Byte permutes with constant tables turn four codes at once into selectors, and one more permute per pair picks
//    two halves out of {zero, left half, new word}. No count, no shift by a variable, no branch.
//  * Whether to read is three-input logic on a whole word of bits (16 pairs); then a bit test per pair predicates
//    the read, the step to the next word and the new left half. The step is a multiply-add, for its pipe is free.
// Per pair: permutes 1 + 1 + 8/16, bit test 1, left half 1, other 9/16: 5 operations of the integer pipe and a 4-byte
// read of shared memory, whatever the density. ../README.md has the count against the memory time, and what else was
// weighed. Shared memory: STAGES * (512 * TILE_N + WARPS * 128 * stage_lines) bytes. Macros: TILE_N, WARPS, STAGES (2
// or more), UNROLL (words of bits decoded at once: 1, 2, 4, 8), MIN_BLOCKS_PER_SM.
#include "permute.cuh"
#include "predicate.cuh"
#include "skinny_tile.cuh"

namespace {

constexpr int SEGMENT = 256;
constexpr int LINE = 128;
constexpr int MASK_LINES = 8;
constexpr int X_BYTES = SEGMENT * TILE_N * 2;
constexpr int PAIRS = 16;  // of elements, to a word of bits: 4 registers x 2 fragments x 2 steps of 16 in k

using Fragments = unsigned[2][ROW_FRAGMENTS][4];

// What byte of {0, 0, left half, word} the two bytes of an element are: selectors of permute() below.
constexpr unsigned ZERO = 0x10, LEFT = 0x32, LOW = 0x54, HIGH = 0x76;

__device__ constexpr unsigned table(unsigned first, unsigned second, unsigned third, unsigned fourth) {
    return first | second << 8 | third << 16 | fourth << 24;
}

// By code = parity before the pair + 2 * parity after its first element + 4 * parity after its second.
constexpr unsigned FIRST_TABLE = table(ZERO, LEFT, LOW, ZERO);  // the second element does not matter
constexpr unsigned SECOND_TABLE_LOW = table(ZERO, ZERO, HIGH, LEFT);
constexpr unsigned SECOND_TABLE_HIGH = table(LOW, LOW, ZERO, ZERO);

// Where a lane is in its column of the lines.
struct Reader {
    SharedAddress next;  // of the next word
    unsigned left;       // the last word's upper half; zero below
};

// Kept in registers: literals would be moved into one before each use. The compiler must not know their values, so
// they are made with the 1 that gridDim.z is.
struct Constants {
    unsigned first;
    unsigned second_low;
    unsigned second_high;
    unsigned one;
};

// The A fragments of two steps of k: 16 pairs, whose bits are `parity`; `before` are the bits before them.
__device__ __forceinline__ void decode(Fragments& a, Reader& reader, unsigned before, unsigned parity,
                                       const Constants& constants) {
    const unsigned shifted = __funnelshift_l(before, parity, 1);  // bit i: parity before element i
    const unsigned after = parity >> 1;
    const unsigned reads = (~shifted & parity) | (~parity & after);  // bits 2 * pair
    const unsigned even_codes = shifted & 0x77777777u;               // a code in each nibble
    const unsigned odd_codes = after & 0x77777777u;
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
            and_if(reads, bit, reader.left, word, 0xffff0000u);
        }
    }
}

// One warp's 32 x 256 of W, in shared memory at `lines`, times the segment of X.
__device__ __forceinline__ void multiply(Accumulators& sum, const unsigned char* lines, unsigned char* x,
                                         const Constants& constants) {
    const int lane = threadIdx.x % 32;
    const unsigned char* const column = lines + lane * 4;
    Reader reader = {shared_address(column + MASK_LINES * LINE), 0};
    unsigned before = 0;
#pragma unroll UNROLL
    for (int line = 0; line < MASK_LINES; ++line) {
        const unsigned parity = *reinterpret_cast<const unsigned*>(column + line * LINE);
        Fragments a;
        decode(a, reader, before, parity, constants);
        before = parity;
#pragma unroll
        for (int j = 0; j < X_CHUNKS; ++j) {
            unsigned b[4];
            load_matrix_x4_transposed(b, x_chunk(x, line * 32 + lane, j));
#pragma unroll
            for (int i = 0; i < ROW_FRAGMENTS; ++i) {
                mma_m16n8k16_f16(sum[i][j], a[0][i], b[0], b[1]);
                mma_m16n8k16_f16(sum[i][j], a[1][i], b[2], b[3]);
            }
        }
    }
}

}  // namespace

// out: fp16 [m, n] when gridDim.y is 1, else fp32 partial sums [gridDim.y, m, n]. x has rows of `x_stride` halves.
// Blocks that share rows of W are neighbours, so that W comes from L2 when n takes several of them.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM) bitmap_spmm(
    const unsigned char* __restrict__ lines, const int* __restrict__ offsets, const unsigned short* __restrict__ x,
    void* __restrict__ out, int m, int n, int k, long long x_stride, int stage_lines) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const int w_bytes = stage_lines * LINE;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    unsigned char* const x_stages = shared_memory;
    unsigned char* const w_stages = shared_memory + STAGES * X_BYTES + warp * STAGES * w_bytes;

    const int tiles_n = (n + TILE_N - 1) / TILE_N;
    const int segments = (k + SEGMENT - 1) / SEGMENT;
    const int m_begin = blockIdx.x / tiles_n * TILE_ROWS;
    const int n_begin = blockIdx.x % tiles_n * TILE_N;
    const Range range = share(segments, blockIdx.y, gridDim.y);
    const bool aligned = rows_aligned(x, x_stride, n);
    const int warp_row = m_begin / WARP_ROWS + warp;
    const bool active = warp_row * WARP_ROWS < m;
    const int* const bounds = offsets + (active ? static_cast<long long>(warp_row) * segments : 0);

    // Where a segment begins and ends is read a segment ahead of its copy, so that no copy waits for an address.
    int first = bounds[range.begin];
    int last = bounds[range.begin + 1];
    auto fetch = [&](int segment) {
        if (segment < range.end) {
            const int stage = (segment - range.begin) % STAGES;
            const int following = bounds[min(segment + 2, range.end)];
            load_x<SEGMENT>(x_stages + stage * X_BYTES, x, x_stride, k, n, segment * SEGMENT, n_begin, aligned);
            if (active) {
                const unsigned char* const from = lines + static_cast<long long>(first) * LINE;
                for (int byte = lane * 16; byte < (last - first) * LINE; byte += 32 * 16) {
                    copy_async_16(w_stages + stage * w_bytes + byte, from + byte, true);
                }
            }
            first = last;
            last = following;
        }
        copy_async_commit();
    };

    const unsigned one = gridDim.z;
    const Constants constants = {FIRST_TABLE * one, SECOND_TABLE_LOW * one, SECOND_TABLE_HIGH * one, one};
    Accumulators sum = {};
    for (int i = 0; i < STAGES - 1; ++i) fetch(range.begin + i);
    for (int segment = range.begin; segment < range.end; ++segment) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // the segment is there for all, and all are done with the one before it
        fetch(segment + STAGES - 1);
        const int stage = (segment - range.begin) % STAGES;
        if (active) multiply(sum, w_stages + stage * w_bytes, x_stages + stage * X_BYTES, constants);
    }
    write_share(out, sum, m, n, m_begin, n_begin);
}
