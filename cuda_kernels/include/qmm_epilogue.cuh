// What becomes of the finished products of a group of 128 weight rows. A lane of the first 8 warps brings sums [n][r] of row
// group + 8 r of its warp's tile and token 4 n + t; a ninth warp is there for the barriers.
#pragma once
#include "packed.cuh"

#define QMM_GROUP_TILES 8
#define QMM_GROUP_ROWS 128

enum QmmEnding { QMM_STORE, QMM_ADD, QMM_SPLIT, QMM_HEAD, QMM_GATED };
enum QmmActivation { QMM_SILU, QMM_GELU, QMM_OAI };

struct QmmTarget {
    int ending, rows, tokens;  // rows of weights; tokens of this launch
    const float* row_scale;    // of each row of weights, or null
    const float* bias;         // likewise
    float* y;                  // [token][stride], from `column` on; GATED: scratch [token][stride]
    int stride, column;
    int split;                  // SPLIT: rows below go to to[to_row[token]][to_stride], the others to y
    float* to;
    const int* to_row;
    int to_stride;
    float* maxima;              // HEAD: [token][maxima_stride], of 64 rows each, NaN if one is NaN
    int maxima_stride;
    int activation;             // GATED: for `gated`, of gate rows; each tile has 8 gate rows, then their 8 up rows
    PackedRows packed;          // GATED: what comes out, for the down projection
};

__device__ __forceinline__ float larger_or_nan(float a, float b) { return a > b || a != a ? a : b; }

__device__ __forceinline__ float activated(int activation, float x) {
    if (activation == QMM_SILU) return silu(x);
    float inner = 0.7978845608028654f * fmaf(0.044715f * x * x, x, x);
    return 0.5f * x * (1.0f + tanhf(inner));
}

__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }  // NaN stays

// The same with a limit for what comes of the gate, and for the size of up. `limit`: its bits, with a sign for GELU.
__device__ __forceinline__ float gated_within(int limit, float gate, float up) {
    float most = fabsf(__int_as_float(limit));
    float active = activated(limit < 0 ? QMM_GELU : QMM_SILU, gate);
    return at_most(active, most) * -at_most(-at_most(up, most), most);
}

// QMM_OAI, of gpt-oss: gates and ups are clamped before anything else is done with them.
__device__ __forceinline__ float gated_oai(float gate, float up) {
    const float most = 7.0f;
    gate = at_most(gate, most);
    up = -at_most(-at_most(up, most), most);
    return gate / (1.0f + expf(-1.702f * gate)) * (up + 1.0f);
}

// activation(gate) * up. Sources compiled with GATE_LIMIT get a limit in the place of the activation,
// those compiled with GATE_OAI know theirs.
__device__ __forceinline__ float gated(int activation, float gate, float up) {
#if defined(GATE_OAI)
    return gated_oai(gate, up);
#elif defined(GATE_LIMIT)
    return gated_within(activation, gate, up);
#else
    return activated(activation, gate) * up;
#endif
}

__device__ __forceinline__ float scaled_and_biased(const QmmTarget& to, int row, float value) {
    if (to.row_scale) value *= to.row_scale[row];
    if (to.bias) value += to.bias[row];
    return value;
}

__device__ __forceinline__ void store_value(const QmmTarget& to, int row, int token, float value) {
    if (to.ending == QMM_SPLIT && row < to.split) {
        to.to[(size_t)to.to_row[token] * to.to_stride + row] = value;
        return;
    }
    int column = to.column + row - (to.ending == QMM_SPLIT ? to.split : 0);
    float* at = to.y + (size_t)token * to.stride + column;
    *at = to.ending == QMM_ADD ? *at + value : value;
}

template <int TILES>
__device__ __forceinline__ void store_values(const QmmTarget& to, int tile, int first_token, const float sums[TILES][2]) {
    int lane = threadIdx.x & 31;
    if (threadIdx.x >> 5 >= QMM_GROUP_TILES) return;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        int token = first_token + 4 * n + (lane & 3);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = 16 * tile + 8 * r + (lane >> 2);
            if (token < to.tokens && row < to.rows) store_value(to, row, token, scaled_and_biased(to, row, sums[n][r]));
        }
    }
}

