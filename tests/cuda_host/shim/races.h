// Finds races whatever order the threads ran in: two accesses to the same bytes, at least one of them a write, between
// which nothing orders the threads. For this the source is compiled with -fsanitize=thread, whose calls end up here.
//
// What orders accesses, as CUDA promises it: __syncthreads within a block; __syncwarp among its lanes (shuffles and
// votes do not); across blocks an atomic on the same word that follows a __threadfence of the writer and is followed
// by a __threadfence of the reader. A barrier passes on what its threads know, and, where all threads have fenced what
// they wrote, lets any of them do the atomic.
//
// Also noted: what is touched before wait_for_previous() although a kernel before may write it, or still read it.
// A read of a volatile may see anything and says so: it is not looked at.
#pragma once
#include "state.h"

#ifndef SHIM_RACES
namespace shim {
inline void races_start_launch() {}
inline void races_end_launch() {}
inline void races_start_block(Block&) {}
inline void races_barrier(Block&) {}
void order_warp(unsigned) {}
void order_grid() {}
void touch(const void*, size_t, Touch) {}
void order_launch() { grid.request->waited++; }
}  // namespace shim
#else
#include <map>
#include <memory>

namespace shim {

struct Access {
    uint32_t thread = 0;  // of the grid, counted from 1; 0: none
    uint32_t epoch = 0;  // barriers of its block before
    uint32_t clock = 0;  // of the thread
    uint32_t place = 0;  // of the instruction in the library
    uint8_t bytes = 0;  // of the word
    Touch kind = Touch::read;
};
struct Cell {  // four bytes of memory
    Access last[4];
};

// What a __threadfence has made fit to be seen by whoever sees a later atomic of the same thread.
struct Release {
    uint32_t thread, block, epoch, clock;
    uint32_t lanes[32];  // clocks of its warp
};
typedef std::map<uint32_t, std::shared_ptr<const Release>> Known;  // by thread (or by_block), the last one
constexpr uint32_t by_block = 0x80000000;  // + block: of all its threads, at a barrier

struct ThreadOrder {
    uint32_t clock = 1;
    uint32_t lanes[32] = {};  // what it knows of its warp
    bool waited = false;
    bool is_dirty = false;  // it wrote to global memory after its last fence
    Known published, seen, known;  // at its last fence; by atomics, before a fence; after one
};
struct BlockOrder {
    uint32_t epoch = 0;
    bool waited = false;
    Known published, seen, known;
    std::vector<ThreadOrder> threads;
    std::vector<Cell> statics, dynamic;
};
struct Range {  // of arguments that overlap
    const char *from, *to;
    bool was_written;  // by an earlier launch
    std::vector<Cell> cells;
};
struct Races {
    std::vector<BlockOrder> blocks;  // in flight
    std::vector<Range> ranges;
    std::map<const void*, Known> atomics;  // by address
};
__attribute__((section(".data"))) static Races* races;

inline BlockOrder& order_of(const Block& block) { return races->blocks[&block - scheduler->blocks.data()]; }
inline uint32_t grid_thread(const Fiber& f) {
    return static_cast<uint32_t>(f.block->number * grid.n_threads + f.number) + 1;
}
inline void merge(Known& into, const Known& from) {
    for (const auto& one : from) {
        std::shared_ptr<const Release>& mine = into[one.first];
        if (!mine || mine->clock < one.second->clock) mine = one.second;
    }
}

// Beginnings and ends ----------------------------------------------------------------------------

inline void races_start_launch() {
    delete races;
    races = new Races;
    races->blocks.resize(scheduler->blocks.size());
    std::vector<Range>& ranges = races->ranges;
    for (uint64_t i = 0; i < grid.request->n_arrays; i++) {
        const ArrayArgument& array = grid.request->arrays[i];
        if (array.bytes) ranges.push_back({array.at, array.at + array.bytes, array.was_written, {}});
    }
    for (size_t i = 0; i < ranges.size(); i++)
        for (size_t j = i + 1; j < ranges.size();) {
            Range &a = ranges[i], &b = ranges[j];
            if (a.from >= b.to || b.from >= a.to) {
                j++;
                continue;
            }
            a = {a.from < b.from ? a.from : b.from, a.to > b.to ? a.to : b.to, a.was_written || b.was_written, {}};
            ranges.erase(ranges.begin() + j);
            j = i + 1;
        }
    for (Range& range : ranges) range.cells.resize((range.to - range.from) / 4 + 2);
}
inline void races_end_launch() {
    delete races;
    races = nullptr;
}
inline void races_start_block(Block& block) {
    BlockOrder& order = order_of(block);
    order = BlockOrder();
    order.threads.resize(grid.n_threads);
    order.statics.resize(statics_bytes() / 4 + 2);
    order.dynamic.resize(grid.request->shared / 4 + 2);
}

// What orders ------------------------------------------------------------------------------------

inline void races_barrier(Block& block) {
    BlockOrder& order = order_of(block);
    order.epoch++;
    bool all_fenced = true;
    for (ThreadOrder& thread : order.threads) {
        all_fenced &= !thread.is_dirty;
        order.waited |= thread.waited;
        merge(order.seen, thread.seen);
        merge(order.known, thread.known);
        thread.seen.clear();
        thread.known.clear();
    }
    if (!all_fenced) return;
    auto release = std::make_shared<Release>();
    *release = {0, static_cast<uint32_t>(block.number), order.epoch, order.epoch, {}};
    order.published = order.known;
    order.published[by_block + release->block] = release;
}

void order_warp(unsigned mask) {
    ThreadOrder* lanes = &order_of(*running->block).threads[32 * running->warp];
    uint32_t joined[32] = {};
    Known seen, known;
    bool waited = false;
    for (unsigned left = mask; left; left &= left - 1) {
        ThreadOrder& one = lanes[lowest(left)];
        one.lanes[lowest(left)] = one.clock;
        for (int i = 0; i < 32; i++)
            if (joined[i] < one.lanes[i]) joined[i] = one.lanes[i];
        merge(seen, one.seen);
        merge(known, one.known);
        waited |= one.waited;
    }
    for (unsigned left = mask; left; left &= left - 1) {
        ThreadOrder& one = lanes[lowest(left)];
        memcpy(one.lanes, joined, sizeof joined);
        one.clock++;
        one.seen = seen;
        one.known = known;
        one.waited = waited;
    }
}

void order_grid() {
    BlockOrder& block = order_of(*running->block);
    ThreadOrder& me = block.threads[running->number];
    merge(me.known, me.seen);
    merge(me.known, block.seen);
    me.lanes[running->lane] = me.clock;
    auto release = std::make_shared<Release>();
    *release = {grid_thread(*running), static_cast<uint32_t>(running->block->number), block.epoch, me.clock, {}};
    memcpy(release->lanes, me.lanes, sizeof me.lanes);
    me.published = me.known;
    merge(me.published, block.known);
    me.published[release->thread] = release;
    me.is_dirty = false;
    me.clock++;
}

inline void order_atomic(const void* at) {
    BlockOrder& block = order_of(*running->block);
    ThreadOrder& me = block.threads[running->number];
    Known& word = races->atomics[at];
    merge(me.seen, word);
    merge(word, me.published);
    merge(word, block.published);
}

void order_launch() {
    grid.request->waited++;
    order_of(*running->block).threads[running->number].waited = true;
}

// Accesses ---------------------------------------------------------------------------------------

inline bool knows(const Known& known, const Access& before) {
    uint32_t block = (before.thread - 1) / grid.n_threads, number = (before.thread - 1) % grid.n_threads;
    auto whole = known.find(by_block + block);
    if (whole != known.end() && before.epoch < whole->second->epoch) return true;
    for (auto one = known.lower_bound(block * grid.n_threads + 1); one != known.end(); ++one) {
        const Release& release = *one->second;
        if (release.block != block) break;
        uint32_t its_warp = (release.thread - 1) % grid.n_threads / 32;
        bool same_warp = its_warp == number / 32 && release.lanes[number % 32] >= before.clock;
        if (before.epoch < release.epoch || (before.epoch == release.epoch && same_warp)) return true;
    }
    return false;
}

inline bool comes_after(const Access& before, const BlockOrder& block, const ThreadOrder& me) {
    uint32_t id = grid_thread(*running);
    if (before.thread == id) return true;
    if ((before.thread - 1) / grid.n_threads != running->block->number)
        return knows(me.known, before) || knows(block.known, before);
    int number = static_cast<int>((before.thread - 1) % grid.n_threads);
    if (before.epoch < block.epoch) return true;
    return number / 32 == running->warp && me.lanes[number % 32] >= before.clock;
}

inline const char* verb(Touch kind) {
    return kind == Touch::read ? "reads" : kind == Touch::write ? "writes" : "changes, as an atomic,";
}
inline uint32_t place_of(const void* pc) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pc) - reinterpret_cast<uintptr_t>(__ehdr_start));
}

