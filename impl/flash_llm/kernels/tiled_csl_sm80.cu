// Y[m, n] = W[m, k] X[k, n] with W in Tiled-CSL (../formats.py), fp16 in and out, fp32 accumulators: load as
// sparse, compute as dense. Written for sm_80: cp.async, ldmatrix, mma.m16n8k16.
//
// A block of 4 warps owns 128 rows x TILE_N columns of Y and walks along k in steps of one 128 x 64 tile of W;
// blockIdx.y picks its share of the steps when k is split. Shared memory holds two stages of the expanded tile
// (16 KiB each) and of X's 64 x TILE_N. While the tensor cores multiply one stage, the other is zeroed, its
// entries travel to registers and its X by cp.async; after a barrier the entries are scattered to their places.
//  * A warp computes 32 rows, so each of the block's warps reads its own quarter of W's tile once, and all of X's.
//  * HELD 16-byte vectors per thread are loaded ahead: tiles up to half full. What a denser tile has beyond
//    that is loaded when it is scattered: slower, never wrong.
//  * Zeroing is by plain 16-byte stores: they need no wait of their own before the scatter, as cp.async would.
//  * Where the tile's first entry lies is read two steps ahead, so that no step waits for an address.
#include "copy_async.cuh"
#include "mma_sm80.cuh"

namespace {

constexpr int THREADS = 128;
constexpr int TILE_ROWS = 128;
constexpr int TILE_COLS = 64;
constexpr int CHUNK = 8;  // halves of 16 bytes: what ldmatrix and cp.async move, and the swizzles permute
constexpr int X_CHUNKS = TILE_N / CHUNK;
constexpr int W_BYTES = TILE_ROWS * TILE_COLS * 2;
constexpr int X_BYTES = TILE_COLS * TILE_N * 2;
constexpr int HELD = 8;
constexpr int WARP_ROWS = TILE_ROWS / (THREADS / 32);
constexpr int ROW_FRAGMENTS = WARP_ROWS / 16;
constexpr int K_UNROLL = TILE_N < 64 ? 2 : 1;  // with 64 columns two halves of a step in flight would spill

using Accumulators = float[ROW_FRAGMENTS][X_CHUNKS][4];

// The vectors of one tile's entries, and those of them that this thread holds.
struct Entries {
    int first;
    int last;
    uint4 held[HELD];
};

__device__ __forceinline__ void fetch_entries(Entries& tile, const uint4* entries) {
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int vector = tile.first + static_cast<int>(threadIdx.x) + i * THREADS;
        if (vector < tile.last) tile.held[i] = entries[vector];
    }
}

__device__ __forceinline__ void scatter_vector(unsigned char* w, const uint4& vector) {
    const unsigned words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<unsigned short*>(w + (words[i] >> 16)) = static_cast<unsigned short>(words[i]);
    }
}

__device__ __forceinline__ void scatter_entries(unsigned char* w, const Entries& tile, const uint4* entries) {
    const int own = tile.first + static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        if (own + i * THREADS < tile.last) scatter_vector(w, tile.held[i]);
    }
    for (int vector = own + HELD * THREADS; vector < tile.last; vector += THREADS) scatter_vector(w, entries[vector]);
}

__device__ __forceinline__ void zero_tile(unsigned char* w) {
#pragma unroll
    for (int i = 0; i < W_BYTES / 16 / THREADS; ++i) {
        reinterpret_cast<uint4*>(w)[threadIdx.x + i * THREADS] = make_uint4(0, 0, 0, 0);
    }
}

// Where chunk `chunk` of row `row` of X's tile lies: eight rows of one chunk fill all banks once.
__device__ __forceinline__ unsigned char* x_chunk(unsigned char* tile, int row, int chunk) {
    const int swizzled = chunk ^ ((row * X_CHUNKS / 8) & (X_CHUNKS - 1));
    return tile + (row * X_CHUNKS + swizzled) * 16;
}

