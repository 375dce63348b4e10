// Y[m, n] = W[m, k] X[k, n] with W in the bitmap format (../formats/bitmap.py), fp16 in and out, fp32 accumulators. W
// is decoded in registers (parity_decode.cuh), which are wgmma's A; X is its B. Written for sm_90a: the copy engine,
// mbarriers, wgmma. equal_shares_sm90a.cuh has the work's shares and the copies; here warps meet at wgmma, four of
// them.
//
// Macros, beside that one's: WARPS is 4 or 8; UNROLL (words of bits decoded at once: 1, 2, 4), MIN_BLOCKS_PER_SM.
#include "bitmap_lines.cuh"
#include "equal_shares_sm90a.cuh"
#include "wgmma.cuh"

namespace {

constexpr int X_ROW_BYTES = TILE_N * 2;
constexpr int X_PATTERN_BYTES = 8 * X_ROW_BYTES;
constexpr int IN_FLIGHT = UNROLL == 1 ? 0 : 1;  // lines of products: without unrolling all take the same registers

// Adds one warp's 32 x 128 of W, in shared memory at `column` of this lane, times the segment of X at `x`.
__device__ __forceinline__ void multiply(Sums& sum, const unsigned char* column, unsigned long long x, bool active,
                                         const Constants& constants) {
    Reader reader = column_reader(column);
#pragma unroll UNROLL
    for (int line = 0; line < MASK_LINES; ++line) {
        const unsigned parity = active ? *reinterpret_cast<const unsigned*>(column + line * LINE) : 0;
        TwoSteps a;
        decode<LINE>(a, reader, parity, constants);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            const unsigned long long b = advance_descriptor(x, (line * 2 + step) * 2 * X_PATTERN_BYTES);
#pragma unroll
            for (int i = 0; i < ROW_FRAGMENTS; ++i) wgmma_registers_f16(sum[i], a[step][i], b, true);
        }
        wgmma_commit();
        wgmma_wait<IN_FLIGHT>();  // the registers of the line before, which the next one takes, are free again
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < ROW_FRAGMENTS; ++i) pin_registers(sum[i]);
}

}  // namespace

// Arguments: those of multiply_share, `lines` of LINE bytes.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM) bitmap_spmm_sm90a(
    const __grid_constant__ TensorMap x_map, const unsigned char* __restrict__ lines, const int* __restrict__ offsets,
    unsigned short* __restrict__ y, float* partials, int* counters, int m, int n, int segments, int stage_lines) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const int lane = threadIdx.x % 32;
    const Constants constants(gridDim.z);  // 1
    const unsigned long long x = matrix_descriptor<X_ROW_BYTES>(shared_memory, X_PATTERN_BYTES, X_PATTERN_BYTES);
    multiply_share<LINE>(
        [&](Sums& sum, const unsigned char* w, int stage, bool active) {
            multiply(sum, w + lane * 4, advance_descriptor(x, stage * X_BYTES), active, constants);
        },
        shared_memory, x_map, lines, offsets, y, partials, counters, m, n, segments, stage_lines);
}
