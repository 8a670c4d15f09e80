// Gated DeltaNet: where a layer's state lies (gdn_layout.py), and the one way in which a state moves on:
//   S = fmaf(u, k, g * S)
// in the step that makes a factor (k, u, g) and wherever it is applied again, so that both leave the same bits.
// HEAD_DIM is defined at compilation.
#pragma once
#include "base.cuh"

#define LANES (HEAD_DIM >= 32 ? 8 : 4)  // that share a row of the state
#define ROWS_AT_ONCE (32 / LANES)       // of a warp
#define PER_LANE (HEAD_DIM / LANES)     // values of a row in one lane, as vectors of 4 that interleave with the other lanes'
#define VECTORS (PER_LANE / 4)

// One layer's arrays, float32:
struct DeltaLayer {
    float* state;    // [slots][n_value_heads][HEAD_DIM v][HEAD_DIM k], as of position `base`
    float* keys;     // [slots][2][window][n_key_heads][HEAD_DIM]     factor i is that of position base + i
    float* updates;  // [slots][2][window][n_value_heads][HEAD_DIM]
    float* decays;   // [slots][2][window][n_value_heads]
    int* header;     // [slots][2]: the half with the pending factors, `base`
    int n_key_heads, n_value_heads, window;

    __device__ __forceinline__ size_t factor(int slot, int half, int i) const {
        return ((size_t)slot * 2 + half) * window + i;
    }
    __device__ __forceinline__ float* key(size_t factor, int key_head) const {
        return keys + (factor * n_key_heads + key_head) * HEAD_DIM;
    }
    __device__ __forceinline__ float* update(size_t factor, int value_head) const {
        return updates + (factor * n_value_heads + value_head) * HEAD_DIM;
    }
    __device__ __forceinline__ float* decay(size_t factor, int value_head) const {
        return decays + factor * n_value_heads + value_head;
    }
    __device__ __forceinline__ float* head_state(int slot, int value_head) const {
        return state + ((size_t)slot * n_value_heads + value_head) * HEAD_DIM * HEAD_DIM;
    }
};

// How a block's threads share rows of a head's state: each thread has a part of ROWS rows.
template <int ROWS>
struct Tile {
    static constexpr int WANTED = HEAD_DIM * LANES / ROWS;
    static constexpr int THREADS = WANTED < 256 ? WANTED : 256;
    static constexpr int WARPS = THREADS / 32;
    static constexpr int N_ROWS = THREADS / LANES * ROWS;
    static constexpr int SPLITS = HEAD_DIM / N_ROWS;  // blocks for a head
    static constexpr int CHUNK = ROWS == 4 ? 8 : 16;  // rows of a step, or factors, that are in shared memory at a time
};

// Row r of this thread, among those of the block.
template <int ROWS>
__device__ __forceinline__ int own_row(int r) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    return (warp * ROWS + r) * ROWS_AT_ONCE + lane / LANES;
}

// This lane's part of HEAD_DIM values, and where it begins.
__device__ __forceinline__ int part_of_row(int vector) { return 4 * (vector * LANES + threadIdx.x % LANES); }

__device__ __forceinline__ void load_part(float part[PER_LANE], const float* row) {
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        float4 x = *(const float4*)(row + part_of_row(i));
        part[4 * i] = x.x;
        part[4 * i + 1] = x.y;
        part[4 * i + 2] = x.z;
        part[4 * i + 3] = x.w;
    }
}

// `rows`: the block's first row
template <int ROWS>
__device__ __forceinline__ void load_state(float s[ROWS][PER_LANE], const float* rows) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) load_part(s[r], rows + own_row<ROWS>(r) * HEAD_DIM);
}
template <int ROWS>
__device__ __forceinline__ void store_state(const float s[ROWS][PER_LANE], float* rows) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float* row = rows + own_row<ROWS>(r) * HEAD_DIM;
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            *(float4*)(row + part_of_row(i)) =
                make_float4(s[r][4 * i], s[r][4 * i + 1], s[r][4 * i + 2], s[r][4 * i + 3]);
        }
    }
}

// The two roundings of every update: g * S, then u * k added to it.
template <int ROWS>
__device__ __forceinline__ void decay_state(float s[ROWS][PER_LANE], float decay) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) s[r][i] *= decay;
}
template <int ROWS>
__device__ __forceinline__ void add_to_state(float s[ROWS][PER_LANE], const float update[ROWS],
                                             const float key[PER_LANE]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) s[r][i] = fmaf(update[r], key[i], s[r][i]);
}

// Factors that are applied again, on their way through shared memory.
template <int ROWS>
struct Factors {
    float keys[Tile<ROWS>::CHUNK][HEAD_DIM];
    float updates[Tile<ROWS>::CHUNK][Tile<ROWS>::N_ROWS];  // of the block's rows
    float decays[Tile<ROWS>::CHUNK];
};

// What a block works on.
struct Place {
    int slot, half;  // of the factors
    int key_head, value_head, first_row;
};

// Begins to fetch factors first ... first + n - 1; they are there after cp_async_wait<0> and a barrier.
template <int ROWS>
__device__ __forceinline__ void fetch_factors(Factors<ROWS>& to, const DeltaLayer& layer, const Place& at, int first,
                                              int n) {
    constexpr int KEY_PIECES = HEAD_DIM / 4, PIECES = KEY_PIECES + Tile<ROWS>::N_ROWS / 4;
    constexpr int GROUPS = Tile<ROWS>::THREADS / PIECES;
    int group = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    size_t factor = layer.factor(at.slot, at.half, first);
    bool is_key = piece < KEY_PIECES;
    int column = 4 * (is_key ? piece : piece - KEY_PIECES), target_stride = is_key ? HEAD_DIM : Tile<ROWS>::N_ROWS;
    int stride = (is_key ? layer.n_key_heads : layer.n_value_heads) * HEAD_DIM;
    const float* from = is_key ? layer.key(factor, at.key_head) : layer.update(factor, at.value_head) + at.first_row;
    float* target = is_key ? to.keys[0] : to.updates[0];
#pragma unroll 1
    for (int t = group; t < n && group < GROUPS; t += GROUPS) {
        cp_async_16(target + t * target_stride + column, from + (size_t)t * stride + column);
    }
    cp_async_commit();
    if (threadIdx.x < n) to.decays[threadIdx.x] = *layer.decay(factor + threadIdx.x, at.value_head);
}

template <int ROWS>
__device__ __forceinline__ void apply_factors(float s[ROWS][PER_LANE], const Factors<ROWS>& from, int n) {
#pragma unroll 1
    for (int t = 0; t < n; t++) {
        float key[PER_LANE], update[ROWS];
        load_part(key, from.keys[t]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) update[r] = from.updates[t][own_row<ROWS>(r)];
        decay_state<ROWS>(s, from.decays[t]);
        add_to_state<ROWS>(s, update, key);
    }
}

// Factors 0 ... n - 1, of which the first CHUNK have been fetched.
template <int ROWS>
__device__ __forceinline__ void replay(float s[ROWS][PER_LANE], Factors<ROWS>& through, const DeltaLayer& layer,
                                       const Place& at, int n) {
    constexpr int CHUNK = Tile<ROWS>::CHUNK;
    for (int done = 0; done < n; done += CHUNK) {
        if (done) {
            __syncthreads();  // other warps may still apply the last ones
            fetch_factors<ROWS>(through, layer, at, done, min(CHUNK, n - done));
            cp_async_wait<0>();
            __syncthreads();
        }
        apply_factors<ROWS>(s, through, min(CHUNK, n - done));
    }
}