// Eight halves of which the first `count` are there and the others 0, for rows of X that are not aligned.
__device__ __forceinline__ uint4 gather_chunk(const unsigned short* from, int count) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned low = 2 * i < count ? from[2 * i] : 0;
        const unsigned high = 2 * i + 1 < count ? from[2 * i + 1] : 0;
        words[i] = low | high << 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// Rows k_begin.. and columns n_begin.. of X, zeros outside it.
__device__ __forceinline__ void load_x(unsigned char* tile, const unsigned short* x, long long stride, int k, int n,
                                       int k_begin, int n_begin, bool aligned) {
    for (int i = threadIdx.x; i < TILE_COLS * X_CHUNKS; i += THREADS) {
        const int row = i / X_CHUNKS;
        const int chunk = i % X_CHUNKS;
        const int column = n_begin + chunk * CHUNK;
        const unsigned short* from = x + (k_begin + row) * stride + column;
        unsigned char* to = x_chunk(tile, row, chunk);
        if (aligned) {
            copy_async_16(to, from, k_begin + row < k && column < n);
        } else {
            *reinterpret_cast<uint4*>(to) = gather_chunk(from, k_begin + row < k ? n - column : 0);
        }
    }
}

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

__device__ __forceinline__ void store(float* to, float value) {
    *to = value;
}

__device__ __forceinline__ void store(unsigned short* to, float value) {
    *to = static_cast<unsigned short>(pack_f16(value, 0.0f));
}

__device__ __forceinline__ void store_pair(float* to, float first, float second) {
    *reinterpret_cast<float2*>(to) = make_float2(first, second);
}

__device__ __forceinline__ void store_pair(unsigned short* to, float first, float second) {
    *reinterpret_cast<unsigned*>(to) = pack_f16(first, second);
}

// Writes the block's part of out [m, n], fp32 or fp16. An even n keeps every pair aligned and whole.
template <typename Element>
__device__ __forceinline__ void write(Element* out, const Accumulators& sum, int m, int n, int m_begin, int n_begin) {
    const int lane = threadIdx.x % 32;
    const int warp_row = m_begin + threadIdx.x / 32 * WARP_ROWS + lane / 4;
#pragma unroll
    for (int i = 0; i < ROW_FRAGMENTS; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = warp_row + i * 16 + half * 8;
#pragma unroll
            for (int j = 0; j < X_CHUNKS; ++j) {
                const int column = n_begin + j * CHUNK + lane % 4 * 2;
                if (row >= m || column >= n) continue;
                Element* to = out + static_cast<long long>(row) * n + column;
                if (n % 2 == 0) {
                    store_pair(to, sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
                } else {
                    store(to, sum[i][j][half * 2]);
                    if (column + 1 < n) store(to + 1, sum[i][j][half * 2 + 1]);
                }
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
    const int split = blockIdx.y;
    const int splits = gridDim.y;
    const int begin = split * (tiles_k / splits) + min(split, tiles_k % splits);
    const int end = begin + tiles_k / splits + (split < tiles_k % splits ? 1 : 0);
    const int* const bounds = offsets + static_cast<long long>(tile_row) * tiles_k;
    const bool aligned = reinterpret_cast<unsigned long long>(x) % 16 == 0 && x_stride % CHUNK == 0 && n % CHUNK == 0;

    Accumulators sum = {};
    Entries tile;
    tile.first = bounds[begin];
    tile.last = bounds[begin + 1];
    int following = bounds[min(begin + 2, end)];

    zero_tile(w_stages);
    fetch_entries(tile, entries);
    load_x(x_stages, x, x_stride, k, n, begin * TILE_COLS, n_begin, aligned);
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
            load_x(x_stages + (1 - stage) * X_BYTES, x, x_stride, k, n, (step + 1) * TILE_COLS, n_begin, aligned);
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

    const int m_begin = tile_row * TILE_ROWS;
    if (splits == 1) {
        write(static_cast<unsigned short*>(out), sum, m, n, m_begin, n_begin);
    } else {
        float* const partial = static_cast<float*>(out) + static_cast<long long>(split) * m * n;
        write(partial, sum, m, n, m_begin, n_begin);
    }
}
