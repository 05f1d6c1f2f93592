#include "norms.cuh"

constexpr int runs = COLUMNS / RUN;  // of a row in a thread
// Registers that a thread's part of a row takes; a lone element of 16 bits has one to itself.
constexpr int words = RUN == 1 ? COLUMNS : COLUMNS * sizeof(ELEMENT) / 4;
constexpr bool ahead = words <= 4;  // the next row's x and dy come while this one is worked on
constexpr bool held = words <= 8;   // x and dy stay in registers; else loops over runs stay loops
constexpr bool weight_held = words <= 4;

__device__ inline int column(int r) { return (r * blockDim.x + threadIdx.x) * RUN; }

// A thread's runs of a row: in registers, or read again from the caches whenever they are asked for.
template <bool in_registers> struct Line {
    Run<ELEMENT, RUN> values[in_registers ? runs : 1];
    const ELEMENT* row;
    long long stride;
    int cols;

    __device__ inline void load(const ELEMENT* from, long long step, int count) {
        row = from, stride = step, cols = count;
        if constexpr (in_registers) {
#pragma unroll
            for (int r = 0; r < runs; ++r) values[r] = load_run<RUN>(row, stride, column(r), cols);
        }
    }

    __device__ inline Run<ELEMENT, RUN> operator[](int r) const {
        if constexpr (in_registers) {
            return values[r];
        } else {
            return load_run<RUN>(row, stride, column(r), cols);
        }
    }
};

// A thread's sums for dweight: SHARED of them in shared memory, where no other thread touches them, the
// others in registers.
struct Sums {
    float values[COLUMNS - SHARED + 1];
    float* place;

    __device__ inline Sums(float* shared) : place(shared + threadIdx.x) {
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) (*this)[i] = 0.0f;
    }

    __device__ inline float& operator[](int i) { return i < SHARED ? place[i * blockDim.x] : values[i - SHARED]; }
};

// dx of every gridDim.x-th row. The sums of those rows for dweight are one row of `partial` (blocks, cols).
extern "C" __global__ void __launch_bounds__(1024) rms_norm_backward_vectorised(
    const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ weight, const ELEMENT* __restrict__ dy,
    const float* given_rstd, ELEMENT* __restrict__ dx, float* partial, long long x_row, long long x_col, long long w_col, long long dy_row,
    long long dy_col, long long rstd_row, long long rows, int cols, float eps) {
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

        float sums[2] = {0.0f, 0.0f};  // of x^2, g * x
#pragma unroll(held ? runs : 2)
        for (int r = 0; r < runs; ++r) {
            if (column(r) >= cols) break;
            const Run<ELEMENT, RUN> values = x_line[r], slopes = dy_line[r], w = w_line[r];
#pragma unroll
            for (int i = 0; i < RUN; ++i) {
                sums[0] += values[i] * values[i];
                sums[1] += slopes[i] * w[i] * values[i];
            }
        }
        row_sums(sums, turn);
        const float rstd = given_rstd ? given_rstd[row * rstd_row] : rsqrtf(sums[0] / cols + eps);
        const float dot = sums[1] * rstd / cols;

#pragma unroll(held ? runs : 2)
        for (int r = 0; r < runs; ++r) {
            if (column(r) >= cols) break;
            const Run<ELEMENT, RUN> values = x_line[r], slopes = dy_line[r], w = w_line[r];
            float out[RUN];
#pragma unroll
            for (int i = 0; i < RUN; ++i) {
                const float normed = values[i] * rstd;
                out[i] = rstd * (slopes[i] * w[i] - normed * dot);
                total[r * RUN + i] += slopes[i] * normed;
            }
            store_run(dx + row * cols + column(r), out);
        }

        if (ahead) {
            x_line = x_next;
            dy_line = dy_next;
        } else {
            x_line.load(x + next * x_row, x_col, cols);
            dy_line.load(dy + next * dy_row, dy_col, cols);
        }
    }

#pragma unroll(held ? runs : 2)
    for (int r = 0; r < runs; ++r) {
        if (column(r) >= cols) break;
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            partial[(long long)blockIdx.x * cols + column(r) + i] = total[r * RUN + i];
        }
    }
}
