// Rows of numbers as a GGUF file stores them, eight neighbours at a time, as float32. Products and sums are rounded
// one by one and in ggml's order: the bits are those of any other dequantisation. Layouts: ggml-common.h of llama.cpp.
#pragma once
#include "rows.cuh"

// ggml's numbers of the types
enum GgufType {
    GGUF_F32 = 0, GGUF_F16 = 1, GGUF_Q4_0 = 2, GGUF_Q4_1 = 3, GGUF_Q5_0 = 6, GGUF_Q5_1 = 7, GGUF_Q8_0 = 8,
    GGUF_Q2_K = 10, GGUF_Q3_K = 11, GGUF_Q4_K = 12, GGUF_Q5_K = 13, GGUF_Q6_K = 14,
    GGUF_IQ4_NL = 20, GGUF_IQ4_XS = 23, GGUF_BF16 = 30, GGUF_MXFP4 = 39
};

// Sixteen signed bytes as two words, lowest first: what a 4-bit number of IQ4_NL and IQ4_XS means, and twice what one
// of MXFP4 does.
#define IQ4_LOW 0xf6eaddcfbfad9881ull
#define IQ4_HIGH 0x7159453526190d01ull
#define FP4_LOW 0x0c08060403020100ull
#define FP4_HIGH 0xf4f8fafcfdfeff00ull

__device__ __forceinline__ int table_entry(uint64_t low, uint64_t high, int q) {
    return (int8_t)((q & 8 ? high : low) >> (8 * (q & 7)));
}

