// The table of sequences that decode on the device: see spec_accept.py, which says what each field is.
#pragma once
#include "base.cuh"

#define MAX_LINES 256

enum LineField {
    LINE_STATE, LINE_SLOT, LINE_REQUEST, LINE_PAST, LINE_N_PENDING_ACCEPTED, LINE_TOKEN, LINE_END, LINE_MAX_DRAFT, LINE_P_MIN,
    LINE_DRAFT_FIRST, LINE_LENGTH, LINE_DRAFTED, LINE_FRESH, LINE_FRESH_ROW, LINE_TEXT, LINE_FIELDS
};
enum LineState { LINE_RUNS, LINE_STOPPED, LINE_FULL, LINE_UNSURE, LINE_EMPTY };

struct Lines {
    int* table;
    int n;

    __device__ int& at(LineField field, int line) const { return table[field * n + line]; }
    __device__ bool runs(int line) const { return at(LINE_STATE, line) == LINE_RUNS; }
    // tokens that a draft may have: one more comes out behind it
    __device__ int room(int line) const { return max(0, at(LINE_END, line) - at(LINE_PAST, line) - 2); }
};
