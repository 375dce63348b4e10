// A loop with counts that are known: PRODUCTS of m8n8k4, four exponentials, a 128-bit load and store of shared memory.
#include "math.cuh"
#include "mma_sm70.cuh"

extern "C" __global__ void __launch_bounds__(128) planted(float* out, int passes) {
    __shared__ uint4 tile[128];
    tile[threadIdx.x] = make_uint4(threadIdx.x, 1, 2, 3);
    __syncthreads();
    float d[8] = {}, x[4] = {1, 2, 3, 4};
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
        const uint4 words = tile[(threadIdx.x + pass) % 128];
        const unsigned a[2] = {words.x, words.y}, b[2] = {words.z, words.w};
#pragma unroll
        for (int i = 0; i < PRODUCTS; ++i) mma_m8n8k4_row_col(d, a, b);
#pragma unroll
        for (float& value : x) value = exp2_fast(value);
        __syncthreads();
        tile[threadIdx.x] = words;
        __syncthreads();
        // Seldom: a way that the model does not take.
        if (d[0] > 1e30f) {
#pragma unroll
            for (int i = 0; i < 32; ++i) d[i % 8] *= x[i / 8];
        }
    }
    for (int i = 0; i < 8; ++i) out[threadIdx.x * 8 + i] = d[i] + x[i % 4];
}
