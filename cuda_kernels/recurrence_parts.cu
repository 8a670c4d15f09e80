// Recurrences that have no fused kernel: Mamba-2, Kimi's delta attention, convolutions alone. A launch for each part; a warp
// takes a row of a head's state through all rows of a sequence.
//   S_t = g_t S_{t-1} + u_t k_t^T
// State and factors lie as those of `gdn_step` (state_layout.py).
#include "attention.cuh"

#define KEPT_FACTORS 4  // as in `n_kept`
#define SCAN_WARPS 4
#define FINISH_THREADS 128
#define MOST_PER_LANE 8  // values of a key in a lane

struct Steps {
    const int *starts, *slots, *past, *replays;
};

// A sequence's part of the step, as in `find_sequence` of gdn_parts.cuh.
struct Part {
    int start, n_rows, position, replay, kept, n_final;

    __device__ __forceinline__ Part(const Steps& steps, int b, int window) {
        start = steps.starts[b];
        n_rows = steps.starts[b + 1] - start;
        position = steps.past[b];
        replay = position == 0 ? 0 : steps.replays[b];
        kept = replay < KEPT_FACTORS && replay + n_rows <= window ? replay : 0;
        n_final = max(0, n_rows - window);
    }
};

__device__ __forceinline__ float silu_of(float x) { return x / (1.0f + expf(-x)); }
__device__ __forceinline__ float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float softplus_of(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// Rows [b | c | x] to b * x. grid (blocks of 256 channels, rows)
extern "C" __global__ void __launch_bounds__(256)
    recurrence_products(const float* rows, int stride, int channels, float* out) {
    let_next_start();
    wait_for_previous();
    int channel = blockIdx.x * 256 + threadIdx.x;
    if (channel >= channels) return;
    const float* row = rows + (size_t)blockIdx.y * stride;
    out[(size_t)blockIdx.y * channels + channel] = row[channel] * row[2 * channels + channel];
}

// The convolution of each channel over rows of the step, and over the ring before them. With a bias, silu follows; with
// gates, a product with them. weights: (channels, kernel), the last one meets the newest row. Grid as above.
extern "C" __global__ void __launch_bounds__(256)
    recurrence_convolve(const float* inputs, int stride, int column, const float* ring, int ring_rows, int channels,
                        const float* weights, int kernel, const float* bias, int is_activated, const float* gates,
                        int gate_stride, int gate_column, const int* starts, const int* slots, const int* past,
                        int n_sequences, float* out) {
    let_next_start();
    wait_for_previous();
    const int row = blockIdx.y, channel = blockIdx.x * 256 + threadIdx.x;
    const int b = sequence_of_row(row, starts, n_sequences);
    if (b >= n_sequences || channel >= channels) return;
    const int t = row - starts[b], position = past[b] + t;
    const float* kept = ring + (size_t)slots[b] * ring_rows * channels + channel;
    float sum = bias ? bias[channel] : 0.0f;
    for (int j = 0; j < kernel; j++) {
        int back = kernel - 1 - j;
        if (back > position) continue;  // before the text
        float x = back <= t ? inputs[(size_t)(row - back) * stride + column + channel]
                            : kept[(size_t)((position - back) % ring_rows) * channels];
        sum = fmaf(weights[channel * kernel + j], x, sum);
    }
    if (is_activated) sum = silu_of(sum);
    if (gates) sum *= gates[(size_t)row * gate_stride + gate_column + channel];
    out[(size_t)row * channels + channel] = sum;
}

struct StateLayer {
    float *states, *keys, *updates, *decays;
    const int* headers;
    int n_key_heads, n_value_heads, key_dim, value_dim, window;
};

struct ScanRows {
    const float* made;    // (T, channels), what the convolution made
    const float* scales;  // (T, scale_stride): dt, or beta, of each value head, from scale_column on
    int scale_stride, scale_column;
    const float* waits;  // (T, value heads * key_dim): of the delta rule's decays
    const float *dt_bias, *a, *d;
    float eps;
};

// S becomes g S + u k^T: the one place where a row of a state moves on, so that a replay leaves the same bits.
__device__ __forceinline__ void advance(float s[MOST_PER_LANE], const float g[MOST_PER_LANE], float u,
                                        const float k[MOST_PER_LANE]) {
#pragma unroll
    for (int i = 0; i < MOST_PER_LANE; i++) {
        s[i] *= g[i];
        s[i] = fmaf(u, k[i], s[i]);
    }
}

__device__ __forceinline__ float dot(const float x[MOST_PER_LANE], const float y[MOST_PER_LANE]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_PER_LANE; i++) sum = fmaf(x[i], y[i], sum);
    return warp_sum(sum);
}

