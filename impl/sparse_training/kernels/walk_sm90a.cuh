// What the Hopper kernels share. A block of threads stays on its SM. Each of its CONSUMERS warpgroups has 64 rows of a
// block of the pattern and walks over the other side's kept blocks in tiles of BLOCK_N = 64 rows. For it one thread of
// a warp of its own, in the last warpgroup, takes the rows by ticket, looks up their lists and asks the copy engine for
// their tiles, as far ahead as a ring has room, through to the next rows. The warpgroup itself must not load: its four
// warps start each product together, so that a thread that looks things up holds all of them up.
#pragma once
#include "attention/softmax_sm90a.cuh"
#include "attention/tiles_sm90a.cuh"
#include "barrier.cuh"
#include "mbarrier.cuh"
#include "tma.cuh"

constexpr int kThreads = (CONSUMERS + 1) * kGroup;
constexpr int kTileRows = BLOCK_N;
constexpr int kPanelBytes = kTileRows * kRowBytes, kTileBytes = kPanels * kPanelBytes;
// A consumer's shared memory: tiles, which lie at multiples of 1024, and what else it needs.
constexpr int kConsumerBytes = CONSUMER_BYTES;
constexpr float kLog2e = 1.4426950408889634f;

// What a thread is for: to compute for a consumer, or, where `loads`, to load for it, if there are so many consumers.
struct Role {
    int consumer, block_warp, lane;
    bool loads;
};

__device__ __forceinline__ Role role_of_thread() {
    // Equal over a warp, which the compiler cannot see from threadIdx.
    const int block_warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const bool loads = block_warp >= CONSUMERS * 4;
    return {loads ? block_warp - CONSUMERS * 4 : block_warp / 4, block_warp, lane, loads};
}

// What a consumer's shared memory has past its tiles.
template <class Barriers>
__device__ __forceinline__ Barriers& past_tiles(unsigned char* shared_memory, int consumer, int tiles_bytes) {
    return *reinterpret_cast<Barriers*>(shared_memory + consumer * kConsumerBytes + tiles_bytes);
}

// Full by an arrival of the thread that loads, empty by one of each warp.
__device__ __forceinline__ void init_ring(unsigned long long* full, unsigned long long* empty, int places) {
    for (int place = 0; place < places; ++place) {
        mbarrier_init(&full[place], 1);
        mbarrier_init(&empty[place], 4);
    }
}

// A place in a ring of tiles, and the parity of the phase in which its present tile is full.
template <int PLACES>
struct Place {
    unsigned stage = 0, parity = 0;

    __device__ __forceinline__ void advance() {
        const bool wraps = stage == PLACES - 1;
        stage = wraps ? 0 : stage + 1;
        parity ^= wraps;
    }
};

// By the thread that loads: `load_work` gets the number of each work that this thread takes, of `works` in all.
// `tickets` is zero before the launch and after it.
template <class LoadWork>
__device__ __forceinline__ void take_works(int consumer, int works, int* tickets, const LoadWork& load_work) {
    int index = consumer * gridDim.x + blockIdx.x;
    while (index < works) {
        load_work(index);
        const int ticket = atomicAdd(tickets, 1);
        index = gridDim.x * CONSUMERS + ticket;
        // Each takes one that is too high; so this is the last of all, and the counter is ready again.
        if (ticket == works - 1) *tickets = 0;
    }
}

// One thread asks for the tile that starts at `row`.
__device__ __forceinline__ void load_rows(unsigned char* tile, const TensorMap* map, unsigned long long* full, int row,
                                          int head, int batch) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
        tma_load(tile + panel * kPanelBytes, map, full, panel * 64, row, head, batch);
}

// A warp is done with what `empty` counts for; all of its threads have come here.
__device__ __forceinline__ void release(unsigned long long* empty, int lane) {
    if (lane == 0) mbarrier_arrive(empty);
}

// What the loading thread wrote of a work, and that this thread has read it: `read` counts all threads of a consumer.
// One lane's arrival for its warp would do, but compute-sanitizer's racecheck knows no order by way of another
// thread's.
__device__ __forceinline__ int4 read_work(const int4& work, unsigned long long* read) {
    const int4 value = work;
    mbarrier_arrive(read);
    return value;
}

// Places for the first keys of tiles, of all works in turn. Those that the ring has would do, as a tile is loaded once
// all warps have released the one before it in its place; but a lane does so for its warp (see read_work), so racecheck
// is content with what fits here only.
constexpr int kKeyPlaces = 64;
static_assert(STAGES < kKeyPlaces);

__device__ __forceinline__ unsigned key_place(unsigned tile) {
    return tile % kKeyPlaces;
}

// The threads of a consumer wait for each other.
__device__ __forceinline__ void wait_for_group() {
    named_barrier_sync(1 + threadIdx.x / kGroup, kGroup);
}

// Zeros from row `first` of a tile on: what hidden keys hold, be it NaN, does not matter. All threads of the warpgroup
// come here, and have to wait for each other before and after it.
__device__ __forceinline__ void clear_rows(unsigned char* tile, int first) {
#pragma unroll 1
    for (int i = first * 8 + threadIdx.x % kGroup; i < kTileRows * 8; i += kGroup)
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel)
            *reinterpret_cast<uint4*>(tile + panel * kPanelBytes + i * 16) = make_uint4(0, 0, 0, 0);
    fence_async_proxy();
}
