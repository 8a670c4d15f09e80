// y = x @ W.T for float32 weights [n_out][n_k] as they are in the file, in plain float32.
// A block makes 2 output columns for up to INPUTS rows; blockIdx.y takes the next INPUTS rows.
#include "float_dot.cuh"
#include "mm_output.cuh"

#define COLUMNS 2

template <int INPUTS, class Input>
__device__ __forceinline__ void multiply(const Input& x, int n_rows, const float* weights, int n_out, int n_k,
                                         const Columns& out) {
    const float* rows[COLUMNS];
#pragma unroll
    for (int r = 0; r < COLUMNS; r++) rows[r] = weights + (size_t)min(blockIdx.x * COLUMNS + r, n_out - 1) * n_k;
    let_next_start();
    int first = blockIdx.y * INPUTS;
    float dot = block_dots<COLUMNS, INPUTS>(rows, x, first, min(INPUTS, n_rows - first), n_k);
    int column = blockIdx.x * COLUMNS + threadIdx.x / INPUTS, row = first + threadIdx.x % INPUTS;
    if (threadIdx.x < COLUMNS * INPUTS && column < n_out && row < n_rows) out.store(row, column, dot);
}

#define MM_F32(inputs)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256, 2) mm_f32_rows_##inputs(                                         \
        const float* x, int width, int n_rows, const float* weights, int n_out, float* y, int stride, int column,      \
        const float* bias, int add) {                                                                                  \
        Columns out = {y + column, stride, bias, add};                                                                 \
        multiply<inputs>(FloatInput{x, width}, n_rows, weights, n_out, width, out);                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2) mm_f32_packed_##inputs(                                       \
        const int8_t* q, const float* d, const int16_t*, int width, int n_k, int n_rows, const float* weights,         \
        int n_out, float* y, int stride, int column, const float* bias, int add) {                                     \
        Columns out = {y + column, stride, bias, add};                                                                 \
        multiply<inputs>(PackedInput{q, d, width}, n_rows, weights, n_out, n_k, out);                                  \
    }
MM_F32(4)
MM_F32(16)
