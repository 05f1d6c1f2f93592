// What is remembered of every access while races are looked for, or writers recorded. Used by one core at a time.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

namespace shadow {

enum Access : uint8_t { READ = 0, WRITE = 1, ATOMIC = 2, VOLATILE = 3 };

// One access: by which thread, at what time of its block, its warp and its own.
struct Record {
  uint32_t thread = 0;     // block * 1024 + thread + 1; 0: no record
  uint32_t epoch = 0;      // barriers its block had passed; the two upper bits: the kind of access
  uint16_t warp_clock = 0; // of its lane
  uint16_t clock = 0;      // fences it had made; STORES: a volatile access or a copy that writes
  uint32_t pc = 0;         // within the kernel's library
};
constexpr uint32_t BLOCKS = ~0u, NEVER = ~1u;  // in Page::full; NEVER is not
constexpr uint32_t EPOCH = 0x3fffffff;
constexpr uint16_t STORES = 0x8000;
typedef uint32_t Four __attribute__((vector_size(16)));
typedef int32_t Signed __attribute__((vector_size(16)));  // which older processors compare in one instruction

// Bit i: whether a comparison held in lane i.
inline uint32_t bits(Signed held) {
#if defined(__SSE2__)
  typedef float Floats __attribute__((vector_size(16)));
  return static_cast<uint32_t>(__builtin_ia32_movmskps(reinterpret_cast<Floats>(held)));
#else
  const Signed lanes = held & Signed{1, 2, 4, 8};
  return static_cast<uint32_t>(lanes[0] | lanes[1] | lanes[2] | lanes[3]);
#endif
}

// A granule's last accesses that none of the others makes superfluous.
struct alignas(64) Cell {
  Four thread = {}, epoch = {}, clocks = {}, pc = {};  // each of four records

  Record at(int i) const {
    return {thread[i], epoch[i], static_cast<uint16_t>(clocks[i]), static_cast<uint16_t>(clocks[i] >> 16), pc[i]};
  }
  // Whole vectors are stored, since a load of one that was stored in parts has to wait for it.
  void put(int i, const Record& record) {
    static constexpr uint32_t lanes[4][4] = {{~0u, 0, 0, 0}, {0, ~0u, 0, 0}, {0, 0, ~0u, 0}, {0, 0, 0, ~0u}};
    Four here;
    std::memcpy(&here, lanes[i], sizeof here);
    thread = (here & record.thread) | (~here & thread);
    epoch = (here & record.epoch) | (~here & epoch);
    clocks = (here & (record.warp_clock | uint32_t(record.clock) << 16)) | (~here & clocks);
    pc = (here & record.pc) | (~here & pc);
  }
  // One record, in place of all.
  void put_alone(const Record& record) {
    thread = Four{record.thread};
    epoch = Four{record.epoch};
    clocks = Four{record.warp_clock | uint32_t(record.clock) << 16};
    pc = Four{record.pc};
  }
};

// The cells of 4096 bytes; a granule is as small as the smallest access so far, at most 4 bytes.
struct Page {
  int shift;
  std::vector<Cell> cells;
  // Of each: whether it is full of reads that are all needed, so that another one displaces one of them. BLOCKS, where
  // they are of several blocks; else the state of the block whose reads they are.
  std::vector<uint32_t> full;

  explicit Page(int granule_shift)
      : shift(granule_shift), cells(size_t(4096) >> granule_shift), full(size_t(4096) >> granule_shift) {}
  // What happened to bytes `from` to `to` of the page.
  void forget(uint64_t from, uint64_t to) {
    std::fill(cells.begin() + static_cast<ptrdiff_t>(from >> shift),
              cells.begin() + static_cast<ptrdiff_t>(((to - 1) >> shift) + 1), Cell());
    std::fill(full.begin() + static_cast<ptrdiff_t>(from >> shift),
              full.begin() + static_cast<ptrdiff_t>(((to - 1) >> shift) + 1), 0);
  }
  void refine(int to) {
    std::vector<Cell> finer(size_t(4096) >> to);
    for (size_t i = 0; i < finer.size(); ++i) finer[i] = cells[i >> (shift - to)];
    cells.swap(finer);
    shift = to;
    full.assign(cells.size(), 0);
  }
};

class Pages {
 public:
  // Of the page that was looked for last at each of so many numbers.
  struct Recent {
    uint64_t number = ~uint64_t(0);
    Cell* cells = nullptr;
    uint32_t* full = nullptr;
    int shift = 0;

