// What each lane of a warp receives from shuffles and votes.
extern "C" __global__ void __launch_bounds__(64) exchange(const int* values, int* results) {
    const int thread = threadIdx.x, lane = thread % 32;
    const unsigned all = 0xffffffffu;
    const int value = values[thread];
    int* result = results + thread * 12;
    result[0] = __shfl_sync(all, value, lane * 5 + 3);
    result[1] = __shfl_sync(all, value, lane * 5 + 3, 8);
    result[2] = __shfl_up_sync(all, value, 3);
    result[3] = __shfl_up_sync(all, value, 3, 16);
    result[4] = __shfl_down_sync(all, value, 5);
    result[5] = __shfl_down_sync(all, value, 5, 8);
    result[6] = __shfl_xor_sync(all, value, 9);
    result[7] = __ballot_sync(all, value > 0);
    result[8] = __any_sync(all, value > 900);
    result[9] = __all_sync(all, value > -900);
    const long long wide = value * 0x100000001ll;
    result[10] = static_cast<int>(__shfl_xor_sync(all, wide, 1) >> 32);
    if (lane < 8)
        result[11] = __shfl_xor_sync(0xffu, value, 4);
    else
        result[11] = __shfl_sync(~0xffu, value, 31);
}
