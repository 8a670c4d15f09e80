// Scores and weighted sums of one split of the context: the reference's `_attend_cells`, in parts that attn_combine adds.
//   grid (key-value heads x chunks of columns, sequences, splits of the context bucket, last first)
// A column is a row of the sequence and one of the heads that share the key-value head. Keys, then values, of 64 cells at
// a time are the large operand of the tensor cores, 8 columns the small one. A team of warps shares TILES times 8 columns:
//   scores  16 cells x 8 columns   a warp for each 16 cells (and half of the elements)   queries in two half floats
//   sums    16 values x 8 columns  a warp for its share of the values                    weights in two half floats,
//                                                                                        bfloat16 if values are int8
// Each byte of the cache is read once for all columns of a block. Cells, tiles and splits are at absolute places and met
// in order; what a column does not see has weight 0 and changes no bit of it.
// NAME, KEY_DIM, VALUE_DIM, INT8_KEYS, INT8_VALUES, HALVES (1 or 2: warps that share 16 cells), TEAMS, TILES and SLOTS are
// defined by the launcher.
#include "attention_products.cuh"

#define WHERE ((SHORTEST_SPLIT << SPLIT_DOUBLINGS) / CELL_GROUP)
#define NO_ROW (-1)

constexpr int slot_bytes = Keys::bytes > Values::bytes ? Keys::bytes : Values::bytes;

struct Shared {  // besides what is dynamic: queries, slots, weights
    float2 maxima[TEAM][COLUMNS / 2];  // of pairs of neighbouring columns
    float2 totals[TEAM][COLUMNS / 2];
    int target[COLUMNS];  // row * heads + head, or NO_ROW
    Cells seen[COLUMNS];
    int where[WHERE];
};

__device__ __forceinline__ void hide_unseen(Scores scores, const Shared& shared, int first_cell, const Place& p) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int column = 0; column < 2; column++) {
            const Cells seen = shared.seen[p.column(n) + column];
#pragma unroll
            for (int i = 0; i < LANE_CELLS; i++) {
                int cell = first_cell + p.cell(i);
                bool is_seen = (cell >= seen.first) & (cell < seen.end);
                scores[n][2 * i + column] = is_seen ? scores[n][2 * i + column] : -INFINITY_F;
            }
        }
}

// The best score of each column among the cells of this warp, for the others to see. NaN is never the best.
__device__ __forceinline__ void share_maxima(const Scores scores, Shared& shared, const Place& p) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        float best[2];
#pragma unroll
        for (int column = 0; column < 2; column++) {
            best[column] = scores[n][column];
            if (LANE_CELLS == 2) best[column] = fmaxf(best[column], scores[n][LANE_CELLS + column]);
#pragma unroll
            for (int offset = 4; offset < 32; offset <<= 1)
                best[column] = fmaxf(best[column], __shfl_xor_sync(ALL_LANES, best[column], offset));
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

// Scores become weights, relative to the best so far.
__device__ __forceinline__ void weigh(Scores scores, Running& running, const Shared& shared, const Place& p) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        float best[2] = {running.best[n][0], running.best[n][1]};
#pragma unroll
        for (int warp = 0; warp < TEAM; warp++) {
            float2 of_warp = shared.maxima[warp][p.column(n) / 2];
            best[0] = fmaxf(best[0], of_warp.x);
            best[1] = fmaxf(best[1], of_warp.y);
        }
#pragma unroll
        for (int column = 0; column < 2; column++) {
            float base = best[column] == -INFINITY_F ? 0.0f : best[column];  // nothing seen so far: weights are 0
            float factor = exp2_or_zero(running.best[n][column] - base), total = 0.0f;
#pragma unroll
            for (int i = 0; i < LANE_CELLS; i++) {
                float& x = scores[n][2 * i + column];
                x = exp2_or_zero(x - base) * WEIGHT_UNIT;
                total += x;
            }
            running.total[n][column] = fmaf(running.total[n][column], factor, total);
            running.best[n][column] = best[column];
            running.factor[n][column] = factor;
        }
    }
}

