// Barriers of blocks and warps, shuffles, votes: operations at which threads meet.
// All of a meeting must come to the same line of the source; who is missing or elsewhere is named.
#pragma once
#include "schedule.h"

namespace shim {

// Lane `lane` of the running warp, as it waits in a meeting: the operands it brought.
template <class Operands>
inline Operands& brought(int lane) {
    return *static_cast<Operands*>(running->block->warps[running->warp].lanes[lane].operands);
}

inline bool in_same(const Fiber& other, const char* operation, unsigned mask, Where where) {
    return other.mask == mask && other.operation == operation && other.where == where;
}

inline void check_mask(const char* operation, unsigned mask, Where where) {
    const Warp& warp = running->block->warps[running->warp];
    for (int j = 0; j < 32; j++) {
        if (!(mask >> j & 1)) continue;
        if (j >= warp.n_lanes)
            fail_at(operation, where, "lane " + std::to_string(j) + " of the mask does not exist in this warp");
        const Fiber& other = warp.lanes[j];
        if (other.state == State::returned) fail_at(operation, where, named(other) + ", of its mask, has returned");
        if (other.state == State::in_warp && other.mask >> running->lane & 1 && !in_same(other, operation, mask, where))
            fail_at(operation, where, named(other) + " is in " + waits(other));
    }
}

// Those of the mask who wait for the running thread, as bits, and itself.
inline unsigned here(const Warp& warp, unsigned mask) {
    unsigned bits = 1u << running->lane;
    for (unsigned left = mask; left; left &= left - 1) {
        const Fiber& other = warp.lanes[lowest(left)];
        if (other.state == State::in_warp && other.mask == mask) bits |= left & -left;
    }
    return bits;
}

// Whether the running thread is the last of its mask to arrive. Lanes of other masks may meet beside it: the warp
// counts for one mask only.
inline bool is_last(Warp& warp, unsigned mask) {
    if (warp.arrived && warp.first->mask == mask) return (warp.arrived |= 1u << running->lane) == mask;
    unsigned bits = here(warp, mask);
    if (!warp.arrived) {
        warp.arrived = bits;
        warp.first = running;
    }
    return bits == mask;
}

// Waits until every lane of the mask is here. Whoever comes last calls `complete(mask)`, which reads what all
// brought and writes every lane's result.
template <class Operands, class Complete>
inline void meet(const char* operation, unsigned mask, Where where, Operands& mine, Complete complete) {
    Fiber* me = running;
    Warp& warp = me->block->warps[me->warp];
    unsigned lane = 1u << me->lane;
    if (!(mask & lane)) fail_at(operation, where, "its own lane is not in the mask");
    if (!warp.arrived || !in_same(*warp.first, operation, mask, where)) check_mask(operation, mask, where);
    me->operation = operation;
    me->where = where;
    me->mask = mask;
    me->operands = &mine;
    me->state = State::in_warp;
    if (!is_last(warp, mask)) return to_scheduler();
    if (warp.arrived && warp.first->mask == mask) warp.arrived = 0;
    complete(mask);
    for (unsigned left = mask; left; left &= left - 1) make_ready(warp.lanes[lowest(left)]);
    warp.ready &= ~lane;
    maybe_pause();
}

template <class T>
struct Shuffle {
    T value, result;
    int source;
};

template <class T>
inline T shuffle(const char* operation, unsigned mask, T value, int source, Where where) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    Shuffle<T> mine{value, value, source};
    if (!(mask >> source & 1))
        fail_at(operation, where, "it reads lane " + std::to_string(source) + ", which is not in the mask");
    meet(operation, mask, where, mine, [](unsigned lanes) {
        for (unsigned left = lanes; left; left &= left - 1) {
            Shuffle<T>& one = brought<Shuffle<T>>(lowest(left));
            one.result = brought<Shuffle<T>>(one.source).value;
        }
    });
    return mine.result;
}

struct Vote {
    unsigned vote, result;
};
inline unsigned ballot(const char* operation, unsigned mask, bool vote, Where where) {
    Vote mine{vote, 0};
    meet(operation, mask, where, mine, [](unsigned lanes) {
        unsigned votes = 0;
        for (unsigned left = lanes; left; left &= left - 1) votes |= brought<Vote>(lowest(left)).vote << lowest(left);
        for (unsigned left = lanes; left; left &= left - 1) brought<Vote>(lowest(left)).result = votes;
    });
    return mine.result;
}

template <class T>
struct Value {
    T value, result;
};
template <class T, class Combine>
inline T reduce(const char* operation, unsigned mask, T value, Where where, Combine combine) {
    Value<T> mine{value, value};
    meet(operation, mask, where, mine, [combine](unsigned lanes) {
        T all = brought<Value<T>>(lowest(lanes)).value;
        for (unsigned left = lanes & (lanes - 1); left; left &= left - 1)
            all = combine(all, brought<Value<T>>(lowest(left)).value);
        for (unsigned left = lanes; left; left &= left - 1) brought<Value<T>>(lowest(left)).result = all;
    });
    return mine.result;
}

