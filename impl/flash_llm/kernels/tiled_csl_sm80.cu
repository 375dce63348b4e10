// Y[m, n] = W[m, k] X[k, n] with W in Tiled-CSL (../formats/tiled_csl.py), fp16 in and out, fp32 accumulators: load as
// sparse, compute as dense. Written for sm_80: cp.async, ldmatrix, mma.m16n8k16.
//
// A block of 4 warps owns 128 rows x TILE_N columns of Y and walks along k in steps of one 128 x 64 tile of W;
// blockIdx.y picks its share of the steps when k is split. Shared memory holds two stages of the expanded tile
// (16 KiB each) and of X's 64 x TILE_N. While the tensor cores multiply one stage, the other is zeroed, its
// entries travel to registers and its X by cp.async; after a barrier the entries are scattered to their places.
//  * A warp computes 32 rows, so each of the block's warps reads its own quarter of W's tile once, and all of X's.
//  * Where the tile's first entry lies is read two steps ahead, so that no step waits for an address.
#include "skinny_tile_sm80.cuh"
#include "tiled_csl_tile.cuh"

namespace {

constexpr int K_UNROLL = TILE_N < 64 ? 2 : 1;  // with 64 columns two halves of a step in flight would spill

__device__ __forceinline__ void multiply(Accumulators& sum, unsigned char* w, unsigned char* x) {
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

}  // namespace

// out: fp16 [m, n] when gridDim.y is 1, else fp32 partial sums [gridDim.y, m, n]. x has rows of `x_stride` halves.
// Blocks that share a row of tiles are neighbours, so that W comes from L2 when n takes several of them.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM) tiled_csl_spmm(
    const uint4* __restrict__ entries, const int* __restrict__ offsets, const unsigned short* __restrict__ x,
    void* __restrict__ out, int m, int n, int k, long long x_stride) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    unsigned char* const w_stages = shared_memory;
    unsigned char* const x_stages = shared_memory + 2 * W_BYTES;

    const int tiles_n = (n + TILE_N - 1) / TILE_N;
    const int tiles_k = (k + TILE_COLS - 1) / TILE_COLS;
    const int tile_row = blockIdx.x / tiles_n;
    const int n_begin = blockIdx.x % tiles_n * TILE_N;
    const auto [begin, end] = share(tiles_k, blockIdx.y, gridDim.y);
    const int* const bounds = offsets + static_cast<long long>(tile_row) * tiles_k;
    const bool aligned = rows_aligned(x, x_stride, n);

    Accumulators sum = {};
    Entries tile;
    tile.first = bounds[begin];
    tile.last = bounds[begin + 1];
    int following = bounds[min(begin + 2, end)];

    zero_tile(w_stages);
    fetch_entries(tile, entries);
    load_x<TILE_COLS>(x_stages, x, x_stride, k, n, begin * TILE_COLS, n_begin, aligned);
    copy_async_commit();
    __syncthreads();
    scatter_entries(w_stages, tile, entries);
    copy_async_wait<0>();
    __syncthreads();

    for (int step = begin; step < end; ++step) {
        const int stage = (step - begin) % 2;
        unsigned char* const w_next = w_stages + (1 - stage) * W_BYTES;
        const bool more = step + 1 < end;
        if (more) {
            tile.first = tile.last;
            tile.last = following;
            following = bounds[min(step + 3, end)];
            fetch_entries(tile, entries);
            zero_tile(w_next);
            load_x<TILE_COLS>(x_stages + (1 - stage) * X_BYTES, x, x_stride, k, n, (step + 1) * TILE_COLS, n_begin,
                              aligned);
            copy_async_commit();
        }
        multiply(sum, w_stages + stage * W_BYTES, x_stages + stage * X_BYTES);
        if (more) {
            __syncthreads();
            scatter_entries(w_next, tile, entries);
            copy_async_wait<0>();
        }
        __syncthreads();
    }

    write_share(out, sum, m, n, tile_row * TILE_ROWS, n_begin);
}
