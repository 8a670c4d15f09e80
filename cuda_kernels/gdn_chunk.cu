// The Gated DeltaNet of a layer over whole chunks of 64 rows of one prompt. Within a chunk, with G_t the product of the
// decays up to row t,
//   (1 + A) U = b (V - G K S^T),   A_ts = b_t G_t / G_s k_t . k_s below the diagonal
//   O = G Q S^T + P U,             P_ts = G_t / G_s q_t . k_s on and below it
//   S = G_64 S + U^T (G_64 / G_s K)
// prepare  (chunks x value heads)   convolution, gates, unit length; A inverted row by row; W = (1 + A)^-1 b G K and
//                                   U0 = (1 + A)^-1 b V; P, G Q and G_64 / G K beside them
// run      (value heads x slices)   chunk after chunk, for some rows of the state: U = U0 - W S^T, O, S
// finish   (rows x value heads)     gated norm, to bfloat16
// Products run on tensor cores: a float is two half floats there, the second times 2048, and of their products the smallest
// is left out: 2^-21 of a value. HEAD_DIM and CONV_WIDTH are defined by the launcher.
#include "gdn.cuh"
#include "mma.cuh"

#define CHUNK 64
#define THREADS 256
#define WARPS 8
#define SLICE (HEAD_DIM < 32 ? HEAD_DIM : 32)  // rows of a state in a block
#define PAD 4
#define LOW_SCALE 2048.0f

struct Halves {
    uint32_t high, low;
};

__device__ __forceinline__ Halves split(float x, float y) {
    x = fminf(fmaxf(x, -65504.0f), 65504.0f);
    y = fminf(fmaxf(y, -65504.0f), 65504.0f);
    uint32_t high = floats_to_half2(x, y);
    float rest_x = x - half_to_float((uint16_t)high), rest_y = y - half_to_float((uint16_t)(high >> 16));
    return Halves{high, floats_to_half2(rest_x * LOW_SCALE, rest_y * LOW_SCALE)};
}

// Element (row, k) of an operand is at[row * row_step + k * k_step].
struct Operand {
    const float* at;
    int row_step, k_step;

    __device__ __forceinline__ Halves pair(int row, int k) const {
        const float* from = at + (size_t)row * row_step + k * k_step;
        return split(from[0], from[k_step]);
    }
};

// By a warp: out[n][i], row g + 8 * (i >> 1), column 8 n + 2 t + (i & 1), = sum over k of a(row, k) * b(column, k).
template <int N>
__device__ __forceinline__ void multiply(float out[N][4], const Operand& a, const Operand& b, int n_k) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    float high[N][4] = {}, low[N][4] = {};
#pragma unroll 1
    for (int k = 2 * t; k < n_k; k += 16) {
        Halves a0 = a.pair(g, k), a1 = a.pair(g + 8, k), a2 = a.pair(g, k + 8), a3 = a.pair(g + 8, k + 8);
        uint32_t a_high[4] = {a0.high, a1.high, a2.high, a3.high}, a_low[4] = {a0.low, a1.low, a2.low, a3.low};
#pragma unroll
        for (int n = 0; n < N; n++) {
            Halves b0 = b.pair(8 * n + g, k), b1 = b.pair(8 * n + g, k + 8);
            uint32_t b_high[2] = {b0.high, b1.high}, b_low[2] = {b0.low, b1.low};
            mma_f16(high[n], a_high, b_high, high[n]);
            mma_f16(low[n], a_high, b_low, low[n]);
            mma_f16(low[n], a_low, b_high, low[n]);
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) out[n][i] = fmaf(low[n][i], 1.0f / LOW_SCALE, high[n][i]);
}

__device__ __forceinline__ int tile_row(int i) { return (threadIdx.x & 31) / 4 + 8 * (i >> 1); }
__device__ __forceinline__ int tile_column(int i) { return 2 * (threadIdx.x & 3) + (i & 1); }

// Rows of q, k and v as they come, and where those before the first are.
struct Rows {
    const float* rows;  // [T][stride]: q | k | v | z | beta | alpha
    const float* ring;  // [ring_rows][channels] of the slot
    int stride, ring_rows, channels, past;

    __device__ __forceinline__ float input(int row, int channel) const {
        if (row >= 0) return rows[(size_t)row * stride + channel];
        int position = past + row;
        return position < 0 ? 0.0f : ring[(size_t)(position % ring_rows) * channels + channel];
    }
};

