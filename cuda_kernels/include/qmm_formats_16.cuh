// The formats whose scales hold for 16 values, beside Q6_K (see qmm_formats.cuh for what a format is): few bits, FP4 with FP8 scales,
// and bytes, which are what codebooks are expanded to.
#pragma once
#include "qmm_formats.cuh"

// Two-bit codes: bits 2 i, 2 i + 1 of each byte of word j are fragment word a[i] of sub-block j.
struct Codes_2 {
    uint4 words[2];  // uint4 [2][lane]: of sub-blocks 4 i ... 4 i + 3

    __device__ __forceinline__ void load(const void* tile, int lane) {
#pragma unroll
        for (int i = 0; i < 2; i++) words[i] = ((const uint4*)tile)[32 * i + lane];
    }
    __device__ __forceinline__ uint32_t word(int j) const { return word_of(words[j >> 2], j & 3); }
};

// Tile: the codes; 16 x 16 bytes, the scale low and the offset high; 16 x (d, dmin).
struct Q2_K {
    static constexpr int TILE_BYTES = 1344, GROUP = 16, ODD_SHIFT = 0, MINIMA = -1;
    static constexpr bool INTEGER = true, UNSIGNED = false;
    Codes_2 codes;
    uint4 both[2];
    uint32_t units[2];
    int t;

    __device__ __forceinline__ void load(const char* tile, int lane) {
        int group = lane >> 2;
        t = lane & 3;
        codes.load(tile, lane);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            both[r] = ((const uint4*)(tile + 1024))[group + 8 * r];
            units[r] = ((const uint32_t*)(tile + 1280))[group + 8 * r];
        }
    }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = (codes.word(j) >> (2 * i)) & 0x03030303;
    }
    __device__ __forceinline__ int scale(int r, int i) const { return byte_of(word_of(both[r], i >> 2), i & 3) & 15; }
    __device__ __forceinline__ float unit(int r) const { return low_half(units[r]); }
    __device__ __forceinline__ int offset(int r, int i) const { return byte_of(word_of(both[r], i >> 2), i & 3) >> 4; }
    __device__ __forceinline__ float minimum(int r) const { return high_half(units[r]); }
    // Offsets 2 t and 2 t + 1, and those 8 further. 0x6400 | x is the half 1024 + x.
    __device__ __forceinline__ void offset_halves(uint32_t a[4]) const {
        uint32_t first = 2 * (t & 1), two = 0x4040 | first | (first + 1) << 8;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t low = t & 2 ? both[r].y : both[r].x, high = t & 2 ? both[r].w : both[r].z;
            a[r] = subtract_half2(permute_bytes((low >> 4) & 0x0f0f0f0f, 0x64646464, two), 0x64006400);
            a[2 + r] = subtract_half2(permute_bytes((high >> 4) & 0x0f0f0f0f, 0x64646464, two), 0x64006400);
        }
    }
};

// Three bits in two's complement: the low two as in Codes_2; the sign of a[i] of sub-block j is bit 4 * (j & 1) + i of each byte of
// word j >> 1 of a uint4 [lane]. Codes come out times 32. Scales minus 32 come out times 4: nibbles of scales i and i + 8 in byte i
// of two words, the upper two bits of scale i at 2 * (i >> 2) of byte i & 3 of a third, the highest turned.
// Tile: low bits, signs, 16 x 3 words of scales, 16 halves d.
struct Q3_K {
    static constexpr int TILE_BYTES = 1760, GROUP = 16, ODD_SHIFT = 0, MINIMA = 0;
    static constexpr bool INTEGER = true, UNSIGNED = false;
    Codes_2 codes;
    uint4 signs;
    uint32_t scales[2][4];
    float d[2];

