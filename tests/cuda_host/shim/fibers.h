// Stacks that take turns on one CPU thread: a CUDA thread runs on a stack of its own (a fiber) and hands
// the CPU over when it waits. Only callee-saved registers change hands; the floating-point modes are common.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace shim {

extern "C" void shim_switch(void** saved, void* target) __attribute__((visibility("hidden")));

#if defined(__x86_64__)
__asm__(
    ".text\n"
    ".type shim_switch,@function\n"
    "shim_switch:\n"
    "  pushq %rbp\n"
    "  pushq %rbx\n"
    "  pushq %r12\n"
    "  pushq %r13\n"
    "  pushq %r14\n"
    "  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n"
    "  popq %r14\n"
    "  popq %r13\n"
    "  popq %r12\n"
    "  popq %rbx\n"
    "  popq %rbp\n"
    "  ret\n"
    ".size shim_switch, .-shim_switch\n");

// What the first switch to a fresh stack pops: six registers, then where to go. `entry` finds the stack as if called.
inline void* fresh_stack(char* top, void (*entry)()) {
    void** p = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15));
    *--p = nullptr;
    *--p = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; i++) *--p = nullptr;
    return p;
}
#elif defined(__aarch64__)
__asm__(
    ".text\n"
    ".type shim_switch,%function\n"
    "shim_switch:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp]\n"
    "  stp x21, x22, [sp, #16]\n"
    "  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n"
    "  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n"
    "  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n"
    "  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n"
    "  str x9, [x0]\n"
    "  mov sp, x1\n"
    "  ldp x19, x20, [sp]\n"
    "  ldp x21, x22, [sp, #16]\n"
    "  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n"
    "  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n"
    "  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n"
    "  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n"
    ".size shim_switch, .-shim_switch\n");

inline void* fresh_stack(char* top, void (*entry)()) {
    char* p = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15)) - 160;
    memset(p, 0, 160);
    memcpy(p + 88, &entry, sizeof entry);  // x30: where ret goes
    return p;
}
#else
#error "the shim switches stacks on x86-64 and aarch64 only"
#endif

#ifdef __SANITIZE_ADDRESS__
constexpr size_t stack_bytes = 256 << 10;
#else
constexpr size_t stack_bytes = 64 << 10;
#endif
constexpr uint64_t stack_mark = 0x5a5ac0deda7a5a5aull;  // at the far end of a stack: still there unless it overflowed

// One mapping for the stacks of all fibers, kept from launch to launch.
struct Stacks {
    char* memory = nullptr;
    size_t count = 0;

    bool grow(size_t wanted) {
        if (wanted <= count) return true;
#ifdef __SANITIZE_ADDRESS__
        // Others get these addresses next, Python's own memory among them.
        if (memory) ASAN_UNPOISON_MEMORY_REGION(memory, count * stack_bytes);
#endif
        if (memory) munmap(memory, count * stack_bytes);
        count = 0;
        void* p = mmap(nullptr, wanted * stack_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        memory = p == MAP_FAILED ? nullptr : static_cast<char*>(p);
        if (memory) count = wanted;
        return memory != nullptr;
    }
    char* low(size_t i) const { return memory + i * stack_bytes; }
    void* start(size_t i, void (*entry)()) const {
#ifdef __SANITIZE_ADDRESS__
        ASAN_UNPOISON_MEMORY_REGION(low(i), stack_bytes);  // whoever ran here may have been dropped midway
#endif
        memcpy(low(i), &stack_mark, sizeof stack_mark);
        size_t shade = i % 29 * 128;  // or the tops of all stacks would share a few lines of the cache
        return fresh_stack(low(i) + stack_bytes - shade, entry);
    }
    bool overflowed(size_t i) const { return memcmp(low(i), &stack_mark, sizeof stack_mark) != 0; }
};

}  // namespace shim
