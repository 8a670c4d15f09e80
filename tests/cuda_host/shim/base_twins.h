// The CPU's version of what cuda_kernels/include/base.cuh writes in PTX.
#pragma once
#include <time.h>

#include "intrinsics.h"
#include "vectors.h"

#define DYNAMIC_SHARED(T, name) T* const name = reinterpret_cast<T*>(shim::dynamic_shared(shim::Where::here()))
#define INFINITY_F __builtin_inff()

// half and bfloat16

inline float half_to_float(uint16_t h) {
    uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31) return shim::bits<float>(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0u));
    if (exponent) return shim::bits<float>(sign | (exponent + 112) << 23 | mantissa << 13);
    float size = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -size : size;
}

namespace shim {
// The upper part of `x` without its lowest `drop` bits, rounded to nearest, ties to even.
SHIM_TWIN uint32_t rounded(uint32_t x, int drop) {
    uint32_t half = 1u << (drop - 1);
    return (x + half - 1 + (x >> drop & 1)) >> drop;
}
}  // namespace shim

inline uint16_t float_to_half(float f) {
    uint32_t x = shim::bits<uint32_t>(f), sign = x >> 16 & 0x8000, size = x & 0x7fffffff;
    if (size > 0x7f800000) return 0x7fff;
    if (size >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);  // 65536 and more
    if (size >= 0x38800000) return static_cast<uint16_t>(sign | shim::rounded(size - (112u << 23), 13));
    if (size < 0x33000000) return static_cast<uint16_t>(sign);  // below half of the least subnormal
    int exponent = static_cast<int>(size >> 23);
    uint32_t mantissa = (size & 0x7fffff) | 0x800000;
    return static_cast<uint16_t>(sign | shim::rounded(mantissa, 126 - exponent));
}
inline uint16_t float_to_bf16(float f) {
    uint32_t x = shim::bits<uint32_t>(f);
    if ((x & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return static_cast<uint16_t>((static_cast<uint64_t>(x) + 0x7fff + (x >> 16 & 1)) >> 16);
}
inline uint32_t floats_to_half2(float low, float high) {
    return static_cast<uint32_t>(float_to_half(high)) << 16 | float_to_half(low);
}
inline uint32_t floats_to_bf162(float low, float high) {
    return static_cast<uint32_t>(float_to_bf16(high)) << 16 | float_to_bf16(low);
}

inline float exp2_or_zero(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

// Asynchronous copies: runtime.cpp

SHIM_TWIN void cp_async_16(void* shared, const void* global, shim::Where where = shim::Where::here()) {
    shim::start_copy(shared, global, where);
}
SHIM_TWIN void cp_async_16_or_zeros(void* shared, const void* global, bool is_wanted, shim::Where where = shim::Where::here()) {
    static const uint4 zeros = {0, 0, 0, 0};
    shim::start_copy(shared, is_wanted ? global : &zeros, where);
}
inline void cp_async_commit() { shim::commit_copies(); }
template <int pending>
SHIM_TWIN void cp_async_wait(shim::Where where = shim::Where::here()) {
    static_assert(pending >= 0, "groups");
    shim::finish_copies(pending, where);
}

namespace shim {
inline void check_alignment(const char* operation, const void* p, size_t to, Where where) {
    if (reinterpret_cast<uintptr_t>(p) % to) fail_at(operation, where, "an address is not a multiple of %zu", to);
}
inline void check_shared(const char* operation, const void* p, Where where) {
    if (!is_shared(p)) fail_at(operation, where, "an address is not in shared memory");
}
}  // namespace shim

inline uint4 load_once(const uint4* p, shim::Where where = shim::Where::here()) {
    shim::check_alignment("load_once", p, 16, where);
    return *p;
}

inline void prefetch_line(const void*) {}
inline int atomic_add_ordered(int* counter, int n) {
    __threadfence();
    int before = atomicAdd(counter, n);
    __threadfence();
    return before;
}

inline void wait_for_previous() { shim::order_launch(); }
inline void let_next_start() {}

// Unlike __byte_perm it gives bit 3 of a selector a meaning.
SHIM_TWIN uint32_t permute_bytes(uint32_t x, uint32_t y, uint32_t which) {
    uint64_t all = static_cast<uint64_t>(y) << 32 | x;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t selector = which >> 4 * i & 15, byte = static_cast<uint32_t>(all >> 8 * (selector & 7)) & 255;
        r |= (selector & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return r;
}

inline int64_t nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

SHIM_TWIN int forgotten(int x) { return x; }
