// After backward_sm90a.cu: dq from its fp32 sums, which lie as the accumulators of wgmma do.
//
// A block takes one tile of queries. Memory binds: 4 bytes in and 2 out for each element.
#include "arguments.cuh"

constexpr int kThreads = 256, kGroup = 128;
constexpr int kBlockRows = BLOCK_ROWS;
constexpr int kChunks = kBlockRows * PADDED_DIM / kThreads / 4;

extern "C" __global__ void __launch_bounds__(kThreads) spark_attention_backward_convert_sm90a(
    const float4* __restrict__ partial_dq, Element* __restrict__ dq, int seqlen_q, int seqlen_k, int head_dim,
    int causal_offset, float softmax_scale) {
    const int tiles = (seqlen_q + kBlockRows - 1) / kBlockRows;
    const long long batch_head = blockIdx.x / tiles;
    const int first_row = blockIdx.x % tiles * kBlockRows;
    // Where no row sees a key, nothing was summed, and backward_prepare_sm80.cu wrote zeros.
    if (visible_keys(min(first_row + kBlockRows, seqlen_q) - 1, seqlen_k, causal_offset) == 0) return;
    const int consumer = threadIdx.x / kGroup, warp = threadIdx.x % kGroup / 32, lane = threadIdx.x % 32;
    const int row = first_row + (PADDED_DIM == 64 ? consumer * 64 : 0) + warp * 16 + lane / 4;
    const int column = (PADDED_DIM == 64 ? 0 : consumer * 64) + lane % 4 * 2;
    const float4* chunks = partial_dq + static_cast<long long>(blockIdx.x) * kChunks * kThreads +
                           consumer * kChunks * kGroup + threadIdx.x % kGroup;
    dq += (batch_head * seqlen_q + row) * head_dim + column;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
        const float4 sums = chunks[i * kGroup];
        if (column + i * 8 >= head_dim) continue;
        if (row < seqlen_q)
            *reinterpret_cast<unsigned*>(dq + i * 8) = pack(sums.x * softmax_scale, sums.y * softmax_scale);
        if (row + 8 < seqlen_q)
            *reinterpret_cast<unsigned*>(dq + 8 * head_dim + i * 8) =
                pack(sums.z * softmax_scale, sums.w * softmax_scale);
    }
}
