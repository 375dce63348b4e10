// What a warp of a forward kernel of sm_80 does with its 32 query rows and BLOCK_N keys at a time: online softmax,
// p v, and the way of its output to global memory.
//
// Lane l holds rows l / 4 and 8 below of each of the two tiles of 16 rows. P stays in registers: the accumulator layout
// of two 8-key tiles is the A-operand layout of one 16-key step.
#pragma once
#include "log_sum_exp.cuh"
#include "math.cuh"
#include "row_reductions.cuh"
#include "tiles_sm80.cuh"

constexpr int kWarpRows = 32;
constexpr int kRowTiles = kWarpRows / 16;
constexpr int kKeyTiles = BLOCK_N / 8;
constexpr int kDimTiles = PADDED_DIM / 8;
constexpr float kLog2e = 1.4426950408889634f;

typedef float Scores[kRowTiles][kKeyTiles][4];
typedef float Output[kRowTiles][kDimTiles][4];
typedef float RowValues[kRowTiles][2];  // of this lane's rows; of a sum each of a row's four lanes holds a part

// Turns scores into p against the new maximum, to which what was summed before is scaled.
__device__ __forceinline__ void online_softmax(Scores& scores, RowValues& row_max, RowValues& row_sum,
                                               Output& accumulator, float scale_log2) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float maximum = row_max[m][half];
#pragma unroll
            for (int n = 0; n < kKeyTiles; ++n)
                maximum = fmaxf(maximum, fmaxf(scores[m][n][half * 2], scores[m][n][half * 2 + 1]));
            maximum = row_maximum(maximum);
            // A row that has seen no key yet has maximum -inf; any finite base gives it p = 0.
            const float base = maximum == -infinity() ? 0.0f : __fmul_rn(maximum, scale_log2);
            // The old base, rounded as it was then: with an fma, an unchanged maximum would not give exactly 1.
            const float correction = exp2_fast(__fmul_rn(row_max[m][half], scale_log2) - base);
            row_max[m][half] = maximum;
            float sum = row_sum[m][half] * correction;
#pragma unroll
            for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
                for (int i = half * 2; i < half * 2 + 2; ++i) {
                    scores[m][n][i] = exp2_fast(fmaf(scores[m][n][i], scale_log2, -base));
                    sum += scores[m][n][i];
                }
            row_sum[m][half] = sum;
#pragma unroll
            for (int d = 0; d < kDimTiles; ++d) {
                accumulator[m][d][half * 2] *= correction;
                accumulator[m][d][half * 2 + 1] *= correction;
            }
        }
}

// accumulator += p v; `v_offset` is the lane's rows_first_offset.
__device__ __forceinline__ void multiply_values(Output& accumulator, const Scores& p, const Element* v_tile,
                                                int v_offset) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
        unsigned a[kRowTiles][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float (&pair)[4] = p[m][n + i / 2];
                a[m][i] = pack(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
            }
#pragma unroll
        for (int d = 0; d < kDimTiles; d += 2) {
            unsigned b[4];
            load_matrix_x4_transposed(b, v_tile + n * 8 * PADDED_DIM + at_chunk(v_offset, d));
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m) {
                multiply(accumulator[m][d], a[m], b[0], b[1]);
                multiply(accumulator[m][d + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Divides by the sums and writes the warp's rows below `row_count`: their log-sum-exp to lse[row], and the output,
// which goes through `warp_tile`, shared memory for 32 rows, to leave in whole chunks, to out + row * out_row_stride.
// Rows count from the tile's start, `warp_row` is the warp's first. The output is multiplied by `factor`.
__device__ __forceinline__ void write_output(const Output& accumulator, const RowValues& row_max,
                                             const RowValues& row_sum, Element* warp_tile, Element* out,
                                             long long out_row_stride, float* lse, int warp_row, int row_count,
                                             int head_dim, float softmax_scale, int lane, float factor = 1.0f) {
    const float scale_log2 = softmax_scale * kLog2e;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = m * 16 + half * 8 + lane / 4;
            const float sum = row_total(row_sum[m][half]);
            const float inverse = sum == 0.0f ? 0.0f : reciprocal_fast(sum) * factor;
            if (lane % 4 == 0 && warp_row + row < row_count)
                lse[warp_row + row] = log_sum_exp(row_max[m][half], sum, softmax_scale, scale_log2);
#pragma unroll
            for (int d = 0; d < kDimTiles; ++d)
                *reinterpret_cast<unsigned*>(chunk_at(warp_tile, row, d) + lane % 4 * 2) =
                    pack(accumulator[m][d][half * 2] * inverse, accumulator[m][d][half * 2 + 1] * inverse);
        }
    __syncwarp();
    store_rows(warp_tile, out, out_row_stride, warp_row, row_count, head_dim, lane);
}
