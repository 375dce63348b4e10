// A fiber is a stack and a saved stack pointer; switching keeps only what the calling convention makes us keep.
#pragma once

#include <cstddef>
#include <cstdint>

// Saves the callee-saved registers on the current stack, stores its pointer to `*save`, continues at `load`.
extern "C" void emulated_switch_stack(void** save, void* load);

// Prepares a fresh stack, so that switching to the returned pointer calls `entry`, which must never return.
void* prepare_stack(char* top, void (*entry)());

// `count` stacks of kStackBytes each, aligned to that, with an unmapped page at the low end to stop an overflow and
// room for one pointer at the high end, which code on the stack finds by its own stack pointer.
class StackArena {
public:
    explicit StackArena(int count);
    ~StackArena();
    StackArena(const StackArena&) = delete;
    StackArena& operator=(const StackArena&) = delete;
    char* low(int stack) const { return base_ + stack * kStackBytes; }
    void*& owner(int stack) const { return owner_of(low(stack)); }

    static constexpr std::size_t kStackBytes = 128 << 10;
    static void*& owner_of(const void* address_on_stack) {
        const auto last = reinterpret_cast<std::uintptr_t>(address_on_stack) | (kStackBytes - 1);
        return *reinterpret_cast<void**>(last + 1 - sizeof(void*));
    }

private:
    void* memory_;
    char* base_;
    std::size_t mapped_;
};
