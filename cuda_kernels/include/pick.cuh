// Picking a token from a row of logits: what core/sampling defines, for the chains that a request can say. One block picks.
// Comparisons, and float64 + - * / in the order of the definition; only the exponentials of top-p are our own, and
// where they are near a threshold the answer is UNSURE. The same in other words: core/backend/cpu/kernels/sample.py.
#pragma once
#include "noise.cuh"
#include "request.cuh"

#define PICK_THREADS 256  // at least MAX_BEST: each holds a candidate in the end
#define PICK_WARPS (PICK_THREADS / 32)
#define MAXIMA_BLOCK 64                 // logits that share a maximum
#define OWN_MAXIMA 32                   // maxima that a thread holds
#define MAX_BLOCKS (PICK_THREADS * OWN_MAXIMA)
#define MAX_BEST 256
#define MAX_FOUND 1024  // candidates that are ranked; of more, the best are looked for first
#define INT_LOWEST ((int)0x80000000)
#define LLONG_LOWEST ((long long)0x8000000000000000ull)

// Integers in the order of the numbers, and back by the same; both zeros should be made one before, by + 0.0.
__device__ __forceinline__ int ordered(int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
__device__ __forceinline__ long long ordered(long long bits) { return bits ^ ((bits >> 63) & 0x7fffffffffffffffll); }
__device__ __forceinline__ int order_of(float x) { return ordered(__float_as_int(x + 0.0f)); }
__device__ __forceinline__ long long order_of(double x) { return ordered(__double_as_longlong(x + 0.0)); }

#define ORDER_OF_NAN 0x7fffffff         // which is a NaN again, turned back
#define ORDER_OF_INFINITY 0x7f800000
#define ORDER_OF_LOWEST ((int)0x80800000)  // the lowest float: below it there is only -inf

__device__ __forceinline__ int order_of_any(float x) { return x == x ? order_of(x) : ORDER_OF_NAN; }

// A row of logits, whose places are the first tokens, or `taken` says which ones, ascending.
struct LogitRow {
    const float* logits;
    const float* maxima;
    const int* taken;
    int n, n_blocks;

    __device__ int token(int place) const { return taken ? taken[place] : place; }
    // of this token, or -1
    __device__ int place(int token) const {
        if (!taken) return token < n ? token : -1;
        int low = 0, high = n - 1;
        while (low < high) {
            int middle = (low + high) >> 1;
            if (taken[middle] < token) low = middle + 1;
            else high = middle;
        }
        return taken[low] == token ? low : -1;
    }
};

struct Picked {
    int token, place;  // UNSURE and -1
};

struct PickRoom {
    long long request[REQUEST_WORDS];
    long long order[MAX_FOUND + MAX_BIASES];  // candidates as they are found: value, token, place
    int token[MAX_FOUND + MAX_BIASES], place[MAX_FOUND + MAX_BIASES];
    long long best_order[MAX_BEST];  // the same, ranked
    int best_token[MAX_BEST], best_place[MAX_BEST];
    unsigned short blocks[MAX_BLOCKS];  // of logits that hold candidates
    double sums[PICK_WARPS];
    int counts[2][PICK_WARPS];
    int best_of_warp[PICK_WARPS];
    int n_blocks, n_found, n_out;
    unsigned lowest_block, lowest_place;
    long long score[PICK_WARPS];
    Picked winner[PICK_WARPS];
};

// Sums over the block with one barrier each: two lines of memory take turns.
struct BlockCount {
    int (*counts)[PICK_WARPS];
    int turn;

    __device__ __forceinline__ int operator()(int mine) {
        int sum = __reduce_add_sync(ALL_LANES, mine);
        turn ^= 1;
        if ((threadIdx.x & 31) == 0) counts[turn][threadIdx.x >> 5] = sum;
        __syncthreads();
        int total = 0;
#pragma unroll
        for (int warp = 0; warp < PICK_WARPS; warp++) total += counts[turn][warp];
        return total;
    }
};

// Maxima ------------------------------------------------------------------------------------------------------------

// This thread's maxima as ordered integers; returns the best of the row, above that of infinity if one is NaN.
__device__ __forceinline__ int read_maxima(const LogitRow& row, int own[OWN_MAXIMA], PickRoom& room) {
    int best = INT_LOWEST;
#pragma unroll
    for (int i = 0; i < OWN_MAXIMA; i++) {
        int block = i * PICK_THREADS + threadIdx.x;
        own[i] = block < row.n_blocks ? order_of_any(row.maxima[block]) : INT_LOWEST;
        best = max(best, own[i]);
    }
    best = __reduce_max_sync(ALL_LANES, best);
    if ((threadIdx.x & 31) == 0) room.best_of_warp[threadIdx.x >> 5] = best;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < PICK_WARPS; warp++) best = max(best, room.best_of_warp[warp]);
    return best;
}