// What `prepare` leaves of a chunk and value head, one behind the other.
struct Prepared {
    float u0[CHUNK][HEAD_DIM], w[CHUNK][HEAD_DIM];    // of (1 + A)^-1
    float q[CHUNK][HEAD_DIM], k[CHUNK][HEAD_DIM];     // times G, times G_64 / G
    float p[CHUNK][CHUNK];
    float decay, unused[3];  // G_64
};

struct Chunk {
    float q[CHUNK][HEAD_DIM + PAD];  // v, when q is not needed any more
    float k[CHUNK][HEAD_DIM + PAD];
    float inverse[CHUNK][CHUNK + PAD];
    float log_decay[CHUNK];  // sums up to each row
    float beta[CHUNK];
};

// Convolution and silu of 64 rows of one head, times a number of each row; a thread has a channel of some of them.
__device__ __forceinline__ void convolve(float (*to)[HEAD_DIM + PAD], const Rows& in, const float* conv, int first, int channel0,
                                         const float* times = nullptr) {
    int column = threadIdx.x % HEAD_DIM;
    const float* weight = conv + (size_t)(channel0 + column) * CONV_WIDTH;
    for (int t = threadIdx.x / HEAD_DIM; t < CHUNK; t += THREADS / HEAD_DIM) {
        float sum = in.input(first + t - CONV_WIDTH + 1, channel0 + column) * weight[0];
#pragma unroll
        for (int j = 1; j < CONV_WIDTH; j++)
            sum = fmaf(in.input(first + t - CONV_WIDTH + 1 + j, channel0 + column), weight[j], sum);
        to[t][column] = times ? times[t] * silu(sum) : silu(sum);
    }
}

__device__ __forceinline__ void to_unit_length(float (*rows)[HEAD_DIM + PAD], float eps, float times) {
    int lane = threadIdx.x & 31;
    for (int t = threadIdx.x >> 5; t < CHUNK; t += WARPS) {
        float squares = 0.0f;
        for (int c = lane; c < HEAD_DIM; c += 32) squares = fmaf(rows[t][c], rows[t][c], squares);
        float factor = rsqrtf(warp_sum(squares) + eps) * times;
        for (int c = lane; c < HEAD_DIM; c += 32) rows[t][c] *= factor;
    }
}

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// Row t of the inverse from those before it, by all threads: 4 of them share a column.
__device__ __forceinline__ void invert(Chunk& c) {
    int column = threadIdx.x / 4, share = threadIdx.x % 4;
    for (int t = 0; t < CHUNK; t++) {
        float sum = 0.0f;
        for (int s = column + share; s < t; s += 4) sum = fmaf(c.inverse[t][s], c.inverse[s][column], sum);
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        __syncthreads();  // all have read row t, which held A
        if (share == 0) c.inverse[t][column] = column < t ? -sum : column == t ? 1.0f : 0.0f;
        __syncthreads();
    }
}

#define JOIN(a, b) a##_##b
#define NAME(a, b) JOIN(a, b)

