// The scheduler's state, and what its parts share: switching to a thread and back, complaints, shared memory.
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
extern "C" char __ehdr_start[] __attribute__((visibility("hidden")));  // of the library

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
    volatile bool in_thread = false;  // not in the scheduler itself
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
inline int lowest(unsigned bits) { return __builtin_ctz(bits); }
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
    scheduler->in_thread = true;
#ifdef __SANITIZE_ADDRESS__
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, scheduler->stacks.low(fiber.stack), stack_bytes);
    shim_switch(&scheduler->stack_pointer, fiber.stack_pointer);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    shim_switch(&scheduler->stack_pointer, fiber.stack_pointer);
#endif
    scheduler->in_thread = false;
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

}  // namespace shim
