// Y[m, n] = W[m, k] X[k, n] with W in Tiled-CSL (../formats/tiled_csl.py), fp16 in and out, fp32 accumulators: load as
// sparse, compute as dense (tiled_csl_tile.cuh). Written for sm_80: cp.async, ldmatrix, mma.m16n8k16.
#include "skinny_tile_sm80.cuh"
#include "tiled_csl_tile.cuh"

namespace {

constexpr int K_UNROLL = TILE_N < 64 ? 2 : 1;  // with 64 columns two halves of a step in flight would spill

struct Sm80 {
    using Sums = Accumulators;

    __device__ __forceinline__ void fetch_x(unsigned char* tile, const unsigned short* x, long long stride, int k,
                                            int n, int k_begin, int n_begin, bool aligned) {
        load_x<TILE_COLS>(tile, x, stride, k, n, k_begin, n_begin, aligned);
        copy_async_commit();
    }

    __device__ __forceinline__ void finish_x(unsigned char*) { copy_async_wait<0>(); }

    __device__ __forceinline__ static void multiply(Accumulators& sum, unsigned char* w, unsigned char* x) {
        const int lane = threadIdx.x % 32;
        const int row = threadIdx.x / 32 * WARP_ROWS + lane % 16;
#pragma unroll K_UNROLL
        for (int k = 0; k < TILE_COLS; k += 32) {
            unsigned a[2][ROW_FRAGMENTS][4];
#pragma unroll
            for (int step = 0; step < 2; ++step) {
#pragma unroll
                for (int i = 0; i < ROW_FRAGMENTS; ++i) {
                    const int chunk = (k / CHUNK + step * 2 + lane / 16) ^ (row % 8);
                    load_matrix_x4(a[step][i], w + ((row + i * 16) * (TILE_COLS / CHUNK) + chunk) * 16);
                }
            }
#pragma unroll
            for (int j = 0; j < X_CHUNKS; ++j) {
                unsigned b[4];
                load_matrix_x4_transposed(b, x_chunk(x, k + lane, j));
#pragma unroll
                for (int i = 0; i < ROW_FRAGMENTS; ++i) {
                    mma_m16n8k16_f16(sum[i][j], a[0][i], b[0], b[1]);
                    mma_m16n8k16_f16(sum[i][j], a[1][i], b[2], b[3]);
                }
            }
        }
    }
};

}  // namespace

// Arguments: walk().
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM) tiled_csl_spmm(
    const uint4* __restrict__ entries, const int* __restrict__ offsets, const unsigned short* __restrict__ x,
    void* __restrict__ out, int m, int n, int k, long long x_stride) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    walk<Sm80>(entries, offsets, x, out, m, n, k, x_stride, shared_memory);
}
