// How a kernel is called from outside: SHIM_KERNEL(name) exports `shim_launch_name` and `shim_signature_name`.
#pragma once
#include <utility>

#include "cuda_host.h"

namespace shim {

// A parameter: kind (i signed, u unsigned, f float, b bool, p pointer, other) and bytes; of a pointer also whether
// it is const, and what it points to.
template <class T>
inline std::string described() {
    const char* kind = std::is_same<T, bool>::value ? "b"
                       : std::is_floating_point<T>::value ? "f"
                       : std::is_integral<T>::value ? (std::is_signed<T>::value ? "i" : "u")
                                                    : "v";
    return kind + std::to_string(sizeof(T));
}
template <>
inline std::string described<void>() {
    return "v1";
}
template <class T>
struct Parameter {
    static std::string text() { return described<T>(); }
};
template <class T>
inline size_t alignment() {
    return alignof(T);
}
template <>
inline size_t alignment<void>() {
    return 1;
}
template <class T>
struct Parameter<T*> {
    typedef typename std::remove_cv<T>::type Pointee;
    static std::string text() {
        return std::string("p") + (std::is_const<T>::value ? "c" : "m") + std::to_string(alignment<Pointee>()) + ":" +
               described<Pointee>();
    }
};

template <class... A>
inline std::string signature(void (*)(A...)) {
    std::string text;
    for (const std::string& one : {Parameter<typename std::remove_cv<A>::type>::text()...})
        text += (text.empty() ? "" : " ") + one;
    return text;
}

template <class... A>
struct Call {
    void (*kernel)(A...);
    void** arguments;
    static void run(void* self) { static_cast<Call*>(self)->with(std::index_sequence_for<A...>()); }
    template <size_t... i>
    void with(std::index_sequence<i...>) {
        kernel(*static_cast<typename std::remove_reference<A>::type*>(arguments[i])...);
    }
};

inline size_t blocks_in_flight(uint64_t n_blocks) {
    Request& request = *grid->request;
    uint64_t wanted = request.in_flight ? request.in_flight : seeded() ? 2 + chance(5) : 1;
    uint64_t room = 2048 / grid->n_threads;  // threads of a multiprocessor
    if (room == 0) room = 1;
    if (wanted > room) wanted = room;
    return static_cast<size_t>(wanted < n_blocks ? wanted : n_blocks);
}

inline char* new_dynamic() {
    size_t n = grid->request->shared;
    if (!n) return nullptr;
#ifdef __SANITIZE_ADDRESS__
    return static_cast<char*>(malloc(n));  // exactly, so that the next byte is out of bounds
#else
    char* p = static_cast<char*>(aligned_alloc(128, (n + guard_bytes + 127) / 128 * 128));
    memset(p + n, 0xa5, guard_bytes);
    return p;
#endif
}

inline void run_grid() {
    Request& request = *grid->request;
    uint64_t n_blocks = static_cast<uint64_t>(request.grid[0]) * request.grid[1] * request.grid[2];
    std::vector<uint64_t> order(n_blocks);
    for (uint64_t i = 0; i < n_blocks; i++) order[i] = i;
    for (uint64_t i = n_blocks; seeded() && i > 1; i--) std::swap(order[i - 1], order[chance(static_cast<uint32_t>(i))]);
    grid->blocks = std::vector<Block>(blocks_in_flight(n_blocks));
    if (!grid->stacks.grow(grid->blocks.size() * grid->n_threads)) return complain("no memory for the stacks of threads");
    for (Block& block : grid->blocks) block.dynamic = new_dynamic();
    run_blocks(order);
    for (Block& block : grid->blocks) free(block.dynamic);
    grid->blocks.clear();
}

#ifdef __SANITIZE_ADDRESS__
// A report ends the launch, not the process; what it says goes to request.error.
inline void on_report(const char* text) {
    if (grid->failed) return;
    grid->failed = true;
    snprintf(grid->request->error, grid->request->error_bytes, "%s", text);
}
#endif

static Grid* kept = reinterpret_cast<Grid*>(16);  // from launch to launch: it owns the stacks

// 0: done; 1: request.error says why not.
template <class... A>
inline int launch(void (*kernel)(A...), Request* request) {
    if (kept == reinterpret_cast<Grid*>(16)) kept = new Grid;
    Call<A...> call{kernel, request->arguments};
    grid = kept;
    grid->request = request;
    grid->size = dim3(request->grid[0], request->grid[1], request->grid[2]);
    grid->block_size = dim3(request->block[0], request->block[1], request->block[2]);
    grid->n_threads = static_cast<int>(request->block[0] * request->block[1] * request->block[2]);
    grid->body = Call<A...>::run;
    grid->context = &call;
    grid->random = request->seed * 0x9e3779b97f4a7c15ull | 1;
    grid->failed = false;
#ifdef __SANITIZE_ADDRESS__
    __asan_set_error_report_callback(on_report);
#endif
    grid->loaded = nullptr;
    std::vector<char> before(statics_bytes());  // what is no shared memory is found again as it was
    move_bytes(before.data(), __bss_start, before.size());
    run_grid();
    move_bytes(__bss_start, before.data(), before.size());
    return grid->failed;
}

}  // namespace shim

#define SHIM_KERNEL(name)                                                                   \
    extern "C" int shim_launch_##name(shim::Request* request) { return shim::launch(name, request); } \
    extern "C" const char* shim_signature_##name() {                                        \
        static std::string* text = reinterpret_cast<std::string*>(16);                      \
        if (text == reinterpret_cast<std::string*>(16)) text = new std::string(shim::signature(name)); \
        return text->c_str();                                                               \
    }
