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

// The lowest bytes of four integers.
__device__ __forceinline__ uint32_t pack_bytes(int a, int b, int c, int d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
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
    float per_step = in_range ? PACK_STEPS / largest : 0.0f;
    float d = in_range ? largest * (1.0f / PACK_STEPS) : 0.0f;
    if (bits >= PACK_INFINITE) d = __int_as_float(0x7fc00000);
    int high[8], low[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int step = in_range ? __float2int_rn(v[j] * per_step) : 0;  // |step| <= 16256: 2 roundings add 0.002
        high[j] = (step + 64) >> 7;
        low[j] = step - 128 * high[j];
    }
    uint32_t words[2][2] = {
        {pack_bytes(high[0], high[1], high[2], high[3]), pack_bytes(high[4], high[5], high[6], high[7])},
        {pack_bytes(low[0], low[1], low[2], low[3]), pack_bytes(low[4], low[5], low[6], low[7])}};
    // The sums of both planes travel in one word: a sum of 32 low values is within 2048, of high ones within 4064.
    int sums[2];
#pragma unroll
    for (int plane = 0; plane < 2; plane++) {
        sums[plane] = __dp4a((int)words[plane][1], 0x01010101, __dp4a((int)words[plane][0], 0x01010101, 0));
    }
    int eight = 65536 * sums[0] + sums[1];
    int sixteen = eight + __shfl_xor_sync(ALL_LANES, eight, 1);
    int thirty_two = sixteen + __shfl_xor_sync(ALL_LANES, sixteen, 2);
    int m = lane & 3, word = 4 * (m & 1) + (m >> 1);  // of the 8 words of 32 values; the second is 2 on
#pragma unroll
    for (int plane = 0; plane < 2; plane++) {
        size_t at = (size_t)row * 2 + plane;
        uint32_t* q = (uint32_t*)(out.q + at * out.width + (size_t)block * PACK_BLOCK) + 8 * (lane >> 2);
        q[word] = words[plane][0];
        q[word + 2] = words[plane][1];
        int16_t* s = out.s + (at * blocks + block) * PACK_SUMS;
        // 32768 rounds: what is left of the low sum then is within half a unit of the high one
        int carried_16 = plane ? sixteen : (sixteen + 32768) >> 16;
        int carried_32 = plane ? thirty_two : (thirty_two + 32768) >> 16;
        if ((lane & 1) == 0) s[8 + (lane >> 1)] = (int16_t)carried_16;
        if ((lane & 3) == 0) s[lane >> 2] = (int16_t)carried_32;
    }
    if (lane == 0) out.d[(size_t)row * blocks + block] = d;
}
