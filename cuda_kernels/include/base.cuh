// What every kernel may use beside CUDA C itself. Sources include no header of a CUDA toolkit, so that
// NVRTC needs none. All PTX is in this file and in mma.cuh; the CPU shim (tests/cuda_host) has a twin
// of each function that contains any, under the same name, and defines CUDA_HOST_SHIM.
#pragma once
#ifdef CUDA_HOST_SHIM
#include "cuda_host.h"
#else
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#define DYNAMIC_SHARED(T, name) extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    T* const name = reinterpret_cast<T*>(name##_bytes)
#define INFINITY_F __int_as_float(0x7f800000)

// half and bfloat16 live in memory as 16-bit words

__device__ __forceinline__ float half_to_float(uint16_t h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
__device__ __forceinline__ uint16_t float_to_half(float f) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
__device__ __forceinline__ uint16_t float_to_bf16(float f) {
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
// low and high in one word, as mma expects them
__device__ __forceinline__ uint32_t floats_to_half2(float low, float high) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ uint32_t floats_to_bf162(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// 2^x within 2 units in the last place; 0 where that is no normal number
__device__ __forceinline__ float exp2_or_zero(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// copies from global to shared memory that threads do not wait for; 16 bytes, aligned.
// What was copied may be read after cp_async_wait of its group AND a barrier.

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global));
}
// The same, or 16 zeros without reading `global`.
__device__ __forceinline__ void cp_async_16_or_zeros(void* shared, const void* global, bool is_wanted) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(is_wanted ? 16 : 0));
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// until at most `pending` of the newest groups are under way
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// What is read once, past the first-level cache. Not `ld.global.nc`: a kernel that starts early might get what was there
// before the kernel in front of it wrote.
__device__ __forceinline__ uint4 load_once(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

// The line at `p` is on its way to the second-level cache. This does not wait, and what is there stays coherent: it may
// be called before wait_for_previous, of memory that earlier kernels still write.
__device__ __forceinline__ void prefetch_line(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Adds to a counter and returns what it was. A thread that adds later, and those that meet it at a barrier then, see what this thread
// wrote, and those that it had met at a barrier. Cheaper than __threadfence, which orders more than that.
__device__ __forceinline__ int atomic_add_ordered(int* counter, int n) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(n) : "memory");
    return before;
}

// programmatic launch: what does not depend on the kernel before may run ahead of wait_for_previous
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
__device__ __forceinline__ void wait_for_previous() {}
__device__ __forceinline__ void let_next_start() {}
#endif

// A clock that all processors share, in nanoseconds; it may stand still for a microsecond.
__device__ __forceinline__ int64_t nanoseconds() {
    int64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// The same number, of which the compiler does not know so: what follows from it is computed here, not kept in registers from before.
__device__ __forceinline__ int forgotten(int x) {
    asm volatile("" : "+r"(x));
    return x;
}
// Byte i of the result is byte n of the eight bytes y, x, where nibble i of `which` is n; with bit 3 of the nibble set,
// it is the sign of that byte, eight times. Nibbles beyond the fourth are ignored.
__device__ __forceinline__ uint32_t permute_bytes(uint32_t x, uint32_t y, uint32_t which) {
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(which));
    return r;
}
#endif  // CUDA_HOST_SHIM

#define ALL_LANES 0xffffffffu

__device__ __forceinline__ float bf16_to_float(uint16_t h) { return __int_as_float((int)((uint32_t)h << 16)); }

// Sums and maxima of a warp: a butterfly, so that every lane ends with the same bits.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}
__device__ __forceinline__ int warp_sum(int x) {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}

// Of a block, in the order of its warps; every thread gets it. `scratch`: 33 floats of shared memory.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    x = warp_sum(x);
    __syncthreads();  // other warps may still read the last result
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    if (warp == 0) {
        float sum = warp_sum(lane < warps ? scratch[lane] : 0.0f);
        if (lane == 0) scratch[32] = sum;
    }
    __syncthreads();
    return scratch[32];
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }
