// ldmatrix: 8x8 matrices of 16-bit elements from shared memory into fragments. PTX ISA, "ldmatrix".
#include <cstring>

#include "../include/runtime_calls.h"
#include "warp.h"

#define CALLER __builtin_return_address(0)

namespace {

struct LoadMatrix : Collective {
    unsigned* fragment;
    int matrices;
    const char* row;
    bool transposed;
};

void run_load_matrix(Collective* const* waiting, unsigned) {
    const int matrices = static_cast<LoadMatrix*>(waiting[0])->matrices;
    const bool transposed = static_cast<LoadMatrix*>(waiting[0])->transposed;
    for (int matrix = 0; matrix < matrices; ++matrix) {
        unsigned short elements[8][8];
        for (int row = 0; row < 8; ++row)
            std::memcpy(elements[row], static_cast<LoadMatrix*>(waiting[8 * matrix + row])->row, 16);
        for (int lane = 0; lane < 32; ++lane) {
            unsigned short pair[2];
            for (int i = 0; i < 2; ++i) {
                const int along = lane % 4 * 2 + i;
                pair[i] = transposed ? elements[along][lane / 4] : elements[lane / 4][along];
            }
            std::memcpy(&static_cast<LoadMatrix*>(waiting[lane])->fragment[matrix], pair, 4);
        }
    }
}

}  // namespace

extern "C" void emulated_load_matrix(unsigned* fragment, int matrices, const void* shared_row, bool transposed) {
    static const char* const kNames[2][5] = {{"", "ldmatrix.x1", "ldmatrix.x2", "", "ldmatrix.x4"},
                                             {"", "ldmatrix.x1.trans", "ldmatrix.x2.trans", "", "ldmatrix.x4.trans"}};
    const char* name = kNames[transposed][matrices];
    Thread* self = current_thread();
    const auto address = reinterpret_cast<std::uintptr_t>(shared_row);
    if (self->lane < 8 * matrices) {
        if (address % 16 != 0) fail(CALLER, "%s: the address of a row must be a multiple of 16 bytes", name);
        if (self->block->memory.access(address, 16, Action::kRead, CALLER, name) != Space::kShared)
            fail(CALLER, "%s: a row is not in shared memory", name);
    }
    LoadMatrix load{{name, kAllLanes, CALLER, run_load_matrix, true, true},
                    fragment,
                    matrices,
                    static_cast<const char*>(shared_row),
                    transposed};
    meet(load);
}
