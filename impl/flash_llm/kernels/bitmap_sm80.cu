// Y[m, n] = W[m, k] X[k, n] with W in the bitmap format (../formats/bitmap.py), fp16 in and out, fp32 accumulators. W
// is decoded in registers, straight to the A fragments (parity_decode.cuh). Written for sm_80: cp.async
// (along_k_sm80.cuh), ldmatrix, mma.m16n8k16.
//
// Macros, beside that one's: UNROLL (words of bits decoded at once: 1, 2, 4), MIN_BLOCKS_PER_SM.
#include "along_k_sm80.cuh"
#include "bitmap_lines.cuh"

namespace {

// One warp's 32 x 128 of W, in shared memory at `lines`, times the segment of X.
__device__ __forceinline__ void multiply(Accumulators& sum, const unsigned char* lines, unsigned char* x,
                                         const Constants& constants) {
    const int lane = threadIdx.x % 32;
    const unsigned char* const column = lines + lane * 4;
    Reader reader = column_reader(column);
#pragma unroll UNROLL
    for (int line = 0; line < MASK_LINES; ++line) {
        const unsigned parity = *reinterpret_cast<const unsigned*>(column + line * LINE);
        TwoSteps a;
        decode<LINE>(a, reader, parity, constants);
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

// Arguments: those of multiply_along_k, `lines` of LINE bytes.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM) bitmap_spmm_sm80(
    const unsigned char* __restrict__ lines, const int* __restrict__ offsets, const unsigned short* __restrict__ x,
    void* __restrict__ out, int m, int n, int k, long long x_stride, int stage_lines) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const Constants constants(gridDim.z);  // 1
    multiply_along_k<LINE>(
        [&](Accumulators& sum, const unsigned char* w, unsigned char* x) { multiply(sum, w, x, constants); },
        shared_memory, lines, offsets, x, out, m, n, k, x_stride, stage_lines);
}
