#include "common.cuh"

enum Fault {
    none,
    not_rescaled,
    base_2,
    last_part_lost,
    row_before,
    empty_parts,
    offset_int32,
    part_stride,
    no_barrier,
};

constexpr int THREADS = 64; // parts of a step, and columns of one

// A block for each row: its threads take a part's weight each, and meet in shared memory.
extern "C" __global__ void merge_states_running(
    const ELEMENT* o, const float* lse, ELEMENT* merged, float* of_all, long long o_p, long long o_r, long long o_d,
    long long lse_p, long long lse_r, int parts, int rows, int dim, int fault) {
    __shared__ float of_parts[THREADS];
    const long long row = blockIdx.x;
    const int thread = threadIdx.x;
    if (fault == last_part_lost) --parts;
    if (fault == part_stride) o_p = rows * o_r;
    o += row * o_r;
    lse += (fault == row_before && row > 0 ? row - 1 : row) * lse_r;

    for (int begin = 0; begin < dim || begin == 0; begin += THREADS) {
        const int d = begin + thread;
        float m = -INFINITY, l = 0.0f, sum = 0.0f;
        for (int start = 0; start < parts; start += THREADS) {
            if (start + thread < parts) of_parts[thread] = lse[(start + thread) * lse_p];
            if (fault != no_barrier) __syncthreads();
            for (int part = start; part < parts && part < start + THREADS; ++part) {
                const float own = of_parts[part - start], larger = fmaxf(m, own);
                const float shift = larger == -INFINITY && fault != empty_parts ? 0.0f : larger;
                const float kept = fault == base_2 ? exp2f(m - shift) : expf(m - shift);
                const float weight = fault == base_2 ? exp2f(own - shift) : expf(own - shift);
                const long long at = fault == offset_int32 ? int(part * o_p) : part * o_p;
                l = l * kept + weight;
                if (fault != not_rescaled) sum *= kept;
                if (d < dim) sum += weight * to_float(o[at + d * o_d]);
                m = larger;
            }
            __syncthreads(); // before the next parts' lse are written
        }
        if (d < dim) merged[row * dim + d] = from_float<ELEMENT>(l == 0.0f ? 0.0f : sum / l);
        if (d == 0) of_all[row] = l == 0.0f ? -INFINITY : m + logf(l);
    }
}
