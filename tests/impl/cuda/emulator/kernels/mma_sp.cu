// d += a b for a 2:4 sparse a, on fragments and metadata as they lie in the lanes' registers.
#include "mma_sp_sm80.cuh"

extern "C" __global__ void __launch_bounds__(32) multiply_sparse(const unsigned* a_fragments,
                                                                 const unsigned* b_fragments, const unsigned* metadata,
                                                                 float* d_fragments) {
    const int lane = threadIdx.x;
    unsigned a[4], b[4];
    float d[4];
    for (int i = 0; i < 4; ++i) {
        a[i] = a_fragments[lane * 4 + i];
        b[i] = b_fragments[lane * 4 + i];
        d[i] = d_fragments[lane * 4 + i];
    }
    mma_sp_m16n8k32_f16<LANES>(d, a, b, metadata[lane]);
    for (int i = 0; i < 4; ++i) d_fragments[lane * 4 + i] = d[i];
}
