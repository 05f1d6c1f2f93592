; What the translated code of a kernel calls: NVVM's intrinsics, under the names that they are given here (tsn.*).
; prelude.py adds the registers and the atomics, which are many and alike. The number 6073470532629640704 stands for the
; line of a call until that is known (lines.SITE). Collectives must neither be merged nor moved to where fewer threads
; come: convergent, nomerge.
declare i64 @ts_thread_index() memory(none) nounwind willreturn
declare i64 @ts_block_index() memory(none) nounwind willreturn
declare i64 @ts_block_dim() memory(none) nounwind willreturn
declare i64 @ts_grid_dim() memory(none) nounwind willreturn
declare i32 @ts_lane() memory(none) nounwind willreturn
declare void @ts_fence() nounwind
declare i64 @ts_clock() nounwind
declare void @tsn_count(ptr, i64) nounwind
declare i32 @tsn_barrier(i32, i32, i64) convergent nomerge nounwind
declare void @tsn_syncwarp(i32, i64) convergent nomerge nounwind
declare i32 @tsn_activemask(i64) convergent nomerge nounwind
declare void @tsn_syncgrid(i64) convergent nomerge nounwind
declare void @tsn_sleep(i32) convergent nomerge nounwind
declare i64 @tsn_shuffle(i32, i32, i32, i32, i32, i64) convergent nomerge nounwind
declare i64 @tsn_vote(i32, i32, i32, i64) convergent nomerge nounwind
declare i64 @tsn_match(i32, i32, i64, i64) convergent nomerge nounwind
declare void @ts_out_of_range(ptr, i64, i64, i32, i64) cold nomerge noreturn nounwind
declare void @tsn_raise(i32) cold noreturn nounwind
declare i32 @tsn_vprintf(ptr, ptr) nounwind
define linkonce_odr i32 @"tsn.read.ptx.sreg.warpsize"() alwaysinline {
  ret i32 32
}
define linkonce_odr i32 @"tsn.read.ptx.sreg.laneid"() alwaysinline {
  %r = call i32 @ts_lane()
  ret i32 %r
}
define linkonce_odr void @"tsn.barrier0"() alwaysinline convergent {
  %r = call i32 @tsn_barrier(i32 0, i32 0, i64 6073470532629640704)
  ret void
}
define linkonce_odr i32 @"tsn.barrier0.popc"(i32 %p) alwaysinline convergent {
  %r = call i32 @tsn_barrier(i32 1, i32 %p, i64 6073470532629640704)
  ret i32 %r
}
define linkonce_odr i32 @"tsn.barrier0.and"(i32 %p) alwaysinline convergent {
  %r = call i32 @tsn_barrier(i32 2, i32 %p, i64 6073470532629640704)
  ret i32 %r
}
define linkonce_odr i32 @"tsn.barrier0.or"(i32 %p) alwaysinline convergent {
  %r = call i32 @tsn_barrier(i32 3, i32 %p, i64 6073470532629640704)
  ret i32 %r
}
define linkonce_odr void @"tsn.bar.warp.sync"(i32 %m) alwaysinline convergent {
  call void @tsn_syncwarp(i32 %m, i64 6073470532629640704)
  ret void
}
define linkonce_odr void @"tsn.membar.cta"() alwaysinline {
  call void @ts_fence()
  ret void
}
define linkonce_odr void @"tsn.membar.gl"() alwaysinline {
  call void @ts_fence()
  ret void
}
define linkonce_odr void @"tsn.membar.sys"() alwaysinline {
  call void @ts_fence()
  ret void
}
define linkonce_odr {i32, i1} @"tsn.pair"(i64 %r) alwaysinline {
  %low = trunc i64 %r to i32
  %high = lshr i64 %r, 32
  %flag = trunc i64 %high to i1
  %half = insertvalue {i32, i1} undef, i32 %low, 0
  %all = insertvalue {i32, i1} %half, i1 %flag, 1
  ret {i32, i1} %all
}
define linkonce_odr {i32, i1} @"tsn.shfl.sync.i32"(i32 %m, i32 %mode, i32 %a, i32 %b, i32 %c)
    alwaysinline convergent {
  %r = call i64 @tsn_shuffle(i32 %m, i32 %mode, i32 %a, i32 %b, i32 %c, i64 6073470532629640704)
  %p = call {i32, i1} @"tsn.pair"(i64 %r)
  ret {i32, i1} %p
}
define linkonce_odr {i32, i1} @"tsn.vote.sync"(i32 %m, i32 %mode, i1 %p) alwaysinline convergent {
  %w = zext i1 %p to i32
  %r = call i64 @tsn_vote(i32 %m, i32 %mode, i32 %w, i64 6073470532629640704)
  %q = call {i32, i1} @"tsn.pair"(i64 %r)
  ret {i32, i1} %q
}
define linkonce_odr i32 @"tsn.match.any.sync.i32"(i32 %m, i32 %v) alwaysinline convergent {
  %w = zext i32 %v to i64
  %r = call i64 @tsn_match(i32 %m, i32 0, i64 %w, i64 6073470532629640704)
  %t = trunc i64 %r to i32
  ret i32 %t
}
define linkonce_odr i32 @"tsn.match.any.sync.i64"(i32 %m, i64 %v) alwaysinline convergent {
  %r = call i64 @tsn_match(i32 %m, i32 0, i64 %v, i64 6073470532629640704)
  %t = trunc i64 %r to i32
  ret i32 %t
}
define linkonce_odr {i32, i1} @"tsn.match.all.sync.i32"(i32 %m, i32 %v) alwaysinline convergent {
  %w = zext i32 %v to i64
  %r = call i64 @tsn_match(i32 %m, i32 1, i64 %w, i64 6073470532629640704)
  %p = call {i32, i1} @"tsn.pair"(i64 %r)
  ret {i32, i1} %p
}
define linkonce_odr {i32, i1} @"tsn.match.all.sync.i64"(i32 %m, i64 %v) alwaysinline convergent {
  %r = call i64 @tsn_match(i32 %m, i32 1, i64 %v, i64 6073470532629640704)
  %p = call {i32, i1} @"tsn.pair"(i64 %r)
  ret {i32, i1} %p
}
define linkonce_odr i64 @cudaCGGetIntrinsicHandle(i32 %k) alwaysinline {
  ret i64 1
}
define linkonce_odr i32 @cudaCGSynchronize(i64 %g, i32 %f) alwaysinline convergent {
  call void @tsn_syncgrid(i64 6073470532629640704)
  ret i32 0
}
define linkonce_odr i32 @vprintf(ptr %f, ptr %a) alwaysinline {
  %r = call i32 @tsn_vprintf(ptr %f, ptr %a)
  ret i32 %r
}
; Arrays that a kernel is given are counted by nobody, those that it makes by the runtime (support.cpp).
define linkonce_odr void @NRT_incref(ptr %m) alwaysinline {
  %given = icmp eq ptr %m, null
  br i1 %given, label %done, label %made
made:
  call void @tsn_count(ptr %m, i64 1)
  br label %done
done:
  ret void
}
define linkonce_odr void @NRT_decref(ptr %m) alwaysinline {
  %given = icmp eq ptr %m, null
  br i1 %given, label %done, label %made
made:
  call void @tsn_count(ptr %m, i64 -1)
  br label %done
done:
  ret void
}
