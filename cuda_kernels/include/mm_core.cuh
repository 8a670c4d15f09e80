// The inner part of products with bfloat16 or half weights [n_out][n_k], which are as in the file, on tensor cores. Weights
// are the large operand: tiles of 16 output columns (rows of W); a block makes TILES of them for 4 * GROUPS rows of x.
//
// K is shared among the 8 warps: warp w takes chunks w, w + 8, ... of 64, so that a block reads runs of 1024 bytes of each
// row of W. A lane copies the 16-byte pieces that it is going to multiply itself to slots of its own in shared memory,
// STAGES - 1 chunks ahead: without a barrier. Which k meet within a product is free, as long as both sides agree:
// lane t of a row holds 8 neighbours, k = 8 t ... 8 t + 7 of 32, as two steps of the tensor core.
//
// Each row of x is a pair of columns, `high` and `low`, whose sum with their weights it is:
//   packed rows: integers, exact in 16 bits; a chunk's float32 sums are scaled by 128 d and d
//   float rows:  the nearest bfloat16, and the nearest to what is left of x (error 2^-17 of x); scaled by 1 and 1
// Sums over chunks of a warp, then over the 8 warps in their order: fixed by n_k alone.
#pragma once
#include "mma.cuh"
#include "packed.cuh"

#define WARPS 8
#define CHUNK 64
#define STAGES 3
#define LANE_PIECES 4  // of 16 bytes, in a tile and chunk: rows g and g + 8, two halves of 32

#ifdef HALF_WEIGHTS
#define MMA mma_f16
#define PAIR floats_to_half2
#else
#define MMA mma_bf16
#define PAIR floats_to_bf162
#endif

// The column of x that a lane feeds to the tensor core: 8 values as four words.
struct PackedColumns {
    const int8_t* q;
    const float* d;
    int width;

    // values 8 m ... 8 m + 3 of each 32 are word 4 * (m & 1) + (m >> 1), the next four are 2 words on
    __device__ __forceinline__ void load(uint32_t b[4], int row, int part, int k, int m) const {
        const uint32_t* words = (const uint32_t*)(q + ((size_t)row * 2 + part) * width + k) + 4 * (m & 1) + (m >> 1);
        unpack(b, words[0]);
        unpack(b + 2, words[2]);
    }
    __device__ __forceinline__ static void unpack(uint32_t b[2], uint32_t bytes) {
        float v[4];
        bytes ^= 0x80808080u;  // 0 ... 255
#pragma unroll
        for (int j = 0; j < 4; j++) {  // 2^23 + byte as a float: the byte is its lowest
            v[j] = __int_as_float((int)__byte_perm(bytes, 0x4b000000u, 0x7650 + j)) - 8388736.0f;
        }
        b[0] = PAIR(v[0], v[1]);
        b[1] = PAIR(v[2], v[3]);
    }
    __device__ __forceinline__ float scale(int row, int k) const {
        return d[(size_t)row * (width / PACK_BLOCK) + k / PACK_BLOCK];
    }
    __device__ __forceinline__ static float join(float high, float low) { return fmaf(128.0f, high, low); }
};

struct FloatColumns {
    const float* x;
    int width;

    __device__ __forceinline__ void load(uint32_t b[4], int row, int part, int k, int m) const {
        const float* at = x + (size_t)row * width + k + 8 * m;
        bool inside = k + 8 * m < width;
        float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float4 low = inside ? *(const float4*)at : zero, high = inside ? *(const float4*)(at + 4) : zero;
        split(b[0], low.x, low.y, part);
        split(b[1], low.z, low.w, part);
        split(b[2], high.x, high.y, part);
        split(b[3], high.z, high.w, part);
    }
    __device__ __forceinline__ static void split(uint32_t& b, float x, float y, int part) {
        uint32_t nearest = floats_to_bf162(x, y);
        float left = x - bf16_to_float((uint16_t)(nearest & 0xffff)), right = y - bf16_to_float((uint16_t)(nearest >> 16));
        b = part ? floats_to_bf162(left, right) : nearest;
    }
    __device__ __forceinline__ float scale(int, int) const { return 1.0f; }
    __device__ __forceinline__ static float join(float high, float low) { return high + low; }
};

// What tile i of a block is: its first row of W.
struct Tiles {
    const uint16_t* weights;
    int n_out, n_k, first, apart;  // tile i begins at row first + i * apart

    __device__ __forceinline__ const uint16_t* row(int tile, int r) const {
        return weights + (size_t)min(first + tile * apart + r, n_out - 1) * n_k;
    }
};

