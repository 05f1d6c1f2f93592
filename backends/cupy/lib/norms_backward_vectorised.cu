// The gradients of layer norm, or, where not CENTRED, those of RMS norm: as if mean and mean(g) were 0, without dbias.
#include "norms.cuh"

constexpr int vectors = COLUMNS / VECTOR;  // of a row in a thread
// Registers that a thread's part of a row takes; a lone element of 16 bits has one to itself.
constexpr int words = VECTOR == 1 ? COLUMNS : COLUMNS * sizeof(ELEMENT) / 4;
constexpr bool ahead = words <= 4;  // the next row's x and dy come while this one is worked on
constexpr bool held = words <= 8;   // x and dy stay in registers; else loops over vectors stay loops
constexpr bool weight_held = words <= 4;

__device__ inline int column(int r) { return (r * blockDim.x + threadIdx.x) * VECTOR; }

// A thread's vectors of a row: in registers, or read again from the caches whenever they are asked for.
template <bool in_registers> struct Line {
    Vector<ELEMENT, VECTOR> values[in_registers ? vectors : 1];
    const ELEMENT* row;
    long long stride;
    int cols;

    __device__ inline void load(const ELEMENT* from, long long step, int count) {
        row = from, stride = step, cols = count;
        if constexpr (in_registers) {
#pragma unroll
            for (int r = 0; r < vectors; ++r) values[r] = load_vector<VECTOR>(row, stride, column(r), cols);
        }
    }

    __device__ inline Vector<ELEMENT, VECTOR> operator[](int r) const {
        if constexpr (in_registers) {
            return values[r];
        } else {
            return load_vector<VECTOR>(row, stride, column(r), cols);
        }
    }
};

// A thread's sums, where CENTRED dbias's, then dweight's: SHARED of them in shared memory, where no other thread
// touches them, the others in registers.
struct Sums {
    static constexpr int count = (1 + CENTRED) * COLUMNS, dweight = CENTRED * COLUMNS;
    float values[count - SHARED + 1];
    float* place;

    __device__ inline Sums(float* shared) : place(shared + threadIdx.x) {
#pragma unroll
        for (int i = 0; i < count; ++i) (*this)[i] = 0.0f;
    }

    __device__ inline float& operator[](int i) { return i < SHARED ? place[i * blockDim.x] : values[i - SHARED]; }
};

__device__ inline float mean_of(const Line<held>& x, int cols, int& turn) {
    float sum = 0.0f;
#pragma unroll(held ? vectors : 2)
    for (int r = 0; r < vectors; ++r) {
        const Vector<ELEMENT, VECTOR> values = x[r];
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) sum += values[i];
    }
    return row_sum(sum, turn) / cols;
}

// Over a row, of (x - mean)^2, of g * (x - mean) and, where CENTRED, of g.
constexpr int moments = 2 + CENTRED;
__device__ inline void moments_of(
    const Line<held>& x, const Line<held>& dy, const Line<weight_held>& weight, float mean, int cols,
    float (&sums)[moments], int& turn) {
#pragma unroll
    for (int i = 0; i < moments; ++i) sums[i] = 0.0f;
#pragma unroll(held ? vectors : 2)
    for (int r = 0; r < vectors; ++r) {
        if (column(r) >= cols) break;
        const Vector<ELEMENT, VECTOR> values = x[r], slopes = dy[r], w = weight[r];
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            const float centred = values[i] - mean, g = slopes[i] * w[i];
            sums[0] += centred * centred;
            sums[1] += g * centred;
            if constexpr (CENTRED) sums[2] += g;
        }
    }
    row_sums(sums, turn);
}

// dx of a row, `shift` being mean(g) and `dot` mean(g * normed); the row's part of dweight and dbias goes to `total`.
__device__ inline void gradients_of(
    const Line<held>& x, const Line<held>& dy, const Line<weight_held>& weight, ELEMENT* dx, float mean, float rstd,
    float shift, float dot, int cols, Sums& total) {
#pragma unroll(held ? vectors : 2)
    for (int r = 0; r < vectors; ++r) {
        if (column(r) >= cols) break;
        const Vector<ELEMENT, VECTOR> values = x[r], slopes = dy[r], w = weight[r];
        float out[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            const float normed = (values[i] - mean) * rstd;
            out[i] = rstd * (slopes[i] * w[i] - shift - normed * dot);
            if (CENTRED) total[r * VECTOR + i] += slopes[i];
            total[Sums::dweight + r * VECTOR + i] += slopes[i] * normed;
        }
        store_vector(dx + column(r), out);
    }
}

// dx of every gridDim.x-th row. The sums of those rows are one row of `partial` (1 + CENTRED, blocks, cols): dweight's,
// then dbias's.
extern "C" __global__ void __launch_bounds__(1024) norms_backward_vectorised(
    const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ weight, const ELEMENT* __restrict__ dy,
    const float* given_mean, const float* given_rstd, ELEMENT* __restrict__ dx, float* partial, long long x_row,
    long long x_col, long long w_col, long long dy_row, long long dy_col, long long mean_row, long long rstd_row,
    long long rows, int cols, float eps) {
    extern __shared__ float shared_sums[];
    Sums total(shared_sums);
    Line<weight_held> w_line;
    Line<held> x_line, dy_line, x_next, dy_next;
    w_line.load(weight, w_col, cols);
    x_line.load(x + blockIdx.x * x_row, x_col, cols);
    dy_line.load(dy + blockIdx.x * dy_row, dy_col, cols);

    int turn = 0;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const long long next = row + gridDim.x < rows ? row + gridDim.x : row;
        if (ahead) {
            x_next.load(x + next * x_row, x_col, cols);
            dy_next.load(dy + next * dy_row, dy_col, cols);
        }

        float mean = 0.0f;
        if (CENTRED) mean = given_mean ? given_mean[row * mean_row] : mean_of(x_line, cols, turn);
        float sums[moments];
        moments_of(x_line, dy_line, w_line, mean, cols, sums, turn);
        const float rstd = given_rstd ? given_rstd[row * rstd_row] : rsqrtf(sums[0] / cols + eps);
        const float shift = CENTRED ? sums[moments - 1] / cols : 0.0f, dot = sums[1] * rstd / cols;
        gradients_of(x_line, dy_line, w_line, dx + row * cols, mean, rstd, shift, dot, cols, total);

        if (ahead) {
            x_line = x_next;
            dy_line = dy_next;
        } else {
            x_line.load(x + next * x_row, x_col, cols);
            dy_line.load(dy + next * dy_row, dy_col, cols);
        }
    }

#pragma unroll(held ? vectors : 2)
    for (int r = 0; r < vectors; ++r) {
        if (column(r) >= cols) break;
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            const int col = column(r) + i;
            partial[(long long)blockIdx.x * cols + col] = total[Sums::dweight + r * VECTOR + i];
            if (CENTRED) partial[((long long)gridDim.x + blockIdx.x) * cols + col] = total[r * VECTOR + i];
        }
    }
}
