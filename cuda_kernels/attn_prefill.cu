// Attention of the many rows of a prompt: all of the reference's `attend` behind attn_prep, in one launch.
//   grid (tiles of rows, last first, x heads; sequences), a warp for each 16 rows of a head
// Rows are the large operand of 16-bit tensor-core products, cells the small one: scores of 64 cells, which as weights are
// the large operand for the values of these cells. Keys and values of 64 cells take turns in a ring of tiles. Cells and
// tiles are at absolute places and met in order; what a row does not see has weight 0 and changes no bit of it, so a
// row's bits follow from its own query and cells. Queries and weights are one half float each here.
// NAME, KEY_DIM, VALUE_DIM, INT8_KEYS, INT8_VALUES, WARPS and SLOTS are defined by the launcher.
#include "attention_tiles.cuh"

#define THREADS (32 * WARPS)
#define ROWS (16 * WARPS)
#define KEY_STEPS (KEY_DIM / 16)
#define VALUE_PAIRS (VALUE_DIM / 16)  // of 8 values
#define CELL_PAIRS (TILE / 16)
#define WHERE_TILES 64  // whose places are known at a time

typedef Tile<KEY_DIM, false> Keys;  // int8 cells become half floats on their way
typedef Tile<VALUE_DIM, false> Values;
constexpr int slot_bytes = Keys::bytes > Values::bytes ? Keys::bytes : Values::bytes;

struct Cache {
    const void* keys;
    const uint16_t* key_scales;
    const void* values;
    const uint16_t* value_scales;
};

// Four int8 elements times their scale. For keys they lie as attn_prep puts those of queries: neighbours in fours.
__device__ __forceinline__ void store_bytes(unsigned char* cell, uint32_t bytes, float scale, int unit, bool is_key) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = scale * (float)(int8_t)(bytes >> 8 * i);
    uint32_t* words = (uint32_t*)cell + 8 * (unit / 4);
    int t = unit & 3;
    words[is_key ? t : 2 * t] = floats_to_half2(within_half(x[0]), within_half(x[1]));
    words[is_key ? 4 + t : 2 * t + 1] = floats_to_half2(within_half(x[2]), within_half(x[3]));
}

template <int DIM>
__device__ __forceinline__ void expand_tile(unsigned char* to, const void* cells, const uint16_t* scales, const int* where,
                                            int first, const Cells& wanted, bool is_key) {
    constexpr int units = DIM / 4;
#pragma unroll 2
    for (int i = threadIdx.x; i < TILE * units; i += THREADS) {
        int cell = i / units, unit = i % units;
        bool is_wanted = first + cell >= wanted.first && first + cell < wanted.end;
        size_t from = is_wanted ? (size_t)(where[cell / CELL_GROUP] + cell % CELL_GROUP) : 0;
        uint32_t bytes = is_wanted ? ((const uint32_t*)cells)[from * units + unit] : 0;
        float scale = is_wanted ? half_to_float(scales[from * (DIM / SCALE_BLOCK) + unit / (SCALE_BLOCK / 4)]) : 0.0f;
        store_bytes(to + cell * Tile<DIM, false>::stride, bytes, scale, unit, is_key);
    }
}

__device__ __forceinline__ void fetch_keys(unsigned char* to, const Cache& cache, const int* where, int first, const Cells& wanted) {
    if constexpr (INT8_KEYS) {
        expand_tile<KEY_DIM>(to, cache.keys, cache.key_scales, where, first, wanted, true);
    } else {
        copy_tile<Keys, THREADS>(to, cache.keys, nullptr, where, first, wanted);
    }
}

__device__ __forceinline__ void fetch_values(unsigned char* to, const Cache& cache, const int* where, int first,
                                             const Cells& wanted) {
    if constexpr (INT8_VALUES) {
        expand_tile<VALUE_DIM>(to, cache.values, cache.value_scales, where, first, wanted, false);
    } else {
        copy_tile<Values, THREADS>(to, cache.values, nullptr, where, first, wanted);
    }
}

