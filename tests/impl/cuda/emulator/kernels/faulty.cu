// A sound kernel around STATEMENT, which the threads that fulfil CULPRITS execute; the others do OTHERWISE.
#include "copy_async.cuh"
#include "mma_sm80.cuh"

extern "C" __global__ void __launch_bounds__(64) faulty(const float* __restrict__ x, float* __restrict__ y) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    __shared__ float first[64];
    __shared__ __align__(16) float second[64];
    float* dynamic = reinterpret_cast<float*>(shared_memory);
    const int thread = threadIdx.x;
    first[thread] = x[blockIdx.x * 64 + thread];
    second[thread] = 0.0f;
    dynamic[4 * thread] = 0.0f;
    __syncthreads();
    float value = first[63 - thread];
    float d[4] = {};
    unsigned fragment[4] = {};
    if (CULPRITS) {
        STATEMENT;  // the fault
    } else {
        OTHERWISE;
    }
    __syncthreads();
    y[blockIdx.x * 64 + thread] = value + second[thread] + d[0] + fragment[0];
}
