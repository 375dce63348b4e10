// Built-in variables, barriers, shuffles, votes and atomics.
#include "../include/runtime_calls.h"
#include "block.h"
#include "warp.h"

#define CALLER __builtin_return_address(0)

extern "C" {

uint3 emulated_thread_index() { return current_thread()->index; }
uint3 emulated_block_index() { return current_thread()->block->index; }

dim3 emulated_block_dimensions() {
    const unsigned* axes = current_thread()->block->launch.block;
    return {axes[0], axes[1], axes[2]};
}

dim3 emulated_grid_dimensions() {
    const unsigned* axes = current_thread()->block->launch.grid;
    return {axes[0], axes[1], axes[2]};
}

unsigned emulated_shared_address(const void* shared) {
    return reinterpret_cast<std::uintptr_t>(shared) - current_thread()->block->memory.window();
}

void emulated_block_barrier(const char* file, int line) { current_thread()->block->barrier(false, file, line, CALLER); }

int emulated_block_count(bool predicate, const char* file, int line) {
    Block& block = *current_thread()->block;
    block.barrier(predicate, file, line, CALLER);
    return block.released_predicates;
}

void emulated_trap(const char* why) { fail(CALLER, "%s", why); }

void emulated_warp_barrier(unsigned mask) {
    const auto order = [](Collective* const*, unsigned lanes) { order_memory(*current_thread()->warp, lanes); };
    Collective barrier{"__syncwarp", mask, CALLER, order};
    meet(barrier);
}

void emulated_named_barrier(int barrier, int threads, bool wait) {
    if (barrier < 1 || barrier > 15) fail(CALLER, "named barriers are 1 to 15, not %d", barrier);
    Collective whole_warp{wait ? "bar.sync" : "bar.arrive", kAllLanes, CALLER, [](Collective* const*, unsigned) {},
                          true};
    meet(whole_warp);
    current_thread()->block->barriers[barrier].arrive(threads, wait, CALLER);
}

}  // extern "C"

namespace {

struct Shuffle : Collective {
    std::uint64_t value, result;
    EmulatedShuffle mode;
    int operand, width;
};

// PTX ISA, "shfl.sync": the source lane stays inside the segment of `width` lanes, else the lane keeps its value.
int source_lane(const Shuffle& shuffle, int lane) {
    const int first = lane & -shuffle.width, last = first + shuffle.width - 1;
    switch (shuffle.mode) {
        case kShuffleIndex:
            return first + (shuffle.operand & (shuffle.width - 1));
        case kShuffleUp:
            return lane - shuffle.operand < first ? lane : lane - shuffle.operand;
        case kShuffleDown:
            return lane + shuffle.operand > last ? lane : lane + shuffle.operand;
        case kShuffleXor:
            return (lane ^ shuffle.operand) > last ? lane : lane ^ shuffle.operand;
    }
    __builtin_unreachable();
}

void run_shuffle(Collective* const* waiting, unsigned lanes) {
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        auto& mine = static_cast<Shuffle&>(*waiting[lane]);
        const int source = source_lane(mine, lane);
        if (!(lanes >> source & 1))
            fail(mine.code, "shuffle: lane %d reads from lane %d, which does not take part", lane, source);
        mine.result = static_cast<Shuffle&>(*waiting[source]).value;
    }
}

struct Vote : Collective {
    long long value;
    unsigned result;
    EmulatedVote mode;
};

long long combine(EmulatedVote mode, long long a, long long b) {
    switch (mode) {
        case kReduceAdd:
            return a + b;
        case kReduceMin:
            return a < b ? a : b;
        default:
            return a > b ? a : b;
    }
}

void run_vote(Collective* const* waiting, unsigned lanes) {
    const auto vote = [&](unsigned set) -> Vote& { return static_cast<Vote&>(*waiting[__builtin_ctz(set)]); };
    const EmulatedVote mode = vote(lanes).mode;
    long long reduction = vote(lanes).value;
    for (unsigned rest = lanes & (lanes - 1); rest != 0; rest &= rest - 1)
        reduction = combine(mode, reduction, vote(rest).value);
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
        unsigned agreeing = 0;
        const long long wanted = mode == kBallot ? 1 : vote(rest).value;
        for (unsigned others = lanes; others != 0; others &= others - 1)
            if (vote(others).value == wanted) agreeing |= others & -others;
        vote(rest).result = mode == kBallot || mode == kMatchAny ? agreeing : static_cast<unsigned>(reduction);
    }
}

}  // namespace

extern "C" unsigned long long emulated_shuffle(EmulatedShuffle mode, unsigned mask, unsigned long long value,
                                               int operand, int width) {
    Shuffle shuffle{{"shuffle", mask, CALLER, run_shuffle}, value, 0, mode, operand, width};
    meet(shuffle);
    return shuffle.result;
}

extern "C" unsigned emulated_vote(EmulatedVote mode, unsigned mask, long long value) {
    Vote vote{{"vote", mask, CALLER, run_vote}, value, 0, mode};
    meet(vote);
    return vote.result;
}

extern "C" void emulated_count_mufu() {
    Thread& self = *current_thread();
    self.block->counters.log(self, {CALLER, "mufu", 0, 0, Space::kNone});
}
