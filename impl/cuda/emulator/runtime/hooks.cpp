// g++ -fsanitize=thread calls these functions before every load and store of the kernel that may touch memory
// other than a private variable. We link our own instead of ThreadSanitizer's.
#include "block.h"

namespace {

inline void on_access(void* pointer, unsigned bytes, Action action, bool aligned, const void* code) {
    Thread* self = current_thread();
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (address - self->stack_low < StackArena::kStackBytes) return;
    if (aligned && address % bytes != 0)
        fail(code, "misaligned %s of %u bytes at an address of alignment %zu",
             action == Action::kWrite ? "write" : "read", bytes, static_cast<std::size_t>(address & -address));
    self->block->memory.access(address, bytes, action, code);
}

}  // namespace

#define HOOKS(bytes)                                                            \
    extern "C" void __tsan_read##bytes(void* p) {                               \
        on_access(p, bytes, Action::kRead, true, __builtin_return_address(0));  \
    }                                                                           \
    extern "C" void __tsan_write##bytes(void* p) {                              \
        on_access(p, bytes, Action::kWrite, true, __builtin_return_address(0)); \
    }
#define UNALIGNED_HOOKS(bytes)                                                   \
    extern "C" void __tsan_unaligned_read##bytes(void* p) {                      \
        on_access(p, bytes, Action::kRead, false, __builtin_return_address(0));  \
    }                                                                            \
    extern "C" void __tsan_unaligned_write##bytes(void* p) {                     \
        on_access(p, bytes, Action::kWrite, false, __builtin_return_address(0)); \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
UNALIGNED_HOOKS(2)
UNALIGNED_HOOKS(4)
UNALIGNED_HOOKS(8)
UNALIGNED_HOOKS(16)

extern "C" {
void __tsan_read_range(void* p, std::size_t bytes) {
    on_access(p, bytes, Action::kRead, false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, std::size_t bytes) {
    on_access(p, bytes, Action::kWrite, false, __builtin_return_address(0));
}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
