#include "memory.h"

#include <link.h>

#include <algorithm>
#include <cstring>

#include "block.h"
#include "counters.h"

constexpr std::size_t kMostSharedBytes = 227 << 10;  // of any architecture
thread_local unsigned char shared_memory[kMostSharedBytes] __attribute__((aligned(1024)));

namespace {

struct Image {
    std::uintptr_t base = 0, low = 0, high = 0;
};

// The segments of this library: `__constant__` arrays and tables live there.
const Image& image() {
    static const Image found = [] {
        Image result;
        dl_iterate_phdr(
            [](dl_phdr_info* info, std::size_t, void* data) {
                const auto here = reinterpret_cast<std::uintptr_t>(&code_offset);
                std::uintptr_t low = ~std::uintptr_t{0}, high = 0;
                for (int i = 0; i < info->dlpi_phnum; ++i) {
                    const auto& segment = info->dlpi_phdr[i];
                    if (segment.p_type != PT_LOAD) continue;
                    low = std::min<std::uintptr_t>(low, info->dlpi_addr + segment.p_vaddr);
                    high = std::max<std::uintptr_t>(high, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
                }
                if (here < low || here >= high) return 0;
                *static_cast<Image*>(data) = {info->dlpi_addr, low, high};
                return 1;
            },
            &result);
        return result;
    }();
    return found;
}

const char* name(Action action) {
    return action == Action::kRead ? "read" : action == Action::kWrite ? "write" : "atomic operation";
}

}  // namespace

std::uint64_t code_offset(const void* code) { return code ? reinterpret_cast<std::uintptr_t>(code) - image().base : 0; }

Memory::Memory(const Launch& launch) : launch_(launch) {
    window_ = reinterpret_cast<std::uintptr_t>(shared_memory) - launch.shared_symbol_offset;
    const SharedArray& last = launch.shared_arrays[launch.shared_array_count - 1];
    window_bytes_ = std::max<std::size_t>(last.offset + last.bytes, launch.shared_symbol_offset + kMostSharedBytes);
    states_.resize(window_bytes_);
}

void Memory::start_block() {
    for (int i = 0; i < launch_.shared_array_count; ++i) {
        const SharedArray& array = launch_.shared_arrays[i];
        std::memset(reinterpret_cast<char*>(window_ + array.offset), 0xff, array.bytes);
        std::memset(&states_[array.offset], kNeverWritten, array.bytes);
    }
}

bool Memory::in_shared_array(std::uintptr_t address, unsigned bytes) const {
    const std::uintptr_t offset = address - window_;
    for (int i = 0; i < launch_.shared_array_count; ++i) {
        const SharedArray& array = launch_.shared_arrays[i];
        if (offset >= array.offset && offset + bytes <= array.offset + array.bytes) return true;
    }
    return false;
}

Space Memory::locate(std::uintptr_t address, unsigned bytes, Action action, const void* code) {
    if (address - window_ < window_bytes_) {
        if (!in_shared_array(address, bytes)) out_of_bounds(address, bytes, action, code);
        return Space::kShared;
    }
    if (last_hit_ && address >= last_hit_->low && address + bytes <= last_hit_->high) return Space::kGlobal;
    for (int i = 0; i < launch_.allocation_count; ++i) {
        const Extent& extent = launch_.allocations[i];
        if (address < extent.low || address + bytes > extent.high) continue;
        last_hit_ = &extent;
        return Space::kGlobal;
    }
    if (address - current_thread()->stack_low < StackArena::kStackBytes) return Space::kLocal;
    if (address >= image().low && address + bytes <= image().high) return Space::kImage;
    out_of_bounds(address, bytes, action, code);
}

Space Memory::check(std::uintptr_t address, unsigned bytes, Action action, const void* code) {
    const Space space = locate(address, bytes, action, code);
    if (space != Space::kShared) return space;
    Thread& self = *current_thread();
    check_state(address, bytes, action, code);
    self.block->races.access(self.id, address - window_, bytes, action != Action::kRead, action == Action::kAtomic,
                             code);
    return space;
}

Space Memory::access(std::uintptr_t address, unsigned bytes, Action action, const void* code, const char* instruction) {
    const Space space = check(address, bytes, action, code);
    if (space != Space::kShared && space != Space::kGlobal) return space;
    Thread& self = *current_thread();
    static const char* const kNames[2][2] = {{"ld.global", "st.global"}, {"ld.shared", "st.shared"}};
    if (!instruction) instruction = kNames[space == Space::kShared][action == Action::kWrite];
    self.block->counters.log(self, {code, instruction, address, static_cast<std::uint8_t>(bytes), space});
    return space;
}

void Memory::check_state(std::uintptr_t address, unsigned bytes, Action action, const void* code) {
    std::uint8_t* state = &states_[address - window_];
    static constexpr std::uint8_t kAllWritten[16] = {kWritten, kWritten, kWritten, kWritten, kWritten, kWritten,
                                                     kWritten, kWritten, kWritten, kWritten, kWritten, kWritten,
                                                     kWritten, kWritten, kWritten, kWritten};
    if (bytes <= sizeof kAllWritten && std::memcmp(state, kAllWritten, bytes) == 0) return;  // most accesses
    for (unsigned i = 0; i < bytes; ++i) {
        if (state[i] == kInFlight)
            fail(code, "%s of %u bytes at shared byte %zu, where an asynchronous copy has not been waited for",
                 name(action), bytes, static_cast<std::size_t>(address - window_ + i));
        if (action != Action::kWrite && state[i] == kNeverWritten)
            fail(code, "%s of %u bytes at shared byte %zu, which was never written", name(action), bytes,
                 static_cast<std::size_t>(address - window_ + i));
        if (action != Action::kRead) state[i] = kWritten;
    }
}

void Memory::mark_in_flight(const char* shared, unsigned bytes) {
    std::memset(const_cast<char*>(shared), 0xff, bytes);
    std::memset(&states_[reinterpret_cast<std::uintptr_t>(shared) - window_], kInFlight, bytes);
}

void Memory::mark_arrived(const char* shared, unsigned bytes) {
    std::memset(&states_[reinterpret_cast<std::uintptr_t>(shared) - window_], kWritten, bytes);
}

void Memory::mark_arrived(const char* shared, unsigned bytes, const void* code) {
    mark_arrived(shared, bytes);
    Thread& self = *current_thread();
    self.block->races.access(self.id, reinterpret_cast<std::uintptr_t>(shared) - window_, bytes, true, false, code);
}

void Memory::out_of_bounds(std::uintptr_t address, unsigned bytes, Action action, const void* code) const {
    const char* what = name(action);
    if (address - window_ < window_bytes_) {
        const std::uintptr_t offset = address - window_;
        const SharedArray* before = nullptr;
        for (int i = 0; i < launch_.shared_array_count; ++i)
            if (launch_.shared_arrays[i].offset <= offset) before = &launch_.shared_arrays[i];
        if (!before) fail(code, "%s of %u bytes outside shared memory, before the first array", what, bytes);
        fail(code, "%s of %u bytes outside shared memory: byte %zu of an array of %zu", what, bytes,
             static_cast<std::size_t>(offset - before->offset), static_cast<std::size_t>(before->bytes));
    }
    const auto distance = [&](const Extent& extent) {
        return address < extent.low ? extent.low - address : address >= extent.high ? address - extent.high : 0;
    };
    const Extent* end = launch_.allocations + launch_.allocation_count;
    const Extent* nearest = std::min_element(
        launch_.allocations, end, [&](const Extent& a, const Extent& b) { return distance(a) < distance(b); });
    if (nearest == end) fail(code, "%s of %u bytes of global memory, but the launch has no buffer", what, bytes);
    fail(code, "%s of %u bytes outside global memory: byte %td of the nearest buffer, of %zu", what, bytes,
         static_cast<std::ptrdiff_t>(address - nearest->low), static_cast<std::size_t>(nearest->high - nearest->low));
}
