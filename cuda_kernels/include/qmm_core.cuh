// The inner part of all products with quantised weights: a block walks over steps of (8 tiles of 16 rows) x (256 of k), each of its
// 8 warps one tile, for up to 4 * TILES rows of activations (which are columns here). Weights and activations arrive through a
// ring of stages in shared memory; a lane ends with the sums of weight rows group and group + 8, for tokens 4 n + t.
//
// The two planes of a token are neighbouring columns of a product, so one of 8 columns takes 4 tokens and a lane holds both planes of
// its token. Nothing of a column depends on another column, and the order of additions of a sum is that of the steps.
//
// The caller brings a cursor, which says what a step is:
//   const char* weights()    the tiles of the step, one behind the other
//   int tiles()              how many of them there are, 1 to 8
//   int block()              which 256 of k
//   int row(int token)       the row of the packed activations, or -1
//   bool ends()              is it the last step of a run, after which `finish` gets the sums?
//   void advance()           on to the next step
#pragma once
#include "mma.cuh"
#include "packed.cuh"
#include "qmm_formats_32.cuh"

#define QMM_WARPS 8
#define QMM_THREADS 256
#define QMM_PITCH 288  // bytes of a column's 256 values in shared memory: 32 beyond, so that 8 columns lie in different banks
#define QMM_SHARED 100352  // what the ring may take: all of a block's 99 KB on the smaller GPUs, twice on the larger ones

// Sums and scales of the activations of a step. They go through registers, as the sums become halves on the way.
template <int TILES>
struct StepNumbers {
    uint32_t sums[8 * TILES][8];  // [column]: sums of 16 as halves; pair i of the file's order at 2 * (i & 3) + (i >> 2)
    float d[4 * TILES];
};

template <class Format, int TILES>
struct Ring {
    static constexpr int WEIGHTS = QMM_WARPS * Format::TILE_BYTES, COLUMNS = 8 * TILES * QMM_PITCH;
    static constexpr int FIT = (QMM_SHARED - 2 * (int)sizeof(StepNumbers<TILES>)) / (WEIGHTS + COLUMNS);
    static constexpr int STAGES = FIT > 4 ? 4 : FIT;
    static constexpr int BYTES = STAGES * (WEIGHTS + COLUMNS) + 2 * (int)sizeof(StepNumbers<TILES>);
    static_assert(STAGES >= 2, "two stages must fit");
    char* memory;

    __device__ __forceinline__ char* weights(int stage) const { return memory + stage * WEIGHTS; }
    __device__ __forceinline__ char* columns(int stage) const { return memory + STAGES * WEIGHTS + stage * COLUMNS; }
    __device__ __forceinline__ StepNumbers<TILES>* numbers(int which) const {
        return (StepNumbers<TILES>*)(memory + STAGES * (WEIGHTS + COLUMNS)) + which;
    }
};

// A warp fetches its own tile, which no other warp reads.
template <class Format>
__device__ __forceinline__ void fetch_weights(char* stage, const char* weights, int tiles) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (warp >= tiles) return;
    char* to = stage + warp * Format::TILE_BYTES;
    const char* from = weights + warp * Format::TILE_BYTES;
    constexpr int whole = Format::TILE_BYTES / 512;
#pragma unroll
    for (int i = 0; i < whole; i++) cp_async_16(to + 512 * i + 16 * lane, from + 512 * i + 16 * lane);
    if (lane < (Format::TILE_BYTES - 512 * whole) / 16) cp_async_16(to + 512 * whole + 16 * lane, from + 512 * whole + 16 * lane);
}

// The block fetches the values of all columns. What no token fills stays what it was: it ends in columns that nobody reads.
template <int TILES, class Cursor>
__device__ __forceinline__ void fetch_columns(char* stage, const PackedRows& x, const Cursor& cursor) {
#pragma unroll
    for (int first = 0; first < 128 * TILES; first += QMM_THREADS) {
        int i = first + threadIdx.x, column = i >> 4, piece = 16 * (i & 15);
        int row = i < 128 * TILES ? cursor.row(column >> 1) : -1;
        if (row < 0) continue;
        const int8_t* from = x.q + (size_t)(2 * row + (column & 1)) * x.width + PACK_BLOCK * cursor.block() + piece;
        cp_async_16(stage + QMM_PITCH * column + piece, from);
    }
}

// What thread i brings of a step's numbers: two sums of column i / 8, and the scale of token i.
template <class Format, int TILES>
struct Carried {
    uint32_t sums;
    float d;

