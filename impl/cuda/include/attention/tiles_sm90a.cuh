// Tiles in shared memory as the copy engine brings them and wgmma reads them: panels of 64 columns, rows of 128 bytes,
// swizzled; products of them; and how rows of accumulators leave through one.
#pragma once
#include "tensors.cuh"
#include "wgmma.cuh"

constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kRowBytes = 128;
constexpr int kPatternBytes = 8 * kRowBytes;  // the swizzle repeats
constexpr int kPanels = PADDED_DIM / 64;

// wgmma of the tensors' type; `form` as in wgmma.cuh.
#if BFLOAT16
#    define PRODUCT(form) wgmma_##form##_bf16
#else
#    define PRODUCT(form) wgmma_##form##_f16
#endif

// product = a b^T over PADDED_DIM, 64 rows of a warpgroup; the operands are descriptors of the tiles' first panels,
// which lie so many bytes apart.
template <int VALUES>
__device__ __forceinline__ void multiply_rows(float (&product)[VALUES], unsigned long long a, int a_panel_bytes,
                                              unsigned long long b, int b_panel_bytes) {
#pragma unroll
    for (int step = 0; step < PADDED_DIM / 16; ++step) {
        const int panel = step / 4, column = step % 4 * 32;
        PRODUCT(shared)(product, advance_descriptor(a, panel * a_panel_bytes + column),
                        advance_descriptor(b, panel * b_panel_bytes + column), step > 0);
    }
    wgmma_commit();
}

// Accumulators of a product, its columns the sum of the next one, hold that one's A operand.
template <int STEPS>
__device__ __forceinline__ void pack_fragments(unsigned (&a)[STEPS][4], const float (&values)[8 * STEPS]) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) a[step][i] = pack(values[8 * step + 2 * i], values[8 * step + 2 * i + 1]);
}

// sum += a b, b the rows of a tile, 16 to a step.
template <int STEPS>
__device__ __forceinline__ void accumulate_rows(float (&sum)[PADDED_DIM / 2], const unsigned (&a)[STEPS][4],
                                                unsigned long long b) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
        PRODUCT(registers)(sum, a[step], advance_descriptor(b, step * 16 * kRowBytes), true);
    wgmma_commit();
}

// 16 bytes of a tile.
__device__ __forceinline__ unsigned char* chunk_at(unsigned char* tile, int panel_bytes, int row, int chunk) {
    return tile + chunk / 8 * panel_bytes + row * kRowBytes + (chunk % 8 ^ row % 8) * 16;
}

// A warp's 16 rows of COLUMNS accumulators, times `factor` of a thread's upper and lower row, by way of the 16 rows
// from `tile_row` on of a tile that nobody else uses, to `rows`: as many as `row_count` and `columns` say.
template <int COLUMNS = PADDED_DIM>
__device__ __forceinline__ void store_rows(Element* rows, long long row_stride, const float (&values)[COLUMNS / 2],
                                           const float (&factor)[2], unsigned char* tile, int panel_bytes, int tile_row,
                                           int row_count, int columns, int lane) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i += 2)
        *reinterpret_cast<unsigned*>(chunk_at(tile, panel_bytes, tile_row + lane / 4 + i / 2 % 2 * 8, i / 4) +
                                     lane % 4 * 4) =
            pack(values[i] * factor[i / 2 % 2], values[i + 1] * factor[i / 2 % 2]);
    __syncwarp();
    constexpr int kChunks = COLUMNS / 8;
    const int chunk = lane % kChunks;
#pragma unroll
    for (int r = lane / kChunks; r < 16; r += 32 / kChunks)
        if (r < row_count && chunk * 8 < columns)
            *reinterpret_cast<uint4*>(rows + r * row_stride + chunk * 8) =
                *reinterpret_cast<const uint4*>(chunk_at(tile, panel_bytes, tile_row + r, chunk));
}