    uint64_t granule(uint64_t address) const { return (address & 4095) >> shift; }
    // Whether all of an access lies in granules that are full, of one block in `state`, or of several if they count.
    bool is_full(uint64_t address, uint64_t size, uint32_t state, bool several) const {
      if (number != address >> 12 || (address & 4095) + size > 4096) return false;
      const uint64_t last = granule(address + size - 1);
      for (uint64_t i = granule(address); i <= last; ++i)
        if (full[i] != state && (full[i] != BLOCKS || !several)) return false;
      return true;
    }
  };
  const Recent& recent(uint64_t address) const { return recent_[(address >> 12) % RECENT]; }
  // Where the cell of an address is, in a page whose granules are no larger than asked for.
  inline __attribute__((always_inline)) const Recent& at(uint64_t address, int shift) {
    const Recent& recent = recent_[(address >> 12) % RECENT];
    if (__builtin_expect(recent.number != address >> 12 || recent.shift > shift, 0)) look_up(address >> 12, shift);
    return recent;
  }
  void clear() {
    pages_.clear();
    for (Recent& recent : recent_) recent = {};
  }
  // Forget what happened to one stretch of memory.
  void forget(uint64_t address, uint64_t bytes) {
    for (uint64_t start = address, end = address + bytes; start < end; start = (start | 4095) + 1) {
      const auto page = pages_.find(start >> 12);
      const uint64_t from = start & 4095, to = std::min<uint64_t>(4096, from + end - start);
      if (page != pages_.end()) page->second->forget(from, to);
    }
  }

 private:
  static constexpr uint64_t RECENT = 256;

  __attribute__((noinline)) void look_up(uint64_t number, int shift) {
    std::unique_ptr<Page>& page = pages_[number];
    if (!page) page = std::make_unique<Page>(shift);
    if (page->shift > shift) page->refine(shift);
    recent_[number % RECENT] = {number, page->cells.data(), page->full.data(), page->shift};
  }

  Recent recent_[RECENT];
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
};

// What one thread knows to be over, of other blocks and threads, because it acquired what they released.
struct Knowledge {
  std::unordered_map<uint32_t, uint32_t> blocks;   // block -> barriers of it that are over
  std::unordered_map<uint32_t, uint32_t> threads;  // thread -> fences of it that are over
  std::unordered_map<uint32_t, uint64_t> lanes;    // thread -> what it had done when its warp met: epoch, warp clock

  template <class Value>
  static void raise(std::unordered_map<uint32_t, Value>& map, uint32_t key, Value value) {
    Value& known = map[key];
    known = std::max(known, value);
  }
  static uint64_t moment(uint32_t epoch, uint16_t warp_clock) { return uint64_t(epoch & EPOCH) << 16 | warp_clock; }
  void join(const Knowledge& other) {
    for (const auto& [block, epoch] : other.blocks) raise(blocks, block, epoch);
    for (const auto& [thread, clock] : other.threads) raise(threads, thread, clock);
    for (const auto& [thread, moment] : other.lanes) raise(lanes, thread, moment);
  }
  bool covers(const Record& record) const {
    const auto block = blocks.find((record.thread - 1) >> 10);
    if (block != blocks.end() && (record.epoch & EPOCH) < block->second) return true;
    const auto lane = lanes.find(record.thread);
    if (lane != lanes.end() && moment(record.epoch, record.warp_clock) <= lane->second) return true;
    const auto thread = threads.find(record.thread);
    return thread != threads.end() && (record.clock & ~STORES) < static_cast<int>(thread->second);
  }
};

// Vector clocks of the lanes of one warp, since the last barrier of the block.
struct WarpClocks {
  uint16_t of[32][32];  // [lane][of which lane]

  void reset() {
    std::memset(of, 0, sizeof of);
    for (int lane = 0; lane < 32; ++lane) of[lane][lane] = 1;
  }
  void meet(uint32_t mask) {
    uint16_t joined[32] = {};
    for (int lane = 0; lane < 32; ++lane)
      if (mask >> lane & 1)
        for (int other = 0; other < 32; ++other) joined[other] = std::max(joined[other], of[lane][other]);
    for (int lane = 0; lane < 32; ++lane) {
      if (!(mask >> lane & 1)) continue;
      std::memcpy(of[lane], joined, sizeof joined);
      if (of[lane][lane] < 0xffff) ++of[lane][lane];
    }
  }
};

// Who wrote each granule of two bytes last.
struct Writer {
  uint32_t launch, block, thread, pc;
};
class Writers {
 public:
  uint32_t launches = 0;

  void note(uint64_t address, uint64_t bytes, const Writer& writer) {
    for (uint64_t granule = address >> 1; granule <= (address + bytes - 1) >> 1; ++granule) {
      const uint64_t number = granule >> 11;
      if (number != last_number_) {
        std::unique_ptr<Writer[]>& page = pages_[number];
        if (!page) page = std::make_unique<Writer[]>(2048);
        last_number_ = number;
        last_ = page.get();
      }
      last_[granule & 2047] = writer;
    }
  }
  const Writer* of(uint64_t address) const {
    const auto page = pages_.find(address >> 12);
    if (page == pages_.end()) return nullptr;
    const Writer& writer = page->second[address >> 1 & 2047];
    return writer.launch ? &writer : nullptr;
  }

 private:
  std::unordered_map<uint64_t, std::unique_ptr<Writer[]>> pages_;
  uint64_t last_number_ = ~uint64_t(0);
  Writer* last_ = nullptr;
};

}  // namespace shadow
