// Which lanes are elected, in two rounds.
#include "elect.cuh"

extern "C" __global__ void __launch_bounds__(96) elect(int* elected) {
    for (int round = 0; round < 2; ++round) {
        elected[round * 96 + threadIdx.x] = 0;
        if (elect_lane()) elected[round * 96 + threadIdx.x] = 1;
    }
}
