// Blocks of W converted to the format two of four (../formats/two_of_four.py, whose _encode is the specification, bit
// for bit): a warp each. One kernel measures the blocks, the other one writes them where they then begin. Any
// architecture. Macro: BLOCK_COLS.
#include "two_of_four_block.cuh"

namespace {

constexpr unsigned ALL = 0xffffffffu;
constexpr int ROWS = 32;
constexpr int MASKS = BLOCK_COLS / 32;  // of a bit for each column
constexpr int BANKS = 8;                // of rows of X, modulo 8

// Metadata of a group by the bits of its non-zeros, two at most: their places; of a single one or none, those of a zero
// too.
constexpr unsigned long long PLACES = 0x498e4dce498e4944ull;

struct Tile {
    unsigned short values[ROWS][BLOCK_COLS + 4];  // rows of all lanes in different banks

    __device__ uint2& group(int row, int index) { return *reinterpret_cast<uint2*>(&values[row][index * 4]); }
};

struct Shared {
    Tile own, gathered;
    unsigned moved[MASKS][ROWS];  // of a row, which columns leave
    unsigned needed[MASKS], fits[MASKS], taken[MASKS];
    unsigned char columns[BLOCK_COLS];  // which column of W a gathered one is
    unsigned char places[BLOCK_COLS];   // to which gathered column a column of W goes now
    unsigned char free[BLOCK_COLS];  // gathered columns in the order in which they are given to those that fit nowhere
};

// The non-zeros of a group as four bits.
__device__ __forceinline__ unsigned pattern(const uint2& group) {
    return (group.x << 16 != 0 ? 1 : 0) | (group.x >> 16 != 0 ? 2 : 0) | (group.y << 16 != 0 ? 4 : 0) |
           (group.y >> 16 != 0 ? 8 : 0);
}

// Of them those that are too many: beyond the first two, or, `mirrored`, before the last two.
__device__ __forceinline__ unsigned surplus(unsigned bits, bool mirrored) {
    const int count = __popc(bits);
    if (mirrored) return count <= 2 ? 0 : count == 3 ? bits & -bits : 3;
    const unsigned without_first = bits & (bits - 1);
    return without_first & (without_first - 1);
}

// Bits below this lane's.
__device__ __forceinline__ unsigned before(int lane) {
    return (1u << lane) - 1;
}

__device__ __forceinline__ int sum_below(const unsigned* masks, int index, unsigned among) {
    int sum = 0;
    for (int i = 0; i < index; ++i) sum += __popc(masks[i] & among);
    return sum;
}

// Marks what leaves `from`, row by row, and the columns of W that are needed for it; whether there is any.
__device__ __forceinline__ bool mark(Shared& shared, Tile& from, bool first, int lane) {
    unsigned any = 0;
    if (lane < MASKS) shared.needed[lane] = 0;
    __syncwarp();
    for (int mask = 0; mask < MASKS; ++mask) {
        unsigned moved = 0;
        for (int i = 0; i < 8; ++i)
            moved |= surplus(pattern(from.group(lane, mask * 8 + i)), first && i / 2 % 2 == 1) << 4 * i;
        shared.moved[mask][lane] = moved;
        for (int distance = 16; distance > 0; distance /= 2) moved |= __shfl_xor_sync(ALL, moved, distance);
        any |= moved;
        const int column = shared.columns[mask * 32 + lane];
        if (moved >> lane & 1) atomicOr(&shared.needed[column / 32], 1u << column % 32);
        __syncwarp();
    }
    return any != 0;
}

// Gives every needed column a gathered one that is not taken. ldmatrix reads X's rows by eights: of each residue modulo
// 8 the first ones go to places of this residue, at first; others to any place, neighbours to different groups.
__device__ __forceinline__ void find_places(Shared& shared, bool first, int lane) {
    int needed = 0;
    for (int mask = 0; mask < MASKS; ++mask) needed += __popc(shared.needed[mask]);
    const int most = first ? (needed + 31) / 32 * (32 / BANKS) : 0;  // of a residue
    const unsigned residue = 0x01010101u << lane % BANKS;
    for (int mask = 0; mask < MASKS; ++mask) {
        const unsigned bits = shared.needed[mask];
        const int rank = sum_below(shared.needed, mask, residue) + __popc(bits & residue & before(lane));
        const bool fits = (bits >> lane & 1) && rank < most;
        const unsigned fitting = __ballot_sync(ALL, fits);
        if (lane == 0) shared.fits[mask] = fitting;
        if (fits) {
            const int place = rank * BANKS + lane % BANKS;
            shared.places[mask * 32 + lane] = place;
            atomicOr(&shared.taken[place / 32], 1u << place % 32);
        }
    }
    __syncwarp();
    int known = 0;
    for (int mask = 0; mask < MASKS; ++mask) {
        const int place = lane % 8 * 4 + lane / 8;
        const bool is_free = !(shared.taken[mask] >> place & 1);
        const unsigned all = __ballot_sync(ALL, is_free);
        if (is_free) shared.free[known + __popc(all & before(lane))] = mask * 32 + place;
        known += __popc(all);
    }
    __syncwarp();
    int given = 0;
    for (int mask = 0; mask < MASKS; ++mask) {
        const unsigned others = shared.needed[mask] & ~shared.fits[mask];
        if (others >> lane & 1) {
            const int place = shared.free[given + __popc(others & before(lane))];
            shared.places[mask * 32 + lane] = place;
            atomicOr(&shared.taken[place / 32], 1u << place % 32);
        }
        given += __popc(others);
    }
    __syncwarp();
}

// Moves what is marked from `from` to the gathered columns, the lane's row.
__device__ __forceinline__ void move(Shared& shared, Tile& from, int lane) {
    for (int mask = 0; mask < MASKS; ++mask) {
        for (unsigned moved = shared.moved[mask][lane]; moved != 0; moved &= moved - 1) {
            const int column = mask * 32 + __ffs(moved) - 1;
            unsigned short& value = from.values[lane][column];
            shared.gathered.values[lane][shared.places[shared.columns[column]]] = value;
            value = 0;
        }
    }
    __syncwarp();
    for (int mask = 0; mask < MASKS; ++mask) {
        const int column = mask * 32 + lane;
        if (shared.needed[mask] >> lane & 1) shared.columns[shared.places[column]] = column;
        __syncwarp();
    }
}

// A block of W whose groups then have two non-zeros at most; how many steps are gathered.
__device__ __forceinline__ int gather(Shared& shared, const uint4* __restrict__ tile, int lane) {
    constexpr int CHUNKS = BLOCK_COLS / 8;
    for (int i = lane; i < ROWS * CHUNKS; i += 32) {
        const uint4 chunk = tile[i];
        const unsigned words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
        unsigned* const to = reinterpret_cast<unsigned*>(&shared.own.values[i / CHUNKS][i % CHUNKS * 8]);
        unsigned* const empty = reinterpret_cast<unsigned*>(&shared.gathered.values[i / CHUNKS][i % CHUNKS * 8]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const unsigned low = words[j] & 0xffff, high = words[j] >> 16;
            to[j] = (low == 0x8000 ? 0 : low) | (high == 0x8000 ? 0 : high) << 16;  // without -0.0
            empty[j] = 0;
        }
    }
    for (int i = lane; i < BLOCK_COLS; i += 32) shared.columns[i] = i;
    if (lane < MASKS) shared.taken[lane] = 0;
    __syncwarp();
    bool more = mark(shared, shared.own, true, lane);
    for (bool first = true; more; first = false) {
        find_places(shared, first, lane);
        if (first) {
            move(shared, shared.own, lane);
        } else {
            move(shared, shared.gathered, lane);
        }
        more = mark(shared, shared.gathered, false, lane);
    }
    int steps = 0;
    for (int mask = 0; mask < MASKS; ++mask) steps += shared.taken[mask] != 0;
    return steps;
}

// The two slots of the lane's register `i` of a step as a word.
__device__ __forceinline__ unsigned slots(Tile& tile, int step, int i, int lane) {
    const uint2 group = tile.group(i / 4 * 16 + i % 2 * 8 + lane / 4, step * 8 + i % 4 / 2 * 4 + lane % 4);
    const unsigned places = PLACES >> 4 * pattern(group) & 15;
    const unsigned low = (places & 2 ? group.y : group.x) >> 16 * (places & 1) & 0xffff;
    const unsigned high = (places & 8 ? group.y : group.x) >> 4 * (places & 4) & 0xffff;
    return low | high << 16;
}

// The lane's word of metadata of a step.
__device__ __forceinline__ unsigned metadata(Tile& tile, int step, int lane) {
    unsigned word = 0;
    for (int i = 0; i < 8; ++i) {
        const uint2 group = tile.group(lane % 4 / 2 * 16 + i / 4 * 8 + lane / 4, step * 8 + lane % 2 * 4 + i % 4);
        word |= static_cast<unsigned>(PLACES >> 4 * pattern(group) & 15) << 4 * i;
    }
    return word;
}

// Calls own(bits, halves, pair): of a lane's pair of own steps the parities, and the slots that are not zero, by calls
// of half(value) in their order. Then gathered(flags, step) likewise with word(value).
struct Counts {
    int halves = 0, words = 0;

