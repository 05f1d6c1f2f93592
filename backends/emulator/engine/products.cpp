#include "products.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "accesses.h"
#include "copies.h"
#include "fibers.h"
#include "narrow.h"
#include "races.h"
#include "reports.h"

namespace engine {
namespace {

bool whole_numbers(int type) { return type == TS_S8 || type == TS_U8; }

int bytes_of(int type) { return type == TS_F16 || type == TS_BF16 ? 2 : type == TS_TF32 ? 4 : 1; }

// An operand in shared memory by its descriptor: 32 bytes of k for each of m or n, in pieces of 16 bytes. Calls
// piece(address, place) for each, where `place` is that of the piece in rows: along k, row m holds two pieces; else row
// k holds those of all m.
template <class Piece>
void pieces_of(uint64_t descriptor, uint32_t extent, bool along_m, Piece piece) {
  const uint64_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
  const uint64_t stride = (descriptor >> 32 & 0x3fff) << 4;
  const int swizzle = descriptor >> 62 == 0 ? 0 : descriptor >> 62 == 1 ? 128 : descriptor >> 62 == 2 ? 64 : 32;
  const uint64_t width = swizzle ? static_cast<uint64_t>(swizzle) : 16;  // bytes of a row in shared memory
  if (!along_m) {
    const uint64_t next = swizzle ? 16 : leading;
    for (uint32_t m = 0; m < extent; ++m)
      for (uint32_t half = 0; half < 2; ++half)
        piece(swizzled(start + m / 8 * stride + m % 8 * width + half * next, swizzle), m * 2 + half);
    return;
  }
  const uint32_t across = static_cast<uint32_t>(width / 16), all = extent / 8;
  const uint64_t further = swizzle ? leading : stride, down = swizzle ? stride : leading;
  for (uint32_t k = 0; k < 16; ++k)
    for (uint32_t i = 0; i < all; ++i)
      piece(swizzled(start + i / across * further + i % across * 16 + k / 8 * down + k % 8 * width, swizzle),
            k * all + i);
}

// What a product reads of shared memory has to be there.
void check_operand(Worker* w, uint64_t descriptor, uint32_t extent, bool along_m, uint64_t pc) {
  const uint64_t arena = here(w->block->arena);
  const bool watched = w->watched;
  uint64_t all;
  std::memset(&all, WRITTEN, sizeof all);
  pieces_of(descriptor, extent, along_m, [&](uint64_t address, uint32_t) {
    if (address > ARENA - 16) refuse(w, TS_OUT_OF_BOUNDS, arena + address, 16, READ, pc);
    uint64_t states[2];
    std::memcpy(states, w->shared_states + address, sizeof states);
    if (watched || states[0] != all || states[1] != all) slow(w, arena + address, 16, READ, pc);
  });
}

void gather(Worker* w, uint64_t descriptor, uint32_t extent, bool along_m, unsigned char* raw) {
  const char* arena = w->block->arena;
  pieces_of(descriptor, extent, along_m, [&](uint64_t address, uint32_t place) {
    std::memcpy(raw + place * 16, arena + address, 16);
  });
}

// 32 bytes, or more, as numbers.
template <class Store>
void widen_all(const unsigned char* raw, uint32_t count, int type, Store store) {
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t word = 0;
    if (type == TS_F16 || type == TS_BF16) {
      uint16_t bits;
      std::memcpy(&bits, raw + 2 * i, 2);
      word = bit_cast<uint32_t>(widen(bits, type == TS_BF16));
    } else if (type == TS_TF32) {
      std::memcpy(&word, raw + 4 * i, 4);
      word &= 0xffffe000u;
    } else if (type == TS_E4M3) {
      word = bit_cast<uint32_t>(widen_e4m3(raw[i]));
    } else if (type == TS_E5M2) {
      word = bit_cast<uint32_t>(widen(static_cast<uint16_t>(raw[i] << 8), false));
    } else if (type == TS_S8) {
      word = static_cast<uint32_t>(static_cast<int32_t>(static_cast<int8_t>(raw[i])));
    } else {
      word = raw[i];
    }
    store(i, word);
  }
}

// Rows of m as they lie, as [m][k] or, for the right operand, [k][m].
void arrange_operand(
    const unsigned char* raw, uint32_t extent, uint32_t k, int type, bool along_m, bool by_k, uint32_t* out) {
  if (along_m) {
    for (uint32_t i = 0; i < k; ++i)
      widen_all(raw + i * extent * 2, extent, type, [&](uint32_t m, uint32_t word) {
        out[by_k ? i * extent + m : m * k + i] = word;
      });
  } else {
    for (uint32_t m = 0; m < extent; ++m)
      widen_all(raw + m * 32, k, type, [&](uint32_t i, uint32_t word) {
        out[by_k ? i * extent + m : m * k + i] = word;
      });
  }
}

// c[16][COLUMNS] += a[16][k] * b[k][n], for n a multiple of 8: four rows and a few vectors of columns at a time.
template <class T, int W, int V>
__attribute__((always_inline)) inline void columns_of(
    const uint32_t* a, const uint32_t* b, uint32_t* c, uint32_t k, uint32_t n, uint32_t col) {
  typedef T Vector __attribute__((vector_size(W * sizeof(T)), aligned(sizeof(T)), may_alias));
  for (uint32_t row = 0; row < 16; row += 4) {
    Vector sum[4][V];
    for (int i = 0; i < 4; ++i)
      for (int v = 0; v < V; ++v)
        sum[i][v] = *reinterpret_cast<const Vector*>(c + (row + i) * COLUMNS + col + v * W);
    for (uint32_t j = 0; j < k; ++j) {
      Vector right[V];
      for (int v = 0; v < V; ++v) right[v] = *reinterpret_cast<const Vector*>(b + j * n + col + v * W);
      for (int i = 0; i < 4; ++i) {
        T left;
        std::memcpy(&left, a + (row + i) * k + j, sizeof left);
        for (int v = 0; v < V; ++v) sum[i][v] += left * right[v];
      }
    }
    for (int i = 0; i < 4; ++i)
      for (int v = 0; v < V; ++v) *reinterpret_cast<Vector*>(c + (row + i) * COLUMNS + col + v * W) = sum[i][v];
  }
}

template <class T, int W>
__attribute__((always_inline)) inline void multiply_by(
    const uint32_t* a, const uint32_t* b, uint32_t* c, uint32_t k, uint32_t n) {
  uint32_t col = 0;
  for (; col + 2 * W <= n; col += 2 * W) columns_of<T, W, 2>(a, b, c, k, n, col);
  for (; col < n; col += 8) columns_of<T, 8, 1>(a, b, c, k, n, col);
}

template <class T>
void multiply_plain(const uint32_t* a, const uint32_t* b, uint32_t* c, uint32_t k, uint32_t n) {
  multiply_by<T, 8>(a, b, c, k, n);
}

#if defined(__x86_64__)
template <class T>
__attribute__((target("avx2,fma"))) void multiply_avx2(
    const uint32_t* a, const uint32_t* b, uint32_t* c, uint32_t k, uint32_t n) {
  multiply_by<T, 8>(a, b, c, k, n);
}
template <class T>
__attribute__((target("avx512f,avx2,fma"))) void multiply_avx512(
    const uint32_t* a, const uint32_t* b, uint32_t* c, uint32_t k, uint32_t n) {
  multiply_by<T, 16>(a, b, c, k, n);
}
#endif

using Multiply = void (*)(const uint32_t*, const uint32_t*, uint32_t*, uint32_t, uint32_t);

template <class T>
Multiply chosen() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return multiply_avx512<T>;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_avx2<T>;
#endif
  return multiply_plain<T>;
}

