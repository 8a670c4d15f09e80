// Rows of convolution inputs on their way into the ring: row p mod R of a slot is that of position p.
#include "base.cuh"

// For each row of a step, which row of [slots * R] it belongs in: for a product that writes it there. `spare`: of a row of
// no sequence; below 0 that is the row which the sequence with the fewest rows would fill next. One block.
extern "C" __global__ void __launch_bounds__(256) gdn_ring_rows(int* rows, int n_rows, const int* starts, const int* slots,
                                                                const int* past, int n_sequences, int ring_rows, int spare) {
    let_next_start();
    wait_for_previous();
    if (spare < 0) {
        for (int b = 0, fewest = ring_rows; b < n_sequences; b++) {
            int n = starts[b + 1] - starts[b];
            if (n >= fewest) continue;
            fewest = n;
            spare = slots[b] * ring_rows + (past[b] + n) % ring_rows;
        }
    }
    for (int i = threadIdx.x; i < n_rows; i += 256) rows[i] = spare;
    __syncthreads();
    for (int b = 0; b < n_sequences; b++) {
        int start = starts[b], position = past[b], first = slots[b] * ring_rows;
        int n = min(starts[b + 1], n_rows) - start;
        for (int t = threadIdx.x; t < n; t += 256) rows[start + t] = first + (position + t) % ring_rows;
    }
}

// Plain rows into the ring; of a sequence with more of them than the ring has, the last ones. Grid (rows, sequences):
// blocks beyond a sequence's rows leave.
extern "C" __global__ void __launch_bounds__(256) gdn_keep_rows(float* ring, const float* inputs, int stride, int channels,
                                                                const int* starts, const int* slots, const int* past,
                                                                int ring_rows) {
    let_next_start();
    wait_for_previous();
    int b = blockIdx.y, start = starts[b], n = starts[b + 1] - start;
    int t = max(0, n - ring_rows) + blockIdx.x;
    if (t >= n) return;
    const float4* from = (const float4*)(inputs + (size_t)(start + t) * stride);
    float4* to = (float4*)(ring + ((size_t)slots[b] * ring_rows + (past[b] + t) % ring_rows) * channels);
    for (int i = threadIdx.x; i < channels / 4; i += 256) to[i] = from[i];
}
