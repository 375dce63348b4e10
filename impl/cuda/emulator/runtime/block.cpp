#include "block.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "counters.h"
#include "memory.h"
#include "warp.h"

namespace {

// Neighbouring stacks start at different cache lines, so that their tops do not evict each other.
char* stack_top(char* low, int id) { return low + StackArena::kStackBytes - 64 * (1 + id * 17 % 64); }

void fiber_main() {
    Thread* self = current_thread();
    self->block->entry(self->block->launch.parameters);
    self->block->exit();
}

std::uint64_t next_random(std::uint64_t& state) {  // splitmix64
    std::uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

}  // namespace

Block::Block(Launch& launch, void (*entry)(void**))
    : launch(launch),
      entry(entry),
      threads(launch.block[0] * launch.block[1] * launch.block[2]),
      warps((threads.size() + 31) / 32),
      memory(launch),
      counters(launch.report_counter != nullptr),
      races(threads.size(), memory.window_bytes(), launch.check_races),
      stacks_(threads.size()) {
    for (std::size_t id = 0; id < threads.size(); ++id) {
        Thread& thread = threads[id];
        const unsigned x = id % launch.block[0], rest = id / launch.block[0];
        thread.index = {x, rest % launch.block[1], rest / launch.block[1]};
        thread.id = id;
        thread.lane = id % 32;
        thread.warp = &warps[id / 32];
        thread.block = this;
        thread.stack_low = reinterpret_cast<std::uintptr_t>(stacks_.low(id));
        stacks_.owner(id) = &thread;
        if (thread.lane == 0) thread.warp->threads = &thread;
        ++thread.warp->size;
    }
}

void Block::run(uint3 block_index) {
    index = block_index;
    live = threads.size();
    random = launch.seed + 0x10001 * (index.x + launch.grid[0] * (index.y + launch.grid[1] * index.z));
    for (Warp& warp : warps) {
        warp.arrived = warp.present = 0;
        warp.wgmmas = {};
    }
    for (Thread& thread : threads) {
        thread.stack_pointer = prepare_stack(stack_top(stacks_.low(thread.id), thread.id), fiber_main);
        thread.exited = false;
        thread.warp->present |= 1u << thread.lane;
        thread.copy_groups.assign(1, {});
        thread.bulk_stores.clear();
        thread.accesses.clear();
    }
    for (NamedBarrier& barrier : barriers) barrier = {};
    mbarriers.clear();
    at_barrier_ = predicates = 0;
    ready_.clear();
    memory.start_block();
    races.start_block(launch);
    barrier_clock_.clear();
    make_all_ready();
    run_next(&scheduler_stack_);
}

void Block::make_ready(Thread* thread) {
    thread->waiting_for = nullptr;
    ready_.push_back(thread);
}

void Block::make_ready(Warp& warp, unsigned lanes) {
    const std::uint64_t draw = next_random(random);
    const int start = draw & 31, step = draw >> 5 & 30 | 1;
    for (int i = 0; i < 32; ++i) {
        const int lane = start + i * step & 31;
        if (lanes >> lane & 1) make_ready(warp.threads + lane);
    }
}

void Block::make_all_ready() {
    std::vector<Warp*> order;
    for (Warp& warp : warps) order.push_back(&warp);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random(random) % i]);
    for (Warp* warp : order) make_ready(*warp, warp->present);
}

void Block::run_next(void** save) {
    if (ready_.empty()) report_deadlock();
    Thread* next = ready_.back();
    ready_.pop_back();
    if (save == &next->stack_pointer) return;
    emulated_switch_stack(save, next->stack_pointer);
}

void Block::wait(const char* what, const void* code) {
    Thread* self = current_thread();
    self->waiting_for = what;
    self->waiting_code = code;
    run_next(&self->stack_pointer);
}

void Block::exit() {
    Thread* self = current_thread();
    self->exited = true;
    --live;
    leave_warp(*self);
    release_if_complete();
    if (live == 0) leave();
    void* never_resumed;
    run_next(&never_resumed);
    __builtin_unreachable();
}

void Block::leave() {
    void* never_resumed;
    emulated_switch_stack(&never_resumed, scheduler_stack_);
    __builtin_unreachable();
}

void Block::barrier(bool predicate, const char* file, int line, const void* code) {
    if (at_barrier_ == 0) {
        barrier_file_ = file;
        barrier_line_ = line;
        barrier_code_ = code;
    } else if (line != barrier_line_ || std::strcmp(file, barrier_file_) != 0) {
        fail(code, "divergence at a barrier: other threads of the block wait at the one of @%zx",
             code_offset(barrier_code_));
    }
    ++at_barrier_;
    predicates += predicate;
    Thread* self = current_thread();
    self->waiting_for = "__syncthreads";
    self->waiting_code = code;
    races.release(self->id, barrier_clock_);
    release_if_complete();
    run_next(&self->stack_pointer);
}

// Threads that have exited do not take part (CUDA C++ Programming Guide, "Synchronization Functions").
void Block::release_if_complete() {
    if (at_barrier_ == 0 || at_barrier_ < live) return;
    at_barrier_ = 0;
    released_predicates = predicates;
    predicates = 0;
    for (Warp& warp : warps) {
        counters.gather(warp);
        if (warp.present) counters.count("bar.sync", barrier_code_);
    }
    for (Thread& thread : threads)
        if (!thread.exited) races.acquire(thread.id, barrier_clock_);
    barrier_clock_.clear();
    make_all_ready();
}

void Block::report_deadlock() {
    std::map<std::string, std::pair<int, Thread*>> groups;
    int exited = 0;
    for (Thread& thread : threads) {
        if (thread.exited) {
            ++exited;
            continue;
        }
        char place[160];
        std::snprintf(place, sizeof place, "%s (@%zx)", thread.waiting_for, code_offset(thread.waiting_code));
        auto [group, fresh] = groups.try_emplace(place, 0, &thread);
        ++group->second.first;
    }
    std::string text = "divergence: threads wait for others that never come";
    Thread* witness = nullptr;
    for (auto& [place, group] : groups) {
        text += "; " + std::to_string(group.first) + " at " + place + ", the first is thread " +
                std::to_string(group.second->id);
        witness = group.second;
    }
    if (exited) text += "; " + std::to_string(exited) + " have exited";
    fail_in(*witness, witness->waiting_code, "%s", text.c_str());
}

namespace {

[[noreturn]] void emulated_fault(Thread& thread, const void* code, const char* format, va_list arguments) {
    static std::mutex mutex;
    Block& block = *thread.block;
    {
        std::lock_guard<std::mutex> lock(mutex);
        Fault& fault = block.launch.fault;
        if (!fault.found) {
            std::vsnprintf(fault.message, sizeof fault.message, format, arguments);
            fault.block = block.index;
            fault.thread = thread.index;
            fault.code_offset = code_offset(code);
            __atomic_store_n(&fault.found, 1, __ATOMIC_RELEASE);
        }
    }
    block.leave();
}

}  // namespace

void fail(const void* code, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    emulated_fault(*current_thread(), code, format, arguments);
}

void fail_in(Thread& thread, const void* code, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    emulated_fault(thread, code, format, arguments);
}
