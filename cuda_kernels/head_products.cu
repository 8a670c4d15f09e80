// Every head of a row times a matrix of its own, in float32: the absorbed matrices of latent attention.
//   grid (8 outputs, heads, 8 rows); a warp makes an output of up to 8 rows
// The order of a sum depends on the number of inputs alone.
#include "base.cuh"

#define WARPS 8
#define ROWS 8

enum WeightKind { F32, F16, BF16 };

__device__ __forceinline__ float weight_at(const void* weights, int kind, size_t i) {
    if (kind == F32) return ((const float*)weights)[i];
    uint16_t word = ((const uint16_t*)weights)[i];
    return kind == F16 ? half_to_float(word) : bf16_to_float(word);
}

// Head h of a row of x begins at h * x_step, that of a row of y at h * n; n_in inputs become n - n_copied outputs, and the
// n_copied values behind the inputs follow as they are. weights: [head][n - n_copied][stride]
extern "C" __global__ void __launch_bounds__(32 * WARPS)
head_products(const float* x, int x_width, int x_step, const void* weights, int kind, int stride, int n_in, int n_copied, float* y,
              int n, int n_rows) {
    wait_for_previous();
    let_next_start();
    int out = blockIdx.x * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31, head = blockIdx.y, n_out = n - n_copied;
    if (out >= n) return;
    const size_t row_of_weights = ((size_t)head * n_out + out) * stride;
    int first = blockIdx.z * ROWS;
    for (int row = first; row < min(first + ROWS, n_rows); row++) {
        const float* from = x + (size_t)row * x_width + (size_t)head * x_step;
        float sum = 0.0f;
        if (out < n_out) {
            for (int i = lane; i < n_in; i += 32) sum = fmaf(weight_at(weights, kind, row_of_weights + i), from[i], sum);
            sum = warp_sum(sum);
        } else {
            sum = from[n_in + out - n_out];
        }
        if (lane == 0) y[((size_t)row * gridDim.y + head) * n + out] = sum;
    }
}
