// Rows [q | k | v] to what attention reads: the reference's `attend` up to the scores.
//   grid (heads of q, then key-value heads, by 4; rows), a warp for each.
// q is normed, turned, scaled and written as the B operand of attn_verify eats it; k, normed and turned, and v go to
// their cells. What lay in a cell before is gone.
#include "attention.cuh"

#define WARPS 4
#define LARGEST_HEAD 256
#define LARGEST_OF_ALL 576
#define INFINITE_BITS 0x7f800000u  // of a float; NaN has more
#define LOW_SCALE 2048.0f  // what a half float leaves of a query is kept times this

struct Rope {
    const uint64_t* turns;  // of each pair: what a position adds, in units of 2^-64 of a turn
    int n_pairs;
    int is_halves;  // pairs (i, i + n_pairs); else (2i, 2i + 1)
    float magnitude;
};

struct Turn {
    float cosine, sine;
};

// The angle is exact up to here: an integer that overflows is a turn that is complete.
__device__ __forceinline__ Turn turn_of(uint64_t angle) {
    uint32_t quarter = (uint32_t)((angle + (1ull << 61)) >> 62);
    int64_t rest = (int64_t)(angle - ((uint64_t)quarter << 62));
    float x = (float)rest * 3.40612158e-19f;  // 2 pi / 2^64: within an eighth of a turn of 0
    float square = x * x;
    // Taylor: what is left out is below 2e-9
    float s = fmaf(square, 2.75573192e-6f, -1.98412698e-4f);
    s = fmaf(square, s, 8.33333333e-3f);
    s = fmaf(square, s, -0.166666667f);
    float sine = fmaf(x * square, s, x);
    float c = fmaf(square, -2.75573192e-7f, 2.48015873e-5f);
    c = fmaf(square, c, -1.38888889e-3f);
    c = fmaf(square, c, 4.16666667e-2f);
    c = fmaf(square, c, -0.5f);
    float cosine = fmaf(square, c, 1.0f);
    if (quarter & 1) {
        float other = cosine;
        cosine = -sine;
        sine = other;
    }
    return quarter & 2 ? Turn{-cosine, -sine} : Turn{cosine, sine};
}

// One head to shared memory; its first `n_normed` elements are normed if there is a weight.
__device__ __forceinline__ void read_head(float* head, const float* from, int dim, int n_normed, const float* weight, float eps) {
    int lane = threadIdx.x & 31;
    float squares = 0.0f;
#pragma unroll 4
    for (int i = lane; i < dim; i += 32) {
        float x = from[i];
        head[i] = x;
        if (i < n_normed) squares = fmaf(x, x, squares);
    }
    if (weight) {
        float factor = 1.0f / sqrtf(warp_sum(squares) / (float)n_normed + eps);
        for (int i = lane; i < n_normed; i += 32) head[i] = head[i] * factor * weight[i];
    }
    __syncwarp();
}

__device__ __forceinline__ void norm_head(float* head, int dim, const float* weight, float eps) {
    int lane = threadIdx.x & 31;
    float squares = 0.0f;
    for (int i = lane; i < dim; i += 32) squares = fmaf(head[i], head[i], squares);
    float factor = 1.0f / sqrtf(warp_sum(squares) / (float)dim + eps);
    for (int i = lane; i < dim; i += 32) head[i] = head[i] * factor * weight[i];
    __syncwarp();
}

__device__ __forceinline__ void turn_head(float* head, const Rope& rope, int position) {
    for (int i = threadIdx.x & 31; i < rope.n_pairs; i += 32) {
        Turn turn = turn_of((uint64_t)(int64_t)position * rope.turns[i]);
        float cosine = turn.cosine * rope.magnitude, sine = turn.sine * rope.magnitude;
        float* first = head + (rope.is_halves ? i : 2 * i);
        float* second = rope.is_halves ? first + rope.n_pairs : first + 1;
        float x = *first, y = *second;
        *first = fmaf(x, cosine, -(y * sine));
        *second = fmaf(x, sine, y * cosine);
    }
    __syncwarp();
}

