// Random bits as a function of a counter: Philox4x32 of 7 rounds, the fewest that pass BigCrush (Salmon, Moraes, Dror,
// Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 7; ++round) {
        const unsigned low = 0xd2511f53u * counter.x, high = __umulhi(0xd2511f53u, counter.x);
        const unsigned other_low = 0xcd9e8d57u * counter.z, other_high = __umulhi(0xcd9e8d57u, counter.z);
        counter = make_uint4(other_high ^ counter.y ^ key.x, other_low, high ^ counter.w ^ key.y, low);
        key.x += 0x9e3779b9u;
        key.y += 0xbb67ae85u;
    }
    return counter;
}
