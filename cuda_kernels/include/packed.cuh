// Rows as the integer products eat them: 15 bits in two int8 planes, x = d * (128 * high + low).
//   q  int8  [row][2][width]: high, then low. Within 32 values the bytes stand as lanes of an mma read them:
//            value 4t + j is byte 8t + j, value 16 + 4t + j is byte 8t + 4 + j (t, j < 4).
//   d  float [row][width / 256]: of 256 values. All zero: 0. A NaN or an infinity among them: NaN.
//   s  int16 [row][2][width / 256][24]: of each plane, 8 sums of 32 values, then 16 sums of 16.
// `width` is a multiple of 256; what a row does not fill is zero.
#pragma once
#include "base.cuh"

#define PACK_BLOCK 256
#define PACK_SUMS 24
#define PACK_STEPS 16256.0f  // 127 * 128: the largest |128 * high + low| that is made

struct PackedRows {
    int8_t* q;
    float* d;
    int16_t* s;
    int width;
};

// A warp packs block `block` of row `row`; its lane holds values 8 * lane ... 8 * lane + 7 of the block.
__device__ __forceinline__ void pack_block(const float v[8], const PackedRows& out, int row, int block) {
    int lane = threadIdx.x & 31, blocks = out.width / PACK_BLOCK;
    float largest = 0.0f;
    bool broken = false;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        largest = fmaxf(largest, fabsf(v[j]));
        broken |= !(fabsf(v[j]) < INFINITY_F);
    }
    largest = warp_max(largest);
    broken = __any_sync(ALL_LANES, broken);
    float d = broken ? __int_as_float(0x7fc00000) : largest / PACK_STEPS;
    float per_step = d > 0.0f ? 1.0f / d : 0.0f;
    if (!(per_step < INFINITY_F)) per_step = 0.0f;  // d is subnormal: what it scales rounds to nothing
    uint32_t words[2][2] = {{0, 0}, {0, 0}};
    int sums[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int step = broken ? 0 : __float2int_rn(v[j] * per_step);
        step = max(-16256, min(16256, step));
        int high = (step + 64) >> 7, low = step - 128 * high;
        words[0][j >> 2] |= (uint32_t)(high & 255) << (8 * (j & 3));
        words[1][j >> 2] |= (uint32_t)(low & 255) << (8 * (j & 3));
        sums[0] += high;
        sums[1] += low;
    }
    int m = lane & 3, word = 4 * (m & 1) + (m >> 1);  // of the 8 words of 32 values; the second is 2 on
#pragma unroll
    for (int plane = 0; plane < 2; plane++) {
        size_t at = (size_t)(2 * row + plane);
        uint32_t* q = (uint32_t*)(out.q + at * out.width + (size_t)block * PACK_BLOCK) + 8 * (lane >> 2);
        q[word] = words[plane][0];
        q[word + 2] = words[plane][1];
        int16_t* s = out.s + (at * blocks + block) * PACK_SUMS;
        int sixteen = sums[plane] + __shfl_xor_sync(ALL_LANES, sums[plane], 1);
        int thirty_two = sixteen + __shfl_xor_sync(ALL_LANES, sixteen, 2);
        if ((lane & 1) == 0) s[8 + (lane >> 1)] = (int16_t)sixteen;
        if ((lane & 3) == 0) s[lane >> 2] = (int16_t)thirty_two;
    }
    if (lane == 0) out.d[(size_t)row * blocks + block] = d;
}
