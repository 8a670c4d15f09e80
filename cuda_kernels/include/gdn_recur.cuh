// The recurrence over the rows of a step, and what is kept of them.
#pragma once
#include "gdn_parts.cuh"

// Sums of N values over lanes that differ in the bits below 2 * MASK. Where there are several values, half of the lanes
// give one half of them away and keep the other: so each lane ends with one value, after N - 1 + log2(LANES / N) shuffles.
// Partners are the same whatever N is, and so are the bits of a sum.
template <int N, int MASK>
struct LaneSum {
    static __device__ __forceinline__ float of(float v[N]) {
        if constexpr (N == 1) {
            float sum[1] = {v[0] + __shfl_xor_sync(ALL_LANES, v[0], MASK)};
            return LaneSum<1, MASK / 2>::of(sum);
        } else {
            bool upper = threadIdx.x & MASK;
            float kept[N / 2];
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                float given = upper ? v[i] : v[i + N / 2];
                kept[i] = (upper ? v[i + N / 2] : v[i]) + __shfl_xor_sync(ALL_LANES, given, MASK);
            }
            return LaneSum<N / 2, MASK / 2>::of(kept);
        }
    }
};
template <>
struct LaneSum<1, 0> {
    static __device__ __forceinline__ float of(float v[1]) { return v[0]; }
};

// This lane's part of S x, for its rows; two sums, added at the end, so that no chain is long.
template <int ROWS>
__device__ __forceinline__ void read_state(const float s[ROWS][PER_LANE], const float x[PER_LANE], float sums[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float even = 0.0f, odd = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i += 4) {
            even = fmaf(s[r][i], x[i], even);
            odd = fmaf(s[r][i + 2], x[i + 2], odd);
            even = fmaf(s[r][i + 1], x[i + 1], even);
            odd = fmaf(s[r][i + 3], x[i + 3], odd);
        }
        sums[r] = even + odd;
    }
}

// Rows chunk ... chunk + n - 1, one after the other. Half of the lanes of a state row end up with S k of one of the
// thread's rows each, and make u; the other half with S q, and make the output o. Where several lanes end with the same
// sum, one of them writes u or o, and the next one o times its gate: everything in one store.
template <int ROWS>
__device__ __forceinline__ void recur(float s[ROWS][PER_LANE], const Shared<ROWS>& shared, const DeltaLayer& layer,
                                      const Place& at, const Sequence& seq, float* raw, int chunk, int n) {
    constexpr int HALF = LANES / 2, SAME = HALF / ROWS;  // lanes that end with the same sum
    constexpr bool AHEAD = ROWS < 4;  // there are registers for the next row's q beside this one's numbers
    int lane = threadIdx.x % LANES, mine = lane % HALF / SAME;
    int own = own_row<ROWS>(mine), value_width = layer.n_value_heads * HEAD_DIM;
    int column = at.value_head * HEAD_DIM + at.first_row + own;
    bool makes_update = lane < HALF, is_gated = SAME > 1 && !makes_update && lane % SAME == 1;
    bool writes = lane % SAME == 0 || is_gated;
    float* to = raw + (size_t)(seq.start + chunk) * 2 * value_width + column;
    if (is_gated) to += value_width;
    if (makes_update) {
        int row = chunk - seq.n_final;  // of those that may be rejected
        to = layer.updates + (int64_t)layer.factor(at.slot, seq.to_half, seq.kept) * value_width + column;
        to += (int64_t)row * value_width;
    }
    int stride = makes_update ? value_width : 2 * value_width, skipped = makes_update ? seq.n_final - chunk : 0;
    const float* in = shared.in[0];
    const float* gates = &shared.gate[0][own];
    float q[PER_LANE], k[PER_LANE];
    if (AHEAD) load_part(q, in);
    load_part(k, in + HEAD_DIM);
#pragma unroll 1
    for (int t = 0; t < n; t++) {
        if (!AHEAD) load_part(q, in);
        float sums[2 * ROWS], u[ROWS];
        float4 of_row = shared.of_row[t];  // decay, beta, k . q
        float value = in[2 * HEAD_DIM + own], gate = *gates;
        read_state<ROWS>(s, q, sums + ROWS);
        read_state<ROWS>(s, k, sums);
        in += Shared<ROWS>::COLUMNS;
        gates += Tile<ROWS>::N_ROWS;
        if (AHEAD) load_part(q, in);  // behind the last row it is not read
        decay_state<ROWS>(s, of_row.x);
        float sum = LaneSum<2 * ROWS, HALF>::of(sums);
        float update = of_row.y * fmaf(-of_row.x, sum, value);
#pragma unroll
        for (int r = 0; r < ROWS; r++) u[r] = __shfl_sync(ALL_LANES, update, r * SAME, LANES);
        float of_mine = ROWS == 1 ? u[0] : __shfl_xor_sync(ALL_LANES, update, HALF);
        float o = fmaf(of_mine, of_row.z, of_row.x * sum);
        float made = makes_update ? update : o;
        if (is_gated) made *= gate;
        if (chunk + t + 1 < seq.n_rows) add_to_state<ROWS>(s, u, k);
        load_part(k, in + HEAD_DIM);
        if (writes && t >= skipped) *to = made;
        if (SAME == 1 && !makes_update) to[value_width] = made * gate;
        to += stride;
        if (chunk + t + 1 == seq.n_final) {
            store_state<ROWS>(s, layer.head_state(at.slot, at.value_head) + at.first_row * HEAD_DIM);
        }
    }
}

// Keys and decays of rows that may be rejected: of each head, one block keeps them.
template <int ROWS>
__device__ __forceinline__ void keep_factors(const Shared<ROWS>& shared, const DeltaLayer& layer, const Place& at,
                                             const Sequence& s, int tiled, int chunk, int n) {
    if (at.first_row != 0) return;
    int heads_per_key = layer.n_value_heads / layer.n_key_heads, skipped = max(0, s.n_final - chunk);
    bool is_first = tiled ? at.value_head < layer.n_key_heads : at.value_head % heads_per_key == 0;
    size_t factor = layer.factor(at.slot, s.to_half, s.kept + chunk - s.n_final + skipped);
#pragma unroll 1
    for (int t = skipped + threadIdx.x; t < n; t += Tile<ROWS>::THREADS) {
        *layer.decay(factor + t - skipped, at.value_head) = shared.of_row[t].x;
    }
    if (!is_first) return;
#pragma unroll 1
    for (int i = skipped * HEAD_DIM + threadIdx.x; i < n * HEAD_DIM; i += Tile<ROWS>::THREADS) {
        int t = i / HEAD_DIM, c = i % HEAD_DIM;
        layer.key(factor + t - skipped, at.key_head)[c] = shared.in[t][HEAD_DIM + c];
    }
}
