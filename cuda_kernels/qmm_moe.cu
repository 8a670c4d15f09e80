// The experts' products of a mixture: packed rows times the quantised weights (repack.py) of those experts whom moe_route
// listed. One launch makes gate and up of all that are chosen, another their down projections.
//
// An item is (bundle, group of 128 weight rows, split of K): a walk over n_steps times 256 of k for up to 4 * TILES columns,
// which are rows of x gathered by the list. Items are numbered in that order; block i takes items i, i + grid, ... Where K is
// split depends on the shape of the weights and the device alone, so that a row of x has the same bits in any company.
//
// A pair is (row, rank): number row * per_row + rank, where the shared expert has rank n_used.
//   gate_up  x: rows.  Out: activation(gate) * up, packed, of each pair. Splits and 64-column groups of a block of 256 meet
//            once: each leaves its sums [split][pair][width] as (gate, up), and the last to arrive adds, activates and packs.
//   down     x: pairs. Out: part[pair][n_out], each the product times the pair's weight. Splits leave sums [split][pair][n_out].

// Where shared memory has room for one block only, registers need not do for two.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
#define QMM_BLOCKS 1
#else
#define QMM_BLOCKS 2
#endif
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
    int first_bundle;          // of this launch
    int rows, tiles, k_blocks;  // of an expert's weights
    int groups, splits, n_steps;
    int per_row, by_pair;      // by_pair: x has a row for each pair
    int own_items;             // of this block

    __device__ __forceinline__ const Experts& experts(int id) const { return id < n_expert ? routed : shared; }
    __device__ __forceinline__ int tiles_of(int group) const { return min(QMM_WARPS, tiles - QMM_WARPS * group); }
    // of a block's item
    __device__ __forceinline__ int group(int own) const { return (blockIdx.x + own * gridDim.x) / splits % groups; }
    __device__ __forceinline__ int place(int id) const { return id < n_expert ? id : 0; }
    __device__ __forceinline__ int pair(int entry) const {
        return (entry >> MOE_RANK_BITS) * per_row + (entry & ((1 << MOE_RANK_BITS) - 1));
    }
};

// What a block does at one of its units: unit u is step u % n_steps of its item u / n_steps.
struct Item {
    int group, split, bundle, id;
    int start, count;  // of the bundle's columns

    __device__ __forceinline__ Item(const Work& work, int own) {
        int item = blockIdx.x + own * gridDim.x, rest = item / work.splits;
        int which = rest / work.groups;
        split = item - rest * work.splits;
        group = rest - which * work.groups;
        bundle = work.first_bundle + which;
        id = work.lists.ids[bundle];
        start = work.lists.starts[bundle];
        count = work.lists.starts[bundle + 1] - start;
    }
    __device__ __forceinline__ int entry(const Work& work, int column) const { return work.lists.columns[start + column]; }
    __device__ __forceinline__ int pair(const Work& work, int column) const { return work.pair(entry(work, column)); }
};

struct ExpertWork {
    const Work& all;

    struct Cursor {
        const Work& work;
        int own, left, step;  // left: items, this one included
        Item item;
        const char* tiles_at;
        int row_of_lane;  // of column lane modulo 8

        // Beyond the last unit it stands somewhere in the last item, and nothing is fetched.
        __device__ __forceinline__ Cursor(const Work& w, int unit)
            : work(w), own(min(unit / w.n_steps, w.own_items - 1)), left(w.own_items - own), step(unit % w.n_steps), item(w, own) {
            begin();
        }
        __device__ __forceinline__ void begin() {
            size_t before = ((size_t)work.place(item.id) * work.tiles + QMM_WARPS * item.group) * work.k_blocks;
            before += (size_t)(item.split * work.n_steps + step) * tiles();
            tiles_at = work.experts(item.id).weights + before * Format::TILE_BYTES;
            int column = forgotten(threadIdx.x) & 7;
            if (column >= item.count) {
                row_of_lane = -1;
            } else {
                int entry = item.entry(work, column);
                row_of_lane = work.by_pair ? work.pair(entry) : entry >> MOE_RANK_BITS;
            }
        }
        __device__ __forceinline__ const char* weights() const { return tiles_at; }
        __device__ __forceinline__ int tiles() const { return work.tiles_of(item.group); }
        __device__ __forceinline__ int block() const { return item.split * work.n_steps + step; }
        // The list is not read in each step: a load comes back behind all copies that were begun before it.
        __device__ __forceinline__ int row(int column) const { return __shfl_sync(ALL_LANES, row_of_lane, column); }
        __device__ __forceinline__ void advance() {
            tiles_at += tiles() * Format::TILE_BYTES;
            if (++step < work.n_steps) return;
            step = 0;
            if (--left <= 0) return;  // nothing more is fetched
            item = Item(work, ++own);
            begin();
        }
    };