// This lane's part of a row of `n` values; 0 behind its end.
__device__ __forceinline__ void load_lane(float part[MOST_PER_LANE], const float* row, int n) {
#pragma unroll
    for (int i = 0; i < MOST_PER_LANE; i++) {
        int c = 32 * i + (threadIdx.x & 31);
        part[i] = c < n ? row[c] : 0.0f;
    }
}

__device__ __forceinline__ void store_lane(const float part[MOST_PER_LANE], float* row, int n) {
#pragma unroll
    for (int i = 0; i < MOST_PER_LANE; i++) {
        int c = 32 * i + (threadIdx.x & 31);
        if (c < n) row[c] = part[i];
    }
}

__device__ __forceinline__ void scale_lane(float part[MOST_PER_LANE], float by) {
#pragma unroll
    for (int i = 0; i < MOST_PER_LANE; i++) part[i] *= by;
}

// What a warp works on: row `v` of the state of a value head.
struct StateRow {
    int value_head, key_head, v, lane;
};

// The pending factors that hold.
template <bool IS_DELTA>
__device__ __forceinline__ void replay_factors(float s[MOST_PER_LANE], const StateLayer& layer, const StateRow& at, size_t first,
                                               int n) {
    for (int i = 0; i < n; i++) {
        size_t of_head = (first + i) * layer.n_value_heads + at.value_head;
        float key[MOST_PER_LANE], decay[MOST_PER_LANE];
        load_lane(key, layer.keys + ((first + i) * layer.n_key_heads + at.key_head) * layer.key_dim, layer.key_dim);
        if (IS_DELTA) {
            load_lane(decay, layer.decays + of_head * layer.key_dim, layer.key_dim);
        } else {
            float same = layer.decays[of_head];
#pragma unroll
            for (int j = 0; j < MOST_PER_LANE; j++) decay[j] = same;
        }
        advance(s, decay, layer.updates[of_head * layer.value_dim + at.v], key);
    }
}

template <bool IS_DELTA>
__device__ __forceinline__ void keep_factor(const StateLayer& layer, const StateRow& at, size_t factor, float update,
                                            const float decay[MOST_PER_LANE], const float key[MOST_PER_LANE]) {
    size_t of_head = factor * layer.n_value_heads + at.value_head;
    if (at.lane == 0) layer.updates[of_head * layer.value_dim + at.v] = update;
    if (at.v != 0) return;
    if (IS_DELTA) {
        store_lane(decay, layer.decays + of_head * layer.key_dim, layer.key_dim);
    } else if (at.lane == 0) {
        layer.decays[of_head] = decay[0];
    }
    int heads_per_key = layer.n_value_heads / layer.n_key_heads;
    if (at.value_head % heads_per_key) return;
    store_lane(key, layer.keys + (factor * layer.n_key_heads + at.key_head) * layer.key_dim, layer.key_dim);
}

