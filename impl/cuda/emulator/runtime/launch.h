// What Python passes to emulated_launch and gets back (run.py mirrors these structures with ctypes).
#pragma once

#include <cstdint>

#include "../include/vector_types.h"

struct Extent {
    std::uintptr_t low, high;  // bytes [low, high)
};

struct SharedArray {
    std::uint64_t offset, bytes;  // in the block's shared window, which starts at the first array
};

struct Fault {
    int found;
    uint3 block, thread;
    std::uint64_t code_offset;  // of the instruction after the faulty one, in the shared library; 0 if unknown
    char message[1024];
};

// A kernel's instructions of one kind at one place, over the whole grid.
struct CounterRow {
    std::uint64_t code_offset = 0;
    const char* instruction = nullptr;
    std::uint64_t bytes = 0;             // of memory per lane
    std::uint64_t instructions = 0;      // executed by warps
    std::uint64_t wavefronts = 0;        // of shared memory
    std::uint64_t ideal_wavefronts = 0;  // without bank conflicts
    std::uint64_t sectors = 0;           // of 32 bytes, of global memory
    std::uint64_t ideal_sectors = 0;     // if the lanes' bytes were adjacent
};

struct Launch {
    unsigned grid[3], block[3];
    void** parameters;
    const Extent* allocations;
    int allocation_count;
    const SharedArray* shared_arrays;  // sorted; the dynamic one is the last
    int shared_array_count;
    std::uint64_t shared_symbol_offset;  // of `shared_memory` in the window
    std::uint64_t seed;
    int workers;
    int check_races;
    void (*report_counter)(const CounterRow*);  // called for each row at the end; nullptr: nothing is counted
    Fault fault;
};