// The first half float of each element, [step][row][t]: elements of a 16 x 16 operand that a lane holds of a row.
__device__ __forceinline__ void copy_queries(uint2* to, const uint4* queries, int first_row, int n_rows, int head, int n_heads) {
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * KEY_STEPS * 4; i += THREADS) {
        int t = i & 3, step = i / 4 % KEY_STEPS, row = i / (4 * KEY_STEPS);
        uint2 both = make_uint2(0, 0);
        if (row < n_rows) {
            uint4 found = queries[(((size_t)first_row + row) * n_heads + head) * (KEY_DIM / 4) + 4 * step + t];
            both = make_uint2(found.x, found.y);
        }
        to[(step * ROWS + row) * 4 + t] = both;
    }
}

// scores[n][i]: row g + 8 * (i >> 1) of the warp, cell 8 n + 2 t + (i & 1)
typedef float Scores[2 * CELL_PAIRS][4];

__device__ __forceinline__ void score_tile(Scores scores, const unsigned char* keys, const uint2* queries) {
    int lane = threadIdx.x & 31, row = 16 * (threadIdx.x >> 5) + (lane >> 2);
    // lane 8 i + r: cell r, of the second 8 if i is 2 or 3; 8 elements further if i is odd
    const unsigned char* cell = keys + (8 * (lane >> 4) + (lane & 7)) * Keys::stride + 16 * (lane >> 3 & 1);
#pragma unroll
    for (int n = 0; n < 2 * CELL_PAIRS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) scores[n][i] = 0.0f;
#pragma unroll 4
    for (int step = 0; step < KEY_STEPS; step++) {
        uint2 near = queries[(step * ROWS + row) * 4 + (lane & 3)], far = queries[(step * ROWS + row + 8) * 4 + (lane & 3)];
        uint32_t a[4] = {near.x, far.x, near.y, far.y};
#pragma unroll
        for (int pair = 0; pair < CELL_PAIRS; pair++) {
            uint32_t b[4];
            ldmatrix_4(b, cell + 16 * pair * Keys::stride + 32 * step);
            mma_f16(scores[2 * pair], a, b, scores[2 * pair]);
            mma_f16(scores[2 * pair + 1], a, b + 2, scores[2 * pair + 1]);
        }
    }
}

// sums[n][i]: row g + 8 * (i >> 1) of the warp, value 8 n + 2 t + (i & 1)
typedef float Sums[2 * VALUE_PAIRS][4];

__device__ __forceinline__ void add_tile(Sums sums, const Scores weights, const unsigned char* values) {
    int lane = threadIdx.x & 31;
    // turned; lane 8 i + r: cell r, of the second 8 if i is odd; 8 values further if i is 2 or 3
    const unsigned char* cell = values + (8 * (lane >> 3 & 1) + (lane & 7)) * Values::stride + 16 * (lane >> 4);
#pragma unroll
    for (int pair = 0; pair < CELL_PAIRS; pair++) {
        const float *near = weights[2 * pair], *far = weights[2 * pair + 1];
        uint32_t a[4] = {floats_to_half2(near[0], near[1]), floats_to_half2(near[2], near[3]),
                         floats_to_half2(far[0], far[1]), floats_to_half2(far[2], far[3])};
#pragma unroll
        for (int n = 0; n < VALUE_PAIRS; n++) {
            uint32_t b[4];
            ldmatrix_4_turned(b, cell + 16 * pair * Values::stride + 32 * n);
            mma_f16(sums[2 * n], a, b, sums[2 * n]);
            mma_f16(sums[2 * n + 1], a, b + 2, sums[2 * n + 1]);
        }
    }
}

// Rows g and g + 8 of a warp.
struct Running {
    Cells seen[2];
    float best[2], total[2];  // total: of the cells of this lane

    // Of the four lanes that share a row.
    __device__ __forceinline__ static float largest(float x) {
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
        return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
    }

