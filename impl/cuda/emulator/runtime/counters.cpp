#include "counters.h"

#include <algorithm>
#include <mutex>

#include "block.h"

namespace {

constexpr int kLanes = 32, kBanks = 32, kBankBytes = 4, kSectorBytes = 32;

// The distinct units of `unit_bytes` that some lanes' accesses touch.
class Units {
public:
    explicit Units(int unit_bytes) : unit_bytes_(unit_bytes) {}
    void add(const Access& access) {
        const std::uintptr_t last = (access.address + access.bytes - 1) / unit_bytes_;
        for (std::uintptr_t unit = access.address / unit_bytes_; unit <= last; ++unit) units_[count_++] = unit;
    }
    const std::uintptr_t* begin() const { return units_; }
    const std::uintptr_t* end() const { return units_ + count_; }
    int distinct() {
        std::sort(units_, units_ + count_);
        return count_ = std::unique(units_, units_ + count_) - units_;
    }

private:
    static constexpr int kMostBytes = 16;  // of an access; one not aligned may touch one more unit
    std::uintptr_t units_[kLanes * (kMostBytes / kBankBytes + 1)];
    int unit_bytes_, count_ = 0;
};

// Shared memory serves at most one word of each bank per wavefront, to whichever lanes want it; accesses of 8 bytes go
// by half-warps and those of 16 by quarter-warps.
void count_wavefronts(const Access* const* lanes, int bytes, CounterRow& row) {
    const int lanes_at_once = bytes <= 4 ? kLanes : kLanes * 4 / bytes;
    for (int first = 0; first < kLanes; first += lanes_at_once) {
        Units words(kBankBytes);
        for (int lane = first; lane < first + lanes_at_once; ++lane)
            if (lanes[lane]) words.add(*lanes[lane]);
        if (words.distinct() == 0) continue;
        unsigned words_of_bank[kBanks] = {};
        for (std::uintptr_t word : words) ++words_of_bank[word % kBanks];
        row.wavefronts += *std::max_element(words_of_bank, words_of_bank + kBanks);
        ++row.ideal_wavefronts;
    }
}

void count_sectors(const Access* const* lanes, int bytes, CounterRow& row) {
    Units sectors(kSectorBytes);
    int active = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!lanes[lane]) continue;
        sectors.add(*lanes[lane]);
        ++active;
    }
    row.sectors += sectors.distinct();
    row.ideal_sectors += (active * bytes + kSectorBytes - 1) / kSectorBytes;
}

}  // namespace

void Counters::count(const char* instruction, const void* code) {
    if (enabled_) ++rows_[{code, instruction, 0}].instructions;
}

void Counters::log(Thread& thread, const Access& access) {
    if (enabled_) thread.accesses.push_back(access);
}

// Lanes that are to execute different instructions next: the one that comes first in the code goes first. So lanes
// that stay longer in a loop, or take another branch, are waited for where the paths meet again.
void Counters::gather(const Warp& warp) {
    if (!enabled_) return;
    std::size_t next[kLanes] = {};
    for (;;) {
        const Access* first = nullptr;
        for (int lane = 0; lane < warp.size; ++lane) {
            const auto& log = warp.threads[lane].accesses;
            if (next[lane] < log.size() && (!first || log[next[lane]].code < first->code)) first = &log[next[lane]];
        }
        if (!first) break;
        const Access* lanes[kLanes] = {};
        for (int lane = 0; lane < warp.size; ++lane) {
            const auto& log = warp.threads[lane].accesses;
            if (next[lane] == log.size()) continue;
            const Access& mine = log[next[lane]];
            if (mine.code != first->code || mine.instruction != first->instruction || mine.space != first->space)
                continue;
            lanes[lane] = &mine;
            ++next[lane];
        }
        add(lanes);
    }
    for (int lane = 0; lane < warp.size; ++lane) warp.threads[lane].accesses.clear();
}

void Counters::add(const Access* const* lanes) {
    const Access& access = **std::find_if(lanes, lanes + kLanes, [](const Access* lane) { return lane != nullptr; });
    CounterRow& row = rows_[{access.code, access.instruction, access.bytes}];
    ++row.instructions;
    if (access.space == Space::kShared) count_wavefronts(lanes, access.bytes, row);
    if (access.space == Space::kGlobal) count_sectors(lanes, access.bytes, row);
}

void Counters::report(Launch& launch) {
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    for (auto& [key, row] : rows_) {
        const auto& [code, instruction, bytes] = key;
        row.code_offset = code_offset(code);
        row.instruction = instruction;
        row.bytes = bytes;
        launch.report_counter(&row);
    }
}
