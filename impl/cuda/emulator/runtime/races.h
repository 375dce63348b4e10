// Data races in shared memory: two threads touch a byte, one of them writes, and no barrier orders the two.
//
// Vector clocks in the manner of FastTrack (Flanagan and Freund, PLDI 2009): each thread counts its releases and knows
// how many of every other thread's happened before its own present. Of the readers of a byte since its last write the
// two newest are kept, so that a race with an older one can be missed in one order of threads and found in another.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "launch.h"

using Clock = std::vector<std::uint32_t>;  // one count per thread

class Races {
public:
    Races(int threads, std::size_t shared_bytes, bool enabled);
    void start_block(const Launch& launch);

    // What `thread` has done so far happens before whatever acquires `clock` later.
    void release(int thread, Clock& clock);
    void acquire(int thread, const Clock& clock);

    // Fails when the access of `thread` to these bytes of the window races with an earlier one.
    void access(int thread, std::size_t offset, unsigned bytes, bool write, bool atomic, const void* code);

private:
    struct Touch {
        std::uint32_t clock = 0;  // 0: none
        std::uint16_t thread = 0;
        bool atomic = false;
        const void* code = nullptr;
    };
    struct Byte {
        Touch write, reads[2];
    };
    struct Free {
        void operator()(Byte* bytes) const { std::free(bytes); }
    };
    bool ordered(const Touch& earlier, int thread) const;
    void check(const Touch& earlier, const Touch& mine, const char* did, std::size_t offset) const;

    bool enabled_;
    std::vector<Clock> clocks_;
    std::unique_ptr<Byte[], Free> bytes_;  // of the window; where no array is, it takes no memory
};
