// One step of a layer's Gated DeltaNet, from the rows of its input projection to packed rows for its output projection:
// convolution, gates, factors that are pending, the recurrence, gated norm. Stands for `delta_rule` of the reference.
//   S_t = g_t S_{t-1} + u_t k_t^T,   u_t = b_t (v_t - g_t S_{t-1} k_t),   o_t = S_t q_t = g_t S_{t-1} q_t + u_t (k_t . q_t)
// A block takes some rows of a value head's state (a Tile) through all rows of a sequence; grid (heads x splits, sequences).
// Blocks of 256 neighbouring outputs meet at a counter: the last one norms and packs them. HEAD_DIM and CONV_WIDTH
// are defined by the launcher.
#include "gdn_prepare.cuh"
#include "gdn_recur.cuh"
#include "rows.cuh"

#define GROUP_HEADS (PACK_BLOCK / HEAD_DIM)

// Whether this block is the last of so many to come to a counter, which is zero again then. What the others wrote before
// they came can be read.
__device__ __forceinline__ bool arrive(int* counter, int n) {
    bool is_last = atomic_add_ordered(counter, 1) == n - 1;
    if (is_last) *counter = 0;
    return is_last;
}

// Gated norm and packing of 256 outputs of rows first ... first + n - 1, a warp for each row.
__device__ __forceinline__ void finish_group(const Outputs& out, int group, int value_width, float eps, int first, int n) {
    constexpr int HEAD_LANES = HEAD_DIM / 8;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    int at = group * PACK_BLOCK + 8 * lane;
    bool is_padding = at >= value_width;
#pragma unroll 1
    for (int t = warp; t < n; t += warps) {
        size_t row = first + t;
        const float* raw = out.raw + row * 2 * value_width + at;
        float o[8] = {}, y[8] = {};
        if (!is_padding) {
            load_whole_8(raw, o);
            load_whole_8(raw + value_width, y);
        }
        float squares = square_sum_8(o);
#pragma unroll
        for (int offset = HEAD_LANES / 2; offset; offset >>= 1) squares += __shfl_xor_sync(ALL_LANES, squares, offset);
        float factor = norm_factor(squares, 1.0f / HEAD_DIM, eps);
#pragma unroll
        for (int j = 0; j < 8; j++) y[j] *= factor;
        if (out.packed.q) pack_block(y, out.packed, first + t, group);
        if (out.rows && !is_padding) {
            float* to = out.rows + row * value_width + at;
            *(float4*)to = make_float4(y[0], y[1], y[2], y[3]);
            *(float4*)(to + 4) = make_float4(y[4], y[5], y[6], y[7]);
        }
        if (out.halves && !is_padding) {
            *(uint4*)(out.halves + row * value_width + at) =
                make_uint4(floats_to_bf162(y[0], y[1]), floats_to_bf162(y[2], y[3]), floats_to_bf162(y[4], y[5]),
                           floats_to_bf162(y[6], y[7]));
        }
    }
}

// A chunk of this block's outputs is made. The last block of a group finishes it; the last one of a sequence, which all
// others have come before, having read the header, turns that.
template <int ROWS>
__device__ __forceinline__ void finish_chunk(Shared<ROWS>& shared, const DeltaLayer& layer, const Outputs& out,
                                             const Place& at, const Sequence& s, float eps, int chunk, int n) {
    int value_width = layer.n_value_heads * HEAD_DIM, n_groups = (value_width + PACK_BLOCK - 1) / PACK_BLOCK;
    int group = at.value_head / GROUP_HEADS;
    int heads = min(GROUP_HEADS, layer.n_value_heads - group * GROUP_HEADS);
    // No two chunks of a launch have the same number: a sequence of n rows has at most n / CHUNK + 1.
    int number = s.start / Tile<ROWS>::CHUNK + blockIdx.y + chunk / Tile<ROWS>::CHUNK;
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.is_last = arrive(out.arrivals + gridDim.y + number * n_groups + group, heads * Tile<ROWS>::SPLITS);
    }
    __syncthreads();
    if (!shared.is_last) return;
    finish_group(out, group, value_width, eps, s.start + chunk, n);
    if (threadIdx.x == 0 && chunk + n == s.n_rows && arrive(out.arrivals + blockIdx.y, n_groups)) {
        layer.header[2 * at.slot] = s.to_half;
        layer.header[2 * at.slot + 1] = s.position - s.kept + s.n_final;
    }
}

