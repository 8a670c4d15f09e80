// Repacked weights (repack.py) as plain bfloat16 rows, for products with many rows at a time. Numbers are rounded as any
// dequantisation to float32 rounds them, to the same bits, and then to the nearest bfloat16.
//   grid: (k blocks, groups of 8 tiles); a warp takes a tile of 16 rows x 256 values
#include "mma.cuh"
#include "qmm_formats_16.cuh"
#include "qmm_formats_32.cuh"

typedef FORMAT Format;
#define DEQUANT_NAME_OF(format) dequant_##format##_bf16
#define DEQUANT_NAME(format) DEQUANT_NAME_OF(format)
#define TAKE_NAME_OF(format) take_##format
#define TAKE_NAME(format) TAKE_NAME_OF(format)

// What codes of sub-block j are multiplied by, of which `group` is in it. Powers of two change no rounding.
template <class F>
__device__ __forceinline__ float factor(const F& tile, int r, int j, int group) {
    if constexpr (F::INTEGER) {
        float even = j & 1 ? 1.0f : (float)(1 << F::ODD_SHIFT);
        return tile.unit(r) * even * (float)tile.scale(r, group);
    } else {
        return tile.scale(r, group) * F::UNIT;
    }
}

// A piece of a matrix: rows `first` ... first + n_rows - 1. In gated order the first 8 rows of a tile are gates and the
// others their ups; the piece then is n_rows / 2 gates and, below them, the ups of these.
struct Piece {
    int all_rows, first, n_rows, gated;

    // Of row `row` of a tile: where it goes in the piece, -1 if it does not belong to it, ...
    __device__ __forceinline__ int target(int tile, int row) const {
        int at = 16 * tile + row - first;
        if (at >= n_rows) return -1;
        return !gated ? at : (at & ~15) / 2 + (row & 7) + (row < 8 ? 0 : n_rows / 2);
    }
    // ... and where it stands in the file.
    __device__ __forceinline__ int source(int tile, int row) const {
        return !gated ? 16 * tile + row : 8 * tile + (row & 7) + (row < 8 ? 0 : all_rows / 2);
    }
};

// Four codes as values.
template <class F>
__device__ __forceinline__ void decode_4(const F& tile, uint32_t codes, int r, int j, int h, float scale, float v[4]) {
    int group = F::GROUP == 16 ? 2 * j + h : j;
    float by = factor(tile, r, j, group);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = by * (float)(F::UNSIGNED ? byte_of(codes, i) : signed_byte_of(codes, i));
        if constexpr (F::MINIMA != 0) {
            float offset = tile.minimum(r) * (float)tile.offset(r, group);
            v[i] = F::MINIMA < 0 ? v[i] - offset : v[i] + offset;
        }
        v[i] *= scale;
    }
}

// rows bf16 [n_rows][width]; scale [all_rows] or null: of each row of the file
extern "C" __global__ void __launch_bounds__(256)
    DEQUANT_NAME(FORMAT)(const uint4* weights, int all_rows, uint16_t* rows, int first_row, int n_rows, int width,
                         int gated, const float* scale) {
    Piece piece = {all_rows, first_row, n_rows, gated};
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first_tile = first_row / 16 + 8 * (int)blockIdx.y;
    int tiles_of_group = min(8, (all_rows + 15) / 16 - first_tile), tile = first_tile + warp;
    let_next_start();
    size_t before = (size_t)first_tile * gridDim.x + (size_t)blockIdx.x * tiles_of_group + min(warp, tiles_of_group - 1);
    Format format;
    format.load((const char*)weights + before * Format::TILE_BYTES, lane);
    wait_for_previous();  // it may still read what is overwritten here
    if (warp >= tiles_of_group) return;
    int to[2];
    float row_scale[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int in_tile = 8 * r + (lane >> 2);
        to[r] = piece.target(tile, in_tile);
        row_scale[r] = scale && to[r] >= 0 ? scale[piece.source(tile, in_tile)] : 1.0f;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t codes[4];
        format.fragment(j, codes);
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int column = 256 * blockIdx.x + 32 * j + 16 * h + 4 * (lane & 3);
                float v[4];
                decode_4(format, codes[2 * h + r], r, j, h, row_scale[r], v);
                uint2 values = make_uint2(floats_to_bf162(v[0], v[1]), floats_to_bf162(v[2], v[3]));
                if (to[r] >= 0 && column < width) *(uint2*)(rows + (size_t)to[r] * width + column) = values;
            }
        }
    }
}

// A lane's values of its row group + 8 R, as far as there are any.
template <int R, class F>
__device__ __forceinline__ void write_row(const F& tile, float scale, float* to, int left) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t codes[4];
        tile.fragment(j, codes);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int column = 32 * j + 16 * h + 4 * (threadIdx.x & 3);
            float v[4];
            decode_4(tile, codes[2 * h + R], R, j, h, scale, v);
            if (column < left) *(float4*)(to + column) = make_float4(v[0], v[1], v[2], v[3]);
        }
    }
}

// x [tokens][width] = rows `ids` of a matrix in tiles, one that is none as NaN: an embedding that is the output matrix as well. A warp
// reads a whole tile to have one of its rows: 16 times what it needs, and still nothing beside a layer.
//   grid: (tokens, k blocks / 8)
extern "C" __global__ void __launch_bounds__(256)
    TAKE_NAME(FORMAT)(const uint4* weights, int all_rows, int k_blocks, const float* scale, const int* ids, float* x, int width) {
    int lane = threadIdx.x & 31, k_block = 8 * (int)blockIdx.y + (threadIdx.x >> 5);
    let_next_start();
    wait_for_previous();
    if (k_block >= k_blocks) return;
    int row = ids[blockIdx.x];
    float* to = x + (size_t)blockIdx.x * width + 256 * k_block;
    int left = width - 256 * k_block;
    if (row < 0 || row >= all_rows) {
        for (int i = lane; i < min(256, left); i += 32) to[i] = __int_as_float(0x7fc00000);
        return;
    }
    int tile = row / 16, first_tile = tile & ~7, tiles_of_group = min(8, (all_rows + 15) / 16 - first_tile);
    size_t before = (size_t)first_tile * k_blocks + (size_t)k_block * tiles_of_group + (tile & 7);
    Format format;
    format.load((const char*)weights + before * Format::TILE_BYTES, lane);
    if (lane >> 2 != (row & 7)) return;
    float row_scale = scale ? scale[row] : 1.0f;
    if (row & 8) write_row<1>(format, row_scale, to, left);
    else write_row<0>(format, row_scale, to, left);
}
