// CUDA's arithmetic, bit and atomic functions, for the CPU.
// Fast approximations (__expf, rsqrtf, ...) are the exact functions here: a GPU differs by a few ulps.
#pragma once
#include <cmath>
#include <limits>
#include <type_traits>

#include "threads.h"

#define SHIM_TWIN inline __attribute__((always_inline))

namespace shim {
template <class To, class From>
SHIM_TWIN To bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}
template <class To, class From>
SHIM_TWIN To clamped(From value) {  // as conversions on the device: saturating, NaN to 0
    constexpr double least = static_cast<double>(std::numeric_limits<To>::min());
    constexpr double most = static_cast<double>(std::numeric_limits<To>::max());
    if (!(value == value)) return 0;
    if (static_cast<double>(value) <= least) return std::numeric_limits<To>::min();
    if (static_cast<double>(value) >= most) return std::numeric_limits<To>::max();
    return static_cast<To>(value);
}
template <class T>
struct Same {  // an argument that takes no part in finding T
    typedef T type;
};
}  // namespace shim

// Bits of numbers

SHIM_TWIN float __int_as_float(int i) { return shim::bits<float>(i); }
SHIM_TWIN int __float_as_int(float f) { return shim::bits<int>(f); }
SHIM_TWIN float __uint_as_float(unsigned i) { return shim::bits<float>(i); }
SHIM_TWIN unsigned __float_as_uint(float f) { return shim::bits<unsigned>(f); }
SHIM_TWIN double __longlong_as_double(long long i) { return shim::bits<double>(i); }
SHIM_TWIN long long __double_as_longlong(double d) { return shim::bits<long long>(d); }

// Conversions with a rounding of their own

SHIM_TWIN int __float2int_rn(float f) { return shim::clamped<int>(nearbyintf(f)); }
SHIM_TWIN int __float2int_rz(float f) { return shim::clamped<int>(truncf(f)); }
SHIM_TWIN int __float2int_rd(float f) { return shim::clamped<int>(floorf(f)); }
SHIM_TWIN int __float2int_ru(float f) { return shim::clamped<int>(ceilf(f)); }
SHIM_TWIN unsigned __float2uint_rn(float f) { return shim::clamped<unsigned>(nearbyintf(f)); }
SHIM_TWIN unsigned __float2uint_rz(float f) { return shim::clamped<unsigned>(truncf(f)); }
SHIM_TWIN float __int2float_rn(int i) { return static_cast<float>(i); }
SHIM_TWIN float __uint2float_rn(unsigned i) { return static_cast<float>(i); }
SHIM_TWIN float __ll2float_rn(long long i) { return static_cast<float>(i); }
SHIM_TWIN float __ull2float_rn(unsigned long long i) { return static_cast<float>(i); }
SHIM_TWIN double __int2double_rn(int i) { return i; }
SHIM_TWIN double __uint2double_rn(unsigned i) { return i; }
SHIM_TWIN double __ll2double_rn(long long i) { return static_cast<double>(i); }
SHIM_TWIN double __ull2double_rn(unsigned long long i) { return static_cast<double>(i); }
SHIM_TWIN float __double2float_rn(double d) { return static_cast<float>(d); }

// Arithmetic. <cmath> has the rest: fmaf, fmaxf, fminf, fabsf, expf, exp2f, logf, log1pf, tanhf, sqrtf, ... and the doubles

