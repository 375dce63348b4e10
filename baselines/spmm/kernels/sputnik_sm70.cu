// Y[m, n] = W[m, k] X[k, n], or Y += W X, with W in CSR, fp16 in and out, fp32 sums: the published design of Sputnik
// (Gale, Zaharia, Young, Elsen: Sparse GPU Kernels for Deep Learning, SC 2020), written anew. Any architecture.
//
//  * One-dimensional tiles: a subwarp of LANES lanes owns one row of W and TILE_N columns of Y, VECTOR for each lane.
//  * Row swizzle: rows go by `order`, the longest first, so that the rows of a warp are about equally long.
//  * Reverse-offset alignment: a row is read from the multiple of 4 below its first element on, by 8-byte loads, and
//    the elements of the row before it are masked.
//  * A strip of 32 values and 16-bit columns of the row is staged in shared memory; then each lane gathers its columns
//    of X, four rows of X at a time.
// Macros: TILE_N, VECTOR (1, 2, 4, 8), which divides n; ACCUMULATE: whether to add to Y.
#include <cuda_fp16.h>

namespace {

constexpr int THREADS = 128;
constexpr int LANES = TILE_N / VECTOR;
constexpr int ROWS = THREADS / LANES;
constexpr int STRIP = 32;
constexpr int AHEAD = 4;  // rows of X in flight
constexpr int FOUR = 4;   // elements of an 8-byte load
constexpr short NONE = -1;

struct __align__(VECTOR * 2) Columns {
    __half values[VECTOR];
};

__device__ __forceinline__ short half_of(const uint2& four, int i) {
    return static_cast<short>((i < 2 ? four.x : four.y) >> 16 * (i % 2));
}

}  // namespace

// values, columns: of all rows, with FOUR more elements at the end; offsets [m + 1]; order [m]; x [k, n], y [m, n].
extern "C" __global__ void __launch_bounds__(THREADS, 6) sputnik_spmm(
    const __half* __restrict__ values, const short* __restrict__ columns, const int* __restrict__ offsets,
    const int* __restrict__ order, const __half* __restrict__ x, __half* y, int m, int n) {
    __shared__ short staged_values[ROWS][STRIP];
    __shared__ short staged_columns[ROWS][STRIP];
    const int lane = threadIdx.x % LANES;
    const int subwarp = threadIdx.x / LANES;
    const int place = blockIdx.x * ROWS + subwarp;
    const int column = blockIdx.y * TILE_N + lane * VECTOR;
    const int row = place < m ? order[place] : -1;
    const int begin = row < 0 ? 0 : offsets[row];
    const int end = row < 0 ? 0 : offsets[row + 1];

    int longest = end - begin / FOUR * FOUR;  // of the warp's rows, so that its lanes stay together
    for (int other = 16; other > 0; other /= 2) longest = max(longest, __shfl_xor_sync(0xffffffffu, longest, other));

    float sum[VECTOR] = {};
    for (int first = begin / FOUR * FOUR, done = 0; done < longest; first += STRIP, done += STRIP) {
        __syncwarp();
        for (int i = lane * FOUR; i < STRIP; i += LANES * FOUR) {
            uint2 four_values = make_uint2(0, 0), four_columns = make_uint2(0, 0);
            if (first + i < end) {
                four_values = *reinterpret_cast<const uint2*>(values + first + i);
                four_columns = *reinterpret_cast<const uint2*>(columns + first + i);
            }
            for (int j = 0; j < FOUR; ++j) {
                const bool own = first + i + j >= begin && first + i + j < end;
                staged_values[subwarp][i + j] = half_of(four_values, j);
                staged_columns[subwarp][i + j] = own ? half_of(four_columns, j) : NONE;
            }
        }
        __syncwarp();
        if (column >= n) continue;
#pragma unroll 1
        for (int i = 0; i < STRIP; i += AHEAD) {
            Columns gathered[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; ++j) {
                const int k = staged_columns[subwarp][i + j];
                if (k != NONE)
                    gathered[j] = *reinterpret_cast<const Columns*>(x + static_cast<long long>(k) * n + column);
            }
#pragma unroll
            for (int j = 0; j < AHEAD; ++j) {
                if (staged_columns[subwarp][i + j] == NONE) continue;
                const float value = __half2float(__short_as_half(staged_values[subwarp][i + j]));
#pragma unroll
                for (int v = 0; v < VECTOR; ++v) sum[v] += value * __half2float(gathered[j].values[v]);
            }
        }
    }
    if (row < 0 || column >= n) return;
    Columns* const out = reinterpret_cast<Columns*>(y + static_cast<long long>(row) * n + column);
    Columns result;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
        result.values[v] = __float2half_rn(ACCUMULATE ? sum[v] + __half2float(out->values[v]) : sum[v]);
    }
    *out = result;
}
