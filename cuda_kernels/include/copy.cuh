// Copies of whole memory areas by 16 bytes, a piece for each turn of a block: all of a piece is under way at once.
#pragma once
#include "base.cuh"

#define COPY_THREADS 256
#define COPY_BLOCKS 5  // on a multiprocessor; each has 16 KB under way
#define COPY_DEPTH 4
#define COPY_PIECE (COPY_THREADS * COPY_DEPTH)  // of 16 bytes

__device__ __forceinline__ int copy_pieces(int n_vectors) { return (n_vectors + COPY_PIECE - 1) / COPY_PIECE; }

// Piece `piece` of n_vectors times 16 bytes. No source: zeros. No target: nothing.
__device__ __forceinline__ void copy_piece(void* to, const void* from, int n_vectors, int piece) {
    if (!to) return;
    int first = piece * COPY_PIECE + threadIdx.x;
    uint4 held[COPY_DEPTH];
#pragma unroll
    for (int i = 0; i < COPY_DEPTH; i++) {
        int at = first + i * COPY_THREADS;
        held[i] = make_uint4(0, 0, 0, 0);
        if (from && at < n_vectors) held[i] = load_once((const uint4*)from + at);
    }
#pragma unroll
    for (int i = 0; i < COPY_DEPTH; i++) {
        int at = first + i * COPY_THREADS;
        if (at < n_vectors) ((uint4*)to)[at] = held[i];
    }
}
