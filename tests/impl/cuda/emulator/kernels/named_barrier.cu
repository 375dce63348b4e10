// The last warp produces a tile ROUNDS times, the other two consume it. FULL and EMPTY are how each side says so.
#include "barrier.cuh"

extern "C" __global__ void __launch_bounds__(96) relay(const int* source, int* sums) {
    __shared__ int tile[32];
    const int thread = threadIdx.x, lane = thread % 32;
    if (thread >= 64) {
        for (int round = 0; round < ROUNDS; ++round) {
            if (round > 0) EMPTY;
            tile[lane] = source[round * 32 + lane];
            FULL;
        }
    } else {
        int sum = 0;
        for (int round = 0; round < ROUNDS; ++round) {
            named_barrier_sync(1, 96);
            sum += tile[(lane + 1 + thread / 32) % 32];
            if (round + 1 < ROUNDS) named_barrier_arrive(2, 96);
        }
        sums[thread] = sum;
    }
}
