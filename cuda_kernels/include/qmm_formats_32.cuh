// The formats with blocks of 32 and a float scale for each (see qmm_formats.cuh for what a format is).
#pragma once
#include "qmm_formats.cuh"

// Eight halves for each of the 16 rows of a tile.
struct Halves_8 {
    uint4 rows[2];

    __device__ __forceinline__ void load(const char* at, int lane) {
#pragma unroll
        for (int r = 0; r < 2; r++) rows[r] = ((const uint4*)at)[(lane >> 2) + 8 * r];
    }
    __device__ __forceinline__ float of(int r, int j) const { return half_of(rows[r], j); }
};

// The same as offsets: lane 4 * group + t takes halves t and t + 4, twice each.
struct Offsets_8 {
    const uint16_t* row;
    int t;

    __device__ __forceinline__ void load(const char* at, int lane) {
        row = (const uint16_t*)at + 8 * (lane >> 2);
        t = lane & 3;
    }
    __device__ __forceinline__ float of(int r, int j) const { return half_to_float(row[64 * r + j]); }
    __device__ __forceinline__ void halves(uint32_t a[4]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t half = row[64 * (i & 1) + 4 * (i >> 1) + t];
            a[i] = half | half << 16;
        }
    }
};

// Tile: uint4 [8][lane], the fragment of each sub-block; 16 x 8 halves.
struct Q8_0 {
    static constexpr int TILE_BYTES = 4352, GROUP = 32, ODD_SHIFT = 0, MINIMA = 0;
    static constexpr bool INTEGER = false, UNSIGNED = false;
    static constexpr float UNIT = 1.0f;
    uint4 words[8];
    Halves_8 d;

    __device__ __forceinline__ void load(const char* tile, int lane) {
#pragma unroll
        for (int j = 0; j < 8; j++) words[j] = ((const uint4*)tile)[32 * j + lane];
        d.load(tile + 4096, lane);
    }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = word_of(words[j], i);
    }
    __device__ __forceinline__ float scale(int r, int j) const { return d.of(r, j); }
};

// Nibbles: words [r] of sub-block j hold a[r] in the low nibbles and a[2 + r] in the high ones.
struct Nibbles {
    uint4 words[4];  // uint4 [4][lane]: of sub-blocks 2 i and 2 i + 1, two words each

    __device__ __forceinline__ void load(const char* tile, int lane) {
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = ((const uint4*)tile)[32 * i + lane];
    }
    __device__ __forceinline__ uint32_t word(int j, int r) const { return word_of(words[j >> 1], 2 * (j & 1) + r); }
    // codes times 16, of either sign
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            a[r] = (word(j, r) << 4) & 0xf0f0f0f0;
            a[2 + r] = word(j, r) & 0xf0f0f0f0;
        }
    }
};

// Tile: the nibbles, minus 8 in two's complement; 16 x 8 halves.
struct Q4_0 {
    static constexpr int TILE_BYTES = 2304, GROUP = 32, ODD_SHIFT = 0, MINIMA = 0;
    static constexpr bool INTEGER = false, UNSIGNED = false;
    static constexpr float UNIT = 0.0625f;
    Nibbles codes;
    Halves_8 d;

    __device__ __forceinline__ void load(const char* tile, int lane) {
        codes.load(tile, lane);
        d.load(tile + 2048, lane);
    }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const { codes.fragment(j, a); }
    __device__ __forceinline__ float scale(int r, int j) const { return d.of(r, j); }
};

// Tile: the nibbles; 16 x 8 halves d; 16 x 8 halves m, which is added.
struct Q4_1 {
    static constexpr int TILE_BYTES = 2560, GROUP = 32, ODD_SHIFT = 0, MINIMA = 1;
    static constexpr bool INTEGER = false, UNSIGNED = true;
    static constexpr float UNIT = 0.0625f;
    Nibbles codes;
    Halves_8 d;
    Offsets_8 m;

    __device__ __forceinline__ void load(const char* tile, int lane) {
        codes.load(tile, lane);
        d.load(tile + 2048, lane);
        m.load(tile + 2304, lane);
    }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const { codes.fragment(j, a); }
    __device__ __forceinline__ float scale(int r, int j) const { return d.of(r, j); }
    __device__ __forceinline__ float offset(int r, int j) const { return m.of(r, j); }
    __device__ __forceinline__ float minimum(int r) const { return 1.0f; }
    __device__ __forceinline__ void offset_halves(uint32_t a[4]) const { m.halves(a); }
};