// The lowest place of the best logit.
__device__ __forceinline__ int first_of_best(const LogitRow& row, const int own[OWN_MAXIMA], int best, PickRoom& room) {
    unsigned block = 0xffffffffu;
#pragma unroll
    for (int i = OWN_MAXIMA - 1; i >= 0; i--)
        if (own[i] == best) block = i * PICK_THREADS + threadIdx.x;
    block = __reduce_min_sync(ALL_LANES, block);
    if ((threadIdx.x & 31) == 0) atomicMin(&room.lowest_block, block);
    __syncthreads();
    unsigned place = room.lowest_block * MAXIMA_BLOCK + threadIdx.x;
    if (threadIdx.x < MAXIMA_BLOCK && place < (unsigned)row.n && order_of(row.logits[place]) == best)
        atomicMin(&room.lowest_place, place);
    __syncthreads();
    return (int)room.lowest_place;
}

// A number that at least `wanted` maxima reach, and not many more, by halving the interval that it lies in.
__device__ __forceinline__ int floor_of_maxima(const LogitRow& row, const int own[OWN_MAXIMA], int wanted, int best,
                                               BlockCount& count) {
    int low = ORDER_OF_LOWEST, high = best + 1, enough = wanted + (wanted >> 2) + 4;
    int middle = max(low, order_of(__int_as_float(ordered(best)) - 16.0f));  // where it mostly is not far above
    while ((unsigned)high - (unsigned)low > 1) {
        int mine = 0;
#pragma unroll
        for (int i = 0; i < OWN_MAXIMA; i++)
            if (i * PICK_THREADS < row.n_blocks) mine += own[i] >= middle;
        int reaching = count(mine);
        if (reaching < wanted) high = middle;
        else low = middle;
        if (wanted <= reaching && reaching <= enough) break;
        middle = low + (int)(((unsigned)high - (unsigned)low) >> 1);
    }
    return low;
}

// Candidates --------------------------------------------------------------------------------------------------------

// The blocks with a maximum of at least `floor`, in any order.
__device__ __forceinline__ void list_blocks(const int own[OWN_MAXIMA], int floor, PickRoom& room) {
    unsigned reaching = 0;
#pragma unroll
    for (int i = 0; i < OWN_MAXIMA; i++) reaching |= (unsigned)(own[i] >= floor) << i;
    for (; reaching; reaching &= reaching - 1) {
        int i = __ffs(reaching) - 1;
        room.blocks[atomicAdd(&room.n_blocks, 1)] = (unsigned short)(i * PICK_THREADS + threadIdx.x);
    }
    __syncthreads();
}

// The logit, in the order of integers, above the complement of its place: of equal logits the lower place is the better.
__device__ __forceinline__ long long key_of(int order, unsigned place) {
    return (long long)order * 4294967296ll + (long long)(0xffffffffu ^ place);
}

