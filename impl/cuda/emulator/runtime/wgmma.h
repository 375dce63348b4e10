// Products of a warpgroup that have been issued and not yet waited for.
#pragma once

#include <vector>

constexpr int kDense = -1;

// Of one warp: 16 rows of D.
struct Wgmma {
    float* d[32];
    unsigned a[32][4], metadata[32];
    bool a_in_registers, a_m_major, b_n_major, accumulate, bfloat16;
    int selector;  // of the lanes whose metadata count; none of a dense A
    int n;
    unsigned long long a_descriptor, b_descriptor;
    std::vector<float> d_before;  // lane by lane; empty when an earlier wgmma in the queue has the same accumulators
    const void* code;
};

// One warp's groups of them, oldest first; the last one is still open. A warp has its own: its rows of D need no
// other warp's.
struct WgmmaQueue {
    std::vector<std::vector<Wgmma>> groups;
    bool fenced = false;  // since the warp last waited
};
