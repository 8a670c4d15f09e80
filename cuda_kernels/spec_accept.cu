// A round of speculation between the passes of the models: which rows a drafter runs, which rows are verified, and what
// comes of them. One block for all sequences. See spec_accept.py.
#include "sequences.cuh"
#include "noise.cuh"
#include "request.cuh"

#define THREADS MAX_SEQUENCES  // thread i counts the rows of sequence i

// Places of rows that several sequences have, one sequence after the other: of sequence i from at[i] on, up to at[i + 1].
struct Layout {
    int at[MAX_SEQUENCES + 1];
    int of_warp[THREADS / 32];
};

// `mine`: rows of sequence threadIdx.x, 0 beyond the sequences. Also written to `starts`. All threads have to call it.
__device__ __forceinline__ void lay_out(int mine, int n_sequences, Layout& layout, int* starts) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, end = mine;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        int before = __shfl_up_sync(ALL_LANES, end, offset);
        if (lane >= offset) end += before;
    }
    if (lane == 31) layout.of_warp[warp] = end;
    __syncthreads();
    for (int i = 0; i < warp; i++) end += layout.of_warp[i];
    layout.at[threadIdx.x + 1] = end;
    if (threadIdx.x == 0) layout.at[0] = starts[0] = 0;
    if ((int)threadIdx.x < n_sequences) starts[threadIdx.x + 1] = end;
    __syncthreads();
}

// The rows that a drafter runs first: what has come out since it last did. And the rows of its next steps, one for each
// sequence that may draft more than one token.
extern "C" __global__ void __launch_bounds__(THREADS)
    draft_begin(int* table, int n_sequences, const int* fresh, int fresh_width, int most, int* first_tokens,
                int* first_positions, int* first_starts, int* first_past, int* first_out_rows, int* first_hidden_rows,
                int n_first, int* next_tokens, int* next_positions, int* next_starts, int* next_past, int* next_out_rows,
                int* next_hidden_rows, int n_next) {
    __shared__ Layout first, next;
    SequenceTable sequences = {table, n_sequences};
    int mine = threadIdx.x, n = 0, length = 0;
    let_next_start();
    wait_for_previous();
    if (mine < n_sequences) {
        if (sequences.runs(mine)) n = sequences.at(SEQ_FRESH, mine);
        if (n > 0) length = min(min(sequences.at(SEQ_MAX_DRAFT, mine), most), sequences.room(mine));
        length = max(length, 0);
        sequences.at(SEQ_LENGTH, mine) = length;
        sequences.at(SEQ_DRAFTED, mine) = 0;
    }
    lay_out(n, n_sequences, first, first_starts);
    lay_out(length > 1, n_sequences, next, next_starts);
    if (mine < n_sequences) {
        int past = sequences.at(SEQ_PAST, mine), row = next.at[mine];
        int head_past = past + 1 - sequences.at(SEQ_DRAFT_FIRST, mine);
        first_past[mine] = head_past - n;
        first_out_rows[mine] = n > 0 ? first.at[mine] + n - 1 : 0;
        next_past[mine] = head_past;
        next_out_rows[mine] = row;  // of a sequence without one that of another: it is not read
        if (length > 1) {
            next_tokens[row] = sequences.at(SEQ_TOKEN, mine);
            next_positions[row] = past + 1;
        }
    }
    for (int sequence = threadIdx.x >> 5; sequence < n_sequences; sequence += THREADS / 32) {
        int start = first.at[sequence], n_rows = first.at[sequence + 1] - start;
        int position = sequences.at(SEQ_PAST, sequence) + 1 - n_rows, hidden = sequences.at(SEQ_FRESH_ROW, sequence);
        for (int i = threadIdx.x & 31; i < n_rows; i += 32) {
            first_tokens[start + i] = fresh[sequence * fresh_width + i];
            first_positions[start + i] = position + i;
            if (first_hidden_rows) first_hidden_rows[start + i] = hidden + i;
        }
    }
    for (int i = first.at[n_sequences] + threadIdx.x; i < n_first; i += THREADS) {
        first_tokens[i] = first_positions[i] = 0;
        if (first_hidden_rows) first_hidden_rows[i] = 0;
    }
    for (int i = threadIdx.x; i < n_next; i += THREADS) {
        if (next_hidden_rows) next_hidden_rows[i] = 0;
        if (i >= next.at[n_sequences]) next_tokens[i] = next_positions[i] = 0;
    }
}

