#include "clusters.h"

#include <cstdio>

#include "accesses.h"
#include "fibers.h"
#include "races.h"
#include "reports.h"

namespace engine {

Block* owner(Worker* w, uint64_t address) {
  if (address - here(w->block->arena) < ARENA) return w->block;
  for (Block* block : w->block->cluster->blocks)
    if (address - here(block->arena) < ARENA) return block;
  return nullptr;
}

namespace {

// The cluster's threads go on if all of them have come to its barrier.
void pass(Worker* w, Cluster* cluster) {
  if (cluster->missing || !cluster->running) return;
  ++cluster->phase;
  cluster->missing = cluster->running;
  if (w->launch->races) share_in_cluster(w, cluster);
  w->scratch.clear();
  for (Block* block : cluster->blocks) {
    ++block->moment;
    for (Fiber& fiber : block->fibers)
      if (fiber.state == AT_CLUSTER) w->scratch.push_back(&fiber);
  }
  arrange(w, w->scratch);
}

}  // namespace

void leave_cluster(Worker* w, Fiber* self) {
  Cluster* cluster = self->block->cluster.get();
  --cluster->running;
  if (self->cluster_arrivals == cluster->phase) --cluster->missing;
  pass(w, cluster);
}

}  // namespace engine

using namespace engine;

extern "C" {

TS_EXPORT uint32_t ts_cluster_rank() { return worker->block->rank; }

TS_EXPORT uint64_t ts_cluster_dim() {
  const uint32_t* dims = worker->launch->cluster;
  return dims[0] | uint64_t(dims[1]) << 32 | uint64_t(dims[2]) << 48;
}

TS_EXPORT uint64_t ts_cluster_index() {
  const uint32_t* place = worker->block->cluster->place;
  return place[0] | uint64_t(place[1]) << 32 | uint64_t(place[2]) << 48;
}

TS_EXPORT uint32_t ts_cluster_address(uint32_t address, uint32_t rank, uint64_t pc) {
  if (rank >= worker->block->cluster->blocks.size()) {
    char text[100];
    std::snprintf(text, sizeof text, "rank %u of a cluster of %zu blocks", rank, worker->block->cluster->blocks.size());
    fault(text, pc);
  }
  return (address & ((1u << RANK) - 1)) | rank << RANK;
}

TS_EXPORT void* ts_cluster_pointer(const void* pointer, uint32_t rank, uint64_t pc) {
  const uint32_t address = static_cast<uint32_t>(ts_shared_address(pointer));
  if (!address) fault("the place of an address in another block of the cluster: it is not in shared memory", pc);
  return ts_shared_memory(ts_cluster_address(address, rank, pc));
}

TS_EXPORT void ts_cluster_arrive(uint64_t pc) {
  Worker* w = worker;
  Fiber* self = w->current;
  Cluster* cluster = w->block->cluster.get();
  settle(w);
  if (self->cluster_arrivals != self->cluster_waits) fault("arrives at the cluster's barrier twice without a wait", pc);
  ++self->cluster_arrivals;
  --cluster->missing;
  pass(w, cluster);
}

TS_EXPORT void ts_cluster_wait(int line, const char* file) {
  Worker* w = worker;
  Fiber* self = w->current;
  self->line = line;
  self->file = file;
  if (self->cluster_arrivals == self->cluster_waits) {
    fail(TS_FAULT, [&](ts_report& report) {
      waits(report.here, self);
      std::snprintf(report.text, sizeof report.text, "waits at the cluster's barrier without having arrived");
    });
  }
  ++self->cluster_waits;
  if (w->block->cluster->phase >= self->cluster_arrivals) return;
  self->state = AT_CLUSTER;
  leave(w, self);
}

}  // extern "C"
