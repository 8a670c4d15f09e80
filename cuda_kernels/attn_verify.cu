// Scores and weighted sums of one split of the context: the reference's `_attend_cells`, in parts that attn_combine adds.
//   grid (key-value heads x chunks of columns, sequences, splits of the context bucket, last first), 128 * GROUPS threads
// A column is a row of the sequence and one of the heads that share the key-value head. Keys, then values, of 64 cells at
// a time are the large operand of the tensor cores, 8 columns the small one; four warps share TILES times 8 columns:
//   scores    16 cells x 8 columns   a warp for each 16 cells     queries in two half floats
//   sums      16 values x 8 columns  a warp for a quarter of them  weights in two half floats (bfloat16 if values are int8)
// Each byte of the cache is read once for all columns of a block. Cells, tiles and splits are at absolute places and met
// in order; what a column does not see has weight 0 and changes no bit of it.
// NAME, KEY_DIM, VALUE_DIM, INT8_KEYS, INT8_VALUES, GROUPS, TILES, SLOTS are defined by the launcher.
#include "attention_tiles.cuh"

#define THREADS (128 * GROUPS)
#define COLUMNS (8 * TILES * GROUPS)
#define KEY_STEPS (KEY_DIM / 16)
#define VALUE_TILES ((VALUE_DIM / 16 + 3) / 4)  // of a warp
#define LOW_UNIT (1.0f / 2048.0f)               // of the second half float of a query
#define WHERE ((SHORTEST_SPLIT << SPLIT_DOUBLINGS) / CELL_GROUP)
#define NOBODY (-1)

typedef Tile<KEY_DIM, INT8_KEYS> Keys;
typedef Tile<VALUE_DIM, INT8_VALUES> Values;
constexpr int slot_bytes = Keys::bytes > Values::bytes ? Keys::bytes : Values::bytes;

// Weights of a tile: [cell][column]
constexpr int weight_stride = INT8_VALUES ? COLUMNS + 4 : 8 * (TILES * GROUPS | 1);  // floats, or half floats

struct Shared {  // besides what is dynamic: queries, slots, weights
    float2 maxima[4][COLUMNS / 2];  // of pairs of neighbouring columns
    float2 totals[4][COLUMNS / 2];
    int target[COLUMNS];  // row * heads + head, or NOBODY
    Cells seen[COLUMNS];
    int where[WHERE];
};

// What a thread works on.
struct Place {
    int lane, warp, group_warp, column0;  // column0: the first of its four warps

    __device__ __forceinline__ Place()
        : lane(threadIdx.x & 31), warp(threadIdx.x >> 5 & 3), group_warp(threadIdx.x >> 7), column0(8 * TILES * group_warp) {}
    __device__ __forceinline__ int g() const { return lane >> 2; }
    __device__ __forceinline__ int t() const { return lane & 3; }
    __device__ __forceinline__ int column(int tile) const { return column0 + 8 * tile + 2 * t(); }  // and the next
};

// scores[tile][i]: i = 2 * (second half of the 16 cells) + (second column), as the tensor cores leave them.
__device__ __forceinline__ void score_tile(float scores[TILES][4], const unsigned char* keys, const uint4* queries, const Place& p) {
    // lane 8 i + r: cell r, of the second 8 if i is odd; 16 bytes further if i is 2 or 3
    const unsigned char* row = keys + (16 * p.warp + (p.lane & 15)) * Keys::stride + 16 * (p.lane >> 4);
    const uint4* query = queries + (size_t)(p.group_warp * TILES * KEY_STEPS) * 32 + p.lane;
    float high[TILES][4] = {}, low[TILES][4] = {};
    if constexpr (!INT8_KEYS) {
#pragma unroll
        for (int step = 0; step < KEY_STEPS; step++) {
            uint32_t a[4];
            ldmatrix_4(a, row + 32 * step);
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                uint4 q = query[(n * KEY_STEPS + step) * 32];
                uint32_t b[2][2] = {{q.x, q.y}, {q.z, q.w}};
                mma_f16(high[n], a, b[0], high[n]);
                mma_f16(low[n], a, b[1], low[n]);
            }
        }
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) scores[n][i] = fmaf(low[n][i], LOW_UNIT, high[n][i]);
    } else {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) scores[n][i] = 0.0f;
