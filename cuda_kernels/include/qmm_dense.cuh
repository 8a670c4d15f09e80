// A product with a whole matrix of quantised weights, which is shared out among blocks in units of (128 rows of W) x (256 of k). Each
// block takes an equal run of units, whatever the rows of x, so that all processors read as many bytes. Of rows of W that several
// blocks share, each leaves its partial sums, and the last to arrive adds them in the order of k. Runs depend on the shape of W and
// the number of blocks only: a row of x has the same bits in any company.
//   grid (blocks, rows of x / 16); partials float [y][x][2][8][4][32][2]; counters int, zero between launches
#pragma once
#include "qmm_core.cuh"
#include "qmm_epilogue.cuh"

#define QMM_PARTIAL (QMM_WARPS * 4 * 64)  // floats of a block's partial sums of a group

template <class Format>
struct DenseWork {
    const char* weights;
    int all_tiles, k_blocks, first_token, tokens;

    struct Cursor {
        const DenseWork& work;
        const char* tiles_at;
        int group, k_block;

        __device__ __forceinline__ const char* weights() const { return tiles_at; }
        __device__ __forceinline__ int tiles() const { return work.tiles_of(group); }
        __device__ __forceinline__ int block() const { return k_block; }
        __device__ __forceinline__ int row(int token) const {
            token += work.first_token;
            return token < work.tokens ? token : -1;
        }
        __device__ __forceinline__ void advance() {
            tiles_at += tiles() * Format::TILE_BYTES;
            if (++k_block < work.k_blocks) return;
            k_block = 0;
            group++;
        }
    };

    __device__ __forceinline__ int tiles_of(int group) const { return min(QMM_WARPS, all_tiles - QMM_WARPS * group); }
    __device__ __forceinline__ int tiles(int unit) const { return tiles_of(unit / k_blocks); }
    __device__ __forceinline__ int run(int unit) const { return k_blocks - unit % k_blocks; }
    __device__ __forceinline__ Cursor at(int unit) const {
        int group = unit / k_blocks, k_block = unit % k_blocks;
        size_t before = (size_t)group * QMM_WARPS * k_blocks + (size_t)k_block * tiles_of(group);
        return {*this, weights + before * Format::TILE_BYTES, group, k_block};
    }
};

// Which of all units a block takes: from first(block) on, until first(block + 1). The first `longer` blocks take one more.
struct Shares {
    int each, longer;
    int block, blocks;  // this one, of those that share the matrix

    __device__ __forceinline__ int first(int block) const { return block * each + min(block, longer); }
    __device__ __forceinline__ int owner(int unit) const {
        int in_longer = longer * (each + 1);
        return unit < in_longer ? unit / (each + 1) : longer + (unit - in_longer) / each;
    }
};

// What is used after a run only. In shared memory: in registers it would be all the time, with what follows from it.
struct BetweenRuns {
    Shares shares;
    int k_blocks, groups;
};

// Leaves this block's part of a group. True if the others of the group have come before: then `sums` are the whole sums.
template <int TILES>
__device__ __forceinline__ bool join(const Shares& shares, int group, int k_blocks, float* partials, int* counters, float sums[TILES][2]) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int first_unit = group * k_blocks, first = shares.owner(first_unit), last = shares.owner(first_unit + k_blocks - 1);
    if (first == last) return true;
    // Of a block's two partials the first is that of the group in which it starts.
    auto slot = [&](int block) {
        uint32_t which = shares.first(block) >= first_unit ? 0 : 1;
        uint32_t at = (blockIdx.y * shares.blocks + block) * 2 + which;  // of less than 16 GB
        return (float2*)partials + (at * (QMM_PARTIAL / 2) + warp * 4 * 32 + lane);
    };
    float2* mine = slot(shares.block);
    if (warp < QMM_WARPS) {
#pragma unroll
        for (int n = 0; n < TILES; n++) mine[32 * n] = make_float2(sums[n][0], sums[n][1]);
    }
    if (!last_to_arrive(counters + group, last - first + 1)) return false;
    if (warp == QMM_WARPS) return true;
#pragma unroll
    for (int n = 0; n < TILES; n++) sums[n][0] = sums[n][1] = 0.0f;
#pragma unroll 2
    for (int block = first; block <= last; block++) {
        const float2* theirs = slot(block);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            float2 part = __ldcg(theirs + 32 * n);
            sums[n][0] += part.x;
            sums[n][1] += part.y;
        }
    }
    return true;
}

// `tiles` of W and `shares` follow from its shape and the number of processors; the launcher has divided.
// `finish(group, first token, arrivals, sums)` gets what is whole; arrivals are counters that are zero, for each 256 packed values.
template <class Format, int TILES, class Finish>
__device__ __forceinline__ void multiply(const DenseWork<Format>& work, const Shares& shares, const PackedRows& x, float* partials,
                                         int* counters, Finish&& finish) {
    DYNAMIC_SHARED(char, memory);
    __shared__ BetweenRuns kept;
    if (threadIdx.x == 0) kept = {shares, work.k_blocks, (work.all_tiles + QMM_WARPS - 1) / QMM_WARPS};  // a run begins with a barrier
    int first = shares.first(shares.block), steps = shares.first(shares.block + 1) - first;
    walk<Format, TILES>(memory, x, work, first, steps, [&](int unit, float (&sums)[TILES][2]) {
        int group = unit / kept.k_blocks;
        int* joined = counters + blockIdx.y * 2 * kept.groups;  // then those of packed blocks
        if (!join<TILES>(kept.shares, group, kept.k_blocks, partials, joined, sums)) return;
        finish(group, forgotten(4 * TILES) * blockIdx.y, joined + kept.groups, sums);
    });
}
