// wgmma: products of a warpgroup's rows, which are formed when one of its warps waits for their group; each warp gets
// its sums when it waits itself.
#pragma once
#include <deque>

#include "state.h"

namespace engine {

constexpr uint32_t COLUMNS = 256;  // of an accumulator, at most
// In accumulators whose products have not been waited for. As float a signalling NaN: arithmetic leaves another one.
constexpr uint32_t PENDING = 0x7f97a5c3;

// The accumulators of a warp: 16 rows.
struct Tile {
  uint32_t words[16][COLUMNS];       // floats, or integers
  uint32_t* places[32][COLUMNS / 2];  // of each lane
  uint32_t count = 0;                 // words of a lane
  uint32_t number = 0, last = 0;      // the product that used them last
  int32_t type = 0;
};

struct Product {
  ts_wgmma_form form;
  uint64_t a = 0, b = 0;  // descriptors
  bool left = false;      // a is in registers
  uint32_t registers[32][4];
  Tile* tile = nullptr;
  uint32_t lanes = 0;  // that have begun it
  uint64_t pc = 0;
};

struct WarpProducts {
  std::deque<Product> under_way;        // whose sums have not been handed out
  uint32_t first = 0;                   // number of the oldest of them
  std::vector<uint32_t> groups;         // products begun before each one was closed
  std::deque<std::unique_ptr<Tile>> tiles;
  uint32_t first_tile = 0;
  std::vector<std::unique_ptr<Tile>> spare;
};

struct Products {
  std::vector<std::unique_ptr<WarpProducts>> warps;
  // The operands of the product that is formed: as they were read, and as numbers, [m][k] and [k][n].
  unsigned char raw[COLUMNS * 32];
  uint32_t left[64 * 32], right[32 * COLUMNS];
  uint32_t formed[8] = {};  // products of each warpgroup
  uint32_t news[8] = {};    // times that a warp of it had begun all of a group
};

// A thread has come to its end: its products have been waited for.
void check_products(const Fiber* self);
// The warp of a waiting one's warpgroup that has yet to begin what it waits for.
uint32_t missing_warp(const Fiber* fiber);

}  // namespace engine
