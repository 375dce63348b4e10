// The online softmax on the accumulators of wgmma, in registers.
#pragma once
#include "math.cuh"
#include "row_reductions.cuh"
#include "tensors.cuh"

constexpr int kScores = BLOCK_N / 2, kOutputs = PADDED_DIM / 2;  // accumulators of a thread
constexpr int kSteps = BLOCK_N / 16;

// A thread has two rows: accumulator i belongs to the lower one when i / 2 is odd.
struct RowState {
    float maximum[2], sum[2];
};

// Scores at and past the first key that their row does not see become -inf. `row` is the thread's upper row, `key`
// the tile's first key.
__device__ __forceinline__ void mask_scores(float (&scores)[kScores], int row, int key, int seqlen_k,
                                            int causal_offset) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int visible = visible_keys(row + 8 * half, seqlen_k, causal_offset) - key - threadIdx.x % 4 * 2;
#pragma unroll
        for (int tile = 0; tile < BLOCK_N / 8; ++tile)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (tile * 8 + i >= visible) scores[4 * tile + 2 * half + i] = -infinity();
    }
}

// Turns scores into p against the new maximum; what was summed before is to be scaled by `correction`.
__device__ __forceinline__ void online_softmax(float (&scores)[kScores], RowState& state, float (&correction)[2],
                                               float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float maximum = state.maximum[half];
#pragma unroll
        for (int tile = 0; tile < BLOCK_N / 8; ++tile)
            maximum = fmaxf(maximum, fmaxf(scores[4 * tile + 2 * half], scores[4 * tile + 2 * half + 1]));
        maximum = row_maximum(maximum);
        // A row that has seen no key yet has maximum -inf; any finite base gives it p = 0.
        const float base = maximum == -infinity() ? 0.0f : __fmul_rn(maximum, scale_log2);
        // The old base, rounded as it was then: with an fma, an unchanged maximum would not give exactly 1.
        correction[half] = exp2_fast(__fmul_rn(state.maximum[half], scale_log2) - base);
        state.maximum[half] = maximum;
        float sum = state.sum[half] * correction[half];
#pragma unroll
        for (int tile = 0; tile < BLOCK_N / 8; ++tile)
#pragma unroll
            for (int i = 4 * tile + 2 * half; i < 4 * tile + 2 * half + 2; ++i) {
                scores[i] = exp2_fast(fmaf(scores[i], scale_log2, -base));
                sum += scores[i];
            }
        state.sum[half] = sum;
    }
}

__device__ __forceinline__ void scale_output(float (&output)[kOutputs], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) output[i] *= factor[i / 2 % 2];
}
