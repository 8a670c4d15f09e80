// The token after each row of logits, as core/sampling defines it: see pick.cuh and head_pick.py.
#include "pick.cuh"

// Of each block of logits the best (NaN if one is), and in `sums`, if given, the sum of exp(x - best).
// Grid: (blocks / 32, rows).
extern "C" __global__ void __launch_bounds__(256)
    head_summits(const float* logits, int stride, int n, float* maxima, float* sums, int maxima_stride) {
    constexpr int PER_WARP = 4;
    int lane = threadIdx.x & 31, first = (blockIdx.x * 8 + (threadIdx.x >> 5)) * PER_WARP;
    let_next_start();
    wait_for_previous();
    const float* row = logits + (size_t)blockIdx.y * stride;
    size_t out = (size_t)blockIdx.y * maxima_stride;
    float x[2 * PER_WARP];
#pragma unroll
    for (int i = 0; i < 2 * PER_WARP; i++) {
        int place = first * MAXIMA_BLOCK + 32 * i + lane;
        x[i] = place < n ? row[place] : -INFINITY_F;
    }
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) {
        int block = first + i, order = max(order_of_any(x[2 * i]), order_of_any(x[2 * i + 1]));
        if (block * MAXIMA_BLOCK >= n) break;
        float best = __int_as_float(ordered(__reduce_max_sync(ALL_LANES, order)));
        if (lane == 0) maxima[out + block] = best;
        if (!sums) continue;
        float sum = warp_sum(expf(x[2 * i] - best) + expf(x[2 * i + 1] - best));
        if (lane == 0) sums[out + block] = best == -INFINITY_F ? 0.0f : sum;
    }
}

// One block for each row of logits. The row of the step that it belongs to is out_rows[i], or i without them; that row's
// sequence and position are in `sequence_of` and `positions`. A row of no sequence, or whose sequence has no request
// (request_of < 0), gets UNSURE.
extern "C" __global__ void __launch_bounds__(PICK_THREADS, 1)
    head_pick(const float* logits, int stride, int n, const float* maxima, int maxima_stride, const long long* requests,
              const int* request_of, const int* sequence_of, const int* positions, const int* out_rows, int* picked) {
    __shared__ PickRoom room;
    let_next_start();
    wait_for_previous();
    int i = blockIdx.x, at = out_rows ? out_rows[i] : i, sequence = sequence_of[at];
    int request = sequence < 0 ? -1 : request_of[sequence];
    if (request < 0) {
        if (threadIdx.x == 0) picked[i] = UNSURE;
        return;
    }
    LogitRow row = {logits + (size_t)i * stride, maxima + (size_t)i * maxima_stride, nullptr, n,
                    (n + MAXIMA_BLOCK - 1) / MAXIMA_BLOCK};
    int best;
    Picked found = pick_token(row, requests + (size_t)request * REQUEST_WORDS, (uint32_t)positions[at] + 1, best, room);
    if (threadIdx.x == 0) picked[i] = found.token;
}

// The noise of one place of a text for each token: for tests, on whatever compiles this.
extern "C" __global__ void __launch_bounds__(256)
    noise_of(const uint32_t* place, const uint32_t* tokens, uint32_t* words, double* noise, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    wait_for_previous();
    if (i >= n) return;
    NoisePlace at = {place[4 * i], place[4 * i + 1], place[4 * i + 2], place[4 * i + 3]};
    words[i] = noise_word(at, tokens[i], PICK_NOISE);
    noise[i] = gumbel_noise(at, tokens[i]);
}
