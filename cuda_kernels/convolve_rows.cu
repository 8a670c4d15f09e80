// A convolution over the rows of a sequence, by weights that each row brings: a thread makes one value.
#include "attention.cuh"

// `factors`: (rows, factor_stride), those of tap k and group g at first_factor + k * (width / group) + g. base: (kernel, width).
// grid (blocks of 256 channels, rows)
extern "C" __global__ void __launch_bounds__(256) convolve_rows(
    const float* x, const float* factors, int factor_stride, int first_factor, const float* base, int kernel, int group, int width,
    const int* starts, int n_sequences, float* out) {
    let_next_start();
    wait_for_previous();
    const int row = blockIdx.y, channel = blockIdx.x * 256 + threadIdx.x;
    const int sequence = sequence_of_row(row, starts, n_sequences);
    if (sequence >= n_sequences || channel >= width) return;
    const float* of_row = factors + (size_t)row * factor_stride + first_factor + channel / group;
    const int n_taps = min(kernel, row - starts[sequence] + 1), n_groups = width / group;
    float total = 0.0f;
    for (int tap = 0; tap < n_taps; tap++) {
        float weight = of_row[tap * n_groups] + base[(size_t)tap * width + channel];
        total = fmaf(weight, x[(size_t)(row - tap) * width + channel], total);
    }
    out[(size_t)row * width + channel] = total;
}
