// A sequence's recurrent state, all layers in one launch: to one piece of memory, back, and from slot to slot. The stored
// state, the inputs before it, and the first n_pending factors with their inputs.
// Blocks take turns at pieces of 16 KB; the grid depends on the device alone.
#include "copy.cuh"
#include "gdn_snapshot.cuh"

// Piece `piece` of a layer: of its state, else of its inputs row by row, of keys, updates, decays.
template <class To, class From>
__device__ __forceinline__ void transfer_piece(const To& to, const From& from, const SnapshotSizes& s, int layer, int piece,
                                               int half, int base) {
    int n = s.state_values / 4, pieces = copy_pieces(n);
    if (piece < pieces) return copy_piece(to.state(s, layer), from.state(s, layer), n, piece);
    piece -= pieces;
    n = s.channels / 4;
    pieces = copy_pieces(n);
    int row = piece / pieces;
    if (row < s.history + s.n_pending) {
        float* target = to.input(s, layer, base, row);
        return copy_piece(target, from.input(s, layer, base, row), n, piece % pieces);
    }
    piece -= (s.history + s.n_pending) * pieces;
    n = s.keys() / 4;
    pieces = copy_pieces(n);
    if (piece < pieces) return copy_piece(to.keys(s, layer, 0), from.keys(s, layer, half), n, piece);
    piece -= pieces;
    n = s.updates() / 4;
    pieces = copy_pieces(n);
    if (piece < pieces) return copy_piece(to.updates(s, layer, 0), from.updates(s, layer, half), n, piece);
    float* decays = to.decays(s, layer, 0);  // few, and their rows need not lie at 16 bytes
    const float* old_decays = from.decays(s, layer, half);
    for (int i = threadIdx.x; i < s.decays(); i += COPY_THREADS) decays[i] = old_decays[i];
}

__device__ __forceinline__ int pieces_of_layer(const SnapshotSizes& s) {
    return copy_pieces(s.state_values / 4) + (s.history + s.n_pending) * copy_pieces(s.channels / 4) +
           copy_pieces(s.keys() / 4) + copy_pieces(s.updates() / 4) + 1;
}

#define SLOT_ARGUMENTS float *states, float *rings, float *keys, float *updates, float *decays, int *headers
#define SIZE_ARGUMENTS                                                                                                 \
    int n_layers, int n_slots, int channels, int key_width, int value_width, int decay_width, int state_values, int window, \
        int ring_rows, int history, int n_pending
#define SIZES                                                                                                          \
    {n_layers, n_slots, channels, key_width, value_width, decay_width, state_values, window, ring_rows, history, n_pending}

extern "C" __global__ void __launch_bounds__(COPY_THREADS, COPY_BLOCKS)
    gdn_save(SLOT_ARGUMENTS, float* words, int slot, SIZE_ARGUMENTS) {
    SnapshotSizes s = SIZES;
    SlotEnd from = {states, rings, keys, updates, decays, headers, slot};
    BufferEnd to = {words};
    let_next_start();
    wait_for_previous();
    int pieces = pieces_of_layer(s);
    for (int i = blockIdx.x; i < n_layers * pieces; i += gridDim.x) {
        int layer = i / pieces;
        const int* header = from.header(s, layer);
        transfer_piece(to, from, s, layer, i % pieces, header[0] & 1, header[1]);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        const int* header = from.header(s, 0);
        *(int4*)to.header() = make_int4(header[1], n_pending, 0, 0);
    }
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS, COPY_BLOCKS)
    gdn_load(SLOT_ARGUMENTS, const float* words, int slot, SIZE_ARGUMENTS) {
    SnapshotSizes s = SIZES;
    SlotEnd to = {states, rings, keys, updates, decays, headers, slot};
    BufferEnd from = {const_cast<float*>(words)};
    let_next_start();
    wait_for_previous();
    int pieces = pieces_of_layer(s), base = from.header()[0];
    for (int i = blockIdx.x; i < n_layers * pieces; i += gridDim.x) {
        int layer = i / pieces;
        transfer_piece(to, from, s, layer, i % pieces, 0, base);
        if (i % pieces == 0 && threadIdx.x == 0) *(int2*)to.header(s, layer) = make_int2(0, base);
    }
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS, COPY_BLOCKS)
    gdn_copy(SLOT_ARGUMENTS, int source, int target, SIZE_ARGUMENTS) {
    SnapshotSizes s = SIZES;
    SlotEnd from = {states, rings, keys, updates, decays, headers, source};
    SlotEnd to = {states, rings, keys, updates, decays, headers, target};
    let_next_start();
    wait_for_previous();
    int pieces = pieces_of_layer(s);
    for (int i = blockIdx.x; i < n_layers * pieces; i += gridDim.x) {
        int layer = i / pieces;
        const int* header = from.header(s, layer);
        int half = header[0] & 1, base = header[1];
        transfer_piece(to, from, s, layer, i % pieces, half, base);
        if (i % pieces == 0 && threadIdx.x == 0) *(int2*)to.header(s, layer) = make_int2(0, base);
    }
}
