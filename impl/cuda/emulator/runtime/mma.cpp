// Tensor Core products and their operand loads. Fragment layouts: PTX ISA, "Matrix Fragments for mma...".
//
// The model of the arithmetic: products are exact, the sum of an instruction's products and its accumulator is formed
// without intermediate rounding (in double) and rounded once, to nearest, to the accumulator's format. Hardware
// truncates bits below the largest addend, differently on each generation.
#include <cstring>
#include <tuple>

#include "../include/conversions.h"
#include "warp.h"

#define CALLER __builtin_return_address(0)

namespace {

using emulated::bfloat16_value;
using emulated::half_bits;
using emulated::half_value;

float element(const unsigned* registers, int index, bool bfloat16 = false) {
    const unsigned short bits = registers[index / 2] >> 16 * (index % 2);
    return bfloat16 ? bfloat16_value(bits) : half_value(bits);
}

struct Mma : Collective {
    void* d;
    const unsigned *a, *b;
    bool a_column, b_row, f32, bfloat16;
};

template <int M, int N, int K>
void multiply(const float (&a)[M][K], const float (&b)[K][N], double (&d)[M][N]) {
    for (int m = 0; m < M; ++m)
        for (int k = 0; k < K; ++k)
            for (int n = 0; n < N; ++n) d[m][n] += static_cast<double>(a[m][k]) * b[k][n];
}

// Place of element `v` of thread `t` (0..7 in its quad-pair) in the accumulator tile of m8n8k4.
void accumulator_place(int t, int v, bool f32, int& m, int& n) {
    m = f32 ? (t & 1) + (v & 2) + 4 * (t >> 2) : t;
    n = f32 ? (t & 2) + (v & 1) + (v & 4) : v;
}

void run_m8n8k4(Collective* const* waiting, unsigned) {
    for (int quad_pair = 0; quad_pair < 4; ++quad_pair) {
        Mma* threads[8];
        for (int t = 0; t < 8; ++t) threads[t] = static_cast<Mma*>(waiting[4 * quad_pair + (t & 3) + 16 * (t >> 2)]);
        const auto [a_column, b_row, f32] = std::tuple(threads[0]->a_column, threads[0]->b_row, threads[0]->f32);
        float a[8][4], b[4][8];
        double d[8][8];
        for (int t = 0; t < 8; ++t) {
            const Mma& mma = *threads[t];
            for (int v = 0; v < 4; ++v) {
                const int across = 4 * (t >> 2) + v;
                (a_column ? a[across][t & 3] : a[t][v]) = element(mma.a, v);
                (b_row ? b[t & 3][across] : b[v][t]) = element(mma.b, v);
            }
            for (int v = 0; v < 8; ++v) {
                int m, n;
                accumulator_place(t, v, f32, m, n);
                d[m][n] = f32 ? static_cast<float*>(mma.d)[v] : element(static_cast<unsigned*>(mma.d), v);
            }
        }
        multiply(a, b, d);
        for (int t = 0; t < 8; ++t)
            for (int v = 0; v < 8; ++v) {
                int m, n;
                accumulator_place(t, v, f32, m, n);
                if (f32)
                    static_cast<float*>(threads[t]->d)[v] = static_cast<float>(d[m][n]);
                else
                    static_cast<unsigned short*>(threads[t]->d)[v] = half_bits(d[m][n]);
            }
    }
}

template <int K>
void run_m16n8(Collective* const* waiting, unsigned) {
    float a[16][K], b[K][8];
    double d[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const Mma& mma = *static_cast<Mma*>(waiting[lane]);
        const int group = lane / 4, pair = lane % 4 * 2;
        for (int v = 0; v < K / 2; ++v)  // registers go down rows first, then along k
            a[group + (v & 2) * 4][pair + (v & 1) + (v & 4) * 2] = element(mma.a, v, mma.bfloat16);
        for (int v = 0; v < K / 4; ++v) b[pair + (v & 1) + (v & 2) * 4][group] = element(mma.b, v, mma.bfloat16);
        for (int v = 0; v < 4; ++v)
            d[group + (v & 2) * 4][pair + (v & 1)] =
                mma.f32 ? static_cast<float*>(mma.d)[v] : element(static_cast<unsigned*>(mma.d), v);
    }
    multiply(a, b, d);
    for (int lane = 0; lane < 32; ++lane) {
        const Mma& mma = *static_cast<Mma*>(waiting[lane]);
        for (int v = 0; v < 4; ++v) {
            const double value = d[lane / 4 + (v & 2) * 4][lane % 4 * 2 + (v & 1)];
            if (mma.f32)
                static_cast<float*>(mma.d)[v] = static_cast<float>(value);
            else
                static_cast<unsigned short*>(mma.d)[v] = half_bits(value);
        }
    }
}

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

extern "C" void emulated_mma_m8n8k4(void* d, const unsigned* a, const unsigned* b, bool a_column, bool b_row,
                                    bool f32) {
    static const char* const kNames[2][2][2] = {
        {{"mma.m8n8k4.row.col.f16", "mma.m8n8k4.row.row.f16"}, {"mma.m8n8k4.col.col.f16", "mma.m8n8k4.col.row.f16"}},
        {{"mma.m8n8k4.row.col.f32", "mma.m8n8k4.row.row.f32"}, {"mma.m8n8k4.col.col.f32", "mma.m8n8k4.col.row.f32"}}};
    Mma mma{{kNames[f32][a_column][b_row], kAllLanes, CALLER, run_m8n8k4, true}, d, a, b, a_column, b_row, f32, false};
    meet(mma);
}

extern "C" void emulated_mma_m16n8(int k, int type, void* d, const unsigned* a, const unsigned* b) {
    const char* name = k == 16 ? "mma.m16n8k16" : "mma.m16n8k8";
    Mma mma{{name, kAllLanes, CALLER, k == 16 ? run_m16n8<16> : run_m16n8<8>, true},
            d,
            a,
            b,
            false,
            false,
            type != 2,
            type == 1};
    meet(mma);
}

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