    __device__ __forceinline__ void load(const char* tile, int lane) {
        codes.load(tile, lane);
        signs = ((const uint4*)(tile + 1024))[lane];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = (lane >> 2) + 8 * r;
            const uint32_t* packed = (const uint32_t*)(tile + 1536) + 3 * row;
            uint32_t low = packed[0], high = packed[1], upper = packed[2];
            scales[r][0] = ((low << 2) & 0x3c3c3c3c) | ((upper << 6) & 0xc0c0c0c0);
            scales[r][1] = ((high << 2) & 0x3c3c3c3c) | ((upper << 4) & 0xc0c0c0c0);
            scales[r][2] = ((low >> 2) & 0x3c3c3c3c) | ((upper << 2) & 0xc0c0c0c0);
            scales[r][3] = ((high >> 2) & 0x3c3c3c3c) | (upper & 0xc0c0c0c0);
            d[r] = half_to_float(((const uint16_t*)(tile + 1728))[row]);
        }
    }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const {
        uint32_t low = codes.word(j), sign = word_of(signs, j >> 1) << (j & 1 ? 0 : 4);
        a[0] = ((low << 5) & 0x60606060) | ((sign << 3) & 0x80808080);
        a[1] = ((low << 3) & 0x60606060) | ((sign << 2) & 0x80808080);
        a[2] = ((low << 1) & 0x60606060) | ((sign << 1) & 0x80808080);
        a[3] = ((low >> 1) & 0x60606060) | (sign & 0x80808080);
    }
    __device__ __forceinline__ int scale(int r, int i) const { return signed_byte_of(scales[r][i >> 2], i & 3); }
    __device__ __forceinline__ float unit(int r) const { return d[r] * 0.0078125f; }
};

// Tile: nibbles that choose; 16 x 16 scales, E4M3 without sign, the lower nibble above the upper one: so they are bits 20 ... 26 of a
// float, where those without a leading bit mean what they should, and 2^120 too small; the table is twice E2M1. Products with
// codes are whole multiples of 2^-129, of which a float that is as small as these loses none. (What the file's 0x7f and 0x80
// mean, which is 0, stands there as 0.)
struct NVFP4 {
    static constexpr int TILE_BYTES = 2304, GROUP = 16, ODD_SHIFT = 0, MINIMA = 0;
    static constexpr bool INTEGER = false, UNSIGNED = false;
    static constexpr float UNIT = 6.646139978924579e35f;  // 2^119
    Chosen_4 codes;
    uint32_t upper[2][4], lower[2][4];

    __device__ __forceinline__ void load(const char* tile, int lane) {
        codes.load(tile, lane);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint4 scales = ((const uint4*)(tile + 2048))[(lane >> 2) + 8 * r];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                upper[r][i] = word_of(scales, i) & 0x07070707;
                lower[r][i] = word_of(scales, i) & 0xf0f0f0f0;
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
    __device__ __forceinline__ float scale(int r, int i) const {
        return upper_bytes(upper[r][i >> 2], lower[r][i >> 2], i & 3);
    }
};
template <>
constexpr bool CHOOSES<NVFP4> = true;

// What is expanded when it is loaded: value = d * scale * code, all exact.
// Tile: uint4 [8][lane], the fragment of each sub-block; 16 x 16 int8 scales; 16 floats d.
struct I8_K {
    static constexpr int TILE_BYTES = 4416, GROUP = 16, ODD_SHIFT = 0, MINIMA = 0;
    static constexpr bool INTEGER = true, UNSIGNED = false;
    uint4 words[8], scales[2];
    float d[2];

    __device__ __forceinline__ void load(const char* tile, int lane) {
#pragma unroll
        for (int j = 0; j < 8; j++) words[j] = ((const uint4*)tile)[32 * j + lane];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = (lane >> 2) + 8 * r;
            scales[r] = ((const uint4*)(tile + 4096))[row];
            d[r] = ((const float*)(tile + 4352))[row];
        }
    }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = word_of(words[j], i);
    }
    __device__ __forceinline__ int scale(int r, int i) const { return signed_byte_of(word_of(scales[r], i >> 2), i & 3); }
    __device__ __forceinline__ float unit(int r) const { return d[r]; }
};
