// What a warp of a backward kernel of sm_80 does with keys as rows: p^T and ds^T from s^T and dp^T, and
// the sums over queries that make dk and dv. p^T and ds^T leave the accumulators as A operands.
//
// M tiles of 16 keys, N tiles of 8 queries, STEPS of 16 queries; D tiles of 8 dims.
#pragma once
#include "math.cuh"
#include "tiles_sm80.cuh"

constexpr float kLog2e = 1.4426950408889634f;

// p = exp(s - lse) and ds = p (dp - delta), packed; `statistics` are lse and delta of the queries, two to an element.
// With dropout, p and dp are multiplied by keep_scale, p later, where `kept` has the bit 4 N m + 4 n + i of s[m][n][i],
// else by 0.
template <int M, int N>
__device__ __forceinline__ void recompute(unsigned (&p)[M][N / 2][4], unsigned (&ds)[M][N / 2][4], float (&s)[M][N][4],
                                          float (&dp)[M][N][4], const float4* statistics, float softmax_scale, int lane,
                                          unsigned kept = 0xffffffffu, float keep_scale = 1.0f) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const float4 pair = statistics[n * 4 + lane % 4];
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float lse = i % 2 ? pair.z : pair.x, delta = i % 2 ? pair.w : pair.y;
                // Rounded as the forward's lse was: with one key that counts, p is exactly 1 at any size.
                s[m][n][i] = exp2_fast((__fmul_rn(s[m][n][i], softmax_scale) - lse) * kLog2e);
                const bool is_kept = kept >> ((m * N + n) * 4 + i) % 32 & 1;
                dp[m][n][i] = s[m][n][i] * ((is_kept ? dp[m][n][i] * keep_scale : 0.0f) - delta);
                if (!is_kept) s[m][n][i] = 0.0f;
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                p[m][n / 2][n % 2 * 2 + i] = pack(s[m][n][i * 2], s[m][n][i * 2 + 1]);
                ds[m][n / 2][n % 2 * 2 + i] = pack(dp[m][n][i * 2], dp[m][n][i * 2 + 1]);
            }
        }
    }
}

// gradient += a rows; `rows` are the queries' tile, `offset` the lane's rows_first_offset, of dims from `first_chunk`
// on.
template <int M, int STEPS, int D>
__device__ __forceinline__ void accumulate(float (&gradient)[M][D][4], const unsigned (&a)[M][STEPS][4],
                                           const Element* rows, int offset, int first_chunk) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int d = 0; d < D; d += 2) {
            unsigned b[4];
            load_matrix_x4_transposed(b, rows + step * 16 * PADDED_DIM + at_chunk(offset, first_chunk + d));
#pragma unroll
            for (int m = 0; m < M; ++m) {
                multiply(gradient[m][d], a[m][step], b[0], b[1]);
                multiply(gradient[m][d + 1], a[m][step], b[2], b[3]);
            }
        }
}

// To and from a tile of keys by ROWS queries, from query 8 * first_chunk on; `keys` is the warp's first row of it.
template <int ROWS, int M, int STEPS>
__device__ __forceinline__ void store_fragments(Element* keys, const unsigned (&a)[M][STEPS][4], int first_chunk,
                                                int lane) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = m * 16 + i % 2 * 8 + lane / 4, chunk = first_chunk + step * 2 + i / 2;
                *reinterpret_cast<unsigned*>(chunk_at<ROWS>(keys, row, chunk) + lane % 4 * 2) = a[m][step][i];
            }
}

template <int ROWS, int M, int STEPS>
__device__ __forceinline__ void load_fragments(unsigned (&a)[M][STEPS][4], const Element* keys, int first_chunk,
                                               int lane) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
            load_matrix_x4(a[m][step],
                           keys + m * 16 * ROWS + at_chunk(rows_first_offset<ROWS>(lane), first_chunk + step * 2));
}

// The two pairs that a lane holds of an accumulator, 8 rows apart, to contiguous rows of head_dim elements.
__device__ __forceinline__ void store_pairs(Element* rows, const float (&value)[4], float scale, int row, int column,
                                            int row_count, int head_dim) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (row + half * 8 >= row_count) continue;
        const unsigned packed = pack(value[half * 2] * scale, value[half * 2 + 1] * scale);
        Element* to = rows + static_cast<long long>(row + half * 8) * head_dim + column;
#if ALIGNED
        if (column < head_dim) *reinterpret_cast<unsigned*>(to) = packed;
#else
        if (column < head_dim) to[0] = packed & 0xffff;
        if (column + 1 < head_dim) to[1] = packed >> 16;
#endif
    }
}
