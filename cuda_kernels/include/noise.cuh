// The frozen noise of core/sampling/noise.py, to the bit: integers, then float64 + - * / in the written order. Compile
// without contraction to fma, which would round once where this rounds twice.
#pragma once
#include "base.cuh"

// Purposes keep the draws of one place apart.
enum NoisePurpose { PICK_NOISE = 0, ACCEPT_COIN = 2 };

// Where a token is drawn
struct NoisePlace {
    uint32_t key_low, key_high, position, sequence;
};

// Philox4x32-10: the word of this token out of its block
__device__ __forceinline__ uint32_t noise_word(const NoisePlace& place, uint32_t token, NoisePurpose purpose) {
    uint32_t c0 = token >> 2, c1 = place.position, c2 = place.sequence, c3 = (uint32_t)purpose;
    uint32_t key0 = place.key_low, key1 = place.key_high;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)c0 * 0xD2511F53u, product1 = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ key0;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ key1;
        c1 = (uint32_t)product1;
        c3 = (uint32_t)product0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    uint32_t even = token & 2 ? c2 : c0, odd = token & 2 ? c3 : c1;
    return token & 1 ? odd : even;
}

// Natural logarithm of a positive normal number
__device__ __forceinline__ double portable_log(double x) {
    long long bits = __double_as_longlong(x);
    double mantissa = __longlong_as_double((bits & 0x000FFFFFFFFFFFFFll) | 0x3FE0000000000000ll);
    double exponent = (double)((int)(bits >> 52) - 1022);
    if (mantissa < 0.7071067811865476) {
        mantissa = mantissa * 2.0;
        exponent = exponent - 1.0;
    }
    double s = (mantissa - 1.0) / (mantissa + 1.0);
    double z = s * s;
    double series = 1.0 / 21.0;
#pragma unroll
    for (int odd = 19; odd > 1; odd -= 2) {
        series = series * z;
        series = series + 1.0 / odd;
    }
    double twice = s + s;
    return exponent * 0.6931471805599453 + (twice + twice * (z * series));
}

// Strictly between 0 and 1
__device__ __forceinline__ double uniform_noise(uint32_t word) { return ((double)word + 0.5) * (1.0 / 4294967296.0); }

__device__ __forceinline__ double gumbel_noise(const NoisePlace& place, uint32_t token) {
    return -portable_log(-portable_log(uniform_noise(noise_word(place, token, PICK_NOISE))));
}

__device__ __forceinline__ double noise_coin(const NoisePlace& place, NoisePurpose purpose) {
    return uniform_noise(noise_word(place, 0, purpose));
}
