// What products of many rows, which cuBLAS makes, leave to be done: columns `column` ... of rows [n_rows][stride] += bias.
// grid (256 values of a row, rows)
#include "base.cuh"

extern "C" __global__ void __launch_bounds__(256) add_bias(float* rows, int stride, int column, const float* bias, int width) {
    let_next_start();
    wait_for_previous();
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < width) rows[(size_t)blockIdx.y * stride + column + i] += bias[i];
}
