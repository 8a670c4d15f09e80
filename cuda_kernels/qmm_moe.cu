// The experts' products of a mixture: packed rows times the quantised weights (repack.py) of those experts whom moe_route
// listed. One launch makes gate and up of all that are asked, another their down projections.
//
// An item is (bundle, group of 128 weight rows, split of K): a walk over n_steps times 256 of k for up to 4 * TILES columns,
// which are rows of x gathered by the list. Items are numbered in that order; block i takes items i, i + grid, ... Where K is
// split depends on the shape of the weights and the device alone, so that a row of x has the same bits in any company.
//
// A pair is (row, rank): number row * per_row + rank, where the shared expert has rank n_used.
//   gate_up  x: rows.  Out: activation(gate) * up, packed, of each pair. Splits and 64-column groups of a block of 256 meet
//            once: each leaves its sums [split][pair][width] as (gate, up), and the last to arrive adds, activates and packs.
//   down     x: pairs. Out: part[pair][n_out], each the product times the pair's weight. Splits leave sums [split][pair][n_out].
#include "qmm_core.cuh"
#include "qmm_epilogue.cuh"
#include "moe_lists.cuh"

typedef FORMAT Format;

// Matrices of the same shape, one behind the other.
struct Experts {
    const char* weights;
    const float *scale, *bias;  // [expert][rows] or null
};

struct Work {
    MoeLists lists;
    Experts routed, shared;
    int n_expert;              // the shared expert's number
    int first_bundle, items;   // of this launch
    int rows, tiles, k_blocks;  // of an expert's weights
    int groups, splits, n_steps;
    int per_row, by_pair;      // by_pair: x has a row for each pair

    __device__ __forceinline__ const Experts& experts(int id) const { return id < n_expert ? routed : shared; }
    __device__ __forceinline__ int place(int id) const { return id < n_expert ? id : 0; }
    __device__ __forceinline__ int pair(int entry) const {
        return (entry >> MOE_RANK_BITS) * per_row + (entry & ((1 << MOE_RANK_BITS) - 1));
    }
};

struct ExpertCursor {
    const Work* work;  // in shared memory: three cursors are kept in registers
    int item, group, split, step;
    int start, count;  // of the bundle's columns
    const char* at;

    __device__ __forceinline__ ExpertCursor(const Work* w, int first) : work(w), item(first), step(0) { enter(); }
    __device__ __forceinline__ int bundle() const { return work->first_bundle + item / (work->splits * work->groups); }
    __device__ __forceinline__ int id() const { return work->lists.ids[bundle()]; }
    __device__ __forceinline__ void enter() {
        if (item >= work->items) return;  // beyond the last, where nothing is fetched
        int rest = item / work->splits, which = bundle();
        split = item - rest * work->splits;
        group = rest - (which - work->first_bundle) * work->groups;
        int expert = work->lists.ids[which];
        start = work->lists.starts[which];
        count = work->lists.starts[which + 1] - start;
        size_t before = ((size_t)work->place(expert) * work->tiles + QMM_WARPS * group) * work->k_blocks;
        before += (size_t)split * work->n_steps * tiles();
        at = work->experts(expert).weights + before * Format::TILE_BYTES;
    }
    __device__ __forceinline__ const char* weights() const { return at; }
    __device__ __forceinline__ int tiles() const { return min(QMM_WARPS, work->tiles - QMM_WARPS * group); }
    __device__ __forceinline__ int block() const { return split * work->n_steps + step; }
    __device__ __forceinline__ int entry(int column) const { return work->lists.columns[start + column]; }
    __device__ __forceinline__ int pair(int column) const { return work->pair(entry(column)); }
    __device__ __forceinline__ int row(int column) const {
        if (column >= count) return -1;
        return work->by_pair ? pair(column) : entry(column) >> MOE_RANK_BITS;
    }
    __device__ __forceinline__ bool ends() const { return step + 1 == work->n_steps; }
    __device__ __forceinline__ void advance() {
        if (item >= work->items) return;
        if (++step < work->n_steps) {
            at += (size_t)tiles() * Format::TILE_BYTES;
            return;
        }
        step = 0;
        item += gridDim.x;
        enter();
    }
};

