// Rows of a table that lies as in its GGUF file: taken out by token, or all of them; and the two normed halves of what
// an MTP or EAGLE block reads.
#include "gguf_blocks.cuh"

struct Table {
    const uint8_t* bytes;
    int type;       // GgufType
    int row_bytes;  // of a row
    int n_rows;
    int width;
};

// Values `at` ... `at` + 7 of row `row`; NaN if there is no such row.
__device__ __forceinline__ void load_table_8(const Table& table, int row, int at, float v[8]) {
    if (row < 0 || row >= table.n_rows) {
        fill_8(v, at < table.width ? __int_as_float(0x7fc00000) : 0.0f);
    } else {
        load_gguf_8(table.type, table.bytes + (size_t)row * table.row_bytes, at, table.width, v);
    }
}

// x [rows][width] = table[ids[i]]. Grid: (rows, pieces of 2048).
extern "C" __global__ void __launch_bounds__(256) embed(const uint8_t* bytes, int type, int row_bytes, int n_rows,
                                                        const int* ids, float* x, int width) {
    Table table = {bytes, type, row_bytes, n_rows, width};
    int at = 8 * (blockIdx.y * blockDim.x + threadIdx.x);
    let_next_start();
    wait_for_previous();
    if (at >= width) return;
    float v[8];
    load_table_8(table, ids[blockIdx.x], at, v);
    store_8(x + (size_t)blockIdx.x * width, at, width, v);
}

// halves [rows][width] = rows `first_row` ... of the table, as bfloat16. Grid as above.
extern "C" __global__ void __launch_bounds__(256) gguf_to_bf16(const uint8_t* bytes, int type, int row_bytes,
                                                               int first_row, uint16_t* halves, int width) {
    int at = 8 * (blockIdx.y * blockDim.x + threadIdx.x);
    let_next_start();
    wait_for_previous();  // it may still read what is overwritten here
    if (at >= width) return;
    float v[8];
    load_gguf_8(type, bytes + (size_t)(first_row + (int)blockIdx.x) * row_bytes, at, width, v);
    store_8(halves + (size_t)blockIdx.x * width, at, width, v);
}

// A row whose columns are those of two, side by side.
struct Pair {
    int first_width, second_width;
    // Of eight columns from `at` on, how many belong to the first.
    __device__ __forceinline__ int of_first(int at) const { return max(0, min(8, first_width - at)); }
};

// Fills what belongs to the second; 0 beyond its end. `second` null: there is no such row.
__device__ __forceinline__ void load_second_8(const Pair& pair, const float* second, int at, float v[8]) {
    int split = pair.of_first(at), column = at - pair.first_width;
    if (split == 0 && (pair.first_width & 3) == 0 && second) {
        load_8(second, column, pair.second_width, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (j < split) continue;
        bool inside = column + j < pair.second_width;
        v[j] = !inside ? 0.0f : second ? second[column + j] : __int_as_float(0x7fc00000);
    }
}

__device__ __forceinline__ void load_weights_8(const Pair& pair, const float* first, const float* second, int at,
                                               float v[8]) {
    if (at < pair.first_width) load_8(first, at, pair.first_width, v);
    load_second_8(pair, second, at, v);
}

__device__ __forceinline__ void load_pair_8(const Pair& pair, const Table& table, int table_row, const float* second,
                                            int at, float v[8]) {
    if (at < pair.first_width) load_table_8(table, table_row, at, v);
    load_second_8(pair, second, at, v);
}

// packed [rows][first | second] = [norm(table[ids[i]]) | norm(hidden[taken[i]])]; without ids or taken: row i.
// A row that does not exist is NaN. One block makes a row or, if grid.y is 2, half of one, which then is whole blocks
// of 256. Warps take blocks in turn; the last one that a warp loaded stays in registers, others are loaded again.
// per_first, per_second: 1 / width
extern "C" __global__ void __launch_bounds__(1024)
    embed_concat_quant(const void* bytes, int type, int row_bytes, int n_table_rows, const int* ids,
                       const float* first_weight, float first_eps, int first_width, float per_first,
                       const float* hidden, int n_hidden_rows, const int* taken, const float* second_weight,
                       float second_eps, int second_width, float per_second, int8_t* q, float* d, int16_t* s,
                       int packed_width) {
    __shared__ float scratch[2][32];
    Table table = {(const uint8_t*)bytes, type, row_bytes, n_table_rows, first_width};
    Pair pair = {first_width, second_width};
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5, row = blockIdx.x;
    bool halved = gridDim.y == 2;
    int begin = halved && blockIdx.y == 1 ? first_width / PACK_BLOCK : 0;
    int end = halved && blockIdx.y == 0 ? first_width / PACK_BLOCK : packed_width / PACK_BLOCK;
    int first_block = begin + warp, last = first_block + (end - 1 - first_block) / warps * warps;
    bool idle = first_block >= end;
    let_next_start();
    float v[8], w[8];
    if (!idle) load_weights_8(pair, first_weight, second_weight, last * PACK_BLOCK + 8 * lane, w);
    wait_for_previous();
    int table_row = ids ? ids[row] : row, hidden_row = taken ? taken[row] : row;
    bool exists = 0 <= hidden_row && hidden_row < n_hidden_rows;
    const float* second = exists ? hidden + (size_t)hidden_row * second_width : nullptr;

    float first_squares = 0.0f, second_squares = 0.0f;
    for (int block = first_block; block < end; block += warps) {
        int at = block * PACK_BLOCK + 8 * lane, split = pair.of_first(at);
        float of_first[8], of_second[8];
        load_pair_8(pair, table, table_row, second, at, v);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            of_first[j] = j < split ? v[j] : 0.0f;
            of_second[j] = j < split ? 0.0f : v[j];
        }
        first_squares += square_sum_8(of_first);
        second_squares += square_sum_8(of_second);
    }
    block_sum_once(first_squares, second_squares, scratch);
    if (idle) return;
    float first_factor = norm_factor(first_squares, per_first, first_eps);
    float second_factor = norm_factor(second_squares, per_second, second_eps);
    for (int block = last; block >= first_block; block -= warps) {
        int at = block * PACK_BLOCK + 8 * lane, split = pair.of_first(at);
        if (block != last) {
            load_pair_8(pair, table, table_row, second, at, v);
            load_weights_8(pair, first_weight, second_weight, at, w);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = v[j] * (j < split ? first_factor : second_factor) * w[j];
        pack_block(v, {q, d, s, packed_width}, row, block);
    }
}
