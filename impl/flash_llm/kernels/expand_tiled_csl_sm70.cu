// The dense matrix [m, k], fp16, of one in Tiled-CSL (../formats/tiled_csl.py), where a dense product is the faster
// one. A block of 128 threads expands one tile of 128 x 64 in shared memory (16 KiB), as the product does, and writes
// its rows by 16 bytes, eight threads to a row. Bound by the bytes that are written. Any architecture. Macros: WARPS (4
// for 128 rows), TILE_N (of the header, not used).
#include "dense_rows.cuh"
#include "tiled_csl_tile.cuh"

namespace {

constexpr int ROW_CHUNKS = TILE_COLS / ROW_CHUNK;

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) expand_tiled_csl(const uint4* __restrict__ entries,
                                                                       const int* __restrict__ offsets,
                                                                       unsigned short* __restrict__ dense, int m,
                                                                       int k) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const int tiles_k = (k + TILE_COLS - 1) / TILE_COLS;
    const int m_begin = blockIdx.x / tiles_k * TILE_ROWS;
    const int k_begin = blockIdx.x % tiles_k * TILE_COLS;

    Entries tile;
    tile.first = offsets[blockIdx.x];
    tile.last = offsets[blockIdx.x + 1];
    fetch_entries(tile, entries);
    zero_tile(shared_memory);
    __syncthreads();
    scatter_entries(shared_memory, tile, entries);
    __syncthreads();
    for (int i = threadIdx.x; i < TILE_ROWS * ROW_CHUNKS; i += THREADS) {
        const int row = i / ROW_CHUNKS;
        const int chunk = i % ROW_CHUNKS;
        const uint4& halves = reinterpret_cast<const uint4*>(shared_memory)[row * ROW_CHUNKS + (chunk ^ row % 8)];
        write_chunk(dense, halves, m_begin + row, k_begin + chunk * ROW_CHUNK, m, k);
    }
}
