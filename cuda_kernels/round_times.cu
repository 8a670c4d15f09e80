// When the parts of a round began: see round_times.py.
#include "base.cuh"

extern "C" __global__ void __launch_bounds__(32)
    note_time(int64_t* times, int n_marks, int n_rounds, const int* counter, int mark) {
    let_next_start();
    wait_for_previous();
    if (threadIdx.x != 0) return;
    unsigned round = (unsigned)counter[0] % (unsigned)n_rounds;
    times[round * n_marks + mark] = nanoseconds();
    __threadfence_system();  // a host that sees the round's record sees this
}
