// A pattern's kept blocks as lists, as block_pattern.py makes them: of the key blocks of each query block (block CSR),
// or of the query blocks of each key block (CSC). For each pattern, of which there is one or one for each query head:
//   order    [blocks]           which list has which turn, the longest first
//   starts   [blocks + 1]       where each list starts among the entries
//   entries  [blocks * blocks]  ascending within a list; what lies past the last list means nothing
//
// There is work for each list of each head of each sequence. It is taken for `heads_together` heads at a time, so that
// their tensors fit in L2, and their longest lists first: the work ends with short ones.
#pragma once
#include "arguments.cuh"

__device__ __forceinline__ const int* lists_of(const int* lists, int blocks, int patterns, int head) {
    return patterns == 1 ? lists : lists + head * (blocks * (blocks + 2) + 1);
}

__device__ __forceinline__ const int* list_entries(const int* lists, int blocks) {
    return lists + 2 * blocks + 1;
}

// A list's place among the entries.
struct BlockList {
    int start, count;
};

__device__ __forceinline__ BlockList block_list(const int* lists, int blocks, int block) {
    const int* starts = lists + blocks;
    return {starts[block], starts[block + 1] - starts[block]};
}

// The key blocks of a query block among the first `keys` keys.
struct KeyBlocks {
    const int* entries;
    int count;
};

__device__ __forceinline__ KeyBlocks visible_blocks(const int* lists, int blocks, int block, int keys) {
    const BlockList list = block_list(lists, blocks, block);
    KeyBlocks visible = {list_entries(lists, blocks) + list.start, list.count};
    while (visible.count > 0 && visible.entries[visible.count - 1] * BLOCK >= keys) --visible.count;
    return visible;
}

// Of the first `visible` keys, those in none of the blocks.
__device__ __forceinline__ int pruned_keys(const KeyBlocks& list, int visible) {
    int pruned = visible;
    for (int i = 0; i < list.count; ++i) pruned -= min(max(visible - list.entries[i] * BLOCK, 0), BLOCK);
    return pruned;
}

struct Work {
    int block, part, head, batch, batch_head;
};

// The work of this number; a block's, where a grid has one block for each. `heads` counts those that lists are taken
// for, each of which stands for `group` query heads. PARTS works share a list.
template <int PARTS = 1>
__device__ __forceinline__ Work take_work(const int* lists, int blocks, int patterns, int heads, int group, int batch,
                                          int heads_together, unsigned index = blockIdx.x) {
    const int turns = blocks * PARTS;
    const int first = index / (heads_together * turns) * heads_together;
    const int together = min(heads_together, batch * heads - first);
    const int rest = index - first * turns, turn = rest / together;
    const int batch_head = first + rest % together, head = batch_head % heads;
    const int block = lists_of(lists, blocks, patterns, head * group)[turn / PARTS];
    return {block, turn % PARTS, head, batch_head / heads, batch_head};
}

// A walk over the key blocks of a query block, TILE keys a step.
template <int TILE>
struct KeyWalk {
    Work work;
    int first_row;            // of the queries
    int keys, causal_offset;  // how many keys of the sequence count; for visible_keys
    KeyBlocks blocks;
    int steps;

    __device__ __forceinline__ int key(int step) const {
        return blocks.entries[step / (BLOCK / TILE)] * BLOCK + step % (BLOCK / TILE) * TILE;
    }
};

// ROWS queries belong to a work, which is that of number `index`.
template <int TILE, int ROWS = BLOCK>
__device__ __forceinline__ KeyWalk<TILE> walk_keys(const int* rows, const int* lengths, SIZES,
                                                   unsigned index = blockIdx.x) {
    KeyWalk<TILE> walk;
    walk.work = take_work<BLOCK / ROWS>(rows, blocks, patterns, num_heads, 1, batch, heads_together, index);
    walk.first_row = walk.work.block * BLOCK + walk.work.part * ROWS;
    walk.keys = key_count(lengths, walk.work.batch, seqlen);
    walk.causal_offset = causal ? 0 : walk.keys;
    const int last_row = min(walk.first_row + ROWS, seqlen) - 1;
    walk.blocks = visible_blocks(lists_of(rows, blocks, patterns, walk.work.head), blocks, walk.work.block,
                                 visible_keys(last_row, walk.keys, walk.causal_offset));
    walk.steps = walk.blocks.count * (BLOCK / TILE);
    return walk;
}

// A walk over the query blocks of a key block, TILE queries a step, through the query heads of its group.
struct QueryWalk {
    int head;       // of the tile
    int next, end;  // tiles of the head's list
};

// Goes on to the next tile: `row` is its first. False past the last, before `end_head`.
template <int TILE>
__device__ __forceinline__ bool next_tile(QueryWalk& walk, int& row, const int* columns, int block, int end_head,
                                          int blocks, int patterns, int causal) {
    const int* lists = lists_of(columns, blocks, patterns, max(walk.head, 0));
    while (walk.next == walk.end) {
        if (++walk.head >= end_head) return false;
        lists = lists_of(columns, blocks, patterns, walk.head);
        const BlockList list = block_list(lists, blocks, block);
        walk.next = list.start * (BLOCK / TILE);
        walk.end = walk.next + list.count * (BLOCK / TILE);
        // Under a causal mask the queries of earlier blocks do not see these keys.
        while (causal && walk.next < walk.end && list_entries(lists, blocks)[walk.next / (BLOCK / TILE)] < block)
            walk.next += BLOCK / TILE;
    }
    row = list_entries(lists, blocks)[walk.next / (BLOCK / TILE)] * BLOCK + walk.next % (BLOCK / TILE) * TILE;
    ++walk.next;
    return true;
}
