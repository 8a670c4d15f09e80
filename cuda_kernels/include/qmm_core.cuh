// The inner part of all products with quantised weights: a block walks over steps of (8 tiles of 16 rows) x (256 of k). A ninth
// warp fetches weights and activations through a ring of stages in shared memory; each of the other 8 multiplies a tile with up to
// 4 * TILES rows of activations (which are columns here), so that a lane ends with the sums of weight rows group and group + 8 for
// tokens 4 n + t.
//
// The two planes of a token are neighbouring columns of a product, so one of 8 columns takes 4 tokens and a lane holds both planes of
// its token. Nothing of a column depends on another column, and the order of additions of a sum is that of the steps.
//
// Unit i goes through stage i modulo their number. The caller brings `work`, whose units are steps in order:
//   int run(int unit)        units from here to the end of the run, after which `finish` gets the sums
//   int tiles(int unit)      how many tiles its units have, 1 to 8; the same within a run
//   Cursor at(int unit)      for the fetching warp, with
//     const char* weights()    the tiles of the unit, one behind the other
//     int tiles()
//     int block()              which 256 of k
//     int row(int token)       the row of the packed activations, or -1; all lanes of the warp ask
//     void advance()           on to the next unit
#pragma once
#include "mma.cuh"
#include "packed.cuh"
#include "qmm_formats_16.cuh"
#include "qmm_formats_32.cuh"

#define QMM_WARPS 8
#define QMM_THREADS 288
#define QMM_PITCH 288  // bytes of a column's 256 values in shared memory: 32 beyond, so that 8 columns lie in different banks
#define QMM_SHARED 100352  // what the ring may take: all of a block's 99 KB on the smaller GPUs, twice on the larger ones

// Two blocks share a processor where its memory holds two rings. (It would on sm_100, too, but then registers are short.)
#ifndef QMM_BLOCKS
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define QMM_BLOCKS 2
#else
#define QMM_BLOCKS 1
#endif
#endif

// Sums and scales of the activations of a step.
template <int TILES>
struct StepNumbers {
    uint32_t sums[8 * TILES][8];  // [column]: sums of 16 as halves; pair i of the file's order at 2 * (i & 3) + (i >> 2)
    float d[4 * TILES];
};

template <class Format, int TILES>
struct Ring {
    static constexpr int WEIGHTS = QMM_WARPS * Format::TILE_BYTES, COLUMNS = 8 * TILES * QMM_PITCH;
    static constexpr int STAGE = WEIGHTS + COLUMNS + (int)sizeof(StepNumbers<TILES>);
    static constexpr int STAGES = QMM_SHARED / STAGE > 4 ? 4 : QMM_SHARED / STAGE;
    static_assert(STAGES >= 2, "two stages must fit");
    char* memory;

    __device__ __forceinline__ char* weights(int stage) const { return memory + stage * STAGE; }
    __device__ __forceinline__ char* columns(int stage) const { return weights(stage) + WEIGHTS; }
    __device__ __forceinline__ StepNumbers<TILES>* numbers(int stage) const {
        return (StepNumbers<TILES>*)(columns(stage) + COLUMNS);
    }
};

// What follows is done by one warp. It is to forget its lane: what follows from that alone, as the places of all pieces of a stage,
// would be kept in registers from before the first run, of the multiplying warps too.
template <class Format>
__device__ __forceinline__ void fetch_weights(char* to, const char* from, int tiles) {
    int lane = forgotten(threadIdx.x & 31);
    to += 16 * lane;
    from += 16 * lane;
    if (tiles == QMM_WARPS) {
#pragma unroll
        for (int at = 0; at < QMM_WARPS * Format::TILE_BYTES; at += 512)
            if (QMM_WARPS * Format::TILE_BYTES - at >= 512 || 16 * lane < QMM_WARPS * Format::TILE_BYTES - at)
                cp_async_16(to + at, from + at);
        return;
    }
#pragma unroll 1
    for (int at = 16 * lane; at < tiles * Format::TILE_BYTES; at += 512, to += 512, from += 512) cp_async_16(to, from);
}