// Decay, update, key of a row, and what is read of the state with its query; the state moves on.
template <bool IS_DELTA>
__device__ __forceinline__ float scan_row(float s[MOST_PER_LANE], const StateLayer& layer, const ScanRows& in, const StateRow& at,
                                          int row, float decay[MOST_PER_LANE], float key[MOST_PER_LANE], float* update) {
    int key_width = layer.n_key_heads * layer.key_dim, value_width = layer.n_value_heads * layer.value_dim;
    const float* made = in.made + (size_t)row * (2 * key_width + value_width);
    float scale = in.scales[(size_t)row * in.scale_stride + in.scale_column + at.value_head];
    float query[MOST_PER_LANE], a = in.a[at.value_head];
    int of_head = at.key_head * layer.key_dim, own = at.value_head * layer.value_dim + at.v;
    if (!IS_DELTA) {  // [x | B | C]
        load_lane(key, made + value_width + of_head, layer.key_dim);
        load_lane(query, made + value_width + key_width + of_head, layer.key_dim);
        float wait = softplus_of(scale + in.dt_bias[at.value_head]), same = expf(a * wait), x = made[own];
#pragma unroll
        for (int i = 0; i < MOST_PER_LANE; i++) decay[i] = same;
        *update = wait * x;
        advance(s, decay, *update, key);
        return fmaf(in.d[at.value_head], x, dot(s, query));
    }
    // [q | k | v]
    load_lane(query, made + of_head, layer.key_dim);
    load_lane(key, made + key_width + of_head, layer.key_dim);
    scale_lane(query, rsqrtf(dot(query, query) + in.eps) * rsqrtf((float)layer.key_dim));
    scale_lane(key, rsqrtf(dot(key, key) + in.eps));
    int first = at.value_head * layer.key_dim;
    float decayed[MOST_PER_LANE];
    load_lane(decay, in.waits + (size_t)row * layer.n_value_heads * layer.key_dim + first, layer.key_dim);
#pragma unroll
    for (int i = 0; i < MOST_PER_LANE; i++) {
        int c = 32 * i + at.lane;
        decay[i] = c < layer.key_dim ? expf(a * softplus_of(decay[i] + in.dt_bias[first + c])) : 0.0f;
        decayed[i] = decay[i] * key[i];
    }
    *update = sigmoid_of(scale) * (made[2 * key_width + own] - dot(s, decayed));
    advance(s, decay, *update, key);
    return dot(s, query);
}

// grid (value heads * ceil(value_dim / SCAN_WARPS), sequences)
template <bool IS_DELTA>
__device__ __forceinline__ void scan(const StateLayer& layer, const ScanRows& in, const Steps& steps, float* out) {
    let_next_start();
    wait_for_previous();
    int splits = (layer.value_dim + SCAN_WARPS - 1) / SCAN_WARPS, b = blockIdx.y;
    StateRow at;
    at.value_head = blockIdx.x / splits;
    at.key_head = at.value_head / (layer.n_value_heads / layer.n_key_heads);
    at.v = blockIdx.x % splits * SCAN_WARPS + (threadIdx.x >> 5);
    at.lane = threadIdx.x & 31;
    Part part(steps, b, layer.window);
    if (part.n_rows <= 0 || at.v >= layer.value_dim) return;
    int slot = steps.slots[b], half = layer.headers[2 * slot] & 1;
    float* stored = layer.states +
                    (((size_t)slot * layer.n_value_heads + at.value_head) * layer.value_dim + at.v) * layer.key_dim;
    float s[MOST_PER_LANE] = {};
    if (part.position > 0) load_lane(s, stored, layer.key_dim);
    replay_factors<IS_DELTA>(s, layer, at, ((size_t)slot * 2 + half) * layer.window, part.replay);
    bool changed = part.replay > 0 || part.position == 0;
    if (changed && part.kept == 0 && part.n_final == 0) store_lane(s, stored, layer.key_dim);
    size_t to = ((size_t)slot * 2 + (part.kept ? half : 1 - half)) * layer.window + part.kept;
    for (int t = 0; t < part.n_rows; t++) {
        float decay[MOST_PER_LANE], key[MOST_PER_LANE], update;
        float read = scan_row<IS_DELTA>(s, layer, in, at, part.start + t, decay, key, &update);
        size_t of_head = (size_t)(part.start + t) * layer.n_value_heads + at.value_head;
        if (at.lane == 0) out[of_head * layer.value_dim + at.v] = read;
        if (t >= part.n_final) keep_factor<IS_DELTA>(layer, at, to + t - part.n_final, update, decay, key);
        if (t + 1 == part.n_final) store_lane(s, stored, layer.key_dim);
    }
}