    template <class Cursor>
    __device__ __forceinline__ void fetch(const PackedRows& x, const Cursor& cursor) {
        int i = threadIdx.x, blocks = x.width / PACK_BLOCK;
        sums = 0;
        d = 0.0f;
        if (Format::MINIMA && i < 64 * TILES) {
            int row = cursor.row(i >> 4), plane = (i >> 3) & 1;
            size_t at = ((size_t)(2 * row + plane) * blocks + cursor.block()) * PACK_SUMS + 8;
            if (row >= 0) sums = ((const uint32_t*)(x.s + at))[i & 7];
        }
        if (i < 4 * TILES) {
            int row = cursor.row(i);
            if (row >= 0) d = x.d[(size_t)row * blocks + cursor.block()];
        }
    }
    __device__ __forceinline__ void store(StepNumbers<TILES>* numbers) const {
        int i = threadIdx.x;
        if (Format::MINIMA && i < 64 * TILES) {
            float low = (float)(int16_t)(sums & 0xffff), high = (float)(int16_t)(sums >> 16);
            numbers->sums[i >> 3][2 * (i & 3) + ((i >> 2) & 1)] = floats_to_half2(low, high);
        }
        if (i < 4 * TILES) numbers->d[i] = d;
    }
};

template <class Format>
__device__ __forceinline__ void product_32(int d[4], const uint32_t a[4], const uint2& b) {
    const int zero[4] = {0, 0, 0, 0};
    const uint32_t words[2] = {b.x, b.y};
    if constexpr (Format::UNSIGNED) mma_u8(d, a, words, zero);
    else mma_s8(d, a, words, zero);
}

// Integer scales: all of a super-block is added up as integers, and one float scale finishes 256 values.
template <class Format, int TILES>
struct IntegerSums {
    int sums[TILES][Format::ODD_SHIFT ? 2 : 1][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[n][0][i] = sums[n][Format::ODD_SHIFT ? 1 : 0][i] = 0;
    }
    __device__ __forceinline__ void add(int n, int j, const int p[4], int scale, int scale_8) {
        int* to = sums[n][Format::ODD_SHIFT ? j & 1 : 0];
        to[0] += scale * p[0];
        to[1] += scale * p[1];
        to[2] += scale_8 * p[2];
        to[3] += scale_8 * p[3];
    }
    __device__ __forceinline__ void sub_block(const Format& tile, int j, const uint32_t a[4], int n, const uint2& b) {
        int p[4];
        if constexpr (Format::GROUP == 32) {
            product_32<Format>(p, a, b);
            add(n, j, p, tile.scale(0, j), tile.scale(1, j));
        } else {
            const int zero[4] = {0, 0, 0, 0};
            mma_s8_k16(p, a, b.x, zero);
            add(n, j, p, tile.scale(0, 2 * j), tile.scale(1, 2 * j));
            mma_s8_k16(p, a + 2, b.y, zero);
            add(n, j, p, tile.scale(0, 2 * j + 1), tile.scale(1, 2 * j + 1));
        }
    }
    // The sum of weight row group + 8 r, without the offsets.
    __device__ __forceinline__ float total(const Format& tile, int n, int r) const {
        int high = sums[n][0][2 * r], low = sums[n][0][2 * r + 1];
        if constexpr (Format::ODD_SHIFT != 0) {
            high = (high << Format::ODD_SHIFT) + sums[n][1][2 * r];
            low = (low << Format::ODD_SHIFT) + sums[n][1][2 * r + 1];
        }
        return fmaf(128.0f, (float)high, (float)low) * tile.unit(r);
    }
};

// Float scales: 32 values with both planes fit an integer, and each 32 are added as floats.
template <class Format, int TILES>
struct FloatSums {
    float sums[TILES][2];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < TILES; n++) sums[n][0] = sums[n][1] = 0.0f;
    }
    __device__ __forceinline__ void sub_block(const Format& tile, int j, const uint32_t a[4], int n, const uint2& b) {
        int p[4];
        product_32<Format>(p, a, b);
        sums[n][0] = fmaf((float)(128 * p[0] + p[1]), tile.scale(0, j), sums[n][0]);
        sums[n][1] = fmaf((float)(128 * p[2] + p[3]), tile.scale(1, j), sums[n][1]);
    }
    __device__ __forceinline__ float total(const Format& tile, int n, int r) const { return sums[n][r] * Format::UNIT; }
};

template <bool integer, class Format, int TILES>
struct SumsOf { typedef IntegerSums<Format, TILES> Type; };
template <class Format, int TILES>
struct SumsOf<false, Format, TILES> { typedef FloatSums<Format, TILES> Type; };

