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

// A gate and its up: one column.
template <int INPUTS, class Input>
__device__ __forceinline__ void multiply_gated(const Input& x, int n_rows, const float* weights, int n_k,
                                               const GatedColumns& out) {
    __shared__ float dots[2][INPUTS];
    int column = blockIdx.x, first = blockIdx.y * INPUTS, n_inputs = min(INPUTS, n_rows - first);
    const float* rows[2] = {weights + (size_t)column * n_k, weights + (size_t)(out.width + column) * n_k};
    let_next_start();
    float dot = block_dots<2, INPUTS>(rows, x, first, n_inputs, n_k);
    if (threadIdx.x < 2 * INPUTS) dots[threadIdx.x / INPUTS][threadIdx.x % INPUTS] = dot;
    __syncthreads();
    if (threadIdx.x < n_inputs) out.store(first + threadIdx.x, column, dots[0][threadIdx.x], dots[1][threadIdx.x]);
    int block = column / PACK_BLOCK;
    out.pack(block, min(PACK_BLOCK, (int)gridDim.x - PACK_BLOCK * block), first, first + n_inputs);
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
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2) mm_f32_packed_gated_##inputs(                                 \
        const int8_t* q, const float* d, const int16_t*, int width, int n_k, int n_rows, const float* weights,         \
        int inner, float* hidden, int activation, const float* bias, int8_t* packed_q, float* packed_d,                \
        int16_t* packed_s, int packed_width, int* arrivals) {                                                          \
        PackedRows packed = {packed_q, packed_d, packed_s, packed_width};                                              \
        int* own = arrivals + (size_t)blockIdx.y * (packed_width / PACK_BLOCK);                                        \
        GatedColumns out = {hidden, inner, activation, bias, packed, own};                                             \
        multiply_gated<inputs>(PackedInput{q, d, width}, n_rows, weights, n_k, out);                                   \
    }
MM_F32(4)
MM_F32(16)
