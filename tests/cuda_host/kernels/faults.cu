// Small kernels, each right as it stands and wrong in one way with PLANT defined: what the shim has to notice.
#include "base.cuh"
#include "mma.cuh"
#ifndef PLANT
#define PLANT 0
#endif

// every thread reads what its neighbour wrote
extern "C" __global__ void __launch_bounds__(128) block_rotate(const float* x, float* y) {
    __shared__ float row[128];
    wait_for_previous();
    int i = threadIdx.x;
    row[i] = x[i];
    if (!PLANT) __syncthreads();
    y[i] = row[(i + 1) & 127];
}

// sums of neighbours, over and over in the same place: both barriers are needed
extern "C" __global__ void __launch_bounds__(128) block_relax(const float* x, float* y, int rounds) {
    __shared__ float row[128];
    wait_for_previous();
    int i = threadIdx.x;
    row[i] = x[i];
    for (int r = 0; r < rounds; r++) {
        __syncthreads();
        float sum = row[i] + row[(i + 33) & 127];
        if (!PLANT) __syncthreads();
        row[i] = sum;
    }
    y[i] = row[i];
}

extern "C" __global__ void __launch_bounds__(64) warp_rotate(const float* x, float* y) {
    __shared__ float row[64];
    wait_for_previous();
    int i = threadIdx.x, lane = i & 31;
    row[i] = x[i];
    if (!PLANT) __syncwarp();
    y[i] = row[i - lane + ((lane + 31) & 31)];
}

// tiles of 32 * 4 floats through two stages, each thread 16 bytes; the neighbour's are read.
// PLANT 1: no wait, 2: no barrier behind the wait, 3: the next copy starts before all have read.
extern "C" __global__ void __launch_bounds__(32) stages(const float* x, float* y, int tiles) {
    __shared__ __align__(16) float stage[2][128];
    wait_for_previous();
    int i = threadIdx.x;
    cp_async_16(&stage[0][4 * i], x + 4 * i);
    cp_async_commit();
    float sum = 0.0f;
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) cp_async_16(&stage[(tile + 1) & 1][4 * i], x + 128 * (tile + 1) + 4 * i);
        cp_async_commit();
        if (PLANT != 1) cp_async_wait<1>();
        if (PLANT != 2) __syncthreads();
        for (int j = 0; j < 4; j++) sum += stage[tile & 1][4 * ((i + 1) & 31) + j];
        if (PLANT != 3) __syncthreads();
    }
    y[i] = sum;
}

// Factors of the last window are read by all blocks of a head and new ones written by its first block:
// into the other half, or (planted) over those that siblings may still read.
extern "C" __global__ void __launch_bounds__(32) siblings(const float* x, float* factors, float* y, const int* parity) {
    wait_for_previous();
    int i = threadIdx.x;
    float* read = factors + 32 * parity[0];
    float* write = factors + 32 * (PLANT ? parity[0] : 1 - parity[0]);
    y[32 * blockIdx.x + i] = read[i] * x[blockIdx.x];
    if (blockIdx.x == 0) write[i] = 7.0f * read[i];
}

// Who arrives last adds up what all have left, in order, and resets the counter.
// PLANT 1: the last block is taken for the last to arrive, 2: no fence before the arrival, 3: none after it.
extern "C" __global__ void __launch_bounds__(64) last_arriver(const float* x, float* partial, unsigned* counter, float* y, int n) {
    __shared__ float scratch[33];
    __shared__ bool last;
    wait_for_previous();
    float sum = 0.0f;
    for (int i = blockIdx.x * 64 + threadIdx.x; i < n; i += gridDim.x * 64) sum += x[i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        if (PLANT != 2) __threadfence();
        last = PLANT == 1 ? blockIdx.x == gridDim.x - 1 : atomicAdd(counter, 1) == gridDim.x - 1;
        if (PLANT != 3) __threadfence();
    }
    __syncthreads();
    if (!last || threadIdx.x) return;
    float all = 0.0f;
    for (int i = 0; i < (int)gridDim.x; i++) all += partial[i];
    y[0] = all;
    counter[0] = 0;
}

extern "C" __global__ void __launch_bounds__(64) barriers(float* y, int fault) {
    wait_for_previous();
    int i = threadIdx.x;
    if (fault == 1) {
        if (i < 32) __syncthreads();
    } else if (fault == 2) {
        if (i == 40) return;
        __syncthreads();
    } else if (fault == 3) {
        if (i < 32)
            __syncthreads();
        else
            __syncthreads();
    } else if (fault == 4) {
        if (i != 5) __syncwarp();
    } else if (fault == 5) {
        y[0] = __shfl_sync(0x0000ffffu, 1.0f, 0);
    } else if (fault == 6) {
        if ((i & 31) < 16) y[0] = __shfl_xor_sync(ALL_LANES, 1.0f, 1);
        else y[1] = __any_sync(ALL_LANES, 1);
    } else if (fault == 7) {
        if ((i & 31) < 16) y[0] = __shfl_sync(0x0000ffffu, 1.0f, 20);
    } else if (fault == 8) {
        if (i == 3) return;
        y[0] = warp_sum(1.0f);
    } else if (fault == 9) {
        if ((i & 31) < 16) __syncwarp(0x0000ffffu);
        else __syncwarp(ALL_LANES);
    }
    __syncthreads();
    if (i < 64) y[i] = 1.0f;
}

