// Which rows an expert has: what the products of a mixture of experts walk along.
//   n_distinct [1]           how many experts anybody asks
//   ids        [n_distinct]  who they are, ascending
//   starts     [n_distinct + 1]  where the columns of each begin; the last: their number
//   columns    [n_rows * n_used] row << 4 | rank, ascending within an expert
#pragma once
#include "expert_choice.cuh"

#define MOE_RANK_BITS 4

struct MoeLists {
    int *n_distinct, *ids, *starts, *columns;
};

#ifdef MOE_BUILDS_LISTS
#define MOE_PIECE 1024      // pairs that lie in shared memory at once
#define MOE_PER_THREAD 2    // experts of a thread of a block of 256

struct ListScratch {
    int piece[MOE_PIECE];
    int counts[MOE_MAX_EXPERTS];  // then where its columns begin
    int at[MOE_MAX_EXPERTS];      // its place among those who are asked
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

// By the first warp: counts to starts, and to places among those who are asked.
__device__ __forceinline__ void number_experts(ListScratch& scratch, int n_expert, int n_pairs, const MoeLists& lists) {
    int lane = threadIdx.x & 31, first = lane * MOE_SLOTS, before = 0, asked_before = 0;
    for (int i = 0; i < MOE_SLOTS; i++) {
        before += scratch.counts[first + i];
        asked_before += scratch.counts[first + i] > 0;
    }
    int mine = before, asked = asked_before;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        int b = __shfl_up_sync(ALL_LANES, before, offset), a = __shfl_up_sync(ALL_LANES, asked_before, offset);
        if (lane >= offset) before += b, asked_before += a;
    }
    if (lane == 31) {
        *lists.n_distinct = asked_before;
        lists.starts[asked_before] = n_pairs;
    }
    before -= mine, asked_before -= asked;
    for (int i = 0; i < MOE_SLOTS; i++) {
        int count = scratch.counts[first + i];
        scratch.counts[first + i] = before;
        scratch.at[first + i] = asked_before;
        if (count > 0) {
            lists.ids[asked_before] = first + i;
            lists.starts[asked_before] = before;
            asked_before++;
        }
        before += count;
    }
}

// By a block of 256. `experts`: [n_pairs], whom row pair / n_used asks at rank pair % n_used.
__device__ __forceinline__ void build_lists(const volatile int* experts, int n_rows, const Choice& choice,
                                            const MoeLists& lists) {
    __shared__ ListScratch scratch;
    int n_pairs = n_rows * choice.n_used, n[MOE_PER_THREAD] = {0, 0};
    for_own_pairs(experts, n_pairs, scratch.piece, [&](int slot, int) { n[slot]++; });
#pragma unroll
    for (int slot = 0; slot < MOE_PER_THREAD; slot++) scratch.counts[threadIdx.x + slot * blockDim.x] = n[slot];
    __syncthreads();
    if (threadIdx.x < 32) number_experts(scratch, choice.n_expert, n_pairs, lists);
    __syncthreads();
#pragma unroll
    for (int slot = 0; slot < MOE_PER_THREAD; slot++) n[slot] = scratch.counts[threadIdx.x + slot * blockDim.x];
    for_own_pairs(experts, n_pairs, scratch.piece, [&](int slot, int pair) {
        int row = pair / choice.n_used, rank = pair - row * choice.n_used;
        lists.columns[n[slot]++] = row << MOE_RANK_BITS | rank;
    });
}
#endif