inline std::string described(const char* at) {
    const Block& block = *running->block;
    if (at >= __bss_start && at < _end) return "a __shared__ variable";
    if (block.dynamic && at >= block.dynamic && at < block.dynamic + grid.request->shared)
        return "byte " + std::to_string(at - block.dynamic) + " of dynamic shared memory";
    for (uint64_t i = 0; i < grid.request->n_arrays; i++) {
        const ArrayArgument& array = grid.request->arrays[i];
        if (at >= array.at && at < array.at + array.bytes)
            return "byte " + std::to_string(at - array.at) + " of argument " + std::to_string(array.argument);
    }
    return "memory";
}

[[noreturn]] inline void report(const char* at, const Access& before, Touch kind, const void* pc) {
    uint32_t id = before.thread - 1;
    fail("race: it %s %s at {0x%x}; nothing orders that after thread %u of block %u (both counted), which %s it at {0x%x}",
         verb(kind), described(at).c_str(), place_of(pc), id % grid.n_threads, id / grid.n_threads, verb(before.kind),
         before.place);
}

// Where a new record goes: over one of the same thread, of an earlier epoch, or of any but the last write.
inline Access& slot(Cell& cell, const Access& now, uint32_t epoch) {
    for (Access& one : cell.last)
        if (!one.thread || (one.thread == now.thread && one.kind == now.kind && one.bytes == now.bytes)) return one;
    for (Access& one : cell.last)
        if (one.kind == Touch::read && one.epoch < epoch && now.kind != Touch::read) return one;
    return cell.last[now.thread * 7u % 4];
}

