// Y[m, n] = W[m, k] X[k, n] with W in the format two of four (../formats/two_of_four.py), fp16 in and out, fp32
// accumulators, by sparse Tensor Core products (two_of_four_product.cuh). Written for sm_80: cp.async
// (along_k_sm80.cuh), ldmatrix, mma.sp.m16n8k32.
//
// Macros, beside that one's: MIN_BLOCKS_PER_SM.
#include "along_k_sm80.cuh"
#include "two_of_four_product.cuh"

// Arguments: those of multiply_along_k, `units` of UNIT bytes.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM) two_of_four_spmm_sm80(
    const unsigned char* __restrict__ units, const int* __restrict__ offsets, const unsigned short* __restrict__ x,
    void* __restrict__ out, int m, int n, int k, long long x_stride, int stage_units) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    Constants constants(gridDim.z);  // 1
    constants.keep();
    multiply_along_k<UNIT>(
        [&](Accumulators& sum, const unsigned char* w, unsigned char* x) { multiply(sum, w, x, constants); },
        shared_memory, units, offsets, x, out, m, n, k, x_stride, stage_units);
}
