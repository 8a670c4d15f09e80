// One kernel for each built-in function: y[i] = NAME(x[i], ...).
#include "base.cuh"
#include "mma.cuh"

#define ONE(R, NAME, A)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) each_##NAME(const A* a, R* y, int n) {               \
        wait_for_previous();                                                                               \
        int i = blockIdx.x * 256 + threadIdx.x;                                                            \
        if (i < n) y[i] = NAME(a[i]);                                                                      \
    }
#define TWO(R, NAME, A, B)                                                                                 \
    extern "C" __global__ void __launch_bounds__(256) each_##NAME(const A* a, const B* b, R* y, int n) {   \
        wait_for_previous();                                                                               \
        int i = blockIdx.x * 256 + threadIdx.x;                                                            \
        if (i < n) y[i] = NAME(a[i], b[i]);                                                                \
    }
#define THREE(R, NAME, A, B, C)                                                                            \
    extern "C" __global__ void __launch_bounds__(256) each_##NAME(const A* a, const B* b, const C* c, R* y, int n) { \
        wait_for_previous();                                                                               \
        int i = blockIdx.x * 256 + threadIdx.x;                                                            \
        if (i < n) y[i] = NAME(a[i], b[i], c[i]);                                                          \
    }

ONE(float, half_to_float, uint16_t)
ONE(float, bf16_to_float, uint16_t)
ONE(uint16_t, float_to_half, float)
ONE(uint16_t, float_to_bf16, float)
TWO(uint32_t, floats_to_half2, float, float)
TWO(uint32_t, floats_to_bf162, float, float)
ONE(int, __float2int_rn, float)
ONE(int, __float2int_rz, float)
ONE(int, __float2int_rd, float)
ONE(int, __float2int_ru, float)
ONE(uint32_t, __float2uint_rn, float)
ONE(float, __int2float_rn, int)
ONE(float, __uint2float_rn, uint32_t)
ONE(int, __popc, uint32_t)
ONE(int, __popcll, uint64_t)
ONE(int, __clz, int)
ONE(int, __clzll, int64_t)
ONE(int, __ffs, int)
ONE(uint32_t, __brev, uint32_t)
TWO(uint32_t, __umulhi, uint32_t, uint32_t)
TWO(int, __mulhi, int, int)
TWO(uint64_t, __umul64hi, uint64_t, uint64_t)
THREE(uint32_t, __byte_perm, uint32_t, uint32_t, uint32_t)
THREE(uint32_t, __funnelshift_l, uint32_t, uint32_t, uint32_t)
THREE(uint32_t, __funnelshift_r, uint32_t, uint32_t, uint32_t)
THREE(uint32_t, __funnelshift_lc, uint32_t, uint32_t, uint32_t)
THREE(uint32_t, __funnelshift_rc, uint32_t, uint32_t, uint32_t)
THREE(int, __dp4a, int, int, int)
THREE(int, __dp2a_lo, int, int, int)
THREE(int, __dp2a_hi, int, int, int)
TWO(uint32_t, __vadd4, uint32_t, uint32_t)
TWO(uint32_t, __vsub4, uint32_t, uint32_t)
TWO(uint32_t, __vaddss4, uint32_t, uint32_t)
TWO(uint32_t, __vsubss4, uint32_t, uint32_t)
TWO(uint32_t, __vmaxs4, uint32_t, uint32_t)
TWO(uint32_t, __vminu4, uint32_t, uint32_t)
TWO(uint32_t, __vcmpeq4, uint32_t, uint32_t)
TWO(uint32_t, __vcmpne4, uint32_t, uint32_t)
TWO(uint32_t, __vcmpgts4, uint32_t, uint32_t)
TWO(uint32_t, __vcmpgtu4, uint32_t, uint32_t)
TWO(uint32_t, __vadd2, uint32_t, uint32_t)
TWO(uint32_t, __vsub2, uint32_t, uint32_t)
THREE(float, fmaf, float, float, float)
TWO(float, __fdiv_rn, float, float)
TWO(float, fmaxf, float, float)
TWO(float, fminf, float, float)
ONE(float, expf, float)
ONE(float, exp2f, float)
ONE(float, log1pf, float)
ONE(float, tanhf, float)
ONE(float, rsqrtf, float)
ONE(float, sigmoid, float)
ONE(float, silu, float)
ONE(double, log, double)