struct Toucher {  // what is the same for all cells of an access
    BlockOrder& block;
    ThreadOrder& me;
    Access now;
    const char* at;
    const void* pc;
};

inline void touch_cell(Cell& cell, const Toucher& by) {
    const Access& now = by.now;
    for (Access& before : cell.last) {
        if (!before.thread || !(before.bytes & now.bytes)) continue;
        if (before.kind == now.kind && before.thread == now.thread && before.bytes == now.bytes) {
            before = now;
            continue;
        }
        if (before.kind == Touch::read && now.kind == Touch::read) continue;
        if (before.kind == Touch::atomic && now.kind == Touch::atomic) {
            before = Access();  // each of them comes after the one before
            continue;
        }
        if (before.thread != now.thread && !comes_after(before, by.block, by.me)) report(by.at, before, now.kind, by.pc);
        if (now.kind == Touch::write && (before.bytes & ~now.bytes) == 0) before = Access();  // nobody need look behind it
    }
    slot(cell, now, now.epoch) = now;
}

inline void touch_bytes(std::vector<Cell>& cells, size_t offset, size_t n, Touch kind, const void* pc, const char* at) {
    BlockOrder& block = order_of(*running->block);
    ThreadOrder& me = block.threads[running->number];
    Toucher by{block, me, {grid_thread(*running), block.epoch, me.clock, place_of(pc), 15, kind}, at, pc};
    size_t end = offset + n;
    if (offset % 4 == 0 && n % 4 == 0) {
        for (size_t word = offset / 4; word < end / 4; word++) touch_cell(cells[word], by);
        return;
    }
    for (size_t i = offset; i < end;) {
        size_t word = i / 4;
        by.now.bytes = 0;
        for (; i < end && i / 4 == word; i++) by.now.bytes |= 1 << i % 4;
        touch_cell(cells[word], by);
    }
}

