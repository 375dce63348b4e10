// Y[m, n] = W[m, k] X[k, n] with W in the format two of four (../formats/two_of_four.py), fp16 in and out, fp32
// accumulators, by sparse Tensor Core products (two_of_four_product.cuh). Written for sm_90a: the copy engine,
// mbarriers. equal_shares_sm90a.cuh has the work's shares and the copies.
//
// Macros, beside that one's: MIN_BLOCKS_PER_SM.
#include "equal_shares_sm90a.cuh"
#include "two_of_four_product.cuh"

// Arguments: those of multiply_share, `units` of UNIT bytes.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM) two_of_four_spmm_sm90a(
    const __grid_constant__ TensorMap x_map, const unsigned char* __restrict__ units, const int* __restrict__ offsets,
    unsigned short* __restrict__ y, float* partials, int* counters, int m, int n, int segments, int stage_units) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    multiply_share<UNIT>(
        [&](Sums& sum, const unsigned char* w, int stage, bool active) {
            if (active) multiply(reinterpret_cast<Accumulators&>(sum), w, shared_memory + stage * X_BYTES);
        },
        shared_memory, x_map, units, offsets, y, partials, counters, m, n, segments, stage_units);
}
