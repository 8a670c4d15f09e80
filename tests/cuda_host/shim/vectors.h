// CUDA's vector types: aligned to their size, as the device's wide loads need it.
#pragma once
#include <cstdint>

#define SHIM_VECTOR(T, NAME)                                                                     \
    struct alignas(2 * sizeof(T)) NAME##2 { T x, y; };                                           \
    struct NAME##3 { T x, y, z; };                                                               \
    struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) NAME##4 { T x, y, z, w; };           \
    inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                                   \
    inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                           \
    inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SHIM_VECTOR(signed char, char)
SHIM_VECTOR(unsigned char, uchar)
SHIM_VECTOR(short, short)
SHIM_VECTOR(unsigned short, ushort)
SHIM_VECTOR(int, int)
SHIM_VECTOR(unsigned, uint)
SHIM_VECTOR(long long, longlong)
SHIM_VECTOR(unsigned long long, ulonglong)
SHIM_VECTOR(float, float)
SHIM_VECTOR(double, double)
