// What a kernel source sees when g++ compiles it for the emulator: the keywords, types and variables of CUDA C++,
// its intrinsics, and in namespace `emulated` the instructions that impl/cuda/include/*.cuh wraps.
//
// Forced in before the source (-include). What is inline here is plain arithmetic; whatever involves other threads,
// memory or counting calls the runtime.
#pragma once

#define VOLTABENCH_EMULATED 1

typedef __SIZE_TYPE__ size_t;

#include "arithmetic.h"
#include "instructions.h"
#include "keywords.h"
#include "runtime_calls.h"
#include "vector_types.h"
#include "warp_intrinsics.h"

// Reached only where a wrapper has no branch for the emulator.
#define asm _Pragma("GCC error \"inline PTX without an emulated form: see docs/emulator.md\"") asm