extern "C" __global__ void __launch_bounds__(THREADS, 2)
NAME(gdn_chunk_prepare, HEAD_DIM)(const float* rows, int stride, const float* rings, int ring_rows, const float* conv, const float* dt_bias,
                                  const float* a, float eps, const int* slots, const int* past, int n_key_heads,
                                  int n_value_heads, int tiled, Prepared* prepared) {
    DYNAMIC_SHARED(Chunk, shared);
    Chunk& c = *shared;
    let_next_start();
    wait_for_previous();
    const int head = blockIdx.y, first = CHUNK * blockIdx.x, key_width = n_key_heads * HEAD_DIM;
    const int key_head = tiled ? head % n_key_heads : head / (n_value_heads / n_key_heads);
    const int channels = 2 * key_width + n_value_heads * HEAD_DIM;
    const Rows in = {rows, rings + (size_t)slots[0] * ring_rows * channels, stride, ring_rows, channels, past[0]};
    convolve(c.q, in, conv, first, key_head * HEAD_DIM);
    convolve(c.k, in, conv, first, key_width + key_head * HEAD_DIM);
    if (threadIdx.x < CHUNK) {
        const float* gates = rows + (size_t)(first + threadIdx.x) * stride + channels + n_value_heads * HEAD_DIM + head;
        c.beta[threadIdx.x] = sigmoid(gates[0]);
        c.log_decay[threadIdx.x] = a[head] * softplus(gates[n_value_heads] + dt_bias[head]);
    }
    __syncthreads();
    to_unit_length(c.q, eps, rsqrtf((float)HEAD_DIM));
    to_unit_length(c.k, eps, 1.0f);
    if (threadIdx.x == 0)
        for (int t = 1; t < CHUNK; t++) c.log_decay[t] += c.log_decay[t - 1];
    __syncthreads();

    Prepared& out = prepared[(size_t)head * gridDim.x + blockIdx.x];
    const int warp = threadIdx.x >> 5, row0 = 16 * (warp & 3), half = warp >> 2;
    for (int n = 4 * half; n < 4 * half + 4; n++) {
        float of_keys[1][4], of_queries[1][4];
        const Operand columns = {c.k[8 * n], HEAD_DIM + PAD, 1};
        multiply<1>(of_keys, Operand{c.k[row0], HEAD_DIM + PAD, 1}, columns, HEAD_DIM);
        multiply<1>(of_queries, Operand{c.q[row0], HEAD_DIM + PAD, 1}, columns, HEAD_DIM);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int t = row0 + tile_row(i), s = 8 * n + tile_column(i);
            float decay = s <= t ? expf(c.log_decay[t] - c.log_decay[s]) : 0.0f;
            c.inverse[t][s] = s < t ? c.beta[t] * decay * of_keys[0][i] : 0.0f;
            out.p[t][s] = decay * of_queries[0][i];
        }
    }
    __syncthreads();
    invert(c);
    const float whole = c.log_decay[CHUNK - 1];
    for (int i = threadIdx.x; i < CHUNK * HEAD_DIM; i += THREADS) {
        int t = i / HEAD_DIM, column = i % HEAD_DIM;
        float decay = expf(c.log_decay[t]), key = c.k[t][column];
        out.q[t][column] = decay * c.q[t][column];
        out.k[t][column] = expf(whole - c.log_decay[t]) * key;
        c.k[t][column] = c.beta[t] * decay * key;
    }
    if (threadIdx.x == 0) out.decay = expf(whole);
    __syncthreads();
    convolve(c.q, in, conv, first, 2 * key_width + head * HEAD_DIM, c.beta);
    __syncthreads();
    const Operand inverse = {c.inverse[row0], CHUNK + PAD, 1};
    for (int n = half; n < HEAD_DIM / 8; n += 2) {
        float w[1][4], u0[1][4];
        multiply<1>(w, inverse, Operand{&c.k[0][8 * n], 1, HEAD_DIM + PAD}, CHUNK);
        multiply<1>(u0, inverse, Operand{&c.q[0][8 * n], 1, HEAD_DIM + PAD}, CHUNK);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out.w[row0 + tile_row(i)][8 * n + tile_column(i)] = w[0][i];
            out.u0[row0 + tile_row(i)][8 * n + tile_column(i)] = u0[0][i];
        }
    }
}

struct Slice {
    float state[SLICE][HEAD_DIM + PAD];
    float u[CHUNK][SLICE + PAD];
};

