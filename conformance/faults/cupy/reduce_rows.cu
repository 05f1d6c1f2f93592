#include "reductions.cuh"

enum Fault {
    none,
    no_barrier,
    padding_is_0,
    nan_dropped,
    outputs_unguarded,
    empty_parts_unwritten,
    strides_swapped,
    first_thread_lost,
};

__device__ float pick(float a, float b, int function, int fault) {
    if (fault != nan_dropped || function == add) return combine(a, b, function);
    return function == larger ? fmaxf(a, b) : fminf(a, b);
}

// A block is 32 outputs by 2 threads that share each; block (·, part) leaves its results in results[part].
extern "C" __global__ void reduce_rows_parts(const ELEMENT* x, float* results, int outputs, int each,
                                             long long x_output, long long x_step, int function, int fault) {
    __shared__ float held[2][32];
    const int output = blockIdx.x * 32 + threadIdx.x, length = (each + gridDim.y - 1) / gridDim.y;
    const int first = blockIdx.y * length, end = min(each, first + length);
    if (fault == empty_parts_unwritten && first >= each) return;
    if (fault == strides_swapped) {
        const long long kept = x_output;
        x_output = x_step, x_step = kept;
    }
    const bool inside = output < outputs || fault == outputs_unguarded;
    float value = fault == padding_is_0 ? 0.0f : neutral(function);
    if (inside)
        for (int i = first + threadIdx.y; i < end; i += 2)
            value = pick(value, to_float(x[output * x_output + i * x_step]), function, fault);
    held[threadIdx.y][threadIdx.x] = value;
    if (fault != no_barrier) __syncthreads();
    if (threadIdx.y > 0 || !inside) return;
    if (fault != first_thread_lost) value = pick(held[0][threadIdx.x], held[1][threadIdx.x], function, fault);
    results[blockIdx.y * outputs + output] = value;
}

extern "C" __global__ void reduce_rows_finish(const float* results, ELEMENT* y, int outputs, int parts, int function,
                                              int fault) {
    const int output = blockIdx.x * blockDim.x + threadIdx.x;
    if (output >= outputs) return;
    float value = neutral(function);
    for (int part = 0; part < parts; ++part)
        value = pick(value, results[part * outputs + output], function, fault);
    y[output] = from_float<ELEMENT>(value);
}