inline void touch_global(const char* at, size_t n, Touch kind, const void* pc) {
    BlockOrder& block = order_of(*running->block);
    for (Range& range : races->ranges) {
        if (at < range.from || at >= range.to) continue;
        bool waited = block.waited || block.threads[running->number].waited;
        if (!waited && (kind != Touch::read || range.was_written))
            fail("it %s %s at {0x%x} before wait_for_previous()", verb(kind), described(at).c_str(), place_of(pc));
        block.threads[running->number].is_dirty |= kind == Touch::write;
        if (n > static_cast<size_t>(range.to - at)) n = range.to - at;
        size_t offset = at - range.from + (reinterpret_cast<uintptr_t>(range.from) & 3);
        return touch_bytes(range.cells, offset, n, kind, pc, at);
    }
}

inline void touch_at(const void* p, size_t n, Touch kind, const void* pc) {
    if (!races || scheduler->failed) return;
    const char* at = static_cast<const char*>(p);
    const Stacks& stacks = scheduler->stacks;
    if (at >= stacks.memory && at < stacks.memory + stacks.count * stack_bytes) return;
    Block& block = *running->block;
    if (at >= __bss_start && at < _end)
        return touch_bytes(order_of(block).statics, at - __bss_start, n, kind, pc, at);
    if (block.dynamic && at >= block.dynamic && at < block.dynamic + grid.request->shared)
        return touch_bytes(order_of(block).dynamic, at - block.dynamic, n, kind, pc, at);
    touch_global(at, n, kind, pc);
}
void touch(const void* p, size_t n, Touch kind) {
    touch_at(p, n, kind, __builtin_return_address(0));
    if (kind == Touch::atomic) order_atomic(p);
}

}  // namespace shim

// What the compiler calls -------------------------------------------------------------------------

#define SHIM_CALLED extern "C" __attribute__((visibility("hidden"), used)) void
#define SHIM_TOUCHES(n)                                                                                           \
    SHIM_CALLED __tsan_read##n(void* p) { shim::touch_at(p, n, shim::Touch::read, __builtin_return_address(0)); }  \
    SHIM_CALLED __tsan_write##n(void* p) { shim::touch_at(p, n, shim::Touch::write, __builtin_return_address(0)); } \
    SHIM_CALLED __tsan_unaligned_read##n(void* p) { shim::touch_at(p, n, shim::Touch::read, __builtin_return_address(0)); } \
    SHIM_CALLED __tsan_unaligned_write##n(void* p) { shim::touch_at(p, n, shim::Touch::write, __builtin_return_address(0)); }
#define SHIM_VOLATILE(n)              \
    SHIM_CALLED __tsan_volatile_read##n(void*) {} \
    SHIM_CALLED __tsan_volatile_write##n(void* p) { shim::touch_at(p, n, shim::Touch::write, __builtin_return_address(0)); }
SHIM_VOLATILE(1)
SHIM_VOLATILE(2)
SHIM_VOLATILE(4)
SHIM_VOLATILE(8)
SHIM_VOLATILE(16)
SHIM_TOUCHES(1)
SHIM_TOUCHES(2)
SHIM_TOUCHES(4)
SHIM_TOUCHES(8)
SHIM_TOUCHES(16)
SHIM_CALLED __tsan_read_range(void* p, size_t n) { shim::touch_at(p, n, shim::Touch::read, __builtin_return_address(0)); }
SHIM_CALLED __tsan_write_range(void* p, size_t n) { shim::touch_at(p, n, shim::Touch::write, __builtin_return_address(0)); }
SHIM_CALLED __tsan_func_entry(void*) {}
SHIM_CALLED __tsan_func_exit() {}
SHIM_CALLED __tsan_init() {}
SHIM_CALLED __tsan_vptr_update(void**, void*) {}
SHIM_CALLED __tsan_vptr_read(void**) {}
#endif
