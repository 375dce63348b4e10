// Tensor Core products of a warpgroup (wgmma, sm_90a): 64 rows, N columns, 16 steps of k, fp32 accumulators.
//
// A warpgroup is four warps, the first of them a multiple of 4; all of its threads execute each of these functions.
// Between wgmma_fence() and the wait for their group, neither accumulators nor A registers may be touched.
// Fragments: warp w holds rows 16 w to 16 w + 15, of A as for mma.m16n8k16, of D as N / 8 tiles of mma.m16n8k16.
// Layouts and descriptors: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout".
#pragma once

// Where a matrix of 16-bit elements lies in shared memory, in rows of ROW_BYTES swizzled as TMA does it (tma.cuh), each
// pattern of 8 rows at a multiple of 8 * ROW_BYTES. `stride_bytes` lies between groups of 8 rows.
// K-major (rows along k): `leading_bytes` is not used; 16 further elements of k are 32 bytes.
// MN-major (rows along m or n, one for each k): `leading_bytes` lies between rows that are side by side; when rows are
// of 16 bytes, which are not swizzled, the two trade places.
template <int ROW_BYTES = 128>
__device__ __forceinline__ unsigned long long matrix_descriptor(const void* shared, unsigned leading_bytes,
                                                                unsigned stride_bytes) {
    constexpr unsigned long long swizzle = ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : ROW_BYTES == 32 ? 3 : 0;
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    return swizzle << 62 | static_cast<unsigned long long>(stride_bytes >> 4) << 32 |
           static_cast<unsigned long long>(leading_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// The same `bytes`, a multiple of 16, further on.
__device__ __forceinline__ unsigned long long advance_descriptor(unsigned long long descriptor, unsigned bytes) {
    return descriptor + (bytes >> 4);
}

// The same by an addition of 32 bits, as addresses do not reach further: fewer instructions in the loop of
// two_of_four_sm90a.cu, more in one of bitmap_sm90a.cu.
__device__ __forceinline__ unsigned long long advance_address(unsigned long long descriptor, unsigned bytes) {
    return (descriptor & 0xffffffff00000000ull) | (static_cast<unsigned>(descriptor) + (bytes >> 4));
}

// Orders this thread's accesses to accumulators and A registers before the wgmmas that follow.
__device__ __forceinline__ void wgmma_fence() {
#ifdef VOLTABENCH_EMULATED
    emulated::wgmma_fence();
#else
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Closes the group of wgmmas since the last commit.
__device__ __forceinline__ void wgmma_commit() {
#ifdef VOLTABENCH_EMULATED
    emulated::wgmma_commit();
#else
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most PENDING of the newest groups are still running.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
#ifdef VOLTABENCH_EMULATED
    emulated::wgmma_wait(PENDING);
#else
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#endif
}

// The compiler moves no use of these registers across this place: wgmma_wait does not name what it waits for.
template <int N>
__device__ __forceinline__ void pin_registers(float (&registers)[N]) {
#ifndef VOLTABENCH_EMULATED
#    pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(registers[i])::"memory");
#endif
}

// `value`, of which the compiler then knows nothing: what depends on it is computed here, not kept from before a loop.
__device__ __forceinline__ int computed_here(int value) {
#ifndef VOLTABENCH_EMULATED
    asm volatile("" : "+r"(value));
#endif
    return value;
}

// Changes how many registers each thread of the warpgroup may use, a multiple of 8. The block is compiled with
// __launch_bounds__, and what some warpgroups give up others may take.
template <int REGISTERS>
__device__ __forceinline__ void give_up_registers() {
#ifndef VOLTABENCH_EMULATED
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}

template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
#ifndef VOLTABENCH_EMULATED
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}

#define WGMMA_EIGHT(d, i)                                                                                       \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define WGMMA_NAMES_8 "{%0, %1, %2, %3}"
#define WGMMA_FLOATS_8(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define WGMMA_NAMES_16 "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define WGMMA_FLOATS_16(d) WGMMA_EIGHT(d, 0)
#define WGMMA_NAMES_32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define WGMMA_FLOATS_32(d) WGMMA_EIGHT(d, 0), WGMMA_EIGHT(d, 8)
#define WGMMA_NAMES_64                                                        \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define WGMMA_FLOATS_64(d) WGMMA_EIGHT(d, 0), WGMMA_EIGHT(d, 8), WGMMA_EIGHT(d, 16), WGMMA_EIGHT(d, 24)
#define WGMMA_NAMES_128                                                                \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define WGMMA_FLOATS_128(d)                                                                           \
    WGMMA_EIGHT(d, 0), WGMMA_EIGHT(d, 8), WGMMA_EIGHT(d, 16), WGMMA_EIGHT(d, 24), WGMMA_EIGHT(d, 32), \
        WGMMA_EIGHT(d, 40), WGMMA_EIGHT(d, 48), WGMMA_EIGHT(d, 56)
#define WGMMA_NAMES_176                                                                \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87}"
#define WGMMA_FLOATS_176(d)                                                                                 \
    WGMMA_EIGHT(d, 0), WGMMA_EIGHT(d, 8), WGMMA_EIGHT(d, 16), WGMMA_EIGHT(d, 24), WGMMA_EIGHT(d, 32),       \
        WGMMA_EIGHT(d, 40), WGMMA_EIGHT(d, 48), WGMMA_EIGHT(d, 56), WGMMA_EIGHT(d, 64), WGMMA_EIGHT(d, 72), \
        WGMMA_EIGHT(d, 80)

// wgmma_shared: d = a b, or d += a b when `accumulate`, a and b K-major in shared memory.
// wgmma_registers: the same with a in registers and b N-major.
// wgmma_transposed: the same with a M-major and b N-major in shared memory.
// FIRST, SECOND and so on are the numbers of the operands that follow the accumulators.
#ifdef VOLTABENCH_EMULATED
#    define WGMMA(N, type, FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH)                                    \
        __device__ __forceinline__ void wgmma_shared_##type(float (&d)[N / 2], unsigned long long a,      \
                                                            unsigned long long b, bool accumulate) {      \
            emulated::wgmma_shared_##type(d, a, b, accumulate);                                           \
        }                                                                                                 \
        __device__ __forceinline__ void wgmma_transposed_##type(float (&d)[N / 2], unsigned long long a,  \
                                                                unsigned long long b, bool accumulate) {  \
            emulated::wgmma_transposed_##type(d, a, b, accumulate);                                       \
        }                                                                                                 \
        __device__ __forceinline__ void wgmma_registers_##type(float (&d)[N / 2], const unsigned (&a)[4], \
                                                               unsigned long long b, bool accumulate) {   \
            emulated::wgmma_registers_##type(d, a, b, accumulate);                                        \
        }