#pragma unroll 2
        for (int block = 0; block < Keys::blocks; block++) {
            uint32_t bytes[4];
            ldmatrix_4(bytes, row + 32 * block);
            float scale[2] = {scale_of<Keys>(keys, 16 * p.warp + p.g(), block),
                              scale_of<Keys>(keys, 16 * p.warp + p.g() + 8, block)};
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) high[n][i] = low[n][i] = 0.0f;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t a[4] = {int8_to_half2(bytes[2 * half], false), int8_to_half2(bytes[2 * half + 1], false),
                                 int8_to_half2(bytes[2 * half], true), int8_to_half2(bytes[2 * half + 1], true)};
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    uint4 q = query[(n * KEY_STEPS + 2 * block + half) * 32];
                    uint32_t b[2][2] = {{q.x, q.y}, {q.z, q.w}};
                    mma_f16(high[n], a, b[0], high[n]);
                    mma_f16(low[n], a, b[1], low[n]);
                }
            }
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    scores[n][i] = fmaf(fmaf(low[n][i], LOW_UNIT, high[n][i]), scale[i >> 1], scores[n][i]);
        }
    }
}

__device__ __forceinline__ void hide_unseen(float scores[TILES][4], const Shared& shared, int first_cell, const Place& p) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int column = 0; column < 2; column++) {
            const Cells seen = shared.seen[p.column(n) + column];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int cell = first_cell + 16 * p.warp + p.g() + 8 * i;
                bool is_seen = (cell >= seen.first) & (cell < seen.end);
                scores[n][2 * i + column] = is_seen ? scores[n][2 * i + column] : -INFINITY_F;
            }
        }
}

// The best score of each column among the 16 cells of this warp, for the others to see. NaN is nobody's best.
__device__ __forceinline__ void share_maxima(const float scores[TILES][4], Shared& shared, const Place& p) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        float best[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            best[i] = fmaxf(scores[n][i], scores[n][i + 2]);
#pragma unroll
            for (int offset = 4; offset < 32; offset <<= 1)
                best[i] = fmaxf(best[i], __shfl_xor_sync(ALL_LANES, best[i], offset));
        }
        if (p.g() == 0) shared.maxima[p.warp][p.column(n) / 2] = make_float2(best[0], best[1]);
    }
}

// Of the columns p.column(n) + 0 and 1.
struct Running {
    float best[TILES][2];
    float total[TILES][2];  // of the cells of this lane
    float factor[TILES][2];  // what the sums so far are worth after the last tile

    __device__ __forceinline__ Running() {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                best[n][i] = -INFINITY_F;
                total[n][i] = 0.0f;
            }
    }
};

// Scores become weights, relative to the best so far, and go to shared memory.
__device__ __forceinline__ void weigh(float scores[TILES][4], Running& running, unsigned char* weights, const Shared& shared,
                                      const Place& p) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        float bests[2] = {running.best[n][0], running.best[n][1]};
#pragma unroll
        for (int warp = 0; warp < 4; warp++) {
            float2 of_warp = shared.maxima[warp][p.column(n) / 2];
            bests[0] = fmaxf(bests[0], of_warp.x);
            bests[1] = fmaxf(bests[1], of_warp.y);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float best = bests[i];
            float base = best == -INFINITY_F ? 0.0f : best;  // nothing seen so far: weights are 0
            float factor = exp2_or_zero(running.best[n][i] - base);
            scores[n][i] = exp2_or_zero(scores[n][i] - base) * WEIGHT_UNIT;
            scores[n][i + 2] = exp2_or_zero(scores[n][i + 2] - base) * WEIGHT_UNIT;
            running.total[n][i] = fmaf(running.total[n][i], factor, scores[n][i] + scores[n][i + 2]);
            running.best[n][i] = best;
            running.factor[n][i] = factor;
        }
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            int cell = 16 * p.warp + p.g() + 4 * i;
            int at = cell * weight_stride + p.column(n);
            if constexpr (INT8_VALUES) {
                *(float2*)((float*)weights + at) = make_float2(scores[n][i], scores[n][i + 1]);
            } else {
                uint32_t high = floats_to_half2(scores[n][i], scores[n][i + 1]);
                float rest[2] = {scores[n][i] - half_to_float((uint16_t)high),
                                 scores[n][i + 1] - half_to_float((uint16_t)(high >> 16))};
                uint16_t* plane = (uint16_t*)weights;
                *(uint32_t*)(plane + at) = high;
                *(uint32_t*)(plane + TILE * weight_stride + at) = floats_to_half2(rest[0], rest[1]);
            }
        }
    }
}

