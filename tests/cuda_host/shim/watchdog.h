// Ends a launch that does not come to an end: a thread that waits for memory to change, without an atomic, for a
// block that is not running. A timer of the CPU thread's own time interrupts it in the middle of whatever it does.
#pragma once
#include "state.h"

#ifdef __linux__
#include <csignal>
#include <ctime>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace shim {

inline int watchdog_signal() { return SIGRTMIN + 9; }

// The interrupted thread does not go on.
inline void on_time_up(int) {
    if (!scheduler->in_thread) return;
    if (!scheduler->failed) {
        scheduler->failed = true;
        const dim3 &t = running->index, &b = running->block->index;
        snprintf(grid.request->error, grid.request->error_bytes,
                 "thread (%u, %u, %u) of block (%u, %u, %u): it has been running for too long: does it wait for a block "
                 "that is not running?", t.x, t.y, t.z, b.x, b.y, b.z);
    }
    to_scheduler(true);
}

struct Watchdog {
    timer_t timer;
    struct sigaction before;
    bool is_set = false;

    explicit Watchdog(double seconds) {
        struct sigaction action = {};
        action.sa_handler = on_time_up;
        action.sa_flags = SA_NODEFER;  // it does not return
        sigaction(watchdog_signal(), &action, &before);
        struct sigevent event = {};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = watchdog_signal();
        event.sigev_notify_thread_id = static_cast<pid_t>(syscall(SYS_gettid));
        is_set = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) == 0;
        struct itimerspec when = {};
        when.it_value.tv_sec = static_cast<time_t>(seconds);
        when.it_value.tv_nsec = static_cast<long>((seconds - static_cast<double>(when.it_value.tv_sec)) * 1e9);
        when.it_interval.tv_nsec = 100000000;
        if (is_set) timer_settime(timer, 0, &when, nullptr);
    }
    ~Watchdog() {
        if (is_set) timer_delete(timer);
        sigaction(watchdog_signal(), &before, nullptr);
    }
};

}  // namespace shim
#else
namespace shim {
struct Watchdog {
    explicit Watchdog(double) {}
};
}  // namespace shim
#endif