// `use(key)` for each logit in the listed blocks whose key is at least `least`.
template <class Use>
__device__ __forceinline__ void each_key(const LogitRow& row, const PickRoom& room, long long least, Use use) {
    constexpr int AT_ONCE = 8;  // blocks under way
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int first = warp; first < room.n_blocks; first += AT_ONCE * PICK_WARPS) {
        int places[2 * AT_ONCE];
        float logits[2 * AT_ONCE];
#pragma unroll
        for (int i = 0; i < 2 * AT_ONCE; i++) {
            int at = first + (i >> 1) * PICK_WARPS;
            places[i] = at < room.n_blocks ? room.blocks[at] * MAXIMA_BLOCK + 32 * (i & 1) + lane : row.n;
            logits[i] = places[i] < row.n ? row.logits[places[i]] : -INFINITY_F;
        }
#pragma unroll
        for (int i = 0; i < 2 * AT_ONCE; i++) {
            long long key = key_of(order_of(logits[i]), (unsigned)places[i]);
            if (key >= least) use(key);
        }
    }
}

// A key that at least `wanted` candidates reach and at most MAX_FOUND: for rows with many equal logits, and short ones.
__device__ __forceinline__ long long least_key(const LogitRow& row, const PickRoom& room, int wanted, long long low,
                                               long long high, BlockCount& count) {
    while ((unsigned long long)high - (unsigned long long)low > 1) {
        long long middle = low + (long long)(((unsigned long long)high - (unsigned long long)low) >> 1);
        int mine = 0;
        each_key(row, room, middle, [&](long long) { mine++; });
        int reaching = count(mine);
        if (reaching < wanted) high = middle;
        else low = middle;
        if (wanted <= reaching && reaching <= MAX_FOUND) break;
    }
    return low;
}

// Keys of what may be among the best `wanted`, to room.order in any order; room.n_found says how many.
__device__ __forceinline__ void find(const LogitRow& row, int wanted, int floor, int best, PickRoom& room, BlockCount& count) {
    long long least = key_of(floor, 0xffffffffu);
    for (;;) {
        each_key(row, room, least, [&](long long key) {
            int at = atomicAdd(&room.n_found, 1);
            if (at < MAX_FOUND) room.order[at] = key;
        });
        __syncthreads();
        if (room.n_found <= MAX_FOUND) break;
        least = least_key(row, room, wanted, least, key_of(best, 0) + 1, count);
        __syncthreads();
        if (threadIdx.x == 0) room.n_found = 0;
        __syncthreads();
    }
}

// Keys to values, places and tokens. Those with a bias are out: they join again with it.
__device__ __forceinline__ void name_found(const LogitRow& row, int n_found, int n_biases, PickRoom& room) {
    for (int i = threadIdx.x; i < n_found; i += PICK_THREADS) {
        long long key = room.order[i];
        int place = (int)(0xffffffffu ^ (unsigned)key), token = row.token(place);
        bool is_biased = false;
        for (int k = 0; k < n_biases; k++) is_biased |= room.request[BIAS_IDS + k] == token;
        room.order[i] = is_biased ? LLONG_LOWEST : order_of((double)__int_as_float(ordered((int)(key >> 32))));
        room.token[i] = token;
        room.place[i] = place;
        if (is_biased) atomicAdd(&room.n_out, 1);
    }
}

// Biased tokens behind them. Those at -inf are banned, as are those without a place.
__device__ __forceinline__ void add_biased(const LogitRow& row, int n_biases, PickRoom& room) {
    int i = threadIdx.x;
    if (i >= n_biases) return;
    int token = (int)room.request[BIAS_IDS + i], place = row.place(token);
    if (place < 0) return;
    double biased = (double)row.logits[place] + __longlong_as_double(room.request[BIAS_VALUES + i]);
    if (!(biased > -(double)INFINITY_F)) return;
    int at = atomicAdd(&room.n_found, 1);
    room.order[at] = order_of(fmin(fmax(biased, -1e100), 1e100));
    room.token[at] = token;
    room.place[at] = place;
}

