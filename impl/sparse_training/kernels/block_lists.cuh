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
    return patterns == 1 ? lists : lists + static_cast<long long>(head) * (blocks * (blocks + 2) + 1);
}

struct BlockList {
    const int* entries;
    int count;
};

__device__ __forceinline__ BlockList block_list(const int* lists, int blocks, int block) {
    const int* starts = lists + blocks;
    return {starts + blocks + 1 + starts[block], starts[block + 1] - starts[block]};
}

// Without the key blocks past the first `keys` keys.
__device__ __forceinline__ BlockList visible_blocks(BlockList list, int keys) {
    while (list.count > 0 && list.entries[list.count - 1] * BLOCK >= keys) --list.count;
    return list;
}

struct Work {
    int block, head, batch, batch_head;
};

// `heads` counts those that lists are taken for, each of which stands for `group` query heads.
__device__ __forceinline__ Work take_work(const int* lists, int blocks, int patterns, int heads, int group, int batch,
                                          int heads_together) {
    const int first = blockIdx.x / (heads_together * blocks) * heads_together;
    const int together = min(heads_together, batch * heads - first);
    const int rest = blockIdx.x - first * blocks;
    const int batch_head = first + rest % together, head = batch_head % heads;
    return {lists_of(lists, blocks, patterns, head * group)[rest / together], head, batch_head / heads, batch_head};
}
