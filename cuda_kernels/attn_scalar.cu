// What attn_verify makes, for what it is not made for: heads of more than 256 elements, caps, and values that are the
// beginning of the keys (latent attention). In float32, with sizes that are arguments.
//   grid (key-value heads x chunks of 8 columns, sequences, splits of the context bucket, last first)
// A column is a row of the sequence and one of the heads that share the key-value head. It belongs to a warp, whose lane
// scores a cell of 32, then has every 32nd value. Cells and splits are at absolute places and met in order; a column
// meets no cell that it does not see. So no bit of it depends on what runs beside.
#include "attention.cuh"

#define WARPS 8
#define TILE 32
#define LANE_VALUES 16  // 512 / 32

struct Cache {
    const void* elements;
    const uint16_t* scales;  // null: half floats
    int dim;

    // A warp brings one cell to shared memory.
    __device__ __forceinline__ void load(float* to, size_t cell) const {
        for (int i = threadIdx.x & 31; i < dim / 2; i += 32) {
            size_t at = cell * (size_t)(dim / 2) + i;
            if (scales) {
                float scale = half_to_float(scales[cell * (size_t)(dim / SCALE_BLOCK) + 2 * i / SCALE_BLOCK]);
                const int8_t* pair = (const int8_t*)elements + 2 * at;
                to[2 * i] = scale * (float)pair[0];
                to[2 * i + 1] = scale * (float)pair[1];
            } else {
                uint32_t pair = ((const uint32_t*)elements)[at];
                to[2 * i] = half_to_float((uint16_t)pair);
                to[2 * i + 1] = half_to_float((uint16_t)(pair >> 16));
            }
        }
    }
};

struct Column {
    float best, total;  // total: of the cells of this lane
    float sums[LANE_VALUES];

    __device__ __forceinline__ void add(float weight, const float* tile, int stride, int first, int end, int value_dim) {
        int lane = threadIdx.x & 31;
        for (int cell = first; cell < end; cell++) {
            float of_cell = __shfl_sync(ALL_LANES, weight, cell);
            const float* values = tile + cell * stride + lane;
#pragma unroll
            for (int i = 0; i < LANE_VALUES; i++) {
                if (32 * i + lane < value_dim) sums[i] = fmaf(of_cell, values[32 * i], sums[i]);
            }
        }
    }

    // The weight of this lane's cell; what came before is made to match.
    __device__ __forceinline__ float weigh(float score) {
        float largest = fmaxf(best, warp_max(score));
        float base = largest == -INFINITY_F ? 0.0f : largest, factor = exp2_or_zero(best - base);
        float weight = exp2_or_zero(score - base) * WEIGHT_UNIT;
        total = fmaf(total, factor, weight);
        best = largest;
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) sums[i] *= factor;
        return weight;
    }
};

__device__ __forceinline__ float dot(const float* query, const float* key, int dim) {
    float sums[4] = {};
    for (int i = 0; i < dim; i += 4)
#pragma unroll
        for (int j = 0; j < 4; j++) sums[j] = fmaf(query[i + j], key[i + j], sums[j]);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// queries  float [row][head][key_dim], scaled for scores in powers of two; `cap` likewise, 0: none
// values   null: the first `value_dim` elements of the keys
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
attn_scalar(const void* queries, const void* keys, const uint16_t* key_scales, const void* values, const uint16_t* value_scales,
            int key_dim, int value_dim, const int* page_table, int page_stride, int page_len, const int* starts,
            const int* past_cells, int n_heads, int n_kv_heads, int sight, int per_octave, float cap, float* part_sums,
            float2* part_totals) {
    DYNAMIC_SHARED(float, tile);
    const int stride = max(key_dim, value_dim) | 1;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float* query = tile + TILE * stride + warp * key_dim;
    wait_for_previous();
    let_next_start();
    const int n_splits = gridDim.z, split = n_splits - 1 - blockIdx.z;
    const int group = n_heads / n_kv_heads, chunks = gridDim.x / n_kv_heads, kv_head = blockIdx.x / chunks;
    const int sequence = blockIdx.y, first_row = starts[sequence], past = past_cells[sequence];
    const int first_column = WARPS * (blockIdx.x % chunks);
    const int n_rows = starts[sequence + 1] - first_row, n_columns = min(WARPS, n_rows * group - first_column);
    if (n_columns <= 0) return;
    const Splits splits = {per_octave};
    const int split_start = splits.start(split), split_end = split_start + splits.length(split);
    const int first_seen = seen_from(past, first_column / group, n_rows, sight).first;
    const int end_seen = seen_from(past, (first_column + n_columns - 1) / group, n_rows, sight).end;
    const Cells wanted = {max(split_start, first_seen), min(split_end, end_seen)};
    if (wanted.first >= wanted.end) return;

    const int column = first_column + warp, row = column / group, head = kv_head * group + column % group;
    const bool is_real = warp < n_columns;
    const Cells seen = is_real ? seen_from(past, row, n_rows, sight) : Cells{0, 0};
    const size_t target = (size_t)(first_row + row) * n_heads + head;
    if (is_real) {
        for (int i = lane; i < key_dim; i += 32) query[i] = ((const float*)queries)[target * key_dim + i];
    }
    const Pages pages = {page_table, page_stride, page_len, n_kv_heads};
    const Cache key_cells = {keys, key_scales, key_dim}, value_cells = {values, value_scales, value_dim};
    auto load = [&](const Cache& cells, int first_cell) {
        __syncthreads();  // all are through with what is there
        for (int i = warp; i < TILE; i += WARPS) {
            int cell = first_cell + i;  // beyond those wanted the table may hold anything
            if (wanted.first <= cell && cell < wanted.end) cells.load(tile + i * stride, pages.cell(sequence, kv_head, cell));
        }
        __syncthreads();
    };
    Column own = {-INFINITY_F, 0.0f, {}};
    for (int first_cell = wanted.first / TILE * TILE; first_cell < wanted.end; first_cell += TILE) {
        load(key_cells, first_cell);
        int first = max(max(seen.first, wanted.first) - first_cell, 0), end = min(min(seen.end, wanted.end) - first_cell, TILE);
        float score = -INFINITY_F;
        if (first <= lane && lane < end) {
            score = dot(query, tile + lane * stride, key_dim);
            if (cap != 0.0f) score = cap * tanhf(score / cap);
        }
        float weight = own.weigh(score);
        if (values) load(value_cells, first_cell);
        own.add(weight, tile, stride, first, end, value_dim);
    }
    float total = warp_sum(own.total);
    if (!is_real) return;
    size_t part = target * n_splits + split;
    if (lane == 0) part_totals[part] = make_float2(own.best, total);
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++) {
        if (32 * i + lane < value_dim) part_sums[part * value_dim + 32 * i + lane] = own.sums[i];
    }
}
