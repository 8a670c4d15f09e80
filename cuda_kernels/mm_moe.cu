// The experts' products of a mixture with bfloat16 or half weights [expert][n_out][n_k]; see qmm_moe.cu for what is made.
// blockIdx.x is (bundle, 16 or 32 output columns): there are as many blocks as there may be bundles, and most find none.
#include "mm_core.cuh"
#include "mm_output.cuh"
#include "moe_lists.cuh"

// Rows of x, gathered.
struct GatheredColumns {
    PackedColumns x;
    const int* rows;  // in shared memory

    __device__ __forceinline__ void load(uint32_t b[4], int column, int part, int k, int m) const {
        x.load(b, rows[column], part, k, m);
    }
    __device__ __forceinline__ float scale(int column, int k) const { return x.scale(rows[column], k); }
    __device__ __forceinline__ static float join(float high, float low) { return PackedColumns::join(high, low); }
};

struct Experts {
    const uint16_t *routed, *shared;  // shared: one more expert, number n_expert, or null
    const float *bias, *shared_bias;  // [expert][n_out] or null
    int n_expert, n_out, n_k;
};

// What a block has to do. `count` is 0 beyond the last bundle.
struct Bundle {
    int count, number, first;  // first: output column
    const uint16_t* weights;
    const float* bias;
    int *rows, *pairs;  // in shared memory, of each column: the row of x, row * per_row + rank
};

// `which`: 0 routed experts, 1 the shared one, 2 all.
__device__ __forceinline__ Bundle find_bundle(const Experts& experts, const MoeLists& lists, int which, int width, int n_columns,
                                              int per_row, bool by_pair) {
    __shared__ int rows[8], pairs[8];
    wait_for_previous();  // the lists say which weights
    int blocks = (n_columns + width - 1) / width, bundle = blockIdx.x / blocks, n_routed = lists.n_bundles[0];
    int last = which == 0 ? n_routed : lists.n_bundles[1];
    if (which == 1) bundle += n_routed;
    if (bundle >= last) return {0, bundle, 0, nullptr, nullptr, rows, pairs};
    int id = lists.ids[bundle], start = lists.starts[bundle], count = lists.starts[bundle + 1] - start;
    if (threadIdx.x < count) {
        int entry = lists.columns[start + threadIdx.x], row = entry >> MOE_RANK_BITS;
        int pair = row * per_row + (entry & ((1 << MOE_RANK_BITS) - 1));
        rows[threadIdx.x] = by_pair ? pair : row;
        pairs[threadIdx.x] = pair;
    }
    __syncthreads();
    bool routed = id < experts.n_expert;
    const uint16_t* weights = routed ? experts.routed + (size_t)id * experts.n_out * experts.n_k : experts.shared;
    const float* bias = routed ? experts.bias + (size_t)id * experts.n_out : experts.shared_bias;
    if (routed && !experts.bias) bias = nullptr;
    return {count, bundle, (int)(blockIdx.x % blocks) * width, weights, bias, rows, pairs};
}

template <int GROUPS>
__device__ __forceinline__ void gate_up(const PackedColumns& x, const Experts& experts, const MoeLists& lists, int which,
                                        int per_row, const float* pair_weights, GatedColumns out) {
    let_next_start();
    Bundle bundle = find_bundle(experts, lists, which, 16, out.width, per_row, false);
    if (bundle.count == 0) return;
    Tiles tiles = {bundle.weights, experts.n_out, experts.n_k, bundle.first, out.width};
    out.bias = bundle.bias;
    const float* red = products<2, GROUPS>(tiles, GatheredColumns{x, bundle.rows}, 0, bundle.count);
    for (int i = threadIdx.x; i < 16 * 4 * GROUPS; i += WARPS * 32) {
        int column = i % 16, row = i / 16;
        if (bundle.first + column >= out.width || row >= bundle.count) continue;
        float gate = whole<2, GROUPS>(red, 0, column, row), up = whole<2, GROUPS>(red, 1, column, row);
#ifdef WEIGHED_INPUTS
        gate *= pair_weights[bundle.pairs[row]], up *= pair_weights[bundle.pairs[row]];
#endif
        out.store(bundle.pairs[row], bundle.first + column, gate, up);
    }
    int blocks = (out.width + 15) / 16, block = bundle.first / PACK_BLOCK;
    out.arrivals += (size_t)bundle.number * (out.packed.width / PACK_BLOCK);
    out.pack(block, min(PACK_BLOCK / 16, blocks - PACK_BLOCK / 16 * block), 0, bundle.count, bundle.pairs);
}

template <int GROUPS>
__device__ __forceinline__ void down(const PackedColumns& x, const Experts& experts, const MoeLists& lists, int which, int per_row,
                                     float* parts, const float* pair_weights) {
    let_next_start();
    Bundle bundle = find_bundle(experts, lists, which, 32, experts.n_out, per_row, true);
    if (bundle.count == 0) return;
    Tiles tiles = {bundle.weights, experts.n_out, experts.n_k, bundle.first, 16};
    const float* red = products<2, GROUPS>(tiles, GatheredColumns{x, bundle.rows}, 0, bundle.count);
    for (int i = threadIdx.x; i < 32 * 4 * GROUPS; i += WARPS * 32) {
        int at = i % 32, row = i / 32, column = bundle.first + at;
        if (column >= experts.n_out || row >= bundle.count) continue;
        float value = whole<2, GROUPS>(red, at / 16, at % 16, row);
        if (bundle.bias) value += bundle.bias[column];
        int pair = bundle.pairs[row];
#ifndef WEIGHED_INPUTS
        value *= pair_weights[pair];
#endif
        parts[(size_t)pair * experts.n_out + column] = value;
    }
}

#ifdef HALF_WEIGHTS
#define NAME(kind, columns) mm_moe_f16_##kind##_##columns
#else
#define NAME(kind, columns) mm_moe_bf16_##kind##_##columns
#endif
#define COMMON                                                                                                               \
    const uint16_t *weights, const float *bias, const uint16_t *shared_weights, const float *shared_bias, int n_expert,      \
        int n_out, int n_k, const int8_t *q, const float *d, const int16_t *, int width, int *n_bundles, int *ids,           \
        int *starts, int *columns, int per_row, int which
#define MAKE_COMMON(groups)                                                                                                  \
    PackedColumns x = {q, d, width};                                                                                         \
    Experts experts = {weights, shared_weights, bias, shared_bias, n_expert, n_out, n_k};                                    \
    MoeLists lists = {n_bundles, ids, starts, columns, 4 * groups}
#define MM_MOE(groups, at_once)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256, 2) NAME(gate_up, at_once)(                                             \
        COMMON, float* hidden, int activation, int8_t* packed_q, float* packed_d, int16_t* packed_s, int packed_width,       \
        int* arrivals, const float* pair_weights) {                                                                          \
        MAKE_COMMON(groups);                                                                                                 \
        PackedRows packed = {packed_q, packed_d, packed_s, packed_width};                                                    \
        gate_up<groups>(x, experts, lists, which, per_row, pair_weights,                                                     \
                        {hidden, n_out / 2, activation, nullptr, packed, arrivals});                                         \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 2) NAME(down, at_once)(COMMON, float* parts, const float* pair_weights) { \
        MAKE_COMMON(groups);                                                                                                 \
        down<groups>(x, experts, lists, which, per_row, parts, pair_weights);                                                \
    }
MM_MOE(1, 4)
MM_MOE(2, 8)