typedef float Sums[VALUE_TILES][TILES][4];

__device__ __forceinline__ void rescale(Sums sums, const Running& running) {
#pragma unroll
    for (int m = 0; m < VALUE_TILES; m++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[m][n][i] *= running.factor[n][i & 1];
}

// sums[m][n][i]: value 8 * (i >> 1) + g of 16, column p.column(n) + (i & 1).
__device__ __forceinline__ void add_halves(Sums sums, const unsigned char* values, const unsigned char* weights, const Place& p) {
    // turned, a matrix of 8 cells x 8 values is one of 8 values x 8 cells; lane 8 i + r: cell r, of the second 8 if i is 2
    // or 3; 8 values further if i is odd
    int cell = (p.lane & 7) + 8 * (p.lane >> 4);
    const unsigned char* row = values + cell * Values::stride + 16 * (p.lane >> 3 & 1) + 32 * VALUE_TILES * p.warp;
    // lane 8 i + r: cell r, of the second 8 if i is odd; the second plane if i is 2 or 3
    const uint16_t* weight = (const uint16_t*)weights + (p.lane & 15) * weight_stride + p.column0;
    weight += (p.lane >> 4) * TILE * weight_stride;
#pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
        uint32_t b[TILES][4];
#pragma unroll
        for (int n = 0; n < TILES; n++) ldmatrix_4_turned(b[n], weight + 16 * step * weight_stride + 8 * n);
#pragma unroll
        for (int m = 0; m < VALUE_TILES; m++) {
            if (16 * (VALUE_TILES * p.warp + m) >= VALUE_DIM) continue;
            uint32_t a[4];
            ldmatrix_4_turned(a, row + 16 * step * Values::stride + 32 * m);
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                mma_f16(sums[m][n], a, b[n], sums[m][n]);
                mma_f16(sums[m][n], a, b[n] + 2, sums[m][n]);
            }
        }
    }
}

// Weights of 16 cells times the scales of a block of their values.
__device__ __forceinline__ void scale_weights(TwoBf16 scaled[TILES][2], const float* weight, const float scale[4]) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int second = 0; second < 2; second++) {
            float x[2];
#pragma unroll
            for (int i = 0; i < 2; i++) x[i] = weight[(8 * second + i) * weight_stride + 8 * n] * scale[2 * second + i];
            scaled[n][second] = split_bf16(x[0], x[1]);
        }
}

// sums[m][n][i]: value 2 g + (i >> 1) of 16. A weight meets the scale of its cell and block before it is rounded.
// `n_cells`: from there on nobody has written a scale.
__device__ __forceinline__ void add_bytes(Sums sums, const unsigned char* values, const unsigned char* weights, int n_cells,
                                          const Place& p) {
    // lane 8 i + r: cell 8 i + r of 32. Turned, a pair of neighbouring values is an element.
    const unsigned char* row = values + p.lane * Values::stride + 16 * VALUE_TILES * p.warp;
    const float* weight = (const float*)weights + 2 * p.t() * weight_stride + p.column0 + p.g();
    constexpr bool is_even = VALUE_TILES % 2 == 0;
#pragma unroll 1
    for (int pair = 0; pair < TILE / 32; pair++) {
        uint32_t bytes[VALUE_TILES][4];
#pragma unroll
        for (int m = 0; m < VALUE_TILES; m++) {
            if (16 * (VALUE_TILES * p.warp + m) >= VALUE_DIM) continue;
            ldmatrix_4_turned(bytes[m], row + 32 * pair * Values::stride + 16 * m);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int cell = 32 * pair + 16 * half;
            TwoBf16 scaled[TILES][2];
#pragma unroll
            for (int m = 0; m < VALUE_TILES; m++) {
                int tile = VALUE_TILES * p.warp + m;  // two share scales
                if (16 * tile >= VALUE_DIM) continue;
                if (m == 0 || (is_even ? m : tile) % 2 == 0) {
                    float scale[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int mine = cell + 2 * p.t() + (i & 1) + 8 * (i >> 1);
                        scale[i] = mine < n_cells ? scale_of<Values>(values, mine, tile / 2) : 0.0f;
                    }
                    scale_weights(scaled, weight + cell * weight_stride, scale);
                }
                const uint32_t *near = &bytes[m][2 * half], *far = near + 1;  // cells 2t, 2t + 1, and 8 further
                uint32_t a[4] = {int8_to_bf162(*near, 0, 2), int8_to_bf162(*near, 1, 3),
                                 int8_to_bf162(*far, 0, 2), int8_to_bf162(*far, 1, 3)};
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    uint32_t high[2] = {scaled[n][0].high, scaled[n][1].high};
                    uint32_t low[2] = {scaled[n][0].low, scaled[n][1].low};
                    mma_bf16(sums[m][n], a, high, sums[m][n]);
                    mma_bf16(sums[m][n], a, low, sums[m][n]);
                }
            }
        }
    }
}

