// Copies of tiles of a tensor to shared memory by the copy engine (cp.async.bulk.tensor, sm_90).
#pragma once

// A tensor and its tile shape, encoded on the host (impl/cuda/tensor_map.py); a kernel's parameter is
// `const __grid_constant__ TensorMap`.
struct __align__(64) TensorMap {
    unsigned long long words[16];
};

__device__ __forceinline__ void tma_prefetch_map(const TensorMap* map) {
#ifndef VOLTABENCH_EMULATED
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

// One thread starts the copy of the tile whose first element is (column, row, head, batch); `barrier` gets its bytes.
// Elements outside the tensor become zero. Of a tile with rows of 128 bytes, `shared` is a multiple of 1024, and
// 16-byte chunk c of the row at a multiple r of 128 bytes lies at c ^ (r % 8). Rows may also be 64, 32 or 16 bytes:
// bits 4 and 5, bit 4, or no bit of an address are flipped by the bits three above them; `shared` is a multiple of
// eight rows.
__device__ __forceinline__ void tma_load(void* shared, const TensorMap* map, unsigned long long* barrier, int column,
                                         int row, int head, int batch) {
#ifdef VOLTABENCH_EMULATED
    emulated::tma_load(shared, map, barrier, column, row, head, batch);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned barrier_address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
        "%5}], "
        "[%6];" ::"r"(address),
        "l"(map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier_address)
        : "memory");
#endif
}

// Orders this thread's plain accesses to shared memory before later ones of the copy engine and of wgmma.
__device__ __forceinline__ void fence_async_proxy() {
#ifndef VOLTABENCH_EMULATED
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
