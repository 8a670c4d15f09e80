// Where the products of plain (not quantised) matrices go: columns of float rows.
#pragma once
#include "base.cuh"

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
