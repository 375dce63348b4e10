// One lane of a warp, picked so that the compiler knows it is one (sm_90).
#pragma once

// True in one lane of a whole warp, the same one every time: what it does needs no loop over lanes.
__device__ __forceinline__ bool elect_lane() {
#ifdef VOLTABENCH_EMULATED
    __syncwarp();
    return threadIdx.x % 32 == 0;
#else
    unsigned elected;
    asm volatile("{\n.reg .pred lane;\nelect.sync _|lane, 0xffffffff;\nselp.b32 %0, 1, 0, lane;\n}" : "=r"(elected));
    return elected;
#endif
}
