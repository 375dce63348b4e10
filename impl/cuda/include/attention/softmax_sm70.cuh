// The online softmax of a warp's rows, from scores in the tiles of products_sm70.cuh to the A operands of p v.
#pragma once
#include "math.cuh"
#include "products_sm70.cuh"

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
// With fp32 accumulators p is kept 2^kLift times as large, so that fp16 holds what is 2^-26 of the largest, and as
// exponentials 2^-kF16BiasLog2 times that, which pack_f16_scaled takes. A row's base follows its maximum only once that
// has grown by more than kSlack, in units of log2: most tiles then leave older outputs as they are.
constexpr int kLift = ACCUMULATE_FP16 ? 0 : 12;
constexpr int kOffset = ACCUMULATE_FP16 ? 0 : kF16BiasLog2 - kLift;
constexpr float kSlack = ACCUMULATE_FP16 ? 0.0f : 3.0f;

__device__ __forceinline__ float two_to(int exponent) {
    return __int_as_float((127 + exponent) << 23);
}

__device__ __forceinline__ unsigned pack_probabilities(float low, float high) {
    return ACCUMULATE_FP16 ? pack_f16(low, high) : pack_f16_scaled(low, high);
}

// Running state of the softmax of the warp's rows, of which a lane holds kLaneRows in every row tile.
struct Softmax {
    // kOffset above a maximum that is at most kSlack below the present one, in units of log2, rounded once: all
    // exponents use it.
    float base[kRowTiles][kLaneRows];
    float sum[kRowTiles][kLaneRows];  // of this lane's elements only
};

// A row that has seen no key.
__device__ __forceinline__ void start(Softmax& state) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int r = 0; r < kLaneRows; ++r) {
            state.base[m][r] = -infinity();
            state.sum[m][r] = 0.0f;
        }
}

// Has row r of row tile m see `count` scores of 0, before any others.
__device__ __forceinline__ void see_zeros(Softmax& state, int m, int r, int count, int lane) {
    if (count == 0) return;
    state.base[m][r] = kOffset;
    state.sum[m][r] = warp_column(lane, 0) == 0 ? count * two_to(-kOffset) : 0.0f;
}

// Turns scores into probabilities relative to the new bases, to which `output` is scaled. Those are dropped, but
// summed, for which `kept` has no bit (is_kept).
__device__ __forceinline__ void advance(Softmax& state, Output& output, Probabilities (&p)[kRowTiles][kKeyTiles],
                                        const float (&scores)[kRowTiles][kKeyTiles][8], float scale_log2,
                                        uint2* warp_p_tile, int lane, unsigned kept = 0xffffffffu) {
    float correction[kRowTiles][kLaneRows];
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
            maximum = row_maximum(maximum) * scale_log2 + kOffset;
            const float grown = maximum > state.base[m][r] + kSlack ? maximum : state.base[m][r];
            // A row that has seen no key yet has base -inf; any finite one gives it p = 0.
            base[r] = grown == -infinity() ? 0.0f : grown;
            correction[m][r] = exp2_fast(state.base[m][r] - base[r]);
            state.base[m][r] = grown;
            state.sum[m][r] *= correction[m][r];
            rescale |= correction[m][r] != 1.0f;
        }
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
            float exponential[8];
            unsigned pairs[4];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int r = lane_row_of(i);
                exponential[i] = exp2_fast(fmaf(scores[m][n][i], scale_log2, -base[r]));
                state.sum[m][r] += exponential[i];
                if (!is_kept(kept, m, n, i)) exponential[i] = 0.0f;
                if (i % 2) pairs[i / 2] = pack_probabilities(exponential[i - 1], exponential[i]);
            }
            convert(p[m][n], warp_p_tile, m, n, pairs, lane);
        }
    }
    collect(p, warp_p_tile, lane);
    if (!__any_sync(kAllLanes, rescale)) return;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int i = 0; i < kDimTiles * 16; ++i)
            output[m][i / 16][i / 8 % 2][i % 8] *= correction[m][lane_row_of(i % 8)];
}

// Writes the log-sum-exp of the first `rows` of the warp's rows to `lse`; `inverse` normalises a row, times
// `keep_scale`.
__device__ __forceinline__ void finish(float (&inverse)[kRowTiles][kLaneRows], const Softmax& state, float* lse,
                                       int rows, int lane, float keep_scale = 1.0f) {
    const bool first_in_row = warp_column(lane, 0) == 0;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int r = 0; r < kLaneRows; ++r) {
            const int row = m * 16 + warp_row(lane, r);
            const float sum = row_total(state.sum[m][r]) * two_to(kOffset);
            inverse[m][r] = sum == 0.0f ? 0.0f : reciprocal_fast(sum) * (two_to(-kLift) * keep_scale);
            if (first_in_row && row < rows) lse[row] = (state.base[m][r] - kOffset + log2_fast(sum)) * kLn2;
        }
}