// [16 elements][t]: the 4 elements that lane t of a group holds of a 16 x 8 operand, as half floats, then what these leave.
__device__ __forceinline__ void write_query(uint4* to, const float* head, int dim, float scale, bool for_int8_keys) {
    for (int unit = threadIdx.x & 31; unit < dim / 4; unit += 32) {
        int t = unit & 3;
        // int8 keys come as 4 neighbours, half floats as two pairs
        int first = 16 * (unit >> 2) + (for_int8_keys ? 4 * t : 2 * t), second = first + (for_int8_keys ? 2 : 8);
        float x[4] = {head[first], head[first + 1], head[second], head[second + 1]}, high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] *= scale;
            high[i] = within_half(x[i]);
            low[i] = within_half((x[i] - half_to_float(float_to_half(high[i]))) * LOW_SCALE);
        }
        to[unit] = make_uint4(floats_to_half2(high[0], high[1]), floats_to_half2(high[2], high[3]),
                              floats_to_half2(low[0], low[1]), floats_to_half2(low[2], low[3]));
    }
}

// What becomes of numbers that are none: a NaN for all rows that see the cell, or for none.
enum class Broken { SHOWS, HIDES, IS_ALL };

__device__ __forceinline__ void write_halves(void* cells, size_t cell, const float* head, int dim, Broken broken) {
    uint32_t* to = (uint32_t*)cells + cell * (size_t)(dim / 2);
    for (int i = threadIdx.x & 31; i < dim / 2; i += 32) {
        float x[2] = {head[2 * i], head[2 * i + 1]};
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (broken == Broken::IS_ALL) x[j] = __int_as_float(0x7fc00000);
            if (broken == Broken::HIDES && x[j] != x[j]) x[j] = 0.0f;
        }
        to[i] = floats_to_half2(within_half(x[0]), within_half(x[1]));
    }
}

__device__ __forceinline__ void write_bytes(void* cells, uint16_t* scales, size_t cell, const float* head, int dim, Broken broken) {
    int lane = threadIdx.x & 31;
    for (int block = 0; block < dim / SCALE_BLOCK; block++) {
        float x = head[SCALE_BLOCK * block + lane];
        uint32_t largest = __reduce_max_sync(ALL_LANES, (uint32_t)__float_as_int(x) & 0x7fffffffu);
        float scale = __int_as_float((int)largest) * (1.0f / 127.0f);
        if (largest >= INFINITE_BITS) scale = broken == Broken::HIDES ? 0.0f : __int_as_float(0x7fc00000);
        if (broken == Broken::IS_ALL) scale = __int_as_float(0x7fc00000);
        uint16_t stored = float_to_half(within_half(scale));
        float step = half_to_float(stored);
        int rounded = __float2int_rn(x * (step > 0.0f ? 1.0f / step : 0.0f));
        // the half float may be a little smaller than the scale
        ((int8_t*)cells)[cell * (size_t)dim + SCALE_BLOCK * block + lane] = (int8_t)max(-127, min(127, rounded));
        if (lane == 0) scales[cell * (size_t)(dim / SCALE_BLOCK) + block] = stored;
    }
}

// Is there a NaN, or something of at least `least` in size, as bits?
__device__ __forceinline__ bool has_broken(const float* head, int dim, uint32_t least) {
    bool found = false;
    for (int i = threadIdx.x & 31; i < dim; i += 32) found |= ((uint32_t)__float_as_int(head[i]) & 0x7fffffffu) >= least;
    return __any_sync(ALL_LANES, found);
}

// What few families need.
struct Sources {
    const float *kv, *v_weight;  // kv: rows with keys and values, v_weight: of the norm of values; both may be null
    int kv_width, k_column, v_column;  // of kv, or of qkv
    float v_eps;
    int n_normed;        // elements of a key
    int first_turned;    // element of a query or key
    int floats_wanted;   // queries as they are, for attn_scalar
    int norms_turned;    // norms follow the turn
    float growth;        // of queries: 1 + growth * log(1 + (position + ahead) / trained)
    int trained, ahead;
};

#define PREP                                                                                                                 \
    const float *qkv, int width, int n_heads, int n_kv_heads, int key_dim, int value_dim, int is_gated,                      \
        const float *q_weight, float q_eps, const float *k_weight, float k_eps, float q_scale, const uint64_t *turns,        \
        int n_pairs, int is_halves, float magnitude, const int *positions, const int *starts, const int *past,               \
        const int *page_table, int page_stride, int page_len, int n_sequences, uint4 *queries, void *keys,                   \
        uint16_t *key_scales, void *values, uint16_t *value_scales
#define MAKE_PREP                                                                                                            \
    qkv, width, n_heads, n_kv_heads, key_dim, value_dim, is_gated, q_weight, q_eps, k_weight, k_eps, q_scale, turns,         \
        n_pairs, is_halves, magnitude, positions, starts, past, page_table, page_stride, page_len, n_sequences, queries,     \
        keys, key_scales, values, value_scales

