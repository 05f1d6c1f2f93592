#include "stages.h"

#include <algorithm>
#include <cstring>

#include "reports.h"
#include "state.h"

namespace engine {
namespace {

constexpr uint32_t LEAST = 32;  // granules of what counts as a stage
constexpr uint32_t LOST = 2;    // one may be loaded in vain, at the end of a loop
constexpr size_t REST = 2;      // stages that show how often one is read

uint32_t array_of(const Block* block, uint64_t offset) {
  for (uint32_t i = 0; i < block->arrays.size(); ++i)
    if (offset - block->arrays[i].offset < block->arrays[i].bytes) return i;
  return 0;
}

// The stage that the instruction at `pc` fills now.
uint32_t filled(Block* block, Stages& stages, uint32_t pc, uint64_t offset) {
  Stages::Recent& recent = stages.recent[(pc ^ pc >> 6) % 64];
  if (recent.pc == pc && recent.moment == block->moment && recent.stage) return recent.stage;
  Filler& filler = stages.fillers[pc];
  if (!filler.stages || stages.all[filler.stage].moment != block->moment) {
    filler.stage = static_cast<uint32_t>(stages.all.size());
    ++filler.stages;
    Stage stage;
    stage.pc = pc;
    stage.moment = block->moment;
    stage.array = array_of(block, offset);
    stages.all.push_back(stage);
  }
  recent = {pc, block->moment, filler.stage};
  return filler.stage;
}

// The whole of a stage was stored over by the instruction that had filled it, and nobody has read it.
void lose(Stages& stages, uint32_t number) {
  const Stage& stage = stages.all[number];
  if (stage.granules < LEAST) return;
  Filler& filler = stages.fillers[stage.pc];
  if (!filler.lost++) filler.first_lost = number;
  if (stage.array >= stages.again.size()) return;
  const Stages::Again& again = stages.again[stage.array];
  if (again.younger_than <= number || again.stage >= number) return;
  const bool own = stages.all[again.stage].pc == stage.pc;
  if (!own && stages.all[again.stage].granules != stage.granules) return;  // no other stage of the same buffer
  ++filler.stale;
  filler.own += own;
  filler.reader = again.reader;
  filler.thread = again.thread;
  filler.again = stages.all[again.stage].pc;
}

void mark_read(Stages& stages, uint32_t number) {
  Stage& stage = stages.all[number];
  if (stage.read) return;
  Filler& filler = stages.fillers[stage.pc];
  filler.last_read = std::max(filler.last_read, number);
  stage.read = true;
}

void accuse(Worker* w, Block* block, uint32_t filler, const Stage& lost, uint32_t times, uint32_t reader,
            uint32_t thread) {
  const uint64_t module = w->launch->options.module;
  fail(TS_STALE, [&](ts_report& report) {
    place(report.here, w->current, module + filler, WRITE);
    place(report.there, &block->fibers[thread], module + reader, READ);
    describe_nearest(w, report, reinterpret_cast<uint64_t>(block->arena) + block->arrays[lost.array].offset);
    report.size = uint64_t(4) * lost.granules;
    report.mask = times;
  });
}

// Of the stages of one instruction the last was left unread, and one of the others read oftener than all the rest, each
// of which was read at the same number of moments.
void judge_last(Worker* w, Block* block, uint32_t pc, const std::vector<const Stage*>& of) {
  const Stage& last = *of.back();
  if (of.size() < REST + 2 || last.read || last.granules < LEAST) return;
  const auto fewer = [](const Stage* one, const Stage* other) { return one->moments < other->moments; };
  const auto [least, most] = std::minmax_element(of.begin(), of.end() - 1, fewer);
  const Stage& again = **most;
  if (!again.shared || again.read_at == ~0u || again.read_at <= last.moment || again.granules != last.granules) return;
  for (auto one = of.begin(); one != of.end() - 1; ++one)
    if (one != most && ((*one)->moments != (*least)->moments || !(*one)->moments)) return;
  if (again.moments > (*least)->moments) accuse(w, block, pc, last, 0, again.reader, again.thread);
}

}  // namespace

void Stages::clear() {
  all.assign(1, Stage());
  fillers.clear();
  again.clear();
  for (Recent& one : recent) one = {};
}

void follow_stages(Worker* w, Block* block, uint64_t offset, uint64_t size, int access, uint64_t pc) {
  Stages& stages = *block->stages;
  const uint32_t place = static_cast<uint32_t>(pc - w->launch->options.module);
  const uint64_t first = offset / 4, last = (offset + size - 1) / 4;
  if (access == WRITE) {
    const uint32_t mine = filled(block, stages, place, offset);
    for (uint64_t i = first; i <= last; ++i) {
      Stages::Granule& granule = stages.granules[i];
      granule.thread = static_cast<uint16_t>(w->current->number);
      const uint32_t before = granule.stage;
      if (before == mine) continue;
      granule.stage = mine;
      granule.told = 0;
      ++stages.all[mine].granules;
      ++stages.all[mine].left;
      if (!before) continue;
      Stage& over = stages.all[before];
      over.mixed |= over.pc != place;
      if (--over.left == 0 && !over.read && !over.mixed) lose(stages, before);
    }
    return;
  }
  const uint64_t bit = uint64_t(1) << ((place * 0x9e3779b1u) >> 26);
  const uint32_t tells = telling(pc, block->moment);
  for (uint64_t i = first; i <= last; ++i) {
    Stages::Granule& granule = stages.granules[i];
    const uint32_t number = granule.stage;
    if (!number || granule.told == tells) continue;
    Stage& stage = stages.all[number];
    if (stage.read_at != block->moment) {
      stage.read_at = block->moment;
      ++stage.moments;
      stage.reader = place;
      stage.thread = w->current->number;
      stage.before |= stage.readers;
      stage.readers = 0;
      mark_read(stages, number);
    }
    stage.readers |= bit;
    stage.shared |= granule.thread != w->current->number;
    const bool again = stage.before & bit;
    if (again && granule.thread == w->current->number) continue;
    granule.told = tells;
    if (!again || stage.granules < LEAST) continue;
    if (stages.again.size() <= stage.array) stages.again.resize(stage.array + 1);
    stages.again[stage.array] = {static_cast<uint32_t>(stages.all.size()), number, place, w->current->number};
  }
}

void take_stages(Block* block, uint64_t offset, uint64_t size) {
  Stages& stages = *block->stages;
  for (uint64_t i = offset / 4; i < (offset + size) / 4; ++i)
    if (const uint32_t number = stages.granules[i].stage) mark_read(stages, number);
}

void judge_stages(Worker* w, Block* block) {
  const Stages& stages = *block->stages;
  std::unordered_map<uint32_t, std::vector<const Stage*>> of;
  for (const Stage& stage : stages.all)
    if (stage.granules && stages.fillers.at(stage.pc).stages > REST) of[stage.pc].push_back(&stage);
  for (const auto& [pc, numbered] : of) {
    const Filler& filler = stages.fillers.at(pc);
    if (!filler.lost) judge_last(w, block, pc, numbered);
    if (filler.lost < LOST || filler.stale != filler.lost) continue;
    if (filler.last_read > filler.first_lost && !filler.own) continue;
    accuse(w, block, pc, stages.all[filler.first_lost], filler.lost, filler.reader, filler.thread);
  }
}

}  // namespace engine
