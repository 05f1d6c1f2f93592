// What `-fsanitize=alignment,bounds` calls when a check made in line has failed.
#include "accesses.h"
#include "reports.h"

using namespace engine;

namespace {

struct Location {
  const char* file;
  uint32_t line, column;
};
struct TypeName {
  uint16_t kind, info;
  char name[1];
};
struct Mismatch {
  Location at;
  const TypeName* type;
  uint8_t log_alignment, access;
};
struct Overrun {
  Location at;
  const TypeName *array, *index;
};

}  // namespace

extern "C" {

TS_EXPORT void __ubsan_handle_type_mismatch_v1(Mismatch* data, uint64_t address) {
  Worker* w = worker;
  if (!w || !w->current) return;
  const uint64_t alignment = uint64_t(1) << data->log_alignment;
  if (!(address & (alignment - 1))) return;
  const uint64_t pc = TS_RETURN_ADDRESS;
  fail(TS_MISALIGNED, [&](ts_report& report) {
    place(report.here, w->current, pc, data->access == 1 ? WRITE : READ);
    report.address = address;
    report.size = 1;
    report.mask = static_cast<uint32_t>(alignment);
    describe_nearest(w, report, address);
    std::strncpy(report.text, data->type->name, sizeof report.text - 1);
  });
}

TS_EXPORT void __ubsan_handle_out_of_bounds(Overrun* data, uint64_t index) {
  Worker* w = worker;
  if (!w || !w->current) return;
  const uint64_t pc = TS_RETURN_ADDRESS;
  fail(TS_OUT_OF_BOUNDS, [&](ts_report& report) {
    place(report.here, w->current, pc);
    report.region_kind = -1;
    const uint16_t info = data->index->info;  // bit 0: signed; the others: log2 of the width
    report.offset = static_cast<int64_t>(index);
    if ((info & 1) && info >> 1 == 5) report.offset = static_cast<int32_t>(index);
    std::strncpy(report.text, data->array->name, sizeof report.text - 1);
  });
}

}  // extern "C"
