// Writing an expanded tile to the dense matrix [m, k].
#pragma once

namespace {

constexpr int ROW_CHUNK = 8;  // halves of 16 bytes

// Eight halves to `row` and `column` of the matrix, as far as they lie in it. `column` is a multiple of 8.
__device__ __forceinline__ void write_chunk(unsigned short* dense, const uint4& chunk, int row, int column, int m,
                                            int k) {
    if (row >= m || column >= k) return;
    unsigned short* const to = dense + static_cast<long long>(row) * k + column;
    if (k % ROW_CHUNK == 0) {
        *reinterpret_cast<uint4*>(to) = chunk;
        return;
    }
    const unsigned words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < ROW_CHUNK; ++i) {
        if (column + i < k) to[i] = static_cast<unsigned short>(words[i / 2] >> 16 * (i % 2));
    }
}

}  // namespace
