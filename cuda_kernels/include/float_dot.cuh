// Dot products in plain float32, for small matrices where each bit counts: routers, the gates of a delta net.
// A block of 8 warps makes a few output rows for a few input rows. Warp w takes 256 values of k at a time, beginning
// with block w; its lane 4 * s + t holds values 32 s + 4 t + j and 32 s + 16 + 4 t + j (j < 4), as packed rows lie.
// All sums are in an order that depends on k alone.
#pragma once
#include "packed.cuh"

#define DOT_WARPS 8
#define DOT_BLOCK 256

// 4 values from `at` on; 0 from `n_k`, a multiple of 4, on
__device__ __forceinline__ void load_4(float v[4], const float* row, int at, int n_k) {
    float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (at < n_k) four = *(const float4*)(row + at);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
}

// What this lane holds of a block of a float row.
__device__ __forceinline__ void load_lane(float v[8], const float* row, int block, int n_k) {
    int lane = threadIdx.x & 31, at = block * DOT_BLOCK + 32 * (lane >> 2) + 4 * (lane & 3);
    load_4(v, row, at, n_k);
    load_4(v + 4, row, at + 16, n_k);
}

struct FloatInput {
    const float* x;
    int width;

    __device__ __forceinline__ void load(float v[8], int row, int block) const {
        load_lane(v, x + (size_t)row * width, block, width);
    }
};

struct PackedInput {
    const int8_t* q;
    const float* d;
    int width;

    __device__ __forceinline__ void load(float v[8], int row, int block) const {
        const int8_t* high_bytes = q + (size_t)row * 2 * width + (size_t)block * PACK_BLOCK + 8 * (threadIdx.x & 31);
        uint2 high = *(const uint2*)high_bytes;
        uint2 low = *(const uint2*)(high_bytes + width);
        float scale = d[(size_t)row * (width / PACK_BLOCK) + block];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int h = (int8_t)((j < 4 ? high.x : high.y) >> (8 * (j & 3)));
            int l = (int8_t)((j < 4 ? low.x : low.y) >> (8 * (j & 3)));
            v[j] = scale * (float)(128 * h + l);
        }
    }
};

// Products of weight rows with input rows first ... first + n_inputs - 1 (at most INPUTS), over all of k. Thread
// r * INPUTS + i returns that of weights[r] and input i. Waits for the previous kernel once weights are under way.
template <int ROWS, int INPUTS, class Input>
__device__ __forceinline__ float block_dots(const float* const weights[ROWS], const Input& x, int first, int n_inputs,
                                            int n_k) {
    __shared__ float partial[DOT_WARPS][ROWS * INPUTS];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, blocks = (n_k + DOT_BLOCK - 1) / DOT_BLOCK;
    float sum[ROWS][INPUTS], w[ROWS][8], next[ROWS][8];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        load_lane(w[r], weights[r], warp, n_k);
#pragma unroll
        for (int i = 0; i < INPUTS; i++) sum[r][i] = 0.0f;
    }
    wait_for_previous();
    for (int block = warp; block < blocks; block += DOT_WARPS) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) load_lane(next[r], weights[r], block + DOT_WARPS, n_k);
#pragma unroll
        for (int i = 0; i < INPUTS; i++) {
            if (i >= n_inputs) continue;
            float v[8];
            x.load(v, first + i, block);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int j = 0; j < 8; j++) sum[r][i] = fmaf(w[r][j], v[j], sum[r][i]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int j = 0; j < 8; j++) w[r][j] = next[r][j];
        }
    }
    __syncthreads();  // other warps may still read the last result
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int i = 0; i < INPUTS; i++) {
            if (i >= n_inputs) continue;
            float total = warp_sum(sum[r][i]);
            if (lane == 0) partial[warp][r * INPUTS + i] = total;
        }
    }
    __syncthreads();
    float total = 0.0f;
    if (threadIdx.x < ROWS * INPUTS && threadIdx.x % INPUTS < n_inputs) {
        for (int i = 0; i < DOT_WARPS; i++) total += partial[i][threadIdx.x];
    }
    return total;
}