// The best of them in their order, of equals the lower token first.
__device__ __forceinline__ void rank(int n_found, int n_best, PickRoom& room) {
    for (int i = threadIdx.x; i < n_found; i += PICK_THREADS) {
        long long order = room.order[i];
        int token = room.token[i], better = 0;
        for (int k = 0; k < n_found; k++) {
            long long other = room.order[k];
            better += other > order || (other == order && room.token[k] < token);
        }
        if (better >= n_best) continue;
        room.best_order[better] = order;
        room.best_token[better] = token;
        room.best_place[better] = room.place[i];
    }
    __syncthreads();
}

// Filters -----------------------------------------------------------------------------------------------------------

// Candidates, best first: thread i has the i-th one, and `best` is that of thread 0.
struct Candidates {
    double value, best;
    int n;

    __device__ bool is_mine() const { return (int)threadIdx.x < n; }
    __device__ void keep(int wanted, int at_least) { n = min(n, max(wanted, at_least)); }
};

// Running sums over the block; `total` of all of it.
__device__ __forceinline__ double running_sum(double x, double* sums, double& total) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        double before = __shfl_up_sync(ALL_LANES, x, offset);
        if (lane >= offset) x = x + before;
    }
    if (lane == 31) sums[warp] = x;
    __syncthreads();
    double below = 0.0;
    total = 0.0;
#pragma unroll
    for (int i = 0; i < PICK_WARPS; i++) {
        if (i == warp) below = total;
        total = total + sums[i];
    }
    return below + x;
}

// The fewest with probability `p`; false where another exponential function could keep more or fewer.
__device__ __forceinline__ bool keep_top_p(Candidates& c, double p, int at_least, PickRoom& room, BlockCount& count) {
    double total, reached = running_sum(c.is_mine() ? exp(c.value - c.best) : 0.0, room.sums, total);
    double margin = total * 1e-9, wanted = p * total;
    int fewest = count(c.is_mine() && reached < wanted - margin);
    int most = count(c.is_mine() && reached < wanted + margin);
    c.keep(fewest + 1, at_least);
    return fewest == most;
}

__device__ __forceinline__ bool filter(Candidates& c, PickRoom& room, BlockCount& count) {
    bool is_sure = true;
    int n_filters = (int)room.request[N_FILTERS];
    for (int i = 0; i < n_filters; i++) {
        const long long* words = room.request + FIRST_FILTER + FILTER_WORDS * i;
        double number = __longlong_as_double(words[1]);
        int kind = (int)words[0], at_least = (int)words[2];
        if (kind == TOP_K) c.n = min(c.n, at_least);
        if (kind == TOP_P && c.n > 1) is_sure &= keep_top_p(c, number, at_least, room, count);
        if (kind == MIN_P) c.keep(count(c.is_mine() && c.value >= c.best + number), at_least);
        if (kind == TEMPERATURE) {
            c.value = c.value / number;
            c.best = c.best / number;
        }
    }
    return is_sure;
}

// The draw ----------------------------------------------------------------------------------------------------------

struct Scored {
    long long score;
    Picked picked;

    __device__ bool beats(const Scored& other) const {
        return score > other.score || (score == other.score && picked.token < other.picked.token);
    }
};

// The lanes' best: its score, then the lower token.
__device__ __forceinline__ Scored best_of_warp(Scored mine) {
    int high = (int)(mine.score >> 32), best_high = __reduce_max_sync(ALL_LANES, high);
    unsigned low = high == best_high ? (unsigned)mine.score : 0, best_low = __reduce_max_sync(ALL_LANES, low);
    bool is_best = high == best_high && (unsigned)mine.score == best_low;
    unsigned token = __reduce_min_sync(ALL_LANES, is_best ? (unsigned)mine.picked.token : 0xffffffffu);
    unsigned winner = __ballot_sync(ALL_LANES, is_best && (unsigned)mine.picked.token == token);
    int lane = __ffs(winner) - 1;
    mine.picked.place = __shfl_sync(ALL_LANES, mine.picked.place, lane);
    mine.picked.token = (int)token;
    mine.score = (long long)best_high * 4294967296ll + (long long)best_low;
    return mine;
}

