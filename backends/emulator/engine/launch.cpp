// Launches: blocks are spread over the cores, and each core runs the threads of one block, or of few, until they end.
#include <algorithm>
#include <cstring>
#include <thread>

#include "accesses.h"
#include "copies.h"
#include "fibers.h"
#include "mbarriers.h"
#include "memory.h"
#include "races.h"
#include "reports.h"

namespace engine {

// A bijection of the positions of a grid of clusters, so that they are taken in another order without a table.
uint64_t Launch::order(uint64_t position) const {
  if (options.order == 1) return clusters - 1 - position;
  if (options.order != 2 || clusters < 2) return position;
  int bits = 2;
  while ((uint64_t(1) << bits) < clusters) bits += 2;
  const int half = bits / 2;
  const uint64_t low = (uint64_t(1) << half) - 1;
  do {  // a Feistel network on an even number of bits, walked until it falls within the grid
    uint64_t left = position >> half, right = position & low;
    for (int round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (mix(right ^ (options.seed * 4 + round) * 0x10001) & low);
      left = right;
      right = next;
    }
    position = left << half | right;
  } while (position >= clusters);
  return position;
}

namespace {

void retire(Worker* w, std::unique_ptr<Block> block) {
  if (!w->launch->failed) finish_stores(block.get());
  const auto& all = block->cluster->blocks;
  const auto of_this = [&](const Transfer& t) { return std::find(all.begin(), all.end(), t.block) != all.end(); };
  w->transfers.erase(std::remove_if(w->transfers.begin(), w->transfers.end(), of_this), w->transfers.end());
  clear(w, block.get());
  w->spare.push_back(std::move(block));
}

// Makes one block ready; false where there is no memory.
bool admit(Worker* w, const uint32_t* place, const std::shared_ptr<Cluster>& cluster) {
  Launch* launch = w->launch;
  const uint64_t number =
      place[0] + uint64_t(launch->grid[0]) * (place[1] + uint64_t(launch->grid[1]) * place[2]);
  std::unique_ptr<Block> block;
  if (!w->spare.empty()) {
    block = std::move(w->spare.back());
    w->spare.pop_back();
  } else {
    block = std::make_unique<Block>();
    block->fibers.resize(launch->threads);
    block->arena = take_arena();
    if (!block->arena) {
      fault("no memory for the shared memory of another block", 0);
      return false;
    }
    block->states = reinterpret_cast<uint8_t*>(block->arena + ARENA);
  }
  block->number = number;
  std::copy(place, place + 3, block->place);
  block->cluster = cluster;
  block->rank = static_cast<uint32_t>(cluster->blocks.size());
  block->products.reset();
  cluster->blocks.push_back(block.get());
  cluster->running += launch->threads;
  cluster->missing += launch->threads;
  block->index = block->place[0] | uint64_t(block->place[1]) << 32 | uint64_t(block->place[2]) << 48;
  block->arrived = block->done = 0;
  block->released = block->moment = 0;
  for (Named& named : block->named) named = {};
  block->warps.assign((launch->threads + 31) / 32, {});
  if (launch->threads % 32) block->warps.back().gone = ~0u << launch->threads % 32;
  block->fenced = false;
  block->count = 0, block->all = 1, block->any = 0;
  if (!launch->races) block->stages.reset();
  else if (!block->stages) block->stages = std::make_unique<Stages>();
  if (block->stages) block->stages->clear();
  allocate(block.get(), nullptr, launch->shared_bytes, 1024);
  block->known.reset();
  if (launch->races) {
    block->clocks.resize((launch->threads + 31) / 32);
    for (shadow::WarpClocks& clocks : block->clocks) clocks.reset();
    reorder(w, block.get());
  }

  const uint64_t needed = (w->resident.size() + 1) * launch->threads + 1;
  if (w->ring.size() < needed) {
    uint64_t size = 64;
    while (size < needed) size *= 2;
    std::vector<Fiber*> ring(size);
    uint64_t count = 0;
    while (!w->empty()) ring[count++] = w->pop();
    w->ring.swap(ring);
    w->head = 0;
    w->tail = count;
  }
  w->random = mix(launch->options.seed ^ mix(number));
  w->scratch.clear();
  uint32_t x = 0, y = 0, z = 0;
  for (uint32_t i = 0; i < launch->threads; ++i) {
    Fiber& fiber = block->fibers[i];
    fiber.block = block.get();
    fiber.number = i;
    fiber.index = x | uint64_t(y) << 32 | uint64_t(z) << 48;
    fiber.started = false;
    fiber.polled = 0;
    fiber.copies.clear();
    fiber.groups = 0;
    fiber.stores.clear();
    fiber.store_groups = 0;
    fiber.cluster_arrivals = fiber.cluster_waits = 0;
    fiber.products = fiber.tiles = fiber.product_groups = fiber.product_fences = 0;
    fiber.fences = fiber.fenced_epoch = fiber.proxied = 0;
    fiber.fenced = false;
    fiber.known.reset();
    fiber.suspect.address = 0;
    if (++x == launch->block[0]) {
      x = 0;
      if (++y == launch->block[1]) y = 0, ++z;
    }
    w->scratch.push_back(&fiber);
  }
  arrange(w, w->scratch);
  w->resident.push_back(std::move(block));
  return true;
}

// Makes the blocks of the next cluster ready; false where there is none.
bool admit(Worker* w) {
  Launch* launch = w->launch;
  const uint64_t position = launch->next.fetch_add(1);
  if (position >= launch->clusters) return false;
  const uint64_t number = launch->order(position);
  const uint32_t *size = launch->cluster, across = launch->grid[0] / size[0], down = launch->grid[1] / size[1];
  auto cluster = std::make_shared<Cluster>();
  cluster->place[0] = static_cast<uint32_t>(number % across);
  cluster->place[1] = static_cast<uint32_t>(number / across % down);
  cluster->place[2] = static_cast<uint32_t>(number / across / down);
  for (uint32_t z = 0; z < size[2]; ++z)
    for (uint32_t y = 0; y < size[1]; ++y)
      for (uint32_t x = 0; x < size[0]; ++x) {
        const uint32_t place[3] = {cluster->place[0] * size[0] + x, cluster->place[1] * size[1] + y,
                                   cluster->place[2] * size[2] + z};
        if (!admit(w, place, cluster)) return false;
      }
  return true;
}

void run(Launch* launch) {
  auto owned = std::make_unique<Worker>();
  Worker* w = owned.get();
  Worker* before = worker;
  w->launch = launch;
  w->stack_bytes = launch->options.stack_bytes;
  w->watched = launch->races || launch->writers;
  w->shared_bytes = w->watched ? 0 : ARENA;
  worker = w;
  if (launch->options.cooperative)
    while (!launch->failed && admit(w)) {}
  while (!launch->failed) {
    if (w->wants_block) {
      w->wants_block = false;
      admit(w);
    }
    if (w->empty()) {
      const auto goes_on = [&](const std::unique_ptr<Block>& block) { return block->cluster->running > 0; };
      auto unfinished = std::partition(w->resident.begin(), w->resident.end(), goes_on);
      for (auto done = unfinished; done != w->resident.end(); ++done) retire(w, std::move(*done));
      w->resident.erase(unfinished, w->resident.end());
      if (!w->resident.empty()) {
        if (!land(w) && !gather(w) && !wake(w)) {
          stuck(w);
          break;
        }
        if (w->empty()) continue;
      } else if (!admit(w)) {
        break;
      }
    }
    Fiber* fiber = w->pop();
    if (!fiber->started && !equip(w, fiber, take_stack(w))) {
      w->current = nullptr;
      fault("no memory for the stack of a thread", 0);
      break;
    }
    enter(w, fiber);
    change(w->main, fiber->context);
    w->current = nullptr;
  }
  for (auto& block : w->resident) retire(w, std::move(block));
  give_back(w);
  launch->atomics += w->atomics;
  release(w->main);
  worker = before;
  --launch->active;
}

}  // namespace
}  // namespace engine

