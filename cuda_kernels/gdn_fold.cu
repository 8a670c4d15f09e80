// A sequence's recurrent state with its pending factors applied, all layers in one launch: to one piece of memory or to
// another slot, where nothing is pending then. HEAD_DIM is defined by the launcher. Grid (heads, layers).
#include "gdn.cuh"
#include "gdn_snapshot.cuh"

#define FOLD_ROWS (HEAD_DIM / 32 > 1 ? HEAD_DIM / 32 : 1)  // a block has a whole head

// This block's part of the inputs before position `base`: row after row, a range of their channels.
template <class To>
__device__ __forceinline__ void fold_history(const To& to, const SlotEnd& from, const SnapshotSizes& s, int layer, int base) {
    int n = s.channels() / 4, share = (n + gridDim.x - 1) / gridDim.x, first = blockIdx.x * share;
    int end = min(n, first + share);
    for (int j = 0; j < s.history; j++) {
        float4* target = (float4*)to.input(s, layer, base, j);
        const float4* source = (const float4*)from.input(s, layer, base, j);
        if (!target) continue;
        for (int i = first + threadIdx.x; i < end; i += blockDim.x) {
            target[i] = source ? source[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
}

#define FOLD_TILE Tile<FOLD_ROWS>
#define JOIN(a, b) a##_##b
#define NAME(a, b) JOIN(a, b)
// words: where the result goes, unless it is null and slot `target` is meant
extern "C" __global__ void __launch_bounds__(FOLD_TILE::THREADS, 512 / FOLD_TILE::THREADS)
    NAME(gdn_fold, HEAD_DIM)(float* states, float* rings, float* keys, float* updates, float* decays, int* headers,
                             float* words, int source, int target, int tiled, int n_layers, int n_slots,
                             int n_key_heads, int n_value_heads, int window, int ring_rows, int history, int n_pending) {
    using T = FOLD_TILE;
    static_assert(T::SPLITS == 1, "a block has a whole head");
    __shared__ __align__(16) Factors<FOLD_ROWS> shared;
    SnapshotSizes s = {n_layers, n_slots, n_key_heads, n_value_heads, HEAD_DIM, window, ring_rows, history, 0};
    SlotEnd from = {states, rings, keys, updates, decays, headers, source}, slot = from;
    BufferEnd buffer = {words};
    slot.slot = target;
    Place at;
    int layer = blockIdx.y;
    at.value_head = blockIdx.x;
    at.key_head = tiled ? at.value_head % n_key_heads : at.value_head / (n_value_heads / n_key_heads);
    at.first_row = 0;
    at.slot = layer * n_slots + source;  // layers lie one after the other, so this is a slot of the first
    DeltaLayer all = {states, keys, updates, decays, headers, n_key_heads, n_value_heads, window};
    let_next_start();
    wait_for_previous();
    const int* header = from.header(s, layer);
    at.half = header[0] & 1;
    int base = header[1] + n_pending;
    int head = at.value_head * HEAD_DIM * HEAD_DIM;
    float state[FOLD_ROWS][PER_LANE];
    load_state<FOLD_ROWS>(state, from.state(s, layer) + head);
    fetch_factors<FOLD_ROWS>(shared, all, at, 0, min(T::CHUNK, n_pending));
    if (words) {
        fold_history(buffer, from, s, layer, base);
    } else {
        fold_history(slot, from, s, layer, base);
    }
    cp_async_wait<0>();
    __syncthreads();
    replay<FOLD_ROWS>(state, shared, all, at, n_pending);
    store_state<FOLD_ROWS>(state, (words ? buffer.state(s, layer) : slot.state(s, layer)) + head);
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    if (!words) {
        *(int2*)slot.header(s, layer) = make_int2(0, base);
    } else if (layer == 0) {
        *(int4*)buffer.header() = make_int4(base, 0, 0, 0);
    }
}
