// Vectors of neighbours in a line of any length: 16 bytes at once, or an element at a time.
#pragma once
#include "common.cuh"

// The line and the first column of a thread's vector, in `rows` lines of `cols` columns.
struct Place {
    long long row, col;
};

__device__ inline Place place_of_vector(long long rows, long long cols) {
    constexpr int lanes = lanes_of<ELEMENT>;
    const long long across = (cols + lanes - 1) / lanes;
    const long long vector = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (rows == 1) return {vector >= across, vector * lanes};
    return {vector / across, vector % across * lanes};
}

// `wide`: stride 1, and the address is a multiple of 16 bytes. What lies beyond the line is not read, and 0. Still packed,
// so that the next line's load is on its way before this one's values are wanted.
__device__ inline uint4 load_line(
    const ELEMENT* line, long long stride, long long col, long long cols, bool wide) {
    if (wide && col + lanes_of<ELEMENT> <= cols) return *reinterpret_cast<const uint4*>(line + col);
    ELEMENT elements[lanes_of<ELEMENT>];
#pragma unroll
    for (int i = 0; i < lanes_of<ELEMENT>; ++i)
        elements[i] = col + i < cols ? line[(col + i) * stride] : from_float<ELEMENT>(0.0f);
    uint4 packed;
    memcpy(&packed, elements, 16);
    return packed;
}

// To a line of stride 1.
__device__ inline void store_line(
    ELEMENT* line, long long col, long long cols, bool wide, const float (&values)[lanes_of<ELEMENT>]) {
    if (wide && col + lanes_of<ELEMENT> <= cols) {
        store16(line + col, values);
        return;
    }
#pragma unroll
    for (int i = 0; i < lanes_of<ELEMENT>; ++i)
        if (col + i < cols) line[col + i] = from_float<ELEMENT>(values[i]);
}
