// One 64 x KEYS x K product of a warpgroup. Operands come as tiles of 64 columns; K is 64 for A B^T, KEYS for (A B^T)
// V.
#include "half.cuh"
#include "mbarrier.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

#if BFLOAT16
#    define wgmma_shared wgmma_shared_bf16
#    define wgmma_registers wgmma_registers_bf16
#    define wgmma_transposed wgmma_transposed_bf16
#    define pack pack_bf16
#else
#    define wgmma_shared wgmma_shared_f16
#    define wgmma_registers wgmma_registers_f16
#    define wgmma_transposed wgmma_transposed_f16
#    define pack pack_f16
#endif

constexpr int kTileBytes = 64 * 128;

// scores[64][KEYS] = a[64][64] b[KEYS][64]^T; out[64][DIM] = 16-bit scores[64][KEYS] v[KEYS][DIM]. All coordinates
// start at `row`.
extern "C" __global__ void __launch_bounds__(128, 1) multiply(const __grid_constant__ TensorMap a_map,
                                                              const __grid_constant__ TensorMap b_map,
                                                              const __grid_constant__ TensorMap v_map, float* scores,
                                                              float* out, int row) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    unsigned char* a = shared_memory;
    unsigned char* b = a + kTileBytes;
    unsigned char* v = b + KEYS * 128;
    __shared__ unsigned long long barrier;
    if (threadIdx.x == 0) {
        mbarrier_init(&barrier, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&barrier, kTileBytes + KEYS * 128 * (1 + DIM / 64));
        tma_load(a, &a_map, &barrier, 0, row, 0, 0);
        tma_load(b, &b_map, &barrier, 0, row, 0, 0);
        for (int d = 0; d < DIM / 64; ++d) tma_load(v + d * KEYS * 128, &v_map, &barrier, 64 * d, row, 0, 0);
    }
    mbarrier_wait(&barrier, 0);

    float s[KEYS / 2];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
        wgmma_shared(s, matrix_descriptor(a + 32 * k, 0, 1024), matrix_descriptor(b + 32 * k, 0, 1024), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin_registers(s);

    float o[DIM / 2];
    unsigned p[KEYS / 16][4];
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) p[k][i] = pack(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k)
        wgmma_registers(o, p[k], matrix_descriptor(v + 2048 * k, KEYS * 128, 1024), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin_registers(o);

    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
    for (int i = 0; i < KEYS / 2; ++i) scores[(first + i / 2 % 2 * 8) * KEYS + i / 4 * 8 + lane % 4 * 2 + i % 2] = s[i];
    for (int i = 0; i < DIM / 2; ++i) out[(first + i / 2 % 2 * 8) * DIM + i / 4 * 8 + lane % 4 * 2 + i % 2] = o[i];
}

// product[64][64] = a[KEYS][64]^T b[KEYS][64].
extern "C" __global__ void __launch_bounds__(128, 1) multiply_transposed(const __grid_constant__ TensorMap a_map,
                                                                         const __grid_constant__ TensorMap b_map,
                                                                         float* product) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    unsigned char* a = shared_memory;
    unsigned char* b = a + KEYS * 128;
    __shared__ unsigned long long barrier;
    if (threadIdx.x == 0) {
        mbarrier_init(&barrier, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect(&barrier, 2 * KEYS * 128);
        tma_load(a, &a_map, &barrier, 0, 0, 0, 0);
        tma_load(b, &b_map, &barrier, 0, 0, 0, 0);
    }
    __syncthreads();
    mbarrier_wait(&barrier, 0);

    float d[32];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k)
        wgmma_transposed(d, matrix_descriptor(a + 2048 * k, 0, 1024), matrix_descriptor(b + 2048 * k, 0, 1024), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin_registers(d);
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
    for (int i = 0; i < 32; ++i) product[(first + i / 2 % 2 * 8) * 64 + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
}
