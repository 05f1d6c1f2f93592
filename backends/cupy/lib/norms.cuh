// What the norms share: sums over the threads of a row, and vectors of elements that one access loads or stores.
#pragma once
#include "common.cuh"
#include "kept.cuh"

// Sums over the blockDim.x threads of a row; every thread gets the same bits. A row of one warp needs no barrier, and
// such rows may share a block. `turn` counts the calls: two halves of `partials` take turns, so that a slow reader of
// one call is not overtaken by the next call's writers and one barrier is enough.
template <int count> __device__ inline void row_sums(float (&values)[count], int& turn) {
    __shared__ float partials[2][count][32];
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] = warp_sum(values[i]);
    if (blockDim.x == 32) return;

    const int half = turn++ % 2, lane = threadIdx.x % 32;
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < count; ++i) partials[half][i][threadIdx.x / 32] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] = warp_sum(lane < blockDim.x / 32 ? partials[half][i][lane] : 0.0f);
}

__device__ inline float row_sum(float value, int& turn) {
    float values[1] = {value};
    row_sums(values, turn);
    return values[0];
}

// `length` elements side by side as one access loads them: 16 bytes, or a single element. They stay packed, since two
// elements of 16 bits share a register, and become floats where they are used.
template <typename Element, int length> struct Vector {
    static_assert(length == lanes_of<Element>, "a vector is 16 bytes or one element");
    uint4 raw;

    __device__ inline float operator[](int i) const {
        Element elements[length];
        memcpy(elements, &raw, 16);
        return to_float(elements[i]);
    }
};

template <typename Element> struct Vector<Element, 1> {
    Element raw;

    __device__ inline float operator[](int) const { return to_float(raw); }
};

// Two neighbours of a vector.
template <typename Element> struct Two;
template <> struct Two<float> { using type = float2; };
template <> struct Two<__half> { using type = __half2; };
template <> struct Two<__nv_bfloat16> { using type = __nv_bfloat162; };

// Between two passes over packed vectors. The compiler would keep the floats of the first pass for the second, and they
// take twice the registers of 16-bit elements: it is not to know that the vectors are still the same.
template <typename Element, int length, int vectors>
__device__ inline void keep_packed(Vector<Element, length> (&values)[vectors]) {
#ifndef TOUCHSTONE_EMULATOR
    if constexpr (length * sizeof(Element) == 16 && sizeof(Element) == 2) {
#pragma unroll
        for (int r = 0; r < vectors; ++r) {
            uint4& raw = values[r].raw;
            asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
        }
    }
#endif
}

// Blocks of 1024 threads to a multiprocessor, for __launch_bounds__, where a thread holds `columns` elements in
// accesses of `length`. Two leave 32 registers to a thread, enough around four vectors of 16 bytes: while one block
// waits for its sums the other one's row is on its way.
template <typename Element> constexpr int blocks_at_once(int columns, int length, bool shifted) {
    return length > 1 && !shifted && columns * int(sizeof(Element)) <= 64 ? 2 : 1;
}

// The vector of a row at column `col`, zeros beyond the row's end. Longer vectors want stride 1, a row that begins at a
// multiple of 16 bytes, and columns that are a multiple of their length.
template <int length, typename Element>
__device__ inline Vector<Element, length> load_vector(const Element* row, long long stride, int col, int cols) {
    if constexpr (length == 1) {
        return {col < cols ? row[col * stride] : from_float<Element>(0.0f)};
    } else {
        return {col < cols ? *reinterpret_cast<const uint4*>(row + col) : make_uint4(0, 0, 0, 0)};
    }
}

// A row in vectors of `length` from column -lead on. `shifted`: it begins `lead` elements after a multiple of 16 bytes,
// where a vector begins, so that the first vector and the last one may reach beyond it; else lead is 0 and all are as
// in `load_vector`.
template <bool shifted, int length> __device__ inline int lead_of(long long row, int cols) {
    return shifted ? int(row * cols % length) : 0;
}

template <int length> __device__ inline int column(int r, int lead) {
    return (r * blockDim.x + threadIdx.x) * length - lead;
}

template <bool shifted, int length> __device__ inline bool whole(int col, int cols) {
    return shifted ? col >= 0 && col + length <= cols : col < cols;
}

__device__ inline bool inside(int col, int cols) { return unsigned(col) < unsigned(cols); }