#define SCAN(name, is_delta)                                                                                           \
    extern "C" __global__ void __launch_bounds__(32 * SCAN_WARPS)                                                      \
        name(float* states, float* keys, float* updates, float* decays, const int* headers, int n_key_heads,           \
             int n_value_heads, int key_dim, int value_dim, int window, const float* made, const float* scales,        \
             int scale_stride, int scale_column, const float* waits, const float* dt_bias, const float* a,             \
             const float* d, float eps, const int* starts, const int* slots, const int* past, const int* replays,      \
             float* out) {                                                                                             \
        StateLayer layer = {states, keys, updates, decays, headers, n_key_heads, n_value_heads, key_dim, value_dim, window}; \
        ScanRows in = {made, scales, scale_stride, scale_column, waits, dt_bias, a, d, eps};                           \
        Steps steps = {starts, slots, past, replays};                                                                  \
        scan<is_delta>(layer, in, steps, out);                                                                         \
    }
SCAN(recurrence_scan, false)
SCAN(recurrence_scan_delta, true)

// Slices of rows, in place: gated, then normed where there is a norm (Mamba-2), or normed, then gated (delta). A slice has
// weights of its own, or all have the same. grid (slices, rows)
extern "C" __global__ void __launch_bounds__(FINISH_THREADS)
    recurrence_finish(float* rows, int slice, const float* gates, int gate_stride, const float* norm, int is_shared, float eps,
                      int is_delta) {
    __shared__ float sums[FINISH_THREADS / 32];
    let_next_start();
    wait_for_previous();
    int first = blockIdx.x * slice, width = gridDim.x * slice;
    float* own = rows + (size_t)blockIdx.y * width + first;
    const float* gate = gates + (size_t)blockIdx.y * gate_stride + first;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < slice; i += FINISH_THREADS) {
        float y = is_delta ? own[i] : own[i] * silu_of(gate[i]);
        squares = fmaf(y, y, squares);
    }
    squares = warp_sum(squares);
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = squares;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < FINISH_THREADS / 32; i++) total += sums[i];
    float factor = norm ? rsqrtf(total / (float)slice + eps) : 1.0f;
    for (int i = threadIdx.x; i < slice; i += FINISH_THREADS) {
        float weight = norm ? factor * norm[is_shared ? i : first + i] : 1.0f;
        own[i] *= weight * (is_delta ? sigmoid_of(gate[i]) : silu_of(gate[i]));
    }
}

// The step's inputs into the ring; of a sequence with more of them than the ring has, the last ones. Then what is pending
// begins where the step says. grid (rows, sequences), as in gdn_rows.cu
extern "C" __global__ void __launch_bounds__(256)
    recurrence_keep(float* ring, const float* inputs, int stride, int column, int channels, int ring_rows, int window,
                    int* headers, const int* starts, const int* slots, const int* past, const int* replays) {
    let_next_start();
    wait_for_previous();
    int b = blockIdx.y, slot = slots[b];
    Steps steps = {starts, slots, past, replays};
    Part part(steps, b, window);
    if (part.n_rows <= 0) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        int half = headers[2 * slot] & 1;
        headers[2 * slot] = part.kept ? half : 1 - half;
        headers[2 * slot + 1] = part.position - part.kept + part.n_final;
    }
    int t = max(0, part.n_rows - ring_rows) + blockIdx.x;
    if (t >= part.n_rows) return;
    const float* from = inputs + (size_t)(part.start + t) * stride + column;
    float* to = ring + ((size_t)slot * ring_rows + (part.position + t) % ring_rows) * channels;
    for (int i = threadIdx.x; i < channels; i += 256) to[i] = from[i];
}
