// A tile arrives as late as hardware may deliver it: when a thread waits for a phase that lacks nothing but bytes.
#include "mbarriers.h"

#include <cstring>

#include "../include/runtime_calls.h"
#include "block.h"

#define CALLER __builtin_return_address(0)

namespace {

// Places of a TensorMap's words, as emulator/run.py fills them: address, four extents and three strides in bytes from
// the innermost axis on, rows and columns of a tile.
enum { kMapAddress, kMapSizes, kMapStrides = 5, kMapTileRows = 8, kMapTileColumns };
constexpr int kElementBytes = 2, kChunkBytes = 16;

void check_barrier(unsigned long long* barrier, Action action, const void* code) {
    const auto address = reinterpret_cast<std::uintptr_t>(barrier);
    if (address % 8 != 0) fail(code, "an mbarrier must lie at a multiple of 8 bytes");
    if (current_thread()->block->memory.access(address, 8, action, code, "mbarrier") != Space::kShared)
        fail(code, "an mbarrier must lie in shared memory");
}

Mbarrier& barrier_at(unsigned long long* barrier, const void* code) {
    auto& mbarriers = current_thread()->block->mbarriers;
    const auto found = mbarriers.find(reinterpret_cast<std::uintptr_t>(barrier));
    if (found == mbarriers.end()) fail(code, "this mbarrier has not been initialised");
    check_barrier(barrier, Action::kAtomic, code);
    return found->second;
}

}  // namespace

void Mbarrier::arrive(std::uint32_t bytes, const void* code) {
    Thread* self = current_thread();
    if (pending_ == 0) complete_if_due(true);
    if (pending_ == 0) fail(code, "more arrivals at an mbarrier than its phase has; its copies are not complete");
    self->block->races.release(self->id, clock_);
    expected_bytes_ += bytes;
    --pending_;
    complete_if_due(false);
}

void Mbarrier::copy(PendingTile tile) {
    Thread* self = current_thread();
    self->block->memory.mark_in_flight(tile.shared, tile.bytes.size());
    self->block->races.release(self->id, clock_);
    tiles_.push_back(std::move(tile));
    complete_if_due(false);
}

void Mbarrier::wait(unsigned parity, const void* code) {
    Thread* self = current_thread();
    while ((phase_ & 1) == parity) {
        complete_if_due(true);
        if ((phase_ & 1) != parity) break;
        waiting_.push_back(self);
        self->block->wait("an mbarrier", code);
    }
    self->block->races.acquire(self->id, completed_clock_);
}

void Mbarrier::complete_if_due(bool wanted) {
    if (pending_ > 0 || (!tiles_.empty() && !wanted && waiting_.empty())) return;
    Block& block = *current_thread()->block;
    for (const PendingTile& tile : tiles_) {
        const std::uintptr_t window = block.memory.window();
        const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(tile.shared) - window;
        for (std::size_t byte = 0; byte < tile.bytes.size(); byte += kChunkBytes) {
            const std::uintptr_t place = (first + byte) ^ ((first + byte) >> 3 & tile.swizzle);
            std::memcpy(reinterpret_cast<char*>(window + place), &tile.bytes[byte], kChunkBytes);
        }
        block.memory.mark_arrived(tile.shared, tile.bytes.size());
        expected_bytes_ -= tile.bytes.size();
    }
    tiles_.clear();
    if (expected_bytes_ != 0) return;
    ++phase_;
    pending_ = expected_;
    completed_clock_ = clock_;
    for (Thread* thread : waiting_) block.make_ready(thread);
    waiting_.clear();
}

extern "C" void emulated_mbarrier_init(unsigned long long* barrier, unsigned arrivals) {
    check_barrier(barrier, Action::kWrite, CALLER);
    *barrier = 0;
    current_thread()->block->mbarriers[reinterpret_cast<std::uintptr_t>(barrier)] = Mbarrier(arrivals);
}

extern "C" void emulated_mbarrier_arrive(unsigned long long* barrier, unsigned bytes) {
    barrier_at(barrier, CALLER).arrive(bytes, CALLER);
}

extern "C" void emulated_mbarrier_wait(unsigned long long* barrier, unsigned parity) {
    barrier_at(barrier, CALLER).wait(parity, CALLER);
}

extern "C" void emulated_tma_load(void* shared, const void* map, unsigned long long* barrier, int column, int row,
                                  int head, int batch) {
    long long words[16];
    std::memcpy(words, map, sizeof words);
    const long long *sizes = words + kMapSizes, *strides = words + kMapStrides, rows = words[kMapTileRows];
    const long long row_bytes = words[kMapTileColumns] * kElementBytes, pattern_bytes = 8 * row_bytes;
    Memory& memory = current_thread()->block->memory;
    const auto target = reinterpret_cast<std::uintptr_t>(shared);
    if ((target - memory.window()) % pattern_bytes != 0)
        fail(CALLER, "a tile of %lld-byte rows must lie at a multiple of %lld", row_bytes, pattern_bytes);
    PendingTile tile{static_cast<char*>(shared), std::vector<unsigned char>(rows * row_bytes, 0),
                     static_cast<std::uintptr_t>(row_bytes - kChunkBytes)};
    for (long long r = 0; r < rows; ++r) {
        if (memory.access(target + r * row_bytes, row_bytes, Action::kWrite, CALLER, "tma, to shared") !=
            Space::kShared)
            fail(CALLER, "the target of a tile is not in shared memory");
        const auto inside = [](long long at, long long size) { return at >= 0 && at < size; };
        if (!inside(row + r, sizes[1]) || !inside(head, sizes[2]) || !inside(batch, sizes[3])) continue;
        const long long first = column < 0 ? -column : 0;
        const long long last = std::min<long long>(words[kMapTileColumns], sizes[0] - column);
        if (first >= last) continue;
        const std::uintptr_t source = words[kMapAddress] + (column + first) * kElementBytes + (row + r) * strides[0] +
                                      head * strides[1] + batch * strides[2];
        const unsigned bytes = (last - first) * kElementBytes;
        if (memory.access(source, bytes, Action::kRead, CALLER, "tma, from global") != Space::kGlobal)
            fail(CALLER, "the source of a tile is not in global memory");
        std::memcpy(&tile.bytes[r * row_bytes + first * kElementBytes], reinterpret_cast<void*>(source), bytes);
    }
    barrier_at(barrier, CALLER).copy(std::move(tile));
}

extern "C" void emulated_bulk_load(void* shared, const void* global, unsigned bytes, unsigned long long* barrier) {
    Memory& memory = current_thread()->block->memory;
    const auto source = reinterpret_cast<std::uintptr_t>(global), target = reinterpret_cast<std::uintptr_t>(shared);
    if (bytes % kChunkBytes || source % kChunkBytes || target % kChunkBytes)
        fail(CALLER, "cp.async.bulk: both addresses and the size must be multiples of 16");
    if (memory.check(target, bytes, Action::kWrite, CALLER) != Space::kShared)
        fail(CALLER, "cp.async.bulk: the target is not in shared memory");
    if (memory.check(source, bytes, Action::kRead, CALLER) != Space::kGlobal)
        fail(CALLER, "cp.async.bulk: the source is not in global memory");
    const auto* first = static_cast<const unsigned char*>(global);
    barrier_at(barrier, CALLER).copy({static_cast<char*>(shared), {first, first + bytes}, 0});
}
