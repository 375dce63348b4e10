// Tensor Core products. Fragment layouts: PTX ISA, "Matrix Fragments for mma...".
//
// The model of the arithmetic: products are exact, the sum of an instruction's products and its accumulator is formed
// without intermediate rounding (in double) and rounded once, to nearest, to the accumulator's format. Hardware
// truncates bits below the largest addend, differently on each generation.
#include <tuple>

#include "../include/conversions.h"
#include "../include/runtime_calls.h"
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

struct MmaM8N8K4 : Collective {
    void* d;
    const unsigned *a, *b;
    bool a_column, b_row, f32;
};

struct MmaM16N8 : Collective {
    float* d;
    const unsigned *a, *b;
    bool bfloat16;
};

struct MmaSparse : Collective {
    float* d;
    const unsigned *a, *b;
    unsigned metadata;
    int selector;
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
        MmaM8N8K4* threads[8];
        for (int t = 0; t < 8; ++t)
            threads[t] = static_cast<MmaM8N8K4*>(waiting[4 * quad_pair + (t & 3) + 16 * (t >> 2)]);
        const auto [a_column, b_row, f32] = std::tuple(threads[0]->a_column, threads[0]->b_row, threads[0]->f32);
        float a[8][4], b[4][8];
        double d[8][8];
        for (int t = 0; t < 8; ++t) {
            const MmaM8N8K4& mma = *threads[t];
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

// What an m16n8 instruction of type Mma does: add(b, d) adds its products to d.
template <typename Mma, int K, typename Add>
void run_m16n8(Collective* const* waiting, bool bfloat16, const Add& add) {
    float b[K][8];
    double d[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const Mma& mma = *static_cast<Mma*>(waiting[lane]);
        const int group = lane / 4, pair = lane % 4 * 2;
        for (int v = 0; v < K / 4; ++v) b[pair + (v & 1) + v / 2 * 8][group] = element(mma.b, v, bfloat16);
        for (int v = 0; v < 4; ++v) d[group + (v & 2) * 4][pair + (v & 1)] = mma.d[v];
    }
    add(b, d);
    for (int lane = 0; lane < 32; ++lane) {
        const Mma& mma = *static_cast<Mma*>(waiting[lane]);
        for (int v = 0; v < 4; ++v) mma.d[v] = static_cast<float>(d[lane / 4 + (v & 2) * 4][lane % 4 * 2 + (v & 1)]);
    }
}

template <int K>
void run_dense(Collective* const* waiting, unsigned) {
    float a[16][K];
    const bool bfloat16 = static_cast<MmaM16N8*>(waiting[0])->bfloat16;
    for (int lane = 0; lane < 32; ++lane) {
        const MmaM16N8& mma = *static_cast<MmaM16N8*>(waiting[lane]);
        const int group = lane / 4, pair = lane % 4 * 2;
        for (int v = 0; v < K / 2; ++v)  // registers go down rows first, then along k
            a[group + (v & 2) * 4][pair + (v & 1) + (v & 4) * 2] = element(mma.a, v, bfloat16);
    }
    run_m16n8<MmaM16N8, K>(waiting, bfloat16, [&](const float (&b)[K][8], double (&d)[16][8]) { multiply(a, b, d); });
}

// Only stored elements are multiplied: a zero at another place meets no infinity.
void run_sparse(Collective* const* waiting, unsigned) {
    run_m16n8<MmaSparse, 32>(waiting, false, [&](const float (&b)[32][8], double (&d)[16][8]) {
        for (int lane = 0; lane < 32; ++lane) {
            const MmaSparse& mma = *static_cast<MmaSparse*>(waiting[lane]);
            for (int v = 0; v < 4; ++v) {
                const int half = v / 2, lower = v % 2, group = lane % 4;
                const auto* source = static_cast<MmaSparse*>(waiting[lane / 4 * 4 + mma.selector * 2 + half]);
                const unsigned bits = source->metadata >> (lower * 16 + group * 4);
                const int places[2] = {static_cast<int>(bits & 3), static_cast<int>(bits >> 2 & 3)};
                if (places[0] >= places[1])
                    fail(mma.code, "mma.sp: places %d and %d in a group are not in order", places[0], places[1]);
                for (int i = 0; i < 2; ++i)
                    for (int n = 0; n < 8; ++n)
                        d[lane / 4 + lower * 8][n] +=
                            static_cast<double>(element(mma.a, v * 2 + i)) * b[half * 16 + group * 4 + places[i]][n];
            }
        }
    });
}

}  // namespace

extern "C" void emulated_mma_m8n8k4(void* d, const unsigned* a, const unsigned* b, bool a_column, bool b_row,
                                    bool f32) {
    static const char* const kNames[2][2][2] = {
        {{"mma.m8n8k4.row.col.f16", "mma.m8n8k4.row.row.f16"}, {"mma.m8n8k4.col.col.f16", "mma.m8n8k4.col.row.f16"}},
        {{"mma.m8n8k4.row.col.f32", "mma.m8n8k4.row.row.f32"}, {"mma.m8n8k4.col.col.f32", "mma.m8n8k4.col.row.f32"}}};
    MmaM8N8K4 mma{{kNames[f32][a_column][b_row], kAllLanes, CALLER, run_m8n8k4, true}, d, a, b, a_column, b_row, f32};
    meet(mma);
}

extern "C" void emulated_mma_m16n8k16(float* d, const unsigned* a, const unsigned* b, bool bfloat16) {
    MmaM16N8 mma{{"mma.m16n8k16", kAllLanes, CALLER, run_dense<16>, true}, d, a, b, bfloat16};
    meet(mma);
}

extern "C" void emulated_mma_m16n8k8(float* d, const unsigned* a, const unsigned* b) {
    MmaM16N8 mma{{"mma.m16n8k8", kAllLanes, CALLER, run_dense<8>, true}, d, a, b, false};
    meet(mma);
}

extern "C" void emulated_mma_sp_m16n8k32(float* d, const unsigned* a, const unsigned* b, unsigned metadata,
                                         int selector) {
    MmaSparse mma{{"mma.sp.m16n8k32", kAllLanes, CALLER, run_sparse, true}, d, a, b, metadata, selector};
    meet(mma);
}
