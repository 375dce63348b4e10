// What both backward kernels recompute: probabilities p = exp(s - lse), and ds = p (dp - delta), the scores' gradient.
#pragma once
#include "math.cuh"
#include "probabilities_sm70.cuh"

constexpr float kLog2e = 1.4426950408889634f;

// What is known of a query's row.
struct RowStatistics {
    float lse, delta;
};

// Of row `row`. Rows past the last, and those that saw no key (lse -inf), get an lse of +inf, so that p is 0.
__device__ __forceinline__ RowStatistics load_statistics(const float* lse, const float* delta, int row, int rows) {
    if (row >= rows) return {infinity(), 0.0f};
    return {lse[row] == -infinity() ? infinity() : lse[row], delta[row]};
}

// Of scores in the millions, lse is rounded by a sizeable part of 1. The difference is taken before the change to base
// 2 would round both once more, and held to what it can be, so that p is at most 1 and gradients stay finite.
__device__ __forceinline__ float probability(float score, float softmax_scale, float lse) {
    return exp2_fast(fminf(fmaf(score, softmax_scale, -lse), 0.0f) * kLog2e);
}