    __device__ __forceinline__ void hide_unseen(Scores scores, int first_cell) const {
        int t = threadIdx.x & 3;
#pragma unroll
        for (int n = 0; n < 2 * CELL_PAIRS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int cell = first_cell + 8 * n + 2 * t + (i & 1);
                bool is_seen = (cell >= seen[i >> 1].first) & (cell < seen[i >> 1].end);
                scores[n][i] = is_seen ? scores[n][i] : -INFINITY_F;
            }
    }

    // Scores become weights, relative to the best so far; sums so far are made to match. NaN is never the best.
    __device__ __forceinline__ void weigh(Scores scores, Sums sums) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float found = best[half];
#pragma unroll
            for (int n = 0; n < 2 * CELL_PAIRS; n++) found = fmaxf(found, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
            found = largest(found);
            float base = found == -INFINITY_F ? 0.0f : found;  // nothing seen so far: weights are 0
            float factor = exp2_or_zero(best[half] - base), more = 0.0f;
#pragma unroll
            for (int n = 0; n < 2 * CELL_PAIRS; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float& x = scores[n][2 * half + i];
                    x = exp2_or_zero(x - base) * WEIGHT_UNIT;
                    more += x;
                }
            total[half] = fmaf(total[half], factor, more);
            best[half] = found;
#pragma unroll
            for (int n = 0; n < 2 * VALUE_PAIRS; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) sums[n][2 * half + i] *= factor;
        }
    }
};

struct Ending {
    const float* sinks;  // of each head, or null
    const float* qkv;    // rows whose heads are [q, gate], or null
    int qkv_width;
    uint16_t* out;  // bfloat16 [row][head][value]
    int n_heads;
};

