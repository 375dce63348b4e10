// Clocks of UNROLL * `loops` steps of one kind, on each warp of one block; PROBE picks the kind. `sink` keeps results
// alive.
#include "math.cuh"
#if __CUDA_ARCH__ >= 800
#    include "mma_sm80.cuh"
#else
#    include "mma_sm70.cuh"
#endif

constexpr int kUnroll = 16;

#if __CUDA_ARCH__ >= 800
typedef float Sums[4];
__device__ __forceinline__ void product(Sums& d, const unsigned (&a)[4], unsigned b) {
    mma_m16n8k16_f16(d, a, b, b);
}
#else
typedef float Sums[8];
__device__ __forceinline__ void product(Sums& d, const unsigned (&a)[4], unsigned b) {
    const unsigned left[2] = {a[0], a[1]}, right[2] = {b, b};
    mma_m8n8k4_row_col(d, left, right);
}
#endif

extern "C" __global__ void probe(long long* clocks, float* sink, const unsigned* chain, int loops) {
    Sums sums[kUnroll];
    for (int i = 0; i < kUnroll; ++i)
        for (float& sum : sums[i]) sum = i;
    const unsigned a[4] = {threadIdx.x, 1, 2, 3};
    float x[kUnroll], y[kUnroll];
    for (int i = 0; i < kUnroll; ++i) x[i] = threadIdx.x * 1e-3f + i, y[i] = threadIdx.x + 1.0f;
    unsigned place = threadIdx.x * 32;
    __syncthreads();
    const long long start = clock64();
    for (int loop = 0; loop < loops; ++loop) {
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
#if PROBE == 0  // the Tensor Core
            product(sums[i], a, threadIdx.x);
#elif PROBE == 1  // exponentials
            x[i] = exp2_fast(x[i]);
#elif PROBE == 2  // exponentials, each of the one before
            x[0] = exp2_fast(x[0]);
#elif PROBE == 3  // minimum and maximum: two comparisons
            x[i] = fmaxf(x[i], y[i]), y[i] = fminf(y[i], x[i]);
#elif PROBE == 4  // multiplications
            x[i] *= y[0];
#elif PROBE == 5  // loads from L2, each from where the one before says
            place = __ldcg(chain + place);
#elif PROBE == 6  // barriers
            __syncthreads();
#elif PROBE == 7  // four multiplications beside each product
            product(sums[i], a, threadIdx.x);
            for (int j = 0; j < 4; ++j) x[(i + j) % kUnroll] *= y[(i + 2 * j) % kUnroll];
#endif
        }
    }
    const long long stop = clock64();
    if (threadIdx.x % 32 == 0) clocks[threadIdx.x / 32] = stop - start;
    float all = place;
    for (int i = 0; i < kUnroll; ++i)
        for (float sum : sums[i]) all += sum + x[i] + y[i];
    if (all == 12345.678f) sink[threadIdx.x] = all;
}
