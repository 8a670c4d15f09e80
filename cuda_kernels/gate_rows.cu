// activation(gate) * up of float rows, packed or as bfloat16: a warp makes a block of 256 values.
#include "qmm_epilogue.cuh"
#include "rows.cuh"

struct FloatColumns {
    const float* first;
    int stride, column;

    // Values at ... at + 7; 0 from `width` on
    __device__ __forceinline__ void load(int row, int at, int width, float v[8]) const {
        const float* from = first + (size_t)row * stride + column;
        if (((stride | column) & 3) == 0) return load_8(from, at, width, v);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = at + j < width ? from[at + j] : 0.0f;
    }
};

// `gate`: a QmmActivation or the bits of a limit, see qmm_epilogue.cuh. Outputs: packed rows, or columns of bfloat16 rows.
// grid (8 blocks of 256 values, rows)
extern "C" __global__ void __launch_bounds__(256) gate_rows(
    const float* gates, int gate_stride, const float* ups, int up_stride, int up_column, int width, int gate, int8_t* q,
    float* d, int16_t* s, int packed_width, uint16_t* halves, int half_stride, int half_column) {
    let_next_start();
    wait_for_previous();
    int block = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), row = blockIdx.y;
    if (block * PACK_BLOCK >= width) return;
    int first = block * PACK_BLOCK + 8 * (threadIdx.x & 31);
    float v[8], up[8];
    FloatColumns{gates, gate_stride, 0}.load(row, first, width, v);
    FloatColumns{ups, up_stride, up_column}.load(row, first, width, up);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float made = gate == QMM_OAI ? gated_oai(v[j], up[j]) : gate >> 1 ? gated_within(gate, v[j], up[j]) : activated(gate, v[j]) * up[j];
        v[j] = first + j < width ? made : 0.0f;
    }
    if (q) pack_block(v, PackedRows{q, d, s, packed_width}, row, block);
    if (!halves) return;
    uint16_t* to = halves + (size_t)row * half_stride + half_column;
    if (((half_stride | half_column) & 7) == 0) return store_8(to, first, width, v);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (first + j < width) to[first + j] = float_to_bf16(v[j]);
    }
}