// The rows to verify: the last token of each sequence and its draft.
extern "C" __global__ void __launch_bounds__(THREADS)
    verify_begin(int* table, int n_sequences, const int* drafts, int draft_width, int most, int* tokens, int* positions,
                 int* starts, int* sequence_of, int n_rows) {
    __shared__ Layout rows;
    SequenceTable sequences = {table, n_sequences};
    int mine = threadIdx.x, n = 0;
    let_next_start();
    wait_for_previous();
    if (mine < n_sequences && sequences.runs(mine)) {
        int drafted = max(0, min(min(sequences.at(SEQ_DRAFTED, mine), most), sequences.room(mine)));
        sequences.at(SEQ_DRAFTED, mine) = drafted;
        n = 1 + drafted;
    }
    lay_out(n, n_sequences, rows, starts);
    for (int sequence = threadIdx.x >> 5; sequence < n_sequences; sequence += THREADS / 32) {
        int start = rows.at[sequence], end = rows.at[sequence + 1];
        int past = sequences.at(SEQ_PAST, sequence), token = sequences.at(SEQ_TOKEN, sequence);
        for (int i = threadIdx.x & 31; start + i < end; i += 32) {
            tokens[start + i] = i ? drafts[sequence * draft_width + i - 1] : token;
            positions[start + i] = past + i;
            sequence_of[start + i] = sequence;
        }
    }
    for (int i = rows.at[n_sequences] + threadIdx.x; i < n_rows; i += THREADS) {
        tokens[i] = positions[i] = 0;
        sequence_of[i] = -1;
    }
}

// Settling ----------------------------------------------------------------------------------------------------------

// `replay_after` of core/backend/step.py
__device__ __forceinline__ int replay_after(int replay, int n_rows, int n_valid, int window, int kept_factors) {
    int kept = replay < kept_factors && replay + n_rows <= window ? replay : 0;
    return kept + n_valid - max(0, n_rows - window);
}

__device__ __forceinline__ bool is_stop(int token, const int* stops, int n_stops) {
    bool found = false;
    for (int i = 0; i < n_stops; i++) found |= stops[i] == token;
    return found;
}

// Coins instead of picks decide what holds, for benchmarks: rates[i] is the chance of a draft's token i.
struct Coins {
    const double* rates;  // null: no coins
    int n_rates;
    const long long* requests;

    __device__ bool hold(int request, int position, int i) const {
        if (i >= n_rates || request < 0) return false;
        const long long* words = requests + (size_t)request * REQUEST_WORDS;
        NoisePlace place = {(uint32_t)words[KEY_LOW], (uint32_t)words[KEY_HIGH], (uint32_t)position, (uint32_t)words[SEQUENCE]};
        return noise_coin(place, ACCEPT_COIN) < rates[i];
    }
};

// Some rows of a sequence: the tokens that ran, those that were picked after them, and what ends them.
struct Verified {
    const int* tokens;
    const int* picked;
    int n, past, end, request;
};

struct RoundOutcome {
    int n_made, n_accepted, state;

    __device__ int token(const Verified& rows, int i) const { return i < n_accepted ? rows.tokens[i + 1] : rows.picked[i]; }
};

