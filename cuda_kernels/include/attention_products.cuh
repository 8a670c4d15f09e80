// The products of attn_verify: scores of a tile of keys, sums of a tile of values. For its macros see there.
#pragma once
#include "attention_tiles.cuh"

#define TEAM (4 * HALVES)  // warps that share columns
#define THREADS (32 * TEAM * TEAMS)
#define COLUMNS (8 * TILES * TEAMS)
#define KEY_STEPS (KEY_DIM / 16)
#define VALUE_TILES ((VALUE_DIM / 16 + TEAM - 1) / TEAM)  // of a warp
#define LANE_CELLS (2 / HALVES)                           // whose scores a lane ends with, of each column
#define LOW_UNIT (1.0f / 2048.0f)                         // of the second half float of a query

typedef Tile<KEY_DIM, INT8_KEYS> Keys;
typedef Tile<VALUE_DIM, INT8_VALUES> Values;

// Weights of a tile: [cell][column]
constexpr int weight_stride = INT8_VALUES ? COLUMNS + 4 : 8 * (TILES * TEAMS | 1);  // floats, or half floats

// What a thread works on. A warp scores 16 cells, over one half of the elements if a team has two.
struct Place {
    int lane, warp, team;  // warp: of the team
    int column0;           // of the team

    __device__ __forceinline__ Place()
        : lane(threadIdx.x & 31), warp(threadIdx.x / 32 % TEAM), team(threadIdx.x / (32 * TEAM)), column0(8 * TILES * team) {}
    __device__ __forceinline__ int g() const { return lane >> 2; }
    __device__ __forceinline__ int t() const { return lane & 3; }
    __device__ __forceinline__ int quarter() const { return warp & 3; }
    __device__ __forceinline__ int half() const { return warp >> 2; }
    __device__ __forceinline__ int column(int tile) const { return column0 + 8 * tile + 2 * t(); }  // and the next
    __device__ __forceinline__ int cell(int i) const { return 16 * quarter() + g() + 8 * (half() + i); }  // i < LANE_CELLS
};

// Of one half of the elements, as the tensor cores leave them: products[tile][2 * (second 8 cells) + (second column)].
__device__ __forceinline__ void multiply_keys(float products[TILES][4], const unsigned char* keys, const uint4* queries,
                                              const Place& p) {
    constexpr int steps = KEY_STEPS / HALVES;
    // lane 8 i + r: cell r, of the second 8 if i is odd; 16 bytes further if i is 2 or 3
    const unsigned char* row = keys + (16 * p.quarter() + (p.lane & 15)) * Keys::stride + 16 * (p.lane >> 4);
    row += p.half() * (Keys::cell_bytes / HALVES);
    const uint4* query = queries + (p.team * TILES * KEY_STEPS + p.half() * steps) * 32 + p.lane;
    float high[TILES][4] = {}, low[TILES][4] = {};
    if constexpr (!INT8_KEYS) {
#pragma unroll
        for (int step = 0; step < steps; step++) {
            uint32_t a[4];
            ldmatrix_4(a, row + 32 * step);
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                uint4 q = query[(n * KEY_STEPS + step) * 32];
                uint32_t b[2][2] = {{q.x, q.y}, {q.z, q.w}};
                mma_f16(high[n], a, b[0], high[n]);
                mma_f16(low[n], a, b[1], low[n]);
            }
        }
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) products[n][i] = fmaf(low[n][i], LOW_UNIT, high[n][i]);
    } else {
        constexpr int blocks = Keys::blocks / HALVES;
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) products[n][i] = 0.0f;
#pragma unroll 2
        for (int block = 0; block < blocks; block++) {
            uint32_t bytes[4];
            ldmatrix_4(bytes, row + 32 * block);
            float scale[2];
#pragma unroll
            for (int i = 0; i < 2; i++)
                scale[i] = scale_of<Keys>(keys, 16 * p.quarter() + p.g() + 8 * i, p.half() * blocks + block);
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) high[n][i] = low[n][i] = 0.0f;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t *near = bytes + 2 * half, *far = near + 1;  // cells g and g + 8
                uint32_t a[4] = {int8_to_half2(*near, false), int8_to_half2(*far, false),
                                 int8_to_half2(*near, true), int8_to_half2(*far, true)};
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    uint4 q = query[(n * KEY_STEPS + 2 * block + half) * 32];
                    uint32_t b[2][2] = {{q.x, q.y}, {q.z, q.w}};
                    mma_f16(high[n], a, b[0], high[n]);
                    mma_f16(low[n], a, b[1], low[n]);
                }
            }
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    products[n][i] = fmaf(fmaf(low[n][i], LOW_UNIT, high[n][i]), scale[i >> 1], products[n][i]);
        }
    }
}

typedef float Scores[TILES][2 * LANE_CELLS];  // [tile][2 * (i of p.cell(i)) + (second column)]