template <int ROWS>
__device__ __forceinline__ void gdn_step(const DeltaLayer& layer, const Inputs& in, const Weights& weights,
                                         const Outputs& out, const int* starts, const int* slots, const int* past,
                                         const int* replays, int tiled) {
    using T = Tile<ROWS>;
    __shared__ Shared<ROWS> shared;
    Place at = find_place(layer, tiled, T::SPLITS, T::N_ROWS);
    let_next_start();
    prefetch<ROWS>(layer, at, slots, replays);
    load_weights<ROWS>(shared, layer, weights, at);
    const Errand<ROWS> own(layer, at, in.ring_rows);
    wait_for_previous();

    at.slot = slots[blockIdx.y];
    Sequence s = find_sequence(layer, starts, past, replays);
    if (s.n_rows <= 0) return;
    float* stored = layer.head_state(at.slot, at.value_head) + at.first_row * HEAD_DIM;
    float state[ROWS][PER_LANE];
    if (s.position > 0) {
        load_state<ROWS>(state, stored);
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) state[r][i] = 0.0f;
    }
    fetch_rows<ROWS>(shared, layer, in, own, at, s, 0, min(T::CHUNK, s.n_rows));
    at.half = layer.header[2 * at.slot] & 1;
    s.to_half = s.kept ? at.half : 1 - at.half;
    fetch_factors<ROWS>(shared.old, layer, at, 0, min(T::CHUNK, s.replay));

    for (int chunk = 0; chunk < s.n_rows; chunk += T::CHUNK) {
        int n = min(T::CHUNK, s.n_rows - chunk);
        if (chunk) {
            const Errand<ROWS> again(layer, at, in.ring_rows);
            fetch_rows<ROWS>(shared, layer, in, again, at, s, chunk, n);
            cp_async_commit();
        }
        prepare<ROWS>(shared, layer, in, weights, at, s, chunk, n);
        __syncthreads();
        normalise<ROWS>(shared, weights.eps, n);
        cp_async_wait<0>();
        __syncthreads();
        if (chunk == 0) {
            replay<ROWS>(state, shared.old, layer, at, s.replay);
            bool changed = s.replay > 0 || s.position == 0;
            if (changed && s.kept == 0 && s.n_final == 0) store_state<ROWS>(state, stored);
        }
        recur<ROWS>(state, shared, layer, at, s, out.raw, chunk, n);
        keep_factors<ROWS>(shared, layer, at, s, tiled, chunk, n);
        finish_chunk<ROWS>(shared, layer, out, at, s, weights.eps, chunk, n);
    }
}

#define JOIN(a, b, c) a##_##b##_##c
#define NAME(a, b, c) JOIN(a, b, c)
#define GDN_STEP(rows, letter)                                                                                         \
    extern "C" __global__ void __launch_bounds__(Tile<rows>::THREADS, 512 / Tile<rows>::THREADS) NAME(gdn_step, HEAD_DIM, letter)(                \
        const float* conv, const float* dt_bias, const float* a, const float* norm, float eps, float* state,           \
        const float* ring, float* keys, float* updates, float* decays, int* header, const int* starts,                 \
        const int* slots, const int* past, const int* replays, const float* inputs, int stride, const float* gates,    \
        int gates_stride, int z_column, float* raw, int* arrivals, int8_t* q, float* d, int16_t* s, int width,         \
        float* rows_out, uint16_t* halves_out, int n_key_heads, int n_value_heads, int tiled, int window,              \
        int ring_rows) {                                                                                               \
        DeltaLayer layer = {state, keys, updates, decays, header, n_key_heads, n_value_heads, window};                 \
        Inputs in = {inputs, ring, gates, stride, gates_stride, z_column, ring_rows};                                  \
        Weights weights = {conv, dt_bias, a, norm, eps};                                                               \
        Outputs out = {raw, arrivals, {q, d, s, width}, rows_out, halves_out};                                         \
        gdn_step<rows>(layer, in, weights, out, starts, slots, past, replays, tiled);                                  \
    }
GDN_STEP(1, r1)
#if HEAD_DIM >= 64
GDN_STEP(2, r2)
#endif
#if HEAD_DIM >= 128
GDN_STEP(4, r4)
#endif
