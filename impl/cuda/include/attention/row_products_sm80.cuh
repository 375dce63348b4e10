// delta = rowsum(dout * out), as the diagonal of out dout^T.
#pragma once
#include "tiles_sm80.cuh"

// Two adjacent elements of a row, 0 past `columns`.
__device__ __forceinline__ unsigned load_pair(const Element* row, int column, int columns) {
#if ALIGNED
    return column < columns ? *reinterpret_cast<const unsigned*>(row + column) : 0;
#else
    const unsigned low = column < columns ? row[column] : 0, high = column + 1 < columns ? row[column + 1] : 0;
    return low | high << 16;
#endif
}

// delta of rows lane / 4 and 8 below of the 16 that start at `out` and `dout`, in those lanes for which
// lane / 8 == lane % 4; 0 past `rows_left`. The same instructions in the same order over head_dim give the backward's
// dout v^T: for a row with one key, where out = v, their difference is exactly 0. Fragments come straight from global
// memory.
__device__ __forceinline__ void row_products(float (&delta)[2], const Element* out, long long out_row_stride,
                                             const Element* dout, long long dout_row_stride, int rows_left,
                                             int head_dim, int lane) {
    const Element *out_rows[2], *dout_rows[2];
    int columns[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = half * 8 + lane / 4;
        columns[half] = row < rows_left ? head_dim : 0;
        out_rows[half] = out + row * out_row_stride;
        dout_rows[half] = dout + row * dout_row_stride;
    }
    float products[2][4] = {};  // rows 0..15 of out with rows 0..7 and with rows 8..15 of dout
#pragma unroll 4
    for (int step = 0; step < PADDED_DIM; step += 16) {
        unsigned a[4], b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int column = step + i / 2 * 8 + lane % 4 * 2;
            a[i] = load_pair(out_rows[i % 2], column, columns[i % 2]);
            b[i] = load_pair(dout_rows[i % 2], column, columns[i % 2]);
        }
        multiply(products[0], a, b[0], b[2]);
        multiply(products[1], a, b[1], b[3]);
    }
    // The diagonals lie in the lanes whose row, lane / 4, is one of their two columns.
#pragma unroll
    for (int half = 0; half < 2; ++half) delta[half] = products[half][half * 2 + lane / 4 % 2];
}
