// What stands between two products: x += what others computed, RMS norm of x, packing.
// One block makes one row, whose values stay in registers between the two passes. The order of all sums depends on
// the width alone.
#include "rows.cuh"

// x += (parts[0] + parts[1] + ...), as the experts of a row are added by rank and then to x
template <int AT_ONCE>
__device__ __forceinline__ void add_parts(float x[8], const float* parts, int n_parts, int at, int width) {
    float sum[8];
    load_8(parts, at, width, sum);
    if (whole_8(at, width)) {  // checked here, so that several parts are under way at once
#pragma unroll AT_ONCE
        for (int i = 1; i < n_parts; i++) {
            float part[8];
            load_whole_8(parts + (size_t)i * width + at, part);
            add_8(sum, part);
        }
    } else {
        for (int i = 1; i < n_parts; i++) {
            float part[8];
            load_8(parts + (size_t)i * width, at, width, part);
            add_8(sum, part);
        }
    }
    add_8(x, sum);
}

// x       [n_rows][width]: the residual stream; per_value: 1 / width
// parts   [n_rows][n_parts][width] or null: what is added to x, which is written back unless `chosen` is given
// chosen  [grid] or null: block i works on this row of x; one that does not exist comes out as NaN
// outputs, [grid] rows each, any of them null: packed, float, bfloat16
template <int PER_WARP, int AT_ONCE>
__device__ __forceinline__ void norm_quant_row(float* x, const float* parts, int n_parts, const int* chosen, int n_rows,
                                               const float* weight, float eps, int width, float per_value,
                                               const PackedRows& packed, float* rows, uint16_t* halves) {
    __shared__ float scratch[32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5, row = blockIdx.x;
    let_next_start();
    float w[8], v[PER_WARP][8];
    if (PER_WARP == 1) load_8(weight, warp * PACK_BLOCK + 8 * lane, width, w);  // ready before x is
    wait_for_previous();
    int from = chosen ? chosen[row] : row;
    bool exists = 0 <= from && from < n_rows;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) {
        int at = (i * warps + warp) * PACK_BLOCK + 8 * lane;
        if (exists) {
            load_8(x + (size_t)from * width, at, width, v[i]);
            if (parts) {
                add_parts<AT_ONCE>(v[i], parts + (size_t)from * n_parts * width, n_parts, at, width);
                if (!chosen) store_8(x + (size_t)from * width, at, width, v[i]);
            }
        } else {
            fill_8(v[i], __int_as_float(0x7fc00000));
        }
        squares += square_sum_8(v[i]);
    }
    float factor = norm_factor(block_sum_once(squares, scratch), per_value, eps);
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) {
        int block = i * warps + warp, at = block * PACK_BLOCK + 8 * lane;
        if (block * PACK_BLOCK >= width) continue;
        if (PER_WARP > 1) load_8(weight, at, width, w);
        scale_8(v[i], factor, w);
        if (packed.q) pack_block(v[i], packed, row, block);
        if (rows) store_8(rows + (size_t)row * width, at, width, v[i]);
        if (halves) store_8(halves + (size_t)row * width, at, width, v[i]);
    }
}

// `at_once`: parts that a thread has under way, as many as its registers hold
#define NORM_QUANT(name, threads, per_warp, at_once)                                                                   \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(                                                     \
        float* x, const float* parts, int n_parts, const int* chosen, int n_rows, const float* weight, float eps,      \
        int width, float per_value, int8_t* q, float* d, int16_t* s, int packed_width, float* rows,                    \
        uint16_t* halves) {                                                                                            \
        PackedRows packed = {q, d, s, packed_width};                                                                   \
        norm_quant_row<per_warp, at_once>(x, parts, n_parts, chosen, n_rows, weight, eps, width, per_value, packed,    \
                                          rows, halves);                                                               \
    }
NORM_QUANT(norm_quant, 1024, 1, 1)        // up to 8192 values
NORM_QUANT(norm_quant_wide, 1024, 2, 1)   // up to 16384
NORM_QUANT(norm_quant_parts, 512, 1, 8)  // up to 4096, with several parts

// Rows as they are, packed. A warp takes a block; grid: (rows, blocks / 8).
extern "C" __global__ void __launch_bounds__(256) pack_rows(const float* x, int width, int8_t* q, float* d, int16_t* s,
                                                            int packed_width) {
    int row = blockIdx.x, block = blockIdx.y * 8 + (threadIdx.x >> 5);
    let_next_start();
    wait_for_previous();
    if (block * PACK_BLOCK >= packed_width) return;
    float v[8];
    load_8(x + (size_t)row * width, block * PACK_BLOCK + 8 * (threadIdx.x & 31), width, v);
    pack_block(v, {q, d, s, packed_width}, row, block);
}
