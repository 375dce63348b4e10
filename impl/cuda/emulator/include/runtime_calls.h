// The runtime's functions, as the kernel's side and the runtime itself see them. They are not inlined, so that their
// return address names the source line. Operands go by address: the runtime reads those of all lanes at once.
#pragma once

#include "vector_types.h"

enum EmulatedAtomic {
    kAtomicExchange,
    kAtomicCompareAndSwap,
    kAtomicAdd,
    kAtomicMin,
    kAtomicMax,
    kAtomicAnd,
    kAtomicOr,
    kAtomicXor
};
enum EmulatedShuffle { kShuffleIndex, kShuffleUp, kShuffleDown, kShuffleXor };
enum EmulatedVote { kBallot, kMatchAny, kReduceAdd, kReduceMin, kReduceMax };

extern "C" {
// Constant within one CUDA thread, so the compiler may keep the value.
uint3 emulated_thread_index() __attribute__((const));
uint3 emulated_block_index() __attribute__((const));
dim3 emulated_block_dimensions() __attribute__((const));
dim3 emulated_grid_dimensions() __attribute__((const));
unsigned emulated_shared_address(const void* shared);

void emulated_block_barrier(const char* file, int line);
int emulated_block_count(bool predicate, const char* file, int line);  // of the threads where it holds
void emulated_named_barrier(int barrier, int threads, bool wait);
void emulated_warp_barrier(unsigned mask);
unsigned long long emulated_shuffle(EmulatedShuffle mode, unsigned mask, unsigned long long value, int operand,
                                    int width);
unsigned emulated_vote(EmulatedVote mode, unsigned mask, long long value);

void emulated_mma_m8n8k4(void* d, const unsigned* a, const unsigned* b, bool a_column, bool b_row, bool f32);
void emulated_mma_m16n8k16(float* d, const unsigned* a, const unsigned* b, bool bfloat16);
void emulated_mma_m16n8k8(float* d, const unsigned* a, const unsigned* b);
void emulated_mma_sp_m16n8k32(float* d, const unsigned* a, const unsigned* b, unsigned metadata, int selector);
void emulated_load_matrix(unsigned* fragment, int matrices, const void* shared_row, bool transposed);

// `a` is nullptr when that operand is in shared memory, where its descriptor says; M-major or N-major, or else K-major.
void emulated_wgmma(float* d, int n, const unsigned* a, unsigned long long a_descriptor,
                    unsigned long long b_descriptor, bool a_m_major, bool b_n_major, bool accumulate, bool bfloat16);
// The same with a sparse A in registers, an N-major B, and sums added to.
void emulated_wgmma_sparse(float* d, int n, const unsigned* a, unsigned long long b_descriptor, unsigned metadata,
                           int selector);
void emulated_wgmma_fence();
void emulated_wgmma_commit();
void emulated_wgmma_wait(int pending);

void emulated_mbarrier_init(unsigned long long* barrier, unsigned arrivals);
void emulated_mbarrier_arrive(unsigned long long* barrier, unsigned bytes);
void emulated_mbarrier_wait(unsigned long long* barrier, unsigned parity);
void emulated_tma_load(void* shared, const void* map, unsigned long long* barrier, int column, int row, int head,
                       int batch);
void emulated_bulk_load(void* shared, const void* global, unsigned bytes, unsigned long long* barrier);
void emulated_bulk_store(void* global, const void* shared, unsigned bytes, bool add);
void emulated_bulk_commit();
void emulated_bulk_wait();

void emulated_copy_async(void* shared, const void* global, int bytes, int source_bytes);
void emulated_copy_async_commit();
void emulated_copy_async_wait(int pending);

unsigned emulated_atomic_unsigned(EmulatedAtomic operation, void* address, unsigned operand, unsigned compare);
int emulated_atomic_int(EmulatedAtomic operation, void* address, int operand, int compare);
unsigned long long emulated_atomic_unsigned_long_long(EmulatedAtomic operation, void* address,
                                                      unsigned long long operand, unsigned long long compare);
float emulated_atomic_add_float(void* address, float operand);
unsigned emulated_atomic_add_half2(void* address, unsigned operand);

void emulated_count_mufu();
[[noreturn]] void emulated_trap(const char* why);
}
