// Float rows in the hands of a block: a warp takes 256 neighbouring values, a lane 8 of them, as `pack_block` has it.
#pragma once
#include "packed.cuh"

// Whether 8 values from `at` on are there and lie at 16 bytes: rows whose width is a multiple of 4 begin there.
__device__ __forceinline__ bool whole_8(int at, int width) { return at + 8 <= width && (width & 3) == 0; }

__device__ __forceinline__ void load_whole_8(const float* p, float v[8]) {
    float4 a = *(const float4*)p, b = *(const float4*)(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// Values `at` ... `at` + 7 of a row; 0 from `width` on.
__device__ __forceinline__ void load_8(const float* row, int at, int width, float v[8]) {
    if (whole_8(at, width)) {
        load_whole_8(row + at, v);
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = at + j < width ? row[at + j] : 0.0f;
    }
}

__device__ __forceinline__ void store_8(float* row, int at, int width, const float v[8]) {
    if (whole_8(at, width)) {
        *(float4*)(row + at) = make_float4(v[0], v[1], v[2], v[3]);
        *(float4*)(row + at + 4) = make_float4(v[4], v[5], v[6], v[7]);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (at + j < width) row[at + j] = v[j];
    }
}

// The same as bfloat16; rows whose width is a multiple of 8 begin at 16 bytes.
__device__ __forceinline__ void store_8(uint16_t* row, int at, int width, const float v[8]) {
    if (at + 8 <= width && (width & 7) == 0) {
        *(uint4*)(row + at) = make_uint4(floats_to_bf162(v[0], v[1]), floats_to_bf162(v[2], v[3]),
                                         floats_to_bf162(v[4], v[5]), floats_to_bf162(v[6], v[7]));
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (at + j < width) row[at + j] = float_to_bf16(v[j]);
    }
}

__device__ __forceinline__ void fill_8(float v[8], float value) {
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = value;
}

__device__ __forceinline__ void add_8(float v[8], const float other[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] += other[j];
}

// As a tree, which is both quicker and closer than one after the other.
__device__ __forceinline__ float square_sum_8(const float v[8]) {
    float a = fmaf(v[0], v[0], v[1] * v[1]), b = fmaf(v[2], v[2], v[3] * v[3]);
    float c = fmaf(v[4], v[4], v[5] * v[5]), d = fmaf(v[6], v[6], v[7] * v[7]);
    return (a + b) + (c + d);
}

// `block_sum` for a kernel that sums once: with one barrier. Every warp adds the sums of all warps, to the same bits.
__device__ __forceinline__ float block_sum_once(float x, float scratch[32]) {
    int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    x = warp_sum(x);
    if (lane == 0) scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

// Two sums at once, left where the numbers came from.
__device__ __forceinline__ void block_sum_once(float& x, float& y, float scratch[2][32]) {
    int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    x = warp_sum(x);
    y = warp_sum(y);
    if (lane == 0) {
        scratch[0][threadIdx.x >> 5] = x;
        scratch[1][threadIdx.x >> 5] = y;
    }
    __syncthreads();
    x = warp_sum(lane < warps ? scratch[0][lane] : 0.0f);
    y = warp_sum(lane < warps ? scratch[1][lane] : 0.0f);
}

// What an RMS norm multiplies a row by; `per_value`: 1 / its width.
__device__ __forceinline__ float norm_factor(float squares, float per_value, float eps) {
    return rsqrtf(fmaf(squares, per_value, eps));
}

// x * factor * weight, in this order
__device__ __forceinline__ void scale_8(float v[8], float factor, const float weight[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = v[j] * factor * weight[j];
}
