// What the compiler's own checks (-fsanitize=alignment,...) call when one fails: the launch ends with the line of the
// kernel. A CPU reads a float4 from anywhere; a device does not.
#pragma once
#include "threads.h"

namespace shim {

struct Place {  // as the compiler lays it out
    const char* file;
    uint32_t line, column;
};
struct Mismatch {
    Place place;
    const void* type;
    uint8_t log_alignment, kind;
};

[[noreturn]] inline void undefined(const Place& place, const char* what, long number) {
    fail_at("undefined", {place.file, static_cast<int>(place.line)}, what, number);
}

}  // namespace shim

#define SHIM_HANDLER extern "C" __attribute__((visibility("hidden"), used)) void

SHIM_HANDLER __ubsan_handle_type_mismatch_v1(shim::Mismatch* at, uintptr_t address) {
    long alignment = 1L << at->log_alignment;
    if (address == 0) shim::undefined(at->place, "access through a null pointer", 0);
    if (address % alignment) shim::undefined(at->place, "an address is not a multiple of %ld", alignment);
    shim::undefined(at->place, "access beyond an object", 0);
}
SHIM_HANDLER __ubsan_handle_out_of_bounds(shim::Place* at, uintptr_t index) {
    shim::undefined(*at, "index %ld is not in the array", static_cast<long>(index));
}
SHIM_HANDLER __ubsan_handle_shift_out_of_bounds(shim::Place* at, uintptr_t, uintptr_t by) {
    shim::undefined(*at, "a shift by %ld bits", static_cast<long>(by));
}
SHIM_HANDLER __ubsan_handle_divrem_overflow(shim::Place* at, uintptr_t, uintptr_t) {
    shim::undefined(*at, "a division by zero, or its result does not fit", 0);
}
