// The next token of each sequence's draft, and the row that it becomes: see draft_pick.py and spec_accept.py.
#include "sequences.cuh"
#include "pick.cuh"

// Softmax at temperature 1: the sums of all blocks, each put in relation to the best logit.
__device__ __forceinline__ float chance_of(const LogitRow& row, const float* sums, float best, int place, float* scratch) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < row.n_blocks; i += PICK_THREADS) sum += sums[i] * expf(row.maxima[i] - best);
    return expf(row.logits[place] - best) / block_sum(sum, scratch);
}

// One block for each sequence, whose logits are the row of its number. `step` tokens are drafted before.
extern "C" __global__ void __launch_bounds__(PICK_THREADS, 1)
    draft_pick(const float* logits, int stride, int n, const float* maxima, const float* sums, int maxima_stride,
               const int* taken, const long long* requests, const int* stops, int n_stops, int* table, int n_sequences,
               int* drafts, float* chances, int max_draft, int step, const int* out_rows, int* next_tokens,
               int* next_positions, const int* next_starts, int* next_past, int* next_hidden_rows, int advances) {
    __shared__ PickRoom room;
    __shared__ float scratch[33];
    SequenceTable sequences = {table, n_sequences};
    int sequence = blockIdx.x;
    let_next_start();
    wait_for_previous();
    // All that is needed of the sequence, in one go: later each load would be waited for.
    int length = sequences.at(SEQ_LENGTH, sequence), past = sequences.at(SEQ_PAST, sequence), request = sequences.at(SEQ_REQUEST, sequence);
    int next_row = next_starts[sequence], hidden_row = out_rows[sequence], draft_first = sequences.at(SEQ_DRAFT_FIRST, sequence);
    float p_min = __int_as_float(sequences.at(SEQ_P_MIN, sequence));
    bool goes_on = step < length && sequences.at(SEQ_DRAFTED, sequence) == step && request >= 0;
    int token = UNSURE;
    float chance = 1.0f;
    if (goes_on) {
        LogitRow row = {logits + (size_t)sequence * stride, maxima + (size_t)sequence * maxima_stride, taken, n,
                        (n + MAXIMA_BLOCK - 1) / MAXIMA_BLOCK};
        int best;
        const long long* words = requests + (size_t)request * REQUEST_WORDS;
        Picked found = pick_token(row, words, (uint32_t)(past + 1 + step), best, room);
        token = found.token;
        if (token != UNSURE && sums) {
            const float* own = sums + (size_t)sequence * maxima_stride;
            chance = chance_of(row, own, __int_as_float(ordered(best)), found.place, scratch);
        }
    }
    bool ends = token == UNSURE || !(chance >= p_min);
    for (int i = threadIdx.x; i < n_stops; i += PICK_THREADS) ends |= stops[i] == token;
    goes_on &= !__syncthreads_or(ends);
    if (threadIdx.x != 0) return;
    if (goes_on) {
        drafts[sequence * max_draft + step] = token;
        chances[sequence * max_draft + step] = chance;
        sequences.at(SEQ_DRAFTED, sequence) = step + 1;
    }
    if (length < 2) return;
    // A sequence whose draft has ended keeps its row, which then writes where nothing is: behind the last token of the text.
    int position = advances ? past + min(step + 1, length - 1) : past;
    if (goes_on) next_tokens[next_row] = token;
    next_positions[next_row] = position;
    next_past[sequence] = position - draft_first;
    if (next_hidden_rows) next_hidden_rows[next_row] = hidden_row;
}