// The values of all columns. What no token fills stays what it was: it ends in columns that are not read.
template <int TILES, class Cursor>
__device__ __forceinline__ void fetch_columns(char* to, const PackedRows& x, const Cursor& cursor) {
    int lane = forgotten(threadIdx.x & 31), plane = lane >> 4, piece = 16 * (lane & 15);
#pragma unroll 4
    for (int token = 0; token < 4 * TILES; token++) {
        int row = cursor.row(token);
        if (row < 0) continue;
        uint32_t from = (uint32_t)(2 * row + plane) * x.width + PACK_BLOCK * cursor.block() + piece;  // packed rows: < 4 GB
        cp_async_16(to + QMM_PITCH * (2 * token + plane) + piece, x.q + from);
    }
}

// Sums of 16, which become halves on the way, and scales. A lane takes sums 2 * (lane & 7) and the next one of every fourth column,
// and the scale of a token.
template <class Format, int TILES>
struct NumbersOnTheWay {
    uint32_t sums[Format::MINIMA ? 2 * TILES : 1];
    float d;

    template <class Cursor>
    __device__ __forceinline__ void load(const PackedRows& x, const Cursor& cursor) {
        int lane = forgotten(threadIdx.x & 31), blocks = forgotten(x.width) / PACK_BLOCK, row = cursor.row(min(lane, 4 * TILES - 1));
        d = row >= 0 && lane < 4 * TILES ? x.d[(uint32_t)row * blocks + cursor.block()] : 0.0f;
        if constexpr (Format::MINIMA != 0) {
#pragma unroll
            for (int i = 0; i < 2 * TILES; i++) {
                int column = 4 * i + (lane >> 3);
                row = cursor.row(column >> 1);
                uint32_t from = ((uint32_t)(2 * row + (column & 1)) * blocks + cursor.block()) * (PACK_SUMS / 2) + 4 + (lane & 7);
                sums[i] = row >= 0 ? ((const uint32_t*)x.s)[from] : 0;
            }
        }
    }
    __device__ __forceinline__ void store(StepNumbers<TILES>* to) const {
        int lane = forgotten(threadIdx.x & 31), pair = lane & 7;
        if (lane < 4 * TILES) to->d[lane] = d;
        if constexpr (Format::MINIMA != 0) {
#pragma unroll
            for (int i = 0; i < 2 * TILES; i++) {
                float low = (float)(int16_t)(sums[i] & 0xffff), high = (float)(int16_t)(sums[i] >> 16);
                to->sums[4 * i + (lane >> 3)][2 * (pair & 3) + (pair >> 2)] = floats_to_half2(low, high);
            }
        }
    }
};

// Codes as sums of two fragments cost one or two products more for each 4 rows, for 8 instructions less in all; 16 rows lack registers.
template <class Format, int TILES>
constexpr bool IN_PARTS = CHOOSES<Format> && TILES < 4;

// With registers for two blocks, the compiler loads so far ahead of these products for sm_80 that some spill, if nothing stops it halfway.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900 && QMM_BLOCKS == 2
template <class Format, int TILES>
constexpr bool IN_HALVES = IN_PARTS<Format, TILES> && Format::GROUP == 16 && TILES == 2;
#else
template <class Format, int TILES>
constexpr bool IN_HALVES = false;
#endif

template <class Format, int TILES>
struct Fragment {
    static constexpr bool TWO = IN_PARTS<Format, TILES>;
    uint32_t a[TWO ? 8 : 4];

