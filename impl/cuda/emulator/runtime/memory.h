// The memory a block may touch: its shared arrays, the launch's global buffers, constants of the kernel's image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "counters.h"
#include "launch.h"

enum class Action : std::uint8_t { kRead, kWrite, kAtomic };

class Memory {
public:
    explicit Memory(const Launch& launch);

    // Fills the shared arrays with 0xff, a NaN in every float format, and marks them as never written.
    void start_block();

    // Checks that the current thread may read or write these bytes, and counts it for `instruction` if that is given,
    // else as a plain load or store.
    Space access(std::uintptr_t address, unsigned bytes, Action action, const void* code,
                 const char* instruction = nullptr);

    // The same without counting.
    Space check(std::uintptr_t address, unsigned bytes, Action action, const void* code);

    // A copy to shared memory has been issued, or has arrived: its bytes are undefined in between.
    void mark_in_flight(const char* shared, unsigned bytes);
    void mark_arrived(const char* shared, unsigned bytes);
    // The same for a copy that its thread has waited for: only then does it order what comes after.
    void mark_arrived(const char* shared, unsigned bytes, const void* code);

    std::uintptr_t window() const { return window_; }
    std::size_t window_bytes() const { return window_bytes_; }

private:
    enum State : std::uint8_t { kNeverWritten, kWritten, kInFlight };
    // The space of these bytes; fails when they are in none or cross the end of a buffer.
    Space locate(std::uintptr_t address, unsigned bytes, Action action, const void* code);
    bool in_shared_array(std::uintptr_t address, unsigned bytes) const;
    [[noreturn]] void out_of_bounds(std::uintptr_t address, unsigned bytes, Action action, const void* code) const;
    void check_state(std::uintptr_t address, unsigned bytes, Action action, const void* code);

    const Launch& launch_;
    std::uintptr_t window_, window_bytes_;
    std::vector<std::uint8_t> states_;  // one per byte of the window
    const Extent* last_hit_ = nullptr;
};

// Place of an address in this shared library.
std::uint64_t code_offset(const void* code);
