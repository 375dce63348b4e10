// Counts of instructions and of the memory traffic they cause, by the rules of the hardware.
//
// Threads log what they access; when a warp meets, the logs of its lanes are put together into the accesses that the
// warp would have made in lockstep.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "launch.h"

struct Thread;
struct Warp;

// kLocal is a thread's stack, kImage the constants of the kernel's library.
enum class Space : std::uint8_t { kNone, kShared, kGlobal, kLocal, kImage };

struct Access {
    const void* code;
    const char* instruction;
    std::uintptr_t address;
    std::uint8_t bytes;
    Space space;
};

class Counters {
public:
    explicit Counters(bool enabled) : enabled_(enabled) {}

    // One instruction executed by a whole warp.
    void count(const char* instruction, const void* code);
    // One thread's part of an instruction.
    void log(Thread& thread, const Access& access);
    // Counts and clears the logs of a warp's threads.
    void gather(const Warp& warp);
    // Hands the counts to the launch.
    void report(Launch& launch);

private:
    using Key = std::tuple<const void*, const char*, int>;  // code, instruction, bytes per lane
    void add(const Access* const* lanes);

    bool enabled_;
    std::map<Key, CounterRow> rows_;
};
