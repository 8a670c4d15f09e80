// The CPU's version of what cuda_kernels/include/mma.cuh writes in PTX. lane = 4 * group + t, see there.
#pragma once
#include "base_twins.h"
#include "warp.h"

namespace shim {

constexpr unsigned whole_warp = ~0u;

template <class Sum, int words_a, int words_b>
struct Product {
    const uint32_t *a, *b;
    const Sum* c;
    Sum d[4];
};

// Whoever comes last multiplies for all. `unpack(word, i)` is element i of a register, of which it holds `per_word`.
// `unpack_b`: where b's elements are of another kind.
template <int words_a, int words_b, int per_word, class Sum, class Unpack, class Add, class UnpackB = Unpack>
inline void multiply(const char* name, Where where, Sum d[4], const uint32_t* a, const uint32_t* b, const Sum c[4],
                     Unpack unpack, Add add, UnpackB unpack_b = UnpackB()) {
    typedef Product<Sum, words_a, words_b> Mine;
    typedef decltype(unpack(0u, 0)) Element;
    Mine mine{a, b, c, {}};
    meet(name, whole_warp, where, mine, [=](unsigned) {
        constexpr int per_half = 4 * per_word, k = per_half * words_b;
        Element rows[16][k], columns[8][k];
        for (int lane = 0; lane < 32; lane++) {
            const Mine& from = brought<Mine>(lane);
            int group = lane >> 2, t = lane & 3;
            for (int word = 0; word < words_a; word++)
                for (int i = 0; i < per_word; i++)
                    rows[group + 8 * (word & 1)][(word >> 1) * per_half + per_word * t + i] = unpack(from.a[word], i);
            for (int word = 0; word < words_b; word++)
                for (int i = 0; i < per_word; i++) columns[group][word * per_half + per_word * t + i] = unpack_b(from.b[word], i);
        }
        for (int lane = 0; lane < 32; lane++) {
            Mine& to = brought<Mine>(lane);
            for (int i = 0; i < 4; i++) {
                const Element* row = rows[(lane >> 2) + 8 * (i >> 1)];
                const Element* column = columns[2 * (lane & 3) + (i & 1)];
                Sum sum = to.c[i];
                for (int j = 0; j < k; j++) sum = add(sum, row[j], column[j]);
                to.d[i] = sum;
            }
        }
    });
    memcpy(d, mine.d, sizeof mine.d);
}

struct Int8 {
    int operator()(uint32_t word, int i) const { return static_cast<int8_t>(word >> 8 * i); }
};
struct Uint8 {
    int operator()(uint32_t word, int i) const { return static_cast<uint8_t>(word >> 8 * i); }
};
struct Wrapping {
    int operator()(int sum, int a, int b) const { return static_cast<int>(static_cast<unsigned>(sum) + static_cast<unsigned>(a * b)); }
};
struct Half {
    float operator()(uint32_t word, int i) const { return half_to_float(static_cast<uint16_t>(word >> 16 * i)); }
};
struct Bfloat16 {
    float operator()(uint32_t word, int i) const { return bits<float>(word >> 16 * i << 16); }
};
struct InOrder {  // float32, k upwards; the device's own order is not said
    float operator()(float sum, float a, float b) const { return sum + a * b; }
};

struct Matrices {
    const char* row;
    uint32_t r[4];
};
inline void load_matrices(const char* name, Where where, uint32_t r[4], const void* row, bool turned) {
    check_alignment(name, row, 16, where);
    check_shared(name, row, where);
    Matrices mine{static_cast<const char*>(row), {}};
    touch(row, 16, Touch::read);
    meet(name, whole_warp, where, mine, [turned](unsigned) __attribute__((no_sanitize("thread"))) {
        for (int matrix = 0; matrix < 4; matrix++) {
            uint16_t rows[8][8];
            for (int i = 0; i < 8; i++) memcpy(rows[i], brought<Matrices>(8 * matrix + i).row, 16);
            for (int lane = 0; lane < 32; lane++) {
                int group = lane >> 2, t = lane & 3;
                uint32_t low = turned ? rows[2 * t][group] : rows[group][2 * t];
                uint32_t high = turned ? rows[2 * t + 1][group] : rows[group][2 * t + 1];
                brought<Matrices>(lane).r[matrix] = high << 16 | low;
            }
        }
    });
    memcpy(r, mine.r, sizeof mine.r);
}

}  // namespace shim

inline void mma_s8(int d[4], const uint32_t a[4], const uint32_t b[2], const int c[4], shim::Where where = shim::Where::here()) {
    shim::multiply<4, 2, 4>("mma_s8", where, d, a, b, c, shim::Int8(), shim::Wrapping());
}
inline void mma_s8_k16(int d[4], const uint32_t a[2], uint32_t b, const int c[4], shim::Where where = shim::Where::here()) {
    shim::multiply<2, 1, 4>("mma_s8_k16", where, d, a, &b, c, shim::Int8(), shim::Wrapping());
}
inline void mma_u8(int d[4], const uint32_t a[4], const uint32_t b[2], const int c[4], shim::Where where = shim::Where::here()) {
    shim::multiply<4, 2, 4>("mma_u8", where, d, a, b, c, shim::Uint8(), shim::Wrapping(), shim::Int8());
}
inline void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4],
                     shim::Where where = shim::Where::here()) {
    shim::multiply<4, 2, 2>("mma_bf16", where, d, a, b, c, shim::Bfloat16(), shim::InOrder());
}
inline void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4],
                    shim::Where where = shim::Where::here()) {
    shim::multiply<4, 2, 2>("mma_f16", where, d, a, b, c, shim::Half(), shim::InOrder());
}
inline void ldmatrix_4(uint32_t r[4], const void* row, shim::Where where = shim::Where::here()) {
    shim::load_matrices("ldmatrix_4", where, r, row, false);
}
inline void ldmatrix_4_turned(uint32_t r[4], const void* row, shim::Where where = shim::Where::here()) {
    shim::load_matrices("ldmatrix_4_turned", where, r, row, true);
}
inline uint32_t subtract_half2(uint32_t a, uint32_t b) {
    float low = half_to_float(static_cast<uint16_t>(a)) - half_to_float(static_cast<uint16_t>(b));
    float high = half_to_float(static_cast<uint16_t>(a >> 16)) - half_to_float(static_cast<uint16_t>(b >> 16));
    return floats_to_half2(low, high);
}