// Blocks begin at even addresses, those of MXFP4 anywhere.
__device__ __forceinline__ uint32_t word_at(const uint8_t* p) {
    const uint16_t* halves = (const uint16_t*)p;
    return halves[0] | (uint32_t)halves[1] << 16;
}
__device__ __forceinline__ uint32_t odd_word_at(const uint8_t* p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
__device__ __forceinline__ float half_at(const uint8_t* p) { return half_to_float(*(const uint16_t*)p); }

struct Bytes8 {
    uint32_t low, high;
    __device__ __forceinline__ int operator[](int j) const { return ((j < 4 ? low : high) >> (8 * (j & 3))) & 255; }
};
__device__ __forceinline__ Bytes8 bytes_at(const uint8_t* p) { return {word_at(p), word_at(p + 4)}; }

// Each decodes values `at` ... `at` + 7 of a block; `at` is a multiple of 8.
// Formats of 32: byte j holds value j in its low half and value j + 16 in its high half.

__device__ __forceinline__ void decode_q4_0(const uint8_t* block, int at, float v[8]) {
    float d = half_at(block);
    Bytes8 bytes = bytes_at(block + 2 + (at & 15));
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = d * (float)((bytes[j] >> (at >> 4) * 4 & 15) - 8);
}

__device__ __forceinline__ void decode_q4_1(const uint8_t* block, int at, float v[8]) {
    float d = half_at(block), m = half_at(block + 2);
    Bytes8 bytes = bytes_at(block + 4 + (at & 15));
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = d * (float)(bytes[j] >> (at >> 4) * 4 & 15) + m;
}

// 5-bit numbers: the top bits of all 32 are in one word, in order
__device__ __forceinline__ int five_bits(Bytes8 bytes, uint32_t tops, int at, int j) {
    return (bytes[j] >> (at >> 4) * 4 & 15) | (tops >> (at + j) & 1) << 4;
}

__device__ __forceinline__ void decode_q5_0(const uint8_t* block, int at, float v[8]) {
    float d = half_at(block);
    uint32_t tops = word_at(block + 2);
    Bytes8 bytes = bytes_at(block + 6 + (at & 15));
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = d * (float)(five_bits(bytes, tops, at, j) - 16);
}

__device__ __forceinline__ void decode_q5_1(const uint8_t* block, int at, float v[8]) {
    float d = half_at(block), m = half_at(block + 2);
    uint32_t tops = word_at(block + 4);
    Bytes8 bytes = bytes_at(block + 8 + (at & 15));
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = d * (float)five_bits(bytes, tops, at, j) + m;
}

__device__ __forceinline__ void decode_q8_0(const uint8_t* block, int at, float v[8]) {
    float d = half_at(block);
    Bytes8 bytes = bytes_at(block + 2 + at);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = d * (float)(int8_t)bytes[j];
}

__device__ __forceinline__ void decode_iq4_nl(const uint8_t* block, int at, float v[8]) {
    float d = half_at(block);
    Bytes8 bytes = bytes_at(block + 2 + (at & 15));
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = d * (float)table_entry(IQ4_LOW, IQ4_HIGH, bytes[j] >> (at >> 4) * 4 & 15);
}

__device__ __forceinline__ void decode_mxfp4(const uint8_t* block, int at, float v[8]) {
    uint32_t e = block[0];  // half of 2^(e - 127); the two smallest are subnormal
    float d = __int_as_float((int)(e < 2 ? 0x00200000u << e : (e - 1) << 23));
    const uint8_t* p = block + 1 + (at & 15);
    Bytes8 bytes = {odd_word_at(p), odd_word_at(p + 4)};
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = d * (float)table_entry(FP4_LOW, FP4_HIGH, bytes[j] >> (at >> 4) * 4 & 15);
}

// Formats of 256. Two bits of 128 values are in 32 bytes: lowest those of the first 32.

__device__ __forceinline__ Bytes8 two_bits_at(const uint8_t* p, int at) {
    int shift = at >> 5 & 3;
    Bytes8 bytes = bytes_at(p + 32 * (at >> 7) + (at & 31));
    return {bytes.low >> 2 * shift & 0x03030303u, bytes.high >> 2 * shift & 0x03030303u};
}

__device__ __forceinline__ void decode_q2_k(const uint8_t* block, int at, float v[8]) {
    int both = block[at >> 4];
    float scale = half_at(block + 80) * (float)(both & 15), minimum = half_at(block + 82) * (float)(both >> 4);
    Bytes8 q = two_bits_at(block + 16, at);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = scale * (float)q[j] - minimum;
}

__device__ __forceinline__ void decode_q3_k(const uint8_t* block, int at, float v[8]) {
    int i = at >> 4;  // of 16 scales: 4 bits of two in each of 8 bytes, 2 bits of four in each of 4
    const uint8_t* scales = block + 96;
    int low = scales[i & 7] >> 4 * (i >> 3) & 15, high = scales[8 + (i & 3)] >> 2 * (i >> 2) & 3;
    float scale = half_at(block + 108) * (float)((low | high << 4) - 32);
    Bytes8 q = two_bits_at(block + 32, at), tops = bytes_at(block + (at & 31));
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = scale * (float)(q[j] - (tops[j] >> (at >> 5) & 1 ? 0 : 4));
}

// Scale and minimum, 6 bits each, of the 32 values around `at`, out of twelve bytes; `d` and `dmin` before them.
__device__ __forceinline__ void scales_k4(const uint8_t* block, int at, float* scale, float* minimum) {
    const uint8_t* packed = block + 4;
    int i = at >> 5, s, m;
    if (i < 4) {
        s = packed[i] & 63;
        m = packed[i + 4] & 63;
    } else {
        s = (packed[i + 4] & 15) | packed[i - 4] >> 6 << 4;
        m = packed[i + 4] >> 4 | packed[i] >> 6 << 4;
    }
    *scale = half_at(block) * (float)s;
    *minimum = half_at(block + 2) * (float)m;
}

// 32 bytes hold 32 values low, and the next 32 high
__device__ __forceinline__ Bytes8 nibbles_k(const uint8_t* p, int at) {
    int shift = (at >> 5 & 1) * 4;
    Bytes8 bytes = bytes_at(p + 32 * (at >> 6) + (at & 31));
    return {bytes.low >> shift & 0x0f0f0f0fu, bytes.high >> shift & 0x0f0f0f0fu};
}

__device__ __forceinline__ void decode_q4_k(const uint8_t* block, int at, float v[8]) {
    float scale, minimum;
    scales_k4(block, at, &scale, &minimum);
    Bytes8 q = nibbles_k(block + 16, at);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = scale * (float)q[j] - minimum;
}

__device__ __forceinline__ void decode_q5_k(const uint8_t* block, int at, float v[8]) {
    float scale, minimum;
    scales_k4(block, at, &scale, &minimum);
    Bytes8 q = nibbles_k(block + 48, at), tops = bytes_at(block + 16 + (at & 31));
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = scale * (float)(q[j] | (tops[j] >> (at >> 5) & 1) << 4) - minimum;
}

__device__ __forceinline__ void decode_q6_k(const uint8_t* block, int at, float v[8]) {
    float scale = half_at(block + 208) * (float)(int8_t)block[192 + (at >> 4)];
    int shift = (at >> 6 & 1) * 4;  // 64 bytes hold 64 values low, and the next 64 high
    Bytes8 low = bytes_at(block + 64 * (at >> 7) + (at & 63)), high = two_bits_at(block + 128, at);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = scale * (float)((low[j] >> shift & 15 | high[j] << 4) - 32);
}

__device__ __forceinline__ void decode_iq4_xs(const uint8_t* block, int at, float v[8]) {
    int i = at >> 5;
    int low = block[4 + (i >> 1)] >> 4 * (i & 1) & 15, high = *(const uint16_t*)(block + 2) >> 2 * i & 3;
    float scale = half_at(block) * (float)((low | high << 4) - 32);
    Bytes8 bytes = bytes_at(block + 8 + 16 * i + (at & 15));
#pragma unroll
    for (int j = 0; j < 8; j++) {
        v[j] = scale * (float)table_entry(IQ4_LOW, IQ4_HIGH, bytes[j] >> (at >> 4 & 1) * 4 & 15);
    }
}

// Values `at` ... `at` + 7 of a stored row; 0 from `width` on. Quantised rows are whole blocks.
__device__ __forceinline__ void load_gguf_8(int type, const uint8_t* row, int at, int width, float v[8]) {
    if (at >= width) {
        fill_8(v, 0.0f);
        return;
    }
    int of_32 = at & 31, of_256 = at & 255;
    size_t block_32 = at >> 5, block_256 = at >> 8;
    switch (type) {
        case GGUF_F32: load_8((const float*)row, at, width, v); break;
        case GGUF_F16:
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] = at + j < width ? half_at(row + 2 * (at + j)) : 0.0f;
            break;
        case GGUF_BF16:
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] = at + j < width ? bf16_to_float(((const uint16_t*)row)[at + j]) : 0.0f;
            break;
        case GGUF_Q4_0: decode_q4_0(row + block_32 * 18, of_32, v); break;
        case GGUF_Q4_1: decode_q4_1(row + block_32 * 20, of_32, v); break;
        case GGUF_Q5_0: decode_q5_0(row + block_32 * 22, of_32, v); break;
        case GGUF_Q5_1: decode_q5_1(row + block_32 * 24, of_32, v); break;
        case GGUF_Q8_0: decode_q8_0(row + block_32 * 34, of_32, v); break;
        case GGUF_IQ4_NL: decode_iq4_nl(row + block_32 * 18, of_32, v); break;
        case GGUF_MXFP4: decode_mxfp4(row + block_32 * 17, of_32, v); break;
        case GGUF_Q2_K: decode_q2_k(row + block_256 * 84, of_256, v); break;
        case GGUF_Q3_K: decode_q3_k(row + block_256 * 110, of_256, v); break;
        case GGUF_Q4_K: decode_q4_k(row + block_256 * 144, of_256, v); break;
        case GGUF_Q5_K: decode_q5_k(row + block_256 * 176, of_256, v); break;
        case GGUF_Q6_K: decode_q6_k(row + block_256 * 210, of_256, v); break;
        case GGUF_IQ4_XS: decode_iq4_xs(row + block_256 * 136, of_256, v); break;
        default: fill_8(v, __int_as_float(0x7fc00000));
    }
}
