// A pattern's kept blocks as lists, as block_pattern.py makes them: of the key blocks of each query block (block CSR),
// or of the query blocks of each key block (CSC). For each pattern, of which there is one or one for each query head:
//   order    [blocks]           which list has which turn, the longest first
//   starts   [blocks + 1]       where each list starts among the entries
//   entries  [blocks * blocks]  ascending within a list; what lies past the last list means nothing
//
// A grid has one block for each list of each head of each sequence. It takes `heads_together` heads at a time, so that
// their tensors fit in L2, and their longest lists first: the grid ends with short ones.
#pragma once

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

// `heads` counts those that lists are taken for, each of which stands for `group` query heads. PARTS blocks of threads
// share a list.
template <int PARTS = 1>
__device__ __forceinline__ Work take_work(const int* lists, int blocks, int patterns, int heads, int group, int batch,
                                          int heads_together) {
    const int turns = blocks * PARTS;
    const int first = blockIdx.x / (heads_together * turns) * heads_together;
    const int together = min(heads_together, batch * heads - first);
    const int rest = blockIdx.x - first * turns, turn = rest / together;
    const int batch_head = first + rest % together, head = batch_head % heads;
    const int block = lists_of(lists, blocks, patterns, head * group)[turn / PARTS];
    return {block, turn % PARTS, head, batch_head / heads, batch_head};
}
