// sums += addends and copies = addends by one thread of two; the test replaces the steps in capitals.
#include "bulk_copy.cuh"
#include "mbarrier.cuh"
#include "tma.cuh"

constexpr int kFloats = 64, kBytes = kFloats * sizeof(float);

extern "C" __global__ void __launch_bounds__(32, 1) copy(const float* __restrict__ addends, float* sums,
                                                         float* copies) {
    __shared__ __align__(128) float buffer[kFloats];
    __shared__ unsigned long long barrier;
    if (threadIdx.x == 0) {
        mbarrier_init(&barrier, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect(&barrier, kBytes);
        LOAD(buffer, addends, kBytes, &barrier);
    }
    __syncthreads();
    LOADED;
    if (threadIdx.x == 0) {
        bulk_store(copies, buffer + OFFSET, kBytes);
        bulk_add(sums, buffer, kBytes);
        bulk_commit();
        OVERWRITE;
        bulk_wait();
    }
}
