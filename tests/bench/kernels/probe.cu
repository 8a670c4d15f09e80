// What the machine can do: copying, reading, and starting kernels that do nothing.
#include "base.cuh"

// A block takes pieces of 4 x 256 words; four loads of a thread are under way at a time.
#define PIECE 1024

extern "C" __global__ void __launch_bounds__(256) probe_copy(const uint4* from, uint4* to, int pieces) {
    wait_for_previous();
    let_next_start();
    for (int piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        size_t at = (size_t)piece * PIECE + threadIdx.x;
        uint4 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = load_once(from + at + 256 * i);
#pragma unroll
        for (int i = 0; i < 4; i++) to[at + 256 * i] = words[i];
    }
}

// The sum is written, so that the loads are not left out.
extern "C" __global__ void __launch_bounds__(256) probe_read(const uint4* from, uint32_t* sums, int pieces) {
    wait_for_previous();
    let_next_start();
    uint32_t sum = 0;
    for (int piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        size_t at = (size_t)piece * PIECE + threadIdx.x;
        uint4 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = load_once(from + at + 256 * i);
#pragma unroll
        for (int i = 0; i < 4; i++) sum += words[i].x + words[i].y + words[i].z + words[i].w;
    }
    sum = (uint32_t)warp_sum((int)sum);
    if ((threadIdx.x & 31) == 0) sums[blockIdx.x * 8 + (threadIdx.x >> 5)] = sum;
}

// With arguments, as real ones have.
extern "C" __global__ void __launch_bounds__(128) probe_nothing(const float* x, float* y, int n) {
    wait_for_previous();
    let_next_start();
}
