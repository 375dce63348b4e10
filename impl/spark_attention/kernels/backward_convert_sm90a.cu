// After backward_sm90a.cu: dq from its fp32 sums, which lie as the accumulators of wgmma do.
//
// A block takes one tile of queries, a warp 16 rows of 64 columns, which leave through shared memory in whole rows.
// Global memory binds: 4 bytes in and 2 out for each element.
#include "attention/tiles_sm90a.cuh"

constexpr int kThreads = 256;
constexpr int kBlockRows = BLOCK_ROWS;
constexpr int kColumns = 64;
constexpr int kSums = kColumns / 2;  // of a thread

extern "C" __global__ void __launch_bounds__(kThreads) spark_attention_backward_convert_sm90a(
    const float4* __restrict__ partial_dq, Element* __restrict__ dq, int seqlen_q, int seqlen_k, int head_dim,
    int causal_offset, float softmax_scale) {
    const int tiles = (seqlen_q + kBlockRows - 1) / kBlockRows;
    const long long batch_head = blockIdx.x / tiles;
    const int first_row = blockIdx.x % tiles * kBlockRows;
    // Where no row sees a key, nothing was summed, and backward_prepare_sm80.cu wrote zeros.
    if (visible_keys(min(first_row + kBlockRows, seqlen_q) - 1, seqlen_k, causal_offset) == 0) return;
    const int consumer = threadIdx.x / kGroup, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    partial_dq += static_cast<long long>(blockIdx.x) * (kSums / 4 * kThreads) + consumer * (kSums / 4 * kGroup) +
                  threadIdx.x % kGroup;
    float sums[kSums];
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
        const float4 chunk = partial_dq[i * kGroup];
        sums[4 * i] = chunk.x;
        sums[4 * i + 1] = chunk.y;
        sums[4 * i + 2] = chunk.z;
        sums[4 * i + 3] = chunk.w;
    }
    __shared__ __align__(128) unsigned char tile[kThreads / 32 * 16 * kRowBytes];
    const int row = first_row + warp % (kBlockRows / 16) * 16, column = kPanels == 1 ? 0 : consumer * kColumns;
    const float scale[2] = {softmax_scale, softmax_scale};
    store_rows<kColumns>(dq + (batch_head * seqlen_q + row) * head_dim + column, head_dim, sums, scale, tile, 0,
                         warp * 16, seqlen_q - row, head_dim - column, lane);
}