// Columns of a block: neighbours among rows x heads of a sequence and a key-value head.
struct Work {
    int sequence, first_row;  // first_row: of the sequence, among all rows of the launch
    int kv_head, group;       // group: heads that share it
    int first_column, n_columns;

    __device__ __forceinline__ int row(int column) const { return (first_column + column) / group; }
    __device__ __forceinline__ int head(int column) const { return kv_head * group + (first_column + column) % group; }
};

__device__ __forceinline__ void describe_columns(Shared& shared, const Work& work, int past, int window, int n_heads) {
    for (int column = threadIdx.x; column < COLUMNS; column += THREADS) {
        bool is_real = column < work.n_columns;
        Cells seen = seen_from(past + work.row(column), window);
        shared.target[column] = is_real ? (work.first_row + work.row(column)) * n_heads + work.head(column) : NOBODY;
        shared.seen[column] = is_real ? seen : Cells{0, 0};
    }
}

__device__ __forceinline__ void copy_queries(uint4* to, const uint4* queries, const Shared& shared) {
    for (int i = threadIdx.x; i < COLUMNS * KEY_STEPS * 4; i += THREADS) {
        int lane = i & 31, step = i / 32 % KEY_STEPS, column = i / (32 * KEY_STEPS) * 8 + (lane >> 2);
        int target = shared.target[column];
        const uint4* from = queries + ((size_t)max(target, 0) * KEY_STEPS + step) * 4 + (lane & 3);
        cp_async_16_or_zeros(to + i, from, target != NOBODY);
    }
}

// The weight of all cells of a column, by all its warps.
__device__ __forceinline__ void share_totals(const Running& running, Shared& shared, const Place& p) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        float total[2] = {running.total[n][0], running.total[n][1]};
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int offset = 4; offset < 32; offset <<= 1) total[i] += __shfl_xor_sync(ALL_LANES, total[i], offset);
        if (p.g() == 0) shared.totals[p.warp][p.column(n) / 2] = make_float2(total[0], total[1]);
    }
}

