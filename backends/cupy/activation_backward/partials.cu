#include "activations.cuh"
#include "norms.cuh"

// A block (32, 8) has 32 columns and one part of the rows, whose warps take turns.
extern "C" __global__ void activation_backward_partials(
    const ELEMENT* x, const ELEMENT* bias, const ELEMENT* dy, long long x_row, long long x_col, long long b_col,
    long long dy_row, long long dy_col, ELEMENT* dx, float* partial, long long rows, long long cols, int parts,
    int activation) {
    const long long part = blockIdx.x % parts, col = (long long)(blockIdx.x / parts) * 32 + threadIdx.x;
    const long long length = (rows + parts - 1) / parts, first = part * length;
    const long long end = first + length < rows ? first + length : rows;
    float sum[1] = {0.0f};
    if (col < cols) {
        const float shift = bias ? to_float(bias[col * b_col]) : 0.0f;
        for (long long row = first + threadIdx.y; row < end; row += blockDim.y) {
            const float z = to_float(x[row * x_row + col * x_col]) + shift;
            const float gradient = to_float(dy[row * dy_row + col * dy_col]) * slope(z, activation);
            dx[row * cols + col] = from_float<ELEMENT>(gradient);
            sum[0] += gradient;
        }
    }
    column_sums(sum);
    if (threadIdx.y == 0 && col < cols) partial[part * cols + col] = sum[0];
}

// A block (32, 8) has 32 columns, and its warps take turns at the parts.
extern "C" __global__ void activation_backward_sums(const float* partial, ELEMENT* dbias, long long cols, int parts) {
    const long long col = (long long)blockIdx.x * 32 + threadIdx.x;
    float sum[1] = {0.0f};
    if (col < cols) {
        for (int part = threadIdx.y; part < parts; part += blockDim.y) sum[0] += partial[part * cols + col];
    }
    column_sums(sum);
    if (threadIdx.y == 0 && col < cols) dbias[col] = from_float<ELEMENT>(sum[0]);
}
