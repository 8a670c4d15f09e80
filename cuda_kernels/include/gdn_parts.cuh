// What the parts of `gdn_step` share. HEAD_DIM and CONV_WIDTH are defined at compilation.
#pragma once
#include "gdn.cuh"
#include "packed.cuh"

#define KEPT_FACTORS 4  // as in `n_kept`

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
