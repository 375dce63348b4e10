// Y[m, n] = W[m, k] X[k, n] with W in Tiled-CSL (../formats/tiled_csl.py), fp16 in and out, fp32 accumulators: load as
// sparse, compute as dense. Written for sm_70: mma.m8n8k4, no cp.async, no ldmatrix.
//
// X travels through registers. Shared memory is 48 KiB at most: two blocks on an SM.
//  * A quad-pair takes 8 rows of the warp's 32, all take the same 8 columns: W is read once by 16-byte loads, eight
//    steps of k at a time, and X's reads are broadcasts. Every other quad-pair has its rows in halves exchanged, so
//    that eight lanes of a load meet no bank twice (the swizzle that the places of entries contain goes by row % 8).
#include "mma_sm70.cuh"
#include "skinny_tile.cuh"
#include "tiled_csl_tile.cuh"

namespace {

using QuadPairSums = float[X_CHUNKS][8];

// The part of X's tile that this thread brings.
constexpr int X_HELD = (TILE_COLS * X_CHUNKS + THREADS - 1) / THREADS;

// Row `member` of a quad-pair's eight, among the warp's rows.
__device__ __forceinline__ int warp_row(int pair, int member) {
    return pair * 8 + (member ^ pair % 2 * 4);
}

// Calls write(row, column, first, second) for this thread's pairs of neighbours.
template <typename Write>
__device__ __forceinline__ void each_pair(const QuadPairSums& sum, int m_begin, int n_begin, Write write) {
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

struct Sm70 {
    using Sums = QuadPairSums;

    uint4 held[X_HELD];

    __device__ __forceinline__ void fetch_x(unsigned char*, const unsigned short* x, long long stride, int k, int n,
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

    __device__ __forceinline__ void finish_x(unsigned char* tile) {
#pragma unroll
        for (int i = 0; i < X_HELD; ++i) {
            const int index = threadIdx.x + i * THREADS;
            if (index < TILE_COLS * X_CHUNKS) {
                *reinterpret_cast<uint4*>(x_chunk(tile, index / X_CHUNKS, index % X_CHUNKS)) = held[i];
            }
        }
    }

    __device__ __forceinline__ static void multiply(Sums& sum, const unsigned char* w, unsigned char* x) {
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
};

}  // namespace

// Arguments: walk().
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM) tiled_csl_spmm_sm70(
    const uint4* __restrict__ entries, const int* __restrict__ offsets, const unsigned short* __restrict__ x,
    void* __restrict__ out, int m, int n, int k, long long x_stride) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    walk<Sm70>(entries, offsets, x, out, m, n, k, x_stride, shared_memory);
}