// The row and column of a lane's word, of sums in 32 bits; of those in 16 a word holds this column and the next.
uint32_t row_of(uint32_t lane, uint32_t word, bool pairs) { return lane / 4 + 8 * ((pairs ? word : word / 2) % 2); }
uint32_t column_of(uint32_t lane, uint32_t word, bool pairs) {
  return pairs ? 8 * (word / 2) + 2 * (lane % 4) : 8 * (word / 4) + 2 * (lane % 4) + word % 2;
}

// The 64 rows of the left operand, [64][k]; `parts`: the product as each warp has begun it.
void left_operand(Worker* w, Product* const* parts, unsigned char* space, uint32_t* out) {
  const ts_wgmma_form& f = parts[0]->form;
  const uint32_t k = static_cast<uint32_t>(f.k), each = 4 / static_cast<uint32_t>(bytes_of(f.a));
  if (parts[0]->left) {
    for (uint32_t thread = 0; thread < 128; ++thread)
      for (uint32_t r = 0; r < 4; ++r) {
        unsigned char raw[4];
        std::memcpy(raw, &parts[thread / 32]->registers[thread % 32][r], 4);
        const uint32_t lane = thread % 32, row = thread / 32 * 16 + lane / 4 + 8 * (r % 2);
        const uint32_t first = each * (lane % 4) + 4 * each * (r / 2);
        widen_all(raw, each, f.a, [&](uint32_t i, uint32_t word) { out[row * k + first + i] = word; });
      }
  } else {
    gather(w, parts[0]->a, 64, f.a_along_m, space);
    arrange_operand(space, 64, k, f.a, f.a_along_m, false, out);
  }
  if (f.negate_a != f.negate_b && !whole_numbers(f.a))
    for (uint32_t i = 0; i < 64 * k; ++i) out[i] ^= 0x80000000u;
}

