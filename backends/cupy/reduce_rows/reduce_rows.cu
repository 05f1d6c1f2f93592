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

#ifdef VECTOR
// Over the elements of an output that are this thread's, which come VECTOR neighbours at a time.
template <int function>
__device__ inline float along(const ELEMENT* x, long long each) {
    float values[VECTOR], value = neutral(function);
#pragma unroll 4
    for (long long i = threadIdx.x * (long long)VECTOR; i < each; i += blockDim.x * (long long)VECTOR) {
        load16(x + i, values);
#pragma unroll
        for (int lane = 0; lane < VECTOR; ++lane) value = combine(value, values[lane], function);
    }
    return value;
}

// A block is a warp to each of some outputs, or all its threads to one. Rows are whole vectors.
extern "C" __global__ void reduce_rows_vectorised(const ELEMENT* x, ELEMENT* y, long long outputs, long long each,
                                                  long long x_output, int function) {
    const long long output = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (output >= outputs) return; // a whole warp
    x += output * x_output;
    float value = function == add ? along<add>(x, each)
                                  : function == larger ? along<larger>(x, each) : along<smaller>(x, each);
    value = blockDim.x == 32 ? warp_reduce(value, function) : block_reduce(value, function);
    if (threadIdx.x == 0) y[output] = from_float<ELEMENT>(value);
}

template <int function>
__device__ inline void across(const ELEMENT* x, long long first, long long end, long long x_step,
                              float (&values)[VECTOR]) {
    float loaded[VECTOR];
#pragma unroll 4
    for (long long i = first; i < end; i += 8) {
        load16(x + i * x_step, loaded);
#pragma unroll
        for (int lane = 0; lane < VECTOR; ++lane) values[lane] = combine(values[lane], loaded[lane], function);
    }
}

// As reduce_rows_partials, with VECTOR outputs to a lane, which are neighbours in x.
extern "C" __global__ void reduce_rows_vectorised_partials(const ELEMENT* x, float* results, long long outputs,
                                                           long long each, long long x_step, int function) {
    __shared__ float held[8][VECTOR][32];
    const long long output = ((long long)blockIdx.x * 32 + threadIdx.x) * VECTOR;
    const long long length = (each + gridDim.y - 1) / gridDim.y;
    const long long first = blockIdx.y * length + threadIdx.y, end = min(each, (blockIdx.y + 1) * length);
    float values[VECTOR];
#pragma unroll
    for (int lane = 0; lane < VECTOR; ++lane) values[lane] = neutral(function);
    if (output < outputs) {
        if (function == add) across<add>(x + output, first, end, x_step, values);
        else if (function == larger) across<larger>(x + output, first, end, x_step, values);
        else across<smaller>(x + output, first, end, x_step, values);
    }
#pragma unroll
    for (int lane = 0; lane < VECTOR; ++lane) held[threadIdx.y][lane][threadIdx.x] = values[lane];
    __syncthreads(); // the first row of threads reads what all have found
    if (threadIdx.y > 0 || output >= outputs) return;
#pragma unroll
    for (int lane = 0; lane < VECTOR; ++lane) {
        for (int part = 1; part < 8; ++part) values[lane] = combine(values[lane], held[part][lane][threadIdx.x], function);
        results[blockIdx.y * outputs + output + lane] = values[lane];
    }
}
#endif