template <bool HAS_SOURCES>
__device__ __forceinline__ void prepare(PREP, const Sources& of) {
    __shared__ float heads[WARPS][HAS_SOURCES ? LARGEST_OF_ALL : LARGEST_HEAD];
    wait_for_previous();
    let_next_start();
    int row = blockIdx.y, task = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (task >= n_heads + n_kv_heads) return;
    int sequence = sequence_of_row(row, starts, n_sequences);
    if (sequence >= n_sequences) return;
    float* head = heads[threadIdx.x >> 5];
    const Rope rope = {turns, n_pairs, is_halves, magnitude};
    const float* from = qkv + (size_t)row * width;
    int q_step = is_gated ? 2 * key_dim : key_dim;
    if (task < n_heads) {
        bool is_late = HAS_SOURCES && of.norms_turned;
        read_head(head, from + (size_t)task * q_step, key_dim, key_dim, is_late ? nullptr : q_weight, q_eps);
        turn_head(head + (HAS_SOURCES ? of.first_turned : 0), rope, positions[row]);
        if (is_late) norm_head(head, key_dim, q_weight, q_eps);
        if (HAS_SOURCES && of.growth != 0.0f) q_scale *= 1.0f + of.growth * logf((float)(1 + (positions[row] + of.ahead) / of.trained));
        if (HAS_SOURCES && of.floats_wanted) {
            float* to = (float*)queries + ((size_t)row * n_heads + task) * key_dim;
            for (int i = threadIdx.x & 31; i < key_dim; i += 32) to[i] = head[i] * q_scale;
            return;
        }
        uint4* to = queries + ((size_t)row * n_heads + task) * (size_t)(key_dim / 4);
        write_query(to, head, key_dim, q_scale, key_scales != nullptr);
        return;
    }
    int kv_head = task - n_heads;
    const Pages pages = {page_table, page_stride, page_len, n_kv_heads};
    size_t cell = pages.cell(sequence, kv_head, past[sequence] + row - starts[sequence]);
    const float* k = from + (size_t)n_heads * q_step + (size_t)kv_head * key_dim;
    const float* v = from + (size_t)n_heads * q_step + (size_t)n_kv_heads * key_dim + (size_t)kv_head * value_dim;
    if (HAS_SOURCES) {
        const float* rows = of.kv ? of.kv + (size_t)row * of.kv_width : from;
        k = rows + of.k_column + (size_t)kv_head * key_dim;
        v = rows + of.v_column + (size_t)kv_head * value_dim;
    }

    // Rows that may not see this cell give its value the weight 0, which a NaN would survive. So it hides there, and shows
    // in the key: it reaches all rows that see the cell, and no others. Half floats saturate; an int8 scale would be infinite.
    bool is_broken = false;
    if (!HAS_SOURCES || values) {
        read_head(head, v, value_dim, value_dim, HAS_SOURCES ? of.v_weight : nullptr, HAS_SOURCES ? of.v_eps : 0.0f);
        is_broken = has_broken(head, value_dim, value_scales ? INFINITE_BITS : INFINITE_BITS + 1);
        if (value_scales) {
            write_bytes(values, value_scales, cell, head, value_dim, Broken::HIDES);
        } else {
            write_halves(values, cell, head, value_dim, Broken::HIDES);
        }
        __syncwarp();
    }
    Broken of_key = is_broken ? Broken::IS_ALL : Broken::SHOWS;
    bool is_late = HAS_SOURCES && of.norms_turned;
    read_head(head, k, key_dim, HAS_SOURCES ? of.n_normed : key_dim, is_late ? nullptr : k_weight, k_eps);
    turn_head(head + (HAS_SOURCES ? of.first_turned : 0), rope, positions[row]);
    if (is_late) norm_head(head, key_dim, k_weight, k_eps);
    if (key_scales) {
        write_bytes(keys, key_scales, cell, head, key_dim, of_key);
    } else {
        write_halves(keys, cell, head, key_dim, of_key);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) attn_prep(PREP) { prepare<false>(MAKE_PREP, {}); }
extern "C" __global__ void __launch_bounds__(32 * WARPS)
attn_prep_sources(PREP, const float* kv, int kv_width, int k_column, int v_column, const float* v_weight, float v_eps, int n_normed,
                  int first_turned, int floats_wanted, int norms_turned, float growth, int trained, int ahead) {
    prepare<true>(MAKE_PREP, {kv, v_weight, kv_width, k_column, v_column, v_eps, n_normed, first_turned, floats_wanted,
                              norms_turned, growth, trained, ahead});
}