// Of a warp's sums of whole numbers that end at the largest and the smallest one.
void saturated(const ts_wgmma_form& f, const uint32_t* a, const uint32_t* b, Tile& tile) {
  for (uint32_t row = 0; row < 16; ++row)
    for (int32_t col = 0; col < f.n; ++col) {
      int64_t sum = f.adds ? static_cast<int32_t>(tile.words[row][col]) : 0;
      for (int32_t i = 0; i < f.k; ++i)
        sum += int64_t(static_cast<int32_t>(a[static_cast<int32_t>(row) * f.k + i])) *
               static_cast<int32_t>(b[i * f.n + col]);
      tile.words[row][col] = static_cast<uint32_t>(std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX));
    }
}

void form_product(Worker* w, Product* const* parts) {
  static const Multiply floats = chosen<float>(), integers = chosen<int32_t>();
  const ts_wgmma_form& f = parts[0]->form;
  const uint32_t n = static_cast<uint32_t>(f.n), k = static_cast<uint32_t>(f.k);
  check_operand(w, parts[0]->b, n, f.b_along_n, parts[0]->pc);
  if (!parts[0]->left) check_operand(w, parts[0]->a, 64, f.a_along_m, parts[0]->pc);
  Products& all = *w->block->products;
  uint32_t *const a = all.left, *const b = all.right;
  unsigned char* const raw = all.raw;
  left_operand(w, parts, raw, a);
  gather(w, parts[0]->b, n, f.b_along_n, raw);
  arrange_operand(raw, n, k, f.b, f.b_along_n, true, b);
  for (uint32_t warp = 0; warp < 4; ++warp) {
    Tile& tile = *parts[warp]->tile;
    const uint32_t* rows = a + warp * 16 * k;
    if (f.saturates) {
      saturated(f, rows, b, tile);
      continue;
    }
    if (!f.adds)
      for (auto& row : tile.words) std::memset(row, 0, n * 4);
    (whole_numbers(f.a) ? integers : floats)(rows, b, tile.words[0], k, n);
    if (f.d != TS_F16) continue;
    for (auto& row : tile.words)
      for (uint32_t col = 0; col < n; ++col)
        row[col] = bit_cast<uint32_t>(widen(to_half(bit_cast<float>(row[col])), false));
  }
}

// The sums go to the lanes' registers.
void hand_out(Tile& tile, uint64_t pc) {
  const bool pairs = tile.type == TS_F16;
  for (uint32_t lane = 0; lane < 32; ++lane)
    for (uint32_t word = 0; word < tile.count; ++word) {
      uint32_t* place = tile.places[lane][word];
      if (*place != PENDING)
        fault("accumulators of wgmma.mma_async were written before wgmma.wait_group, or are gone", pc);
      const uint32_t* at = &tile.words[row_of(lane, word, pairs)][column_of(lane, word, pairs)];
      *place = pairs ? to_half(bit_cast<float>(at[0])) | uint32_t(to_half(bit_cast<float>(at[1]))) << 16 : at[0];
    }
}

WarpProducts& of_warp(Block* block, uint32_t warp) {
  if (!block->products) block->products = std::make_shared<Products>();
  auto& warps = block->products->warps;
  warps.resize((block->fibers.size() + 31) / 32);
  if (!warps[warp]) warps[warp] = std::make_unique<WarpProducts>();
  return *warps[warp];
}

struct Wait {
  Fiber* fiber;
  int pending;
  bool done;
  uint32_t news;
};

// How many products a thread waits for.
uint32_t awaited(const WarpProducts& mine, int pending) {
  const size_t groups = mine.groups.size();
  return groups > static_cast<size_t>(pending) ? mine.groups[groups - static_cast<size_t>(pending) - 1] : 0;
}

// A place of a warpgroup where its warps meet: of no array.
uint64_t meeting_place(const Block* block, uint32_t warpgroup) { return here(block->arena) + 64 + warpgroup; }

// Whether all lanes of a warp have begun the product of that number.
bool begun(const WarpProducts& mine, uint32_t number) {
  return number < mine.first ||
         (number - mine.first < mine.under_way.size() && mine.under_way[number - mine.first].lanes == 32);
}

// A mistake of a whole warp where it waits.
void fault_here(const char* text) {
  fail(TS_FAULT, [&](ts_report& report) {
    waits(report.here, worker->current);
    std::strncpy(report.text, text, sizeof report.text - 1);
  });
}