    __device__ int length() const { return (halves + 1) / 2 + words; }
};

template <typename Half>
__device__ __forceinline__ unsigned own_pair(Tile& tile, int pair, int lane, Counts& counts, const Half& half) {
    unsigned parities = 0;
    for (int i = 0; i < 16; ++i) {
        const unsigned word = slots(tile, pair * 2 + i / 8, i % 8, lane);
        for (int slot = 0; slot < 2; ++slot) {
            const unsigned short value = word >> 16 * slot;
            if (value != 0) half(value, counts.halves++);
            parities |= (counts.halves & 1u) << (2 * i + slot);
        }
    }
    return parities;
}

template <typename Word>
__device__ __forceinline__ unsigned gathered_step(Tile& tile, int step, int lane, Counts& counts, const Word& word) {
    unsigned flags = 0;
    for (int i = 0; i < REGISTERS; ++i) {
        const unsigned value = slots(tile, step, i, lane);
        if (value == 0) continue;
        word(value, counts.words++);
        flags |= 1u << i;
    }
    return flags;
}

// What all lanes have, and where this lane's words begin among them.
__device__ __forceinline__ int scan(int length, int lane, int& total) {
    int sum = length;
    for (int distance = 1; distance < 32; distance *= 2) {
        const int below = __shfl_up_sync(ALL, sum, distance);
        if (lane >= distance) sum += below;
    }
    total = __shfl_sync(ALL, sum, 31);
    return sum - length;
}

__device__ __forceinline__ Counts count(Shared& shared, int steps, int lane) {
    Counts counts;
    for (int pair = 0; pair < OWN_PAIRS; ++pair) own_pair(shared.own, pair, lane, counts, [](unsigned short, int) {});
    for (int step = 0; step < steps; ++step) gathered_step(shared.gathered, step, lane, counts, [](unsigned, int) {});
    return counts;
}

}  // namespace

