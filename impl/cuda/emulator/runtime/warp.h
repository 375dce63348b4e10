// Warp collectives: an instruction that several lanes execute together, once all of them have come to it.
#pragma once

#include "block.h"

constexpr unsigned kAllLanes = 0xffffffffu;

struct Collective {
    const char* name;
    unsigned mask;     // the lanes that take part
    const void* code;  // return address of the call
    // Runs the instruction for all lanes in `lanes`; each one's operands are in its own waiting[lane].
    void (*execute)(Collective* const* waiting, unsigned lanes);
    bool whole_warp = false;  // all 32 lanes must be there (.aligned)
    bool counted = false;     // already, as the lanes' memory accesses
};

// Returns in each lane once the collective has been executed for all of them.
void meet(Collective& collective);

// What these lanes have done so far happens before what any of them does next.
void order_memory(Warp& warp, unsigned lanes);

// The exited thread's lane is no longer waited for.
void leave_warp(Thread& thread);