void form_all(void** lanes, uint32_t) {
  Worker* w = worker;
  for (int lane = 0; lane < 32; ++lane)
    if (!lanes[lane]) fault_here("wgmma.wait_group without a lane of the warp, which has ended or does not exist");
  const Wait& first = *static_cast<Wait*>(lanes[0]);
  Block* block = first.fiber->block;
  const uint32_t warp = first.fiber->number / 32, group = warp / 4;
  WarpProducts& mine = of_warp(block, warp);
  for (int lane = 1; lane < 32; ++lane) {
    const Fiber& other = *static_cast<Wait*>(lanes[lane])->fiber;
    if (other.products != first.fiber->products || other.product_groups != first.fiber->product_groups)
      fault_here("wgmma.wait_group by lanes that have begun or closed different numbers of products");
  }
  for (int lane = 0; lane < 32; ++lane) static_cast<Wait*>(lanes[lane])->news = block->products->news[group];
  const uint32_t until = awaited(mine, first.pending);
  uint32_t& formed = block->products->formed[group];
  if (w->launch->races) synchronise(w, meeting_place(block, group), true, false);
  for (; formed < until; ++formed) {
    Product* parts[4];
    for (uint32_t i = 0; i < 4; ++i) {
      WarpProducts& its = of_warp(block, group * 4 + i);
      if (!begun(its, formed)) return;
      parts[i] = &its.under_way[formed - its.first];
      if (std::memcmp(&parts[i]->form, &parts[0]->form, sizeof parts[0]->form) || parts[i]->b != parts[0]->b ||
          parts[i]->a != parts[0]->a || parts[i]->left != parts[0]->left)
        fault("wgmma.mma_async whose warps do not agree in what they multiply", parts[i]->pc);
    }
    form_product(w, parts);
  }
  if (w->launch->races) release_at(w, meeting_place(block, group));
  while (!mine.under_way.empty() && mine.first < until) {
    const Product& p = mine.under_way.front();
    if (p.tile->last == mine.first) {
      hand_out(*p.tile, p.pc);
      p.tile->count = 0;
    }
    mine.under_way.pop_front();
    ++mine.first;
  }
  while (!mine.tiles.empty() && !mine.tiles.front()->count) {
    mine.spare.push_back(std::move(mine.tiles.front()));
    mine.tiles.pop_front();
    ++mine.first_tile;
  }
  for (int lane = 0; lane < 32; ++lane) static_cast<Wait*>(lanes[lane])->done = true;
}

// Whether another product that is under way has a lane's variable among its accumulators.
bool taken(const WarpProducts& mine, const Tile* but, uint32_t lane, const uint32_t* place) {
  for (const auto& tile : mine.tiles)
    if (tile.get() != but)
      for (uint32_t word = 0; word < tile->count; ++word)
        if (tile->places[lane][word] == place) return true;
  return false;
}

// The warps of a warpgroup that wait for another one look again.
void wake_warps(Worker* w, Block* block, uint32_t warpgroup) {
  ++block->products->news[warpgroup];
  w->scratch.clear();
  for (uint32_t i = warpgroup * 128; i < warpgroup * 128 + 128; ++i)
    if (block->fibers[i].state == AT_PRODUCT) w->scratch.push_back(&block->fibers[i]);
  if (!w->scratch.empty()) arrange(w, w->scratch);
}

}  // namespace

void check_products(const Fiber* self) {
  if (!self->products) return;
  const WarpProducts& mine = of_warp(self->block, self->number / 32);
  if (self->products > mine.first)
    fault("the thread ends while a wgmma.mma_async of its warp is under way", mine.under_way.front().pc);
}

uint32_t missing_warp(const Fiber* fiber) {
  const uint32_t warp = fiber->number / 32, first = warp / 4 * 4;
  const uint32_t number = fiber->block->products->formed[warp / 4];
  for (uint32_t i = first; i < first + 4; ++i)
    if (!begun(of_warp(fiber->block, i), number)) return i;
  return warp;
}

}  // namespace engine

using namespace engine;

