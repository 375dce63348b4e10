// One access per thread at a place given by `index`, for counting; and instructions without memory.
#include <cuda_fp16.h>

#include "math.cuh"
#include "mma_sm80.cuh"

extern "C" __global__ void __launch_bounds__(32) traffic(const int* index, const int* source, int* result) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const int lane = threadIdx.x, place = index[lane];
    ELEMENT* shared = reinterpret_cast<ELEMENT*>(shared_memory);
    shared[place] = reinterpret_cast<const ELEMENT*>(source)[place];  // global to shared
    __syncthreads();
    const ELEMENT loaded = shared[place];  // shared
    result[lane] = *reinterpret_cast<const short*>(&loaded);
}

extern "C" __global__ void __launch_bounds__(64) instructions(float* result) {
    float x = threadIdx.x;
    for (int i = 0; i < 3; ++i) x += exp2_fast(-x);
    if (threadIdx.x < 16) x = reciprocal_fast(x);
    for (int i = 0; i < 5; ++i) x += __shfl_xor_sync(0xffffffffu, x, 1);
    float d[4] = {};
    const unsigned a[4] = {};
    if (threadIdx.x < 32)
        for (int i = 0; i < 7; ++i) mma_m16n8k16_f16(d, a, 0, 0);
    __syncthreads();
    result[threadIdx.x] = x + d[0];
}

// Lanes stay in the loop for 1 to 32 rounds: in round r, 32 - r of them load.
extern "C" __global__ void __launch_bounds__(32) triangle(const int* source, int* result) {
    int sum = 0;
    for (int i = 0; i <= static_cast<int>(threadIdx.x); ++i) sum += source[i * 32 + threadIdx.x];
    result[threadIdx.x] = sum;
}
