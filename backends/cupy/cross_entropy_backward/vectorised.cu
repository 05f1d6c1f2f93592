#include "entropy.cuh"
#include "rows.cuh"

constexpr int ahead = 4; // loads on their way before the first is used

template <int length>
__device__ float lse_of(const ELEMENT* __restrict__ z, long long V, long long z_col, Running running) {
    const long long step = blockDim.x * length;
    float values[ahead][length];
    for (long long start = threadIdx.x * length; start < V; start += ahead * step) {
#pragma unroll
        for (int i = 0; i < ahead; ++i) load_or(-INFINITY, z, z_col, start + i * step, V, values[i]);
#pragma unroll
        for (int i = 0; i < ahead; ++i) fold(running, values[i]);
    }
    return log_sum(block_merge(running));
}

template <int length>
__device__ void write_row(
    const ELEMENT* __restrict__ z, ELEMENT* __restrict__ dz, long long V, long long z_col, const Gradient& gradient,
    long long before) {
    const long long step = blockDim.x * length;
    float values[ahead][length];
    for (long long start = threadIdx.x * length; start < V; start += ahead * step) {
#pragma unroll
        for (int i = 0; i < ahead; ++i) load_or(0.0f, z, z_col, start + i * step, V, values[i]);
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            const long long first = start + i * step;
#pragma unroll
            for (int j = 0; j < length; ++j) values[i][j] = gradient(values[i][j], before + first + j);
            if (first < V) store(dz + first, values[i]);
        }
    }
}

extern "C" __global__ void cross_entropy_backward_vectorised(
    const ELEMENT* __restrict__ z, ELEMENT* __restrict__ dz, long long V, long long z_row, long long z_col,
    const float* lse, long long lse_row, const float* g, long long g_row, const void* target, long long stride,
    int wide, long long ignore_index, float smoothing, float z_loss) {
    constexpr int most = lanes_of<ELEMENT>;
    const long long row = blockIdx.x, y = Targets{target, stride, wide}[row];
    z += row * z_row;
    dz += row * V;
    if (y == ignore_index) {
        for (long long col = threadIdx.x; col < V; col += blockDim.x) dz[col] = from_float<ELEMENT>(0.0f);
        return; // the whole block
    }
    const bool alike = z_col == 1 && (reinterpret_cast<size_t>(z) - reinterpret_cast<size_t>(dz)) % 16 == 0;
    const Pieces pieces(z, V);
    const long long edge = alike ? pieces.edge(V) : V;
    float of_row;
    if (lse) {
        of_row = lse[row * lse_row];
    } else {
        Running running;
        const float values[1] = {edge < V ? to_float(z[edge]) : -INFINITY};
        if (alike) fold(running, values);
        of_row = alike ? lse_of<most>(z + pieces.head, pieces.body, 1, running) : lse_of<1>(z, V, z_col, running);
    }
    const Gradient gradient{of_row, 1.0f + 2.0f * z_loss * of_row, smoothing / V, g[row * g_row], smoothing, y};
    if (edge < V) dz[edge] = from_float<ELEMENT>(gradient(to_float(z[edge]), edge));
    if (alike)
        write_row<most>(z + pieces.head, dz + pieces.head, pieces.body, 1, gradient, pieces.head);
    else
        write_row<1>(z, dz, V, z_col, gradient, 0);
}
