// The online softmax of a warp's rows, from scores in the tiles of products_sm70.cuh to the A operands of p v.
#pragma once
#include "math.cuh"
#include "probabilities_sm70.cuh"

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// Running state of the softmax of the warp's rows, of which a lane holds kLaneRows in every row tile.
struct Softmax {
    float base[kRowTiles][kLaneRows];  // the maximum so far, in units of log2, rounded once: all exponents use it
    float sum[kRowTiles][kLaneRows];   // of this lane's elements only
};

// Turns scores into probabilities relative to the new maxima; `correction` is what older outputs are multiplied by.
// Says whether any is not 1.
__device__ __forceinline__ bool advance(Softmax& state, Probabilities (&p)[kRowTiles][kKeyTiles],
                                        float (&correction)[kRowTiles][kLaneRows],
                                        const float (&scores)[kRowTiles][kKeyTiles][8], float scale_log2,
                                        uint2* warp_p_tile, int lane) {
    bool rescale = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
        float base[kLaneRows];
#pragma unroll
        for (int r = 0; r < kLaneRows; ++r) {
            float maximum = -infinity();
#pragma unroll
            for (int i = 0; i < kKeyTiles * 8; ++i)
                if (lane_row_of(i % 8) == r) maximum = fmaxf(maximum, scores[m][i / 8][i % 8]);
            maximum = fmaxf(state.base[m][r], row_maximum(maximum) * scale_log2);
            // A row that has seen no key yet has maximum -inf; any finite base gives it p = 0.
            base[r] = maximum == -infinity() ? 0.0f : maximum;
            correction[m][r] = exp2_fast(state.base[m][r] - base[r]);
            state.base[m][r] = maximum;
            state.sum[m][r] *= correction[m][r];
            rescale |= correction[m][r] != 1.0f;
        }
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
            float exponential[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int r = lane_row_of(i);
                exponential[i] = exp2_fast(fmaf(scores[m][n][i], scale_log2, -base[r]));
                state.sum[m][r] += exponential[i];
            }
            convert(p[m][n], warp_p_tile, m, n, exponential, lane);
        }
    }
    collect(p, warp_p_tile, lane);
    return rescale;
}

// Writes the first `rows` of the warp's rows to `lse`; returns what normalises each.
__device__ __forceinline__ void finish(float (&inverse)[kRowTiles][kLaneRows], const Softmax& state, float* lse,
                                       int rows, int lane) {
    const bool first_in_row = warp_column(lane, 0) == 0;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int r = 0; r < kLaneRows; ++r) {
            const int row = m * 16 + warp_row(lane, r);
            const float sum = row_total(state.sum[m][r]);
            inverse[m][r] = sum == 0.0f ? 0.0f : reciprocal_fast(sum);
            if (first_in_row && row < rows) lse[row] = (state.base[m][r] + log2_fast(sum)) * kLn2;
        }
}
