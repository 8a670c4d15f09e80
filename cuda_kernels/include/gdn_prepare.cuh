// What `gdn_step` does with rows before it reads any state: fetching, convolution, gates, unit length.
#pragma once
#include "gdn_parts.cuh"

// The state, and the few factors that are usually pending, into the second-level cache while the kernel before this one
// still runs. What it reads for that may be of the step before: then the wrong lines come, and nothing else happens. It
// reads past the first-level cache, which would keep the old numbers.
template <int ROWS>
__device__ __forceinline__ void prefetch(const DeltaLayer& layer, const Place& at, const int* slots, const int* replays) {
    constexpr int LINE = 32, STATE_LINES = Tile<ROWS>::N_ROWS * HEAD_DIM / LINE;
    constexpr int KEY_LINES = (HEAD_DIM + LINE - 1) / LINE;
    int slot = *(const volatile int*)(slots + blockIdx.y);
    const float* state = layer.head_state(slot, at.value_head) + at.first_row * HEAD_DIM;
#pragma unroll 1
    for (int i = threadIdx.x; i < STATE_LINES; i += Tile<ROWS>::THREADS) prefetch_line(state + i * LINE);
    int half = *(const volatile int*)(layer.header + 2 * slot) & 1;
    int replay = min(*(const volatile int*)(replays + blockIdx.y), min(KEPT_FACTORS, layer.window));
    int t = threadIdx.x / (2 * KEY_LINES + 1), line = threadIdx.x % (2 * KEY_LINES + 1);
    if (t >= replay) return;
    size_t factor = layer.factor(slot, half, t);
    const float* wanted = layer.decay(factor, at.value_head);
    if (line < KEY_LINES) {
        wanted = layer.key(factor, at.key_head) + line * LINE;
    } else if (line < 2 * KEY_LINES) {
        wanted = layer.update(factor, at.value_head) + (line - KEY_LINES) * LINE;
    }
    prefetch_line(wanted);
}

// The channel of a column: q and k of the key head, then the block's rows of v.
__device__ __forceinline__ int channel_of(int column, const DeltaLayer& layer, const Place& at) {
    int key_width = layer.n_key_heads * HEAD_DIM;
    if (column < HEAD_DIM) return at.key_head * HEAD_DIM + column;
    if (column < 2 * HEAD_DIM) return key_width + at.key_head * HEAD_DIM + column - HEAD_DIM;
    return 2 * key_width + at.value_head * HEAD_DIM + at.first_row + column - 2 * HEAD_DIM;
}

template <int ROWS>
__device__ __forceinline__ void load_weights(Shared<ROWS>& shared, const DeltaLayer& layer, const Weights& weights,
                                             const Place& at) {
    using T = Tile<ROWS>;
#pragma unroll 1
    for (int column = threadIdx.x; column < Shared<ROWS>::COLUMNS; column += T::THREADS) {
        const float* weight = weights.conv + channel_of(column, layer, at) * CONV_WIDTH;
#pragma unroll
        for (int j = 0; j < CONV_WIDTH; j++) shared.weight[column][j] = weight[j];
    }
    if (threadIdx.x < T::N_ROWS) shared.norm[threadIdx.x] = weights.norm[at.first_row + threadIdx.x];
}

// p mod n for p < 2^31, quickly: the slow part is done when n is known.
struct Modulo {
    int n;
    unsigned per_n;

    __device__ __forceinline__ explicit Modulo(int n) : n(n), per_n(0xffffffffu / (unsigned)n + 1) {}
    __device__ __forceinline__ int of(int p) const {
        int rest = p - (int)__umulhi((unsigned)p, per_n) * n;
        return rest < 0 ? rest + n : rest;
    }
};

// Which pieces of 16 bytes a thread fetches, known before the step is: it has few warps to hide arithmetic behind.
template <int ROWS>
struct Errand {
    static constexpr int PIECES = Shared<ROWS>::COLUMNS / 4, GROUPS = Tile<ROWS>::THREADS / PIECES;
    static constexpr int Z_PIECES = Tile<ROWS>::N_ROWS / 4, Z_GROUPS = Tile<ROWS>::THREADS / Z_PIECES;
    int first, column, channel;  // rows first, first + GROUPS, ... of the inputs
    int z_first, z_column;       // likewise of z
    Modulo ring_rows;

    __device__ __forceinline__ Errand(const DeltaLayer& layer, const Place& at, int n) : ring_rows(n) {
        int thread = forgotten(threadIdx.x);  // what is worked out a second time is not kept from the first
        first = thread / PIECES;
        column = 4 * (thread % PIECES);
        channel = channel_of(column, layer, at);
        z_first = thread / Z_PIECES;
        z_column = 4 * (thread % Z_PIECES);
    }
};

