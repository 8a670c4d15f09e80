// Adds the parts that attn_verify left of each row and head: the end of the reference's `attend`.
//   grid (256 values of the output rows, rows), 512 threads: 64 for 4 values each, times 8 that share the splits
// Split i belongs to share i mod 8; the shares are added in order. So a row's bits depend on its own place alone.
#include "attention.cuh"
#include "packed.cuh"

#define SHARES 8
#define QUARTETS (PACK_BLOCK / 4)

struct Parts {
    float best[SHARES][QUARTETS];
    float total[SHARES][QUARTETS];
    float4 sums[SHARES][QUARTETS];
};

__device__ __forceinline__ float base_of(float best) { return best == -INFINITY_F ? 0.0f : best; }

__device__ __forceinline__ void add_scaled(float4& sums, const float4& x, float weight) {
    sums.x = fmaf(x.x, weight, sums.x);
    sums.y = fmaf(x.y, weight, sums.y);
    sums.z = fmaf(x.z, weight, sums.z);
    sums.w = fmaf(x.w, weight, sums.w);
}

// The splits first, first + SHARES, ... before `end` of one row and head, for 4 of its values.
__device__ __forceinline__ void add_splits(Parts& parts, int share, int quartet, const float4* part_sums, const float2* part_totals,
                                           int first, int end, int quartets_of_head) {
    float best = -INFINITY_F;
#pragma unroll 4
    for (int split = first; split < end; split += SHARES) best = fmaxf(best, part_totals[split].x);
    float total = 0.0f, base = base_of(best);
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int split = first; split < end; split += SHARES) {
        float2 of_split = part_totals[split];
        float weight = exp2f(of_split.x - base);
        total = fmaf(of_split.y, weight, total);
        add_scaled(sums, part_sums[(size_t)split * quartets_of_head], weight);
    }
    parts.best[share][quartet] = best;
    parts.total[share][quartet] = total;
    parts.sums[share][quartet] = sums;
}

// `sink`: a score in powers of two that takes its share of the weights, or minus infinity.
__device__ __forceinline__ float4 add_shares(const Parts& parts, int quartet, float sink) {
    float best = sink;
#pragma unroll
    for (int share = 0; share < SHARES; share++) best = fmaxf(best, parts.best[share][quartet]);
    float base = base_of(best);
    float total = exp2f(sink - base) * WEIGHT_UNIT;
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int share = 0; share < SHARES; share++) {
        float weight = exp2f(parts.best[share][quartet] - base);
        total = fmaf(parts.total[share][quartet], weight, total);
        add_scaled(sums, parts.sums[share][quartet], weight);
    }
    return make_float4(sums.x / total, sums.y / total, sums.z / total, sums.w / total);
}

// What few families need.
struct Ending {
    int gate_column;    // of qkv, where one gate for each head begins; negative: heads of [q, gate]
    float value_scale;  // of all values
};

template <bool HAS_ENDING>
__device__ __forceinline__ void combine(const float* part_sums, const float2* part_totals, int n_splits, int per_octave, int sight,
                                        int n_heads, int value_dim, const float* sinks, const float* qkv, int qkv_width,
                                        const int* starts, const int* past, int n_sequences, const PackedRows& packed, float* out,
                                        const Ending& ending) {
    __shared__ Parts parts;
    wait_for_previous();
    let_next_start();
    const int row = blockIdx.y, width = n_heads * value_dim;
    const int sequence = sequence_of_row(row, starts, n_sequences);
    if (sequence >= n_sequences) return;
    const int start = starts[sequence];
    const Cells seen = seen_from(past[sequence], row - start, starts[sequence + 1] - start, sight);
    const Splits splits = {per_octave};
    const int first_split = splits.of_cell(seen.first), end_split = splits.of_cell(seen.end - 1) + 1;

    const int share = threadIdx.x / QUARTETS, quartet = threadIdx.x % QUARTETS;
    const int value = PACK_BLOCK * blockIdx.x + 4 * quartet;
    if (value < width) {
        size_t part = ((size_t)row * n_heads + value / value_dim) * n_splits;
        const float4* sums = (const float4*)(part_sums + part * value_dim + value % value_dim);
        int first = first_split + (share - first_split % SHARES + SHARES) % SHARES;
        add_splits(parts, share, quartet, sums, part_totals + part, first, end_split, value_dim / 4);
    }
    __syncthreads();

    if (threadIdx.x >= 32) return;
    float x[8] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int mine = 2 * threadIdx.x + i, at = PACK_BLOCK * blockIdx.x + 4 * mine, head = at / value_dim;
        if (at >= width) continue;
        float4 y = add_shares(parts, mine, sinks ? sinks[head] * LOG2_E : -INFINITY_F);
        if (qkv && HAS_ENDING && ending.gate_column >= 0) {
            float gate = sigmoid(qkv[(size_t)row * qkv_width + ending.gate_column + head]);
            y = make_float4(y.x * gate, y.y * gate, y.z * gate, y.w * gate);
        } else if (qkv) {  // heads of [q, gate]
            const float* gate = qkv + (size_t)row * qkv_width + (size_t)(2 * head + 1) * value_dim + at % value_dim;
            y = make_float4(y.x * sigmoid(gate[0]), y.y * sigmoid(gate[1]), y.z * sigmoid(gate[2]), y.w * sigmoid(gate[3]));
        }
        if (HAS_ENDING) {
            float scale = ending.value_scale;
            y = make_float4(y.x * scale, y.y * scale, y.z * scale, y.w * scale);
        }
        if (out) *(float4*)(out + (size_t)row * width + at) = y;
        x[4 * i] = y.x;
        x[4 * i + 1] = y.y;
        x[4 * i + 2] = y.z;
        x[4 * i + 3] = y.w;
    }
    if (packed.q) pack_block(x, packed, row, blockIdx.x);
}

#define COMBINE                                                                                                              \
    const float *part_sums, const float2 *part_totals, int n_splits, int per_octave, int sight, int n_heads, int value_dim, \
        const float *sinks, const float *qkv, int qkv_width, const int *starts, const int *past, int n_sequences, int8_t *q, \
        float *d, int16_t *s, int packed_width, float *out
#define MAKE_COMBINE                                                                                                  \
    part_sums, part_totals, n_splits, per_octave, sight, n_heads, value_dim, sinks, qkv, qkv_width, starts, past,    \
        n_sequences, PackedRows{q, d, s, packed_width}, out

extern "C" __global__ void __launch_bounds__(SHARES * QUARTETS) attn_combine(COMBINE) { combine<false>(MAKE_COMBINE, {}); }
extern "C" __global__ void __launch_bounds__(SHARES * QUARTETS) attn_combine_gates(COMBINE, int gate_column, float value_scale) {
    combine<true>(MAKE_COMBINE, {gate_column, value_scale});
}