#else
#    define WGMMA(N, type, FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH)                                                \
        __device__ __forceinline__ void wgmma_shared_##type(float (&d)[N / 2], unsigned long long a,                  \
                                                            unsigned long long b, bool accumulate) {                  \
            asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #THIRD ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
                         "k16.f32." #type "." #type " " WGMMA_NAMES_##N ", %" #FIRST ", %" #SECOND                    \
                                                                        ", add, 1, 1, 0, 0;\n}"                       \
                         : WGMMA_FLOATS_##N(d)                                                                        \
                         : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                                          \
                         : "memory");                                                                                 \
        }                                                                                                             \
        __device__ __forceinline__ void wgmma_transposed_##type(float (&d)[N / 2], unsigned long long a,              \
                                                                unsigned long long b, bool accumulate) {              \
            asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #THIRD ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
                         "k16.f32." #type "." #type " " WGMMA_NAMES_##N ", %" #FIRST ", %" #SECOND                    \
                                                                        ", add, 1, 1, 1, 1;\n}"                       \
                         : WGMMA_FLOATS_##N(d)                                                                        \
                         : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                                          \
                         : "memory");                                                                                 \
        }                                                                                                             \
        __device__ __forceinline__ void wgmma_registers_##type(float (&d)[N / 2], const unsigned (&a)[4],             \
                                                               unsigned long long b, bool accumulate) {               \
            asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #SIXTH ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
                         "k16.f32." #type "." #type " " WGMMA_NAMES_##N                                               \
                         ", {%" #FIRST ", %" #SECOND ", %" #THIRD ", %" #FOURTH "}, %" #FIFTH ", add, 1, 1, 1;\n}"    \
                         : WGMMA_FLOATS_##N(d)                                                                        \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate))      \
                         : "memory");                                                                                 \
        }
