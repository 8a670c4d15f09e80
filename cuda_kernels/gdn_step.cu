// One step of a layer's Gated DeltaNet, from the rows of its input projection to packed rows for its output projection:
// convolution, gates, factors that are pending, the recurrence, gated norm. Stands for `delta_rule` of the reference.
//   S_t = g_t S_{t-1} + u_t k_t^T,   u_t = b_t (v_t - g_t S_{t-1} k_t),   o_t = S_t q_t = g_t S_{t-1} q_t + u_t (k_t . q_t)
// A block takes some rows of a value head's state (a Tile) through all rows of a sequence; grid (heads x splits, sequences).
// Blocks of 256 neighbouring outputs meet at a counter: the last one norms and packs them. HEAD_DIM and CONV_WIDTH
// are defined by the launcher.
#include "gdn.cuh"
#include "rows.cuh"

#define KEPT_FACTORS 4  // as in `n_kept`
#define GROUP_HEADS (PACK_BLOCK / HEAD_DIM)

struct Inputs {
    const float* rows;   // [T][stride], or null: they are in the ring already
    const float* ring;   // [slots][ring_rows][channels], row p mod ring_rows is of position p
    const float* gates;  // [T][gates_stride], where z | beta | alpha begin at z_column
    int stride, gates_stride, z_column, ring_rows;
};
struct Weights {
    const float* conv;     // [channels][CONV_WIDTH], the last one meets the newest row
    const float* dt_bias;  // [n_value_heads]
    const float* a;        // [n_value_heads]
    const float* norm;     // [HEAD_DIM]
    float eps;
};
struct Outputs {
    float* raw;     // [T][2][value width]: o, and o times its gate and norm weight
    int* arrivals;  // [chunks][groups], then [sequences]: zero before and after
    PackedRows packed;
    float* rows;       // the same unpacked, any of these null
    uint16_t* halves;  // bfloat16
};

// A sequence's part of the step.
struct Sequence {
    int start, n_rows;  // of the step
    int position, replay;
    int kept;     // factors that stay
    int n_final;  // rows that are final when the step ends
    int to_half;  // of new factors
};

template <int ROWS>
struct alignas(16) Shared {
    static constexpr int COLUMNS = 2 * HEAD_DIM + Tile<ROWS>::N_ROWS;  // channels of q, k and the block's rows of v
    // First inputs: those of row t and the rows before it are in[t] ... in[t + CONV_WIDTH - 1]. What is made of them takes
    // the place of the oldest: q, k, v of row t are in[t].
    float in[Tile<ROWS>::CHUNK + CONV_WIDTH - 1][COLUMNS];
    float gate[Tile<ROWS>::CHUNK][Tile<ROWS>::N_ROWS];  // z, then norm weight * silu(z)
    float weight[COLUMNS][CONV_WIDTH];                  // of the convolution
    float norm[Tile<ROWS>::N_ROWS];
    Factors<ROWS> old;
    float4 of_row[Tile<ROWS>::CHUNK];  // decay, beta, k . q
    int is_last;
};

__device__ __forceinline__ Place find_place(const DeltaLayer& layer, int tiled, int splits, int n_rows) {
    Place at;
    at.value_head = blockIdx.x / splits;
    at.key_head = tiled ? at.value_head % layer.n_key_heads : at.value_head / (layer.n_value_heads / layer.n_key_heads);
    at.first_row = (blockIdx.x % splits) * n_rows;
    at.slot = at.half = 0;
    return at;
}

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

__device__ __forceinline__ Sequence find_sequence(const DeltaLayer& layer, const int* starts, const int* past,
                                                  const int* replays) {
    Sequence s;
    int b = blockIdx.y;
    s.start = starts[b];
    s.n_rows = starts[b + 1] - s.start;
    s.position = past[b];
    s.replay = s.position == 0 ? 0 : replays[b];
    s.kept = s.replay < KEPT_FACTORS && s.replay + s.n_rows <= layer.window ? s.replay : 0;
    s.n_final = max(0, s.n_rows - layer.window);
    s.to_half = 0;
    return s;
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

// Which pieces of 16 bytes a thread asks for, known before the step is: it has few warps to hide arithmetic behind.
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

// Asks for the inputs and z of rows chunk ... chunk + n - 1. What is before position 0 is zero.
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

// What comes of rows chunk ... chunk + n - 1 before any state is looked at; q and k not yet of unit length.
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
    cp_async_wait<1>();  // all but old factors, which were asked for before
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

// Sums of N values over lanes that differ in the bits below 2 * MASK. Where there are several values, half of the lanes
// give one half of them away and keep the other: so each lane ends with one value, after N - 1 + log2(LANES / N) shuffles.
// Partners are the same whatever N is, and so are the bits of a sum.
template <int N, int MASK>
struct LaneSum {
    static __device__ __forceinline__ float of(float v[N]) {
        if constexpr (N == 1) {
            float sum[1] = {v[0] + __shfl_xor_sync(ALL_LANES, v[0], MASK)};
            return LaneSum<1, MASK / 2>::of(sum);
        } else {
            bool upper = threadIdx.x & MASK;
            float kept[N / 2];
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                float given = upper ? v[i] : v[i + N / 2];
                kept[i] = (upper ? v[i + N / 2] : v[i]) + __shfl_xor_sync(ALL_LANES, given, MASK);
            }
            return LaneSum<N / 2, MASK / 2>::of(kept);
        }
    }
};
template <>
struct LaneSum<1, 0> {
    static __device__ __forceinline__ float of(float v[1]) { return v[0]; }
};

