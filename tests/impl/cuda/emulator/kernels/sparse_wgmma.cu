// out[64][COLUMNS] = a x of a warpgroup, a [64][64] with two of each four neighbours in a row stored: registers and
// metadata of each thread as they are given, [step][thread]; X [64][COLUMNS] in a narrow tile. LANES: whose metadata
// count.
#include "mbarrier.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int kSteps = 2, kRowBytes = COLUMNS * 2, kPattern = 8 * kRowBytes;

extern "C" __global__ void __launch_bounds__(128, 1) multiply_sparse(const __grid_constant__ TensorMap x_map,
                                                                     const uint4* registers, const unsigned* metadata,
                                                                     float* out) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    __shared__ unsigned long long barrier;
    if (threadIdx.x == 0) {
        mbarrier_init(&barrier, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&barrier, 32 * kSteps * kRowBytes);
        tma_load(shared_memory, &x_map, &barrier, 0, 0, 0, 0);
    }
    mbarrier_wait(&barrier, 0);

    float sum[COLUMNS / 2] = {};
    const unsigned long long b = matrix_descriptor<kRowBytes>(shared_memory, kPattern, kPattern);
    for (int step = 0; step < kSteps; ++step) {
        const uint4 words = registers[step * 128 + threadIdx.x];
        const unsigned a[4] = {words.x, words.y, words.z, words.w};
        const unsigned places = metadata[step * 128 + threadIdx.x];
        wgmma_fence();
        wgmma_sparse_f16<LANES>(sum, a, advance_descriptor(b, step * 4 * kPattern), places);
        wgmma_commit();
        wgmma_wait<0>();
        pin_registers(sum);
    }
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
    for (int i = 0; i < COLUMNS / 2; ++i)
        out[(first + i / 2 % 2 * 8) * COLUMNS + i / 4 * 8 + lane % 4 * 2 + i % 2] = sum[i];
}