struct Outcome {
    float* sums;      // of splits; down with one split needs none
    int* arrivals;    // zero between launches: [bundle][256-blocks of the packed width, or groups]
    int n_pairs;
    int activation;       // gate_up
    PackedRows packed;    // gate_up: [pair]
    float* parts;         // down: [pair][rows]
    const float* weights;  // down: [pair]
};

__device__ __forceinline__ float scaled_and_biased(const Work& work, int id, int row, float value) {
    const Experts& experts = work.experts(id);
    size_t at = (size_t)work.place(id) * work.rows + row;
    if (experts.scale) value *= experts.scale[at];
    if (experts.bias) value += experts.bias[at];
    return value;
}

// Gate and up of this warp's 8 columns of the expert's inner width.
template <int TILES>
__device__ __forceinline__ void leave_gates(const ExpertCursor& at, const Outcome& out, const float sums[TILES][2]) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, width = at.work->rows / 2;
    int column = QMM_GROUP_ROWS / 2 * at.group + 8 * warp + (lane >> 2);
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        int token = 4 * n + (lane & 3);
        if (token >= at.count || column >= width) continue;
        size_t pair = (size_t)at.split * out.n_pairs + at.pair(token);
        ((float2*)out.sums)[pair * width + column] = make_float2(sums[n][0], sums[n][1]);
    }
}

// activation(gate) * up of 8 columns from `first` on; 0 beyond the width.
__device__ __forceinline__ void gated_8(const ExpertCursor& at, const Outcome& out, int pair, int first, float values[8]) {
    const Work& work = *at.work;
    int width = work.rows / 2, id = at.id();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        values[i] = 0.0f;
        if (first + i >= width) continue;
        float gate = 0.0f, up = 0.0f;
        for (int split = 0; split < work.splits; split++) {
            float2 part = __ldcg((const float2*)out.sums + ((size_t)split * out.n_pairs + pair) * width + first + i);
            gate += part.x;
            up += part.y;
        }
        gate = scaled_and_biased(work, id, first + i, gate);
        up = scaled_and_biased(work, id, width + first + i, up);
        values[i] = activated(out.activation, gate) * up;
    }
}

template <int TILES>
__device__ __forceinline__ void finish_gate_up(const ExpertCursor& at, const Outcome& out, const float sums[TILES][2]) {
    leave_gates<TILES>(at, out, sums);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, block = at.group / 4;
    int blocks = out.packed.width / PACK_BLOCK, expected = min(4, at.work->groups - 4 * block) * at.work->splits;
    if (!last_to_arrive(out.arrivals + (size_t)at.bundle() * blocks + block, expected)) return;
    for (int column = warp; column < at.count; column += QMM_WARPS) {
        float values[8];
        int pair = at.pair(column);
        gated_8(at, out, pair, PACK_BLOCK * block + 8 * lane, values);
        pack_block(values, out.packed, pair, block);
    }
}

__device__ __forceinline__ void store_part(const Work& work, const Outcome& out, int id, int pair, int row, float sum) {
    float value = scaled_and_biased(work, id, row, sum);
    out.parts[(size_t)pair * work.rows + row] = out.weights[pair] * value;
}

