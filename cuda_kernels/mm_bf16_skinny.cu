// y = x @ W.T for bfloat16 or half weights [n_out][n_k], memory bound for up to 16 rows of x. blockIdx.y takes the next rows.
#include "mm_core.cuh"
#include "mm_output.cuh"

template <int TILES, int GROUPS, class Input>
__device__ __forceinline__ void multiply(const Input& x, int n_rows, const uint16_t* weights, int n_out, int n_k,
                                         const Columns& out) {
    let_next_start();
    Tiles tiles = {weights, n_out, n_k, (int)blockIdx.x * TILES * 16, 16};
    int first = blockIdx.y * 4 * GROUPS;
    const float* red = products<TILES, GROUPS>(tiles, x, first, n_rows);
    for (int i = threadIdx.x; i < TILES * 16 * 4 * GROUPS; i += WARPS * 32) {
        int column = i % (TILES * 16), row = i / (TILES * 16);
        if (tiles.first + column >= n_out || first + row >= n_rows) continue;
        out.store(first + row, tiles.first + column, whole<TILES, GROUPS>(red, column / 16, column % 16, row));
    }
}

#if defined(FLOAT_INPUT)
#define INPUT_ARGUMENTS const float* x
#define INPUT FloatColumns{x, n_k}
#define NAME(kind, rows) mm_bf16_rows_##kind##_##rows
#define BLOCKS_OF_WIDEST 1  // of a multiprocessor: splitting rows takes registers
#else
#define INPUT_ARGUMENTS const int8_t* q, const float* d, const int16_t*, int width
#define INPUT PackedColumns{q, d, width}
#define BLOCKS_OF_WIDEST 2
#ifdef HALF_WEIGHTS
#define NAME(kind, rows) mm_f16_packed_##kind##_##rows
#else
#define NAME(kind, rows) mm_bf16_packed_##kind##_##rows
#endif
#endif

#define MM_SKINNY(name, tiles, groups, blocks)                                                                       \
    extern "C" __global__ void __launch_bounds__(256, blocks) name(                                                  \
        INPUT_ARGUMENTS, int n_k, int n_rows, const uint16_t* weights, int n_out, float* y, int stride, int column,  \
        const float* bias, int add) {                                                                                \
        multiply<tiles, groups>(INPUT, n_rows, weights, n_out, n_k, Columns{y + column, stride, bias, add});         \
    }
MM_SKINNY(NAME(16, 4), 1, 1, 2)
MM_SKINNY(NAME(32, 4), 2, 1, 2)
MM_SKINNY(NAME(32, 8), 2, 2, 2)
MM_SKINNY(NAME(32, 16), 2, 4, BLOCKS_OF_WIDEST)

#ifndef FLOAT_INPUT
// Tile 0 has gates, tile 1 their ups: 16 columns.
template <int GROUPS, class Input>
__device__ __forceinline__ void multiply_gated(const Input& x, int n_rows, const uint16_t* weights, int n_k,
                                               const GatedColumns& out) {
    let_next_start();
    Tiles tiles = {weights, 2 * out.width, n_k, (int)blockIdx.x * 16, out.width};
    int first = blockIdx.y * 4 * GROUPS, block = tiles.first / PACK_BLOCK, last = min(first + 4 * GROUPS, n_rows);
    const float* red = products<2, GROUPS>(tiles, x, first, n_rows);
    for (int i = threadIdx.x; i < 16 * 4 * GROUPS; i += WARPS * 32) {
        int column = i % 16, row = i / 16;
        if (tiles.first + column >= out.width || first + row >= n_rows) continue;
        float gate = whole<2, GROUPS>(red, 0, column, row), up = whole<2, GROUPS>(red, 1, column, row);
        out.store(first + row, tiles.first + column, gate, up);
    }
    out.pack(block, min(PACK_BLOCK / 16, (int)gridDim.x - PACK_BLOCK / 16 * block), first, last);
}

#define MM_GATED(name, groups)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256, 2) name(                                                       \
        INPUT_ARGUMENTS, int n_k, int n_rows, const uint16_t* weights, int inner, float* hidden, int activation,     \
        const float* bias, int8_t* packed_q, float* packed_d, int16_t* packed_s, int packed_width, int* arrivals) {  \
        PackedRows packed = {packed_q, packed_d, packed_s, packed_width};                                            \
        int* own = arrivals + (size_t)blockIdx.y * (packed_width / PACK_BLOCK);                                        \
        GatedColumns out = {hidden, inner, activation, bias, packed, own};                                           \
        multiply_gated<groups>(INPUT, n_rows, weights, n_k, out);                                                    \
    }
MM_GATED(NAME(gated, 4), 1)
MM_GATED(NAME(gated, 8), 2)
MM_GATED(NAME(gated, 16), 4)
#endif
