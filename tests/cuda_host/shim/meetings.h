// Threads that wait for each other: a warp's lanes, a block's threads. All of a meeting must come to the same line of
// the source; who is missing or elsewhere is named.
#pragma once
#include "schedule.h"

namespace shim {

inline bool in_same(const Fiber& other, const char* operation, unsigned mask, Where where) {
    return other.mask == mask && other.operation == operation && other.where == where;
}

inline void check_mask(const char* operation, unsigned mask, Where where) {
    const Warp& warp = running->block->warps[running->warp];
    for (unsigned left = mask; left; left &= left - 1) {
        int j = lowest(left);
        if (j >= warp.n_lanes) fail_at(operation, where, "lane %d of the mask does not exist in this warp", j);
        const Fiber& other = warp.lanes[j];
        if (other.state == State::returned)
            fail_at(operation, where, "%s, of its mask, has returned", named(other).c_str());
        if (other.state == State::in_warp && other.mask >> running->lane & 1 && !in_same(other, operation, mask, where))
            fail_at(operation, where, "%s is in %s", named(other).c_str(), waits(other).c_str());
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

bool meet(const char* operation, unsigned mask, Where where, void* operands) {
    Fiber* me = running;
    Warp& warp = me->block->warps[me->warp];
    if (!(mask >> me->lane & 1)) fail_at(operation, where, "its own lane is not in the mask");
    if (!warp.arrived || !in_same(*warp.first, operation, mask, where)) check_mask(operation, mask, where);
    me->operation = operation;
    me->where = where;
    me->mask = mask;
    me->operands = operands;
    me->state = State::in_warp;
    if (is_last(warp, mask)) return true;
    to_scheduler();
    return false;
}

void go_on(unsigned mask) {
    Warp& warp = running->block->warps[running->warp];
    if (warp.arrived && warp.first->mask == mask) warp.arrived = 0;
    for (unsigned left = mask; left; left &= left - 1) warp.lanes[lowest(left)].state = State::ready;
    warp.ready |= mask & ~(1u << running->lane);
    maybe_pause();
}

inline const Fiber* first_at_barrier(const Block& block) {
    for (int i = 0; i < grid.n_threads; i++)
        if (block.threads[i].state == State::at_barrier) return &block.threads[i];
    return nullptr;
}

int block_barrier(const char* operation, bool vote, Where where) {
    Fiber* me = running;
    Block& block = *me->block;
    if (block.n_waiting) {
        const Fiber* first = first_at_barrier(block);
        if (!(first->operation == operation && first->where == where))
            fail_at(operation, where, "divergent barrier: %s is in %s", named(*first).c_str(), waits(*first).c_str());
    }
    me->operation = operation;
    me->where = where;
    block.votes += vote;
    if (++block.n_waiting < grid.n_threads) {
        me->state = State::at_barrier;
        to_scheduler();
        return block.verdict;
    }
    int verdict = block.verdict = block.votes;
    block.n_waiting = block.votes = 0;
    races_barrier(block);
    for (int i = 0; i < grid.n_threads; i++) make_ready(block.threads[i]);
    block.warps[me->warp].ready &= ~(1u << me->lane);
    maybe_pause();
    return verdict;
}

// Nothing in the block can run, and it has not ended: say who waits for whom.
inline std::string missing_lanes(const Block& block, const Fiber& f) {
    unsigned missing = 0;
    const Warp& warp = block.warps[f.warp];
    for (unsigned left = f.mask; left; left &= left - 1) {
        int j = lowest(left);
        bool there = j < warp.n_lanes && warp.lanes[j].state == State::in_warp && warp.lanes[j].mask == f.mask;
        if (!there) missing |= 1u << j;
    }
    char text[64];
    snprintf(text, sizeof text, " for lanes 0x%08x of mask 0x%08x", missing, f.mask);
    return text;
}

inline void diagnose(const Block& block) {
    std::string text = "deadlock:";
    std::vector<const Fiber*> kinds;  // one thread of each place where some wait
    const Fiber* returned = nullptr;
    for (int i = 0; i < grid.n_threads; i++) {
        const Fiber& f = block.threads[i];
        if (f.state == State::returned) {
            if (!returned) returned = &f;
            continue;
        }
        bool known = false;
        for (const Fiber* kind : kinds) known |= in_same(f, kind->operation, kind->mask, kind->where);
        if (known || kinds.size() == 4) continue;
        text += (kinds.empty() ? " " : ", ") + named(f) + " waits in " + waits(f);
        if (f.state == State::in_warp) text += missing_lanes(block, f);
        kinds.push_back(&f);
    }
    if (returned) {
        text += ", " + named(*returned) + " has returned";
        if (block.n_returned > 1) text += " (and " + std::to_string(block.n_returned - 1) + " more)";
    }
    complain(text);
}

}  // namespace shim