// The vector at column `col`, with `other` for what is not of the row.
template <bool shifted, int length, typename Element> __device__ inline Vector<Element, length> load_row(
    const Element* row, long long stride, int col, int cols, float other = 0.0f) {
    if constexpr (length == 1) {
        return {col < cols ? row[col * stride] : from_float<Element>(other)};
    } else {
        Element elements[length];
#pragma unroll
        for (int i = 0; i < length; ++i) elements[i] = from_float<Element>(other);
        Vector<Element, length> vector;
        memcpy(&vector.raw, elements, 16);
        if (whole<shifted, length>(col, cols)) {
            vector.raw = load_kept(row + col);
        } else if (shifted && col < cols) {
#pragma unroll
            for (int i = 0; i < length; ++i)
                if (inside(col + i, cols)) elements[i] = row[col + i];
            memcpy(&vector.raw, elements, 16);
        }
        return vector;
    }
}

// What belongs to the same columns of weight or bias, which begin at a multiple of 16 bytes also where the row does
// not.
template <bool shifted, int length, typename Element>
__device__ inline Vector<Element, length> load_along(const Element* weights, long long stride, int col, int cols) {
    if constexpr (shifted) {
        Element elements[length];
#pragma unroll
        for (int i = 0; i < length; ++i)
            elements[i] = inside(col + i, cols) ? weights[(col + i) * stride] : from_float<Element>(0.0f);
        Vector<Element, length> vector;
        memcpy(&vector.raw, elements, 16);
        return vector;
    } else {
        return load_vector<length>(weights, stride, col, cols);
    }
}

template <typename Element, int length>
__device__ inline Vector<Element, length> rounded(const float (&values)[length]) {
    if constexpr (length == 1) {
        return {from_float<Element>(values[0])};
    } else {
        return {pack<Element>(values)};
    }
}

template <bool shifted, typename Element, int length>
__device__ inline void store_row(Element* row, int col, int cols, const Vector<Element, length>& vector) {
    if (whole<shifted, length>(col, cols)) {
        *reinterpret_cast<decltype(vector.raw)*>(row + col) = vector.raw;
    } else if constexpr (shifted) {
        Element elements[length];
        memcpy(elements, &vector.raw, 16);
#pragma unroll
        for (int i = 0; i < length; ++i)
            if (inside(col + i, cols)) row[col + i] = elements[i];
    }
}

// The mean of a row and the sum of the squared distances from it, on all threads of the row.
struct Spread {
    float mean, square;
};

// One pass over the vectors, about one value p of the thread. Of n values, p among them, the squared distances from p
// sum up to at most n + 1 times those from their mean, so that taking the difference off loses no more than a few bits.
template <bool shifted, typename Element, int length, int vectors>
__device__ inline Spread row_spread(const Vector<Element, length> (&values)[vectors], int lead, int cols, int& turn) {
    const float first = shifted && column<length>(0, lead) < 0 ? values[0][length - 1] : values[0][0];
    float count = 0.0f, sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int r = 0; r < vectors; ++r) {
        const int col = column<length>(r, lead);
        if (col >= cols) break;
        count += length;
#pragma unroll
        for (int i = 0; i < length; ++i) {
            if (shifted && !inside(col + i, cols)) {
                count -= 1.0f;
                continue;
            }
            const float distance = values[r][i] - first;
            sum += distance;
            square += distance * distance;
        }
    }
    const float own = count > 0.0f ? sum / count : 0.0f; // of the thread's mean from p
    const float mean = row_sum(count * first + sum, turn) / cols;
    const float off = first - mean + own;
    return {mean, row_sum(square - sum * own + count * off * off, turn)};
}

template <typename Element, int length>
__device__ inline void store_vector(Element* target, const float (&values)[length]) {
    if constexpr (length == 1) {
        *target = from_float<Element>(values[0]);
    } else {
        store16(target, values);
    }
}

// Sums over the warps of a block (32, blockDim.y), a column to a lane; the first warp gets them.
template <int count> __device__ inline void column_sums(float (&values)[count]) {
    __shared__ float partials[count][32][32];
#pragma unroll
    for (int i = 0; i < count; ++i) partials[i][threadIdx.y][threadIdx.x] = values[i];
    __syncthreads();
    if (threadIdx.y > 0) return;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        for (int warp = 1; warp < blockDim.y; ++warp) values[i] += partials[i][warp][threadIdx.x];
    }
}
