// Quantised weights as the tensor cores want them: how a tile of 16 rows x 256 values lies in memory, and how a lane decodes
// its part of it. repack.py writes these tiles; what it keeps of a file is all bits of it, in another order.
//
// lane = 4 * group + t. The fragment of sub-block j (32 values of k) is four words a[2 * h + r]: bytes k = 32 j + 16 h + 4 t ... + 3
// of row group + 8 r, see mma.cuh. "[lane]" below: one entry for each lane, so that a warp reads 512 bytes in a row.
//
// A format is a struct with
//   TILE_BYTES          of a tile, a multiple of 16
//   load(tile, lane)    takes what the lane needs; `tile` is in shared or global memory, aligned to 16 bytes
//   fragment(j, a)      the codes of sub-block j as int8, or uint8 if UNSIGNED. They may be a power of two too large.
//   GROUP               values of k that share a scale: 32 or 16
//   scale(r, i)         of group i in row group + 8 r: an int if INTEGER (then unit(r), a float, scales the sum of all), else a float
//   UNIT                if not INTEGER: 1 / what the codes are too large by
//   ODD_SHIFT           the codes of odd sub-blocks are 2^ODD_SHIFT times larger than those of even ones, and unit is for the odd ones
//   MINIMA              0, or what times minimum(r) * offset(r, i) is added to each value of group i: +1 or -1
//   offset_halves(a)    the offsets as the fragment of a 16-bit product with sums of 16: k is the sixteen that an offset is for
// so that value = scale * unit * code + MINIMA * minimum * offset, with the one shift. If CHOOSES<Format>, also
//   parts(j, a)         the codes as sums of two fragments, a[0 ... 3] and a[4 ... 7]: cheaper to make, for twice the products
#pragma once
#include "base.cuh"

template <class Format>
constexpr bool CHOOSES = false;

// Byte `i` of a word, as unsigned and signed.
__device__ __forceinline__ int byte_of(uint32_t word, int i) { return (int)permute_bytes(word, 0, 0x4440 | (uint32_t)i); }
__device__ __forceinline__ int signed_byte_of(uint32_t word, int i) {
    return (int)permute_bytes(word, 0, 0x8880 | 0x1111 * (uint32_t)i);
}
// The float whose first byte is byte i of `first`, the second that of `second`; the sign of `first`, which has none, fills it up.
__device__ __forceinline__ float upper_bytes(uint32_t first, uint32_t second, int i) {
    return __int_as_float((int)permute_bytes(first, second, 0x0488 | 0x1111 * (uint32_t)i));
}
__device__ __forceinline__ float low_half(uint32_t word) { return half_to_float((uint16_t)word); }
__device__ __forceinline__ float high_half(uint32_t word) { return half_to_float((uint16_t)(word >> 16)); }
__device__ __forceinline__ float half_of(const uint4& words, int i) {
    uint32_t word = i < 2 ? words.x : i < 4 ? words.y : i < 6 ? words.z : words.w;
    return i & 1 ? high_half(word) : low_half(word);
}
__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// The header of Q4_K and Q5_K, as in the file: d, dmin, and twelve bytes with eight 6-bit scales and minima.
struct Header_K4 {
    uint4 rows[2];
    uint32_t scales[2][2], minima[2][2];  // [row][half]: four bytes each
    int t;

    __device__ __forceinline__ void load(const void* headers, int lane) {
        const uint4* at = (const uint4*)headers + (lane >> 2);
        t = lane & 3;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            rows[r] = at[8 * r];
            uint32_t first = rows[r].y, second = rows[r].z, third = rows[r].w;
            scales[r][0] = first & 0x3f3f3f3f;
            minima[r][0] = second & 0x3f3f3f3f;
            scales[r][1] = (third & 0x0f0f0f0f) | ((first >> 2) & 0x30303030);
            minima[r][1] = ((third >> 4) & 0x0f0f0f0f) | ((second >> 2) & 0x30303030);
        }
    }
    __device__ __forceinline__ int scale(int r, int i) const { return byte_of(scales[r][i >> 2], i & 3); }
    __device__ __forceinline__ int offset(int r, int j) const { return byte_of(minima[r][j >> 2], j & 3); }
    __device__ __forceinline__ float d(int r) const { return low_half(rows[r].x); }
    __device__ __forceinline__ float minimum(int r) const { return high_half(rows[r].x); }
    // Offsets t and t + 4, twice each. 0x6400 | x is the half 1024 + x.
    __device__ __forceinline__ void offset_halves(uint32_t a[4]) const {
        uint32_t twice = 0x4040 | (uint32_t)t | (uint32_t)t << 8;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                a[2 * h + r] = subtract_half2(permute_bytes(minima[r][h], 0x64646464, twice), 0x64006400);
    }
};