    __device__ __forceinline__ int run(int unit) const { return all.n_steps - unit % all.n_steps; }
    __device__ __forceinline__ int tiles(int unit) const { return all.tiles_of(all.group(unit / all.n_steps)); }
    __device__ __forceinline__ Cursor at(int unit) const { return Cursor(all, unit); }
};

struct RoundOutcome {
    float* sums;      // of splits; down with one split needs none
    int* arrivals;    // zero between launches: [bundle][256-blocks of the packed width, or groups]
    int n_pairs;
    int activation;       // gate_up
    PackedRows packed;    // gate_up: [pair]
    float* parts;         // down: [pair][rows]
    const float* weights;  // down: [pair]; with WEIGHED_INPUTS gate_up, whose gates and ups they multiply
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
__device__ __forceinline__ void leave_gates(const Work& work, const Item& item, const RoundOutcome& out, const float sums[TILES][2]) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, width = work.rows / 2;
    int column = QMM_GROUP_ROWS / 2 * item.group + 8 * warp + (lane >> 2);
    if (warp >= QMM_WARPS || column >= width) return;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        int token = 4 * n + (lane & 3);
        if (token >= item.count) continue;
        size_t pair = (size_t)item.split * out.n_pairs + item.pair(work, token);
        ((float2*)out.sums)[pair * width + column] = make_float2(sums[n][0], sums[n][1]);
    }
}

// Gates and ups of 8 columns from `first` on, the parts of all splits added in their order; 0 beyond the width.
__device__ __forceinline__ void add_splits(const Work& work, const RoundOutcome& out, int pair, int first, float2 sums[8]) {
    int width = work.rows / 2;
    bool whole = first + 8 <= width && width % 2 == 0;
#pragma unroll
    for (int i = 0; i < 8; i++) sums[i] = make_float2(0.0f, 0.0f);
#pragma unroll 4
    for (int split = 0; split < work.splits; split++) {
        const float2* parts = (const float2*)out.sums + ((size_t)split * out.n_pairs + pair) * width + first;
        if (whole) {  // four loads at once
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                float4 two = __ldcg((const float4*)(parts + i));
                sums[i].x += two.x, sums[i].y += two.y;
                sums[i + 1].x += two.z, sums[i + 1].y += two.w;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (first + i >= width) continue;
                float2 one = __ldcg(parts + i);
                sums[i].x += one.x, sums[i].y += one.y;
            }
        }
    }
}

// activation(gate) * up of 8 columns from `first` on; 0 beyond the width.
__device__ __forceinline__ void gated_8(const Work& work, int id, const RoundOutcome& out, int pair, int first, float values[8]) {
    int width = work.rows / 2;
    float2 sums[8];
    add_splits(work, out, pair, first, sums);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        values[i] = 0.0f;
        if (first + i >= width) continue;
        float gate = scaled_and_biased(work, id, first + i, sums[i].x);
        float up = scaled_and_biased(work, id, width + first + i, sums[i].y);
#ifdef WEIGHED_INPUTS
        gate *= out.weights[pair], up *= out.weights[pair];
#endif
        values[i] = gated(out.activation, gate, up);
    }
}

template <int TILES>
__device__ __forceinline__ void finish_gate_up(const Work& work, const Item& item, const RoundOutcome& out, const float sums[TILES][2]) {
    leave_gates<TILES>(work, item, out, sums);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, block = item.group / 4;
    int blocks = out.packed.width / PACK_BLOCK, expected = min(4, work.groups - 4 * block) * work.splits;
    if (!last_to_arrive(out.arrivals + (size_t)item.bundle * blocks + block, expected)) return;
    for (int column = warp; column < item.count; column += QMM_THREADS / 32) {
        float values[8];
        int pair = item.pair(work, column);
        gated_8(work, item.id, out, pair, PACK_BLOCK * block + 8 * lane, values);
        pack_block(values, out.packed, pair, block);
    }
}

