// y = x W^T for two matrices of different formats (FIRST, SECOND) that multiply the same packed rows: the first blocks are those of
// the one matrix, the others those of the other, in proportion to their bytes, so that all run at once and end together. (As many
// blocks for each as in a launch of its own came in two waves, which took 26 us on an H200 where this takes 21.)
//   grid (blocks of both, rows of x / 16)
#include "qmm_dense.cuh"

// What of a launch each matrix has for itself.
struct PairHalf {
    const uint4* weights;
    int tiles, each, longer;
    float* partials;
    int* counters;
    int block, blocks;
};

template <class Format, int TILES>
__device__ __forceinline__ void half_of_pair(const PairHalf& half, int k_blocks, const PackedRows& x, const QmmTarget& to) {
    DenseWork<Format> work = {(const char*)half.weights, half.tiles, k_blocks, 4 * TILES * (int)blockIdx.y, to.tokens};
    Shares shares = {half.each, half.longer, half.block, half.blocks};
    auto finish = [&](int group, int first_token, int* arrivals, float (&sums)[TILES][2]) {
        store_values<TILES>(to, QMM_GROUP_TILES * group + (threadIdx.x >> 5), first_token, sums);
    };
    multiply<Format, TILES>(work, shares, x, half.partials, half.counters, finish);
}

#define PAIR_JOINED(first, second, rows) qmm_pair_##first##_##second##_##rows
#define PAIR_NAME(first, second, rows) PAIR_JOINED(first, second, rows)  // qmm_pair_Q4_K_Q6_K_16

#define PAIR_KERNEL(TILES, rows_at_most)                                                                                         \
    extern "C" __global__ void __launch_bounds__(288, QMM_BLOCKS) PAIR_NAME(FIRST, SECOND, rows_at_most)(                        \
        const uint4* weights, int k_blocks, int tiles, int each, int longer, const int8_t* q, const float* d, const int16_t* s,  \
        int width, float* partials, int* counters, int ending, int rows, int tokens, const float* row_scale, const float* bias,  \
        float* y, int stride, int column, int split, float* to, const int* to_row, int to_stride, int blocks,                    \
        const uint4* weights_2, int tiles_2, int each_2, int longer_2, float* partials_2, int* counters_2, int ending_2,         \
        int rows_2, const float* row_scale_2, const float* bias_2, int column_2) {                                               \
        PackedRows x = {const_cast<int8_t*>(q), const_cast<float*>(d), const_cast<int16_t*>(s), width}, none = {};               \
        int block = blockIdx.x, others = (int)gridDim.x - blocks;                                                                \
        if (block < blocks) {                                                                                                    \
            PairHalf half = {weights, tiles, each, longer, partials, counters, block, blocks};                                   \
            QmmTarget target = {ending, rows, tokens, row_scale, bias, y, stride, column, split,                                 \
                                to, to_row, to_stride, nullptr, 0, 0, none};                                                     \
            half_of_pair<FIRST, TILES>(half, k_blocks, x, target);                                                               \
        } else {                                                                                                                 \
            PairHalf half = {weights_2, tiles_2, each_2, longer_2, partials_2, counters_2, block - blocks, others};              \
            QmmTarget target = {ending_2, rows_2, tokens, row_scale_2, bias_2, y, stride, column_2, split,                       \
                                to, to_row, to_stride, nullptr, 0, 0, none};                                                     \
            half_of_pair<SECOND, TILES>(half, k_blocks, x, target);                                                              \
        }                                                                                                                        \
    }

PAIR_KERNEL(1, 4)
PAIR_KERNEL(2, 8)
PAIR_KERNEL(4, 16)
