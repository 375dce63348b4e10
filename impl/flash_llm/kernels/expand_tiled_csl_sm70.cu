// The dense matrix [m, k], fp16, of one in Tiled-CSL (../formats/tiled_csl.py), where a dense product is the faster
// one. A block of 128 threads expands one tile of 128 x 64 in shared memory (16 KiB), as the product does, and writes
// its rows by 16 bytes, eight threads to a row. Bound by the bytes that are written. Any architecture.
namespace {

constexpr int TILE_ROWS = 128;
constexpr int TILE_COLS = 64;
constexpr int CHUNK = 8;  // halves of 16 bytes, which the swizzle of the places permutes
constexpr int ROW_CHUNKS = TILE_COLS / CHUNK;

}  // namespace

extern "C" __global__ void __launch_bounds__(128) expand_tiled_csl(const uint4* __restrict__ entries,
                                                                   const int* __restrict__ offsets,
                                                                   unsigned short* __restrict__ dense, int m, int k) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    uint4* const chunks = reinterpret_cast<uint4*>(shared_memory);
    const int tiles_k = (k + TILE_COLS - 1) / TILE_COLS;
    const int m_begin = blockIdx.x / tiles_k * TILE_ROWS;
    const int k_begin = blockIdx.x % tiles_k * TILE_COLS;

    for (int i = threadIdx.x; i < TILE_ROWS * ROW_CHUNKS; i += blockDim.x) chunks[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    for (int i = offsets[blockIdx.x] + threadIdx.x; i < offsets[blockIdx.x + 1]; i += blockDim.x) {
        const uint4 vector = entries[i];
        const unsigned words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            *reinterpret_cast<unsigned short*>(shared_memory + (words[j] >> 16)) =
                static_cast<unsigned short>(words[j]);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE_ROWS * ROW_CHUNKS; i += blockDim.x) {
        const int row = i / ROW_CHUNKS;
        const int column = k_begin + i % ROW_CHUNKS * CHUNK;
        if (m_begin + row >= m || column >= k) continue;
        const uint4 chunk = chunks[row * ROW_CHUNKS + (i % ROW_CHUNKS ^ row % CHUNK)];
        unsigned short* const to = dense + static_cast<long long>(m_begin + row) * k + column;
        if (k % CHUNK == 0) {
            *reinterpret_cast<uint4*>(to) = chunk;
        } else {
            const unsigned words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
            for (int j = 0; j < CHUNK; ++j) {
                if (column + j < k) to[j] = static_cast<unsigned short>(words[j / 2] >> 16 * (j % 2));
            }
        }
    }
}
