// KV pages of all layers in one launch: from page to page, to one piece of memory, and back. A page is copied as bytes.
#include "copy.cuh"

// table    [arrays][3]: where the array's pages lie, the bytes of each of them, those of a page in all arrays before it
// sources  pages, or null: `buffer` holds them, the pages of the first array, then those of the second one, ...
// targets  likewise
// Grid (pieces of the largest page, pages, arrays).
extern "C" __global__ void __launch_bounds__(COPY_THREADS, COPY_BLOCKS)
    page_copy(const int64_t* table, const int* sources, const int* targets, char* buffer) {
    let_next_start();
    const int64_t* row = table + 3 * blockIdx.z;
    char* pages = (char*)row[0];
    size_t bytes = (size_t)row[1];
    char* in_buffer = buffer + (size_t)row[2] * gridDim.y + blockIdx.y * bytes;
    int n = (int)(bytes / 16), piece = blockIdx.x;
    wait_for_previous();
    if (piece >= copy_pieces(n)) return;
    const char* from = sources ? pages + sources[blockIdx.y] * bytes : in_buffer;
    copy_piece(targets ? pages + targets[blockIdx.y] * bytes : in_buffer, from, n, piece);
}
