// (x + norm(parts[0] + parts[1] + ...)) * scale: norms behind layers, norms that subtract the mean, sums and scales that
// no other kernel makes on its way. And logits with a cap.
// One block makes one row, whose values stay in registers. The order of all sums depends on the width alone.
#include "rows.cuh"

#define PER_WARP 2  // blocks of 256 values

struct SummedNorm {
    const float *weight, *bias;  // null: no norm; no bias
    float eps, per_value;        // per_value: 1 / width
    int is_centred;

    __device__ __forceinline__ void apply(float v[PER_WARP][8], const int at[PER_WARP], int width) const {
        __shared__ float scratch[2][32];
        if (!weight) return;
        float mean = 0.0f, squares = 0.0f;
        if (is_centred) {
#pragma unroll
            for (int i = 0; i < PER_WARP; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) mean += v[i][j];
            mean = block_sum_once(mean, scratch[0]) * per_value;
        }
#pragma unroll
        for (int i = 0; i < PER_WARP; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++) v[i][j] = at[i] + j < width ? v[i][j] - mean : 0.0f;
            squares += square_sum_8(v[i]);
        }
        float factor = norm_factor(block_sum_once(squares, scratch[1]), per_value, eps), w[8];
#pragma unroll
        for (int i = 0; i < PER_WARP; i++) {
            load_8(weight, at[i], width, w);
            scale_8(v[i], factor, w);
            if (!bias) continue;
            load_8(bias, at[i], width, w);
            add_8(v[i], w);
        }
    }
};

// parts   [n_rows][n_parts][width]
// chosen  [grid] or null: block i works on this row of them; one that does not exist comes out as NaN
// x       [grid][width] or null: what their sum, normed or not, is added to
// outputs, [grid] rows each, any of them null: packed, float (which may be x or the only part), bfloat16
extern "C" __global__ void __launch_bounds__(1024, 1) sum_rows(
    const float* parts, int n_parts, const int* chosen, int n_rows, const float* x, const float* weight, const float* bias,
    float eps, int is_centred, float scale, int width, float per_value, int8_t* q, float* d, int16_t* s, int packed_width,
    float* rows, uint16_t* halves) {
    int warp = threadIdx.x >> 5, warps = blockDim.x >> 5, row = blockIdx.x, at[PER_WARP];
    let_next_start();
    wait_for_previous();
    int from = chosen ? chosen[row] : row;
    float v[PER_WARP][8];
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) {
        at[i] = (i * warps + warp) * PACK_BLOCK + 8 * (threadIdx.x & 31);
        fill_8(v[i], 0 <= from && from < n_rows ? 0.0f : __int_as_float(0x7fc00000));
        if (from < 0 || from >= n_rows) continue;
        for (int part = 0; part < n_parts; part++) {
            float more[8];
            load_8(parts + ((size_t)from * n_parts + part) * width, at[i], width, more);
            add_8(v[i], more);
        }
    }
    SummedNorm{weight, bias, eps, per_value, is_centred}.apply(v, at, width);
    PackedRows packed = {q, d, s, packed_width};
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) {
        int block = i * warps + warp;
        if (block * PACK_BLOCK >= width) continue;
        if (x) {
            float more[8];
            load_8(x + (size_t)row * width, at[i], width, more);
            add_8(v[i], more);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) v[i][j] *= scale;
        if (packed.q) pack_block(v[i], packed, row, block);
        if (rows) store_8(rows + (size_t)row * width, at[i], width, v[i]);
        if (halves) store_8(halves + (size_t)row * width, at[i], width, v[i]);
    }
}

// The norm of `width` values of each row of `pitch`, from a column on, in place. Both are multiples of 4.
extern "C" __global__ void __launch_bounds__(1024, 1) norm_columns(
    float* rows, int pitch, int column, const float* weight, const float* bias, float eps, int is_centred, int width,
    float per_value) {
    int warp = threadIdx.x >> 5, warps = blockDim.x >> 5, at[PER_WARP];
    let_next_start();
    wait_for_previous();
    float* row = rows + (size_t)blockIdx.x * pitch + column;
    float v[PER_WARP][8];
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) {
        at[i] = (i * warps + warp) * PACK_BLOCK + 8 * (threadIdx.x & 31);
        load_8(row, at[i], width, v[i]);
    }
    SummedNorm{weight, bias, eps, per_value, is_centred}.apply(v, at, width);
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) store_8(row, at[i], width, v[i]);
}

// grid (256 values of a row, rows)
extern "C" __global__ void __launch_bounds__(256) cap_rows(float* rows, int width, float cap) {
    let_next_start();
    wait_for_previous();
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= width) return;
    float& x = rows[(size_t)blockIdx.y * width + i];
    x = cap * tanhf(x / cap);
}
