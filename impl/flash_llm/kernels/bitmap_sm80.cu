// Y[m, n] = W[m, k] X[k, n] with W in the bitmap format (../formats/bitmap.py), fp16 in and out, fp32 accumulators. W
// is decoded in registers, straight to the A fragments (bitmap_decode.cuh). Written for sm_80: cp.async, ldmatrix,
// mma.m16n8k16.
//
// A block of WARPS warps owns 32 rows of Y for each, x TILE_N columns, and walks along k in segments of 128; blockIdx.y
// picks its share of the segments when k is split. STAGES segments are in flight by cp.async: X's 128 x TILE_N for the
// block, and for each warp its own 32 x 128 of W, `stage_lines` lines of 128 bytes at most. One barrier per segment.
//
// Shared memory: STAGES * (256 * TILE_N + WARPS * 128 * stage_lines) bytes. Macros: TILE_N, WARPS, STAGES (2 or more),
// UNROLL (words of bits decoded at once: 1, 2, 4), MIN_BLOCKS_PER_SM.
#include "bitmap_decode.cuh"
#include "skinny_tile_sm80.cuh"

namespace {

constexpr int X_BYTES = SEGMENT * TILE_N * 2;

// One warp's 32 x 128 of W, in shared memory at `lines`, times the segment of X.
__device__ __forceinline__ void multiply(Accumulators& sum, const unsigned char* lines, unsigned char* x,
                                         const Constants& constants) {
    const int lane = threadIdx.x % 32;
    const unsigned char* const column = lines + lane * 4;
    Reader reader(column);
#pragma unroll UNROLL
    for (int line = 0; line < MASK_LINES; ++line) {
        const unsigned parity = *reinterpret_cast<const unsigned*>(column + line * LINE);
        Fragments a;
        decode(a, reader, parity, constants);
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

    const Constants constants(gridDim.z);  // 1
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