    __device__ __forceinline__ Fragment(const Format& tile, int j) {
        if constexpr (TWO) tile.parts(j, a);
        else tile.fragment(j, a);
    }
    __device__ __forceinline__ void times(int d[4], const uint2& b) const {
        const int zero[4] = {0, 0, 0, 0};
        const uint32_t words[2] = {b.x, b.y};
        if constexpr (Format::UNSIGNED) mma_u8(d, a, words, zero);
        else mma_s8(d, a, words, zero);
        if constexpr (TWO) mma_s8(d, a + 4, words, d);
    }
    // The first or the second 16 of k.
    template <int HALF>
    __device__ __forceinline__ void half_times(int d[4], const uint2& b) const {
        const int zero[4] = {0, 0, 0, 0};
        uint32_t word = HALF ? b.y : b.x;
        mma_s8_k16(d, a + 2 * HALF, word, zero);
        if constexpr (TWO) mma_s8_k16(d, a + 4 + 2 * HALF, word, d);
    }
};

// Integer scales: all of a super-block is added up as integers, and one float scale finishes 256 values.
template <class Format, int TILES>
struct IntegerSums {
    // Even sub-blocks by themselves, to be shifted in the end: cheaper than to shift their scales, unless registers are short.
    static constexpr bool APART = Format::ODD_SHIFT != 0 && (TILES < 4 || QMM_BLOCKS == 1);
    int sums[TILES][APART ? 2 : 1][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[n][0][i] = sums[n][APART ? 1 : 0][i] = 0;
    }
    __device__ __forceinline__ void add(int n, int j, const int p[4], int scale, int scale_8) {
        int* to = sums[n][APART ? j & 1 : 0];
        if (!APART && (j & 1) == 0) {
            scale <<= Format::ODD_SHIFT;
            scale_8 <<= Format::ODD_SHIFT;
        }
        to[0] += scale * p[0];
        to[1] += scale * p[1];
        to[2] += scale_8 * p[2];
        to[3] += scale_8 * p[3];
    }
    __device__ __forceinline__ void sub_block(const Format& tile, int j, const Fragment<Format, TILES>& codes, int n, const uint2& b) {
        int p[4];
        if constexpr (Format::GROUP == 32) {
            codes.times(p, b);
            add(n, j, p, tile.scale(0, j), tile.scale(1, j));
        } else {
            codes.template half_times<0>(p, b);
            add(n, j, p, tile.scale(0, 2 * j), tile.scale(1, 2 * j));
            codes.template half_times<1>(p, b);
            add(n, j, p, tile.scale(0, 2 * j + 1), tile.scale(1, 2 * j + 1));
        }
    }
    // The sum of weight row group + 8 r, without the offsets.
    __device__ __forceinline__ float total(const Format& tile, int n, int r) const {
        int high = sums[n][0][2 * r], low = sums[n][0][2 * r + 1];
        if constexpr (APART) {
            high = (high << Format::ODD_SHIFT) + sums[n][1][2 * r];
            low = (low << Format::ODD_SHIFT) + sums[n][1][2 * r + 1];
        }
        return fmaf(128.0f, (float)high, (float)low) * tile.unit(r);
    }
};