// A row: divided by the weight of all its cells and of the sink, times the gate.
__device__ __forceinline__ void write_row(const Sums sums, const Running& running, int half, const Ending& end, int row, int head) {
    int t = threadIdx.x & 3;
    float sum = running.total[half];
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    if (row < 0) return;
    float sink = end.sinks ? end.sinks[head] * LOG2_E : -INFINITY_F;
    float best = fmaxf(running.best[half], sink), weight = exp2f(running.best[half] - best);
    float total = fmaf(sum, weight, exp2f(sink - best) * WEIGHT_UNIT);
    uint32_t* to = (uint32_t*)(end.out + ((size_t)row * end.n_heads + head) * VALUE_DIM) + t;
    size_t gates = (size_t)row * end.qkv_width + (size_t)(2 * head + 1) * VALUE_DIM;
    const float2* gate = end.qkv ? (const float2*)(end.qkv + gates) + t : nullptr;
#pragma unroll
    for (int n = 0; n < 2 * VALUE_PAIRS; n++) {
        float x = sums[n][2 * half] * weight / total, y = sums[n][2 * half + 1] * weight / total;
        if (gate) {
            float2 of_values = gate[4 * n];
            x *= sigmoid(of_values.x);
            y *= sigmoid(of_values.y);
        }
        to[4 * n] = floats_to_bf162(x, y);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
NAME(const uint4* queries, const void* keys, const uint16_t* key_scales, const void* values, const uint16_t* value_scales,
     const int* page_table, int page_stride, int page_len, const int* starts, const int* past_cells, int n_heads,
     int n_kv_heads, int sight, const float* sinks, const float* qkv, int qkv_width, uint16_t* out) {
    DYNAMIC_SHARED(unsigned char, dynamic);
    __shared__ int where[WHERE_TILES * (TILE / CELL_GROUP)];
    uint2* const own_queries = (uint2*)dynamic;
    unsigned char* const slots = dynamic + ROWS * KEY_DIM * 2;

    wait_for_previous();
    let_next_start();
    const int sequence = blockIdx.y, head = blockIdx.x % n_heads, kv_head = head / (n_heads / n_kv_heads);
    const int first_row = ROWS * (gridDim.x / n_heads - 1 - blockIdx.x / n_heads);  // of the sequence; long ones first
    const int start = starts[sequence], n_rows = min(ROWS, starts[sequence + 1] - start - first_row);
    if (n_rows <= 0) return;
    const int past = past_cells[sequence] + first_row;
    const Cells of_first_row = seen_from(past, 0, n_rows, sight), of_last_row = seen_from(past, n_rows - 1, n_rows, sight);
    const Cells wanted = {of_first_row.first, of_last_row.end};
    const int first_cell = wanted.first / TILE * TILE, n_tiles = (wanted.end - first_cell + TILE - 1) / TILE;
    const Pages pages = {page_table, page_stride, page_len, n_kv_heads};
    const Cache cache = {keys, key_scales, values, value_scales};

    auto find_tiles = [&](int first, int n) {
        for (int i = threadIdx.x; i < n * (TILE / CELL_GROUP); i += THREADS) {
            int group = first * (TILE / CELL_GROUP) + i, cell = first_cell + CELL_GROUP * group;
            bool is_wanted = cell + CELL_GROUP > wanted.first && cell < wanted.end;  // else the table may hold anything
            where[group % (WHERE_TILES * (TILE / CELL_GROUP))] = is_wanted ? (int)pages.cell(sequence, kv_head, cell) : 0;
        }
    };
    // Copy 2 i is of the keys of tile i, copy 2 i + 1 of its values.
    auto start_copy = [&](int copy) {
        int tile = copy >> 1;
        if (tile < n_tiles) {
            unsigned char* to = slots + copy % SLOTS * slot_bytes;
            const int* places = where + tile % WHERE_TILES * (TILE / CELL_GROUP);
            if (copy & 1) {
                fetch_values(to, cache, places, first_cell + TILE * tile, wanted);
            } else {
                fetch_keys(to, cache, places, first_cell + TILE * tile, wanted);
            }
        }
        cp_async_commit();
    };
    find_tiles(0, WHERE_TILES);
    copy_queries(own_queries, queries, start + first_row, n_rows, head, n_heads);
    __syncthreads();
    for (int copy = 0; copy < SLOTS - 1; copy++) start_copy(copy);

    const int mine = 16 * (threadIdx.x >> 5), row = mine + (threadIdx.x & 31) / 4;
    Running running;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        running.seen[half] = row + 8 * half < n_rows ? seen_from(past, row + 8 * half, n_rows, sight) : Cells{0, 0};
        running.best[half] = -INFINITY_F;
        running.total[half] = 0.0f;
    }
    // of this warp's rows together
    const Cells of_warp = {seen_from(past, mine, n_rows, sight).first, mine < n_rows ? past + min(mine + 16, n_rows) : 0};
    Sums sums = {};
    for (int tile = 0; tile < n_tiles; tile++) {
        const int cell = first_cell + TILE * tile;
        const bool is_seen = cell < of_warp.end && cell + TILE > of_warp.first;
        Scores scores;
        cp_async_wait<SLOTS - 2>();
        __syncthreads();  // the keys are there, and all threads are through with the last tile
        if (tile && tile % (WHERE_TILES / 2) == 0) find_tiles(tile + WHERE_TILES / 2, WHERE_TILES / 2);
        start_copy(2 * tile + SLOTS - 1);
        if (is_seen) {
            score_tile(scores, slots + 2 * tile % SLOTS * slot_bytes, own_queries);
            if (cell < of_last_row.first || cell + TILE > of_first_row.end) running.hide_unseen(scores, cell);
            running.weigh(scores, sums);
        }
        cp_async_wait<SLOTS - 2>();
        __syncthreads();  // the values are there, and all threads are through with the keys
        start_copy(2 * tile + SLOTS);
        if (is_seen) add_tile(sums, scores, slots + (2 * tile + 1) % SLOTS * slot_bytes);
    }
    const Ending end = {sinks, qkv, qkv_width, out, n_heads};
#pragma unroll
    for (int half = 0; half < 2; half++)
        write_row(sums, running, half, end, row + 8 * half < n_rows ? start + first_row + row + 8 * half : -1, head);
}