// By all threads. The two warps that have the same cells add their halves, each for 8 of them.
__device__ __forceinline__ void score_tile(Scores scores, const unsigned char* keys, const uint4* queries, unsigned char* exchange,
                                           const Place& p) {
    float products[TILES][4];
    multiply_keys(products, keys, queries, p);
    if constexpr (HALVES == 1) {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 2 * LANE_CELLS; i++) scores[n][i] = products[n][i];
    } else {
        float2* mine = (float2*)exchange + threadIdx.x / 32 * (32 * TILES) + p.lane;
        const float2* other = (float2*)exchange + (threadIdx.x / 32 ^ 4) * (32 * TILES) + p.lane;
        bool is_second = p.half();
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            mine[32 * n] = is_second ? make_float2(products[n][0], products[n][1]) : make_float2(products[n][2], products[n][3]);
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            float2 from_other = other[32 * n];
            scores[n][0] = (is_second ? products[n][2] : products[n][0]) + from_other.x;
            scores[n][1] = (is_second ? products[n][3] : products[n][1]) + from_other.y;
        }
    }
}

typedef float Sums[VALUE_TILES][TILES][4];

// sums[m][n][i]: value 8 * (i >> 1) + g of 16, column p.column(n) + (i & 1).
__device__ __forceinline__ void add_halves(Sums sums, const unsigned char* values, const unsigned char* weights, const Place& p) {
    // turned, a matrix of 8 cells x 8 values is one of 8 values x 8 cells; lane 8 i + r: cell r, of the second 8 if i is 2
    // or 3; 8 values further if i is odd
    int cell = (p.lane & 7) + 8 * (p.lane >> 4);
    const unsigned char* row = values + cell * Values::stride + 16 * (p.lane >> 3 & 1) + 32 * VALUE_TILES * p.warp;
    // lane 8 i + r: cell r, of the second 8 if i is odd; the second plane if i is 2 or 3
    const uint16_t* weight = (const uint16_t*)weights + (p.lane & 15) * weight_stride + p.column0;
    weight += (p.lane >> 4) * TILE * weight_stride;
#pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
        uint32_t b[TILES][4];
#pragma unroll
        for (int n = 0; n < TILES; n++) ldmatrix_4_turned(b[n], weight + 16 * step * weight_stride + 8 * n);
#pragma unroll
        for (int m = 0; m < VALUE_TILES; m++) {
            if (16 * (VALUE_TILES * p.warp + m) >= VALUE_DIM) continue;
            uint32_t a[4];
            ldmatrix_4_turned(a, row + 16 * step * Values::stride + 32 * m);
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                mma_f16(sums[m][n], a, b[n], sums[m][n]);
                mma_f16(sums[m][n], a, b[n] + 2, sums[m][n]);
            }
        }
    }
}

// Weights of 16 cells times the scales of a block of their values.
__device__ __forceinline__ void scale_weights(TwoBf16 scaled[TILES][2], const float* weight, const float scale[4]) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int second = 0; second < 2; second++) {
            float x[2];
#pragma unroll
            for (int i = 0; i < 2; i++) x[i] = weight[(8 * second + i) * weight_stride + 8 * n] * scale[2 * second + i];
            scaled[n][second] = split_bf16(x[0], x[1]);
        }
}

// sums[m][n][i]: value 2 g + (i >> 1) of 16. A weight meets the scale of its cell and block before it is rounded.
// `n_cells`: from there on no scale has been written.
__device__ __forceinline__ void add_bytes(Sums sums, const unsigned char* values, const unsigned char* weights, int n_cells,
                                          const Place& p) {
    // lane 8 i + r: cell 8 i + r of 32. Turned, a pair of neighbouring values is an element.
    const unsigned char* row = values + p.lane * Values::stride + 16 * VALUE_TILES * p.warp;
    const float* weight = (const float*)weights + 2 * p.t() * weight_stride + p.column0 + p.g();
    constexpr bool is_even = VALUE_TILES % 2 == 0;
#pragma unroll 1
    for (int pair = 0; pair < TILE / 32; pair++) {
        uint32_t bytes[VALUE_TILES][4];
#pragma unroll
        for (int m = 0; m < VALUE_TILES; m++) {
            if (16 * (VALUE_TILES * p.warp + m) >= VALUE_DIM) continue;
            ldmatrix_4_turned(bytes[m], row + 32 * pair * Values::stride + 16 * m);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int cell = 32 * pair + 16 * half;
            TwoBf16 scaled[TILES][2];
#pragma unroll
            for (int m = 0; m < VALUE_TILES; m++) {
                int tile = VALUE_TILES * p.warp + m;  // two share scales
                if (16 * tile >= VALUE_DIM) continue;
                if (m == 0 || (is_even ? m : tile) % 2 == 0) {
                    float scale[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int mine = cell + 2 * p.t() + (i & 1) + 8 * (i >> 1);
                        scale[i] = mine < n_cells ? scale_of<Values>(values, mine, tile / 2) : 0.0f;
                    }
                    scale_weights(scaled, weight + cell * weight_stride, scale);
                }
                const uint32_t *near = &bytes[m][2 * half], *far = near + 1;  // cells 2t, 2t + 1, and 8 further
                uint32_t a[4] = {int8_to_bf162(*near, 0, 2), int8_to_bf162(*near, 1, 3),
                                 int8_to_bf162(*far, 0, 2), int8_to_bf162(*far, 1, 3)};
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    uint32_t high[2] = {scaled[n][0].high, scaled[n][1].high};
                    uint32_t low[2] = {scaled[n][0].low, scaled[n][1].low};
                    mma_bf16(sums[m][n], a, high, sums[m][n]);
                    mma_bf16(sums[m][n], a, low, sums[m][n]);
                }
            }
        }
    }
}
