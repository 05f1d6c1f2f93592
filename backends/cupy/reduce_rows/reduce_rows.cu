#include "reductions.cuh"

// A block is 32 lanes by some outputs, each of them over `each` elements.
extern "C" __global__ void reduce_rows_warp(const ELEMENT* x, ELEMENT* y, long long outputs, long long each,
                                            long long x_output, long long x_step, int function) {
    const long long output = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (output >= outputs) return; // a whole warp
    x += output * x_output;
    float value = neutral(function);
    for (long long i = threadIdx.x; i < each; i += 32) value = combine(value, to_float(x[i * x_step]), function);
    value = warp_reduce(value, function);
    if (threadIdx.x == 0) y[output] = from_float<ELEMENT>(value);
}

extern "C" __global__ void reduce_rows_block(const ELEMENT* x, ELEMENT* y, long long each, long long x_output,
                                             long long x_step, int function) {
    x += blockIdx.x * x_output;
    float value = neutral(function);
    for (long long i = threadIdx.x; i < each; i += blockDim.x)
        value = combine(value, to_float(x[i * x_step]), function);
    value = block_reduce(value, function);
    if (threadIdx.x == 0) y[blockIdx.x] = from_float<ELEMENT>(value);
}

// A block is 32 outputs by 8 threads that share each; block (·, part) leaves its results in results[part].
extern "C" __global__ void reduce_rows_partials(const ELEMENT* x, float* results, long long outputs, long long each,
                                                long long x_output, long long x_step, int function) {
    __shared__ float held[8][32];
    const long long output = (long long)blockIdx.x * 32 + threadIdx.x;
    const long long length = (each + gridDim.y - 1) / gridDim.y;
    const long long first = blockIdx.y * length, end = min(each, first + length);
    float value = neutral(function);
    if (output < outputs) {
        for (long long i = first + threadIdx.y; i < end; i += 8)
            value = combine(value, to_float(x[output * x_output + i * x_step]), function);
    }
    held[threadIdx.y][threadIdx.x] = value;
    __syncthreads(); // the first row of threads reads what all have found
    if (threadIdx.y > 0 || output >= outputs) return;
    for (int part = 1; part < 8; ++part) value = combine(value, held[part][threadIdx.x], function);
    results[blockIdx.y * outputs + output] = value;
}

// A thread to an output.
extern "C" __global__ void reduce_rows_finish(const float* results, ELEMENT* y, long long outputs, int parts,
                                              int function) {
    const long long output = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (output >= outputs) return;
    float value = neutral(function);
    for (int part = 0; part < parts; ++part) value = combine(value, results[part * outputs + output], function);
    y[output] = from_float<ELEMENT>(value);
}