// waits for a block that may not have started yet
extern "C" __global__ void __launch_bounds__(32) spin(unsigned* flag) {
    wait_for_previous();
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0)
            while (atomicAdd(flag, 0) != gridDim.x - 1) __nanosleep(100);
    } else if (threadIdx.x == 0) {
        atomicAdd(flag, 1);
    }
}

extern "C" __global__ void __launch_bounds__(32) spin_quietly(unsigned* flag) {
    wait_for_previous();
    volatile unsigned* seen = flag;
    if (blockIdx.x == 0) {
        while (*seen == 0) {
        }
    } else {
        *seen = 1;
    }
}

extern "C" __global__ void __launch_bounds__(32) never_waits(float* y) { y[threadIdx.x] = 1.0f; }

extern "C" __global__ void __launch_bounds__(32) uses_dynamic(float* y, int n) {
    DYNAMIC_SHARED(float, memory);
    wait_for_previous();
    for (int i = threadIdx.x; i < n; i += 32) memory[i] = i;
    __syncthreads();
    y[threadIdx.x] = memory[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(32) unwritten(float* y) {
    __shared__ float row[32];
    DYNAMIC_SHARED(float, memory);
    wait_for_previous();
    y[2 * threadIdx.x] = row[threadIdx.x];
    y[2 * threadIdx.x + 1] = memory[threadIdx.x];
    row[threadIdx.x] = memory[threadIdx.x] = 1.0f;
}

extern "C" __global__ void __launch_bounds__(32) takes(
    const float* f, int8_t* bytes, const uint4* wide, int i, uint32_t u, int64_t l, float x, uint64_t h) {
    wait_for_previous();
    if (threadIdx.x == 0 && bytes) bytes[0] = (int8_t)(f ? f[0] : i + (int)u + (int)l + (int)x + (int)h);
}

extern "C" __global__ void __launch_bounds__(64) overruns(const float* x, float* y, int n, int by) {
    __shared__ float row[64];
    wait_for_previous();
    int i = threadIdx.x;
    row[i] = x[i < n ? i + by : 0];
    __syncthreads();
    if (i < n) y[i] = row[i];
}

extern "C" __global__ void __launch_bounds__(64) overruns_shared(float* y, int by) {
    __shared__ float row[64];
    __shared__ float other[64];
    wait_for_previous();
    int i = threadIdx.x;
    row[i + by] = 1.0f;
    other[i] = 2.0f;
    __syncthreads();
    y[i] = row[i] + other[63 - i];
}

extern "C" __global__ void __launch_bounds__(32) undefined(const float* x, float* y, int fault) {
    __shared__ float4 row[8];
    float few[4] = {1, 2, 3, 4};
    wait_for_previous();
    int i = threadIdx.x;
    if (i < 8) row[i] = *(const float4*)(x + 4 * i + (fault == 1));
    __syncthreads();
    float v = row[fault == 2 ? i : i & 7].x;
    v += few[fault == 3 ? i : i & 3];
    v += 1u << (fault == 4 ? i + 1 : i);
    v += 1 / (fault == 5 ? i - 4 : i + 1);
    v += *(fault == 6 && i == 3 ? (const float*)0 : x);
    y[i] = v;
}

extern "C" __global__ void __launch_bounds__(64) overruns_by_pointer(float* y, int by) {
    __shared__ float row[64];
    __shared__ float other[64];
    wait_for_previous();
    int i = threadIdx.x;
    float* at = row + by;
    at[i] = 1.0f;
    other[i] = 2.0f;
    __syncthreads();
    y[i] = row[i] + other[63 - i];
}

// a shuffle hands values over, but orders no memory
extern "C" __global__ void __launch_bounds__(32) exchange_by_shuffle(const float* x, float* y) {
    __shared__ float row[32];
    wait_for_previous();
    int i = threadIdx.x;
    row[i] = x[i];
    float other = __shfl_xor_sync(ALL_LANES, x[i], 1);
    if (!PLANT) __syncwarp();
    y[i] = row[i ^ 1] + other;
}

extern "C" __global__ void __launch_bounds__(32) too_early(const float* x, float* y) {
    if (PLANT && threadIdx.x == 0) y[0] = 1.0f;
    wait_for_previous();
    y[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(32) reads_early(const float* x, float* y) {
    float guess = *(const volatile float*)(x + threadIdx.x), early = PLANT ? x[threadIdx.x] : guess;
    wait_for_previous();
    y[threadIdx.x] = early;
}

// The same by all threads of a block: each fences what it wrote, then one arrives. PLANT: the last of them does not fence.
extern "C" __global__ void __launch_bounds__(64) all_fence(const float* x, float* partial, unsigned* counter, float* y) {
    __shared__ bool last;
    wait_for_previous();
    int i = threadIdx.x;
    partial[64 * blockIdx.x + i] = x[64 * blockIdx.x + i];
    if (!PLANT || i != 63) __threadfence();
    __syncthreads();
    if (i == 0) last = atomicAdd(counter, 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    float sum = 0.0f;
    for (int block = 0; block < (int)gridDim.x; block++) sum += partial[64 * block + i];
    y[i] = sum;
}