extern "C" {

TS_EXPORT void ts_wgmma(
    const ts_wgmma_form* form, const uint32_t* a, uint64_t a_descriptor, uint64_t b_descriptor, uint32_t* const* d,
    uint32_t count, uint64_t pc) {
  Worker* w = worker;
  Fiber* self = w->current;
  Block* block = w->block;
  const uint32_t warp = self->number / 32, lane = self->number % 32;
  if ((warp / 4 + 1) * 128 > block->fibers.size())
    fault("wgmma.mma_async by a warp that belongs to no whole warpgroup of 128 threads", pc);
  if (!self->product_fences) fault("wgmma.mma_async without a wgmma.fence before", pc);
  if ((b_descriptor >> 49 | (a ? 0 : a_descriptor >> 49)) & 7)
    fault("not covered by the emulator: wgmma with a base offset in a matrix descriptor", pc);
  WarpProducts& mine = of_warp(block, warp);
  const uint32_t number = self->products++;
  if (number - mine.first == mine.under_way.size()) {  // the first lane of the warp to begin it
    mine.under_way.emplace_back();
    Product& p = mine.under_way.back();
    p.form = *form;
    p.a = a ? 0 : a_descriptor;
    p.b = b_descriptor;
    p.left = a != nullptr;
    p.pc = pc;
    if (warp % 4 == 0 || w->launch->races) {
      check_operand(w, p.b, static_cast<uint32_t>(form->n), form->b_along_n, pc);
      if (!a) check_operand(w, p.a, 64, form->a_along_m, pc);
    }
    if (w->launch->races) release_at(w, meeting_place(block, warp / 4));
  }
  Product& p = mine.under_way[number - mine.first];
  if (std::memcmp(&p.form, form, sizeof *form) || p.b != b_descriptor || p.left != (a != nullptr) ||
      (!a && p.a != a_descriptor))
    fault("wgmma.mma_async whose lanes do not agree in what they multiply", pc);
  if (a) std::memcpy(p.registers[lane], a, sizeof p.registers[lane]);

  // The accumulators: those of a product that is under way, or new ones.
  Tile* tile = nullptr;
  for (auto& known : mine.tiles)
    if (known->count == count && known->places[lane][0] == d[0] && known->places[lane][count - 1] == d[count - 1])
      tile = known.get();
  if (!tile) {
    const uint32_t index = self->tiles++ - mine.first_tile;
    if (index == mine.tiles.size()) {
      std::unique_ptr<Tile> made;
      if (mine.spare.empty()) {
        made = std::make_unique<Tile>();
      } else {
        made = std::move(mine.spare.back());
        mine.spare.pop_back();
      }
      made->count = count;
      made->type = form->d;
      std::memset(made->places, 0, sizeof made->places);
      mine.tiles.push_back(std::move(made));
    }
    tile = mine.tiles[index].get();
    const bool pairs = form->d == TS_F16;
    std::memcpy(tile->places[lane], d, count * sizeof *d);
    for (uint32_t word = 0; word < count; ++word) {
      const uint32_t value = *d[word];
      if (value == PENDING && taken(mine, tile, lane, d[word]))
        fault("wgmma.mma_async on accumulators of another shape that is still under way", pc);
      uint32_t* at = &tile->words[row_of(lane, word, pairs)][column_of(lane, word, pairs)];
      if (pairs) {
        at[0] = bit_cast<uint32_t>(widen(static_cast<uint16_t>(value), false));
        at[1] = bit_cast<uint32_t>(widen(static_cast<uint16_t>(value >> 16), false));
      } else {
        at[0] = value;
      }
      *d[word] = PENDING;
    }
  }
  if (p.tile && p.tile != tile) fault("wgmma.mma_async whose lanes do not agree in their accumulators", pc);
  p.tile = tile;
  ++p.lanes;
  tile->last = number;
}

TS_EXPORT void ts_wgmma_fence() { ++worker->current->product_fences; }

TS_EXPORT void ts_wgmma_commit() {
  Worker* w = worker;
  Fiber* self = w->current;
  WarpProducts& mine = of_warp(w->block, self->number / 32);
  const uint32_t group = self->product_groups++;
  if (group == mine.groups.size()) mine.groups.push_back(self->products);
  else if (mine.groups[group] != self->products)
    fault("wgmma.commit_group: the lanes of a warp have begun different numbers of products", TS_RETURN_ADDRESS);
  if (self->products && begun(mine, self->products - 1)) wake_warps(w, w->block, self->number / 128);
}

TS_EXPORT void ts_wgmma_wait(int pending, int line, const char* file) {
  Worker* w = worker;
  Fiber* self = w->current;
  Wait mine = {self, pending, false, 0};
  if (!self->products) return;
  for (;;) {
    ts_warp(0xffffffffu, form_all, &mine, "wgmma.wait_group", line, file);
    if (mine.done) break;
    if (mine.news != w->block->products->news[self->number / 128]) continue;
    self->state = AT_PRODUCT;
    leave(w, self);
  }
  if (w->launch->races) synchronise(w, meeting_place(w->block, self->number / 128), true, false);
}

}  // extern "C"
