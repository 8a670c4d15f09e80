// A sequence's recurrent state as it lies in the slots of all layers, and as one piece of memory (state_layout.py).
#pragma once
#include "base.cuh"

struct SnapshotSizes {
    int n_layers, n_slots, channels, key_width, value_width, decay_width, state_values;  // widths: of a row of all heads
    int window, ring_rows, history;                                                     // history: kernel - 1
    int n_pending;

    __device__ __forceinline__ int keys() const { return n_pending * key_width; }
    __device__ __forceinline__ int updates() const { return n_pending * value_width; }
    __device__ __forceinline__ int decays() const { return n_pending * decay_width; }
};

// Both ends of a transfer say where a part of a layer lies. Row j of the inputs is that of position
// base - history + j; null if that is before the text began.
struct SlotEnd {
    float *all_states, *all_rings, *all_keys, *all_updates, *all_decays;
    int* headers;
    int slot;

    __device__ __forceinline__ size_t index(const SnapshotSizes& s, int layer) const {
        return (size_t)layer * s.n_slots + slot;
    }
    __device__ __forceinline__ int* header(const SnapshotSizes& s, int layer) const {
        return headers + 2 * index(s, layer);
    }
    __device__ __forceinline__ size_t factors(const SnapshotSizes& s, int layer, int half) const {
        return (2 * index(s, layer) + half) * s.window;
    }
    __device__ __forceinline__ float* state(const SnapshotSizes& s, int layer) const {
        return all_states + index(s, layer) * s.state_values;
    }
    __device__ __forceinline__ float* keys(const SnapshotSizes& s, int layer, int half) const {
        return all_keys + factors(s, layer, half) * s.key_width;
    }
    __device__ __forceinline__ float* updates(const SnapshotSizes& s, int layer, int half) const {
        return all_updates + factors(s, layer, half) * s.value_width;
    }
    __device__ __forceinline__ float* decays(const SnapshotSizes& s, int layer, int half) const {
        return all_decays + factors(s, layer, half) * s.decay_width;
    }
    __device__ __forceinline__ float* input(const SnapshotSizes& s, int layer, int base, int j) const {
        int position = base - s.history + j;
        if (position < 0) return nullptr;
        return all_rings + (index(s, layer) * s.ring_rows + position % s.ring_rows) * s.channels;
    }
};

// Words of 4 bytes: base, n_pending, 0, 0; then of all layers: states, histories, keys, updates, inputs, decays.
struct BufferEnd {
    float* words;

    __device__ __forceinline__ int* header() const { return (int*)words; }
    __device__ __forceinline__ float* state(const SnapshotSizes& s, int layer) const {
        return words + 4 + (size_t)layer * s.state_values;
    }
    __device__ __forceinline__ float* history(const SnapshotSizes& s, int layer) const {
        return state(s, s.n_layers) + (size_t)layer * s.history * s.channels;
    }
    __device__ __forceinline__ float* keys(const SnapshotSizes& s, int layer, int) const {
        return history(s, s.n_layers) + (size_t)layer * s.keys();
    }
    __device__ __forceinline__ float* updates(const SnapshotSizes& s, int layer, int) const {
        return keys(s, s.n_layers, 0) + (size_t)layer * s.updates();
    }
    __device__ __forceinline__ float* input(const SnapshotSizes& s, int layer, int, int j) const {
        if (j < s.history) return history(s, layer) + (size_t)j * s.channels;
        return inputs(s, layer) + (size_t)(j - s.history) * s.channels;
    }
    __device__ __forceinline__ float* inputs(const SnapshotSizes& s, int layer) const {
        return updates(s, s.n_layers, 0) + (size_t)layer * s.n_pending * s.channels;
    }
    __device__ __forceinline__ float* decays(const SnapshotSizes& s, int layer, int) const {
        return inputs(s, s.n_layers) + (size_t)layer * s.decays();
    }
};