__device__ __forceinline__ void store_part(const Work& work, int id, const RoundOutcome& out, int pair, int row, float sum) {
    float value = scaled_and_biased(work, id, row, sum);
#ifndef WEIGHED_INPUTS
    value *= out.weights[pair];
#endif
    out.parts[(size_t)pair * work.rows + row] = value;
}

// Sums of a split, or parts if there is but one.
template <int TILES>
__device__ __forceinline__ void leave_down(const Work& work, const Item& item, const RoundOutcome& out, const float sums[TILES][2]) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (warp >= QMM_WARPS) return;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        int token = 4 * n + (lane & 3);
        if (token >= item.count) continue;
        int pair = item.pair(work, token);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = QMM_GROUP_ROWS * item.group + 16 * warp + 8 * r + (lane >> 2);
            if (row >= work.rows) continue;
            if (work.splits == 1) store_part(work, item.id, out, pair, row, sums[n][r]);
            else out.sums[((size_t)item.split * out.n_pairs + pair) * work.rows + row] = sums[n][r];
        }
    }
}

template <int TILES>
__device__ __forceinline__ void finish_down(const Work& work, const Item& item, const RoundOutcome& out, const float sums[TILES][2]) {
    leave_down<TILES>(work, item, out, sums);
    if (work.splits == 1) return;
    if (!last_to_arrive(out.arrivals + (size_t)item.bundle * work.groups + item.group, work.splits)) return;
    for (int i = threadIdx.x; i < item.count * QMM_GROUP_ROWS; i += QMM_THREADS) {
        int pair = item.pair(work, i / QMM_GROUP_ROWS), row = QMM_GROUP_ROWS * item.group + i % QMM_GROUP_ROWS;
        if (row >= work.rows) continue;
        float sum = 0.0f;
        for (int split = 0; split < work.splits; split++) {
            sum += __ldcg(out.sums + ((size_t)split * out.n_pairs + pair) * work.rows + row);
        }
        store_part(work, item.id, out, pair, row, sum);
    }
}

// `which`: 0 routed experts, 1 the shared one, 2 all.
template <int TILES>
__device__ __forceinline__ void multiply(const Work& given, const PackedRows& x, const RoundOutcome& out, int which) {
    DYNAMIC_SHARED(char, memory);
    __shared__ Work work;
    wait_for_previous();  // what is fetched first depends on the lists
    if (threadIdx.x == 0) {
        int n_routed = given.lists.n_bundles[0], n_all = given.lists.n_bundles[1];
        work = given;
        work.first_bundle = which == 1 ? n_routed : 0;
        int items = ((which == 0 ? n_routed : n_all) - work.first_bundle) * work.groups * work.splits;
        work.own_items = (items - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    }
    __syncthreads();
    if (work.own_items <= 0) return;
    bool down = out.parts != nullptr;
    walk<Format, TILES>(memory, x, ExpertWork{work}, 0, work.own_items * work.n_steps, [&](int unit, float (&sums)[TILES][2]) {
        Item item(work, unit / work.n_steps);
        if (down) finish_down<TILES>(work, item, out, sums);
        else finish_gate_up<TILES>(work, item, out, sums);
    });
}

#define PASTE(a, b) a##b
#define NAMED(prefix, columns) PASTE(prefix, columns)
#define QMM_MOE(columns, TILES)                                                                                               \
    extern "C" __global__ void __launch_bounds__(288, QMM_BLOCKS) NAMED(NAME, columns)(                                            \
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
        Work work = {lists, routed, shared, n_expert, 0, rows, tiles, k_blocks, groups, splits, k_blocks / splits,         \
                     per_row, by_pair, 0};                                                                                     \
        PackedRows packed = {packed_q, packed_d, packed_s, packed_width};                                                     \
        RoundOutcome out = {sums, arrivals, n_pairs, activation, packed, parts, pair_weights};                                     \
        multiply<TILES>(work, x, out, which);                                                                                 \
    }
QMM_MOE(4, 1)
QMM_MOE(8, 2)