// How many threads of the block voted yes.
inline int block_barrier(const char* operation, bool vote, Where where) {
    Fiber* me = running;
    Block& block = *me->block;
    if (block.n_waiting) {
        const Fiber* first = nullptr;
        for (const Fiber& f : block.threads)
            if (f.state == State::at_barrier) first = &f;
        if (!(first->operation == operation && first->where == where))
            fail_at(operation, where, "divergent barrier: " + named(*first) + " is in " + waits(*first));
    }
    me->operation = operation;
    me->where = where;
    block.votes += vote;
    if (++block.n_waiting < grid->n_threads) {
        wait_as(State::at_barrier);
        return block.verdict;
    }
    block.verdict = block.votes;
    block.n_waiting = block.votes = 0;
    for (Fiber& f : block.threads) make_ready(f);
    block.warps[me->warp].ready &= ~(1u << me->lane);
    int verdict = block.verdict;
    maybe_pause();
    return verdict;
}

// The lane that `offset` leads to, within segments of `width` lanes; a lane that would read past its segment reads itself.
inline int segment(int width) { return running->lane & ~(width - 1); }

}  // namespace shim

inline void __syncthreads(shim::Where where = shim::Where::here()) { shim::block_barrier("__syncthreads", false, where); }
inline int __syncthreads_count(int vote, shim::Where where = shim::Where::here()) {
    return shim::block_barrier("__syncthreads_count", vote != 0, where);
}
inline int __syncthreads_or(int vote, shim::Where where = shim::Where::here()) {
    return shim::block_barrier("__syncthreads_or", vote != 0, where) != 0;
}
inline int __syncthreads_and(int vote, shim::Where where = shim::Where::here()) {
    return shim::block_barrier("__syncthreads_and", vote != 0, where) == shim::grid->n_threads;
}
inline void __syncwarp(unsigned mask = ~0u, shim::Where where = shim::Where::here()) {
    shim::ballot("__syncwarp", mask, false, where);
}

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, shim::Where where = shim::Where::here()) {
    int lane = shim::segment(width) | (source & (width - 1));
    return shim::shuffle("__shfl_sync", mask, value, lane, where);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, shim::Where where = shim::Where::here()) {
    int lane = shim::running->lane ^ bits;
    if (lane >= shim::segment(width) + width) lane = shim::running->lane;
    return shim::shuffle("__shfl_xor_sync", mask, value, lane, where);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, shim::Where where = shim::Where::here()) {
    int lane = shim::running->lane + static_cast<int>(by);
    if (lane >= shim::segment(width) + width) lane = shim::running->lane;
    return shim::shuffle("__shfl_down_sync", mask, value, lane, where);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, shim::Where where = shim::Where::here()) {
    int lane = shim::running->lane - static_cast<int>(by);
    if (lane < shim::segment(width)) lane = shim::running->lane;
    return shim::shuffle("__shfl_up_sync", mask, value, lane, where);
}

inline unsigned __ballot_sync(unsigned mask, int vote, shim::Where where = shim::Where::here()) {
    return shim::ballot("__ballot_sync", mask, vote != 0, where);
}
inline int __any_sync(unsigned mask, int vote, shim::Where where = shim::Where::here()) {
    return shim::ballot("__any_sync", mask, vote != 0, where) != 0;
}
inline int __all_sync(unsigned mask, int vote, shim::Where where = shim::Where::here()) {
    return shim::ballot("__all_sync", mask, vote != 0, where) == mask;
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value, shim::Where where = shim::Where::here()) {
    struct Match {
        T value;
        unsigned result;
    } mine{value, 0};
    shim::meet("__match_any_sync", mask, where, mine, [](unsigned lanes) {
        for (unsigned a = lanes; a; a &= a - 1) {
            Match& one = shim::brought<Match>(shim::lowest(a));
            for (unsigned b = lanes; b; b &= b - 1)
                if (!memcmp(&shim::brought<Match>(shim::lowest(b)).value, &one.value, sizeof(T))) one.result |= b & -b;
        }
    });
    return mine.result;
}

template <class T>
inline T __reduce_add_sync(unsigned mask, T value, shim::Where where = shim::Where::here()) {
    static_assert(sizeof(T) == 4 && T(0.5) == T(0), "of 32-bit integers");
    return shim::reduce("__reduce_add_sync", mask, value, where, [](T a, T b) { return static_cast<T>(unsigned(a) + unsigned(b)); });
}
template <class T>
inline T __reduce_max_sync(unsigned mask, T value, shim::Where where = shim::Where::here()) {
    static_assert(sizeof(T) == 4 && T(0.5) == T(0), "of 32-bit integers");
    return shim::reduce("__reduce_max_sync", mask, value, where, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
inline T __reduce_min_sync(unsigned mask, T value, shim::Where where = shim::Where::here()) {
    static_assert(sizeof(T) == 4 && T(0.5) == T(0), "of 32-bit integers");
    return shim::reduce("__reduce_min_sync", mask, value, where, [](T a, T b) { return a < b ? a : b; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, shim::Where where = shim::Where::here()) {
    return shim::reduce("__reduce_or_sync", mask, value, where, [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, shim::Where where = shim::Where::here()) {
    return shim::reduce("__reduce_and_sync", mask, value, where, [](unsigned a, unsigned b) { return a & b; });
}
