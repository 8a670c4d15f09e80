// Barriers of blocks and warps, shuffles, votes: operations at which threads meet (meetings.h).
#pragma once
#include "threads.h"

namespace shim {

// Lane `lane` of the running warp, as it waits in a meeting: the operands it brought.
template <class Operands>
inline Operands& brought(int lane) {
    return *static_cast<Operands*>(running->block->warps[running->warp].lanes[lane].operands);
}

// Waits until every lane of the mask is here. Whoever comes last calls `complete(mask)`, which reads what all
// brought and writes every lane's result.
template <class Operands, class Complete>
inline void meet(const char* operation, unsigned mask, Where where, Operands& mine, Complete complete) {
    if (!meet(operation, mask, where, static_cast<void*>(&mine))) return;
    complete(mask);
    go_on(mask);
}

inline int lowest(unsigned bits) { return __builtin_ctz(bits); }

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
        fail_at(operation, where, "it reads lane %d, which is not in the mask", source);
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
    return shim::block_barrier("__syncthreads_and", vote != 0, where) == shim::grid.n_threads;
}
inline void __syncwarp(unsigned mask = ~0u, shim::Where where = shim::Where::here()) {
    shim::Vote none{0, 0};
    shim::meet("__syncwarp", mask, where, none, [](unsigned lanes) { shim::order_warp(lanes); });
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
