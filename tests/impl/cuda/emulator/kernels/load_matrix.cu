// ldmatrix by the wrapper LOAD: 32 rows of 8 halves, padded to 24 halves in shared memory.
#include "mma_sm80.cuh"

extern "C" __global__ void __launch_bounds__(32) load(const unsigned short* rows, unsigned* fragments) {
    __shared__ __align__(16) unsigned short tile[32 * 24];
    const int lane = threadIdx.x;
    for (int i = 0; i < 8; ++i) tile[lane * 24 + i] = rows[lane * 8 + i];
    __syncwarp();
    unsigned fragment[4];
    LOAD(fragment, tile + lane * 24);
    for (int i = 0; i < 4; ++i) fragments[lane * 4 + i] = fragment[i];
}
