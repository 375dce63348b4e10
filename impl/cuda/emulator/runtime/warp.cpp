#include "warp.h"

#include "memory.h"

namespace {

bool run_if_complete(Warp& warp, Collective& collective) {
    const unsigned lanes = collective.mask & warp.present;
    if ((warp.arrived & lanes) != lanes) return false;
    Block& block = *warp.threads->block;
    if (!collective.counted) block.counters.count(collective.name, collective.code);
    if (lanes == warp.present) block.counters.gather(warp);
    collective.execute(warp.waiting, lanes);
    warp.arrived &= ~lanes;
    return true;
}

// While all lanes that wait agree with each other, as they nearly always do, one of them stands for all.
void check_agreement(Warp& warp, const Collective& mine, int lane) {
    if (warp.arrived == 0) warp.agreed = true;
    if (warp.arrived != 0 && warp.agreed) {
        const Collective& other = *warp.waiting[__builtin_ctz(warp.arrived)];
        warp.agreed = other.name == mine.name && other.mask == mine.mask;
    }
    if (warp.agreed) return;
    for (unsigned others = warp.arrived & mine.mask; others != 0; others &= others - 1) {
        const Collective& other = *warp.waiting[__builtin_ctz(others)];
        if (!(other.mask >> lane & 1) || (other.name == mine.name && other.mask == mine.mask)) continue;
        fail(mine.code, "divergence in a warp: this lane is at %s with mask %08x, lane %d at %s with mask %08x (@%zx)",
             mine.name, mine.mask, __builtin_ctz(others), other.name, other.mask, code_offset(other.code));
    }
}

}  // namespace

void meet(Collective& collective) {
    Thread* self = current_thread();
    Warp& warp = *self->warp;
    const unsigned bit = 1u << self->lane;
    if (!(collective.mask & bit))
        fail(collective.code, "%s: mask %08x does not name lane %d that executes it", collective.name, collective.mask,
             self->lane);
    if (collective.whole_warp && warp.present != kAllLanes)
        fail(collective.code, "%s needs all 32 lanes; those there are %08x", collective.name, warp.present);
    check_agreement(warp, collective, self->lane);
    warp.waiting[self->lane] = &collective;
    warp.arrived |= bit;
    if (run_if_complete(warp, collective))
        self->block->make_ready(warp, collective.mask & warp.present & ~bit);
    else
        self->block->wait(collective.name, collective.code);
}

void order_memory(Warp& warp, unsigned lanes) {
    Races& races = warp.threads->block->races;
    Clock clock;
    for (int lane = 0; lane < warp.size; ++lane)
        if (lanes >> lane & 1) races.release(warp.threads[lane].id, clock);
    for (int lane = 0; lane < warp.size; ++lane)
        if (lanes >> lane & 1) races.acquire(warp.threads[lane].id, clock);
}

void leave_warp(Thread& thread) {
    Warp& warp = *thread.warp;
    warp.present &= ~(1u << thread.lane);
    if (warp.present == 0) thread.block->counters.gather(warp);
    for (unsigned lanes = warp.arrived; lanes != 0; lanes &= lanes - 1) {
        Collective& collective = *warp.waiting[__builtin_ctz(lanes)];
        if (!(collective.mask >> thread.lane & 1)) continue;
        if (collective.whole_warp) fail(collective.code, "%s: lane %d has exited", collective.name, thread.lane);
        if (run_if_complete(warp, collective)) thread.block->make_ready(warp, collective.mask & warp.present);
        return;
    }
}
