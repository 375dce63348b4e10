#include "fiber.h"

#include <sys/mman.h>

#include <new>

#if defined(__x86_64__)
asm(R"(
    .text
    .globl emulated_switch_stack
    .type emulated_switch_stack, @function
emulated_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulated_switch_stack, .-emulated_switch_stack
)");
constexpr int kReturnWord = 6;  // after the saved registers
constexpr int kFrameWords = 8;  // and a word that leaves the stack as a call instruction would
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl emulated_switch_stack
    .type emulated_switch_stack, %function
emulated_switch_stack:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size emulated_switch_stack, .-emulated_switch_stack
)");
constexpr int kReturnWord = 11;  // x30
constexpr int kFrameWords = 20;
#else
#    error "fibers need a context switch for this processor: see fiber.cpp"
#endif

void* prepare_stack(char* top, void (*entry)()) {
    auto* frame = reinterpret_cast<std::uintptr_t*>(top) - kFrameWords;
    for (int word = 0; word < kFrameWords; ++word) frame[word] = 0;
    frame[kReturnWord] = reinterpret_cast<std::uintptr_t>(entry);
    return frame;
}

StackArena::StackArena(int count) : mapped_((count + 1) * kStackBytes) {
    memory_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    base_ = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(memory_) + kStackBytes - 1) & -kStackBytes);
    for (int stack = 0; stack < count; ++stack) mprotect(low(stack), 4096, PROT_NONE);
}

StackArena::~StackArena() { munmap(memory_, mapped_); }
