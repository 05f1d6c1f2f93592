#include "team_rows.cuh"

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS * TEAMS, 1) rms_norm_teams(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* y, long long x_row, long long w_col, long long rows, int cols,
    float eps) {
    extern __shared__ uint4 shared[];
    TeamRows staying(x, x_row, rows, cols, shared + part);
    const int begin = staying.begin, own = staying.own;
    keep(shared, weight + begin * w_col, w_col, own);
    __syncthreads();
    cluster_wait();
    int turn = 0;
    Values values[VECTORS];
    while (staying.next(values)) {
        float square = 0.0f;
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
#pragma unroll
            for (int i = 0; i < lanes; ++i) square += values[r][i] * values[r][i];
        }
        keep_packed(values);
        float squares[1] = {warp_sum(square)};
        exchange(squares, turn);
        const float rstd = rsqrtf(warp_sum(squares[0]) / cols + eps);
        uint4* const target = staying.of(y, cols);
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            in_order(values[r]);
            const Values w{shared[r * THREADS + threadIdx.x]};
            float out[lanes];
#pragma unroll
            for (int i = 0; i < lanes; ++i) out[i] = values[r][i] * rstd * w[i];
            staying.put(target, r, out);
        }
    }
}
