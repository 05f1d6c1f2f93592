#include "common.cuh"

// The axes of a group, the last one fastest, with what its elements share; the launcher merges axes where it can.
struct Group {
    static constexpr int most = 6;
    int axes;
    long long sizes[most], strides[most];

    // The offset of the group's index-th element.
    __device__ long long offset(long long index) const {
        long long found = 0;
#pragma unroll
        for (int axis = most - 1; axis > 0; --axis)
            if (axis < axes) {
                found += index % sizes[axis] * strides[axis];
                index /= sizes[axis];
            }
        return found + index * strides[0];
    }
};

extern "C" __global__ void group_norm_naive(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* y, long long x_n, long long x_c,
    long long w_c, long long b_c, long long samples, long long groups, long long channels, long long space, float eps,
    int axes, long long size0, long long size1, long long size2, long long size3, long long size4, long long size5,
    long long stride0, long long stride1, long long stride2, long long stride3, long long stride4, long long stride5) {
    const Group group = {axes, {size0, size1, size2, size3, size4, size5},
                         {stride0, stride1, stride2, stride3, stride4, stride5}};
    const long long which = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (which >= samples * groups) return;
    const long long first = which % groups * channels, count = channels * space;
    x += which / groups * x_n + first * x_c;
    y += which * count;

    float sum = 0.0f;
    for (long long index = 0; index < count; ++index) sum += to_float(x[group.offset(index)]);
    const float mean = sum / count;
    float square = 0.0f;
    for (long long index = 0; index < count; ++index) {
        const float centred = to_float(x[group.offset(index)]) - mean;
        square += centred * centred;
    }
    const float rstd = rsqrtf(square / count + eps);
    for (long long index = 0; index < count; ++index) {
        const long long channel = first + index / space;
        const float normed = (to_float(x[group.offset(index)]) - mean) * rstd;
        const float shift = bias ? to_float(bias[channel * b_c]) : 0.0f;
        y[index] = from_float<ELEMENT>(normed * to_float(weight[channel * w_c]) + shift);
    }
}

// A block is 32 lanes by some groups; lane i holds the elements i, i + 32, ... of its group.
extern "C" __global__ void group_norm_warp(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* y, long long x_n, long long x_c,
    long long w_c, long long b_c, long long samples, long long groups, long long channels, long long space, float eps,
    int axes, long long size0, long long size1, long long size2, long long size3, long long size4, long long size5,
    long long stride0, long long stride1, long long stride2, long long stride3, long long stride4, long long stride5) {
    constexpr int held = 32;
    const Group group = {axes, {size0, size1, size2, size3, size4, size5},
                         {stride0, stride1, stride2, stride3, stride4, stride5}};
    const long long which = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (which >= samples * groups) return;
    const long long first = which % groups * channels;
    const int count = int(channels * space);
    x += which / groups * x_n + first * x_c;
    y += which * count;

    float values[held];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int index = i * 32 + threadIdx.x;
        values[i] = index < count ? to_float(x[group.offset(index)]) : 0.0f;
        sum += values[i];
    }
    const float mean = warp_sum(sum) / count;

    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        const float centred = i * 32 + threadIdx.x < count ? values[i] - mean : 0.0f;
        square += centred * centred;
    }
    const float rstd = rsqrtf(warp_sum(square) / count + eps);

#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int index = i * 32 + threadIdx.x;
        if (index < count) {
            const long long channel = first + index / int(space);
            const float shift = bias ? to_float(bias[channel * b_c]) : 0.0f;
            y[index] = from_float<ELEMENT>((values[i] - mean) * rstd * to_float(weight[channel * w_c]) + shift);
        }
    }
}

// There may be more groups than a grid has blocks.
extern "C" __global__ void group_norm_block(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* y, long long x_n, long long x_c,
    long long w_c, long long b_c, long long samples, long long groups, long long channels, long long space, float eps,
    int axes, long long size0, long long size1, long long size2, long long size3, long long size4, long long size5,
    long long stride0, long long stride1, long long stride2, long long stride3, long long stride4, long long stride5) {
    const Group group = {axes, {size0, size1, size2, size3, size4, size5},
                         {stride0, stride1, stride2, stride3, stride4, stride5}};
    const long long count = channels * space;
    for (long long which = blockIdx.x; which < samples * groups; which += gridDim.x) {
        const long long first = which % groups * channels;
        const ELEMENT* members = x + which / groups * x_n + first * x_c;

        float sum = 0.0f;
        for (long long index = threadIdx.x; index < count; index += blockDim.x)
            sum += to_float(members[group.offset(index)]);
        const float mean = block_sum(sum) / count;

        float square = 0.0f;
        for (long long index = threadIdx.x; index < count; index += blockDim.x) {
            const float centred = to_float(members[group.offset(index)]) - mean;
            square += centred * centred;
        }
        const float rstd = rsqrtf(block_sum(square) / count + eps);

        for (long long index = threadIdx.x; index < count; index += blockDim.x) {
            const long long channel = first + index / space;
            const float normed = (to_float(members[group.offset(index)]) - mean) * rstd;
            const float shift = bias ? to_float(bias[channel * b_c]) : 0.0f;
            y[which * count + index] = from_float<ELEMENT>(normed * to_float(weight[channel * w_c]) + shift);
        }
    }
}