SHIM_TWIN float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
SHIM_TWIN float __fmul_rn(float a, float b) { return a * b; }
SHIM_TWIN float __fadd_rn(float a, float b) { return a + b; }
SHIM_TWIN float __fsub_rn(float a, float b) { return a - b; }
SHIM_TWIN float __fdiv_rn(float a, float b) { return a / b; }
SHIM_TWIN float __frcp_rn(float a) { return 1.0f / a; }
SHIM_TWIN float __fsqrt_rn(float a) { return sqrtf(a); }
SHIM_TWIN double __dadd_rn(double a, double b) { return a + b; }
SHIM_TWIN double __dmul_rn(double a, double b) { return a * b; }
SHIM_TWIN double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
SHIM_TWIN float rsqrtf(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
SHIM_TWIN double rsqrt(double x) { return 1.0 / sqrt(x); }
SHIM_TWIN float __expf(float x) { return expf(x); }
SHIM_TWIN float __exp10f(float x) { return powf(10.0f, x); }
SHIM_TWIN float __logf(float x) { return logf(x); }
SHIM_TWIN float __log2f(float x) { return log2f(x); }
SHIM_TWIN float __sinf(float x) { return sinf(x); }
SHIM_TWIN float __cosf(float x) { return cosf(x); }
SHIM_TWIN float __powf(float x, float y) { return powf(x, y); }
SHIM_TWIN float __fdividef(float a, float b) { return a / b; }
SHIM_TWIN float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

#define SHIM_MIN_MAX(T)                                      \
    SHIM_TWIN T min(T a, T b) { return a < b ? a : b; }      \
    SHIM_TWIN T max(T a, T b) { return a > b ? a : b; }
SHIM_MIN_MAX(int)
SHIM_MIN_MAX(unsigned)
SHIM_MIN_MAX(long)
SHIM_MIN_MAX(unsigned long)
SHIM_MIN_MAX(long long)
SHIM_MIN_MAX(unsigned long long)
SHIM_TWIN unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
SHIM_TWIN unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
SHIM_TWIN unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
SHIM_TWIN unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
SHIM_TWIN float min(float a, float b) { return fminf(a, b); }
SHIM_TWIN float max(float a, float b) { return fmaxf(a, b); }
SHIM_TWIN double min(double a, double b) { return fmin(a, b); }
SHIM_TWIN double max(double a, double b) { return fmax(a, b); }

// Integers

SHIM_TWIN int __popc(unsigned x) { return __builtin_popcount(x); }
SHIM_TWIN int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
SHIM_TWIN int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
SHIM_TWIN int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
SHIM_TWIN int __ffs(int x) { return __builtin_ffs(x); }
SHIM_TWIN int __ffsll(long long x) { return __builtin_ffsll(x); }
SHIM_TWIN int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
SHIM_TWIN unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
SHIM_TWIN unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
    return r;
}
inline unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 | __brev(static_cast<unsigned>(x >> 32));
}
// Byte i of the result is byte (nibble i of `which`) of the eight bytes y, x.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
    if (which & 0x8888) shim::fail("__byte_perm: CUDA leaves bit 3 of a selector open");
    uint64_t all = static_cast<uint64_t>(y) << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= static_cast<unsigned>(all >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
SHIM_TWIN unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) << (by & 31) >> 32);
}
SHIM_TWIN unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (by & 31));
}
SHIM_TWIN unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned by) {
    return by >= 32 ? low : __funnelshift_l(low, high, by);
}
SHIM_TWIN unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) {
    return by >= 32 ? high : __funnelshift_r(low, high, by);
}

// Products of bytes: sums wrap, as on the device
#define SHIM_DP(T, BYTE, SHORT)                                                                       \
    SHIM_TWIN T __dp4a(T a, T b, T c) {                                                               \
        unsigned sum = static_cast<unsigned>(c);                                                      \
        for (int i = 0; i < 4; i++)                                                                   \
            sum += static_cast<unsigned>(static_cast<BYTE>(a >> 8 * i) * static_cast<BYTE>(b >> 8 * i)); \
        return static_cast<T>(sum);                                                                   \
    }                                                                                                 \
    SHIM_TWIN T __dp2a_lo(T a, T b, T c) {                                                            \
        unsigned first = static_cast<unsigned>(static_cast<SHORT>(a) * static_cast<BYTE>(b));         \
        unsigned second = static_cast<unsigned>(static_cast<SHORT>(a >> 16) * static_cast<BYTE>(b >> 8)); \
        return static_cast<T>(static_cast<unsigned>(c) + first + second);                             \
    }                                                                                                 \
    SHIM_TWIN T __dp2a_hi(T a, T b, T c) { return __dp2a_lo(a, static_cast<T>(b >> 16), c); }
SHIM_DP(int, int8_t, int16_t)
SHIM_DP(unsigned, uint8_t, uint16_t)

// Four bytes or two 16-bit numbers of a word at once
namespace shim {
template <class Part, class Each>
SHIM_TWIN unsigned by_parts(unsigned a, unsigned b, Each each) {
    constexpr int width = 8 * sizeof(Part);
    constexpr unsigned ones = (1u << width) - 1;
    unsigned r = 0;
    for (int i = 0; i < 32; i += width)
        r |= (static_cast<unsigned>(each(static_cast<Part>(a >> i), static_cast<Part>(b >> i))) & ones) << i;
    return r;
}
SHIM_TWIN int saturated(int x) { return x < -128 ? -128 : x > 127 ? 127 : x; }
}  // namespace shim
#define SHIM_VIDEO(NAME, PART, RESULT) \
    SHIM_TWIN unsigned NAME(unsigned x, unsigned y) { \
        return shim::by_parts<PART>(x, y, [](int a, int b) { return RESULT; }); \
    }