// Float scales: 32 values with both planes fit an integer, and those of each scale are added as floats.
template <class Format, int TILES>
struct FloatSums {
    float sums[TILES][2];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < TILES; n++) sums[n][0] = sums[n][1] = 0.0f;
    }
    __device__ __forceinline__ void sub_block(const Format& tile, int j, const Fragment<Format, TILES>& codes, int n, const uint2& b) {
        int p[4];
        if constexpr (Format::GROUP == 32) {
            codes.times(p, b);
            add(tile, j, p, n);
        } else {
            codes.template half_times<0>(p, b);
            add(tile, 2 * j, p, n);
            codes.template half_times<1>(p, b);
            add(tile, 2 * j + 1, p, n);
        }
    }
    __device__ __forceinline__ void add(const Format& tile, int i, const int p[4], int n) {
        sums[n][0] = fmaf((float)(128 * p[0] + p[1]), tile.scale(0, i), sums[n][0]);
        sums[n][1] = fmaf((float)(128 * p[2] + p[3]), tile.scale(1, i), sums[n][1]);
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
        Fragment<Format, TILES> codes(tile, j);
#pragma unroll
        for (int n = 0; n < TILES; n++)
            step.sub_block(tile, j, codes, n, *(const uint2*)(values + 8 * QMM_PITCH * n + 32 * j));
        if (IN_HALVES<Format, TILES> && j == 4) __syncwarp();
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

// Where all warps meet between steps, in whichever loop they are.
__device__ __forceinline__ void next_step() { __syncthreads(); }

// One warp, ahead of the others by all stages but one: units unit + ahead ... end + ahead, as far as there are any.
template <class Format, int TILES, class Work>
__device__ __forceinline__ void fetch_units(const Ring<Format, TILES>& ring, const PackedRows& x, const Work& work, int unit, int end,
                                            int last) {
    constexpr int ahead = Ring<Format, TILES>::STAGES - 1;
    auto cursor = work.at(unit + ahead);
    int stage = (unit + ahead) % (ahead + 1);
#pragma unroll 1
    for (; unit < end; unit++) {
        cp_async_wait<ahead - 1>();
        next_step();
        if (unit + ahead < last) {
            NumbersOnTheWay<Format, TILES> numbers;
            numbers.load(x, cursor);
            fetch_weights<Format>(ring.weights(stage), cursor.weights(), cursor.tiles());
            fetch_columns<TILES>(ring.columns(stage), x, cursor);
            numbers.store(ring.numbers(stage));
            cursor.advance();
        }
        cp_async_commit();
        stage = stage == ahead ? 0 : stage + 1;
    }
}

template <class Format, int TILES>
__device__ __forceinline__ void multiply_units(const Ring<Format, TILES>& ring, int tiles, int unit, int end, float sums[TILES][2]) {
    int warp = threadIdx.x >> 5, stage = unit % Ring<Format, TILES>::STAGES;
#pragma unroll 1
    for (; unit < end; unit++) {
        next_step();
        if (warp < tiles)
            multiply_tile<Format, TILES>(ring.weights(stage) + warp * Format::TILE_BYTES, ring.columns(stage), ring.numbers(stage), sums);
        stage = stage + 1 == Ring<Format, TILES>::STAGES ? 0 : stage + 1;
    }
}

// Walks over `steps` units from `first` on. `finish(unit, sums)` is called by all threads after the last unit of
// each run, with that unit; the fetching warp has no sums. Weights are fetched before what an earlier kernel
// wrote is waited for: if `work` itself reads such things, wait before. `memory`: Ring::STAGES * Ring::STAGE bytes, aligned to 16.
template <class Format, int TILES, class Work, class Finish>
__device__ __forceinline__ void walk(char* memory, const PackedRows& x, const Work& work, int first, int steps, Finish&& finish) {
    int last = first + steps;
    constexpr int ahead = Ring<Format, TILES>::STAGES - 1;
    Ring<Format, TILES> ring{memory};
    bool fetches = threadIdx.x >> 5 == QMM_WARPS;
    if (fetches) {
        auto cursor = work.at(first);
#pragma unroll 1
        for (int i = 0; i < ahead && first + i < last; i++) {
            fetch_weights<Format>(ring.weights((first + i) % (ahead + 1)), cursor.weights(), cursor.tiles());
            cursor.advance();
        }
    }
    let_next_start();
    wait_for_previous();
    if (fetches) {
        auto cursor = work.at(first);
#pragma unroll 1
        for (int i = 0; i < ahead; i++) {
            if (first + i < last) {
                int stage = (first + i) % (ahead + 1);
                NumbersOnTheWay<Format, TILES> numbers;
                numbers.load(x, cursor);
                fetch_columns<TILES>(ring.columns(stage), x, cursor);
                numbers.store(ring.numbers(stage));
                cursor.advance();
            }
            cp_async_commit();
        }
    }
    while (first < last) {
        int end = forgotten(min(first + work.run(first), last));  // else both are kept
        float sums[TILES][2];
#pragma unroll
        for (int n = 0; n < TILES; n++) sums[n][0] = sums[n][1] = 0.0f;
        if (fetches) fetch_units<Format, TILES>(ring, x, work, first, end, last);
        else multiply_units<Format, TILES>(ring, work.tiles(first), first, end, sums);
        finish(end - 1, sums);
        first = end;
    }
}
