// One product d += a b by the wrapper that MULTIPLY names, on fragments as they lie in the lanes' registers.
#include "mma_sm70.cuh"
#if MMA_ARCH >= 80
#    include "mma_sm80.cuh"
#endif

extern "C" __global__ void __launch_bounds__(32) multiply(const unsigned* a_fragments, const unsigned* b_fragments,
                                                          ACCUMULATOR* d_fragments) {
    const int lane = threadIdx.x;
    unsigned a[A_REGISTERS], b[B_REGISTERS];
    ACCUMULATOR d[D_REGISTERS];
    for (int i = 0; i < A_REGISTERS; ++i) a[i] = a_fragments[lane * A_REGISTERS + i];
    for (int i = 0; i < B_REGISTERS; ++i) b[i] = b_fragments[lane * B_REGISTERS + i];
    for (int i = 0; i < D_REGISTERS; ++i) d[i] = d_fragments[lane * D_REGISTERS + i];
    MULTIPLY;
    for (int i = 0; i < D_REGISTERS; ++i) d_fragments[lane * D_REGISTERS + i] = d[i];
}
