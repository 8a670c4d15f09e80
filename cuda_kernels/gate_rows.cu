// activation(gate) * up of rows [gates | ups], packed: a warp makes a block of 256 values.
#include "qmm_epilogue.cuh"

extern "C" __global__ void __launch_bounds__(256) gate_rows(
    const float* rows, int width, int activation, int8_t* q, float* d, int16_t* s, int packed_width) {
    let_next_start();
    wait_for_previous();
    int block = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), row = blockIdx.y;
    if (block * PACK_BLOCK >= packed_width) return;
    const float* gates = rows + (size_t)row * 2 * width;
    int first = block * PACK_BLOCK + 8 * (threadIdx.x & 31);
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int i = first + j;
        v[j] = i < width ? activated(activation, gates[i]) * gates[width + i] : 0.0f;
    }
    pack_block(v, PackedRows{q, d, s, packed_width}, row, block);
}