// Tile: uint4 [4][lane], of sub-blocks 2 i and 2 i + 1: words of the fragment, the even one in the low nibbles, the odd one in the
// high nibbles; then the 16 headers.
struct Q4_K {
    static constexpr int TILE_BYTES = 2304, GROUP = 32, ODD_SHIFT = 4, MINIMA = -1;
    static constexpr bool INTEGER = true, UNSIGNED = true;
    uint4 words[4];
    Header_K4 header;

    __device__ __forceinline__ void load(const char* tile, int lane) {
        const uint4* at = (const uint4*)tile + lane;
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = at[32 * i];
        header.load(tile + 2048, lane);
    }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const {
        uint32_t mask = j & 1 ? 0xf0f0f0f0 : 0x0f0f0f0f;
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = word_of(words[j >> 1], i) & mask;
    }
    __device__ __forceinline__ int scale(int r, int i) const { return header.scale(r, i); }
    __device__ __forceinline__ float unit(int r) const { return header.d(r) * 0.0625f; }
    __device__ __forceinline__ int offset(int r, int j) const { return header.offset(r, j); }
    __device__ __forceinline__ float minimum(int r) const { return header.minimum(r); }
    __device__ __forceinline__ void offset_halves(uint32_t a[4]) const { header.offset_halves(a); }
};

// Five-bit codes of sub-blocks 2 c and 2 c + 1: fragment words F0 ... F7 in X0 ... X4, byte by byte. Bits 3 ... 7 of Xi are Fi;
// bits 0 ... 2 hold the others: F5 = X0[2:0] X1[1:0], F6 = X2[2:0] X3[1:0], F7 = X4[2:0] X1[2] X3[2]. Codes come out times 8.
struct Codes_5 {
    const uint4* words;  // uint4 [5][lane]: X of c = 0, 1, 2, 3; taken when they are needed

    __device__ __forceinline__ void load(const void* tile, int lane) {
        words = (const uint4*)tile + lane;
    }
    __device__ __forceinline__ uint32_t x(int i) const { return word_of(words[32 * (i >> 2)], i & 3); }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const {
        int first = 5 * (j >> 1);
        if ((j & 1) == 0) {
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = x(first + i) & 0xf8f8f8f8;
            return;
        }
        uint32_t x0 = x(first), x1 = x(first + 1), x2 = x(first + 2), x3 = x(first + 3), x4 = x(first + 4);
        a[0] = x4 & 0xf8f8f8f8;
        a[1] = ((x0 << 5) & 0xe0e0e0e0) | ((x1 << 3) & 0x18181818);
        a[2] = ((x2 << 5) & 0xe0e0e0e0) | ((x3 << 3) & 0x18181818);
        a[3] = ((x4 << 5) & 0xe0e0e0e0) | ((x1 << 2) & 0x10101010) | ((x3 << 1) & 0x08080808);
    }
};

// Tile: the codes, then 16 headers.
struct Q5_K {
    static constexpr int TILE_BYTES = 2816, GROUP = 32, ODD_SHIFT = 0, MINIMA = -1;
    static constexpr bool INTEGER = true, UNSIGNED = true;
    Codes_5 codes;
    Header_K4 header;

    __device__ __forceinline__ void load(const char* tile, int lane) {
        codes.load(tile, lane);
        header.load(tile + 2560, lane);
    }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const { codes.fragment(j, a); }
    __device__ __forceinline__ int scale(int r, int i) const { return header.scale(r, i); }
    __device__ __forceinline__ float unit(int r) const { return header.d(r) * 0.125f; }
    __device__ __forceinline__ int offset(int r, int j) const { return header.offset(r, j); }
    __device__ __forceinline__ float minimum(int r) const { return header.minimum(r); }
    __device__ __forceinline__ void offset_halves(uint32_t a[4]) const { header.offset_halves(a); }
};

// Six-bit codes, minus 32, in two's complement: fragment words F0 ... F3 of a sub-block in X0 ... X2, byte by byte. Bits 2 ... 7 of
// Xi are Fi; bits 0 and 1 hold F3 = X0[1:0] X1[1:0] X2[1:0]. Codes come out times 4.
// Tile: uint4 [6][lane]: X of sub-blocks 0 ... 7; 16 x 16 int8 scales; 16 halves d.
struct Q6_K {
    static constexpr int TILE_BYTES = 3360, GROUP = 16, ODD_SHIFT = 0, MINIMA = 0;
    static constexpr bool INTEGER = true, UNSIGNED = false;
    uint4 words[6], scales[2];
    float d[2];