// Adds a tile times its 256 of k to the sums [n][r]: token 4 n + t, weight row group + 8 r.
template <class Format, int TILES>
__device__ __forceinline__ void multiply_tile(const char* weights, const char* columns, const StepNumbers<TILES>* numbers,
                                              float sums[TILES][2]) {
    int lane = threadIdx.x & 31, group = lane >> 2, t = lane & 3;
    Format tile;
    tile.load(weights, lane);
    const char* values = columns + QMM_PITCH * group + 8 * t;
    typename SumsOf<Format::INTEGER, Format, TILES>::Type step;
    step.clear();
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t a[4];
        tile.fragment(j, a);
#pragma unroll
        for (int n = 0; n < TILES; n++)
            step.sub_block(tile, j, a, n, *(const uint2*)(values + 8 * QMM_PITCH * n + 32 * j));
    }
    uint32_t offsets[4];
    if constexpr (Format::MINIMA != 0) tile.offset_halves(offsets);
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        float shift[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if constexpr (Format::MINIMA != 0) {
            uint2 pairs = *(const uint2*)&numbers->sums[8 * n + group][2 * t];
            const uint32_t b[2] = {pairs.x, pairs.y};
            const float zero[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            mma_f16(shift, offsets, b, zero);
        }
        float d = numbers->d[4 * n + t];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float value = step.total(tile, n, r);
            if constexpr (Format::MINIMA != 0)
                value = fmaf((float)Format::MINIMA * tile.minimum(r), fmaf(128.0f, shift[2 * r], shift[2 * r + 1]), value);
            sums[n][r] = fmaf(d, value, sums[n][r]);
        }
    }
}

// Walks `steps` steps from the cursor. `finish(cursor, sums)` is called by all threads after a step that ends a run, and after the
// last one. Weights are asked for before what an earlier kernel wrote is waited for. `ring` is shared memory, aligned to 16 bytes.
template <class Format, int TILES, class Cursor, class Finish>
__device__ __forceinline__ void walk(char* memory, const PackedRows& x, Cursor cursor, int steps, Finish&& finish) {
    typedef Ring<Format, TILES> Stages;
    Stages ring{memory};
    Cursor ahead = cursor;  // what is fetched next
    Cursor numbered = cursor;
    int warp = threadIdx.x >> 5;
#pragma unroll
    for (int i = 0; i < Stages::STAGES - 1; i++) {
        if (i < steps) fetch_weights<Format>(ring.weights(i), ahead.weights(), ahead.tiles());
        ahead.advance();
    }
    let_next_start();
    wait_for_previous();
    ahead = cursor;
#pragma unroll
    for (int i = 0; i < Stages::STAGES - 1; i++) {
        if (i < steps) fetch_columns<TILES>(ring.columns(i), x, ahead);
        cp_async_commit();
        ahead.advance();
    }
    Carried<Format, TILES> carried;
    carried.fetch(x, numbered);
    carried.store(ring.numbers(0));
    numbered.advance();
    if (steps > 1) carried.fetch(x, numbered);

    float sums[TILES][2] = {};
    int stage = 0, free_stage = Stages::STAGES - 1;
    for (int step = 0; step < steps; step++) {
        cp_async_wait<Stages::STAGES - 2>();
        __syncthreads();  // this step is here for all, and nobody reads the one before it any more
        if (step + Stages::STAGES - 1 < steps) {
            fetch_weights<Format>(ring.weights(free_stage), ahead.weights(), ahead.tiles());
            fetch_columns<TILES>(ring.columns(free_stage), x, ahead);
            ahead.advance();
        }
        cp_async_commit();
        if (step + 1 < steps) {
            carried.store(ring.numbers((step + 1) & 1));
            numbered.advance();
            if (step + 2 < steps) carried.fetch(x, numbered);
        }
        if (warp < cursor.tiles())
            multiply_tile<Format, TILES>(ring.weights(stage) + warp * Format::TILE_BYTES, ring.columns(stage),
                                         ring.numbers(step & 1), sums);
        if (cursor.ends() || step + 1 == steps) {
            finish(cursor, sums);
#pragma unroll
            for (int n = 0; n < TILES; n++) sums[n][0] = sums[n][1] = 0.0f;
        }
        cursor.advance();
        stage = stage + 1 == Stages::STAGES ? 0 : stage + 1;
        free_stage = free_stage + 1 == Stages::STAGES ? 0 : free_stage + 1;
    }
}
