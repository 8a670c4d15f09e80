// A running grid as kernels see it: its threads, what they may ask of the scheduler, and how they complain.
// All of it lives in runtime.cpp, which is compiled once and linked to every source.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

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
};

enum class State : uint8_t { ready, at_barrier, in_warp, returned };

struct Block;
struct Copies;  // cp.async under way

struct Fiber {  // a CUDA thread
    dim3 index;
    int lane, warp, number;
    Block* block;
    State state;
    // what it waits for
    const char* operation;
    Where where;
    unsigned mask;
    void* operands;
    // the scheduler's
    void* stack_pointer;
    size_t stack;
    Copies* copies;
    long atomics;
};

struct Warp {
    unsigned ready;  // lanes that can run
    unsigned arrived;  // at a meeting under way; lanes of other masks meet beside it
    const Fiber* first;  // to arrive
    Fiber* lanes;
    int n_lanes;
};

struct ArrayArgument {
    const char* at;
    uint64_t bytes;
    uint32_t argument;  // which one it is
    uint32_t was_written;  // an earlier launch may have
};

struct Request {  // as launcher.py fills it
    unsigned grid[3];
    unsigned block[3];
    uint64_t shared;
    uint64_t seed;
    uint64_t in_flight;  // blocks, at most; 0: as the seed says
    double limit_s;  // of CPU time
    void** arguments;
    char* error;
    uint64_t error_bytes;
    const ArrayArgument* arrays;
    uint64_t n_arrays;
    uint64_t waited;  // out: threads that called wait_for_previous
    uint64_t switches;  // out
};

struct Block {
    dim3 index;
    uint64_t number;
    Fiber* threads;
    Warp* warps;
    int n_warps;
    char* dynamic;  // shared memory
    char* statics;  // shared memory declared in the source, while another block runs
    bool is_saved;
    bool is_live;
    int n_returned, n_waiting, votes;
    int verdict;  // votes of the last barrier
};

struct Grid {
    dim3 size, block_size;
    int n_threads;  // of a block
    Request* request;
};

constexpr uint16_t garbage = 0x7ff5;  // NaN as half, bfloat16, float and double

// Not among the zeros (.bss): that is where `__shared__` variables lie, which are filled for every block.
extern Grid grid;
extern Fiber* running;

// Ends the launch; the thread that found the fault does not go on. printf's format
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void fail_at(const char* operation, Where where, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

// Comes to a meeting of the lanes of `mask`. False: all have met, `operands` hold the result. True: the caller is the
// last, works the results out for all (`brought`), then lets them go on.
bool meet(const char* operation, unsigned mask, Where where, void* operands);
void go_on(unsigned mask);
int block_barrier(const char* operation, bool vote, Where where);  // how many threads voted yes

void interrupt();  // a point where others may run

// For the search for races (races.h); nothing otherwise.
enum class Touch : uint8_t { read, write, atomic };
void touch(const void* p, size_t bytes, Touch kind);  // what a function does that is not compiled for the search
void order_warp(unsigned mask);  // __syncwarp
void order_grid();  // __threadfence
void order_launch();  // wait_for_previous
bool is_shared(const void* p);
char* dynamic_shared(Where where);

void start_copy(void* shared, const void* global, Where where);
void commit_copies();
void finish_copies(int pending, Where where);

// Runs body(context) on every thread of the grid. 0: done; 1: request->error says why not.
int launch(Request* request, void (*body)(void*), void* context);

}  // namespace shim