// Tokens come out up to the first one that was not drafted, or that ends the text. By a warp.
__device__ __forceinline__ RoundOutcome outcome_of(const Verified& rows, const Coins& coins, const int* stops, int n_stops) {
    for (int first = 0;; first += 32) {
        int i = first + (threadIdx.x & 31);
        bool is_row = i < rows.n, is_drafted = i + 1 < rows.n;
        int drafted = is_drafted ? rows.tokens[i + 1] : UNSURE, token = is_row ? rows.picked[i] : UNSURE;
        bool hits = is_drafted && drafted == token;
        if (coins.rates && is_drafted) {
            hits = coins.hold(rows.request, rows.past + 1 + i, i) && !is_stop(drafted, stops, n_stops);
            if (hits) token = drafted;
        }
        unsigned hit = __ballot_sync(ALL_LANES, hits), unsure = __ballot_sync(ALL_LANES, is_row && token < 0);
        unsigned ends = __ballot_sync(ALL_LANES, is_row && is_stop(token, stops, n_stops));
        unsigned fills = __ballot_sync(ALL_LANES, is_row && rows.past + 2 + i >= rows.end);
        unsigned last = __ballot_sync(ALL_LANES, is_row && !hits) | unsure | ends | fills;
        if (!last) continue;
        unsigned it = last & (0u - last);
        int before = first + __ffs(last) - 1;
        if (unsure & it) return {before, before, SEQ_UNSURE};
        int state = ends & it ? SEQ_STOPPED : fills & it ? SEQ_FULL : SEQ_RUNS;
        return {before + 1, before + (hit & it ? 1 : 0), state};
    }
}

// Of each sequence: state, past, replay and last token; what a drafter has to read; a record of the round.
extern "C" __global__ void __launch_bounds__(THREADS)
    spec_accept(int* table, int n_sequences, const int* tokens, const int* starts, const int* picked, int* fresh,
                const float* chances, int max_draft, const int* stops, int n_stops, int window, int kept_factors,
                const double* rates, int n_rates, const long long* requests, int* records, int record_width, int n_records, int* counter, int* published) {
    SequenceTable sequences = {table, n_sequences};
    Coins coins = {rates, n_rates, requests};
    int lane = threadIdx.x & 31;
    let_next_start();
    wait_for_previous();
    int round = counter[0];
    for (int sequence = threadIdx.x >> 5; sequence < n_sequences; sequence += THREADS / 32) {
        int* record = records + ((size_t)((unsigned)round % (unsigned)n_records) * n_sequences + sequence) * record_width;
        int start = starts[sequence], n = starts[sequence + 1] - start, past = sequences.at(SEQ_PAST, sequence);
        RoundOutcome made = {0, 0, sequences.at(SEQ_STATE, sequence)};
        Verified rows = {tokens + start, picked + start, n, past, sequences.at(SEQ_END, sequence), sequences.at(SEQ_REQUEST, sequence)};
        if (n > 0) made = outcome_of(rows, coins, stops, n_stops);
        __syncwarp();
        int* out_tokens = record + 5;
        int* out_drafted = out_tokens + max_draft + 1;
        int* out_chances = out_drafted + max_draft;
        for (int i = lane; i < made.n_made; i += 32)
            out_tokens[i] = fresh[sequence * (max_draft + 1) + i] = made.token(rows, i);
        for (int i = lane; i < n - 1; i += 32) {
            out_drafted[i] = tokens[start + 1 + i];
            out_chances[i] = __float_as_int(chances[sequence * max_draft + i]);
        }
        if (lane != 0) continue;
        record[0] = sequences.at(SEQ_ID, sequence);
        record[1] = made.state;
        record[2] = made.n_made;
        record[3] = max(0, n - 1);
        record[4] = made.n_accepted;
        if (n == 0) continue;
        int& replay = sequences.at(SEQ_N_PENDING_ACCEPTED, sequence);
        replay = replay_after(replay, n, made.n_made, window, kept_factors);
        sequences.at(SEQ_STATE, sequence) = made.state;
        sequences.at(SEQ_PAST, sequence) = past + made.n_made;
        if (made.n_made > 0) sequences.at(SEQ_TOKEN, sequence) = made.token(rows, made.n_made - 1);
        sequences.at(SEQ_DRAFTED, sequence) = 0;
        sequences.at(SEQ_FRESH, sequence) = made.n_made;
        sequences.at(SEQ_FRESH_ROW, sequence) = start;
    }
    __threadfence_system();  // a host that sees the count sees the records
    __syncthreads();
    if (threadIdx.x == 0) {
        counter[0] = round + 1;
        *(volatile int*)published = round + 1;
    }
}
