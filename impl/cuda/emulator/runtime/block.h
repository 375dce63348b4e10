// One block: its threads as fibers on one system thread, and who runs next.
//
// A thread runs until it has to wait for others (wait()), then the next ready one takes over. Threads become ready
// in an order shuffled by the seed; the newest ready ones run first, so that one warp runs as far ahead of the
// others as its barriers allow: a missing barrier shows.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "../include/vector_types.h"
#include "barriers.h"
#include "counters.h"
#include "fiber.h"
#include "launch.h"
#include "mbarriers.h"
#include "memory.h"
#include "races.h"
#include "wgmma.h"

struct Block;
struct Collective;
struct Thread;

// A cp.async that has been issued and not yet waited for.
struct PendingCopy {
    char* shared;
    const char* global;
    int bytes, source_bytes;
    const void* code;
};

// A bulk copy to global memory that has been issued and not yet waited for.
struct BulkStore {
    char* global;
    const char* shared;
    unsigned bytes;
    bool add, committed;
};

struct Warp {
    Thread* threads;       // its lane 0
    int size = 0;          // lanes that exist
    unsigned present;      // those that have not exited
    unsigned arrived = 0;  // lanes waiting at a collective
    bool agreed = true;    // whether these all wait at the same one, with the same mask
    Collective* waiting[32] = {};
    WgmmaQueue wgmmas;
};

struct Thread {
    void* stack_pointer;
    std::uintptr_t stack_low;
    uint3 index;
    int id, lane;
    Warp* warp;
    Block* block;
    bool exited;
    const char* waiting_for;                            // nullptr while it can run
    const void* waiting_code;                           // the return address of what it waits in
    std::vector<std::vector<PendingCopy>> copy_groups;  // oldest first; the last one is still open
    std::vector<BulkStore> bulk_stores;                 // oldest first
    std::vector<Access> accesses;                       // since the warp last met
};

struct Block {
    Block(Launch& launch, void (*entry)(void**));
    void run(uint3 index);  // returns when all threads have exited or one has failed

    void make_ready(Thread* thread);
    void make_ready(Warp& warp, unsigned lanes);    // in shuffled order
    void make_all_ready();                          // likewise
    void wait(const char* what, const void* code);  // until made ready
    void exit();                                    // of the current thread
    void barrier(bool predicate, const char* file, int line, const void* code);
    [[noreturn]] void leave();

    Launch& launch;
    void (*entry)(void**);
    uint3 index;
    int live;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    Memory memory;
    Counters counters;
    Races races;
    NamedBarrier barriers[16];
    std::map<std::uintptr_t, Mbarrier> mbarriers;  // by address
    int predicates;                                // how many of those at the barrier hold
    int released_predicates;                       // the same at the last barrier
    std::uint64_t random;

private:
    void run_next(void** save);
    void release_if_complete();
    [[noreturn]] void report_deadlock();

    StackArena stacks_;
    std::vector<Thread*> ready_;
    void* scheduler_stack_;
    int at_barrier_ = 0;
    const char* barrier_file_ = nullptr;
    int barrier_line_ = 0;
    const void* barrier_code_ = nullptr;
    Clock barrier_clock_;
};

// The thread whose stack this call is on.
inline Thread* current_thread() { return static_cast<Thread*>(StackArena::owner_of(__builtin_frame_address(0))); }

// Records the first fault of the launch and leaves the block for good.
[[noreturn]] void fail(const void* code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// The same with another thread as the one at fault.
[[noreturn]] void fail_in(Thread& thread, const void* code, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
