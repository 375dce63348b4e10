// Which keys a block of the backward kernels takes, in which order.
#pragma once

// Key block and key-value head (of all batches) of this block's ticket.
struct Work {
    int key_block, batch_head;
};

// A block takes its work by ticket: those it waits for have started before it, whatever order the GPU starts blocks in.
// Tickets go through the key blocks of `heads_together` key-value heads at a time: of one head at a time, blocks would
// wait for each other; of all, nobody would find a neighbour's queries in L2. Ends with __syncthreads().
__device__ __forceinline__ Work take_work(int* ticket_counter, int* shared_ticket, int key_blocks, int batch_heads,
                                          int heads_together) {
    if (threadIdx.x == 0) *shared_ticket = atomicAdd(ticket_counter, 1);
    __syncthreads();
    const int ticket = __shfl_sync(0xffffffffu, *shared_ticket, 0);
    const int first_head = ticket / (heads_together * key_blocks) * heads_together;
    const int heads = min(heads_together, batch_heads - first_head);
    const int rest = ticket - first_head * key_blocks;
    return {rest / heads, first_head + rest % heads};
}
