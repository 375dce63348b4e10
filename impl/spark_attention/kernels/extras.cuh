// A mask and dropout, which kernels are compiled with or without. MASK names the type of the mask's elements, 0 for no
// mask; DROPOUT is 0 or 1. What they add to a kernel's parameters comes last, in this order (extras.py passes it).
//
// The mask is [batch, heads, seqlen_q, seqlen_k] with any strides, 0 too, but a last one of 1. Scores are scaled when
// it is added, so that what follows has a scale of 1 (kScoresAreScaled).
//
// Dropout takes 16 bits for each score, eight scores to a call of philox: those of one row and one column mod 8 within
// 16 rows by 32 columns of the whole matrix of scores. A lane finds several such among its outputs of any mma, of
// queries by keys or the other way round; so the bits depend on seed, batch, head, row and column only.
#pragma once
#include "attention/tensors.cuh"
#include "half.cuh"
#include "math.cuh"
#include "philox.cuh"

constexpr bool kScoresAreScaled = MASK;

#if MASK

#    if MASK == 1
typedef unsigned char MaskElement;  // bool: 0 hides the score
#    elif MASK == 2
typedef Element MaskElement;  // added, of the inputs' type
#    else
typedef float MaskElement;  // added
#    endif

#    define MASK_PARAMETERS                                                                              \
        , const MaskElement *__restrict__ mask, long long mask_batch_stride, long long mask_head_stride, \
            long long mask_row_stride
#    define MASK_OF(batch, head)                                                                                \
        Mask {                                                                                                  \
            mask + (batch) * mask_batch_stride + (head) * mask_head_stride, mask_row_stride, seqlen_q, seqlen_k \
        }

// What is added absorbs the score from here on, as it would in 16 bits: a row of finfo.min is uniform, and its
// log-sum-exp still has the bits that a backward needs.
constexpr float kAbsorbing = -4096.0f;

__device__ __forceinline__ float masked(float score, float softmax_scale, MaskElement element) {
#    if MASK == 1
    return element ? __fmul_rn(score, softmax_scale) : -infinity();
#    else
#        if MASK == 3
    const float added = element;
#        elif BFLOAT16
    const float added = __uint_as_float(static_cast<unsigned>(element) << 16);
#        else
    const float added = low_f16(element);
#        endif
    if (added <= kAbsorbing) return added == -infinity() ? added : kAbsorbing;
    return fmaf(score, softmax_scale, added);
#    endif
}

// The mask of one head.
struct Mask {
    const MaskElement* first;
    long long row_stride;
    int rows, columns;

    // The score scaled and masked; those off the end need no mask.
    __device__ __forceinline__ float apply(float score, float softmax_scale, int row, int column) const {
        if (row >= rows || column >= columns) return score;
        return masked(score, softmax_scale, first[row * row_stride + column]);
    }
};

#else

#    define MASK_PARAMETERS
#    define MASK_OF(batch, head) \
        Mask {}

struct Mask {
    __device__ __forceinline__ float apply(float score, float, int, int) const { return score; }
};

#endif

#define EXTRA_PARAMETERS MASK_PARAMETERS DROPOUT_PARAMETERS

#if DROPOUT

#    define DROPOUT_PARAMETERS , const uint2 *__restrict__ seed, int first_batch, int dropped, float keep_scale
#    define DROPOUT_OF(batch, head)                                                                         \
        Dropout {                                                                                           \
            *seed, static_cast<unsigned>((first_batch + (batch)) * num_heads + (head)), dropped, keep_scale \
        }

struct Dropout {
    uint2 key;
    unsigned batch_head;
    int dropped;  // of 65536 values of the bits, the lowest
    float keep_scale;

    // Bits of the scores at (row, column) + (8 i, 8 j), i < 2 and j < 4; of which group depends on neither i nor j.
    __device__ __forceinline__ uint4 bits(int row, int column) const {
        const unsigned row_group = row / 16 * 8 + row % 8, column_group = column / 32 * 8 + column % 8;
        return philox(make_uint4(row_group, column_group, batch_head, 0), key);
    }

    // Whether the score at (i, j) of `bits` is kept.
    __device__ __forceinline__ bool keeps(const uint4& bits, int i, int j) const {
        const unsigned low = i ? bits.z : bits.x, high = i ? bits.w : bits.y;
        const unsigned word = j / 2 ? high : low;
        return static_cast<int>(j % 2 ? word >> 16 : word & 0xffff) >= dropped;
    }
};

#else

#    define DROPOUT_PARAMETERS
#    define DROPOUT_OF(batch, head) \
        Dropout {}

struct Dropout {
    static constexpr float keep_scale = 1.0f;
};

#endif