// tiles: fp16 [blocks, 32, BLOCK_COLS]; counts: int32 [blocks], the units of UNIT bytes of each.
extern "C" __global__ void __launch_bounds__(32) measure_two_of_four(const uint4* __restrict__ tiles,
                                                                     int* __restrict__ counts) {
    extern __shared__ __align__(16) unsigned char shared_memory[];
    Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
    const int lane = threadIdx.x;
    const int steps = gather(shared, tiles + static_cast<long long>(blockIdx.x) * (ROWS * BLOCK_COLS / 8), lane);
    int total;
    scan(count(shared, steps, lane).length(), lane, total);
    if (lane == 0) counts[blockIdx.x] = (OWN_BYTES + steps * GATHERED_BYTES + total * 4 + UNIT - 1) / UNIT;
}

// begin: int32 [blocks], the unit at which each begins in `units`.
extern "C" __global__ void __launch_bounds__(32) convert_two_of_four(const uint4* __restrict__ tiles,
                                                                     const int* __restrict__ begin,
                                                                     unsigned char* __restrict__ units) {
    extern __shared__ __align__(16) unsigned char shared_memory[];
    Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
    const int lane = threadIdx.x;
    const int steps = gather(shared, tiles + static_cast<long long>(blockIdx.x) * (ROWS * BLOCK_COLS / 8), lane);
    const Counts counts = count(shared, steps, lane);
    int total;
    const int start = scan(counts.length(), lane, total);

    unsigned char* const base = units + static_cast<long long>(begin[blockIdx.x]) * UNIT;
    const auto word_at = [&](int byte) -> unsigned& { return *reinterpret_cast<unsigned*>(base + byte); };
    const auto half_at = [&](int byte) -> unsigned short& { return *reinterpret_cast<unsigned short*>(base + byte); };
    const int words = OWN_BYTES + steps * GATHERED_BYTES;
    const int own_words = words + start * 4;
    const int gathered_words = own_words + (counts.halves + 1) / 2 * 4;

    Counts written;
    if (counts.halves % 2 == 1) half_at(gathered_words - 4) = 0;  // what nothing else is written to
    for (int pair = 0; pair < OWN_PAIRS; ++pair) {
        word_at((pair * 32 + lane) * 4) =
            own_pair(shared.own, pair, lane, written,
                     [&](unsigned short value, int index) { half_at(own_words + (index ^ 1) * 2) = value; });
        for (int i = 0; i < 2; ++i)
            word_at(METADATA + (pair * 32 + lane) * 8 + i * 4) = metadata(shared.own, pair * 2 + i, lane);
    }
    half_at(STARTS + lane * 2) = start | steps << STEPS_BIT;
    for (int step = 0; step < steps; ++step) {
        const int head = OWN_BYTES + step * GATHERED_BYTES;
        const unsigned flags = gathered_step(shared.gathered, step, lane, written, [&](unsigned value, int index) {
            word_at(gathered_words + index * 4) = value;
        });
        word_at(head + lane * 4) = metadata(shared.gathered, step, lane);
        const bool taken = shared.taken[step] >> lane & 1;
        half_at(head + 4 * 32 + lane * 2) = flags | (taken ? shared.columns[step * 32 + lane] : lane % BANKS) << 8;
    }
    const int end = words + total * 4;
    if (end + lane * 4 < (end + UNIT - 1) / UNIT * UNIT) word_at(end + lane * 4) = 0;
}