// Pending factors, as every replay applies them.
__device__ __forceinline__ void apply_pending(Slice& slice, const DeltaLayer& layer, const Place& at, int n) {
    for (int f = 0; f < n; f++) {
        size_t factor = layer.factor(at.slot, at.half, f);
        const float *key = layer.key(factor, at.key_head), *update = layer.update(factor, at.value_head) + at.first_row;
        float decay = *layer.decay(factor, at.value_head);
        for (int i = threadIdx.x; i < SLICE * HEAD_DIM; i += THREADS) {
            float& x = slice.state[i / HEAD_DIM][i % HEAD_DIM];
            x = fmaf(update[i / HEAD_DIM], key[i % HEAD_DIM], decay * x);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
NAME(gdn_chunk_run, HEAD_DIM)(const Prepared* prepared, int n_chunks, float* states, float* keys, float* updates, float* decays,
                              int* headers, const int* slots, const int* past, const int* replays, int n_key_heads,
                              int n_value_heads, int tiled, int window, float* out) {
    __shared__ __align__(16) Slice slice;
    let_next_start();
    wait_for_previous();
    const DeltaLayer layer = {states, keys, updates, decays, headers, n_key_heads, n_value_heads, window};
    Place at;
    at.slot = slots[0];
    at.half = layer.header[2 * at.slot] & 1;
    at.value_head = blockIdx.x;
    at.key_head = tiled ? at.value_head % n_key_heads : at.value_head / (n_value_heads / n_key_heads);
    at.first_row = SLICE * blockIdx.y;
    float* stored = layer.head_state(at.slot, at.value_head) + at.first_row * HEAD_DIM;
    for (int i = threadIdx.x; i < SLICE * HEAD_DIM; i += THREADS)
        slice.state[i / HEAD_DIM][i % HEAD_DIM] = past[0] ? stored[i] : 0.0f;
    apply_pending(slice, layer, at, past[0] ? replays[0] : 0);
    __syncthreads();

    constexpr int COLUMNS = SLICE >= 32 ? 2 : 1, GROUPS = SLICE / 8 / COLUMNS;  // tiles of 8 rows of the state at a time
    const int warp = threadIdx.x >> 5, row0 = 16 * (warp & 3), group = warp >> 2;
    const int value_width = n_value_heads * HEAD_DIM, column0 = at.value_head * HEAD_DIM + at.first_row;
    static_assert(GROUPS == 2, "two groups of warps share the rows of a slice");
    const int own = 8 * COLUMNS * group;  // first row of the state that this warp's tiles are of
    const Operand state = {slice.state[own], HEAD_DIM + PAD, 1};
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        const Prepared& in = prepared[(size_t)at.value_head * n_chunks + chunk];
        float made[COLUMNS][4], seen[COLUMNS][4];
        multiply<COLUMNS>(made, Operand{in.w[row0], HEAD_DIM, 1}, state, HEAD_DIM);
        multiply<COLUMNS>(seen, Operand{in.q[row0], HEAD_DIM, 1}, state, HEAD_DIM);
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int t = row0 + tile_row(i), row = own + 8 * n + tile_column(i);
                slice.u[t][row] = in.u0[t][at.first_row + row] - made[n][i];
            }
        __syncthreads();  // all updates are there, and all threads are through with the state
        multiply<COLUMNS>(made, Operand{in.p[row0], CHUNK, 1}, Operand{&slice.u[0][own], 1, SLICE + PAD}, CHUNK);
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int t = row0 + tile_row(i), row = own + 8 * n + tile_column(i);
                out[(size_t)(CHUNK * chunk + t) * value_width + column0 + row] = seen[n][i] + made[n][i];
            }
        for (int tile = warp; tile < SLICE / 16 * (HEAD_DIM / 16); tile += WARPS) {
            float added[2][4];
            int row = 16 * (tile % (SLICE / 16)), column = 16 * (tile / (SLICE / 16));
            multiply<2>(added, Operand{&slice.u[0][row], 1, SLICE + PAD}, Operand{&in.k[0][column], 1, HEAD_DIM}, CHUNK);
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float& x = slice.state[row + tile_row(i)][column + 8 * n + tile_column(i)];
                    x = fmaf(in.decay, x, added[n][i]);
                }
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < SLICE * HEAD_DIM; i += THREADS) stored[i] = slice.state[i / HEAD_DIM][i % HEAD_DIM];
}

// grid (rows, value heads by 8), a warp for each head
extern "C" __global__ void __launch_bounds__(THREADS)
NAME(gdn_chunk_finish, HEAD_DIM)(const float* made, const float* rows, int stride, int z_column, const float* norm, float eps,
                                 int n_value_heads, uint16_t* out) {
    let_next_start();
    wait_for_previous();
    int head = WARPS * blockIdx.y + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (head >= n_value_heads) return;
    size_t at = ((size_t)blockIdx.x * n_value_heads + head) * HEAD_DIM;
    const float* z = rows + (size_t)blockIdx.x * stride + z_column + head * HEAD_DIM;
    float squares = 0.0f;
    for (int c = lane; c < HEAD_DIM; c += 32) squares = fmaf(made[at + c], made[at + c], squares);
    float factor = 1.0f / sqrtf(warp_sum(squares) / HEAD_DIM + eps);
    for (int c = lane; c < HEAD_DIM; c += 32) out[at + c] = float_to_bf16(made[at + c] * factor * norm[c] * silu(z[c]));
}
