// wgmma: results come when their group is waited for, and operands in shared memory are read then, as late as hardware
// may. Until then the accumulators hold NaN. Layouts: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory
// Layout"; the arithmetic is that of mma.cpp.
#include "wgmma.h"

#include <cstring>
#include <limits>

#include "../include/conversions.h"
#include "../include/runtime_calls.h"
#include "warp.h"

#define CALLER __builtin_return_address(0)

namespace {

constexpr int kMaxDepth = 32, kRows = 16, kChunk = 8;  // a chunk is 16 bytes

int depth(const Wgmma& wgmma) { return wgmma.selector == kDense ? 16 : 32; }

struct WgmmaCall : Collective {
    float* d;
    const unsigned* a;
    unsigned long long a_descriptor, b_descriptor;
    int n;
    bool a_m_major, b_n_major, accumulate, bfloat16;
    unsigned metadata;
    int selector;
};

struct WgmmaControl : Collective {
    int pending;
};

float value(unsigned short bits, bool bfloat16) {
    return bfloat16 ? emulated::bfloat16_value(bits) : emulated::half_value(bits);
}

// The eight elements from element (line, along) on, of a matrix whose contiguous axis is `along`. `line` is the row
// of a K-major matrix, k of an MN-major one. In an MN-major one without swizzle the offsets trade places.
void load_chunk(unsigned long long descriptor, bool k_major, int line, int along, bool bfloat16, const void* code,
                float* elements) {
    const int row_bytes = 16 << (4 - (descriptor >> 62)) % 4;  // 16 without swizzle
    if (k_major && row_bytes == 16) fail(code, "the emulator knows no K-major operand of wgmma without swizzle");
    if (descriptor >> 49 & 7) fail(code, "the emulator knows wgmma descriptors with base offset 0 only");
    const auto field = [&](int shift) { return (descriptor >> shift & 0x3fff) << 4; };
    const int columns = row_bytes / 2, lines_field = row_bytes == 16 ? 16 : 32, columns_field = 48 - lines_field;
    std::uintptr_t address = field(0) + line % 8 * row_bytes + line / 8 * field(lines_field) +
                             along / columns * field(columns_field) + along % columns * 2;
    address ^= address >> 3 & (row_bytes - 16);
    Memory& memory = current_thread()->block->memory;
    address += memory.window();
    if (memory.check(address, 16, Action::kRead, code) != Space::kShared)
        fail(code, "an operand of wgmma is not in shared memory");
    unsigned short bits[kChunk];
    std::memcpy(bits, reinterpret_cast<const void*>(address), sizeof bits);
    for (int i = 0; i < kChunk; ++i) elements[i] = value(bits[i], bfloat16);
}

// Calls store(line, k, value) for the steps of k of `lines` rows of A or columns of B.
template <class Store>
void load_shared(unsigned long long descriptor, int first_line, int lines, bool k_major, const Wgmma& wgmma,
                 Store store) {
    float chunk[kChunk];
    const auto load = [&](int line, int along) {
        load_chunk(descriptor, k_major, line, along, wgmma.bfloat16, wgmma.code, chunk);
    };
    if (k_major) {
        for (int line = 0; line < lines; ++line)
            for (int k = 0; k < depth(wgmma); k += kChunk) {
                load(first_line + line, k);
                for (int i = 0; i < kChunk; ++i) store(line, k + i, chunk[i]);
            }
    } else {
        for (int k = 0; k < depth(wgmma); ++k)
            for (int line = 0; line < lines; line += kChunk) {
                load(k, first_line + line);
                for (int i = 0; i < kChunk; ++i) store(line + i, k, chunk[i]);
            }
    }
}

// A's elements as (row, k, value): all of a dense one, of a sparse one those that are stored, at the places in a group
// of four columns that the metadata of two lanes of each four say.
template <class Visit>
void each_of_a(const Wgmma& wgmma, int first_row, Visit visit) {
    const auto element = [&](int lane, int v) { return value(wgmma.a[lane][v / 2] >> 16 * (v % 2), wgmma.bfloat16); };
    if (!wgmma.a_in_registers) {
        load_shared(wgmma.a_descriptor, first_row, kRows, !wgmma.a_m_major, wgmma, visit);
        return;
    }
    for (int lane = 0; lane < 32; ++lane)
        for (int v = 0; v < 8; ++v) {  // registers go down rows first, then along k
            const int lower = v / 2 % 2, half = v / 4, row = lane / 4 + lower * 8;
            if (wgmma.selector == kDense) {
                visit(row, lane % 4 * 2 + v % 2 + half * 8, element(lane, v));
                continue;
            }
            const unsigned source = wgmma.metadata[lane / 4 * 4 + wgmma.selector * 2 + half];
            const unsigned places = source >> (lower * 16 + lane % 4 * 4) & 15;
            if ((places & 3) >= places >> 2)
                fail(wgmma.code, "wgmma.sp: places %u and %u in a group are not in order", places & 3, places >> 2);
            visit(row, half * 16 + lane % 4 * 4 + (v % 2 ? places >> 2 : places & 3), element(lane, v));
        }
}

void load_b(const Wgmma& wgmma, float (&b)[kMaxDepth][256]) {
    load_shared(wgmma.b_descriptor, 0, wgmma.n, !wgmma.b_n_major, wgmma,
                [&](int column, int k, float element) { b[k][column] = element; });
}

void finish(const Wgmma& wgmma, int first_row) {
    float b[kMaxDepth][256];
    load_b(wgmma, b);
    const int registers = wgmma.n / 2;
    double d[kRows][256];
    const auto each = [&](auto visit) {
        for (int lane = 0; lane < 32; ++lane)
            for (int v = 0; v < registers; ++v)
                visit(d[lane / 4 + (v & 2) * 4][v / 4 * 8 + lane % 4 * 2 + (v & 1)], lane, v);
    };
    each([&](double& sum, int lane, int v) {
        const float before = wgmma.d_before.empty() ? wgmma.d[lane][v] : wgmma.d_before[lane * registers + v];
        sum = wgmma.accumulate ? before : 0.0;
    });
    each_of_a(wgmma, first_row, [&](int row, int k, float element) {
        for (int n = 0; n < wgmma.n; ++n) d[row][n] += static_cast<double>(element) * b[k][n];
    });
    each([&](double& sum, int lane, int v) { wgmma.d[lane][v] = static_cast<float>(sum); });
}

WgmmaQueue& queue() {
    WgmmaQueue& queue = current_thread()->warp->wgmmas;
    if (queue.groups.empty()) queue.groups.emplace_back();
    return queue;
}

void issue(Collective* const* waiting, unsigned) {
    const auto call = [&](int lane) -> const WgmmaCall& { return static_cast<WgmmaCall&>(*waiting[lane]); };
    const WgmmaCall& first = call(0);
    WgmmaQueue& pending = queue();
    if (!pending.fenced) fail(first.code, "wgmma without a wgmma_fence() since the last wait");
    Wgmma wgmma{{},
                {},
                {},
                first.a != nullptr,
                first.a_m_major,
                first.b_n_major,
                first.accumulate,
                first.bfloat16,
                first.selector,
                first.n,
                first.a_descriptor,
                first.b_descriptor,
                {},
                first.code};
    bool fresh = true;
    for (const auto& group : pending.groups)
        for (const Wgmma& earlier : group) fresh &= earlier.d[0] != first.d;
    for (int lane = 0; lane < 32; ++lane) {
        const WgmmaCall& mine = call(lane);
        if (mine.a_descriptor != first.a_descriptor || mine.b_descriptor != first.b_descriptor ||
            mine.accumulate != first.accumulate || mine.n != first.n)
            fail(first.code, "wgmma: the lanes of a warp give different descriptors");
        wgmma.d[lane] = mine.d;
        wgmma.metadata[lane] = mine.metadata;
        if (mine.a) std::memcpy(wgmma.a[lane], mine.a, sizeof wgmma.a[lane]);
        if (!fresh) continue;
        wgmma.d_before.insert(wgmma.d_before.end(), mine.d, mine.d + mine.n / 2);
        for (int v = 0; v < mine.n / 2; ++v) mine.d[v] = std::numeric_limits<float>::quiet_NaN();
    }
    pending.groups.back().push_back(std::move(wgmma));
}

void wait(Collective* const* waiting, unsigned lanes) {
    Warp& warp = *current_thread()->warp;
    WgmmaQueue& pending = queue();
    const std::size_t open = 1, left = static_cast<WgmmaControl*>(waiting[0])->pending + open;
    while (pending.groups.size() > left) {
        for (const Wgmma& wgmma : pending.groups.front()) finish(wgmma, warp.threads->id / 32 % 4 * kRows);
        pending.groups.erase(pending.groups.begin());
    }
    pending.fenced = false;
    order_memory(warp, lanes);
}

void meet_control(const char* name, int pending, const void* code, void (*execute)(Collective* const*, unsigned)) {
    WgmmaControl control{{name, kAllLanes, code, execute, true}, pending};
    meet(control);
}

}  // namespace

