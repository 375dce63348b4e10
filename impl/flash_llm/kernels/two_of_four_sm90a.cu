// Y[m, n] = W[m, k] X[k, n] with W in the format two of four (../formats/two_of_four.py), fp16 in and out, fp32
// accumulators, by sparse Tensor Core products (two_of_four_product.cuh). Written for sm_90a: the copy engine,
// mbarriers, wgmma. equal_shares_sm90a.cuh has the work's shares and the copies.
//
// A wide X is B of wgmma, which reads it once for four warps; for gathered columns it is not, for their rows lie
// anywhere. Decoding while products run gave wrong sums: registers that wgmma still reads are given to something new.
//
// Macros, beside that one's: MIN_BLOCKS_PER_SM; WARPGROUPS: whether own steps go by wgmma, for which WARPS is 4, 8
// or 12.
#include "equal_shares_sm90a.cuh"
#include "two_of_four_product.cuh"
#if WARPGROUPS
#    include "wgmma.cuh"

namespace {

constexpr unsigned ANY_PLACES = 0x44444444;  // in order, as metadata must be of zeros too

// As multiply() of a warp, by four of them, whose blocks of W lie at `base` each; warps that are not `active` have
// none.
__device__ __forceinline__ void multiply_together(Sums& sum, const unsigned char* base, unsigned char* x,
                                                  unsigned long long x_descriptor, bool active,
                                                  const Constants& constants) {
    const int lane = threadIdx.x % 32;
    const Block block{base};
    Share share(block, active ? block.start(lane) : 0, lane);
    if (active) share.read_parity(0);
#    pragma unroll 1
    for (int pair = 0; pair < OWN_PAIRS; ++pair) {
        TwoSteps a;
        const unsigned parity = share.parity;
        uint2 metadata = make_uint2(ANY_PLACES, ANY_PLACES);
        if (active) {
            share.read_parity(pair + 1);
            metadata = share.read_metadata(pair);
        }
        decode<4>(a, share.reader, parity, constants);
        wgmma_fence();
#    pragma unroll
        for (int i = 0; i < 2; ++i) {
            const unsigned long long b = advance_address(x_descriptor, (pair * 2 + i) * STEP_BYTES);
            wgmma_sparse_f16<0>(sum[0], a[i][0], b, i == 0 ? metadata.x : metadata.y);
            wgmma_sparse_f16<1>(sum[1], a[i][1], b, i == 0 ? metadata.x : metadata.y);
        }
        wgmma_commit();
        wgmma_wait<0>();  // the next pair is decoded to the same registers
    }
#    pragma unroll
    for (int i = 0; i < ROW_FRAGMENTS; ++i) pin_registers(sum[i]);
    multiply_gathered(reinterpret_cast<Accumulators&>(sum), share, x);
}

}  // namespace
#endif

// Arguments: those of multiply_share, `units` of UNIT bytes.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM) two_of_four_spmm_sm90a(
    const __grid_constant__ TensorMap x_map, const unsigned char* __restrict__ units, const int* __restrict__ offsets,
    unsigned short* __restrict__ y, float* partials, int* counters, int m, int n, int segments, int stage_units) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    Constants constants(gridDim.z);  // 1
    constants.keep();
#if WARPGROUPS
    const unsigned long long x_descriptor =
        matrix_descriptor<X_ROW_BYTES>(shared_memory, 8 * X_ROW_BYTES, 8 * X_ROW_BYTES);
#endif
    multiply_share<UNIT>(
        [&](Sums& sum, const unsigned char* w, int stage, bool active) {
            unsigned char* const x = shared_memory + stage * X_BYTES;
#if WARPGROUPS
            multiply_together(sum, w, x, advance_address(x_descriptor, stage * X_BYTES), active, constants);
#else
            if (active) multiply(reinterpret_cast<Accumulators&>(sum), w, x, constants);
#endif
        },
        shared_memory, x_map, units, offsets, y, partials, counters, m, n, segments, stage_units);
}
