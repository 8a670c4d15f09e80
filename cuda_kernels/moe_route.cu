// A mixture of experts chooses: router logits in plain float32, the choice, and the lists of moe_lists.cuh.
// moe_route does it in one launch; for many rows moe_logits and moe_choose share it among more blocks.
#define MOE_BUILDS_LISTS
#include "float_dot.cuh"
#include "moe_lists.cuh"
#include "qmm_epilogue.cuh"  // last_to_arrive

#define EXPERTS 2  // of a block
#define INPUTS 8   // rows of x that meet a weight while it is in a register
#define WARPS 8

struct Router {
    const float* weights;  // [n_expert][n_k]
    const float* bias;     // [n_expert] or null
    const float* gate;     // [n_k] or null: whose sigmoid is the weight of the shared expert
    int n_k;
};

// What is known of each row.
struct Routes {
    float* logits;       // [n_rows][n_expert + 1]; the last is that of the shared expert's gate
    int* experts;        // [n_rows][n_used] best first
    float* weights;      // [n_rows][n_used + has_shared]; the last is the shared expert's
    int has_shared;
    const int* n_live;   // [1] or null: only so many rows use experts
    int n_rows;
    int* tickets;        // [1] 0 between launches

    __device__ __forceinline__ int live() const { return n_live ? min(n_rows, *n_live) : n_rows; }
};

template <class Input>
__device__ __forceinline__ void write_logits(const Input& x, const Router& router, int n_expert, const Routes& routes) {
    const float* rows[EXPERTS];
    int first_expert = blockIdx.x * EXPERTS, first = blockIdx.y * INPUTS, n_out = n_expert + (router.gate ? 1 : 0);
#pragma unroll
    for (int r = 0; r < EXPERTS; r++) {
        int e = min(first_expert + r, n_out - 1);
        rows[r] = e < n_expert ? router.weights + (size_t)e * router.n_k : router.gate;
    }
    float dot = block_dots<EXPERTS, INPUTS>(rows, x, first, min(INPUTS, routes.n_rows - first), router.n_k);
    int e = first_expert + threadIdx.x / INPUTS, row = first + threadIdx.x % INPUTS;
    if (threadIdx.x >= EXPERTS * INPUTS || e >= n_out || row >= routes.n_rows) return;
    if (router.bias && e < n_expert) dot += router.bias[e];
    routes.logits[(size_t)row * (n_expert + 1) + e] = dot;
}

// Row by row, a warp each; rows from first on, n_warps apart.
__device__ __forceinline__ void choose_rows(int first, int n_warps, const Choice& choice, bool gated,
                                            const Routes& routes) {
    int lane = threadIdx.x & 31, n_weights = choice.n_used + routes.has_shared;
    for (int row = first; row < routes.live(); row += n_warps) {
        const float* logits = routes.logits + (size_t)row * (choice.n_expert + 1);
        int expert;
        float weight;
        choose_experts(logits, choice, &expert, &weight);
        if (lane < choice.n_used) {
            routes.experts[(size_t)row * choice.n_used + lane] = expert;
            routes.weights[(size_t)row * n_weights + lane] = weight;
        }
        if (routes.has_shared && lane == 0) {
            float shared = gated ? sigmoid(((const volatile float*)logits)[choice.n_expert]) : 1.0f;
            routes.weights[(size_t)row * n_weights + choice.n_used] = shared;
        }
    }
}

template <class Input>
__device__ __forceinline__ void route(const Input& x, const Router& router, const Choice& choice, const Routes& routes,
                                      const MoeLists& lists) {
    let_next_start();
    write_logits(x, router, choice.n_expert, routes);
    if (!last_to_arrive(routes.tickets, gridDim.x * gridDim.y)) return;
    choose_rows(threadIdx.x >> 5, WARPS, choice, router.gate != nullptr, routes);
    __syncthreads();
    build_lists(routes.experts, routes.live(), routes.has_shared != 0, choice, lists);
}

#define ROUTER const float *weights, const float *bias, const float *gate, int n_k
#define ANY_CHOICE int n_expert, int n_used, int gating, int normalise, float scale, const float *probs_bias
#ifdef GROUPED
#define CHOICE ANY_CHOICE, int n_groups, int n_groups_used, const float *expert_scale
#define MAKE_CHOICE Choice{n_expert, n_used, gating, normalise, scale, probs_bias, n_groups, n_groups_used, expert_scale}
#else
#define CHOICE ANY_CHOICE
#define MAKE_CHOICE Choice{n_expert, n_used, gating, normalise, scale, probs_bias}
#endif
#define ROUTES float *logits, int *experts, float *row_weights, int has_shared, const int *n_live, int n_rows, int *tickets
#define LISTS int *n_bundles, int *ids, int *starts, int *columns, int bundle_width
#define MAKE_ROUTER Router{weights, bias, gate, n_k}
#define MAKE_ROUTES Routes{logits, experts, row_weights, has_shared, n_live, n_rows, tickets}
#define MAKE_LISTS MoeLists{n_bundles, ids, starts, columns, bundle_width}

extern "C" __global__ void __launch_bounds__(256, 2) moe_route_rows(const float* x, int width, ROUTER, CHOICE, ROUTES, LISTS) {
    route(FloatInput{x, width}, MAKE_ROUTER, MAKE_CHOICE, MAKE_ROUTES, MAKE_LISTS);
}
extern "C" __global__ void __launch_bounds__(256, 2) moe_route_packed(const int8_t* q, const float* d, const int16_t*, int width,
                                                                   ROUTER, CHOICE, ROUTES, LISTS) {
    route(PackedInput{q, d, width}, MAKE_ROUTER, MAKE_CHOICE, MAKE_ROUTES, MAKE_LISTS);
}

extern "C" __global__ void __launch_bounds__(256, 2) moe_logits_rows(const float* x, int width, ROUTER, CHOICE, ROUTES) {
    let_next_start();
    write_logits(FloatInput{x, width}, MAKE_ROUTER, n_expert, MAKE_ROUTES);
}
extern "C" __global__ void __launch_bounds__(256, 2) moe_logits_packed(const int8_t* q, const float* d, const int16_t*, int width,
                                                                    ROUTER, CHOICE, ROUTES) {
    let_next_start();
    write_logits(PackedInput{q, d, width}, MAKE_ROUTER, n_expert, MAKE_ROUTES);
}

// Block i chooses for rows 8 i ... 8 i + 7.
extern "C" __global__ void __launch_bounds__(256, 2) moe_choose(int gated, CHOICE, ROUTES, LISTS) {
    let_next_start();
    wait_for_previous();
    Choice choice = MAKE_CHOICE;
    Routes routes = MAKE_ROUTES;
    choose_rows(blockIdx.x * WARPS + (threadIdx.x >> 5), gridDim.x * WARPS, choice, gated != 0, routes);
    if (last_to_arrive(routes.tickets, gridDim.x)) build_lists(routes.experts, routes.live(), has_shared != 0, choice, MAKE_LISTS);
}