    __device__ __forceinline__ void load(const char* tile, int lane) {
        const uint4* at = (const uint4*)tile + lane;
        int group = lane >> 2;
#pragma unroll
        for (int i = 0; i < 6; i++) words[i] = at[32 * i];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            scales[r] = ((const uint4*)(tile + 3072))[group + 8 * r];
            d[r] = half_to_float(((const uint16_t*)(tile + 3328))[group + 8 * r]);
        }
    }
    __device__ __forceinline__ uint32_t x(int i) const { return word_of(words[i >> 2], i & 3); }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const {
        uint32_t x0 = x(3 * j), x1 = x(3 * j + 1), x2 = x(3 * j + 2);
        a[0] = x0 & 0xfcfcfcfc;
        a[1] = x1 & 0xfcfcfcfc;
        a[2] = x2 & 0xfcfcfcfc;
        a[3] = ((x0 << 6) & 0xc0c0c0c0) | ((x1 << 4) & 0x30303030) | ((x2 << 2) & 0x0c0c0c0c);
    }
    __device__ __forceinline__ int scale(int r, int i) const { return signed_byte_of(word_of(scales[r], i >> 2), i & 3); }
    __device__ __forceinline__ float unit(int r) const { return d[r] * 0.25f; }
};

// Nibbles that choose from 16 bytes, of which eight are negative and eight are not. Words [r] of sub-block j: four nibbles of a[r] in
// the low half, of a[2 + r] in the high half.
struct Chosen_4 {
    uint4 words[4];  // uint4 [4][lane]: of sub-blocks 2 i and 2 i + 1, two words each

    __device__ __forceinline__ void load(const void* tile, int lane) {
        const uint4* at = (const uint4*)tile + lane;
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = at[32 * i];
    }
    __device__ __forceinline__ void fragment(int j, const uint32_t table[4], uint32_t a[4]) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t word = word_of(words[j >> 1], 2 * (j & 1) + r);
            uint32_t eighth = word & 0x77777777;                         // which of each eight
            uint32_t upper = ((word & 0x88888888) >> 1) | 0x32103210;  // of the first or of the second eight
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t first = permute_bytes(table[0], table[1], eighth >> (16 * h));
                uint32_t second = permute_bytes(table[2], table[3], eighth >> (16 * h));
                a[2 * h + r] = permute_bytes(first, second, upper >> (16 * h));
            }
        }
    }
    // A nibble whose bit 3 is set chooses the sign of a byte, eight times: the table of the other eight adds 0 or -1, for which
    // entries of `parts` make up. [0], [1]: the first eight; [2], [3]: the second.
    __device__ __forceinline__ void sums(int j, const uint32_t parts[4], uint32_t a[8]) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t word = word_of(words[j >> 1], 2 * (j & 1) + r), other = word ^ 0x88888888;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                a[2 * h + r] = permute_bytes(parts[0], parts[1], word >> (16 * h));
                a[4 + 2 * h + r] = permute_bytes(parts[2], parts[3], other >> (16 * h));
            }
        }
    }
};

#define IQ4_TABLE {0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535}  // -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
#define FP4_TABLE {0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc}  // twice E2M1: 0 1 2 3 4 6 8 12, and negative
// For `sums`. Of IQ4's first eight all are negative: 1 more for the second. Of FP4's second eight all but 0: 1 more for their twins.
#define IQ4_PARTS {0xbfad9881, 0xf6eaddcf, 0x271a0e02, 0x725a4636}
#define FP4_PARTS {0x04030200, 0x0d090705, 0xfdfeff00, 0xf4f8fafc}

// Tile: the nibbles; 16 headers of 8 bytes. A scale minus 32 is six bits in two's complement, and comes out times 4. Bits 2 ... 7 of
// byte i of the second word are scale i; its bits 0 and 1 are the low ones of scale 4 + i, whose high ones are nibble i of the first
// word's upper half. Its lower half is d.
struct IQ4_XS {
    static constexpr int TILE_BYTES = 2176, GROUP = 32, ODD_SHIFT = 0, MINIMA = 0;
    static constexpr bool INTEGER = true, UNSIGNED = false;
    Chosen_4 codes;
    uint32_t scales[2][2];
    float d[2];

    __device__ __forceinline__ void load(const char* tile, int lane) {
        codes.load(tile, lane);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint2 header = ((const uint2*)(tile + 2048))[(lane >> 2) + 8 * r];
            d[r] = low_half(header.x);
            scales[r][0] = header.y & 0xfcfcfcfc;
            uint32_t high = permute_bytes(header.x, header.x << 4, 0x3726);  // each nibble as the upper one of a byte
            scales[r][1] = (high & 0xf0f0f0f0) | ((header.y << 2) & 0x0c0c0c0c);
        }
    }
    __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const {
        const uint32_t table[4] = IQ4_TABLE;
        codes.fragment(j, table, a);
    }
    __device__ __forceinline__ void parts(int j, uint32_t a[8]) const {
        const uint32_t parts[4] = IQ4_PARTS;
        codes.sums(j, parts, a);
    }
    __device__ __forceinline__ int scale(int r, int i) const { return signed_byte_of(scales[r][i >> 2], i & 3); }
    __device__ __forceinline__ float unit(int r) const { return d[r] * 0.25f; }
};
template <>
constexpr bool CHOOSES<IQ4_XS> = true;
