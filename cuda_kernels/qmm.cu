// y = x W^T for 1 to 16 packed rows x and quantised weights W (repack.py): see qmm_dense.cuh.
#include "qmm_dense.cuh"

template <int TILES>
__device__ __forceinline__ void qmm(const DenseWork<FORMAT>& work, const Shares& shares, const PackedRows& x, float* partials,
                                    int* counters, const QmmTarget& to) {
    __shared__ float best[QMM_WARPS * 4 * TILES];
    auto finish = [&](int group, int first_token, int* arrivals, float (&sums)[TILES][2]) {
        finish_group<TILES>(to, group, first_token, arrivals, sums, best);
    };
    multiply<FORMAT, TILES>(work, shares, x, partials, counters, finish);
}

#define QMM_JOINED(prefix, form, rows) prefix##form##_##rows
#define QMM_NAME(prefix, form, rows) QMM_JOINED(prefix, form, rows)  // qmm_Q4_K_16

#define QMM_KERNEL(TILES, rows_at_most)                                                                                          \
    extern "C" __global__ void __launch_bounds__(288, QMM_BLOCKS) QMM_NAME(qmm_, FORMAT, rows_at_most)(                          \
        const uint4* weights, int k_blocks, int tiles, int each, int longer, const int8_t* q, const float* d, const int16_t* s,  \
        int width, float* partials, int* counters, int ending, int rows, int tokens, const float* row_scale, const float* bias,  \
        float* y, int stride, int column, int split, float* to, const int* to_row, int to_stride, float* maxima,                 \
        int maxima_stride, int activation, int8_t* packed_q, float* packed_d, int16_t* packed_s, int packed_width) {             \
        DenseWork<FORMAT> work = {(const char*)weights, tiles, k_blocks, 4 * TILES * (int)blockIdx.y, tokens};                   \
        Shares shares = {each, longer, (int)blockIdx.x, (int)gridDim.x};                                                         \
        PackedRows x = {const_cast<int8_t*>(q), const_cast<float*>(d), const_cast<int16_t*>(s), width};                          \
        PackedRows packed = {packed_q, packed_d, packed_s, packed_width};                                                        \
        QmmTarget target = {ending, rows,  tokens, row_scale, bias,   y,             stride,     column, split,                  \
                            to,     to_row, to_stride, maxima, maxima_stride, activation, packed};                               \
        qmm<TILES>(work, shares, x, partials, counters, target);                                                                 \
    }

QMM_KERNEL(1, 4)
QMM_KERNEL(2, 8)
QMM_KERNEL(4, 16)
