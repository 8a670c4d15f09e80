// The table of sequences that decode on the device: see spec_accept.py, which says what each field is.
#pragma once
#include "base.cuh"

#define MAX_SEQUENCES 256

enum SequenceField {
    SEQ_STATE, SEQ_SLOT, SEQ_REQUEST, SEQ_PAST, SEQ_N_PENDING_ACCEPTED, SEQ_TOKEN, SEQ_END, SEQ_MAX_DRAFT, SEQ_P_MIN,
    SEQ_DRAFT_FIRST, SEQ_LENGTH, SEQ_DRAFTED, SEQ_FRESH, SEQ_FRESH_ROW, SEQ_ID, SEQ_FIELDS
};
enum SequenceState { SEQ_RUNS, SEQ_STOPPED, SEQ_FULL, SEQ_UNSURE, SEQ_EMPTY };

struct SequenceTable {
    int* table;
    int n;

    __device__ int& at(SequenceField field, int sequence) const { return table[field * n + sequence]; }
    __device__ bool runs(int sequence) const { return at(SEQ_STATE, sequence) == SEQ_RUNS; }
    // tokens that a draft may have: one more comes out behind it
    __device__ int room(int sequence) const { return max(0, at(SEQ_END, sequence) - at(SEQ_PAST, sequence) - 2); }
};