extern "C" void emulated_wgmma(float* d, int n, const unsigned* a, unsigned long long a_descriptor,
                               unsigned long long b_descriptor, bool a_m_major, bool b_n_major, bool accumulate,
                               bool bfloat16) {
    WgmmaCall call{{"wgmma", kAllLanes, CALLER, issue, true},
                   d,
                   a,
                   a_descriptor,
                   b_descriptor,
                   n,
                   a_m_major,
                   b_n_major,
                   accumulate,
                   bfloat16,
                   0,
                   kDense};
    meet(call);
}

extern "C" void emulated_wgmma_sparse(float* d, int n, const unsigned* a, unsigned long long b_descriptor,
                                      unsigned metadata, int selector) {
    WgmmaCall call{{"wgmma.sp", kAllLanes, CALLER, issue, true},
                   d,
                   a,
                   0,
                   b_descriptor,
                   n,
                   false,
                   true,
                   true,
                   false,
                   metadata,
                   selector};
    meet(call);
}

extern "C" void emulated_wgmma_fence() {
    meet_control("wgmma.fence", 0, CALLER, [](Collective* const*, unsigned) { queue().fenced = true; });
}

extern "C" void emulated_wgmma_commit() {
    meet_control("wgmma.commit_group", 0, CALLER, [](Collective* const*, unsigned) { queue().groups.emplace_back(); });
}

extern "C" void emulated_wgmma_wait(int pending) { meet_control("wgmma.wait_group", pending, CALLER, wait); }
