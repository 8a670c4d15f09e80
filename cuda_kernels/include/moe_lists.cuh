// Which rows an expert has: what the products of a mixture of experts walk along. A bundle is up to `width` columns of one
// expert; one that more rows use has several bundles, one behind the other.
//   n_bundles [2]           those of routed experts; all, with those of the shared one, which comes last and has all rows
//   ids       [all]         whose they are, ascending; the shared expert is number n_expert
//   starts    [all + 1]     where the columns of each begin; the last: their number
//   columns   [n_rows * (n_used + has_shared)]  row << 5 | rank, ascending within an expert
#pragma once
#include "expert_choice.cuh"

#define MOE_RANK_BITS 5

struct MoeLists {
    int *n_bundles, *ids, *starts, *columns;
    int width;
};

#ifdef MOE_BUILDS_LISTS
#define MOE_PIECE 1024    // pairs that lie in shared memory at once
#define MOE_PER_THREAD 2  // experts of a thread of a block of 256

struct ListScratch {
    int piece[MOE_PIECE];
    int counts[MOE_MAX_EXPERTS];  // then where its columns begin
};

// `act(slot, pair)` for each pair of each of this thread's experts, pairs ascending. All threads of a block call it.
template <class Act>
__device__ __forceinline__ void for_own_pairs(const volatile int* experts, int n_pairs, int* piece, Act act) {
    for (int from = 0; from < n_pairs; from += MOE_PIECE) {
        int n = min(MOE_PIECE, n_pairs - from);
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) piece[i] = experts[from + i];
        __syncthreads();
        for (int i = 0; i < n; i++) {
#pragma unroll
            for (int slot = 0; slot < MOE_PER_THREAD; slot++) {
                if (piece[i] == (int)(threadIdx.x + slot * blockDim.x)) act(slot, from + i);
            }
        }
    }
}

// Bundles of one expert, whose `count` columns begin at `start`. Returns how many there are.
__device__ __forceinline__ int write_bundles(const MoeLists& lists, int at, int id, int start, int count) {
    int n = 0;
    for (int from = 0; from < count; from += lists.width, n++) {
        lists.ids[at + n] = id;
        lists.starts[at + n] = start + from;
    }
    return n;
}

// By the first warp: counts to starts, and all bundles.
__device__ __forceinline__ void number_experts(int counts[MOE_MAX_EXPERTS], const Choice& choice, int n_rows,
                                               int n_shared_rows, const MoeLists& lists) {
    int lane = threadIdx.x & 31, slots = (choice.n_expert + 31) / 32, first = lane * slots, columns = 0, bundles = 0;
    for (int i = 0; i < slots; i++) {
        columns += counts[first + i];
        bundles += (counts[first + i] + lists.width - 1) / lists.width;
    }
    int start = columns, at = bundles;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        int s = __shfl_up_sync(ALL_LANES, start, offset), a = __shfl_up_sync(ALL_LANES, at, offset);
        if (lane >= offset) start += s, at += a;
    }
    if (lane == 31) {
        int n_pairs = n_rows * choice.n_used;
        int all = at + write_bundles(lists, at, choice.n_expert, n_pairs, n_shared_rows);
        lists.n_bundles[0] = at;
        lists.n_bundles[1] = all;
        lists.starts[all] = n_pairs + n_shared_rows;
    }
    start -= columns, at -= bundles;
    for (int i = 0; i < slots; i++) {
        int count = counts[first + i];
        counts[first + i] = start;
        at += write_bundles(lists, at, first + i, start, count);
        start += count;
    }
}

// By a block of 256. `experts`: [n_rows][n_used], the experts of a row.
__device__ __forceinline__ void build_lists(const volatile int* experts, int n_rows, bool has_shared, const Choice& choice,
                                            const MoeLists& lists) {
    __shared__ ListScratch scratch;
    int n_pairs = n_rows * choice.n_used, n[MOE_PER_THREAD] = {0, 0};
    for_own_pairs(experts, n_pairs, scratch.piece, [&](int slot, int) { n[slot]++; });
#pragma unroll
    for (int slot = 0; slot < MOE_PER_THREAD; slot++) scratch.counts[threadIdx.x + slot * blockDim.x] = n[slot];
    __syncthreads();
    if (threadIdx.x < 32) number_experts(scratch.counts, choice, n_rows, has_shared ? n_rows : 0, lists);
    __syncthreads();
#pragma unroll
    for (int slot = 0; slot < MOE_PER_THREAD; slot++) n[slot] = scratch.counts[threadIdx.x + slot * blockDim.x];
    for_own_pairs(experts, n_pairs, scratch.piece, [&](int slot, int pair) {
        int row = pair / choice.n_used, rank = pair - row * choice.n_used;
        lists.columns[n[slot]++] = row << MOE_RANK_BITS | rank;
    });
    if (!has_shared) return;
    for (int row = threadIdx.x; row < n_rows; row += blockDim.x) {
        lists.columns[n_pairs + row] = row << MOE_RANK_BITS | choice.n_used;
    }
}
#endif