// Logits, and the largest of each 64. `best`: shared memory, [8 warps][4 * TILES].
template <int TILES>
__device__ __forceinline__ void store_logits(const QmmTarget& to, int group, int first_token, const float sums[TILES][2], float* best) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, tile = QMM_GROUP_TILES * group + warp;
    store_values<TILES>(to, tile, first_token, sums);
    if (!to.maxima) return;
#pragma unroll
    for (int n = 0; n < TILES && warp < QMM_GROUP_TILES; n++) {
        float largest = -INFINITY_F;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = 16 * tile + 8 * r + (lane >> 2);
            if (row < to.rows) largest = larger_or_nan(largest, scaled_and_biased(to, row, sums[n][r]));
        }
#pragma unroll
        for (int offset = 4; offset < 32; offset <<= 1)
            largest = larger_or_nan(largest, __shfl_xor_sync(ALL_LANES, largest, offset));
        if (lane < 4) best[4 * TILES * warp + 4 * n + lane] = largest;
    }
    __syncthreads();
    int i = threadIdx.x, half = i / (4 * TILES), token = i % (4 * TILES);
    if (half < 2 && first_token + token < to.tokens && QMM_GROUP_ROWS * group + 64 * half < to.rows) {
        float largest = best[16 * TILES * half + token];
        for (int w = 1; w < 4; w++) largest = larger_or_nan(largest, best[16 * TILES * half + 4 * TILES * w + token]);
        to.maxima[(size_t)(first_token + token) * to.maxima_stride + 2 * group + half] = largest;
    }
    __syncthreads();  // `best` may be used again
}

// True for all threads of the last of `expected` blocks to come here, which sees what the others wrote before. Resets the counter.
// One thread adds for its block: the barriers order the others before and after it.
__device__ __forceinline__ bool last_to_arrive(int* arrivals, int expected) {
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomic_add_ordered(arrivals, 1) == expected - 1;
        if (is_last) *arrivals = 0;
    }
    __syncthreads();
    return is_last;
}

// Half of the rows are gates: 64 values of a token come of a group. The block that brings the last of 256 packs them.
// `arrivals`: zero between launches, one for each 256 of packed.width.
template <int TILES>
__device__ __forceinline__ void store_gated(const QmmTarget& to, int group, int first_token, int* arrivals, const float sums[TILES][2]) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, width = to.rows / 2;
    int column = QMM_GROUP_ROWS / 2 * group + 8 * warp + (lane >> 2);
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        int token = first_token + 4 * n + (lane & 3);
        if (token >= to.tokens || column >= width || warp >= QMM_GROUP_TILES) continue;
        float gate = scaled_and_biased(to, column, sums[n][0]), up = scaled_and_biased(to, width + column, sums[n][1]);
        to.y[(size_t)token * to.stride + column] = gated(to.activation, gate, up);
    }
    int block = group / 4, groups = (width + 63) / 64 - 4 * block;
    if (!last_to_arrive(arrivals + block, groups < 4 ? groups : 4)) return;
    for (int token = first_token + warp; token < to.tokens && token < first_token + 4 * TILES; token += QMM_GROUP_TILES + 1) {
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int at = PACK_BLOCK * block + 8 * lane + i;
            values[i] = at < width ? __ldcg(to.y + (size_t)token * to.stride + at) : 0.0f;
        }
        pack_block(values, to.packed, token, block);
    }
}

template <int TILES>
__device__ __forceinline__ void finish_group(const QmmTarget& to, int group, int first_token, int* arrivals, const float sums[TILES][2],
                                             float* best) {
    if (to.ending == QMM_GATED) store_gated<TILES>(to, group, first_token, arrivals, sums);
    else if (to.ending == QMM_HEAD) store_logits<TILES>(to, group, first_token, sums, best);
    else store_values<TILES>(to, QMM_GROUP_TILES * group + (threadIdx.x >> 5), first_token, sums);
}
