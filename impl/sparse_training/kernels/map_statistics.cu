// What the test of transition needs of averaged attention maps, in one pass over them and over the maps before: for
// each 16 rows of each layer the sums of d, d^2 and d^3, d being an element less its expected mean 1 / seqlen, and the
// sum of squared differences to the map before, which the new one then replaces. In double, always in one order.
//
// Floor. An element is read twice and written once, 12 bytes: 50 us for 4 maps of 2048 x 2048 at 4 TB/s. A thread has
// the reads of kAtOnce rows in flight, which the writes between them would else hold up, one row after the other.
constexpr int kThreads = 256;
constexpr int kRows = 16;
constexpr int kAtOnce = 8;
constexpr int kSums = 4;

// maps, before: float [layers, seqlen, seqlen]; sums: double [layers, ceil(seqlen / kRows), kSums]. The grid is (groups
// of rows, layers).
extern "C" __global__ void __launch_bounds__(kThreads, 4) map_statistics(const float* __restrict__ maps,
                                                                         float* __restrict__ before,
                                                                         double* __restrict__ sums, int seqlen) {
    __shared__ double partial[kSums][kThreads / 32];
    const int first = blockIdx.x * kRows, rows = min(kRows, seqlen - first);
    const long long start = (static_cast<long long>(blockIdx.y) * seqlen + first) * seqlen;
    const double mean = 1.0 / seqlen;
    double of_thread[kSums] = {};
    for (int column = threadIdx.x; column < seqlen; column += kThreads)
#pragma unroll 1
        for (int row = 0; row < rows; row += kAtOnce) {
            const long long at = start + static_cast<long long>(row) * seqlen + column;
            float value[kAtOnce], old[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (row + i >= rows) continue;
                value[i] = maps[at + static_cast<long long>(i) * seqlen];
                old[i] = before[at + static_cast<long long>(i) * seqlen];
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (row + i >= rows) continue;
                const double d = value[i] - mean, change = static_cast<double>(value[i]) - old[i];
                before[at + static_cast<long long>(i) * seqlen] = value[i];
                of_thread[0] += d;
                of_thread[1] += d * d;
                of_thread[2] += d * d * d;
                of_thread[3] += change * change;
            }
        }
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
        for (int offset = 16; offset > 0; offset /= 2)
            of_thread[i] += __shfl_xor_sync(0xffffffffu, of_thread[i], offset);
        if (threadIdx.x % 32 == 0) partial[i][threadIdx.x / 32] = of_thread[i];
    }
    __syncthreads();
    if (threadIdx.x < kSums) {
        double total = 0;
        for (int warp = 0; warp < kThreads / 32; ++warp) total += partial[threadIdx.x][warp];
        sums[(static_cast<long long>(blockIdx.y) * gridDim.x + blockIdx.x) * kSums + threadIdx.x] = total;
    }
}
