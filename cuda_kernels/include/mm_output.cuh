// Where the products of plain (not quantised) matrices go: columns of float rows, or packed rows of activation(gate) * up.
#pragma once
#include "qmm_epilogue.cuh"

struct Columns {
    float* y;           // the first of them; what follows in a row belongs to others
    int stride;         // values from one row to the next
    const float* bias;  // [columns] or null
    int add;            // not 0: added to what is there

    __device__ __forceinline__ void store(int row, int column, float value) const {
        float* at = y + (size_t)row * stride + column;
        if (bias) value += bias[column];
        *at = add ? *at + value : value;
    }
};

// Gates are the first `width` rows of the weights, ups the others.
struct GatedColumns {
    float* hidden;      // [row][width]: where columns meet before they are packed
    int width, activation;
    const float* bias;  // [2 * width] or null
    PackedRows packed;
    int* arrivals;      // zero between launches: one for each block of 256 of packed.width, of these rows

    __device__ __forceinline__ void store(int row, int column, float gate, float up) const {
        if (bias) gate += bias[column], up += bias[width + column];
        hidden[(size_t)row * width + column] = gated(activation, gate, up);
    }
    // By all threads of a block that has stored its columns, all of them in block `block` of 256: the last of `expected`
    // blocks packs them, for rows first ... last - 1, or chosen[first] ... if given.
    __device__ __forceinline__ void pack(int block, int expected, int first, int last, const int* chosen = nullptr) const {
        int lane = threadIdx.x & 31;
        if (!last_to_arrive(arrivals + block, expected)) return;
        for (int i = first + (threadIdx.x >> 5); i < last; i += blockDim.x >> 5) {
            float values[8];
            int row = chosen ? chosen[i] : i;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int at = PACK_BLOCK * block + 8 * lane + j;
                values[j] = at < width ? __ldcg(hidden + (size_t)row * width + at) : 0.0f;
            }
            pack_block(values, packed, row, block);
        }
    }
};
