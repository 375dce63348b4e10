// The dense matrix [m, k], fp16, of one in the bitmap format (../formats/bitmap.py), where a dense product is the
// faster one. A warp expands one block of 32 x 128: it copies the block's lines to shared memory, decodes them as the
// product does, puts the A fragments in their places of a tile in shared memory, and writes the tile's rows by 16
// bytes, sixteen lanes to a row. Rows of the tile are 16 bytes longer, so that the four bytes of 32
// lanes fall in 32 banks. WARPS warps a block, each with 8704 + 128 * `longest` bytes. Any architecture.
#include "bitmap_decode.cuh"
#include "dense_rows.cuh"

namespace {

constexpr int BLOCK_ROWS = 32;
constexpr int ROW_CHUNKS = SEGMENT / ROW_CHUNK;
constexpr int ROW_BYTES = SEGMENT * 2 + 16;

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32) expand_bitmap(const uint4* __restrict__ lines,
                                                                       const int* __restrict__ offsets,
                                                                       unsigned short* __restrict__ dense, int m, int k,
                                                                       int longest) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int blocks_k = (k + SEGMENT - 1) / SEGMENT;
    const long long block = static_cast<long long>(blockIdx.x) * WARPS + warp;
    const int m_begin = static_cast<int>(block / blocks_k) * BLOCK_ROWS;
    const int k_begin = static_cast<int>(block % blocks_k) * SEGMENT;
    if (m_begin >= m) return;
    unsigned char* const tile = shared_memory + warp * (BLOCK_ROWS * ROW_BYTES + longest * LINE);
    unsigned char* const staged = tile + BLOCK_ROWS * ROW_BYTES;

    const int first = offsets[block];
    const int chunks = (offsets[block + 1] - first) * (LINE / 16);
    const uint4* const from = lines + static_cast<long long>(first) * (LINE / 16);
    for (int i = lane; i < chunks; i += 32) reinterpret_cast<uint4*>(staged)[i] = from[i];
    __syncwarp();

    const unsigned char* const column = staged + lane * 4;
    unsigned char* const own = tile + lane / 4 * ROW_BYTES + lane % 4 * 4;
    const Constants constants(gridDim.z);
    Reader reader(column);
    for (int line = 0; line < MASK_LINES; ++line) {
        Fragments a;
        decode(a, reader, *reinterpret_cast<const unsigned*>(column + line * LINE), constants);
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) {
            const int step = i / 8;
            const int fragment = i / 4 % 2;
            const int reg = i % 4;  // rows 8 further down when odd, columns 8 further right from 2 on
            *reinterpret_cast<unsigned*>(own + (fragment * 16 + reg % 2 * 8) * ROW_BYTES +
                                         (line * 32 + step * 16 + reg / 2 * 8) * 2) = a[step][fragment][reg];
        }
    }
    __syncwarp();

    for (int i = lane; i < BLOCK_ROWS * ROW_CHUNKS; i += 32) {
        const int row = i / ROW_CHUNKS;
        const int chunk = i % ROW_CHUNKS;
        const uint4& halves = *reinterpret_cast<const uint4*>(tile + row * ROW_BYTES + chunk * 16);
        write_chunk(dense, halves, m_begin + row, k_begin + chunk * ROW_CHUNK, m, k);
    }
}
