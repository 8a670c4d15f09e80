// The choice of a mixture's experts from router logits: by a warp for each row.
#pragma once
#include "base.cuh"

#define MOE_MAX_EXPERTS 512
#define MOE_MAX_USED 16
#define MOE_SMALLEST_SUM 6.103515625e-05f  // 2^-14: keeps a division by a sum of vanishing probabilities finite

enum Gating { SOFTMAX = 1, SIGMOID = 2, SOFTMAX_OF_CHOSEN = 3, SIGMOID_OF_CHOSEN = 4 };  // the last with GROUPED

struct Choice {
    int n_expert, n_used, gating, normalise;
    float scale;
    const float* probs_bias;  // [n_expert] or null: counts for the choice, not for the weight
#ifdef GROUPED
    int n_groups, n_groups_used;  // experts lie in groups; those of others than the best groups come last
    const float* expert_scale;    // [n_expert] or null: of the weights
#endif
};

// Greater for greater floats; 0 and -0 are equal, NaN is above all. Never 0.
__device__ __forceinline__ uint32_t ordered(float x) {
    if (!(x == x)) return 0xffffffffu;
    uint32_t bits = x == 0.0f ? 0u : (uint32_t)__float_as_int(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

#ifdef GROUPED
__device__ __forceinline__ float of_ordered(uint32_t key) {
    if (key == 0xffffffffu) return __int_as_float(0x7fc00000);
    return __int_as_float((int)(key & 0x80000000u ? key ^ 0x80000000u : ~key));
}

// Experts that are not in the best groups score minus infinity. A group scores the sum of its two best; lane g has group g.
template <int SLOTS>
__device__ __forceinline__ void keep_best_groups(uint32_t key[SLOTS], const Choice& choice) {
    int lane = threadIdx.x & 31, size = choice.n_expert / choice.n_groups;
    uint32_t own = 0;
    for (int group = 0; group < choice.n_groups; group++) {
        float sum = 0.0f;
        uint32_t best_expert = 0xffffffffu;
        for (int n = 0; n < min(2, size); n++) {
            uint32_t best = 0, expert = 0xffffffffu;
#pragma unroll
            for (int s = 0; s < SLOTS; s++) {
                uint32_t e = 32 * s + lane;
                if (e / size == group && e != best_expert && key[s] > best) best = key[s], expert = e;
            }
            uint32_t largest = __reduce_max_sync(ALL_LANES, best);
            best_expert = __reduce_min_sync(ALL_LANES, best == largest ? expert : 0xffffffffu);
            sum += of_ordered(largest);
        }
        if (lane == group) own = ordered(sum);
    }
    int better = 0;
    for (int group = 0; group < choice.n_groups; group++) {
        uint32_t other = __shfl_sync(ALL_LANES, own, group);
        better += other > own || (other == own && group < lane);
    }
    uint32_t used = __ballot_sync(ALL_LANES, lane < choice.n_groups && better < choice.n_groups_used);
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
        int e = 32 * s + lane;
        if (e < choice.n_expert && !(used >> e / size & 1)) key[s] = ordered(-INFINITY_F);
    }
}
#endif

// Probabilities of all experts from their logits, which they replace. Slots without an expert hold -infinity.
template <int SLOTS>
__device__ __forceinline__ void softmax(float p[SLOTS]) {
    float largest = -INFINITY_F, sum = 0.0f;
#pragma unroll
    for (int s = 0; s < SLOTS; s++) largest = fmaxf(largest, p[s]);
    largest = warp_max(largest);
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
        p[s] = expf(p[s] - largest);
        sum += p[s];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int s = 0; s < SLOTS; s++) p[s] /= sum;
}

// Of the `n` lowest lanes, each with a value; the same way in.
__device__ __forceinline__ float softmax_of_lanes(float x, int n) {
    bool mine = (threadIdx.x & 31) < n;
    float largest = warp_max(mine ? x : -INFINITY_F);
    float e = mine ? expf(x - largest) : 0.0f;
    return e / warp_sum(e);
}

// Lane r < n_used receives the expert of rank r and its probability. Expert 32 * slot + lane is in a lane's hands.
template <int SLOTS>
__device__ __forceinline__ void best_experts(const volatile float* logits, const Choice& choice, int* expert, float* weight) {
    int lane = threadIdx.x & 31;
    float p[SLOTS];
    uint32_t key[SLOTS];
#pragma unroll
    for (int s = 0; s < SLOTS; s++) p[s] = 32 * s + lane < choice.n_expert ? logits[32 * s + lane] : -INFINITY_F;
    if (choice.gating == SOFTMAX) softmax<SLOTS>(p);
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
        int e = 32 * s + lane;
        bool there = e < choice.n_expert;
        if (choice.gating == SIGMOID) p[s] = sigmoid(p[s]);
        key[s] = there ? ordered(choice.probs_bias ? p[s] + choice.probs_bias[e] : p[s]) : 0u;
    }
#ifdef GROUPED
    if (choice.n_groups_used < choice.n_groups) keep_best_groups<SLOTS>(key, choice);
#endif
    for (int rank = 0; rank < choice.n_used; rank++) {
        uint32_t best = 0;
        int slot = 0;
        float value = 0.0f;
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            if (key[s] > best) best = key[s], slot = s, value = p[s];
        }
        bool winner = best == __reduce_max_sync(ALL_LANES, best);
        uint32_t first = __reduce_min_sync(ALL_LANES, winner ? (uint32_t)(32 * slot + lane) : 0xffffffffu);
        value = __shfl_sync(ALL_LANES, value, first & 31);
        if (lane == rank) *expert = (int)first, *weight = value;
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            if ((uint32_t)(32 * s + lane) == first) key[s] = 0;
        }
    }
}

// Lane r < n_used receives the expert of rank r and its weight. `logits`: of this row.
__device__ __forceinline__ void choose_experts(const volatile float* logits, const Choice& choice, int* expert, float* weight) {
    *expert = 0;
    *weight = 0.0f;
    if (choice.n_expert <= 128) best_experts<4>(logits, choice, expert, weight);
    else if (choice.n_expert <= 256) best_experts<8>(logits, choice, expert, weight);
    else best_experts<16>(logits, choice, expert, weight);
    bool chosen = (threadIdx.x & 31) < choice.n_used;
    if (choice.gating == SOFTMAX_OF_CHOSEN) *weight = softmax_of_lanes(*weight, choice.n_used);
#ifdef GROUPED
    if (choice.gating == SIGMOID_OF_CHOSEN) *weight = sigmoid(*weight);
#endif
    if (choice.normalise) {
        float sum = warp_sum(chosen ? *weight : 0.0f);
        *weight /= sum < MOE_SMALLEST_SUM ? MOE_SMALLEST_SUM : sum;  // NaN stays
    }
    *weight *= choice.scale;
#ifdef GROUPED
    if (chosen && choice.expert_scale) *weight *= choice.expert_scale[*expert];
#endif
}