#endif
WGMMA(8, f16, 4, 5, 6, 7, 8, 9)
WGMMA(16, f16, 8, 9, 10, 11, 12, 13)
WGMMA(32, f16, 16, 17, 18, 19, 20, 21)
WGMMA(64, f16, 32, 33, 34, 35, 36, 37)
WGMMA(64, bf16, 32, 33, 34, 35, 36, 37)
WGMMA(128, f16, 64, 65, 66, 67, 68, 69)
WGMMA(128, bf16, 64, 65, 66, 67, 68, 69)
WGMMA(176, f16, 88, 89, 90, 91, 92, 93)
WGMMA(176, bf16, 88, 89, 90, 91, 92, 93)

// wgmma_sparse: d += a b, 32 steps of k, with a in registers of which two of each four neighbours in a row are stored,
// and b N-major in shared memory. Registers, `metadata` and SELECTOR are those of mma_sp_sm80.cuh, for a warp's 16
// rows.
#ifdef VOLTABENCH_EMULATED
#    define WGMMA_SPARSE(N, FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH, SEVENTH)                    \
        template <int SELECTOR>                                                                     \
        __device__ __forceinline__ void wgmma_sparse_f16(float (&d)[N / 2], const unsigned (&a)[4], \
                                                         unsigned long long b, unsigned metadata) { \
            emulated::wgmma_sparse_f16(d, a, b, metadata, SELECTOR);                                \
        }
#else
#    define WGMMA_SPARSE(N, FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH, SEVENTH)                            \
        template <int SELECTOR>                                                                             \
        __device__ __forceinline__ void wgmma_sparse_f16(float (&d)[N / 2], const unsigned (&a)[4],         \
                                                         unsigned long long b, unsigned metadata) {         \
            asm volatile("wgmma.mma_async.sp.sync.aligned.m64n" #N "k32.f32.f16.f16 " WGMMA_NAMES_##N       \
                         ", {%" #FIRST ", %" #SECOND ", %" #THIRD ", %" #FOURTH "}, %" #FIFTH ", %" #SIXTH  \
                         ", %" #SEVENTH ", 1, 1, 1, 1;"                                                     \
                         : WGMMA_FLOATS_##N(d)                                                              \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(metadata), "n"(SELECTOR) \
                         : "memory");                                                                       \
        }
#endif
WGMMA_SPARSE(8, 4, 5, 6, 7, 8, 9, 10)
WGMMA_SPARSE(16, 8, 9, 10, 11, 12, 13, 14)
WGMMA_SPARSE(32, 16, 17, 18, 19, 20, 21, 22)
WGMMA_SPARSE(64, 32, 33, 34, 35, 36, 37, 38)
#undef WGMMA_SPARSE
#undef WGMMA_NAMES_8
#undef WGMMA_FLOATS_8
#undef WGMMA_NAMES_16
#undef WGMMA_FLOATS_16
#undef WGMMA_NAMES_32
#undef WGMMA_FLOATS_32
#undef WGMMA_NAMES_64
#undef WGMMA_FLOATS_64
#undef WGMMA_NAMES_128
#undef WGMMA_FLOATS_128
#undef WGMMA_NAMES_176
#undef WGMMA_FLOATS_176
#undef WGMMA_EIGHT
#undef WGMMA