// Begins to fetch the inputs and z of rows chunk ... chunk + n - 1. What is before position 0 is zero.
template <int ROWS>
__device__ __forceinline__ void fetch_rows(Shared<ROWS>& shared, const DeltaLayer& layer, const Inputs& in,
                                           const Errand<ROWS>& own, const Place& at, const Sequence& s, int chunk, int n) {
    using E = Errand<ROWS>;
    int channels = (2 * layer.n_key_heads + layer.n_value_heads) * HEAD_DIM;
    int before = chunk - (CONV_WIDTH - 1), first_position = s.position + before;
    int first_place = own.ring_rows.of(first_position + own.ring_rows.n);  // the ring has more than CONV_WIDTH - 1 rows
    const float* ring = in.ring + (size_t)at.slot * own.ring_rows.n * channels + own.channel;
    const float* rows = in.rows + (size_t)(s.start + before) * in.stride + own.channel;
#pragma unroll 1
    for (int j = own.first; j < n + CONV_WIDTH - 1 && own.first < E::GROUPS; j += E::GROUPS) {
        int place = first_place + j;
        if (place >= own.ring_rows.n) place -= own.ring_rows.n;
        const float* from = in.rows && before + j >= 0 ? rows + (size_t)j * in.stride : ring + (size_t)place * channels;
        float* to = &shared.in[j][own.column];
        if (first_position + j >= 0) {
            cp_async_16(to, from);
        } else {
            *(float4*)to = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
    const float* z = in.gates + (size_t)(s.start + chunk) * in.gates_stride + in.z_column + own.z_column;
    z += at.value_head * HEAD_DIM + at.first_row;
#pragma unroll
    for (int pass = 0; pass < Tile<ROWS>::CHUNK; pass += E::Z_GROUPS) {
        int t = pass + own.z_first;
        if (t < n) cp_async_16(&shared.gate[t][own.z_column], z + (size_t)t * in.gates_stride);
    }
    cp_async_commit();
}

// Without the rare cases of a division: off by two units in the last place at most.
__device__ __forceinline__ float quick_silu(float x) { return __fdividef(x, 1.0f + expf(-x)); }

// Convolution and silu, in place, by the thread whose column it is.
template <int ROWS>
__device__ __forceinline__ void convolve(Shared<ROWS>& shared, int column, int n) {
    float weight[CONV_WIDTH], x[CONV_WIDTH];
#pragma unroll
    for (int j = 0; j < CONV_WIDTH; j++) {
        weight[j] = shared.weight[column][j];
        x[j] = j + 1 < CONV_WIDTH ? shared.in[j][column] : 0.0f;
    }
#pragma unroll 4
    for (int t = 0; t < n; t++) {
        x[CONV_WIDTH - 1] = shared.in[t + CONV_WIDTH - 1][column];
        float sum = x[0] * weight[0];
#pragma unroll
        for (int j = 1; j < CONV_WIDTH; j++) sum = fmaf(x[j], weight[j], sum);
        shared.in[t][column] = quick_silu(sum);
#pragma unroll
        for (int j = 1; j < CONV_WIDTH; j++) x[j - 1] = x[j];
    }
}

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// What comes of rows chunk ... chunk + n - 1 before any state is read; q and k not yet of unit length.
template <int ROWS>
__device__ __forceinline__ void prepare(Shared<ROWS>& shared, const DeltaLayer& layer, const Inputs& in,
                                        const Weights& weights, const Place& at, const Sequence& s, int chunk, int n) {
    using T = Tile<ROWS>;
    int gate_row = (int)threadIdx.x - (T::THREADS - T::CHUNK);  // the last threads have the fewest columns
    bool has_gates = 0 <= gate_row && gate_row < n;
    float beta = 0.0f, alpha = 0.0f;
    if (has_gates) {
        const float* row = in.gates + (size_t)(s.start + chunk + gate_row) * in.gates_stride + in.z_column;
        row += layer.n_value_heads * HEAD_DIM + at.value_head;
        beta = row[0];
        alpha = row[layer.n_value_heads];
    }
    cp_async_wait<1>();  // all but old factors, which were fetched before
    __syncthreads();
#pragma unroll 1
    for (int column = threadIdx.x; column < Shared<ROWS>::COLUMNS; column += T::THREADS) convolve(shared, column, n);
    // threads without a second column begin
    constexpr int FIRST = T::THREADS - Shared<ROWS>::COLUMNS % T::THREADS;
#pragma unroll 2
    for (int i = (threadIdx.x + FIRST) % T::THREADS; i < n * T::N_ROWS; i += T::THREADS) {
        int t = i / T::N_ROWS, row = i % T::N_ROWS;
        shared.gate[t][row] = shared.norm[row] * quick_silu(shared.gate[t][row]);
    }
    if (has_gates) {
        shared.of_row[gate_row].x = expf(weights.a[at.value_head] * softplus(alpha + weights.dt_bias[at.value_head]));
        shared.of_row[gate_row].y = sigmoid(beta);
    }
}

// q and k to unit length, q divided by sqrt(HEAD_DIM) as well; and k . q. A warp takes a row.
template <int ROWS>
__device__ __forceinline__ void normalise(Shared<ROWS>& shared, float eps, int n) {
    constexpr int EACH = (HEAD_DIM + 31) / 32;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll 1
    for (int t = warp; t < n; t += Tile<ROWS>::WARPS) {
        float q[EACH], k[EACH], of_q = 0.0f, of_k = 0.0f, of_both = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int c = 32 * i + lane;
            q[i] = c < HEAD_DIM ? shared.in[t][c] : 0.0f;
            k[i] = c < HEAD_DIM ? shared.in[t][HEAD_DIM + c] : 0.0f;
            of_q = fmaf(q[i], q[i], of_q);
            of_k = fmaf(k[i], k[i], of_k);
            of_both = fmaf(q[i], k[i], of_both);
        }
        of_q = warp_sum(of_q);
        of_k = warp_sum(of_k);
        of_both = warp_sum(of_both);
        float q_factor = rsqrtf(of_q + eps) * rsqrtf((float)HEAD_DIM), k_factor = rsqrtf(of_k + eps);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int c = 32 * i + lane;
            if (c >= HEAD_DIM) break;
            shared.in[t][c] = q[i] * q_factor;
            shared.in[t][HEAD_DIM + c] = k[i] * k_factor;
        }
        if (lane == 0) shared.of_row[t].z = of_both * (q_factor * k_factor);
    }
}
