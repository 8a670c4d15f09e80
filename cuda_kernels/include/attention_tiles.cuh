// Tiles of keys and values in shared memory, and the operands that a warp makes of them. 64 cells form a tile; a cell
// takes an odd number of 16-byte pieces, so that eight of them below each other lie in different banks.
#pragma once
#include "attention.cuh"
#include "mma.cuh"

#define TILE 64

template <int dim_, bool is_int8_>
struct Tile {
    static constexpr int dim = dim_;
    static constexpr bool is_int8 = is_int8_;
    static constexpr int cell_bytes = is_int8 ? dim : 2 * dim;
    static constexpr int stride = (cell_bytes / 16) % 2 ? cell_bytes : cell_bytes + 16;
    static constexpr int blocks = dim / SCALE_BLOCK;             // of a cell
    static constexpr int group_scale_bytes = is_int8 ? dim : 0;  // 16 cells x blocks x 2
    static constexpr int scales_at = TILE * stride;
    static constexpr int bytes = scales_at + TILE / CELL_GROUP * group_scale_bytes;
};

// Elements of a whole tile. `where`: of each 16 cells, in cells.
template <class T, int threads>
__device__ __forceinline__ void copy_elements(unsigned char* to, const unsigned char* cells, const int* where) {
    constexpr int pieces = T::cell_bytes / 16, at_once = threads / pieces;
    constexpr bool is_regular = threads % pieces == 0 && TILE % at_once == 0;
    int cell = threadIdx.x / pieces, piece = threadIdx.x % pieces;
    if constexpr (is_regular && at_once <= CELL_GROUP) {
        // a thread has a column of pieces: addresses are sums of one for each 16 cells and a constant
        to += cell * T::stride + 16 * piece;
#pragma unroll
        for (int group = 0; group < TILE / CELL_GROUP; group++) {
            const unsigned char* from = cells + (size_t)(where[group] + cell) * T::cell_bytes + 16 * piece;
#pragma unroll
            for (int i = 0; i < CELL_GROUP; i += at_once)
                cp_async_16(to + (CELL_GROUP * group + i) * T::stride, from + i * T::cell_bytes);
        }
    } else if constexpr (is_regular) {
        to += cell * T::stride + 16 * piece;
#pragma unroll
        for (int i = 0; i < TILE; i += at_once) {
            size_t from = (size_t)(where[(i + cell) / CELL_GROUP] + cell % CELL_GROUP);
            cp_async_16(to + i * T::stride, cells + from * T::cell_bytes + 16 * piece);
        }
    } else {
#pragma unroll 4
        for (int i = threadIdx.x; i < TILE * pieces; i += threads) {
            int cell = i / pieces, piece = i % pieces;
            size_t from = (size_t)(where[cell / CELL_GROUP] + cell % CELL_GROUP);
            cp_async_16(to + cell * T::stride + 16 * piece, cells + from * T::cell_bytes + 16 * piece);
        }
    }
}

// Those of the cells that are wanted; zeros for the others.
template <class T, int threads>
__device__ __forceinline__ void copy_some_elements(unsigned char* to, const unsigned char* cells, const int* where, int first,
                                                   const Cells& wanted) {
    constexpr int pieces = T::cell_bytes / 16;
#pragma unroll 1
    for (int i = threadIdx.x; i < TILE * pieces; i += threads) {
        int cell = i / pieces, piece = i % pieces;
        bool is_wanted = first + cell >= wanted.first && first + cell < wanted.end;
        size_t from = (size_t)(where[cell / CELL_GROUP] + cell % CELL_GROUP);
        cp_async_16_or_zeros(to + cell * T::stride + 16 * piece, cells + from * T::cell_bytes + 16 * piece, is_wanted);
    }
}

// The scales of 16 cells are neighbours; those of cells that are not wanted may come along.
template <class T, int threads>
__device__ __forceinline__ void copy_scales(unsigned char* to, const unsigned char* scales, const int* where, int first,
                                            const Cells& wanted) {
    constexpr int pieces = T::group_scale_bytes / 16;
#pragma unroll 1
    for (int i = threadIdx.x; i < TILE / CELL_GROUP * pieces; i += threads) {
        int group = i / pieces, cell = first + CELL_GROUP * group;
        bool is_wanted = cell + CELL_GROUP > wanted.first && cell < wanted.end;
        const unsigned char* from = scales + (size_t)where[group] * (2 * T::blocks);
        cp_async_16_or_zeros(to + 16 * i, from + 16 * (i % pieces), is_wanted);
    }
}

template <class T, int threads>
__device__ __forceinline__ void copy_tile(unsigned char* to, const void* cells, const uint16_t* scales, const int* where, int first,
                                          const Cells& wanted) {
    if (first >= wanted.first && first + TILE <= wanted.end) {
        copy_elements<T, threads>(to, (const unsigned char*)cells, where);
    } else {
        copy_some_elements<T, threads>(to, (const unsigned char*)cells, where, first, wanted);
    }
    if constexpr (T::is_int8) {
        copy_scales<T, threads>(to + T::scales_at, (const unsigned char*)scales, where, first, wanted);
    }
}

template <class T>
__device__ __forceinline__ float scale_of(const unsigned char* tile, int cell, int block) {
    return half_to_float(((const uint16_t*)(tile + T::scales_at))[cell * T::blocks + block]);
}

// Bytes 0 and 1, or 2 and 3, of four int8 as half floats: 1024 + 128 + x is a half float with x + 128 in its last bits.
__device__ __forceinline__ uint32_t int8_to_half2(uint32_t four, bool is_high) {
    uint32_t biased = __byte_perm(four ^ 0x80808080u, 0x64646464u, is_high ? 0x4342 : 0x4140);
    return subtract_half2(biased, 0x64806480u);
}

// The same of bytes `low` and `high` as bfloat16, by way of a float of 2^23 + 128 + x.
__device__ __forceinline__ uint32_t int8_to_bf162(uint32_t four, int low, int high) {
    uint32_t biased = four ^ 0x80808080u;
    float a = __int_as_float((int)__byte_perm(biased, 0x4b000000u, 0x7440 + low)) - 8388736.0f;
    float b = __int_as_float((int)__byte_perm(biased, 0x4b000000u, 0x7440 + high)) - 8388736.0f;
    return floats_to_bf162(a, b);
}

// Two numbers, each in two bfloat16: 16 bits of it.
struct TwoBf16 {
    uint32_t high, low;
};

__device__ __forceinline__ TwoBf16 split_bf16(float x, float y) {
    uint32_t high = floats_to_bf162(x, y);
    float x_high = __int_as_float((int)(high << 16)), y_high = __int_as_float((int)(high & 0xffff0000u));
    return TwoBf16{high, floats_to_bf162(x - x_high, y - y_high)};
}