// This lane's part of S x, for its rows; two sums, added at the end, so that no chain is long.
template <int ROWS>
__device__ __forceinline__ void read_state(const float s[ROWS][PER_LANE], const float x[PER_LANE], float sums[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float even = 0.0f, odd = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i += 4) {
            even = fmaf(s[r][i], x[i], even);
            odd = fmaf(s[r][i + 2], x[i + 2], odd);
            even = fmaf(s[r][i + 1], x[i + 1], even);
            odd = fmaf(s[r][i + 3], x[i + 3], odd);
        }
        sums[r] = even + odd;
    }
}

// Rows chunk ... chunk + n - 1, one after the other. Half of the lanes of a state row end up with S k of one of the
// thread's rows each, and make u; the other half with S q, and make the output o. Where several lanes end with the same
// sum, one of them writes u or o, and the next one o times its gate: everything in one store.
template <int ROWS>
__device__ __forceinline__ void recur(float s[ROWS][PER_LANE], const Shared<ROWS>& shared, const DeltaLayer& layer,
                                      const Place& at, const Sequence& seq, float* raw, int chunk, int n) {
    constexpr int HALF = LANES / 2, SAME = HALF / ROWS;  // lanes that end with the same sum
    constexpr bool AHEAD = ROWS < 4;  // there are registers for the next row's q beside this one's numbers
    int lane = threadIdx.x % LANES, mine = lane % HALF / SAME;
    int own = own_row<ROWS>(mine), value_width = layer.n_value_heads * HEAD_DIM;
    int column = at.value_head * HEAD_DIM + at.first_row + own;
    bool makes_update = lane < HALF, is_gated = SAME > 1 && !makes_update && lane % SAME == 1;
    bool writes = lane % SAME == 0 || is_gated;
    float* to = raw + (size_t)(seq.start + chunk) * 2 * value_width + column;
    if (is_gated) to += value_width;
    if (makes_update) {
        int row = chunk - seq.n_final;  // of those that may be rejected
        to = layer.updates + (int64_t)layer.factor(at.slot, seq.to_half, seq.kept) * value_width + column;
        to += (int64_t)row * value_width;
    }
    int stride = makes_update ? value_width : 2 * value_width, skipped = makes_update ? seq.n_final - chunk : 0;
    const float* in = shared.in[0];
    const float* gates = &shared.gate[0][own];
    float q[PER_LANE], k[PER_LANE];
    if (AHEAD) load_part(q, in);
    load_part(k, in + HEAD_DIM);
#pragma unroll 1
    for (int t = 0; t < n; t++) {
        if (!AHEAD) load_part(q, in);
        float sums[2 * ROWS], u[ROWS];
        float4 of_row = shared.of_row[t];  // decay, beta, k . q
        float value = in[2 * HEAD_DIM + own], gate = *gates;
        read_state<ROWS>(s, q, sums + ROWS);
        read_state<ROWS>(s, k, sums);
        in += Shared<ROWS>::COLUMNS;
        gates += Tile<ROWS>::N_ROWS;
        if (AHEAD) load_part(q, in);  // behind the last row nobody looks at it
        decay_state<ROWS>(s, of_row.x);
        float sum = LaneSum<2 * ROWS, HALF>::of(sums);
        float update = of_row.y * fmaf(-of_row.x, sum, value);
#pragma unroll
        for (int r = 0; r < ROWS; r++) u[r] = __shfl_sync(ALL_LANES, update, r * SAME, LANES);
        float of_mine = ROWS == 1 ? u[0] : __shfl_xor_sync(ALL_LANES, update, HALF);
        float o = fmaf(of_mine, of_row.z, of_row.x * sum);
        float made = makes_update ? update : o;
        if (is_gated) made *= gate;
        if (chunk + t + 1 < seq.n_rows) add_to_state<ROWS>(s, u, k);
        load_part(k, in + HEAD_DIM);
        if (writes && t >= skipped) *to = made;
        if (SAME == 1 && !makes_update) to[value_width] = made * gate;
        to += stride;
        if (chunk + t + 1 == seq.n_final) {
            store_state<ROWS>(s, layer.head_state(at.slot, at.value_head) + at.first_row * HEAD_DIM);
        }
    }
}

// Keys and decays of rows that may be rejected: of each head, one block keeps them.
template <int ROWS>
__device__ __forceinline__ void keep_factors(const Shared<ROWS>& shared, const DeltaLayer& layer, const Place& at,
                                             const Sequence& s, int tiled, int chunk, int n) {
    if (at.first_row != 0) return;
    int heads_per_key = layer.n_value_heads / layer.n_key_heads, skipped = max(0, s.n_final - chunk);
    bool is_first = tiled ? at.value_head < layer.n_key_heads : at.value_head % heads_per_key == 0;
    size_t factor = layer.factor(at.slot, s.to_half, s.kept + chunk - s.n_final + skipped);
#pragma unroll 1
    for (int t = skipped + threadIdx.x; t < n; t += Tile<ROWS>::THREADS) {
        *layer.decay(factor + t - skipped, at.value_head) = shared.of_row[t].x;
    }
    if (!is_first) return;
#pragma unroll 1
    for (int i = skipped * HEAD_DIM + threadIdx.x; i < n * HEAD_DIM; i += Tile<ROWS>::THREADS) {
        int t = i / HEAD_DIM, c = i % HEAD_DIM;
        layer.key(factor + t - skipped, at.key_head)[c] = shared.in[t][HEAD_DIM + c];
    }
}

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
