// cp.async.bulk and cp.reduce.async.bulk from shared to global memory: the bytes are read when their thread waits for
// their group, as late as hardware may.
#include <cstring>

#include "../include/runtime_calls.h"
#include "block.h"

#define CALLER __builtin_return_address(0)

extern "C" void emulated_bulk_store(void* global, const void* shared, unsigned bytes, bool add) {
    Thread* self = current_thread();
    Memory& memory = self->block->memory;
    const auto source = reinterpret_cast<std::uintptr_t>(shared), target = reinterpret_cast<std::uintptr_t>(global);
    if (bytes % 16 || source % 16 || target % 16)
        fail(CALLER, "cp.async.bulk: both addresses and the size must be multiples of 16");
    if (memory.check(source, bytes, Action::kRead, CALLER) != Space::kShared)
        fail(CALLER, "cp.async.bulk: the source is not in shared memory");
    if (memory.check(target, bytes, Action::kWrite, CALLER) != Space::kGlobal)
        fail(CALLER, "cp.async.bulk: the target is not in global memory");
    self->bulk_stores.push_back({static_cast<char*>(global), static_cast<const char*>(shared), bytes, add, false});
}

extern "C" void emulated_bulk_commit() {
    for (BulkStore& store : current_thread()->bulk_stores) store.committed = true;
}

extern "C" void emulated_bulk_wait() {
    Thread* self = current_thread();
    auto& stores = self->bulk_stores;
    while (!stores.empty() && stores.front().committed) {
        const BulkStore store = stores.front();
        stores.erase(stores.begin());
        self->block->memory.check(reinterpret_cast<std::uintptr_t>(store.shared), store.bytes, Action::kRead, CALLER);
        if (!store.add) {
            std::memcpy(store.global, store.shared, store.bytes);
            continue;
        }
        auto* sums = reinterpret_cast<float*>(store.global);
        const auto* addends = reinterpret_cast<const float*>(store.shared);
        for (unsigned i = 0; i < store.bytes / sizeof(float); ++i) sums[i] += addends[i];
    }
}
