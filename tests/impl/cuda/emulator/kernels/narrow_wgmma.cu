// out[64][COLUMNS] = a[64][64] x[row..row+63][column..] of a warpgroup: A from bulk copies through registers, X in a
// narrow tile.
#include "bulk_copy.cuh"
#include "mbarrier.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int kDepth = 64, kRowBytes = COLUMNS * 2, kPattern = 8 * kRowBytes;

extern "C" __global__ void __launch_bounds__(128, 1) multiply_narrow(const __grid_constant__ TensorMap x_map,
                                                                     const unsigned short* a, float* out, int row,
                                                                     int column) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    unsigned char* const x = shared_memory;
    unsigned char* const a_shared = shared_memory + kDepth * kRowBytes;
    __shared__ unsigned long long barrier;
    if (threadIdx.x == 0) {
        mbarrier_init(&barrier, 2);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&barrier, kDepth * kRowBytes);
        tma_load(x, &x_map, &barrier, column, row, 0, 0);
        mbarrier_arrive_expect(&barrier, 64 * kDepth * 2);
        for (int i = 0; i < 4; ++i) bulk_load(a_shared + i * 2048, a + i * 1024, 2048, &barrier);
    }
    mbarrier_wait(&barrier, 0);

    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
    unsigned fragments[kDepth / 16][4];
    for (int k = 0; k < kDepth / 16; ++k)
        for (int i = 0; i < 4; ++i)
            fragments[k][i] = *reinterpret_cast<const unsigned*>(
                a_shared + ((first + i % 2 * 8) * kDepth + k * 16 + i / 2 * 8 + lane % 4 * 2) * 2);
    float sum[COLUMNS / 2];
    const unsigned long long b = matrix_descriptor<kRowBytes>(x, kPattern, kPattern);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k)
        wgmma_registers_f16(sum, fragments[k], advance_descriptor(b, k * 2 * kPattern), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin_registers(sum);
    for (int i = 0; i < COLUMNS / 2; ++i)
        out[(first + i / 2 % 2 * 8) * COLUMNS + i / 4 * 8 + lane % 4 * 2 + i % 2] = sum[i];
}