SHIM_VIDEO(__vadd4, uint8_t, a + b)
SHIM_VIDEO(__vsub4, uint8_t, a - b)
SHIM_VIDEO(__vaddss4, int8_t, shim::saturated(a + b))
SHIM_VIDEO(__vsubss4, int8_t, shim::saturated(a - b))
SHIM_VIDEO(__vmaxs4, int8_t, a > b ? a : b)
SHIM_VIDEO(__vmins4, int8_t, a < b ? a : b)
SHIM_VIDEO(__vmaxu4, uint8_t, a > b ? a : b)
SHIM_VIDEO(__vminu4, uint8_t, a < b ? a : b)
SHIM_VIDEO(__vcmpeq4, uint8_t, a == b ? 255 : 0)
SHIM_VIDEO(__vcmpne4, uint8_t, a != b ? 255 : 0)
SHIM_VIDEO(__vcmpgts4, int8_t, a > b ? 255 : 0)
SHIM_VIDEO(__vcmpgtu4, uint8_t, a > b ? 255 : 0)
SHIM_VIDEO(__vcmplts4, int8_t, a < b ? 255 : 0)
SHIM_VIDEO(__vcmpltu4, uint8_t, a < b ? 255 : 0)
SHIM_VIDEO(__vadd2, uint16_t, a + b)
SHIM_VIDEO(__vsub2, uint16_t, a - b)

// Atomics: a thread may be interrupted before and after. Never on floats: their order would show in the sum.
namespace shim {
template <class T, class Change>
__attribute__((no_sanitize("thread"))) inline T atomic(T* at, Change change) {
    static_assert(std::is_integral<T>::value && sizeof(T) >= 4, "atomics on 32 and 64 bit integers only");
    interrupt();
    touch(at, sizeof(T), Touch::atomic);
    T old = *at;
    *at = change(old);
    interrupt();
    return old;
}
}  // namespace shim
#define SHIM_ATOMIC(NAME, RESULT)                                                \
    template <class T>                                                           \
    inline T NAME(T* at, typename shim::Same<T>::type value) {                   \
        return shim::atomic(at, [value](T old) { return static_cast<T>(RESULT); }); \
    }
SHIM_ATOMIC(atomicAdd, static_cast<typename std::make_unsigned<T>::type>(old) + value)
SHIM_ATOMIC(atomicSub, static_cast<typename std::make_unsigned<T>::type>(old) - value)
SHIM_ATOMIC(atomicMax, old > value ? old : value)
SHIM_ATOMIC(atomicMin, old < value ? old : value)
SHIM_ATOMIC(atomicExch, value)
SHIM_ATOMIC(atomicAnd, old & value)
SHIM_ATOMIC(atomicOr, old | value)
SHIM_ATOMIC(atomicXor, old ^ value)
template <class T>
inline T atomicCAS(T* at, typename shim::Same<T>::type expected, typename shim::Same<T>::type value) {
    return shim::atomic(at, [=](T old) { return old == expected ? value : old; });
}
inline unsigned atomicInc(unsigned* at, unsigned last) {
    return shim::atomic(at, [=](unsigned old) { return old >= last ? 0 : old + 1; });
}
inline unsigned atomicDec(unsigned* at, unsigned last) {
    return shim::atomic(at, [=](unsigned old) { return old == 0 || old > last ? last : old - 1; });
}
inline void __threadfence() {
    shim::order_grid();
    shim::interrupt();
}
inline void __threadfence_block() {}
inline void __threadfence_system() { __threadfence(); }
inline void __nanosleep(unsigned) { shim::interrupt(); }
inline void __trap(shim::Where where = shim::Where::here()) { shim::fail_at("__trap", where, "called"); }
#ifndef __clang__
SHIM_TWIN void __builtin_assume(bool) {}
#endif

template <class T>
SHIM_TWIN T __ldg(const T* p) { return *p; }
template <class T>
SHIM_TWIN T __ldcg(const T* p) { return *p; }
template <class T>
SHIM_TWIN T __ldcs(const T* p) { return *p; }
template <class T>
SHIM_TWIN void __stcg(T* p, T value) { *p = value; }
template <class T>
SHIM_TWIN void __stcs(T* p, T value) { *p = value; }
