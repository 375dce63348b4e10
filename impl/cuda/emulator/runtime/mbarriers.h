// Barriers in shared memory (mbarrier), and the copies of the copy engine that complete on them.
#pragma once

#include <cstdint>
#include <vector>

#include "races.h"

struct Thread;

// Bytes that have been asked for and not yet come; of a tile its rows, one after the other.
struct PendingTile {
    char* shared;
    std::vector<unsigned char> bytes;
    std::uintptr_t swizzle;  // bits of an address that the bits three above them flip
};

class Mbarrier {
public:
    explicit Mbarrier(unsigned arrivals = 0) : expected_(arrivals), pending_(arrivals) {}
    void arrive(std::uint32_t bytes, const void* code);
    void copy(PendingTile tile);  // by the current thread
    void wait(unsigned parity, const void* code);

private:
    // The phase is complete when it lacks nothing; tiles come only once a thread waits for them, or they are `wanted`.
    void complete_if_due(bool wanted);

    unsigned expected_, pending_, phase_ = 0;
    long long expected_bytes_ = 0;
    std::vector<PendingTile> tiles_;
    std::vector<Thread*> waiting_;
    Clock clock_, completed_clock_;
};
