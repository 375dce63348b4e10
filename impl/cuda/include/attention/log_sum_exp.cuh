// The log-sum-exp of a row from the online softmax's state.
#pragma once
#include "math.cuh"

// `sum` is that of 2^(score * scale_log2 - base), with the maximum's base as it was rounded. Of one key that counts,
// the result is then its score as a float, which gives the backward p = 1 however large it is.
__device__ __forceinline__ float log_sum_exp(float maximum, float sum, float softmax_scale, float scale_log2) {
    const float ln2 = 0.6931471805599453f;
    const float rounding = fmaf(maximum, scale_log2, -__fmul_rn(maximum, scale_log2));
    return sum == 0.0f ? -infinity() : __fmul_rn(maximum, softmax_scale) + (log2_fast(sum) - rounding) * ln2;
}
