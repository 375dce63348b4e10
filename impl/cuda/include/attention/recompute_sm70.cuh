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

// ds of the warp's rows, from their scores and dp, as A operands. With dropout, dp is multiplied by keep_scale where
// `kept` says so (is_kept), else by 0.
__device__ __forceinline__ void score_gradients(Probabilities (&ds)[kRowTiles][kKeyTiles],
                                                const float (&scores)[kRowTiles][kKeyTiles][8],
                                                const float (&dp)[kRowTiles][kKeyTiles][8],
                                                const RowStatistics (&statistics)[kRowTiles][kLaneRows],
                                                float score_scale, int lane, unsigned kept = 0xffffffffu,
                                                float keep_scale = 1.0f) {
#pragma unroll
    for (int i = 0; i < kRowTiles * kKeyTiles; ++i) {
        const int m = i / kKeyTiles, n = i % kKeyTiles;
        float gradient[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const RowStatistics row = statistics[m][lane_row_of(e)];
            const float of_value = is_kept(kept, m, n, e) ? dp[m][n][e] * keep_scale : 0.0f;
            gradient[e] = probability(scores[m][n][e], score_scale, row.lse) * (of_value - row.delta);
        }
        convert(ds[m][n], nullptr, m, n, gradient, lane);
    }
}