// To shared memory: as floats if they are to meet scales, else as two half floats.
__device__ __forceinline__ void share_weights(const Scores scores, unsigned char* weights, const Place& p) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < LANE_CELLS; i++) {
            float x = scores[n][2 * i], y = scores[n][2 * i + 1];
            int at = p.cell(i) * weight_stride + p.column(n);
            if constexpr (INT8_VALUES) {
                *(float2*)((float*)weights + at) = make_float2(x, y);
            } else {
                uint32_t high = floats_to_half2(x, y);
                uint32_t low = floats_to_half2(x - half_to_float((uint16_t)high), y - half_to_float((uint16_t)(high >> 16)));
                *(uint32_t*)((uint16_t*)weights + at) = high;
                *(uint32_t*)((uint16_t*)weights + TILE * weight_stride + at) = low;
            }
        }
}

__device__ __forceinline__ void rescale(Sums sums, const Running& running) {
#pragma unroll
    for (int m = 0; m < VALUE_TILES; m++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[m][n][i] *= running.factor[n][i & 1];
}

// Columns of a block: neighbours among rows x heads of a sequence and a key-value head.
struct Work {
    int sequence, first_row;  // first_row: of the sequence, among all rows of the launch
    int kv_head, group;       // group: heads that share it
    int first_column, n_columns;

    __device__ __forceinline__ int row(int column) const { return (first_column + column) / group; }
    __device__ __forceinline__ int head(int column) const { return kv_head * group + (first_column + column) % group; }
};

__device__ __forceinline__ void describe_columns(Shared& shared, const Work& work, int past, int n_rows, int sight,
                                                 int n_heads) {
    for (int column = threadIdx.x; column < COLUMNS; column += THREADS) {
        bool is_real = column < work.n_columns;
        Cells seen = seen_from(past, work.row(column), n_rows, sight);
        shared.target[column] = is_real ? (work.first_row + work.row(column)) * n_heads + work.head(column) : NO_ROW;
        shared.seen[column] = is_real ? seen : Cells{0, 0};
    }
}

__device__ __forceinline__ void copy_queries(uint4* to, const uint4* queries, const Shared& shared) {
    for (int i = threadIdx.x; i < COLUMNS * KEY_STEPS * 4; i += THREADS) {
        int lane = i & 31, step = i / 32 % KEY_STEPS, column = i / (32 * KEY_STEPS) * 8 + (lane >> 2);
        int target = shared.target[column];
        const uint4* from = queries + ((size_t)max(target, 0) * KEY_STEPS + step) * 4 + (lane & 3);
        cp_async_16_or_zeros(to + i, from, target != NO_ROW);
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
            if (target == NO_ROW) continue;
            size_t part = (size_t)target * n_splits + split;
            if (p.warp == 0 && p.g() == 0) {
                float total = 0.0f;
#pragma unroll
                for (int warp = 0; warp < TEAM; warp++)
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
     const int* past_cells, int n_heads, int n_kv_heads, int sight, int per_octave, float* part_sums,
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
    const Cells of_first_row = seen_from(past, work.row(0), n_rows, sight);
    const Cells of_last_row = seen_from(past, work.row(work.n_columns - 1), n_rows, sight);
    const Splits splits = {per_octave};
    const int split_start = splits.start(split), split_end = split_start + splits.length(split);
    const Cells wanted = {max(split_start, of_first_row.first), min(split_end, of_last_row.end)};
    if (wanted.first >= wanted.end) return;
    const int first_cell = wanted.first / TILE * TILE, n_tiles = (wanted.end - first_cell + TILE - 1) / TILE;

    describe_columns(shared, work, past, n_rows, sight, n_heads);
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
        __syncthreads();  // the keys are there, and all threads are through with the last tile
        start_copy(2 * tile + SLOTS - 1);
        Scores scores;
        score_tile(scores, slots + 2 * tile % SLOTS * slot_bytes, own_queries, weights, p);
        if (cell < of_last_row.first || cell + TILE > of_first_row.end) hide_unseen(scores, shared, cell, p);
        share_maxima(scores, shared, p);
        __syncthreads();
        weigh(scores, running, shared, p);
        share_weights(scores, weights, p);
        rescale(sums, running);
        cp_async_wait<SLOTS - 2>();
        __syncthreads();  // the weights and the values are there, and all threads are through with the keys
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
