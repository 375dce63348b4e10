// Atomic operations on shared and global memory; blocks run at the same time, so they are the processor's.
#include "../include/conversions.h"
#include "../include/runtime_calls.h"
#include "../include/vector_types.h"
#include "block.h"

namespace {

template <class Word, class Next>
Word update(void* pointer, const void* code, Next next) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (address % sizeof(Word) != 0) fail(code, "misaligned atomic operation on %zu bytes", sizeof(Word));
    Block& block = *current_thread()->block;
    // Another block has failed, and this one may be waiting for it.
    if (__atomic_load_n(&block.launch.fault.found, __ATOMIC_ACQUIRE)) block.leave();
    block.memory.access(address, sizeof(Word), Action::kAtomic, code, "atom");
    Word* word = static_cast<Word*>(pointer);
    Word old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &old, next(old), true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
    }
    return old;
}

template <class Word>
Word integer_operation(EmulatedAtomic operation, Word old, Word operand, Word compare) {
    switch (operation) {
        case kAtomicExchange:
            return operand;
        case kAtomicCompareAndSwap:
            return old == compare ? operand : old;
        case kAtomicAdd:
            return old + operand;
        case kAtomicMin:
            return operand < old ? operand : old;
        case kAtomicMax:
            return operand > old ? operand : old;
        case kAtomicAnd:
            return old & operand;
        case kAtomicOr:
            return old | operand;
        case kAtomicXor:
            return old ^ operand;
    }
    __builtin_unreachable();
}

unsigned short add_halves(unsigned short a, unsigned short b) {
    return emulated::half_bits(emulated::half_value(a) + emulated::half_value(b));
}

}  // namespace

extern "C" {

unsigned emulated_atomic_unsigned(EmulatedAtomic operation, void* address, unsigned operand, unsigned compare) {
    return update<unsigned>(address, __builtin_return_address(0),
                            [&](unsigned old) { return integer_operation(operation, old, operand, compare); });
}

int emulated_atomic_int(EmulatedAtomic operation, void* address, int operand, int compare) {
    return update<int>(address, __builtin_return_address(0), [&](int old) {
        // A sum wraps around, which only unsigned arithmetic does.
        return operation == kAtomicAdd ? static_cast<int>(static_cast<unsigned>(old) + operand)
                                       : integer_operation(operation, old, operand, compare);
    });
}

unsigned long long emulated_atomic_unsigned_long_long(EmulatedAtomic operation, void* address,
                                                      unsigned long long operand, unsigned long long compare) {
    return update<unsigned long long>(address, __builtin_return_address(0), [&](unsigned long long old) {
        return integer_operation(operation, old, operand, compare);
    });
}

float emulated_atomic_add_float(void* address, float operand) {
    const unsigned old = update<unsigned>(address, __builtin_return_address(0), [&](unsigned bits) {
        return emulated::bits_as<unsigned>(emulated::bits_as<float>(bits) + operand);
    });
    return emulated::bits_as<float>(old);
}

unsigned emulated_atomic_add_half2(void* address, unsigned operand) {
    return update<unsigned>(address, __builtin_return_address(0), [&](unsigned old) {
        return add_halves(old, operand) | static_cast<unsigned>(add_halves(old >> 16, operand >> 16)) << 16;
    });
}

}  // extern "C"