// Tile: five-bit codes, minus 16 in two's complement; 16 x 8 halves.
struct Q5_0 {
    static constexpr int TILE_BYTES = 2816, GROUP = 32, ODD_SHIFT = 0, MINIMA = 0;
    static constexpr bool INTEGER = false, UNSIGNED = false;
    static constexpr float UNIT = 0.125f;
    Codes_5 codes;
    Halves_8 d;

    __device__ __forceinline__ void load(const char* tile, int lane) {
        codes.load(tile, lane);
        d.load(tile + 2560, lane);
    }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const { codes.fragment(j, a); }
    __device__ __forceinline__ float scale(int r, int j) const { return d.of(r, j); }
};

// Tile: five-bit codes; 16 x 8 halves d; 16 x 8 halves m, which is added.
struct Q5_1 {
    static constexpr int TILE_BYTES = 3072, GROUP = 32, ODD_SHIFT = 0, MINIMA = 1;
    static constexpr bool INTEGER = false, UNSIGNED = true;
    static constexpr float UNIT = 0.125f;
    Codes_5 codes;
    Halves_8 d;
    Offsets_8 m;

    __device__ __forceinline__ void load(const char* tile, int lane) {
        codes.load(tile, lane);
        d.load(tile + 2560, lane);
        m.load(tile + 2816, lane);
    }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const { codes.fragment(j, a); }
    __device__ __forceinline__ float scale(int r, int j) const { return d.of(r, j); }
    __device__ __forceinline__ float offset(int r, int j) const { return m.of(r, j); }
    __device__ __forceinline__ float minimum(int r) const { return 1.0f; }
    __device__ __forceinline__ void offset_halves(uint32_t a[4]) const { m.halves(a); }
};

// Tile: nibbles that choose; 16 x 8 halves.
struct IQ4_NL {
    static constexpr int TILE_BYTES = 2304, GROUP = 32, ODD_SHIFT = 0, MINIMA = 0;
    static constexpr bool INTEGER = false, UNSIGNED = false;
    static constexpr float UNIT = 1.0f;
    Chosen_4 codes;
    Halves_8 d;

    __device__ __forceinline__ void load(const char* tile, int lane) {
        codes.load(tile, lane);
        d.load(tile + 2048, lane);
    }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const {
        const uint32_t table[4] = IQ4_TABLE;
        codes.fragment(j, table, a);
    }
    __device__ __forceinline__ void parts(int j, uint32_t a[8]) const {
        const uint32_t parts[4] = IQ4_PARTS;
        codes.sums(j, parts, a);
    }
    __device__ __forceinline__ float scale(int r, int j) const { return d.of(r, j); }
};
template <>
constexpr bool CHOOSES<IQ4_NL> = true;

// Tile: nibbles that choose; 16 x 8 exponents e = 0 ... 254, bit 0 above the seven others. Half of the scale is 2^(e - 127), as the
// table is twice E2M1: as bits of a float e stands in the upper two bytes, 7 bits in one, 1 in the other. Where all are 0, one bit
// further down is 2^-127. (repack.py writes what is left of a block with e = 255, which is 0, 2^127 and infinite, with 254.)
struct MXFP4 {
    static constexpr int TILE_BYTES = 2176, GROUP = 32, ODD_SHIFT = 0, MINIMA = 0;
    static constexpr bool INTEGER = false, UNSIGNED = false;
    static constexpr float UNIT = 0.5f;
    Chosen_4 codes;
    uint32_t upper[2][2], lower[2][2];  // [row][half]: four bytes each

    __device__ __forceinline__ void load(const char* tile, int lane) {
        codes.load(tile, lane);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint2 exponents = ((const uint2*)(tile + 2048))[(lane >> 2) + 8 * r];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t word = i ? exponents.y : exponents.x;
                upper[r][i] = word & 0x7f7f7f7f;
                uint32_t none = ~((upper[r][i] + 0x7f7f7f7f) | word) & 0x80808080;
                lower[r][i] = (word & 0x80808080) | none >> 1;
            }
        }
    }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const {
        const uint32_t table[4] = FP4_TABLE;
        codes.fragment(j, table, a);
    }
    __device__ __forceinline__ void parts(int j, uint32_t a[8]) const {
        const uint32_t parts[4] = FP4_PARTS;
        codes.sums(j, parts, a);
    }
    __device__ __forceinline__ float scale(int r, int j) const {
        return upper_bytes(upper[r][j >> 2], lower[r][j >> 2], j & 3);
    }
};
template <>
constexpr bool CHOOSES<MXFP4> = true;