// what a lane gets from the others; out: [operation][thread]
extern "C" __global__ void __launch_bounds__(64) exchanges(const int64_t* x, int64_t* y, int width) {
    wait_for_previous();
    int i = threadIdx.x;
    int64_t big = x[i];
    int small = (int)big;
    y[i] = __shfl_sync(ALL_LANES, big, i * 7 + 3, width);
    y[64 + i] = __shfl_xor_sync(ALL_LANES, small, 5, width);
    y[128 + i] = __shfl_up_sync(ALL_LANES, small, 3, width);
    y[192 + i] = __shfl_down_sync(ALL_LANES, big, 3, width);
    y[256 + i] = __ballot_sync(ALL_LANES, small & 1);
    y[320 + i] = __any_sync(ALL_LANES, small == (int)x[9]);
    y[384 + i] = __all_sync(ALL_LANES, i < 32 || small != (int)x[40]);
    y[448 + i] = __match_any_sync(ALL_LANES, small & 3);
    y[512 + i] = __syncthreads_count(small & 1);
    y[576 + i] = __syncthreads_or(small == (int)x[9]);
    y[640 + i] = __syncthreads_and(small != (int)x[40]);
    y[704 + i] = __reduce_add_sync(ALL_LANES, small);
    y[768 + i] = __reduce_max_sync(ALL_LANES, small);
    unsigned half = i & 16 ? 0xffff0000u : 0x0000ffffu;  // two meetings in a warp at a time
    y[832 + i] = __shfl_xor_sync(half, small, 8);
    if (i & 1) y[896 + i] = __ballot_sync(0xaaaaaaaau, small > 0);
}

extern "C" __global__ void __launch_bounds__(128) sums(const float* x, float* y, int n) {
    __shared__ float scratch[33];
    wait_for_previous();
    float sum = 0.0f, largest = -INFINITY_F;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        sum += x[(size_t)blockIdx.x * n + i];
        largest = fmaxf(largest, x[(size_t)blockIdx.x * n + i]);
    }
    largest = warp_max(largest);
    y[(size_t)blockIdx.x * 256 + threadIdx.x] = block_sum(sum, scratch);
    y[(size_t)blockIdx.x * 256 + 128 + threadIdx.x] = largest;
}

// all on one place each: [add, sub, max, min, or, and, xor, cas counter, inc, 64-bit add, exch]
extern "C" __global__ void __launch_bounds__(64) atomics(const int* x, int* y, uint64_t* big, int* order) {
    wait_for_previous();
    int i = blockIdx.x * 64 + threadIdx.x, v = x[i];
    order[i] = atomicAdd(&y[0], 1);
    atomicSub(&y[1], v);
    atomicMax(&y[2], v);
    atomicMin(&y[3], v);
    atomicOr(&y[4], v);
    atomicAnd(&y[5], v);
    atomicXor(&y[6], v);
    int seen = y[7];
    for (;;) {
        int was = atomicCAS(&y[7], seen, seen + 1);
        if (was == seen) break;
        seen = was;
    }
    atomicInc((unsigned*)&y[8], 10);
    atomicAdd(big, (uint64_t)1 << 32);
    atomicExch(&y[9], v);
}

