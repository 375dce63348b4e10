// Y[m, n] = W[m, k] X[k, n] with W in Tiled-CSL (../formats/tiled_csl.py), fp16 in and out, fp32 accumulators: load as
// sparse, compute as dense. Written for sm_70: mma.m8n8k4, no cp.async, no ldmatrix.
//
// As on sm_80 a block of 4 warps owns 128 rows x TILE_N columns of Y and walks along k in steps of one 128 x 64 tile of
// W, with two stages of the expanded tile (16 KiB each) and of X's 64 x TILE_N in shared memory: 48 KiB at most, two
// blocks on an SM. While the tensor cores multiply one stage, the other is zeroed, and its entries and its X travel to
// registers; after a barrier they are stored to their places.
//  * A quad-pair takes 8 rows of the warp's 32, all take the same 8 columns: W is read once by 16-byte loads, eight
//    steps of k at a time, and X's reads are broadcasts. Every other quad-pair has its rows in halves exchanged, so
//    that eight lanes of a load meet no bank twice (the swizzle that the places of entries contain goes by row % 8).
#include "mma_sm70.cuh"
#include "skinny_tile.cuh"
#include "tiled_csl_tile.cuh"

namespace {

using Sums = float[X_CHUNKS][8];

// The part of X's tile that this thread brings.
constexpr int X_HELD = (TILE_COLS * X_CHUNKS + THREADS - 1) / THREADS;
using HeldX = uint4[X_HELD];

__device__ __forceinline__ void fetch_x(HeldX& held, const unsigned short* x, long long stride, int k, int n,
                                        int k_begin, int n_begin, bool aligned) {
#pragma unroll
    for (int i = 0; i < X_HELD; ++i) {
        const int index = threadIdx.x + i * THREADS;
        const int row = k_begin + index / X_CHUNKS;
        const int column = n_begin + index % X_CHUNKS * CHUNK;
        if (index >= TILE_COLS * X_CHUNKS) continue;
        const unsigned short* const from = x + row * stride + column;
        if (row >= k || column >= n) {
            held[i] = make_uint4(0, 0, 0, 0);
        } else {
            held[i] = aligned ? *reinterpret_cast<const uint4*>(from) : gather_chunk(from, n - column);
        }
    }
}

__device__ __forceinline__ void store_x(unsigned char* tile, const HeldX& held) {
#pragma unroll
    for (int i = 0; i < X_HELD; ++i) {
        const int index = threadIdx.x + i * THREADS;
        if (index < TILE_COLS * X_CHUNKS) {
            *reinterpret_cast<uint4*>(x_chunk(tile, index / X_CHUNKS, index % X_CHUNKS)) = held[i];
        }
    }
}

// Row `member` of a quad-pair's eight, among the warp's rows.
__device__ __forceinline__ int warp_row(int pair, int member) {
    return pair * 8 + (member ^ pair % 2 * 4);
}

__device__ __forceinline__ void multiply(Sums& sum, const unsigned char* w, unsigned char* x) {
    const QuadPairLane lane = quad_pair_lane(threadIdx.x % 32);
    const int row = threadIdx.x / 32 * WARP_ROWS + warp_row(lane.pair, lane.member);
    const unsigned char* const w_row = w + row * TILE_COLS * 2;
#pragma unroll
    for (int k = 0; k < TILE_COLS; k += CHUNK) {
        const uint4 chunk = *reinterpret_cast<const uint4*>(w_row + ((k / CHUNK) ^ (row % 8)) * 16);
        const unsigned a[2][2] = {{chunk.x, chunk.y}, {chunk.z, chunk.w}};
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
            for (int j = 0; j < X_CHUNKS; ++j) {
                const uint2 four = *reinterpret_cast<const uint2*>(x_chunk(x, k + step * 4 + lane.member % 4, j) +
                                                                   lane.member / 4 * 8);
                const unsigned b[2] = {four.x, four.y};
                mma_m8n8k4_row_row(sum[j], a[step], b);
            }
        }
    }
}

// Calls write(row, column, first, second) for this thread's pairs of neighbours.
template <typename Write>
__device__ __forceinline__ void each_pair(const Sums& sum, int m_begin, int n_begin, Write write) {
    const int lane = threadIdx.x % 32;
    const QuadPairLane place = quad_pair_lane(lane);
    const int first_row = m_begin + threadIdx.x / 32 * WARP_ROWS;
#pragma unroll
    for (int j = 0; j < X_CHUNKS; ++j) {
#pragma unroll
        for (int v = 0; v < 8; v += 2) {
            const int row = warp_row(place.pair, lane % 2 + (v & 2) + place.member / 4 * 4);
            write(first_row + row, n_begin + j * CHUNK + (lane & 2) + (v & 4), sum[j][v], sum[j][v + 1]);
        }
    }
}

}  // namespace

// out: fp16 [m, n] when gridDim.y is 1, else fp32 partial sums [gridDim.y, m, n]. x has rows of `x_stride` halves.
// Blocks that share a row of tiles are neighbours, so that W comes from L2 when n takes several of them.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM) tiled_csl_spmm_sm70(
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

    Sums sum = {};
    HeldX held_x;
    Entries tile;
    tile.first = bounds[begin];
    tile.last = bounds[begin + 1];
    int following = bounds[min(begin + 2, end)];

    zero_tile(w_stages);
    fetch_entries(tile, entries);
    fetch_x(held_x, x, x_stride, k, n, begin * TILE_COLS, n_begin, aligned);
    __syncthreads();
    scatter_entries(w_stages, tile, entries);
    store_x(x_stages, held_x);
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
            fetch_x(held_x, x, x_stride, k, n, (step + 1) * TILE_COLS, n_begin, aligned);
        }
        multiply(sum, w_stages + stage * W_BYTES, x_stages + stage * X_BYTES);
        if (more) {
            __syncthreads();
            scatter_entries(w_next, tile, entries);
            store_x(x_stages + (1 - stage) * X_BYTES, held_x);
        }
        __syncthreads();
    }

    write_share(out, sum, m, n, tile_row * TILE_ROWS, n_begin);
}
