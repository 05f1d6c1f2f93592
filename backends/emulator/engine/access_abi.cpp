// What code that no sanitizer instruments calls before an access: `pc` is any number that the report hands back.
#include "accesses.h"
#include "races.h"
#include "reports.h"

using namespace engine;

extern "C" {

TS_EXPORT void ts_check(const void* pointer, uint64_t size, int access, uint64_t alignment, uint64_t pc) {
  Worker* w = worker;
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  if (!w || !w->current) return;
  const bool exchanges = access == EXCHANGE;
  if (exchanges) access = ATOMIC;
  if (address & (alignment - 1)) return misaligned(w, address, size, access, alignment, pc);
  if (exchanges) begun(w, address, size);
  const bool meets = access == ATOMIC && w->launch->races;
  if (meets) synchronise(w, address, true, false);
  slow(w, address, size, access, pc);
  if (meets) synchronise(w, address, false, true);
}

#define TS_NUMBERED(bytes, Word)                                                                                      \
  TS_EXPORT void ts_read##bytes(const void* p, uint64_t pc) {                                                         \
    const uint64_t address = reinterpret_cast<uint64_t>(p);                                                           \
    if (__builtin_expect(address & (bytes - 1), 0)) return misaligned(worker, address, bytes, READ, bytes, pc);       \
    check<Word>(address, READ, pc);                                                                                   \
  }                                                                                                                   \
  TS_EXPORT void ts_write##bytes(void* p, uint64_t pc) {                                                              \
    if (__builtin_expect(here(p) & (bytes - 1), 0)) return misaligned(worker, here(p), bytes, WRITE, bytes, pc);      \
    check<Word>(here(p), WRITE, pc);                                                                                  \
  }
TS_NUMBERED(1, uint8_t)
TS_NUMBERED(2, uint16_t)
TS_NUMBERED(4, uint32_t)
TS_NUMBERED(8, uint64_t)
TS_NUMBERED(16, Vector16)

TS_EXPORT void ts_volatile(void* p, uint64_t size, int access, uint64_t pc) {
  access == READ ? polled(here(p), size, pc) : signalled(here(p), size, pc);
}

TS_EXPORT void ts_out_of_range(const void* data, int64_t index, uint64_t extent, int axis, uint64_t pc) {
  fail(TS_OUT_OF_BOUNDS, [&](ts_report& report) {
    place(report.here, worker->current, pc);
    const uint64_t address = reinterpret_cast<uint64_t>(data);
    if (address - worker->stack_low < worker->stack_bytes) report.region_kind = TS_STACK;
    else describe_nearest(worker, report, address);
    report.address = static_cast<uint64_t>(index);
    report.size = extent;
    report.item = static_cast<uint64_t>(axis);
    std::strncpy(report.text, "index", sizeof report.text - 1);
  });
}

}  // extern "C"
