// Who runs next.
//
// Seed 0 runs one block after the other, warps and lanes in order, each until it waits. Any other seed puts
// several blocks in flight and chooses block, warp and lane at random, in bursts of random length: what
// depends on the order is a race. Atomics are points where a thread may be interrupted, too.
#pragma once
#include "races.h"
#include "state.h"

namespace shim {

// Blocks -----------------------------------------------------------------------------------------

inline void fiber_main() {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &scheduler->stack, &scheduler->stack_bytes);
#endif
    scheduler->body(scheduler->context);
    running->state = State::returned;
    running->block->n_returned++;
    to_scheduler(true);
    __builtin_unreachable();
}

inline void start_thread(Block& block, int number) {
    Fiber& f = block.threads[number];
    const dim3& size = grid.block_size;
    f.block = &block;
    f.index = dim3(number % size.x, number / size.x % size.y, number / (size.x * size.y));
    f.number = number;
    f.lane = number & 31;
    f.warp = number >> 5;
    f.copies->under_way.clear();
    f.copies->groups = 0;
    f.atomics = 0;
    f.stack_pointer = scheduler->stacks.start(f.stack, fiber_main);
    make_ready(f);
}

inline void start_block(Block& block, uint64_t number) {
    const dim3& size = grid.size;
    uint64_t plane = static_cast<uint64_t>(size.x) * size.y;
    block.number = number;
    block.index = dim3(number % size.x, number / size.x % size.y, number / plane);
    for (int w = 0; w < block.n_warps; w++) {
        int left = grid.n_threads - 32 * w;
        block.warps[w] = Warp{0, 0, nullptr, block.threads + 32 * w, left < 32 ? left : 32};
    }
    block.n_returned = block.n_waiting = block.votes = 0;
    block.is_live = true;
    block.is_saved = false;
    load_statics(block);
    fill_garbage(__bss_start, statics_bytes());
    if (block.dynamic) fill_garbage(block.dynamic, grid.request->shared);
    races_start_block(block);
    for (int i = 0; i < grid.n_threads; i++) start_thread(block, i);
}

inline void diagnose(const Block& block);  // meetings.h

inline void end_block(Block& block) {
    block.is_live = false;
    for (int i = 0; i < grid.n_threads; i++)
        if (scheduler->stacks.overflowed(block.threads[i].stack))
            complain(named(block.threads[i]) + ": its stack overflowed (large local arrays?)");
#ifndef __SANITIZE_ADDRESS__
    if (!block.dynamic) return;
    const char* guard = block.dynamic + grid.request->shared;
    for (size_t i = 0; i < guard_bytes; i++)
        if (guard[i] != static_cast<char>(0xa5)) return complain("a block wrote behind its dynamic shared memory");
#endif
}

inline int any_of(unsigned bits) {  // a random one that is set
    int skip = static_cast<int>(chance(__builtin_popcount(bits)));
    while (skip--) bits &= bits - 1;
    return lowest(bits);
}

// Runs lanes of a warp, at most `turns` of them. Whether any ran.
inline bool run_warp(Warp& warp, uint32_t turns) {
    bool ran = false;
    while (warp.ready && turns-- && !scheduler->failed && !scheduler->interrupted) {
        int lane = seeded() ? any_of(warp.ready) : lowest(warp.ready);
        warp.ready &= ~(1u << lane);
        to_fiber(warp.lanes[lane]);
        ran = true;
    }
    return ran;
}

inline void run_block(Block& block) {
    load_statics(block);
    scheduler->interrupted = false;
    uint32_t n = static_cast<uint32_t>(block.n_warps);
    uint32_t rounds = seeded() ? 1 + chance(3) : ~0u;
    while (rounds-- && !scheduler->failed && !scheduler->interrupted) {
        bool ran = false;
        uint32_t first = seeded() ? chance(n) : 0;
        for (uint32_t i = 0; i < n; i++)
            ran |= run_warp(block.warps[(first + i) % n], seeded() ? 1u << chance(9) : ~0u);
        if (block.n_returned == grid.n_threads) return end_block(block);
        if (!ran && !scheduler->failed && !scheduler->interrupted) return diagnose(block);
    }
}

// Every block once, several at a time.
inline void run_blocks(const std::vector<uint64_t>& order) {
    size_t next = 0;
    std::vector<Block*> live;
    while (!scheduler->failed) {
        live.clear();
        for (Block& block : scheduler->blocks) {
            if (!block.is_live && next < order.size()) start_block(block, order[next++]);
            if (block.is_live) live.push_back(&block);
        }
        if (live.empty()) return;
        run_block(*live[seeded() ? chance(static_cast<uint32_t>(live.size())) : 0]);
    }
}

// A launch ---------------------------------------------------------------------------------------

inline size_t blocks_in_flight(uint64_t n_blocks) {
    uint64_t asked = grid.request->in_flight;
    uint64_t wanted = asked ? asked : seeded() ? 2 + chance(5) : 1;
    uint64_t room = threads_in_flight / grid.n_threads;
    if (wanted > room) wanted = room;
    return static_cast<size_t>(wanted < n_blocks ? wanted : n_blocks);
}

inline char* new_dynamic() {
    size_t n = grid.request->shared;
    if (!n) return nullptr;
#ifdef __SANITIZE_ADDRESS__
    return static_cast<char*>(malloc(n));  // exactly, so that the next byte is out of bounds
#else
    char* p = static_cast<char*>(aligned_alloc(128, (n + guard_bytes + 127) / 128 * 128));
    memset(p + n, 0xa5, guard_bytes);
    return p;
#endif
}

inline bool make_blocks(size_t n) {
    size_t n_threads = grid.n_threads, n_warps = (n_threads + 31) / 32, bytes = statics_bytes();
    Scheduler& s = *scheduler;
    s.blocks.assign(n, Block());
    s.threads.assign(n * n_threads, Fiber());
    s.warps.assign(n * n_warps, Warp());
    s.statics.resize(n * bytes);
    if (s.copies.size() < n * n_threads) s.copies.resize(n * n_threads);
    for (size_t i = 0; i < n; i++) {
        Block& block = s.blocks[i];
        block.threads = &s.threads[i * n_threads];
        block.warps = &s.warps[i * n_warps];
        block.n_warps = static_cast<int>(n_warps);
        block.statics = s.statics.data() + i * bytes;
        block.dynamic = new_dynamic();
    }
    for (size_t i = 0; i < s.threads.size(); i++) {
        s.threads[i].stack = i;
        s.threads[i].copies = &s.copies[i];
    }
    return s.stacks.grow(s.threads.size());
}

inline void run_grid() {
    uint64_t n_blocks = static_cast<uint64_t>(grid.size.x) * grid.size.y * grid.size.z;
    std::vector<uint64_t> order(n_blocks);
    for (uint64_t i = 0; i < n_blocks; i++) order[i] = i;
    for (uint64_t i = n_blocks; seeded() && i > 1; i--) std::swap(order[i - 1], order[chance(static_cast<uint32_t>(i))]);
    if (make_blocks(blocks_in_flight(n_blocks))) {
        races_start_launch();
        run_blocks(order);
        races_end_launch();
    } else {
        complain("no memory for the stacks of threads");
    }
    for (Block& block : scheduler->blocks) free(block.dynamic);
}

}  // namespace shim
