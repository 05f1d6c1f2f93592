// wgmma: products of a warpgroup's rows, which are formed when their group is waited for, a warp at a time.
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
  uint64_t pc = 0;
};

struct WarpProducts {
  std::deque<Product> under_way;
  uint32_t first = 0;                   // number of the oldest of them
  std::vector<uint32_t> groups;         // products begun before each one was closed
  std::deque<std::unique_ptr<Tile>> tiles;
  uint32_t first_tile = 0;
  std::vector<std::unique_ptr<Tile>> spare;
};

// A right operand as it was read and as numbers, [k][n]: the warps of a warpgroup read the same.
struct Operand {
  uint64_t descriptor = 0;
  int32_t n = 0, type = -1, along = 0;
  std::vector<unsigned char> raw;
  std::vector<uint32_t> words;
};

struct Products {
  std::vector<std::unique_ptr<WarpProducts>> warps;
  Operand operands[16];
};

// A thread has come to its end: its products have been waited for.
void check_products(const Fiber* self);

}  // namespace engine
