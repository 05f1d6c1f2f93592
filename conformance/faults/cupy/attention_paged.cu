#include "common.cuh"

enum Fault {
    none,
    next_page,
    second_page_of_the_first,
    page_stride,
    last_page_full,
    heads_modulo,
    first_length,
    page_int32,
    entry_beyond_the_last,
    mask_of_another_row,
    no_barrier,
};

constexpr int THREADS = 64, HELD = 4; // keys of a step; of D in each thread

struct Cache {
    const ELEMENT* first;
    long long p, r, h, d;

    __device__ const ELEMENT* page(int held, int rows, int head, int fault) const {
        const long long step = fault == page_stride ? rows * r : p;
        return first + (fault == page_int32 ? int(held * step) : held * step) + head * h;
    }
};

// A block for each query: its threads take a key each of a page, and meet in shared memory.
extern "C" __global__ void attention_paged_pages(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const int* table, const int* lengths, ELEMENT* o, float* lse,
    long long q_b, long long q_h, long long q_s, long long q_d, long long k_p, long long k_r, long long k_h,
    long long k_d, long long v_p, long long v_r, long long v_h, long long v_d, long long table_b, long long table_n,
    long long length_row, float scale, int heads, int kv_heads, int seq, int page, int entries, int dim, int fault) {
    __shared__ float scores[THREADS];
    const int row = blockIdx.x, b = row / (heads * seq), h = row / seq % heads, i = row % seq, thread = threadIdx.x;
    const int reader = fault == heads_modulo ? h % kv_heads : h / (heads / kv_heads);
    const Cache keys = {k, k_p, k_r, k_h, k_d}, values = {v, v_p, v_r, v_h, v_d};
    int length = lengths[b * length_row];
    if (fault == first_length && lengths[0] < length) length = lengths[0];
    const int packed = h % (heads / kv_heads) * seq + i; // among the rows of a key head
    int last = length - seq + (fault == mask_of_another_row ? packed / (heads / kv_heads) : i) + 1;
    if (last < 0) last = 0;
    const int pages = (last + page - 1) / page;
    if (fault == last_page_full) last = pages * page;
    q += b * q_b + h * q_h + i * q_s;

    float m = -3e38f, l = 0.0f, own[HELD] = {};
    for (int place = 0; place < pages; ++place) {
        const int entry = fault == next_page && place + 1 < pages ? place + 1 : place;
        const int owner = fault == second_page_of_the_first && place == 1 ? 0 : b;
        const int held = table[owner * table_b + entry * table_n];
        const ELEMENT *key = keys.page(held, page, reader, fault), *value = values.page(held, page, reader, fault);
        if (fault == entry_beyond_the_last && place + 1 < entries)
            own[0] += 0.0f * to_float(*values.page(table[b * table_b + (place + 1) * table_n], page, reader, fault));
        const int rows = last - place * page < page ? last - place * page : page;
        for (int start = 0; start < rows; start += THREADS) {
            if (start + thread < rows) {
                float dot = 0.0f;
                for (int d = 0; d < dim; ++d)
                    dot += to_float(q[d * q_d]) * to_float(key[(start + thread) * k_r + d * k_d]);
                scores[thread] = dot * scale;
            }
            if (fault != no_barrier) __syncthreads();
            const int count = rows - start < THREADS ? rows - start : THREADS;
            float larger = m;
            for (int c = 0; c < count; ++c) larger = fmaxf(larger, scores[c]);
            const float kept = expf(m - larger);
            l *= kept;
            for (int held = 0; held < HELD; ++held) own[held] *= kept;
            for (int c = 0; c < count; ++c) {
                const float p = expf(scores[c] - larger);
                l += p;
                for (int d = thread; d < dim; d += THREADS)
                    own[d / THREADS] += p * to_float(value[(start + c) * v_r + d * v_d]);
            }
            m = larger;
            __syncthreads(); // before the next keys' scores are written
        }
    }
    for (int d = thread; d < dim; d += THREADS)
        o[(long long)row * dim + d] = from_float<ELEMENT>(l > 0.0f ? own[d / THREADS] / l : 0.0f);
    if (thread == 0) lse[row] = l > 0.0f ? m + logf(l) : -INFINITY;
}
