// cp.async: the bytes arrive when their thread waits for their group, as late as hardware may deliver them.
#include <cstring>

#include "../include/runtime_calls.h"
#include "../include/vector_types.h"
#include "block.h"

#define CALLER __builtin_return_address(0)

extern "C" void emulated_copy_async(void* shared, const void* global, int bytes, int source_bytes) {
    Thread* self = current_thread();
    Memory& memory = self->block->memory;
    const auto target = reinterpret_cast<std::uintptr_t>(shared);
    const auto source = reinterpret_cast<std::uintptr_t>(global);
    if (bytes != 4 && bytes != 8 && bytes != 16) fail(CALLER, "cp.async copies 4, 8 or 16 bytes, not %d", bytes);
    if (source_bytes < 0 || source_bytes > bytes) fail(CALLER, "cp.async: source size %d of %d", source_bytes, bytes);
    if (target % bytes != 0 || (source_bytes > 0 && source % bytes != 0))
        fail(CALLER, "cp.async: both addresses must be multiples of %d bytes", bytes);
    if (memory.access(target, bytes, Action::kWrite, CALLER, "cp.async, to shared") != Space::kShared)
        fail(CALLER, "cp.async: the target is not in shared memory");
    if (source_bytes > 0 &&
        memory.access(source, source_bytes, Action::kRead, CALLER, "cp.async, from global") != Space::kGlobal)
        fail(CALLER, "cp.async: the source is not in global memory");
    memory.mark_in_flight(static_cast<char*>(shared), bytes);
    self->copy_groups.back().push_back(
        {static_cast<char*>(shared), static_cast<const char*>(global), bytes, source_bytes, CALLER});
}

extern "C" void emulated_copy_async_commit() { current_thread()->copy_groups.emplace_back(); }

extern "C" void emulated_copy_async_wait(int pending) {
    Thread* self = current_thread();
    auto& groups = self->copy_groups;
    const std::size_t open = 1;
    while (groups.size() > pending + open) {
        for (const PendingCopy& copy : groups.front()) {
            std::memcpy(copy.shared, copy.global, copy.source_bytes);
            std::memset(copy.shared + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
            self->block->memory.mark_arrived(copy.shared, copy.bytes, copy.code);
        }
        groups.erase(groups.begin());
    }
}