// The argmax of value + noise; of equals the lower token.
__device__ __forceinline__ Picked draw(const Candidates& c, Picked mine, uint32_t position, PickRoom& room, BlockCount& count) {
    Picked no_pick = {UNSURE, -1};
    if (c.n == 1) return {room.best_token[0], room.best_place[0]};
    // Beyond this, values swallow the noise, and the definition's short cuts are better not relied on.
    if (count(c.is_mine() && !(fabs(c.value) < 1e12))) return no_pick;
    Scored scored = {LLONG_LOWEST, {0x7fffffff, -1}};
    if (c.is_mine()) {
        NoisePlace at = {(uint32_t)room.request[KEY_LOW], (uint32_t)room.request[KEY_HIGH], position,
                         (uint32_t)room.request[SEQUENCE]};
        scored = {order_of(c.value + gumbel_noise(at, (uint32_t)mine.token)), mine};
    }
    scored = best_of_warp(scored);
    if ((threadIdx.x & 31) == 0) {
        room.score[threadIdx.x >> 5] = scored.score;
        room.winner[threadIdx.x >> 5] = scored.picked;
    }
    __syncthreads();
    for (int warp = 0; warp < PICK_WARPS; warp++) {
        Scored other = {room.score[warp], room.winner[warp]};
        if (other.beats(scored)) scored = other;
    }
    return scored.picked;
}

// Every thread of the block gets the token of `position`, by the words of `request`, or UNSURE.
__device__ __forceinline__ Picked pick_token(const LogitRow& row, const long long* request, uint32_t position, int& best,
                                             PickRoom& room) {
    Picked no_pick = {UNSURE, -1};
    int own[OWN_MAXIMA];
    for (int i = threadIdx.x; i < REQUEST_WORDS; i += PICK_THREADS) room.request[i] = request[i];
    if (threadIdx.x == 0) {
        room.n_blocks = room.n_found = room.n_out = 0;
        room.lowest_block = room.lowest_place = 0xffffffffu;
    }
    best = read_maxima(row, own, room);
    if (best >= ORDER_OF_INFINITY || best < ORDER_OF_LOWEST) return no_pick;
    int n_best = (int)room.request[N_BEST], n_biases = (int)room.request[N_BIASES], wanted = n_best + n_biases;
    if (wanted == 1) {
        int place = first_of_best(row, own, best, room);
        return {row.token(place), place};
    }
    BlockCount count = {room.counts, 0};
    // So many of the best blocks hold the best tokens.
    int floor = row.n_blocks > wanted ? floor_of_maxima(row, own, wanted, best, count) : ORDER_OF_LOWEST;
    list_blocks(own, floor, room);
    find(row, wanted, floor, best, room, count);
    int n_found = room.n_found;
    __syncthreads();  // all have read it: biased ones may join
    name_found(row, n_found, n_biases, room);
    add_biased(row, n_biases, room);
    __syncthreads();
    n_found = room.n_found;
    int n_left = n_found - room.n_out;
    if (n_left == 0) return no_pick;
    rank(n_found, n_best, room);
    Candidates c = {0.0, __longlong_as_double(ordered(room.best_order[0])), min(n_left, n_best)};
    Picked mine = {0, -1};
    if (c.is_mine()) {
        c.value = __longlong_as_double(ordered(room.best_order[threadIdx.x]));
        mine = {room.best_token[threadIdx.x], room.best_place[threadIdx.x]};
    }
    bool is_sure = filter(c, room, count);
    Picked picked = draw(c, mine, position, room, count);
    return is_sure ? picked : no_pick;
}
