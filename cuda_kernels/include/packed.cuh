// Rows as the integer products eat them: 15 bits in two int8 planes, x = d * (128 * high + low).
//   q  int8  [row][2][width]: high (-127 to 127), then low (-64 to 63). Within 32 values the bytes stand as lanes of an
//            mma read them: value 4t + j is byte 8t + j, value 16 + 4t + j is byte 8t + 4 + j (t, j < 4).
//   d  float [row][width / 256]: 1 / 16256 of the largest of 256 values. A NaN or an infinity among them makes it NaN,
//            with bytes of 0; a block whose largest is below 2^-112 is taken for zeros, and its d is 0.
//   s  int16 [row][2][width / 256][24]: of each plane, 8 sums of 32 values, then 16 sums of 16.
// `width` is a multiple of 256; what a row does not fill is zero.
#pragma once
#include "base.cuh"

#define PACK_BLOCK 256
#define PACK_SUMS 24
#define PACK_STEPS 16256.0f              // 127 * 128: the largest |128 * high + low| that is made
#define PACK_SMALLEST 1.92592994e-34f    // 2^-112: from here on d is a normal number, and its reciprocal finite
#define PACK_INFINITE 0x7f800000u        // from here on the bits of a float without sign are no number

struct PackedRows {
    int8_t* q;
    float* d;
    int16_t* s;
    int width;
};

// Four neighbours of one plane each, out of two words with two 16-bit numbers each: their lowest bytes.
__device__ __forceinline__ uint32_t pack_low_bytes(uint32_t first, uint32_t second) {
    return __byte_perm(first, second, 0x6420);
}

// Eight values as steps. A sum with 1.5 * 2^23 is rounded to an integer, half to even, which then is its lowest bits;
// 64 more, and bits 0 ... 6 are low + 64, bits 7 ... 14 are high. 16 bits of two values travel in one word.
__device__ __forceinline__ void pack_steps(const float v[8], float per_step, uint32_t high[2], uint32_t low[2]) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int a = __float_as_int(fmaf(v[2 * i], per_step, 12582912.0f + 64.0f));
        int b = __float_as_int(fmaf(v[2 * i + 1], per_step, 12582912.0f + 64.0f));
        pairs[i] = __byte_perm(a, b, 0x5410);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        high[i] = pack_low_bytes(pairs[2 * i] >> 7, pairs[2 * i + 1] >> 7);
        uint32_t biased = pack_low_bytes(pairs[2 * i], pairs[2 * i + 1]) & 0x7f7f7f7fu;
        low[i] = (biased + 0x40404040u) ^ 0x80808080u;  // - 64 in each byte, without borrowing
    }
}

// A warp packs block `block` of row `row`; its lane holds values 8 * lane ... 8 * lane + 7 of the block.
__device__ __forceinline__ void pack_block(const float v[8], const PackedRows& out, int row, int block) {
    int lane = threadIdx.x & 31, blocks = out.width / PACK_BLOCK;
    // Without their signs floats are ordered as their bits are, infinity and NaN above all numbers.
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) bits = max(bits, (uint32_t)__float_as_int(v[j]) & 0x7fffffffu);
    bits = __reduce_max_sync(ALL_LANES, bits);
    float largest = __int_as_float((int)bits);
    bool in_range = largest >= PACK_SMALLEST && bits < PACK_INFINITE;
    float d = in_range ? largest * (1.0f / PACK_STEPS) : 0.0f;
    if (bits >= PACK_INFINITE) d = __int_as_float(0x7fc00000);
    uint32_t planes[2][2];
    pack_steps(v, in_range ? PACK_STEPS / largest : 0.0f, planes[0], planes[1]);
    int sums[2];
#pragma unroll
    for (int plane = 0; plane < 2; plane++) {
        if (!in_range) planes[plane][0] = planes[plane][1] = 0;  // no number makes no step either
        sums[plane] = __dp4a((int)planes[plane][1], 0x01010101, __dp4a((int)planes[plane][0], 0x01010101, 0));
    }
    // The sums of both planes travel in one word: a sum of 32 low values is within 2048, of high ones within 4064.
    // Of four lanes the first and the third keep the two sums of 16, the second that of 32.
    int eight = 65536 * sums[0] + sums[1];
    int sixteen = eight + __shfl_xor_sync(ALL_LANES, eight, 1);
    int thirty_two = sixteen + __shfl_xor_sync(ALL_LANES, sixteen, 2);
    int four = lane >> 2, m = lane & 3;
    int sum = m == 1 ? thirty_two : sixteen, place = m == 1 ? four : 8 + (lane >> 1);
    int word = 8 * four + 4 * (m & 1) + (m >> 1);  // see the order of bytes above; the second word is 2 on
#pragma unroll
    for (int plane = 0; plane < 2; plane++) {
        size_t at = (size_t)((2 * row + plane) * blocks + block);
        uint32_t* q = (uint32_t*)(out.q + at * PACK_BLOCK) + word;
        q[0] = planes[plane][0];
        q[2] = planes[plane][1];
        // The low sum carries one into the high one if it is negative, which half of its room takes back.
        int16_t of_plane = (int16_t)(plane ? sum : (sum + 32768) >> 16);
        if (m != 3) out.s[at * PACK_SUMS + place] = of_plane;
    }
    if (lane == 0) out.d[(size_t)(row * blocks + block)] = d;
}
