// What the attention kernels share: which row is whose, where cells lie, how a context is split.
#pragma once
#include "base.cuh"

#define LOG2_E 1.44269504088896341f
#define SHORTEST_SPLIT 128
#define SPLIT_DOUBLINGS 4
#define CELL_GROUP 16  // neighbours within a page: its length is a multiple
#define SCALE_BLOCK 32  // elements of a head that share a scale
// Weights and their sums are kept times this, so that a small weight keeps its bits in a half float.
#define WEIGHT_UNIT 16384.0f

// A context is split at fixed cells, for any reader: `per_octave` splits of 128 cells, as many between any power
// of two times that and the next, which are up to 16 times as long, and from there on equal ones.
struct Splits {
    int per_octave;

    __device__ __forceinline__ int doublings(int split) const {
        return max(0, min(SPLIT_DOUBLINGS, split / per_octave - 1));
    }
    __device__ __forceinline__ int length(int split) const { return SHORTEST_SPLIT << doublings(split); }
    __device__ __forceinline__ int start(int split) const {
        return (split - doublings(split) * per_octave) * length(split);
    }
    __device__ __forceinline__ int of_cell(int cell) const {
        int doubled = 0;
        while (doubled < SPLIT_DOUBLINGS && cell / (2 * SHORTEST_SPLIT << doubled) >= per_octave) doubled++;
        return cell / (SHORTEST_SPLIT << doubled) + doubled * per_octave;
    }
};

// Cells of a sequence.
struct Cells {
    int first, end;
};

// Bits of a layer's sight; the others are its window, 0: all cells.
#define SEES_LATER_ROWS (1 << 30)
#define HIDES_FIRST (1 << 29)
#define CHUNKED (1 << 28)  // windows begin at multiples of their size

// What row `row` of the `n_rows` of a sequence sees.
__device__ __forceinline__ Cells seen_from(int past, int row, int n_rows, int sight) {
    const int own = past + row, window = sight & (CHUNKED - 1);
    int first = sight & HIDES_FIRST ? min(own, 1) : 0;
    if (window) first = max(first, sight & CHUNKED ? own - own % window : own + 1 - window);
    return Cells{first, sight & SEES_LATER_ROWS ? past + n_rows : own + 1};
}

// The sequence of a row; n_sequences for rows that only fill up the launch. By all lanes of a warp together.
__device__ __forceinline__ int sequence_of_row(int row, const int* starts, int n_sequences) {
    int sequence = 0;
    for (int first = 0; first < n_sequences; first += 32) {
        int i = first + (threadIdx.x & 31);
        bool is_before = i < n_sequences && starts[i + 1] <= row;
        sequence += __popc(__ballot_sync(ALL_LANES, is_before));
    }
    return sequence;
}

// In units of cells of one key-value head, from the start of the keys or values of a layer.
struct Pages {
    const int* table;  // [sequence][stride]
    int stride;
    int page_len;
    int n_kv_heads;

    __device__ __forceinline__ size_t cell(int sequence, int kv_head, int cell) const {
        size_t page = (size_t)table[(size_t)sequence * stride + cell / page_len];
        return (page * n_kv_heads + kv_head) * page_len + cell % page_len;
    }
};

// The nearest finite half float; NaN stays.
__device__ __forceinline__ float within_half(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }
