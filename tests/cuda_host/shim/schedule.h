// Grids, blocks, warps and threads, and who runs next.
//
// Seed 0 runs one block after the other, warps and lanes in order, each until it waits. Any other seed puts
// several blocks in flight and chooses block, warp and lane at random, in bursts of random length: what
// depends on the order is a race. Atomics are points where a thread may be interrupted, too.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "fibers.h"

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

extern "C" char __bss_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));

namespace shim {

// Where in a source something is called. As a default argument it names the line of the caller.
struct Where {
    const char* file;
    int line;
    static constexpr Where here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
    bool operator==(const Where& other) const {
        return line == other.line && (file == other.file || !strcmp(file, other.file));
    }
    const char* base() const {
        const char* slash = strrchr(file, '/');
        return slash ? slash + 1 : file;
    }
};

enum class State : uint8_t { ready, at_barrier, in_warp, returned };

struct Copy {  // cp.async under way
    char* to;
    const char* from;
    char seen[16];  // what stood there when it was started
    int group;
};

struct Block;

struct Fiber {
    void* stack_pointer = nullptr;
    Block* block = nullptr;
    dim3 index;
    int number = 0, lane = 0, warp = 0;
    size_t stack = 0;
    State state = State::ready;
    // what it waits for
    const char* operation = nullptr;
    Where where{"", 0};
    unsigned mask = 0;
    void* operands = nullptr;
    // copies
    std::vector<Copy> copies;
    int groups = 0;
    long atomics = 0;
};

struct Warp {
    unsigned ready = 0;  // lanes that can run
    unsigned arrived = 0;  // of a meeting under way; lanes of other masks meet beside it
    const Fiber* first = nullptr;  // to arrive
    Fiber* lanes = nullptr;
    int n_lanes = 0;
};

struct Block {
    dim3 index;
    std::vector<Fiber> threads;
    std::vector<Warp> warps;
    char* dynamic = nullptr;  // shared memory
    std::vector<char> statics;  // shared memory declared in the source, while another block runs
    int n_returned = 0, n_waiting = 0, votes = 0;
    int verdict = 0;  // votes of the last barrier
    bool live = false;
};

struct Request {  // as launcher.py fills it
    unsigned grid[3];
    unsigned block[3];
    uint64_t shared;
    uint64_t seed;
    uint64_t in_flight;  // blocks, at most; 0: by seed
    void** arguments;
    char* error;
    uint64_t error_bytes;
    uint64_t waited;  // out: threads that called wait_for_previous
    uint64_t switches;  // out
};

struct Grid {
    Request* request = nullptr;
    dim3 size, block_size;
    int n_threads = 0;
    void (*body)(void*) = nullptr;
    void* context = nullptr;
    uint64_t random = 0;
    bool failed = false;
    bool interrupted = false;  // another block's turn
    Block* loaded = nullptr;  // whose shared memory lies in the variables
    void* main_stack_pointer = nullptr;
    std::vector<Block> blocks;
    Stacks stacks;
#ifdef __SANITIZE_ADDRESS__
    const void* main_stack = nullptr;
    size_t main_stack_bytes = 0;
#endif
};

constexpr uint16_t garbage = 0x7ff5;  // NaN as half, bfloat16, float and double
constexpr size_t guard_bytes = 64;  // behind dynamic shared memory
constexpr long most_atomics = 1000000;  // of a thread

// Not among the zeros (.bss): that is where `__shared__` variables lie, and they are filled for every block.
static Grid* grid = reinterpret_cast<Grid*>(16);
static Fiber* running = reinterpret_cast<Fiber*>(16);

inline uint32_t chance(uint32_t n) {  // 0 .. n - 1
    uint64_t& s = grid->random;
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return static_cast<uint32_t>((s >> 32) % n);
}
inline bool seeded() { return grid->request->seed != 0; }

// Switching --------------------------------------------------------------------------------------

inline void to_scheduler(bool for_good = false) {
    Fiber* me = running;
#ifdef __SANITIZE_ADDRESS__
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, grid->main_stack, grid->main_stack_bytes);
    shim_switch(&me->stack_pointer, grid->main_stack_pointer);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    (void)for_good;
    shim_switch(&me->stack_pointer, grid->main_stack_pointer);
#endif
}

inline void to_fiber(Fiber& fiber) {
    running = &fiber;
    grid->request->switches++;
#ifdef __SANITIZE_ADDRESS__
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, grid->stacks.low(fiber.stack), stack_bytes);
    shim_switch(&grid->main_stack_pointer, fiber.stack_pointer);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    shim_switch(&grid->main_stack_pointer, fiber.stack_pointer);
#endif
}

// Faults -----------------------------------------------------------------------------------------

inline std::string named(const Fiber& f) {
    char text[96];
    const dim3 &t = f.index, &b = f.block->index;
    snprintf(text, sizeof text, "thread (%u, %u, %u) of block (%u, %u, %u)", t.x, t.y, t.z, b.x, b.y, b.z);
    return text;
}
inline std::string waits(const Fiber& f) {
    return std::string(f.operation) + " (" + f.where.base() + ":" + std::to_string(f.where.line) + ")";
}
inline void complain(const std::string& text) {  // the first complaint counts
    if (grid->failed) return;
    grid->failed = true;
    snprintf(grid->request->error, grid->request->error_bytes, "%s", text.c_str());
}
// Ends the launch; the thread that found the fault does not go on.
inline void fail(const std::string& text) {
    complain(named(*running) + ": " + text);
    to_scheduler(true);
    __builtin_unreachable();
}
inline void fail_at(const char* operation, Where where, const std::string& text) {
    fail(std::string(operation) + " (" + where.base() + ":" + std::to_string(where.line) + "): " + text);
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
inline void wait_as(State state) {
    running->state = state;
    to_scheduler();
}
// Whoever arrives last need not go on first.
inline void maybe_pause() {
    if (seeded() && chance(2)) pause();
}

// Shared memory ----------------------------------------------------------------------------------

inline size_t statics_bytes() { return static_cast<size_t>(_end - __bss_start); }

// Byte for byte, past AddressSanitizer's fences between the variables.
__attribute__((noinline, no_sanitize("address"))) inline void move_bytes(volatile char* to, const volatile char* from,
                                                                           size_t n) {
    size_t i = 0;
    if (((reinterpret_cast<uintptr_t>(to) ^ reinterpret_cast<uintptr_t>(from)) & 7) == 0) {
        for (; i < n && (reinterpret_cast<uintptr_t>(to + i) & 7); i++) to[i] = from[i];
        for (; i + 8 <= n; i += 8)
            *reinterpret_cast<volatile uint64_t*>(to + i) = *reinterpret_cast<const volatile uint64_t*>(from + i);
    }
    for (; i < n; i++) to[i] = from[i];
}
__attribute__((noinline, no_sanitize("address"))) inline void fill_garbage(volatile char* to, size_t n) {
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
inline bool is_shared(const void* p) {
    const char* at = static_cast<const char*>(p);
    const char* dynamic = running->block->dynamic;
    bool in_dynamic = dynamic && at >= dynamic && at < dynamic + grid->request->shared;
    return in_dynamic || (at >= __bss_start && at < _end);
}
inline void load_statics(Block& block) {
    if (grid->loaded == &block) return;
    size_t n = statics_bytes();
    if (grid->loaded && grid->loaded->live) {
        grid->loaded->statics.resize(n);
        move_bytes(grid->loaded->statics.data(), __bss_start, n);
    }
    if (!block.statics.empty()) move_bytes(__bss_start, block.statics.data(), n);
    grid->loaded = &block;
}
inline char* dynamic_shared(Where where = Where::here()) {
    if (!running->block->dynamic) fail_at("DYNAMIC_SHARED", where, "the launch asks for no dynamic shared memory");
    return running->block->dynamic;
}

// Blocks -----------------------------------------------------------------------------------------

inline void fiber_main() {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &grid->main_stack, &grid->main_stack_bytes);
#endif
    grid->body(grid->context);
    running->state = State::returned;
    running->block->n_returned++;
    to_scheduler(true);
    __builtin_unreachable();
}

inline void start_thread(Block& block, int number, size_t first_stack) {
    Fiber& f = block.threads[number];
    const dim3& size = grid->block_size;
    f.block = &block;
    f.index = dim3(number % size.x, number / size.x % size.y, number / (size.x * size.y));
    f.number = number;
    f.lane = number & 31;
    f.warp = number >> 5;
    f.stack = first_stack + number;
    f.copies.clear();
    f.groups = 0;
    f.atomics = 0;
    f.stack_pointer = grid->stacks.start(f.stack, fiber_main);
    make_ready(f);
}

inline void start_block(Block& block, uint64_t number, size_t first_stack) {
    int n = grid->n_threads;
    const dim3& size = grid->size;
    uint64_t plane = static_cast<uint64_t>(size.x) * size.y;
    block.index = dim3(number % size.x, number / size.x % size.y, number / plane);
    block.threads.resize(n);
    block.warps.assign((n + 31) / 32, Warp());
    for (size_t w = 0; w < block.warps.size(); w++) {
        block.warps[w].lanes = &block.threads[32 * w];
        block.warps[w].n_lanes = n - 32 * static_cast<int>(w) < 32 ? n - 32 * static_cast<int>(w) : 32;
    }
    block.n_returned = block.n_waiting = block.votes = 0;
    block.live = true;
    block.statics.clear();
    load_statics(block);
    fill_garbage(__bss_start, statics_bytes());
    if (block.dynamic) fill_garbage(block.dynamic, grid->request->shared);
    for (int i = 0; i < n; i++) start_thread(block, i, first_stack);
}

// Nothing in the block can run, and it has not ended: say who waits for whom.
inline void diagnose(Block& block) {
    std::string text = "deadlock:";
    const Fiber* seen[4] = {};
    int kinds = 0;
    for (const Fiber& f : block.threads) {
        if (f.state == State::returned) continue;
        bool known = false;
        for (int i = 0; i < kinds; i++) known |= f.operation == seen[i]->operation && f.where == seen[i]->where;
        if (known || kinds == 4) continue;
        seen[kinds++] = &f;
        text += (kinds > 1 ? ", " : " ") + named(f) + " waits in " + waits(f);
        if (f.state == State::in_warp) {
            unsigned missing = 0;
            const Warp& warp = block.warps[f.warp];
            for (int j = 0; j < 32; j++) {
                bool there = j < warp.n_lanes && warp.lanes[j].state == State::in_warp;
                if (f.mask >> j & 1 && !there) missing |= 1u << j;
            }
            char lanes[64];
            snprintf(lanes, sizeof lanes, " for lanes 0x%08x of mask 0x%08x", missing, f.mask);
            text += lanes;
        }
    }
    for (const Fiber& f : block.threads) {
        if (f.state != State::returned) continue;
        text += ", " + named(f) + " has returned";
        if (block.n_returned > 1) text += " (and " + std::to_string(block.n_returned - 1) + " more)";
        break;
    }
    complain(text);
}

inline void end_block(Block& block) {
    block.live = false;
    for (const Fiber& f : block.threads)
        if (grid->stacks.overflowed(f.stack)) complain(named(f) + ": its stack overflowed (large local arrays?)");
    if (!block.dynamic) return;
    const char* guard = block.dynamic + grid->request->shared;
#ifndef __SANITIZE_ADDRESS__
    for (size_t i = 0; i < guard_bytes; i++)
        if (guard[i] != static_cast<char>(0xa5)) return complain("a block wrote behind its dynamic shared memory");
#else
    (void)guard;
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
    while (warp.ready && turns-- && !grid->failed && !grid->interrupted) {
        int lane = seeded() ? any_of(warp.ready) : lowest(warp.ready);
        warp.ready &= ~(1u << lane);
        to_fiber(warp.lanes[lane]);
        ran = true;
    }
    return ran;
}

inline void run_block(Block& block) {
    load_statics(block);
    grid->interrupted = false;
    uint32_t n = static_cast<uint32_t>(block.warps.size());
    uint32_t rounds = seeded() ? 1 + chance(3) : ~0u;
    while (rounds-- && !grid->failed && !grid->interrupted) {
        bool ran = false;
        uint32_t first = seeded() ? chance(n) : 0;
        for (uint32_t i = 0; i < n; i++)
            ran |= run_warp(block.warps[(first + i) % n], seeded() ? 1u << chance(9) : ~0u);
        if (block.n_returned == grid->n_threads) return end_block(block);
        if (!ran && !grid->failed && !grid->interrupted) return diagnose(block);
    }
}

// Every block once, `in_flight` at a time. `order` is permuted by the seed.
inline void run_blocks(std::vector<uint64_t>& order) {
    size_t next = 0;
    std::vector<Block*> live;
    while (!grid->failed) {
        for (Block& block : grid->blocks)
            if (!block.live && next < order.size())
                start_block(block, order[next++], (&block - grid->blocks.data()) * grid->n_threads);
        live.clear();
        for (Block& block : grid->blocks)
            if (block.live) live.push_back(&block);
        if (live.empty()) return;
        run_block(*live[seeded() ? chance(static_cast<uint32_t>(live.size())) : 0]);
    }
}

}  // namespace shim
