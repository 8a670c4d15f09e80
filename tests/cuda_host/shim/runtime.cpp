// What is the same for all sources, compiled once: scheduler, meetings, asynchronous copies, faults.
#include "meetings.h"
#include "watchdog.h"

namespace shim {

static std::string formatted(const char* format, va_list arguments) {
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    return text;
}

void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    complain(named(*running) + ": " + formatted(format, arguments));
    va_end(arguments);
    to_scheduler(true);
    __builtin_unreachable();
}

void fail_at(const char* operation, Where where, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::string text = formatted(format, arguments);
    va_end(arguments);
    fail("%s %s: %s", operation, shown(where).c_str(), text.c_str());
}

// Here and where it waits a thread may give way to others; between other instructions it is not interrupted.
void interrupt() {
    if (++running->atomics > most_atomics) fail("a million atomic operations: does it wait for a block that is not running?");
    if (!seeded() || chance(4)) return;
    scheduler->interrupted = true;
    pause();
}

bool is_shared(const void* p) {
    const char* at = static_cast<const char*>(p);
    const char* dynamic = running->block->dynamic;
    bool in_dynamic = dynamic && at >= dynamic && at < dynamic + grid.request->shared;
    return in_dynamic || (at >= __bss_start && at < _end);
}

char* dynamic_shared(Where where) {
    if (!running->block->dynamic) fail_at("DYNAMIC_SHARED", where, "the launch asks for no dynamic shared memory");
    return running->block->dynamic;
}

// Asynchronous copies ----------------------------------------------------------------------------
// The device may do them at any time between start and wait. So the target is garbage from the start on and right only
// after the wait, and a source that changes in between is a fault.

void start_copy(void* shared, const void* global, Where where) {
    Copies& copies = *running->copies;
    Copy copy{static_cast<char*>(shared), static_cast<const char*>(global), {}, copies.groups};
    uintptr_t places = reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global);
    if (places % 16) fail_at("cp_async_16", where, "an address is not a multiple of 16");
    if (!is_shared(shared)) fail_at("cp_async_16", where, "its target is not in shared memory");
    touch(global, 16, Touch::read);
    touch(shared, 16, Touch::write);
    memcpy(copy.seen, copy.from, 16);
    for (int i = 0; i < 16; i += 2) memcpy(copy.to + i, &garbage, 2);
    copies.under_way.push_back(copy);
}

void commit_copies() { running->copies->groups++; }

void finish_copies(int pending, Where where) {
    Copies& copies = *running->copies;
    size_t kept = 0;
    for (const Copy& copy : copies.under_way) {
        if (copy.group >= copies.groups - pending) {
            copies.under_way[kept++] = copy;
            continue;
        }
        if (memcmp(copy.seen, copy.from, 16))
            fail_at("cp_async_wait", where, "the source of a copy was written while the copy was under way");
        touch(copy.to, 16, Touch::write);
        memcpy(copy.to, copy.seen, 16);
    }
    copies.under_way.resize(kept);
}

// ------------------------------------------------------------------------------------------------

#ifdef __SANITIZE_ADDRESS__
// A report ends the launch, not the process; what it says goes to request.error.
static void on_report(const char* text) {
    if (scheduler->failed) return;
    scheduler->failed = true;
    snprintf(grid.request->error, grid.request->error_bytes, "%s", text);
}
#endif

int launch(Request* request, void (*body)(void*), void* context) {
    if (!scheduler) scheduler = new Scheduler;
    grid.request = request;
    grid.size = dim3(request->grid[0], request->grid[1], request->grid[2]);
    grid.block_size = dim3(request->block[0], request->block[1], request->block[2]);
    grid.n_threads = static_cast<int>(request->block[0] * request->block[1] * request->block[2]);
    scheduler->body = body;
    scheduler->context = context;
    scheduler->random = request->seed * 0x9e3779b97f4a7c15ull | 1;
    scheduler->failed = false;
    scheduler->loaded = nullptr;
#ifdef __SANITIZE_ADDRESS__
    __asan_set_error_report_callback(on_report);
#endif
    std::vector<char> before(statics_bytes());  // what is no shared memory is found again as it was
    move_bytes(before.data(), __bss_start, before.size());
    {
        Watchdog watchdog(request->limit_s);
        run_grid();
    }
    move_bytes(__bss_start, before.data(), before.size());
    return scheduler->failed;
}

}  // namespace shim