// One chunk of the weights to this lane's slots, [TILES][LANE_PIECES] pieces 32 lanes apart; 0 from n_k on.
template <int TILES>
__device__ __forceinline__ void fetch(uint4* slots, const Tiles& tiles, int chunk) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < TILES * LANE_PIECES; i++) {
        int tile = i / LANE_PIECES, half = i & 1, r = g + 8 * (i >> 1 & 1);
        int k = chunk * CHUNK + 32 * half + 8 * t;
        cp_async_16_or_zeros(slots + 32 * i, tiles.row(tile, r) + k, k < tiles.n_k);
    }
}

// Products of a chunk added to `total`: [tile][group][row g, row g + 8] for input row 4 * group + t.
template <int TILES, int GROUPS, class Input>
__device__ __forceinline__ void multiply_chunk(float total[TILES][GROUPS][2], const uint4* slots, const Input& x,
                                               int first, int n_rows, int chunk) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    uint4 w[TILES][LANE_PIECES];
#pragma unroll
    for (int i = 0; i < TILES * LANE_PIECES; i++) w[i / LANE_PIECES][i % LANE_PIECES] = slots[32 * i];
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        if (group == 2) __syncwarp();  // else loads for all groups come first, and take too many registers
        float sum[TILES][4];
        int fed = min(first + 4 * group + (g >> 1), n_rows - 1), held = min(first + 4 * group + t, n_rows - 1);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t b[4];
            x.load(b, fed, g & 1, chunk * CHUNK + 32 * half, t);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                uint4 low = w[tile][half], high = w[tile][2 + half];  // rows g and g + 8
                const float zero[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                uint32_t a[4] = {low.x, high.x, low.y, high.y};
                MMA(sum[tile], a, b, half ? sum[tile] : zero);
                uint32_t next[4] = {low.z, high.z, low.w, high.w};
                MMA(sum[tile], next, b + 2, sum[tile]);
            }
        }
        float d = x.scale(held, chunk * CHUNK);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            total[tile][group][0] = fmaf(d, Input::join(sum[tile][0], sum[tile][1]), total[tile][group][0]);
            total[tile][group][1] = fmaf(d, Input::join(sum[tile][2], sum[tile][3]), total[tile][group][1]);
        }
    }
}

// This block's products into `red` [warp][tile][16 columns][4 * GROUPS rows], one for each warp. Dynamic shared memory
// holds the stages first and then `red`; all threads may read it after.
template <int TILES, int GROUPS, class Input>
__device__ __forceinline__ float* products(const Tiles& tiles, const Input& x, int first, int n_rows) {
    DYNAMIC_SHARED(uint4, stages);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, chunks = (tiles.n_k + CHUNK - 1) / CHUNK;
    const int stage_size = TILES * LANE_PIECES * 32;
    uint4* slots = stages + warp * STAGES * stage_size + lane;
    float total[TILES][GROUPS][2];
#pragma unroll
    for (int i = 0; i < TILES * GROUPS * 2; i++) total[i / (2 * GROUPS)][i / 2 % GROUPS][i % 2] = 0.0f;
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ahead++) {
        if (warp + ahead * WARPS < chunks) fetch<TILES>(slots + ahead * stage_size, tiles, warp + ahead * WARPS);
        cp_async_commit();
    }
    wait_for_previous();
    int stage = 0;
    for (int chunk = warp; chunk < chunks; chunk += WARPS) {
        int later = chunk + (STAGES - 1) * WARPS, free_stage = stage == 0 ? STAGES - 1 : stage - 1;
        if (later < chunks) fetch<TILES>(slots + free_stage * stage_size, tiles, later);
        cp_async_commit();
        cp_async_wait<STAGES - 1>();
        multiply_chunk<TILES, GROUPS>(total, slots + stage * stage_size, x, first, n_rows, chunk);
        __syncwarp();  // no read of this stage is put off until after the copy that follows
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    __syncthreads();  // other warps may still read a stage
    float* red = (float*)stages;
    int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < TILES * GROUPS * 2; i++) {
        int tile = i / (2 * GROUPS), group = i / 2 % GROUPS, column = g + 8 * (i % 2);
        red[((warp * TILES + tile) * 16 + column) * 4 * GROUPS + 4 * group + t] = total[tile][group][i % 2];
    }
    __syncthreads();
    return red;
}

// Of all warps, in their order.
template <int TILES, int GROUPS>
__device__ __forceinline__ float whole(const float* red, int tile, int column, int row) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) {
        sum += red[((warp * TILES + tile) * 16 + column) * 4 * GROUPS + row];
    }
    return sum;
}
