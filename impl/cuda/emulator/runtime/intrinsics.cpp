// Built-in variables, barriers, shuffles, votes and atomics.
#include "block.h"
#include "warp.h"

#include "../include/runtime_calls.h"

#define CALLER __builtin_return_address(0)

extern "C" {

uint3 emulated_thread_index() { return current_thread()->index; }
uint3 emulated_block_index() { return current_thread()->block->index; }
unsigned emulated_lane() { return current_thread()->lane; }

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
    Collective barrier{"__syncwarp", mask, CALLER, [](Collective* const*, unsigned) {}};
    meet(barrier);
}

}  // extern "C"

namespace {

struct Shuffle : Collective {
    std::uint64_t value, result;
    int mode, operand, width;
};

// PTX ISA, "shfl.sync": the source lane stays inside the segment of `width` lanes, else the lane keeps its value.
int source_lane(const Shuffle& shuffle, int lane) {
    const int first = lane & -shuffle.width, last = first + shuffle.width - 1;
    switch (shuffle.mode) {
        case 0: return first + (shuffle.operand & (shuffle.width - 1));
        case 1: return lane - shuffle.operand < first ? lane : lane - shuffle.operand;
        case 2: return lane + shuffle.operand > last ? lane : lane + shuffle.operand;
        default: return (lane ^ shuffle.operand) > last ? lane : lane ^ shuffle.operand;
    }
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
    std::uint64_t value, result;
    int mode;
};

void run_vote(Collective* const* waiting, unsigned lanes) {
    const auto vote = [&](int lane) -> Vote& { return static_cast<Vote&>(*waiting[lane]); };
    const auto fold = [&](auto combine) {
        auto result = vote(__builtin_ctz(lanes)).value;
        for (unsigned rest = lanes & (lanes - 1); rest != 0; rest &= rest - 1)
            result = combine(result, vote(__builtin_ctz(rest)).value);
        return result;
    };
    const int mode = vote(__builtin_ctz(lanes)).mode;
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        std::uint64_t result = 0;
        for (unsigned others = lanes; others != 0; others &= others - 1) {
            const int other = __builtin_ctz(others);
            if (mode == 0 ? vote(other).value != 0 : vote(other).value == vote(lane).value) result |= 1u << other;
        }
        using U = std::uint64_t;
        const auto as_signed = [](U value) { return static_cast<std::int32_t>(value); };
        if (mode == 2) result = fold([](U a, U b) { return a + b; });
        if (mode == 3) result = fold([](U a, U b) { return a < b ? a : b; });
        if (mode == 4) result = fold([](U a, U b) { return a > b ? a : b; });
        if (mode == 5) result = fold([&](U a, U b) { return as_signed(a) < as_signed(b) ? a : b; });
        if (mode == 6) result = fold([&](U a, U b) { return as_signed(a) > as_signed(b) ? a : b; });
        vote(lane).result = result;
    }
}

}  // namespace

extern "C" unsigned long long emulated_shuffle(int mode, unsigned mask, unsigned long long value, int operand,
                                               int width) {
    Shuffle shuffle{{"shuffle", mask, CALLER, run_shuffle}, value, 0, mode, operand, width};
    meet(shuffle);
    return shuffle.result;
}

extern "C" unsigned emulated_vote(int mode, unsigned mask, unsigned long long value) {
    Vote vote{{"vote", mask, CALLER, run_vote}, value, 0, mode};
    meet(vote);
    return vote.result;
}

extern "C" void emulated_count_mufu() {
    Thread& self = *current_thread();
    self.block->counters.log(self, {CALLER, "mufu", 0, 0, Space::kNone});
}
