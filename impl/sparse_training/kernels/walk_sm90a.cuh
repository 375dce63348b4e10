// What the Hopper kernels share. A block of threads, one warpgroup, has 64 rows of a block of the pattern in shared
// memory and walks over the other side's kept blocks in tiles of BLOCK_N = 64 rows, which the copy engine brings two
// or three ahead. 2 to 4 blocks of threads share an SM. They take turns at the Tensor Cores less than one hopes, so
// each starts the next tile's first products before the present one's last, which run beside the elementwise work.
#pragma once
#include "attention/softmax_sm90a.cuh"
#include "attention/tiles_sm90a.cuh"
#include "mbarrier.cuh"
#include "tma.cuh"

constexpr int kThreads = kGroup;
constexpr int kTileRows = BLOCK_N;
constexpr int kPanelBytes = kTileRows * kRowBytes, kTileBytes = kPanels * kPanelBytes;

// One thread asks for the tile that starts at `row`.
__device__ __forceinline__ void load_rows(unsigned char* tile, const TensorMap* map, unsigned long long* full, int row,
                                          int head, int batch) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
        tma_load(tile + panel * kPanelBytes, map, full, panel * 64, row, head, batch);
}

// Zeros from row `first` of a tile on: what hidden keys hold, be it NaN, does not matter. All threads of
// the block come here.
__device__ __forceinline__ void clear_rows(unsigned char* tile, int first) {
    for (int i = first * 8 + threadIdx.x; i < kTileRows * 8; i += kThreads)
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel)
            *reinterpret_cast<uint4*>(tile + panel * kPanelBytes + i * 16) = make_uint4(0, 0, 0, 0);
    fence_async_proxy();
}