// A (16 x k, row after row), B (k x 8, column after column), C and D (16 x 8); through the layouts that mma.cuh states
extern "C" __global__ void __launch_bounds__(32) product_s8(const int8_t* a, const int8_t* b, const int* c, int* d) {
    wait_for_previous();
    int lane = threadIdx.x, group = lane >> 2, t = lane & 3;
    uint32_t wa[4], wb[2];
    int wc[4], wd[4];
    for (int i = 0; i < 4; i++) wa[i] = *(const uint32_t*)(a + 32 * (group + 8 * (i & 1)) + 16 * (i >> 1) + 4 * t);
    for (int i = 0; i < 2; i++) wb[i] = *(const uint32_t*)(b + 32 * group + 16 * i + 4 * t);
    for (int i = 0; i < 4; i++) wc[i] = c[8 * (group + 8 * (i >> 1)) + 2 * t + (i & 1)];
    mma_s8(wd, wa, wb, wc);
    for (int i = 0; i < 4; i++) d[8 * (group + 8 * (i >> 1)) + 2 * t + (i & 1)] = wd[i];
}
extern "C" __global__ void __launch_bounds__(32) product_s8_k16(const int8_t* a, const int8_t* b, const int* c, int* d) {
    wait_for_previous();
    int lane = threadIdx.x, group = lane >> 2, t = lane & 3;
    uint32_t wa[2], wb = *(const uint32_t*)(b + 16 * group + 4 * t);
    int wc[4];
    for (int i = 0; i < 2; i++) wa[i] = *(const uint32_t*)(a + 16 * (group + 8 * i) + 4 * t);
    for (int i = 0; i < 4; i++) wc[i] = c[8 * (group + 8 * (i >> 1)) + 2 * t + (i & 1)];
    mma_s8_k16(wc, wa, wb, wc);
    for (int i = 0; i < 4; i++) d[8 * (group + 8 * (i >> 1)) + 2 * t + (i & 1)] = wc[i];
}
#define PRODUCT(NAME)                                                                                            \
    extern "C" __global__ void __launch_bounds__(32) product_##NAME(const uint16_t* a, const uint16_t* b,         \
                                                                    const float* c, float* d) {                  \
        wait_for_previous();                                                                                     \
        int lane = threadIdx.x, group = lane >> 2, t = lane & 3;                                                 \
        uint32_t wa[4], wb[2];                                                                                   \
        float wc[4], wd[4];                                                                                      \
        for (int i = 0; i < 4; i++)                                                                              \
            wa[i] = *(const uint32_t*)(a + 16 * (group + 8 * (i & 1)) + 8 * (i >> 1) + 2 * t);                   \
        for (int i = 0; i < 2; i++) wb[i] = *(const uint32_t*)(b + 16 * group + 8 * i + 2 * t);                  \
        for (int i = 0; i < 4; i++) wc[i] = c[8 * (group + 8 * (i >> 1)) + 2 * t + (i & 1)];                     \
        mma_##NAME(wd, wa, wb, wc);                                                                              \
        for (int i = 0; i < 4; i++) d[8 * (group + 8 * (i >> 1)) + 2 * t + (i & 1)] = wd[i];                     \
    }
PRODUCT(f16)
PRODUCT(bf16)

// four matrices of 8 rows of 16 bytes, as each lane gets them: out [lane][matrix], then turned
extern "C" __global__ void __launch_bounds__(32) matrices(const uint4* x, uint32_t* y) {
    __shared__ uint4 rows[32];
    wait_for_previous();
    int lane = threadIdx.x;
    rows[lane] = load_once(x + lane);
    __syncwarp();
    ldmatrix_4(*(uint32_t(*)[4])(y + 4 * lane), &rows[lane]);
    ldmatrix_4_turned(*(uint32_t(*)[4])(y + 128 + 4 * lane), &rows[lane]);
}

extern "C" __global__ void __launch_bounds__(64) places(int* y) {
    wait_for_previous();
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int at = block * blockDim.x * blockDim.y * blockDim.z + thread;
    y[at] = at + 1000 * (int)(blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z);
}