using namespace engine;

extern "C" {

TS_EXPORT int ts_launch(
    ts_entry entry, void** arguments, const uint32_t* grid, const uint32_t* block, uint64_t shared_bytes,
    const ts_range* ranges, int32_t range_count, const ts_options* options, void* writers, ts_report* report) {
  Launch launch;
  launch.entry = entry;
  launch.arguments = arguments;
  std::memcpy(launch.grid, grid, sizeof launch.grid);
  std::memcpy(launch.block, block, sizeof launch.block);
  launch.packed_grid = grid[0] | uint64_t(grid[1]) << 32 | uint64_t(grid[2]) << 48;
  launch.packed_block = block[0] | uint64_t(block[1]) << 32 | uint64_t(block[2]) << 48;
  launch.blocks = uint64_t(grid[0]) * grid[1] * grid[2];
  for (int axis = 0; axis < 3; ++axis) launch.cluster[axis] = std::max<uint32_t>(1, options->cluster[axis]);
  launch.clusters = launch.blocks / (launch.cluster[0] * launch.cluster[1] * launch.cluster[2]);
  launch.threads = block[0] * block[1] * block[2];
  launch.shared_bytes = shared_bytes;
  launch.ranges.assign(ranges, ranges + range_count);
  launch.options = *options;
  launch.report = report;
  std::unique_ptr<Races> races;
  if (options->races) {
    races = std::make_unique<Races>();
    launch.races = races.get();
  }
  launch.writers = static_cast<shadow::Writers*>(writers);
  if (launch.writers) ++launch.writers->launches;
  std::memset(report, 0, sizeof *report);
  use_stacks_of(options->stack_bytes);
  uint64_t workers = std::max(1, options->workers);
  if (options->cooperative || launch.races || launch.writers) workers = 1;
  workers = std::min(workers, launch.clusters);
  launch.active = static_cast<int>(workers);
  std::vector<std::thread> threads;
  for (uint64_t i = 1; i < workers; ++i) threads.emplace_back(run, &launch);
  run(&launch);
  for (std::thread& thread : threads) thread.join();
  report->atomics = launch.atomics;
  return report->kind;
}

TS_EXPORT void* ts_writers_new() { return new shadow::Writers; }
TS_EXPORT void ts_writers_delete(void* writers) { delete static_cast<shadow::Writers*>(writers); }
TS_EXPORT int ts_writers_of(void* writers, uint64_t address, uint32_t* out) {
  const shadow::Writer* writer = static_cast<shadow::Writers*>(writers)->of(address);
  if (writer) std::memcpy(out, writer, sizeof *writer);
  return writer != nullptr;
}

TS_EXPORT uint64_t ts_report_bytes() { return sizeof(ts_report); }

}  // extern "C"
