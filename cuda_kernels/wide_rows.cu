// What stands between products of many rows, which cuBLAS makes: float rows in, bfloat16 rows or sums out.
#include "qmm_epilogue.cuh"

// Columns `column` ... of bfloat16 rows [n_rows][out_stride] = activation(gate) * up of rows [gates | ups], `width` of each.
// grid (4 x 256 values of a row, rows)
extern "C" __global__ void __launch_bounds__(256) gate_halves(const float* rows, int width, int activation,
                                                              uint16_t* out, int out_stride, int column) {
    let_next_start();
    wait_for_previous();
    int first = 4 * (blockIdx.x * 256 + threadIdx.x);
    if (first >= width) return;
    const float* gates = rows + (size_t)blockIdx.y * 2 * width;
    uint16_t* to = out + (size_t)blockIdx.y * out_stride + column;
    if (((width | out_stride | column) & 3) == 0) {
        float4 gate = *(const float4*)(gates + first), up = *(const float4*)(gates + width + first);
        *(uint2*)(to + first) = make_uint2(
            floats_to_bf162(activated(activation, gate.x) * up.x, activated(activation, gate.y) * up.y),
            floats_to_bf162(activated(activation, gate.z) * up.z, activated(activation, gate.w) * up.w));
        return;
    }
    for (int i = first; i < min(first + 4, width); i++) to[i] = float_to_bf16(activated(activation, gates[i]) * gates[width + i]);
}

// Columns `column` ... of rows [n_rows][stride] += bias.
// grid (256 values of a row, rows)
extern "C" __global__ void __launch_bounds__(256) add_bias(float* rows, int stride, int column, const float* bias, int width) {
    let_next_start();
    wait_for_previous();
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < width) rows[(size_t)blockIdx.y * stride + column + i] += bias[i];
}