__device__ __forceinline__ void write_parts(const Sums sums, const Running& running, const Shared& shared, const Place& p, int split,
                                            int n_splits, float* part_sums, float2* part_totals) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int second = 0; second < 2; second++) {
            int column = p.column(n) + second, target = shared.target[column];
            if (target == NOBODY) continue;
            size_t part = (size_t)target * n_splits + split;
            if (p.warp == 0 && p.g() == 0) {
                float total = 0.0f;
#pragma unroll
                for (int warp = 0; warp < 4; warp++)
                    total += second ? shared.totals[warp][column / 2].y : shared.totals[warp][column / 2].x;
                part_totals[part] = make_float2(running.best[n][second], total);
            }
            float* to = part_sums + part * VALUE_DIM;
#pragma unroll
            for (int m = 0; m < VALUE_TILES; m++) {
                int value = 16 * (VALUE_TILES * p.warp + m);
                if (value >= VALUE_DIM) continue;
                if constexpr (INT8_VALUES) {
                    *(float2*)(to + value + 2 * p.g()) = make_float2(sums[m][n][second], sums[m][n][2 + second]);
                } else {
                    to[value + p.g()] = sums[m][n][second];
                    to[value + p.g() + 8] = sums[m][n][2 + second];
                }
            }
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
NAME(const uint4* queries, const void* keys, const uint16_t* key_scales, const void* values,
     const uint16_t* value_scales, const int* page_table, int page_stride, int page_len, const int* starts,
     const int* past_cells, int n_heads, int n_kv_heads, int window, int per_octave, float* part_sums,
     float2* part_totals) {
    DYNAMIC_SHARED(unsigned char, dynamic);
    __shared__ Shared shared;
    uint4* const own_queries = (uint4*)dynamic;
    unsigned char* const slots = dynamic + COLUMNS * KEY_DIM * 4;
    unsigned char* const weights = slots + SLOTS * slot_bytes;

    wait_for_previous();
    let_next_start();
    const int n_splits = gridDim.z, split = n_splits - 1 - blockIdx.z;  // long ones first
    const int n_chunks = gridDim.x / n_kv_heads;
    Work work;
    work.sequence = blockIdx.y;
    work.first_row = starts[work.sequence];
    work.kv_head = blockIdx.x / n_chunks;
    work.group = n_heads / n_kv_heads;
    work.first_column = COLUMNS * (blockIdx.x % n_chunks);
    const int n_rows = starts[work.sequence + 1] - work.first_row;
    work.n_columns = min(COLUMNS, n_rows * work.group - work.first_column);
    if (work.n_columns <= 0) return;
    const int past = past_cells[work.sequence];
    const Cells of_first_row = seen_from(past + work.row(0), window);
    const Cells of_last_row = seen_from(past + work.row(work.n_columns - 1), window);
    const Splits splits = {per_octave};
    const int split_start = splits.start(split), split_end = split_start + splits.length(split);
    const Cells wanted = {max(split_start, of_first_row.first), min(split_end, of_last_row.end)};
    if (wanted.first >= wanted.end) return;
    const int first_cell = wanted.first / TILE * TILE, n_tiles = (wanted.end - first_cell + TILE - 1) / TILE;

    describe_columns(shared, work, past, window, n_heads);
    const Pages pages = {page_table, page_stride, page_len, n_kv_heads};
    for (int i = threadIdx.x; i < n_tiles * (TILE / CELL_GROUP); i += THREADS) {
        int cell = first_cell + CELL_GROUP * i;
        bool is_wanted = cell + CELL_GROUP > wanted.first && cell < wanted.end;  // else the table may hold anything
        shared.where[i] = is_wanted ? (int)pages.cell(work.sequence, work.kv_head, cell) : 0;
    }
    __syncthreads();

    // Keys and values take turns: copy 2 i is of the keys of tile i, copy 2 i + 1 of its values.
    auto start_copy = [&](int copy) {
        int tile = copy >> 1;
        if (tile < n_tiles) {
            unsigned char* to = slots + copy % SLOTS * slot_bytes;
            const int* where = shared.where + tile * (TILE / CELL_GROUP);
            int cell = first_cell + TILE * tile;
            if (copy & 1) {
                copy_tile<Values, THREADS>(to, values, value_scales, where, cell, wanted);
            } else {
                copy_tile<Keys, THREADS>(to, keys, key_scales, where, cell, wanted);
            }
        }
        cp_async_commit();
    };
    copy_queries(own_queries, queries, shared);
    for (int copy = 0; copy < SLOTS - 1; copy++) start_copy(copy);

    const Place p;
    Running running;
    Sums sums = {};
    for (int tile = 0; tile < n_tiles; tile++) {
        const int cell = first_cell + TILE * tile;
        cp_async_wait<SLOTS - 2>();
        __syncthreads();  // the keys are there, and everybody is through with the last tile
        start_copy(2 * tile + SLOTS - 1);
        float scores[TILES][4];
        score_tile(scores, slots + 2 * tile % SLOTS * slot_bytes, own_queries, p);
        if (cell < of_last_row.first || cell + TILE > of_first_row.end) hide_unseen(scores, shared, cell, p);
        share_maxima(scores, shared, p);
        __syncthreads();
        weigh(scores, running, weights, shared, p);
        rescale(sums, running);
        cp_async_wait<SLOTS - 2>();
        __syncthreads();  // the weights and the values are there, and everybody is through with the keys
        start_copy(2 * tile + SLOTS);
        const unsigned char* slot = slots + (2 * tile + 1) % SLOTS * slot_bytes;
        if constexpr (INT8_VALUES) {
            add_bytes(sums, slot, weights, wanted.end - cell, p);
        } else {
            add_halves(sums, slot, weights, p);
        }
    }
    share_totals(running, shared, p);
    __syncthreads();
    write_parts(sums, running, shared, p, split, n_splits, part_sums, part_totals);
}
