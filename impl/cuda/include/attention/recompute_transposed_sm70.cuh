// p^T and ds^T, whose rows are keys.
#pragma once
#include "recompute_sm70.cuh"

// Lane l holds what is known of query l of a tile; a column of the warp's outputs takes it from there.
static_assert(BLOCK_N <= 32, "one query per lane");

__device__ __forceinline__ RowStatistics of_column(const RowStatistics& of_lane, int column) {
    return {__shfl_sync(kAllLanes, of_lane.lse, column), __shfl_sync(kAllLanes, of_lane.delta, column)};
}

// p^T and ds^T of the tile's queries as A operands. With dropout, p and dp are multiplied by keep_scale, p later, where
// `kept` says so (is_kept), else by 0.
__device__ __forceinline__ void recompute(Probabilities (&p)[kRowTiles][kKeyTiles],
                                          Probabilities (&ds)[kRowTiles][kKeyTiles],
                                          const float (&scores)[kRowTiles][kKeyTiles][8],
                                          const float (&dp)[kRowTiles][kKeyTiles][8], const RowStatistics& of_lane,
                                          float score_scale, int lane, unsigned kept = 0xffffffffu,
                                          float keep_scale = 1.0f) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
        RowStatistics statistics[8];
#pragma unroll
        for (int i = 0; i < 8; ++i)  // i and i ^ 2 lie in one column
            statistics[i] = i & 2 ? statistics[i ^ 2] : of_column(of_lane, n * 16 + warp_column(lane, i));
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
            float probabilities[8], gradients[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float of_value = is_kept(kept, m, n, i) ? dp[m][n][i] * keep_scale : 0.0f;
                probabilities[i] = probability(scores[m][n][i], score_scale, statistics[i].lse);
                gradients[i] = probabilities[i] * (of_value - statistics[i].delta);
                if (!is_kept(kept, m, n, i)) probabilities[i] = 0.0f;
            }
            convert(p[m][n], nullptr, m, n, probabilities, lane);
            convert(ds[m][n], nullptr, m, n, gradients, lane);
        }
    }
}