template <int TILES>
__device__ __forceinline__ void finish_down(const ExpertCursor& at, const Outcome& out, const float sums[TILES][2]) {
    const Work& work = *at.work;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first_row = QMM_GROUP_ROWS * at.group, id = at.id();
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        int token = 4 * n + (lane & 3);
        if (token >= at.count) continue;
        int pair = at.pair(token);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = first_row + 16 * warp + 8 * r + (lane >> 2);
            if (row >= work.rows) continue;
            if (work.splits == 1) store_part(work, out, id, pair, row, sums[n][r]);
            else out.sums[((size_t)at.split * out.n_pairs + pair) * work.rows + row] = sums[n][r];
        }
    }
    if (work.splits == 1 || !last_to_arrive(out.arrivals + (size_t)at.bundle() * work.groups + at.group, work.splits)) return;
    for (int i = threadIdx.x; i < at.count * QMM_GROUP_ROWS; i += QMM_THREADS) {
        int pair = at.pair(i / QMM_GROUP_ROWS), row = first_row + i % QMM_GROUP_ROWS;
        if (row >= work.rows) continue;
        float sum = 0.0f;
        for (int split = 0; split < work.splits; split++) {
            sum += __ldcg(out.sums + ((size_t)split * out.n_pairs + pair) * work.rows + row);
        }
        store_part(work, out, id, pair, row, sum);
    }
}

// `which`: 0 routed experts, 1 the shared one, 2 all.
template <int TILES>
__device__ __forceinline__ void multiply(const Work& given, const PackedRows& x, const Outcome& out, int which) {
    DYNAMIC_SHARED(char, memory);
    __shared__ Work work;
    wait_for_previous();  // what is fetched first depends on the lists
    if (threadIdx.x == 0) {
        int n_routed = given.lists.n_bundles[0], n_all = given.lists.n_bundles[1];
        work = given;
        work.first_bundle = which == 1 ? n_routed : 0;
        work.items = ((which == 0 ? n_routed : n_all) - work.first_bundle) * work.groups * work.splits;
    }
    __syncthreads();
    int mine = (work.items - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    if (mine <= 0) return;
    ExpertCursor cursor(&work, blockIdx.x);
    bool down = out.parts != nullptr;
    walk<Format, TILES>(memory, x, cursor, mine * work.n_steps, [&](const ExpertCursor& at, float (&sums)[TILES][2]) {
        if (down) finish_down<TILES>(at, out, sums);
        else finish_gate_up<TILES>(at, out, sums);
    });
}

#define PASTE(a, b) a##b
#define NAMED(prefix, columns) PASTE(prefix, columns)
#define QMM_MOE(columns, TILES)                                                                                               \
    extern "C" __global__ void __launch_bounds__(256, 2) NAMED(NAME, columns)(                                                \
        const uint4* weights, const float* scale, const float* bias, const uint4* shared_weights, const float* shared_scale,  \
        const float* shared_bias, int n_expert, int rows, int k_blocks, int splits, const int8_t* q, const float* d,          \
        const int16_t* s, int width, int by_pair, int* n_bundles, int* ids, int* starts, int* columns_at, int per_row,        \
        int which, float* sums, int* arrivals, int n_pairs, int activation, int8_t* packed_q, float* packed_d,                \
        int16_t* packed_s, int packed_width, float* parts, const float* pair_weights) {                                       \
        PackedRows x = {const_cast<int8_t*>(q), const_cast<float*>(d), const_cast<int16_t*>(s), width};                       \
        MoeLists lists = {n_bundles, ids, starts, columns_at, 4 * TILES};                                                     \
        Experts routed = {(const char*)weights, scale, bias};                                                                 \
        Experts shared = {(const char*)shared_weights, shared_scale, shared_bias};                                            \
        int tiles = (rows + 15) / 16, groups = (tiles + QMM_WARPS - 1) / QMM_WARPS;                                           \
        Work work = {lists, routed, shared, n_expert, 0, 0, rows, tiles, k_blocks, groups, splits, k_blocks / splits,         \
                     per_row, by_pair};                                                                                       \
        PackedRows packed = {packed_q, packed_d, packed_s, packed_width};                                                     \
        Outcome out = {sums, arrivals, n_pairs, activation, packed, parts, pair_weights};                                     \
        multiply<TILES>(work, x, out, which);                                                                                 \
    }
QMM_MOE(4, 1)
QMM_MOE(8, 2)
