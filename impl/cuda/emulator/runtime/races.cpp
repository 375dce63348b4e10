#include "races.h"

#include <algorithm>
#include <new>

#include "block.h"

Races::Races(int threads, std::size_t shared_bytes, bool enabled) : enabled_(enabled) {
    if (!enabled) return;
    clocks_.resize(threads);
    bytes_.reset(static_cast<Byte*>(std::calloc(shared_bytes, sizeof(Byte))));
    if (!bytes_) throw std::bad_alloc();
}

void Races::start_block(const Launch& launch) {
    if (!enabled_) return;
    for (int i = 0; i < launch.shared_array_count; ++i) {
        const SharedArray& array = launch.shared_arrays[i];
        std::fill_n(&bytes_[array.offset], array.bytes, Byte{});
    }
    for (std::size_t thread = 0; thread < clocks_.size(); ++thread) {
        clocks_[thread].assign(clocks_.size(), 0);
        clocks_[thread][thread] = 1;
    }
}

void Races::release(int thread, Clock& clock) {
    if (!enabled_) return;
    clock.resize(clocks_.size());
    Clock& mine = clocks_[thread];
    for (std::size_t i = 0; i < mine.size(); ++i) clock[i] = std::max(clock[i], mine[i]);
    ++mine[thread];
}

void Races::acquire(int thread, const Clock& clock) {
    if (!enabled_) return;
    Clock& mine = clocks_[thread];
    for (std::size_t i = 0; i < clock.size(); ++i) mine[i] = std::max(mine[i], clock[i]);
}

bool Races::ordered(const Touch& earlier, int thread) const {
    return earlier.thread == thread || clocks_[thread][earlier.thread] >= earlier.clock;
}

void Races::check(const Touch& earlier, const Touch& mine, const char* did, std::size_t offset) const {
    if (earlier.clock == 0 || ordered(earlier, mine.thread) || (earlier.atomic && mine.atomic)) return;
    fail(mine.code, "race at shared byte %zu: thread %d %s it at @%zx, and no barrier lies between", offset,
         earlier.thread, did, static_cast<std::size_t>(code_offset(earlier.code)));
}

void Races::access(int thread, std::size_t offset, unsigned bytes, bool write, bool atomic, const void* code) {
    if (!enabled_) return;
    const Touch mine = {clocks_[thread][thread], static_cast<std::uint16_t>(thread), atomic, code};
    for (std::size_t i = offset; i < offset + bytes; ++i) {
        Byte& byte = bytes_[i];
        check(byte.write, mine, "wrote", i);
        if (write) {
            for (const Touch& read : byte.reads) check(read, mine, "read", i);
            byte = {mine, {}};
        } else {
            byte.reads[ordered(byte.reads[0], thread) ? 0 : 1] = mine;
        }
    }
}
