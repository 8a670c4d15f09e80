// Who runs next.
//
// Seed 0 runs one block after the other, warps and lanes in order, each until it waits. Any other seed puts
// several blocks in flight and chooses block, warp and lane at random, in bursts of random length: what
// depends on the order is a race. Atomics are points where a thread may be interrupted, too.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "fibers.h"
#include "threads.h"

extern "C" char __bss_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));

namespace shim {

constexpr size_t guard_bytes = 64;  // behind dynamic shared memory
constexpr long most_atomics = 1000000;  // of a thread
constexpr int threads_in_flight = 2048;  // of a multiprocessor

struct Copy {
    char* to;
    const char* from;
    char seen[16];  // what stood there when it was started
    int group;
};
struct Copies {
    std::vector<Copy> under_way;
    int groups = 0;
};

struct Scheduler {
    void (*body)(void*) = nullptr;
    void* context = nullptr;
    uint64_t random = 0;
    bool failed = false;
    bool interrupted = false;  // another block's turn
    Block* loaded = nullptr;  // whose shared memory lies in the variables
    void* stack_pointer = nullptr;
    std::vector<Block> blocks;  // in flight
    std::vector<Fiber> threads;
    std::vector<Warp> warps;
    std::vector<Copies> copies;
    std::vector<char> statics;
    Stacks stacks;  // kept from launch to launch
#ifdef __SANITIZE_ADDRESS__
    const void* stack = nullptr;
    size_t stack_bytes = 0;
#endif
};

__attribute__((section(".data"))) Grid grid;
__attribute__((section(".data"))) Fiber* running;
__attribute__((section(".data"))) static Scheduler* scheduler;

inline uint32_t chance(uint32_t n) {  // 0 .. n - 1
    uint64_t& s = scheduler->random;
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return static_cast<uint32_t>((s >> 32) % n);
}
inline bool seeded() { return grid.request->seed != 0; }

// Switching --------------------------------------------------------------------------------------

inline void to_scheduler(bool for_good = false) {
    Fiber* me = running;
#ifdef __SANITIZE_ADDRESS__
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, scheduler->stack, scheduler->stack_bytes);
    shim_switch(&me->stack_pointer, scheduler->stack_pointer);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    (void)for_good;
    shim_switch(&me->stack_pointer, scheduler->stack_pointer);
#endif
}

inline void to_fiber(Fiber& fiber) {
    running = &fiber;
    grid.request->switches++;
#ifdef __SANITIZE_ADDRESS__
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, scheduler->stacks.low(fiber.stack), stack_bytes);
    shim_switch(&scheduler->stack_pointer, fiber.stack_pointer);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    shim_switch(&scheduler->stack_pointer, fiber.stack_pointer);
#endif
}

// Faults -----------------------------------------------------------------------------------------

inline std::string named(const Fiber& f) {
    char text[96];
    const dim3 &t = f.index, &b = f.block->index;
    snprintf(text, sizeof text, "thread (%u, %u, %u) of block (%u, %u, %u)", t.x, t.y, t.z, b.x, b.y, b.z);
    return text;
}
inline std::string shown(Where where) {
    const char* slash = strrchr(where.file, '/');
    return std::string("(") + (slash ? slash + 1 : where.file) + ":" + std::to_string(where.line) + ")";
}
inline std::string waits(const Fiber& f) { return f.operation + (" " + shown(f.where)); }

inline void complain(const std::string& text) {  // the first complaint counts
    if (scheduler->failed) return;
    scheduler->failed = true;
    snprintf(grid.request->error, grid.request->error_bytes, "%s", text.c_str());
}

// Waiting ----------------------------------------------------------------------------------------

inline void make_ready(Fiber& f) {
    f.state = State::ready;
    f.block->warps[f.warp].ready |= 1u << f.lane;
}
// Lets others run; the caller stays ready.
inline void pause() {
    make_ready(*running);
    to_scheduler();
}
// Whoever arrives last need not go on first.
inline void maybe_pause() {
    if (seeded() && chance(2)) pause();
}

// Shared memory ----------------------------------------------------------------------------------

inline size_t statics_bytes() { return static_cast<size_t>(_end - __bss_start); }

// Byte for byte, past AddressSanitizer's fences between the variables.
__attribute__((noinline, no_sanitize("address"))) static void move_bytes(volatile char* to, const volatile char* from,
                                                                          size_t n) {
    size_t i = 0;
    if (((reinterpret_cast<uintptr_t>(to) ^ reinterpret_cast<uintptr_t>(from)) & 7) == 0) {
        for (; i < n && (reinterpret_cast<uintptr_t>(to + i) & 7); i++) to[i] = from[i];
        for (; i + 8 <= n; i += 8)
            *reinterpret_cast<volatile uint64_t*>(to + i) = *reinterpret_cast<const volatile uint64_t*>(from + i);
    }
    for (; i < n; i++) to[i] = from[i];
}
__attribute__((noinline, no_sanitize("address"))) static void fill_garbage(volatile char* to, size_t n) {
    constexpr uint64_t words = garbage * 0x0001000100010001ull;
    for (size_t i = 0; i < n;) {
        uintptr_t at = reinterpret_cast<uintptr_t>(to + i);
        if (at % 8 == 0 && i + 8 <= n) {
            *reinterpret_cast<volatile uint64_t*>(to + i) = words;
            i += 8;
        } else {
            to[i++] = static_cast<char>(at & 1 ? garbage >> 8 : garbage);
        }
    }
}
inline void load_statics(Block& block) {
    Block* loaded = scheduler->loaded;
    if (loaded == &block) return;
    if (loaded && loaded->is_live) {
        move_bytes(loaded->statics, __bss_start, statics_bytes());
        loaded->is_saved = true;
    }
    if (block.is_saved) move_bytes(__bss_start, block.statics, statics_bytes());
    scheduler->loaded = &block;
}

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

inline int lowest(unsigned bits) { return __builtin_ctz(bits); }
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
    if (make_blocks(blocks_in_flight(n_blocks)))
        run_blocks(order);
    else
        complain("no memory for the stacks of threads");
    for (Block& block : scheduler->blocks) free(block.dynamic);
}

}  // namespace shim
