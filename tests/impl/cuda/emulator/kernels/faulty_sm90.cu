// d = a a^T of one tile by one warpgroup; the test replaces the steps in capitals.
#include "mbarrier.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int kTileBytes = 64 * 128;

extern "C" __global__ void __launch_bounds__(128, 1) faulty(const __grid_constant__ TensorMap map,
                                                            float* __restrict__ y) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    __shared__ unsigned long long barrier;
    unsigned char* tile = shared_memory;
    const int thread = threadIdx.x;
    if (thread == 0) {
        INIT;
        fence_mbarrier_init();
    }
    __syncthreads();
    if (thread == 0) {
        EXPECT;
        LOAD;
    }
    __syncthreads();
    WAIT;
    const unsigned long long descriptor = matrix_descriptor(tile, 0, 1024);
    float d[32];
    FENCE;
    for (int k = 0; k < 4; ++k) {
        const unsigned long long step = advance_descriptor(descriptor, 32 * k);
        MULTIPLY;
    }
    wgmma_commit();
    FINISH;
    pin_registers(d);
    for (int i = 0; i < 32; ++i) y[thread * 32 + i] = d[i];
}
