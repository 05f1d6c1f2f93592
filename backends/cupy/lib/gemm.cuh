// What the products c (M, N) = a (M, K) times b (K, N) share from the variant `vectorised` on: how an operand's tiles
// come to shared memory, which tile a block takes, and how results are stored.
#pragma once
#include "common.cuh"

// a or b; `length` is M or N, `depth` is K.
struct Operand {
    const ELEMENT* data;
    long long stride, stride_k;
    int length, depth;

    // The axis of stride 1 is k, or there is none.
    __device__ bool along_k() const { return stride_k == 1 || stride != 1; }

    // Rows of 16 bytes begin at multiples of 16 bytes, for the given axis as the row.
    __device__ bool wide(bool along_k) const {
        const bool aligned = reinterpret_cast<unsigned long long>(data) % 16 == 0;
        return aligned && (along_k ? stride_k : stride) == 1 && (along_k ? stride : stride_k) % lanes_of<ELEMENT> == 0;
    }
};

// A thread's way through the tiles of LENGTH by DEPTH, those at k = 0, DEPTH, 2 DEPTH and on: COUNT pieces of each, of
// as many elements as 16 bytes hold. Pieces lie along k or along the other axis; neighbouring threads take neighbours.
template <int LENGTH, int DEPTH, int THREADS, bool ALONG_K> struct Walk {
    static constexpr int WIDTH = lanes_of<ELEMENT>, COUNT = LENGTH * DEPTH / WIDTH / THREADS;
    static constexpr int HOP = THREADS * WIDTH / (ALONG_K ? DEPTH : LENGTH);  // from piece to piece
    static_assert(COUNT * WIDTH * THREADS == LENGTH * DEPTH, "every thread has the same number of pieces");

    int i, k;          // where the first piece begins within a tile
    int rest, rest_k;  // elements of the operand from there on
    int share;         // places of a tile for each place of the operand
    bool wide;
    long long stride, stride_k;
    const ELEMENT* source;

    // Of one operand, from place `first` along m or n.
    __device__ Walk(const Operand& x, int first) : Walk(x, x, first, LENGTH) {}

    // Of two operands of one shape side by side: `group` places of `even`, as many of `odd`, the next of `even` ...
    __device__ Walk(const Operand& even, const Operand& odd, int first, int group) {
        const int number = threadIdx.x * WIDTH;
        i = ALONG_K ? number / DEPTH : number % LENGTH;
        k = ALONG_K ? number % DEPTH : number / LENGTH;
        const bool is_even = i / group % 2 == 0;
        const int at = first + i / (2 * group) * group + i % group;
        rest = even.length - at;
        rest_k = even.depth - k;
        share = group < LENGTH ? 2 : 1;
        wide = is_even ? even.wide(ALONG_K) : odd.wide(ALONG_K);
        stride = is_even ? even.stride : odd.stride;
        stride_k = is_even ? even.stride_k : odd.stride_k;
        source = (is_even ? even.data : odd.data) + at * stride + k * stride_k;
    }

    // How many elements of a piece exist; more than WIDTH where the operand goes on.
    __device__ int valid(int piece) const {
        if (ALONG_K) return rest > piece * HOP / share ? rest_k : 0;
        return rest_k > piece * HOP ? rest : 0;
    }

    __device__ const ELEMENT* at(int piece) const {
        return source + (ALONG_K ? piece * HOP / share * stride : piece * HOP * stride_k);
    }

    __device__ long long step() const { return ALONG_K ? stride_k : stride; }  // from element to element of a piece

    __device__ void next() {
        source += DEPTH * stride_k;
        rest_k -= DEPTH;
    }
};

// A tile on its way through registers to shared memory, where it is float[DEPTH][PITCH].
template <int LENGTH, int DEPTH, int THREADS, int PITCH, bool ALONG_K> struct Stage {
    using Way = Walk<LENGTH, DEPTH, THREADS, ALONG_K>;
    static constexpr int WIDTH = Way::WIDTH;

    Way way;
    uint4 raw[Way::COUNT];  // converted when it is stored: a conversion here would wait for the load

    __device__ void load() {
        if (way.wide && way.valid(Way::COUNT - 1) >= WIDTH) {  // then all are whole
#pragma unroll
            for (int piece = 0; piece < Way::COUNT; ++piece) {
                raw[piece] = *reinterpret_cast<const uint4*>(way.at(piece));
            }
        } else {
#pragma unroll
            for (int piece = 0; piece < Way::COUNT; ++piece) {
                const ELEMENT* source = way.at(piece);
                const int valid = way.valid(piece);
                ELEMENT value[WIDTH];
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) {
                    value[j] = j < valid ? source[j * way.step()] : from_float<ELEMENT>(0.0f);
                }
                memcpy(&raw[piece], value, 16);
            }
        }
        way.next();
    }

    __device__ void store(float* tile) const {
#pragma unroll
        for (int piece = 0; piece < Way::COUNT; ++piece) {
            ELEMENT value[WIDTH];
            memcpy(value, &raw[piece], 16);
            float* target = tile + way.k * PITCH + way.i + piece * Way::HOP * (ALONG_K ? 1 : PITCH);
#pragma unroll
            for (int j = 0; j < WIDTH; j += 4) {
                const float4 four = make_float4(
                    to_float(value[j]), to_float(value[j + 1]), to_float(value[j + 2]), to_float(value[j + 3])
                );
                if (ALONG_K) {
                    target[j * PITCH] = four.x, target[(j + 1) * PITCH] = four.y;
                    target[(j + 2) * PITCH] = four.z, target[(j + 3) * PITCH] = four.w;
                } else {
                    *reinterpret_cast<float4*>(target + j) = four;
                }
            }
        }
    }
};

__device__ inline void load4(float* values, const float* shared) {
    const float4 four = *reinterpret_cast<const float4*>(shared);
    values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
}

template <int bytes> struct Bytes;
template <> struct Bytes<4> { using Type = unsigned; };
template <> struct Bytes<8> { using Type = uint2; };
template <> struct Bytes<16> { using Type = uint4; };

// Stores `span` columns of a row of c from column col on, in one access where every row of c is aligned to it.
template <int span> __device__ inline void store(ELEMENT* row, int col, int N, const float* values) {
    using Whole = typename Bytes<span * sizeof(ELEMENT)>::Type;
    ELEMENT element[span];
#pragma unroll
    for (int j = 0; j < span; ++j) element[j] = from_float<ELEMENT>(values[j]);
    if (N % span == 0 && col < N) {
        Whole raw;
        memcpy(&raw, element, sizeof(raw));
        *reinterpret_cast<Whole*>(row + col) = raw;
    } else {
#pragma unroll
        for (int j = 0; j < span; ++j) {
            if (col + j < N) row[col + j] = element[j];
        }
    }
}

struct Corner {
    int m, n;
};

// The first row and column of a block's tile. Blocks go down groups of eight tile rows before they go right, so that
// those in flight share operands in L2.
__device__ inline Corner corner(int number, int M, int N, int height, int width) {
    const int tiles_m = (M + height - 1) / height, tiles_n = (N + width - 1) / width;
    const int first = number / (8 * tiles_n) * 8, rows = min(tiles_m - first, 8), within = number % (8 * tiles_n);
    return {(first + within % rows) * height, within / rows * width};
}
