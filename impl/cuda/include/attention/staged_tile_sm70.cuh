// Rows on their way from global through registers to shared memory, Volta's way to overlap a copy with work, and how
// they lie there: rows of PADDED_DIM elements, cut into 16-byte chunks; chunk c of row r lies at c ^ (r % 8).
#pragma once
#include "tensors.cuh"

#ifndef THREADS
#    define THREADS 128
#endif
constexpr int kThreads = THREADS;
constexpr int kChunk = 8;
constexpr int kChunks = PADDED_DIM / kChunk;

// Rows of one head.
struct Rows {
    const Element* first;
    long long stride;
    int count;
};

__device__ __forceinline__ Rows rows_of(const Element* tensor, long long batch, long long batch_stride, long long head,
                                        long long head_stride, long long row_stride, int count) {
    return {tensor + batch * batch_stride + head * head_stride, row_stride, count};
}

__device__ __forceinline__ uint4* chunk_at(uint4* tile, int row, int chunk) {
    return tile + row * kChunks + (chunk ^ (row & 7));
}

// Eight elements from `source` on; those past `columns` are zero.
__device__ __forceinline__ uint4 load_chunk(const Element* source, int columns) {
#if ALIGNED
    return columns > 0 ? *reinterpret_cast<const uint4*>(source) : make_uint4(0, 0, 0, 0);
#else
    unsigned words[4] = {0, 0, 0, 0};
#    pragma unroll
    for (int i = 0; i < kChunk; ++i)
        if (i < columns) words[i / 2] |= static_cast<unsigned>(source[i]) << (i % 2 * 16);
    return make_uint4(words[0], words[1], words[2], words[3]);
#endif
}

// This thread's share of BLOCK_N rows.
class StagedTile {
public:
    // Begins to load the rows from `row` on; those past the last, and columns past `head_dim`, are zero.
    __device__ __forceinline__ void fetch(const Rows& rows, int row, int head_dim) {
        const int column = threadIdx.x % kChunks * kChunk;
        row += threadIdx.x / kChunks;
        source_ = rows.first + row * rows.stride + column;
        step_ = kRowStep * rows.stride;
        rows_left_ = rows.count - row;
        columns_ = head_dim - column;
        if (ALIGNED) load();
    }

    __device__ __forceinline__ void store(uint4* tile) {
        // Sixteen-bit loads in flight would take four times the registers.
        if (!ALIGNED) load();
#pragma unroll
        for (int i = 0; i < kShare; ++i)
            *chunk_at(tile, threadIdx.x / kChunks + i * kRowStep, threadIdx.x % kChunks) = chunks_[i];
    }

private:
    static constexpr int kRowStep = kThreads / kChunks;
    static constexpr int kShare = BLOCK_N / kRowStep;

    __device__ __forceinline__ void load() {
#pragma unroll
        for (int i = 0; i < kShare; ++i)
            chunks_[i] = load_chunk(source_ + i * step_, i * kRowStep < rows_left_ ? columns_ : 0);
    }

    uint4 chunks_[kShare];
    const Element* source_;
    long long step_;
    int rows_left_, columns_;
};
