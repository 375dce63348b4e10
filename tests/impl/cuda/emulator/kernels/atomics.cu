// Sums over all threads of the grid, in shared and global memory; and the order in which threads came.
extern "C" __global__ void __launch_bounds__(96) add_up(const int* values, int* sums, float* float_sum, int* arrivals,
                                                        int* order) {
    __shared__ int block_sum;
    if (threadIdx.x == 0) block_sum = 0;
    __syncthreads();
    const int thread = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&block_sum, values[thread]);
    order[atomicAdd(arrivals, 1)] = thread;
    __syncthreads();
    if (threadIdx.x != 0) return;
    atomicAdd(&sums[0], block_sum);
    atomicMax(&sums[1], block_sum);
    atomicMin(&sums[2], block_sum);
    atomicAdd(float_sum, static_cast<float>(block_sum));
}
