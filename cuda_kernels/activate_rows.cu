// The activation of each number of float rows, in place: of feed-forward layers without gates. A thread takes one number.
#include "base.cuh"

enum Activation { GELU_TANH, GELU_ERF, GELU_QUICK, RELU_SQUARED };

__device__ __forceinline__ float plain_activation(int activation, float x) {
    switch (activation) {
        case GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
        case GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
        case GELU_QUICK: return x / (1.0f + expf(-1.702f * x));
        default: return x > 0.0f ? x * x : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(256) activate_rows(float* rows, int n, int activation) {
    let_next_start();
    wait_for_previous();
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) rows[i] = plain_activation(activation, rows[i]);
}
