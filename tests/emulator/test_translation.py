"""Inline PTX as C++: what each instruction becomes, and which are not known."""

import re

import pytest

from touchstone.backends.emulator import ptx

# `r`: 32 bits, `d`: 64, `h`: 16, `f`: float32, `x`: float64, `p`: predicates. Names are without their namespaces.
MADE = {  # by instruction
    "add.s32 r0, r1, r2": "{ set(r0, cast<int32_t>(as<int32_t>(r1) + as<int32_t>(r2))); }",
    "sub.u64 d0, d1, 4": "{ set(d0, cast<uint64_t>(as<uint64_t>(d1) - cast<uint64_t>(4ll))); }",
    "xor.b32 r0, r1, 0x1F": "{ set(r0, cast<uint32_t>(as<uint32_t>(r1) ^ cast<uint32_t>(0x1Fll))); }",
    "and.pred p0, p1, p2": "{ set(p0, cast<bool>(as<bool>(p1) & as<bool>(p2))); }",
    "or.b16 h0, h1, h2": "{ set(h0, cast<uint16_t>(as<uint16_t>(h1) | as<uint16_t>(h2))); }",
    "add.sat.f32 f0, f1, f2": "{ set(f0, __saturatef(cast<float>(as<float>(f1) + as<float>(f2)))); }",
    "add.rn.f32 f0, f1, 0f3F800000":
        "{ set(f0, cast<float>(as<float>(f1) + as<float>(bit_cast<float>(0x3F800000u)))); }",
    "min.s32 r0, r1, -3": "{ set(r0, min_(as<int32_t>(r1), cast<int32_t>(-3ll))); }",
    "max.f64 x0, x1, 0d3FF0000000000000":
        "{ set(x0, max_(as<double>(x1), as<double>(bit_cast<double>(0x3FF0000000000000ull)))); }",
    "div.rn.f32 f0, f1, 1.5": "{ set(f0, div_(as<float>(f1), cast<float>(1.5))); }",
    "rem.u32 r0, r1, 7U": "{ set(r0, rem_(as<uint32_t>(r1), cast<uint32_t>(7U))); }",
    "mul.lo.u32 r0, r1, r2": "{ set(r0, cast<uint32_t>((as<uint32_t>(r1) * as<uint32_t>(r2)))); }",
    "mul.hi.s32 r0, r1, r2": "{ set(r0, cast<int32_t>(hi(as<int32_t>(r1), as<int32_t>(r2)))); }",
    "mul.wide.u32 d0, r1, r2": "{ set(d0, wide(as<uint32_t>(r1), as<uint32_t>(r2))); }",
    "mul.f32 f0, f1, f2": "{ set(f0, cast<float>((as<float>(f1) * as<float>(f2)))); }",
    "mul.sat.f32 f0, f1, f2": "{ set(f0, __saturatef(cast<float>((as<float>(f1) * as<float>(f2))))); }",
    "mad.lo.s32 r0, r1, r2, r3":
        "{ set(r0, cast<int32_t>(((as<int32_t>(r1) * as<int32_t>(r2)) + as<int32_t>(r3)))); }",
    "mad.wide.s32 d0, r1, r2, d3":
        "{ set(d0, (wide(as<int32_t>(r1), as<int32_t>(r2)) + as<decltype(wide(as<int32_t>(r1), "
        "as<int32_t>(r2)))>(d3))); }",
    "mad.hi.u32 r0, r1, r2, r3":
        "{ set(r0, cast<uint32_t>((hi(as<uint32_t>(r1), as<uint32_t>(r2)) + as<uint32_t>(r3)))); }",
    "fma.rn.f32 f0, f1, f2, f3": "{ set(f0, cast<float>(fma_(as<float>(f1), as<float>(f2), as<float>(f3)))); }",
    "fma.rn.sat.f32 f0, f1, f2, f3":
        "{ set(f0, __saturatef(cast<float>(fma_(as<float>(f1), as<float>(f2), as<float>(f3))))); }",
    "fma.rn.f16x2 r0, r1, r2, r3": "{ set(r0, cast<Half2>(fma_(as<Half2>(r1), as<Half2>(r2), as<Half2>(r3)))); }",
    "neg.s32 r0, r1": "{ set(r0, neg_(as<int32_t>(r1))); }",
    "abs.f32 f0, f1": "{ set(f0, abs_(as<float>(f1))); }",
    "popc.b64 r0, d1": "{ set(r0, popc_(as<uint64_t>(d1))); }",
    "ex2.approx.ftz.f32 f0, f1": "{ set(f0, ex2_(as<float>(f1))); }",
    "shl.b32 r0, r1, r2": "{ set(r0, shl_(as<uint32_t>(r1), as<uint32_t>(r2))); }",
    "shr.s64 d0, d1, 3": "{ set(d0, shr_(as<int64_t>(d1), cast<uint32_t>(3ll))); }",
    "mov.u32 r0, %tid.x": "{ set(r0, as<uint32_t>(threadIdx.x)); }",
    "mov.u32 r0, %laneid": "{ set(r0, as<uint32_t>(ts_lane())); }",
    "mov.u64 d0, %globaltimer": "{ set(d0, as<uint64_t>(ts_clock())); }",
    "mov.f32 f0, f1": "{ set(f0, as<float>(f1)); }",
    "mov.b64 {r0, r1}, d0":
        "{ const auto ts_w = as<uint64_t>(d0); set(r0, cast<uint32_t>(ts_w >> 0)); set(r1, cast<uint32_t>(ts_w >> "
        "32)); }",
    "mov.b32 {h0, _}, r0": "{ const auto ts_w = as<uint32_t>(r0); set(h0, cast<uint16_t>(ts_w >> 0)); }",
    "mov.b64 {h0, h1, h2, h3}, d0":
        "{ const auto ts_w = as<uint64_t>(d0); set(h0, cast<uint16_t>(ts_w >> 0)); set(h1, cast<uint16_t>(ts_w >> "
        "16)); set(h2, cast<uint16_t>(ts_w >> 32)); set(h3, cast<uint16_t>(ts_w >> 48)); }",
    "mov.b64 d0, {r0, r1}":
        "{ set(d0, (cast<uint64_t>(as<uint32_t>(r0)) << 0 | cast<uint64_t>(as<uint32_t>(r1)) << 32)); }",
    "mov.b32 r0, {h0, h1}":
        "{ set(r0, (cast<uint32_t>(as<uint16_t>(h0)) << 0 | cast<uint32_t>(as<uint16_t>(h1)) << 16)); }",
    "mov.pred p0, !p1": "{ set(p0, !as<bool>(p1)); }",
    "cvt.rna.tf32.f32 r0, f0": "{ set(r0, to_tf32(as<float>(f0), true)); }",
    "cvt.rn.tf32.f32 r0, f0": "{ set(r0, to_tf32(as<float>(f0), false)); }",
    "cvt.rn.f16x2.f32 r0, f0, f1": "{ set(r0, pack<Half2>(as<float>(f0), as<float>(f1), false)); }",
    "cvt.rn.relu.bf16x2.f32 r0, f0, f1": "{ set(r0, pack<Brain2>(as<float>(f0), as<float>(f1), true)); }",
    "cvt.rzi.s32.f32 r0, f0": "{ set(r0, convert<int32_t>(as<float>(f0), rzi)); }",
    "cvt.rn.f32.s32 f0, r0": "{ set(f0, convert<float>(as<int32_t>(r0), rn)); }",
    "cvt.u64.u32 d0, r0": "{ set(d0, convert<uint64_t>(as<uint32_t>(r0), rn)); }",
    "cvt.f32.f16 f0, h0": "{ set(f0, convert<float>(as<Half>(h0), rn)); }",
    "cvt.sat.f32.f32 f0, f1": "{ set(f0, __saturatef(convert<float>(as<float>(f1), rn))); }",
    "setp.eq.s32 p0, r0, r1": "{ set(p0, (as<int32_t>(r0) == as<int32_t>(r1))); }",
    "setp.ne.and.u32 p0, r0, r1, p1": "{ set(p0, ((as<uint32_t>(r0) != as<uint32_t>(r1)) && as<bool>(p1))); }",
    "setp.lt.or.f32 p0, f0, f1, !p1": "{ set(p0, ((as<float>(f0) < as<float>(f1)) || !as<bool>(p1))); }",
    "setp.ge.xor.s32 p0|p1, r0, r1, p2":
        "{ set(p0, ((as<int32_t>(r0) >= as<int32_t>(r1)) != as<bool>(p2)));set(p1, (!(as<int32_t>(r0) >= "
        "as<int32_t>(r1)) != as<bool>(p2))); }",
    "setp.hs.u32 p0, r0, r1": "{ set(p0, (as<uint32_t>(r0) >= as<uint32_t>(r1))); }",
    "setp.ltu.f32 p0, f0, f1":
        "{ set(p0, (!(as<float>(f0) == as<float>(f0)) || !(as<float>(f1) == as<float>(f1)) || as<float>(f0) < "
        "as<float>(f1))); }",
    "setp.nan.f32 p0, f0, f1": "{ set(p0, (!(as<float>(f0) == as<float>(f0) && as<float>(f1) == as<float>(f1)))); }",
    "setp.num.f32 p0, f0, f1": "{ set(p0, ((as<float>(f0) == as<float>(f0) && as<float>(f1) == as<float>(f1)))); }",
    "setp.ls.u32 p0|p1, r0, r1":
        "{ set(p0, (as<uint32_t>(r0) <= as<uint32_t>(r1)));set(p1, !(as<uint32_t>(r0) <= as<uint32_t>(r1))); }",
    "selp.b32 r0, r1, r2, p0": "{ set(r0, (as<bool>(p0) ? as<uint32_t>(r1) : as<uint32_t>(r2))); }",
    "selp.f32 f0, f1, 0f00000000, !p0":
        "{ set(f0, (!as<bool>(p0) ? as<float>(f1) : as<float>(bit_cast<float>(0x00000000u)))); }",
    "lop3.b32 r0, r1, r2, r3, 0xC0":
        "{ set(r0, lop3(as<uint32_t>(r1), as<uint32_t>(r2), as<uint32_t>(r3), cast<uint32_t>(0xC0ll))); }",
    "prmt.b32 r0, r1, r2, 0x5410": "{ set(r0, prmt(as<uint32_t>(r1), as<uint32_t>(r2), cast<uint32_t>(0x5410ll))); }",
    "bfe.s32 r0, r1, r2, r3": "{ set(r0, bfe(as<int32_t>(r1), as<uint32_t>(r2), as<uint32_t>(r3))); }",
    "bfi.b32 r0, r1, r2, 4, 8":
        "{ set(r0, bfi(as<uint32_t>(r1), as<uint32_t>(r2), cast<uint32_t>(4ll), cast<uint32_t>(8ll))); }",
    "sad.u32 r0, r1, r2, r3": "{ set(r0, sad(as<uint32_t>(r1), as<uint32_t>(r2), as<uint32_t>(r3))); }",
    "shf.l.wrap.b32 r0, r1, r2, r3": "{ set(r0, shf_l(as<uint32_t>(r1), as<uint32_t>(r2), as<uint32_t>(r3), true)); }",
    "shf.r.clamp.b32 r0, r1, r2, r3":
        "{ set(r0, shf_r(as<uint32_t>(r1), as<uint32_t>(r2), as<uint32_t>(r3), false)); }",
    "dp4a.s32.u32 r0, r1, r2, r3": "{ set(r0, dp4a(as<int32_t>(r1), as<uint32_t>(r2), as<int32_t>(r3))); }",
    "dp4a.u32.s32 r0, r1, r2, r3": "{ set(r0, dp4a(as<uint32_t>(r1), as<int32_t>(r2), as<int32_t>(r3))); }",
    "ld.global.f32 f0, [d0]":
        "{ const auto ts_v = load<float, 1, false>(generic(as<uint64_t>(d0))); set(f0, ts_v.x[0]); }",
    "ld.global.nc.v4.u32 {r0, r1, _, r3}, [d0 + 16]":
        "{ const auto ts_v = load<uint32_t, 4, false>(generic((as<uint64_t>(d0) + cast<int64_t>(16ll)))); set(r0, "
        "ts_v.x[0]); set(r1, ts_v.x[1]); set(r3, ts_v.x[3]); }",
    "ld.shared.v2.f32 {f0, f1}, [r0 + -8]":
        "{ const auto ts_v = load<float, 2, false>(shared((as<uint64_t>(r0) + cast<int64_t>(-8ll)))); set(f0, "
        "ts_v.x[0]); set(f1, ts_v.x[1]); }",
    "ld.acquire.gpu.global.u32 r0, [d0]":
        "{ const auto ts_v = load<uint32_t, 1, true>(generic(as<uint64_t>(d0))); ts_fence();set(r0, ts_v.x[0]); }",
    "ld.volatile.shared.u16 h0, [r0]":
        "{ const auto ts_v = load<uint16_t, 1, true>(shared(as<uint64_t>(r0))); set(h0, ts_v.x[0]); }",
    "ld.relaxed.sys.b64 d0, [d1 + r0]":
        "{ const auto ts_v = load<uint64_t, 1, true>(generic((as<uint64_t>(d1) + as<int64_t>(r0)))); set(d0, "
        "ts_v.x[0]); }",
    "ldu.global.u32 r0, [d0]":
        "{ const auto ts_v = load<uint32_t, 1, false>(generic(as<uint64_t>(d0))); set(r0, ts_v.x[0]); }",
    "st.global.f32 [d0], f0": "{  store<float, 1, false>(generic(as<uint64_t>(d0)), {{as<float>(f0)}}); }",
    "st.shared.v2.u32 [r0], {r1, r2}":
        "{  store<uint32_t, 2, false>(shared(as<uint64_t>(r0)), {{as<uint32_t>(r1), as<uint32_t>(r2)}}); }",
    "st.release.gpu.u32 [d0 - 4], r0":
        "{ ts_fence(); store<uint32_t, 1, true>(generic((as<uint64_t>(d0) - cast<int64_t>(4ll))), "
        "{{as<uint32_t>(r0)}}); }",
    "st.volatile.global.u32 [d0], 7":
        "{  store<uint32_t, 1, true>(generic(as<uint64_t>(d0)), {{cast<uint32_t>(7ll)}}); }",
    "st.relaxed.gpu.global.b64 [d0], d1":
        "{  store<uint64_t, 1, true>(generic(as<uint64_t>(d0)), {{as<uint64_t>(d1)}}); }",
    "atom.global.add.u32 r0, [d0], r1":
        "{  set(r0, atomicAdd(cast<unsigned*>(generic(as<uint64_t>(d0))), as<unsigned>(r1))); }",
    "atom.shared.cas.b32 r0, [r1], r2, r3":
        "{  set(r0, atomicCAS(cast<unsigned*>(shared(as<uint64_t>(r1))), as<unsigned>(r2), as<unsigned>(r3))); }",
    "atom.acq_rel.gpu.global.exch.b64 d0, [d1], d2":
        "{ ts_fence(); set(d0, atomicExch(cast<unsigned long long*>(generic(as<uint64_t>(d1))), as<unsigned long "
        "long>(d2))); }",
    "atom.add.release.gpu.f32 f0, [d0], f1":
        "{ ts_fence(); set(f0, atomicAdd(cast<float*>(generic(as<uint64_t>(d0))), as<float>(f1))); }",
    "atom.inc.u32 r0, [d0], r1":
        "{  set(r0, atomicInc(cast<unsigned*>(generic(as<uint64_t>(d0))), as<unsigned>(r1))); }",
    "atom.global.max.s32 _, [d0], r1": "{  (void)(atomicMax(cast<int*>(generic(as<uint64_t>(d0))), as<int>(r1))); }",
    "red.global.add.f32 [d0], f1": "{  atomicAdd(cast<float*>(generic(as<uint64_t>(d0))), as<float>(f1)); }",
    "red.global.add.v2.f32 [d0], {f0, f1}":
        "{ add_several<2>(generic(as<uint64_t>(d0)), {{as<float>(f0), as<float>(f1)}}); }",
    "bar.sync 0": "{ barrier(cast<uint32_t>(0ll), 0u, true); }",
    "bar.sync 1, 64": "{ barrier(cast<uint32_t>(1ll), cast<uint32_t>(64ll), true); }",
    "barrier.sync.aligned 2, r0": "{ barrier(cast<uint32_t>(2ll), as<uint32_t>(r0), true); }",
    "bar.arrive 3, 128": "{ barrier(cast<uint32_t>(3ll), cast<uint32_t>(128ll), false); }",
    "bar.warp.sync -1": "{ __syncwarp(cast<uint32_t>(-1ll)); }",
    "barrier.cluster.arrive.release.aligned": "{ cluster_arrive(); }",
    "barrier.cluster.wait.acquire": "{ cluster_wait(); }",
    "membar.gl": "{ ts_fence(); }",
    "fence.acq_rel.gpu": "{ ts_fence(); }",
    "fence.proxy.async": "{ ts_proxy_fence(); }",
    "fence.proxy.tensormap": "{  }",
    "shfl.sync.idx.b32 r0, r1, 0, 31, -1":
        "{ bool ts_valid = false; set(r0, shfl(FROM, as<uint32_t>(r1), cast<uint32_t>(0ll), cast<uint32_t>(31ll), "
        "cast<uint32_t>(-1ll), &ts_valid));  }",
    "shfl.sync.up.b32 r0|p0, r1, 1, 0, r2":
        "{ bool ts_valid = false; set(r0, shfl(UP, as<uint32_t>(r1), cast<uint32_t>(1ll), cast<uint32_t>(0ll), "
        "as<uint32_t>(r2), &ts_valid)); set(p0, ts_valid); }",
    "shfl.sync.down.b32 r0, r1, 1, 31, r2":
        "{ bool ts_valid = false; set(r0, shfl(DOWN, as<uint32_t>(r1), cast<uint32_t>(1ll), cast<uint32_t>(31ll), "
        "as<uint32_t>(r2), &ts_valid));  }",
    "shfl.sync.bfly.b32 r0|p0, r1, 16, 31, -1":
        "{ bool ts_valid = false; set(r0, shfl(XOR, as<uint32_t>(r1), cast<uint32_t>(16ll), cast<uint32_t>(31ll), "
        "cast<uint32_t>(-1ll), &ts_valid)); set(p0, ts_valid); }",
    "vote.sync.all.pred p0, p1, r0": "{ set(p0, __all_sync(as<uint32_t>(r0), as<bool>(p1))); }",
    "vote.sync.any.pred p0, p1, -1": "{ set(p0, __any_sync(cast<uint32_t>(-1ll), as<bool>(p1))); }",
    "vote.sync.uni.pred p0, !p1, -1": "{ set(p0, __uni_sync(cast<uint32_t>(-1ll), !as<bool>(p1))); }",
    "vote.sync.ballot.b32 r0, p1, -1": "{ set(r0, __ballot_sync(cast<uint32_t>(-1ll), as<bool>(p1))); }",
    "match.any.sync.b32 r0, r1, -1": "{ set(r0, __match_any_sync(cast<uint32_t>(-1ll), as<uint32_t>(r1))); }",
    "match.any.sync.b64 r0, d1, r2": "{ set(r0, __match_any_sync(as<uint32_t>(r2), as<uint64_t>(d1))); }",
    "match.all.sync.b32 r0|p0, r1, -1":
        "{ int ts_same = 0; set(r0, __match_all_sync(cast<uint32_t>(-1ll), as<uint32_t>(r1), &ts_same)); set(p0, "
        "ts_same != 0); }",
    "match.all.sync.b64 r0, d1, -1":
        "{ int ts_same = 0; set(r0, __match_all_sync(cast<uint32_t>(-1ll), as<uint64_t>(d1), &ts_same));  }",
    "redux.sync.add.s32 r0, r1, -1": "{ set(r0, __reduce_add_sync(cast<uint32_t>(-1ll), as<int>(r1))); }",
    "redux.sync.and.b32 r0, r1, r2": "{ set(r0, __reduce_and_sync(as<uint32_t>(r2), as<unsigned>(r1))); }",
    "redux.sync.max.u32 r0, r1, r2": "{ set(r0, __reduce_max_sync(as<uint32_t>(r2), as<unsigned>(r1))); }",
    "activemask.b32 r0": "{ set(r0, __activemask()); }",
    "cvta.to.global.u64 d0, d1": "{ set(d0, as<uint64_t>(d1)); }",
    "cvta.to.shared.u64 d0, d1": "{ set(d0, __cvta_generic_to_shared(cast<void*>(as<uint64_t>(d1)))); }",
    "cvta.shared.u64 d0, d1": "{ set(d0, cast<uint64_t>(shared(as<uint64_t>(d1)))); }",
    "nanosleep.u32 100": "{ ts_pause(); }",
    "createpolicy.fractional.L2::evict_last.b64 d0, 0f3F800000": "{ set(d0, 0ull); }",
    "trap": "{ __trap(); }",
    "prefetch.global.L2 [d0]": "{  }",
    "griddepcontrol.wait": "{  }",
    "setmaxnreg.inc.sync.aligned.u32 240": "{  }",
    "cp.async.bulk.prefetch.tensor.2d.L2.global [d0, {r0, r1}]": "{  }",
    "cp.async.ca.shared.global [r0], [d0], 16":
        "{ ts_copy_async(shared(as<uint64_t>(r0)), generic(as<uint64_t>(d0)), cast<int>(16ll), cast<int>(16ll), "
        "here()); }",
    "cp.async.cg.shared.global [r0], [d0], 16, r1":
        "{ ts_copy_async(shared(as<uint64_t>(r0)), generic(as<uint64_t>(d0)), cast<int>(16ll), as<int>(r1), here()); "
        "}",
    "cp.async.cg.shared.global.L2::cache_hint [r0], [d0], 16, d1":
        "{ ts_copy_async(shared(as<uint64_t>(r0)), generic(as<uint64_t>(d0)), cast<int>(16ll), cast<int>(16ll), "
        "here()); }",
    "cp.async.cg.shared.global.L2::cache_hint [r0], [d0], 16, r1, d1":
        "{ ts_copy_async(shared(as<uint64_t>(r0)), generic(as<uint64_t>(d0)), cast<int>(16ll), as<int>(r1), here()); "
        "}",
    "cp.async.commit_group": "{ ts_copy_commit(); }",
    "cp.async.wait_group 2": "{ ts_copy_wait(cast<int>(2ll)); }",
    "cp.async.wait_all": "{ ts_copy_commit(); ts_copy_wait(0); }",
    "cp.async.mbarrier.arrive.shared.b64 [r0]": "{ copies_arrive(shared(as<uint64_t>(r0)), false); }",
    "cp.async.mbarrier.arrive.noinc.shared.b64 [r0]": "{ copies_arrive(shared(as<uint64_t>(r0)), true); }",
    "cp.async.bulk.commit_group": "{ ts_bulk_commit(); }",
    "cp.async.bulk.wait_group 0": "{ ts_bulk_wait(cast<int>(0ll), 0); }",
    "cp.async.bulk.wait_group.read 1": "{ ts_bulk_wait(cast<int>(1ll), 1); }",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r0], [d0], r1, [r2]":
        "{ bulk_load(shared(as<uint64_t>(r0)), generic(as<uint64_t>(d0)), as<uint32_t>(r1), "
        "shared(as<uint64_t>(r2)), 0u); }",
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [r0], [r3], r1, [r2]":
        "{ bulk_load(shared(as<uint64_t>(r0)), shared(as<uint64_t>(r3)), as<uint32_t>(r1), shared(as<uint64_t>(r2)), "
        "0u); }",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [r0], "
    "[d0], 64, [r2], h0, d1":
        "{ bulk_load(shared(as<uint64_t>(r0)), generic(as<uint64_t>(d0)), cast<uint32_t>(64ll), "
        "shared(as<uint64_t>(r2)), as<uint16_t>(h0)); }",
    "cp.async.bulk.global.shared::cta.bulk_group [d0], [r0], r1":
        "{ bulk_store(generic(as<uint64_t>(d0)), shared(as<uint64_t>(r0)), as<uint32_t>(r1), TS_REPLACE, TS_U32); }",
    "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [d0], [r0], r1, d1":
        "{ bulk_store(generic(as<uint64_t>(d0)), shared(as<uint64_t>(r0)), as<uint32_t>(r1), TS_REPLACE, TS_U32); }",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [d0], [r0], r1":
        "{ bulk_store(generic(as<uint64_t>(d0)), shared(as<uint64_t>(r0)), as<uint32_t>(r1), TS_ADD, TS_F32); }",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.max.s64 [d0], [r0], r1":
        "{ bulk_store(generic(as<uint64_t>(d0)), shared(as<uint64_t>(r0)), as<uint32_t>(r1), TS_MAX, TS_S64); }",
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [r0], [d0, {r1, r2}], [r3]":
        "{ tensor_load(shared(as<uint64_t>(r0)), generic(as<uint64_t>(d0)), Box<2>{{as<int32_t>(r1), "
        "as<int32_t>(r2)}}, shared(as<uint64_t>(r3)), 0u); }",
    "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [r0], [d0, "
    "{r1}], [r3], h0":
        "{ tensor_load(shared(as<uint64_t>(r0)), generic(as<uint64_t>(d0)), Box<1>{{as<int32_t>(r1)}}, "
        "shared(as<uint64_t>(r3)), as<uint16_t>(h0)); }",
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [d0, {r1, r2}], [r0]":
        "{ tensor_store(generic(as<uint64_t>(d0)), Box<2>{{as<int32_t>(r1), as<int32_t>(r2)}}, "
        "shared(as<uint64_t>(r0)), TS_REPLACE); }",
    "cp.reduce.async.bulk.tensor.3d.global.shared::cta.min.bulk_group [d0, {r1, r2, 0}], [r0]":
        "{ tensor_store(generic(as<uint64_t>(d0)), Box<3>{{as<int32_t>(r1), as<int32_t>(r2), cast<int32_t>(0ll)}}, "
        "shared(as<uint64_t>(r0)), TS_MIN); }",
    "wgmma.fence.sync.aligned": "{ ts_wgmma_fence(); }",
    "wgmma.commit_group.sync.aligned": "{ ts_wgmma_commit(); }",
    "wgmma.wait_group.sync.aligned 1": "{ wgmma_wait(cast<int>(1ll)); }",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, d0, d1, p0, 1, -1, 0, 1":
        "{ wgmma<8, 16, TS_F16, TS_F16, TS_F32, false>(Left{as<uint64_t>(d0), {}, false}, as<uint64_t>(d1), "
        "as<bool>(p0), cast<int>(1ll), cast<int>(-1ll), cast<int>(0ll), cast<int>(1ll), f0, f1, f2, f3); }",
    "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {r0, r1}, d0, d1, 1, 1, 1, 0, 0":
        "{ wgmma<8, 16, TS_F16, TS_F16, TS_F16, false>(Left{as<uint64_t>(d0), {}, false}, as<uint64_t>(d1), "
        "cast<bool>(1ll), cast<int>(1ll), cast<int>(1ll), cast<int>(0ll), cast<int>(0ll), r0, r1); }",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {f0, f1, f2, f3}, {r0, r1, r2, r3}, d1, p0, 1, -1, 1":
        "{ wgmma<8, 16, TS_BF16, TS_BF16, TS_F32, false>(Left{0, {as<uint32_t>(r0), as<uint32_t>(r1), "
        "as<uint32_t>(r2), as<uint32_t>(r3)}, true}, as<uint64_t>(d1), as<bool>(p0), cast<int>(1ll), "
        "cast<int>(-1ll), 0, cast<int>(1ll), f0, f1, f2, f3); }",
    "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {f0, f1, f2, f3}, d0, d1, p0, 1, 1":
        "{ wgmma<8, 8, TS_TF32, TS_TF32, TS_F32, false>(Left{as<uint64_t>(d0), {}, false}, as<uint64_t>(d1), "
        "as<bool>(p0), cast<int>(1ll), cast<int>(1ll), 0, 0, f0, f1, f2, f3); }",
    "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.u8.satfinite {r0, r1, r2, r3}, d0, d1, p0":
        "{ wgmma<8, 32, TS_S8, TS_U8, TS_S32, true>(Left{as<uint64_t>(d0), {}, false}, as<uint64_t>(d1), "
        "as<bool>(p0), 1, 1, 0, 0, r0, r1, r2, r3); }",
    "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2 {f0, f1, f2, f3}, {r0, r1, r2, r3}, d1, p0, 1, 1":
        "{ wgmma<8, 32, TS_E4M3, TS_E5M2, TS_F32, false>(Left{0, {as<uint32_t>(r0), as<uint32_t>(r1), "
        "as<uint32_t>(r2), as<uint32_t>(r3)}, true}, as<uint64_t>(d1), as<bool>(p0), cast<int>(1ll), cast<int>(1ll), "
        "0, 0, f0, f1, f2, f3); }",
    "mapa.shared::cluster.u32 r0, r1, r2": "{ set(r0, mapa(as<uint32_t>(r1), as<uint32_t>(r2))); }",
    "mapa.u64 d0, d1, 3": "{ set(d0, mapa_generic(as<uint64_t>(d1), cast<uint32_t>(3ll))); }",
    "getctarank.shared::cluster.u32 r0, r1": "{ set(r0, (as<uint32_t>(r1) >> 24)); }",
    "getctarank.u64 r0, d1": "{ set(r0, (ts_shared_address(generic(as<uint64_t>(d1))) >> 24)); }",
    "elect.sync r0|p0, -1":
        "{ bool ts_chosen = false; set(r0, elect(cast<uint32_t>(-1ll), &ts_chosen)); set(p0, ts_chosen); }",
    "elect.sync _|p0, r1":
        "{ bool ts_chosen = false; (void)(elect(as<uint32_t>(r1), &ts_chosen)); set(p0, ts_chosen); }",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r0}, [r1]":
        "{ unsigned ts_m[4]; ldmatrix_x1(ts_m, shared(as<uint64_t>(r1)), false); set(r0, ts_m[0]); }",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {r0, r1, r2, r3}, [r4 + 32]":
        "{ unsigned ts_m[4]; ldmatrix_x4(ts_m, shared((as<uint64_t>(r4) + cast<int64_t>(32ll))), true); set(r0, "
        "ts_m[0]); set(r1, ts_m[1]); set(r2, ts_m[2]); set(r3, ts_m[3]); }",
    "stmatrix.sync.aligned.m8n8.x2.shared.b16 [r4], {r0, r1}":
        "{ const unsigned ts_m[4] = {as<uint32_t>(r0), as<uint32_t>(r1)}; stmatrix<2, "
        "false>(shared(as<uint64_t>(r4)), ts_m); }",
    "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [r4], {r0}":
        "{ const unsigned ts_m[4] = {as<uint32_t>(r0)}; stmatrix<1, true>(shared(as<uint64_t>(r4)), ts_m); }",
    "movmatrix.sync.aligned.m8n8.trans.b16 r0, r1": "{ set(r0, movmatrix(as<uint32_t>(r1))); }",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {f0, f1, f2, f3}, {r0, r1, r2, r3}, {r4, r5}, {f4, f5, "
    "f6, f7}":
        "{ const uint32_t ts_a[4] = {as<uint32_t>(r0), as<uint32_t>(r1), as<uint32_t>(r2), as<uint32_t>(r3)}, "
        "ts_b[2] = {as<uint32_t>(r4), as<uint32_t>(r5)}, ts_c[4] = {as<uint32_t>(f4), as<uint32_t>(f5), "
        "as<uint32_t>(f6), as<uint32_t>(f7)}; uint32_t ts_d[4]; mma<16, 8, 16, Half, Half, float, float, "
        "false>(ts_d, ts_a, ts_b, ts_c); set(f0, ts_d[0]); set(f1, ts_d[1]); set(f2, ts_d[2]); set(f3, ts_d[3]); }",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {f0, f1, f2, f3}, {r0, r1, r2, r3}, {r4, r5}, {f4, f5, "
    "f6, f7}":
        "{ const uint32_t ts_a[4] = {as<uint32_t>(r0), as<uint32_t>(r1), as<uint32_t>(r2), as<uint32_t>(r3)}, "
        "ts_b[2] = {as<uint32_t>(r4), as<uint32_t>(r5)}, ts_c[4] = {as<uint32_t>(f4), as<uint32_t>(f5), "
        "as<uint32_t>(f6), as<uint32_t>(f7)}; uint32_t ts_d[4]; mma<16, 8, 8, Tf32, Tf32, float, float, false>(ts_d, "
        "ts_a, ts_b, ts_c); set(f0, ts_d[0]); set(f1, ts_d[1]); set(f2, ts_d[2]); set(f3, ts_d[3]); }",
    "mma.sync.aligned.m8n8k16.row.col.satfinite.s32.s8.u8.s32 {r0, r1}, {r2}, {r3}, {r4, r5}":
        "{ const uint32_t ts_a[1] = {as<uint32_t>(r2)}, ts_b[1] = {as<uint32_t>(r3)}, ts_c[2] = {as<uint32_t>(r4), "
        "as<uint32_t>(r5)}; uint32_t ts_d[2]; mma<8, 8, 16, int8_t, uint8_t, int32_t, int32_t, true>(ts_d, ts_a, "
        "ts_b, ts_c); set(r0, ts_d[0]); set(r1, ts_d[1]); }",
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {x0, x1}, {x2}, {x3}, {x0, x1}":
        "{ const double ts_a[1] = {as<double>(x2)}, ts_b[1] = {as<double>(x3)}, ts_c[2] = {as<double>(x0), "
        "as<double>(x1)}; double ts_d[2]; mma<8, 8, 4, double, double, double, double, false>(ts_d, ts_a, ts_b, "
        "ts_c); set(x0, ts_d[0]); set(x1, ts_d[1]); }",
    "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {r0, r1}, {r2, r3}, {r4}, {r5, r6}":
        "{ const uint32_t ts_a[2] = {as<uint32_t>(r2), as<uint32_t>(r3)}, ts_b[1] = {as<uint32_t>(r4)}, ts_c[2] = "
        "{as<uint32_t>(r5), as<uint32_t>(r6)}; uint32_t ts_d[2]; mma<16, 8, 8, Half, Half, Half, Half, false>(ts_d, "
        "ts_a, ts_b, ts_c); set(r0, ts_d[0]); set(r1, ts_d[1]); }",
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {f0, f1, f2, f3}, {r0, r1, r2, r3}, {r4, r5}, {f4, "
    "f5, f6, f7}":
        "{ const uint32_t ts_a[4] = {as<uint32_t>(r0), as<uint32_t>(r1), as<uint32_t>(r2), as<uint32_t>(r3)}, "
        "ts_b[2] = {as<uint32_t>(r4), as<uint32_t>(r5)}, ts_c[4] = {as<uint32_t>(f4), as<uint32_t>(f5), "
        "as<uint32_t>(f6), as<uint32_t>(f7)}; uint32_t ts_d[4]; mma<16, 8, 32, E4m3, E5m2, float, float, "
        "false>(ts_d, ts_a, ts_b, ts_c); set(f0, ts_d[0]); set(f1, ts_d[1]); set(f2, ts_d[2]); set(f3, ts_d[3]); }",
    "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {f0, f1, f2, f3}, {r0, r1}, {r2}, {f4, f5, f6, f7}":
        "{ const uint32_t ts_a[2] = {as<uint32_t>(r0), as<uint32_t>(r1)}, ts_b[1] = {as<uint32_t>(r2)}, ts_c[4] = "
        "{as<uint32_t>(f4), as<uint32_t>(f5), as<uint32_t>(f6), as<uint32_t>(f7)}; uint32_t ts_d[4]; mma<16, 8, 8, "
        "Brain, Brain, float, float, false>(ts_d, ts_a, ts_b, ts_c); set(f0, ts_d[0]); set(f1, ts_d[1]); set(f2, "
        "ts_d[2]); set(f3, ts_d[3]); }",
    "mbarrier.init.shared::cta.b64 [r0], 4": "{ mbarrier_init(shared(as<uint64_t>(r0)), cast<uint32_t>(4ll)); }",
    "mbarrier.inval.shared.b64 [r0]": "{ mbarrier_init(shared(as<uint64_t>(r0)), 0u); }",
    "mbarrier.init.b64 [d0], r1": "{ mbarrier_init(generic(as<uint64_t>(d0)), as<uint32_t>(r1)); }",
    "mbarrier.arrive.shared.b64 d0, [r0]": "{ set(d0, mbarrier_arrive(shared(as<uint64_t>(r0)), 1u, 0u)); }",
    "mbarrier.arrive.shared::cta.b64 _, [r0], r1":
        "{ (void)(mbarrier_arrive(shared(as<uint64_t>(r0)), as<uint32_t>(r1), 0u)); }",
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r0]":
        "{ (void)(mbarrier_arrive(shared(as<uint64_t>(r0)), 1u, 0u)); }",
    "mbarrier.arrive.expect_tx.shared.b64 _, [r0], 64":
        "{ (void)(mbarrier_arrive(shared(as<uint64_t>(r0)), 1u, cast<uint32_t>(64ll))); }",
    "mbarrier.arrive_drop.shared.b64 d0, [r0], 2":
        "{ set(d0, mbarrier_drop(shared(as<uint64_t>(r0)), cast<uint32_t>(2ll), 0u)); }",
    "mbarrier.arrive_drop.expect_tx.shared.b64 d0, [r0], r1":
        "{ set(d0, mbarrier_drop(shared(as<uint64_t>(r0)), 1u, as<uint32_t>(r1))); }",
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [r0], 16":
        "{ mbarrier_expect(shared(as<uint64_t>(r0)), cast<int64_t>(16ll)); }",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [r0], 16":
        "{ mbarrier_expect(shared(as<uint64_t>(r0)), -cast<int64_t>(16ll)); }",
    "mbarrier.test_wait.shared.b64 p0, [r0], d0":
        "{ set(p0, mbarrier_passed(shared(as<uint64_t>(r0)), as<uint64_t>(d0), false, false)); }",
    "mbarrier.try_wait.parity.shared::cta.b64 p0, [r0], r1":
        "{ set(p0, mbarrier_passed(shared(as<uint64_t>(r0)), as<uint32_t>(r1), true, true)); }",
    "mbarrier.try_wait.b64 p0, [d1], d0, 1000":
        "{ set(p0, mbarrier_passed(generic(as<uint64_t>(d1)), as<uint64_t>(d0), false, true)); }",
    "@p0 add.s32 r0, r1, r2": "if (as<bool>(p0)) { set(r0, cast<int32_t>(as<int32_t>(r1) + as<int32_t>(r2))); }",
    "@!p0 bra DONE": "if (!as<bool>(p0)) goto ts_DONE_7;",
    "bra DONE": "goto ts_DONE_7;",
    "setp.lt.and.s32 p0|p1, r0, r1, p2":
        "{ set(p0, ((as<int32_t>(r0) < as<int32_t>(r1)) && as<bool>(p2)));set(p1, (!(as<int32_t>(r0) < "
        "as<int32_t>(r1)) && as<bool>(p2))); }",
    "setp.gt.s32 p0, r0, r1": "{ set(p0, (as<int32_t>(r0) > as<int32_t>(r1))); }",
    "setp.le.s32 p0, r0, r1": "{ set(p0, (as<int32_t>(r0) <= as<int32_t>(r1))); }",
    "setp.lo.u32 p0, r0, r1": "{ set(p0, (as<uint32_t>(r0) < as<uint32_t>(r1))); }",
    "setp.hi.u32 p0, r0, r1": "{ set(p0, (as<uint32_t>(r0) > as<uint32_t>(r1))); }",
    "setp.equ.f32 p0, f0, f1":
        "{ set(p0, (!(as<float>(f0) == as<float>(f0)) || !(as<float>(f1) == as<float>(f1)) || as<float>(f0) == "
        "as<float>(f1))); }",
    "cvt.rzi.sat.s8.f32 r0, f0": "{ set(r0, convert<int8_t>(as<float>(f0), rzi)); }",
    "cvt.rpi.f32.f32 f0, f1": "{ set(f0, convert<float>(as<float>(f1), rpi)); }",
    "cvt.rn.bf16.f32 h0, f0": "{ set(h0, convert<Brain>(as<float>(f0), rn)); }",
    "sub.f32 f0, f1, -.5e-3": "{ set(f0, cast<float>(as<float>(f1) - cast<float>(-.5e-3))); }",
    "mov.u32 r0, %lanemask_lt": "{ set(r0, as<uint32_t>(((1u << ts_lane()) - 1))); }",
    "mov.u32 r0, %cluster_ctaid.y": "{ set(r0, as<uint32_t>(block_in_cluster().y)); }",
    "mov.u32 r0, %nclusterid.z": "{ set(r0, as<uint32_t>(blocks_in('z'))); }",
    "red.shared.xor.b32 [r0], r1": "{  atomicXor(cast<unsigned*>(shared(as<uint64_t>(r0))), as<unsigned>(r1)); }",
    "atom.global.dec.u32 r0, [d0], r1":
        "{  set(r0, atomicDec(cast<unsigned*>(generic(as<uint64_t>(d0))), as<unsigned>(r1))); }",
    "atom.global.and.b32 r0, [d0], r1":
        "{  set(r0, atomicAnd(cast<unsigned*>(generic(as<uint64_t>(d0))), as<unsigned>(r1))); }",
    "atom.global.min.s32 r0, [d0], r1": "{  set(r0, atomicMin(cast<int*>(generic(as<uint64_t>(d0))), as<int>(r1))); }",
    "red.relaxed.gpu.global.add.f64 [d0], x0":
        "{  atomicAdd(cast<double*>(generic(as<uint64_t>(d0))), as<double>(x0)); }",
    "red.global.add.v4.f32 [d0], {f0, f1, f2, f3}":
        "{ add_several<4>(generic(as<uint64_t>(d0)), {{as<float>(f0), as<float>(f1), as<float>(f2), "
        "as<float>(f3)}}); }",
    "bfe.u64 d0, d1, r2, r3": "{ set(d0, bfe(as<uint64_t>(d1), as<uint32_t>(r2), as<uint32_t>(r3))); }",
    "discard.global.L2 [d0], 128": "{  }",
    "applypriority.global.L2::evict_normal [d0], 128": "{  }",
    ".pragma \"nounroll\"": "{  }",
    "fence.proxy.async.shared::cta": "{ ts_proxy_fence(); }",
    "st.mmio.relaxed.sys.global.u32 [d0], r0":
        "{  store<uint32_t, 1, true>(generic(as<uint64_t>(d0)), {{as<uint32_t>(r0)}}); }",
    "ld.mmio.relaxed.sys.global.u32 r0, [d0]":
        "{ const auto ts_v = load<uint32_t, 1, true>(generic(as<uint64_t>(d0))); set(r0, ts_v.x[0]); }",
    "ld.global.b8 h0, [d0 + ts_0]":
        "{ const auto ts_v = load<uint8_t, 1, false>(generic((as<uint64_t>(d0) + as<uint64_t>(ts_0)))); set(h0, "
        "ts_v.x[0]); }",
    "min.s16 h0, h1, h2": "{ set(h0, min_(as<int16_t>(h1), as<int16_t>(h2))); }",
    "sad.s32 r0, r1, r2, r3": "{ set(r0, sad(as<int32_t>(r1), as<int32_t>(r2), as<int32_t>(r3))); }",
    "bfi.b64 d0, d1, d2, r3, r4":
        "{ set(d0, bfi(as<uint64_t>(d1), as<uint64_t>(d2), as<uint32_t>(r3), as<uint32_t>(r4))); }",
    "red.shared.or.b32 [r0], r1": "{  atomicOr(cast<unsigned*>(shared(as<uint64_t>(r0))), as<unsigned>(r1)); }",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.u32 [d0], [r0], r1":
        "{ bulk_store(generic(as<uint64_t>(d0)), shared(as<uint64_t>(r0)), as<uint32_t>(r1), TS_MIN, TS_U32); }",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u64 [d0], [r0], r1":
        "{ bulk_store(generic(as<uint64_t>(d0)), shared(as<uint64_t>(r0)), as<uint32_t>(r1), TS_ADD, TS_U64); }",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.and.b64 [d0], [r0], r1":
        "{ bulk_store(generic(as<uint64_t>(d0)), shared(as<uint64_t>(r0)), as<uint32_t>(r1), TS_AND, TS_U64); }",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.or.b32 [d0], [r0], r1":
        "{ bulk_store(generic(as<uint64_t>(d0)), shared(as<uint64_t>(r0)), as<uint32_t>(r1), TS_OR, TS_U32); }",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f64 [d0], [r0], r1":
        "{ bulk_store(generic(as<uint64_t>(d0)), shared(as<uint64_t>(r0)), as<uint32_t>(r1), TS_ADD, TS_F64); }",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [d0], [r0], r1":
        "{ bulk_store(generic(as<uint64_t>(d0)), shared(as<uint64_t>(r0)), as<uint32_t>(r1), TS_ADD, TS_F16); }",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.bf16 [d0], [r0], r1":
        "{ bulk_store(generic(as<uint64_t>(d0)), shared(as<uint64_t>(r0)), as<uint32_t>(r1), TS_MIN, TS_BF16); }",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.max.s32 [d0], [r0], r1":
        "{ bulk_store(generic(as<uint64_t>(d0)), shared(as<uint64_t>(r0)), as<uint32_t>(r1), TS_MAX, TS_S32); }",
    "wgmma.mma_async.sync.aligned.m64n16k16.f16.f16.f16 {r0, r1, r2, r3}, d0, d1, p0, 1, 1, 0, 0":
        "{ wgmma<16, 16, TS_F16, TS_F16, TS_F16, false>(Left{as<uint64_t>(d0), {}, false}, as<uint64_t>(d1), "
        "as<bool>(p0), cast<int>(1ll), cast<int>(1ll), cast<int>(0ll), cast<int>(0ll), r0, r1, r2, r3); }",
    "elect.sync r0, -1": "{ bool ts_chosen = false; set(r0, elect(cast<uint32_t>(-1ll), &ts_chosen));  }",
    "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {r0, r1, r2, r3}, {r0, r1, r2, r3}, {r4, r5}, {r4, r5, "
    "r6, r7}":
        "{ const uint32_t ts_a[4] = {as<uint32_t>(r0), as<uint32_t>(r1), as<uint32_t>(r2), as<uint32_t>(r3)}, "
        "ts_b[2] = {as<uint32_t>(r4), as<uint32_t>(r5)}, ts_c[4] = {as<uint32_t>(r4), as<uint32_t>(r5), "
        "as<uint32_t>(r6), as<uint32_t>(r7)}; uint32_t ts_d[4]; mma<16, 8, 32, uint8_t, int8_t, int32_t, int32_t, "
        "false>(ts_d, ts_a, ts_b, ts_c); set(r0, ts_d[0]); set(r1, ts_d[1]); set(r2, ts_d[2]); set(r3, ts_d[3]); }",
    "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32 {f0, f1, f2, f3}, {r0, r1, r2, r3}, {r4, r5}, {f4, "
    "f5, f6, f7}":
        "{ const uint32_t ts_a[4] = {as<uint32_t>(r0), as<uint32_t>(r1), as<uint32_t>(r2), as<uint32_t>(r3)}, "
        "ts_b[2] = {as<uint32_t>(r4), as<uint32_t>(r5)}, ts_c[4] = {as<uint32_t>(f4), as<uint32_t>(f5), "
        "as<uint32_t>(f6), as<uint32_t>(f7)}; uint32_t ts_d[4]; mma<16, 8, 32, E5m2, E4m3, float, float, "
        "false>(ts_d, ts_a, ts_b, ts_c); set(f0, ts_d[0]); set(f1, ts_d[1]); set(f2, ts_d[2]); set(f3, ts_d[3]); }",
    "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.s8 {r0, r1, r2, r3}, d0, d1, p0":
        "{ wgmma<8, 32, TS_U8, TS_S8, TS_S32, false>(Left{as<uint64_t>(d0), {}, false}, as<uint64_t>(d1), "
        "as<bool>(p0), 1, 1, 0, 0, r0, r1, r2, r3); }",
    "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e4m3 {f0, f1, f2, f3}, d0, d1, p0, 1, 1":
        "{ wgmma<8, 32, TS_E5M2, TS_E4M3, TS_F32, false>(Left{as<uint64_t>(d0), {}, false}, as<uint64_t>(d1), "
        "as<bool>(p0), cast<int>(1ll), cast<int>(1ll), 0, 0, f0, f1, f2, f3); }",
    "cvt.rmi.f32.f32 f0, f1": "{ set(f0, convert<float>(as<float>(f1), rmi)); }",
    "cvt.rni.s32.f32 r0, f0": "{ set(r0, convert<int32_t>(as<float>(f0), rni)); }",
    "atom.global.add.u64 d0, [d1], d2":
        "{  set(d0, atomicAdd(cast<unsigned long long*>(generic(as<uint64_t>(d1))), as<unsigned long long>(d2))); }",
    "atom.global.add.s64 d0, [d1], d2":
        "{  set(d0, atomicAdd(cast<unsigned long long*>(generic(as<uint64_t>(d1))), as<unsigned long long>(d2))); }",
    "atom.global.exch.u64 d0, [d1], d2":
        "{  set(d0, atomicExch(cast<unsigned long long*>(generic(as<uint64_t>(d1))), as<unsigned long long>(d2))); }",
    "ld.global.s8 h0, [d0]":
        "{ const auto ts_v = load<int8_t, 1, false>(generic(as<uint64_t>(d0))); set(h0, ts_v.x[0]); }",
    "ld.global.v2.b16 {h0, h1}, [d0]":
        "{ const auto ts_v = load<uint16_t, 2, false>(generic(as<uint64_t>(d0))); set(h0, ts_v.x[0]); set(h1, "
        "ts_v.x[1]); }",
    "abs.s32 r0, r1": "{ set(r0, abs_(as<int32_t>(r1))); }",
    "not.b64 d0, d1": "{ set(d0, not_(as<uint64_t>(d1))); }",
    "clz.b32 r0, r1": "{ set(r0, clz_(as<uint32_t>(r1))); }",
    "brev.b32 r0, r1": "{ set(r0, brev_(as<uint32_t>(r1))); }",
    "rcp.rn.f32 f0, f1": "{ set(f0, rcp_(as<float>(f1))); }",
    "sqrt.rn.f64 x0, x1": "{ set(x0, sqrt_(as<double>(x1))); }",
    "rsqrt.approx.f32 f0, f1": "{ set(f0, rsqrt_(as<float>(f1))); }",
    "lg2.approx.f32 f0, f1": "{ set(f0, lg2_(as<float>(f1))); }",
    "sin.approx.f32 f0, f1": "{ set(f0, sin_(as<float>(f1))); }",
    "cos.approx.f32 f0, f1": "{ set(f0, cos_(as<float>(f1))); }",
    "tanh.approx.f32 f0, f1": "{ set(f0, tanh_(as<float>(f1))); }",
    "bfind.u32 r0, r1": "{ set(r0, bfind_(as<uint32_t>(r1))); }",
    "mov.b64 d0, {h0, h1, h2, h3}":
        "{ set(d0, (cast<uint64_t>(as<uint16_t>(h0)) << 0 | cast<uint64_t>(as<uint16_t>(h1)) << 16 | "
        "cast<uint64_t>(as<uint16_t>(h2)) << 32 | cast<uint64_t>(as<uint16_t>(h3)) << 48)); }",
    "mov.u32 r0, r1": "{ set(r0, as<uint32_t>(r1)); }",
    "and.b32 r0, r1, +7": "{ set(r0, cast<uint32_t>(as<uint32_t>(r1) & cast<uint32_t>(+7ll))); }",
    "add.f32 f0, f1, 1.e-3": "{ set(f0, cast<float>(as<float>(f1) + cast<float>(1.e-3))); }",
    "st.global.v8.f32 [d0], {f0, f1, f2, f3, f4, f5, f6, f7}":
        "{  store<float, 8, false>(generic(as<uint64_t>(d0)), {{as<float>(f0), as<float>(f1), as<float>(f2), "
        "as<float>(f3), as<float>(f4), as<float>(f5), as<float>(f6), as<float>(f7)}}); }",
}  # fmt: skip
UNKNOWN = [
    "setp.lt.f16x2 p0|p1, r0, r1",
    "setp.lt.and.bf16x2 p0|p1, r0, r1, p2",
    "add.cc.u32 r0, r1, r2",
    "fma.rn.relu.f16 h0, h1, h2, h3",
    "mad.lo.cc.u32 r0, r1, r2, r3",
    "cvt.rn.satfinite.e4m3x2.f32 h0, f0, f1",
    "cvt.rn.f16x2.e4m3x2 r0, h0",
    "setp.foo.s32 p0, r0, r1",
    "prmt.b32.f4e r0, r1, r2, r3",
    "ld.param.u32 r0, [d0]",
    "ld.global.b128 d0, [d0]",
    "atom.global.min.s64 d0, [d1], d2",
    "atom.global.add.v2.f32 {f0, f1}, [d0], {f2, f3}",
    "red.global.min.s64 [d0], d1",
    "bar.red.popc.u32 r0, 0, p0",
    ("cp.async.bulk.tensor.2d.im2col.shared::cluster.global.mbarrier::complete_tx::bytes [r0], [d0, {r1, r2}], "
     "[r3]"),
    "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [r0], [d0, {r1, r2}], [r3]",
    "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [r0], [r1], r2, [r3]",
    "wgmma.mma_async.sp.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, d0, d1, p0, 1, 1, 0, 0",
    "wgmma.mma_async.sync.aligned.m64n8k32.f32.f16.f16 {f0, f1, f2, f3}, d0, d1, p0, 1, 1, 0, 0",
    "wgmma.mma_async.sync.aligned.m64n264k16.f32.f16.f16 {f0, f1, f2, f3}, d0, d1, p0, 1, 1, 0, 0",
    "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {f0, f1, f2, f3, f4, f5}, d0, d1, p0, 1, 1, 0, 0",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1}, d0, d1, p0, 1, 1, 0, 0",
    "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {r0, r1, r2, r3}, d0, d1, p0, 1, 1, 0, 0",
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {r0}, [r1]",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b8 {r0}, [r1]",
    "ldmatrix.sync.aligned.m8n8.x3.shared.b16 {r0}, [r1]",
    ("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {f0, f1, f2, f3}, {r0, r1, r2, r3}, {r4, r5}, {f4, f5, "
     "f6, f7}"),
    "mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc {r0, r1}, {r2}, {r3}, {r4, r5}",
    "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {f0, f1, f2, f3}, {r0, r1}, {r2, r3}, {f4, f5, f6, f7}",
    "mma.sync.aligned.m16n8k8.row.col.f32.f32.f32.f32 {f0, f1, f2, f3}, {r0, r1}, {r2}, {f4, f5, f6, f7}",
    "mbarrier.pending_count.b64 r0, d0",
    "ret",
    "exit",
    "bra ELSEWHERE",
    "tcgen05.alloc.x [r0], 32",
    "add.s32 r0, r1",
    "add.s32 r9, r1, r2",
    "add.s32 r0, r9, r2",
    "add.s32 r0, r1, %foo",
    "shfl.sync.foo.b32 r0, r1, 0, 31, -1",
    "vote.sync.none.pred p0, p1, r0",
    "redux.sync.add.f32 f0, f1, r0",
    "mbarrier.foo.b64 p0, [d0], d1",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f9}, d0, d1, p0, 1, 1, 0, 0",
    "setp.equ2.f32 p0, f0, f1",
    "red.global.max.s64 [d0], d1",
    "cp.sync.ca.shared.global [r0], [d0], 16",
    "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [d0, {r1, r2}], [r0]",
    ("cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes [r0], [d0, {r1, "
     "r2}], [r3]"),
    "cvt.rz.f32.f64 f0, x0",
    "cvt.rm.f32.s32 f0, r0",
    "cvt.rp.f16.f32 h0, f0",
    "cvt.rz.tf32.f32 r0, f0",
    "cvt.rz.f16x2.f32 r0, f0, f1",
    "cvt.pack.sat.s8.s32.b32 r0, r1, r2, r3",
    "atom.global.add.f16 h0, [d0], h1",
    "barrier.foo 0",
    "fma.rn.relu.bf16x2 r0, r1, r2, r3",
    "add.sat.s32 r0, r1, r2",
    "add.sat.f16 h0, h1, h2",
    "mad.hi.sat.s32 r0, r1, r2, r3",
    "fma.rn.sat.f16 h0, h1, h2, h3",
    "cvt.sat.u8.s32 h0, r0",
    "cvt.rn.sat.f16.f32 h0, f0",
    "ld.global.bf16x2 r0, [d0]",
    "ld.global.pred p0, [d0]",
    "st.global.f16 [d0], h0",
    "st.global.b128 [d0], d1",
    "st.bulk.weak.shared::cta [r0], d0, 0",
    "red.global.min.v2.f32 [d0], {f0, f1}",
    "lop3.or.b32 r0|p0, r1, r2, r3, 0x80, p1",
    "mov.b128 d0, d1",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16 {f0, f1, f2, f3}, {r0, r1, r2, r3}, {r4, r5}, {f4, f5, f6, f7}",
]  # fmt: skip


def statement(outputs=(), inputs=()):
    made = ptx._Statement("", list(outputs), list(inputs), 7)
    for kind, letter in (("b16", "h"), ("b32", "r"), ("b64", "d"), ("f32", "f"), ("f64", "x"), ("pred", "p")):
        made._registers(f".reg .{kind} {letter}<8>")
    return made


def plain(text):
    for whole, part in (
        ("touchstone::ptx::", ""),
        ("touchstone::", ""),
        ("ts_r_", ""),
        ("reinterpret_cast<char*>", "generic"),
        ("reinterpret_cast", "cast"),
        ("static_cast", "cast"),
    ):
        text = text.replace(whole, part)
    return text


@pytest.mark.parametrize("instruction", MADE)
def test_what_an_instruction_becomes(instruction):
    (text,) = statement(inputs=[("l", "offset")])._instruction(instruction, {"DONE"})
    assert plain(text) == MADE[instruction]
    assert not re.search(r"ptx::(u?int\d+_t|float|double|bool)\b", text)  # which are C++'s
    assert not re.search(r"(?<!ptx::)\b(Half2?|Brain2?|Tf32|E4m3|E5m2)\b", text)


SPECIAL = {
    "laneid": "ts_lane()", "warpid": "(thread() / 32)", "nwarpid": "((threads() + 31) / 32)", "smid": "0u",
    "nsmid": "132u", "gridid": "0u", "clock": "cast<uint32_t>(ts_clock())", "clock64": "ts_clock()",
    "clock_hi": "cast<uint32_t>(ts_clock() >> 32)", "globaltimer": "ts_clock()",
    "globaltimer_lo": "cast<uint32_t>(ts_clock())", "lanemask_eq": "(1u << ts_lane())",
    "lanemask_lt": "((1u << ts_lane()) - 1)", "lanemask_le": "((2u << ts_lane()) - 1)",
    "lanemask_gt": "(~((2u << ts_lane()) - 1))", "lanemask_ge": "(~((1u << ts_lane()) - 1))",
    "dynamic_smem_size": "cast<uint32_t>(ts_dynamic_shared_bytes())", "cluster_ctarank": "ts_cluster_rank()",
    "cluster_nctarank": "cluster_blocks()", "is_explicit_cluster": "(cluster_blocks() > 1)", "tid.x": "threadIdx.x",
    "tid.y": "threadIdx.y", "tid.z": "threadIdx.z", "ctaid.y": "blockIdx.y", "ntid.z": "blockDim.z",
    "nctaid.x": "gridDim.x", "clusterid.y": "cluster_index().y", "cluster_nctaid.z": "cluster_dim().z",
    "cluster_ctaid.x": "block_in_cluster().x", "nclusterid.y": "blocks_in('y')",
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_what_a_special_register_holds(name):
    assert plain(statement().value(f"%{name}", "uint64_t")) == f"as<uint64_t>({SPECIAL[name]})"


def test_the_largest_product_of_a_warpgroup():
    def made(n):
        product = statement([("+f", f"d[{i}]") for i in range(n // 2)])
        sums = ", ".join(f"ts_{i}" for i in range(n // 2))
        words = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{{sums}}}, d0, d1, p0, 1, 1, 0, 0"
        (text,) = product._instruction(words, set())
        return text

    assert "wgmma<256, 16," in made(256) and made(256).endswith("d[127]); }")
    for n in (264, 20):
        with pytest.raises(ptx.NotKnown, match=f"m64n{n}k16"):
            made(n)


@pytest.mark.parametrize("instruction", UNKNOWN)
def test_an_instruction_that_is_not_known_is_named(instruction):
    """As far as it is not known: a word, the operands, a register."""
    with pytest.raises(ptx.NotKnown) as raised:
        list(statement()._instruction(instruction, {"DONE"}))
    said, (head, _, operands) = str(raised.value), instruction.partition(" ")
    known = said.removeprefix("the register ") in operands or said == instruction
    assert known or said.startswith(head)


def translated(template, outputs=(), inputs=()):
    return plain(ptx.translate(template, list(outputs), list(inputs), 7))


def test_operands_are_read_before_and_written_after():
    operands = [("=r", "y"), ("+f", "z")], [("l", "p"), ("h", "w"), ("i", "SIZE")]
    text = translated("add.f32 %1, %1, 1.0; add.u32 %0, %4, 1;", *operands)
    assert text == (
        "({ const auto ts_4 = SIZE; (void)ts_4; uint32_t ts_0 = uint32_t(); (void)ts_0; float ts_1 = given<float>(z); "
        "(void)ts_1; uint64_t ts_2 = given<uint64_t>(p); (void)ts_2; uint16_t ts_3 = given<uint16_t>(w); (void)ts_3; "
        "{ set(ts_1, cast<float>(as<float>(ts_1) + cast<float>(1.0))); } "
        "{ set(ts_0, cast<uint32_t>(as<uint32_t>(ts_4) + cast<uint32_t>(1ll))); } put(y, ts_0); put(z, ts_1); })"
    )
    assert "const auto ts_1 = N;" in translated("mov.u32 %0, %1;", [("=r", "y")], [("n", "N")])
    for constraint, kind in (("d", "double"), ("b", "bool"), ("c", "uint8_t")):
        assert f"{kind} ts_0 = given<{kind}>(x)" in translated("mov.u32 _, 1;", (), [(constraint, "x")])
    assert "ts_0 = uint32_t()" in translated("mov.u32 %0, 1;", [("=&r", "x")])
    assert "ts_0 = given<uint32_t>(x)" in translated("add.u32 %0, %0, 1;", [("+&r", "x")])


def test_registers_stand_before_labels_and_jumps():
    text = translated(
        "{ .reg .pred p; .reg .b32 a, b<2>; // a loop\n LOOP%=: setp.eq.u32 p, %0, 0; @p bra DONE; bra LOOP%=; "
        "/* ; */ DONE: }",
        [("=r", "y")],
    )
    registers = " ".join(f"uint32_t {each} = uint32_t(); (void){each};" for each in ("a", "b0", "b1"))
    assert text == (
        f"({{ uint32_t ts_0 = uint32_t(); (void)ts_0; bool p = bool(); (void)p; {registers} ts_LOOP7_7: (void)0; "
        "{ set(p, (as<uint32_t>(ts_0) == cast<uint32_t>(0ll))); } if (as<bool>(p)) goto ts_DONE_7; "
        "goto ts_LOOP7_7; ts_DONE_7: (void)0; put(y, ts_0); })"
    )


@pytest.mark.parametrize(
    ("kind", "plainly"),
    [
        ("f16", "uint16_t"),
        ("bf16", "uint16_t"),
        ("f16x2", "uint32_t"),
        ("bf16x2", "uint32_t"),
        ("s64", "int64_t"),
        ("f64", "double"),
        ("b128", ""),
    ],
)
def test_the_types_of_registers(kind, plainly):
    made = ptx._Statement("", [], [], 7)
    (text,) = made._registers(f".reg .{kind} %a$1")
    assert plain(text) == f"\x02{plainly} _a_1 = {plainly}(); (void)_a_1;" and made.types == {"ts_r__a_1": plainly}


def test_accumulators_of_a_warpgroup_are_written_in_their_own_places():
    sums = [("+f", f"d[{i}]") for i in range(4)]
    product = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
    text = translated(product, sums, [("l", "a"), ("l", "b")])
    assert "d[0], d[1], d[2], d[3]);" in text and "put(" not in text and "given<float>" not in text
    assert text.count("given<uint64_t>") == 2
    used = translated(f"add.f32 %0, %0, 1.0; {product}", sums, [("l", "a"), ("l", "b")])
    assert used.count("given<float>(d[0])") == 1 and "given<float>(d[1])" not in used and "put(" not in used


def test_what_cannot_be_read_ends_the_launch_where_it_runs():
    for template, says in (
        ("foo.bar %0;", "foo.bar"),
        (".reg .b256 a; mov.u32 %0, 1;", ".reg .b256 a"),
        ("mov.b64 %0, {%0;", "mov.b64 ts_0, {ts_0;"),
        ("mov.u32 %0, q;", "the register q"),
        ("mov.u32 %0, 1; mov.b64 %0, {%0;", 'PTX: mov.b64 ts_0, {ts_0;;"'),
        ('foo "a\\b";', 'PTX: foo"'),
        ('mov.u32 %0, "a\\b";', r'PTX: the register \"a\\b\""'),
        (f"{'a' * 90} {{;", f'PTX: {"a" * 80}"'),
    ):
        text = translated(template, [("=r", "y")])
        assert text.startswith('not_covered("inline PTX: ') and says in text, text
    assert translated("mov.u32 %0, 1", [("=r", "y")]).count("set(ts_0, cast<uint32_t>(1ll))") == 1  # without its `;`
    assert translated("mov.u32 %0, %%tid.x;", [("=r", "y")]).count("as<uint32_t>(threadIdx.x)") == 1
    assert translated("mov.u32 %0, /* a\nb */ 1;", [("=r", "y")]).count("cast<uint32_t>(1ll)") == 1
    assert translated("mov.u32 %0, 1;", [("=x", "y")]) == """not_covered("inline PTX: the constraint '=x'")"""
    named = translated("{ .reg .b32 %%t; mov.u32 %%t, 1; mov.u32 %0, %%t; }", [("=r", "y")])
    assert "set(_t, cast<uint32_t>(1ll)); } { set(ts_0, as<uint32_t>(_t));" in named
    assert translated(" {} ", [("=r", "y")]) == translated(";;") == "((void)0)"


def test_the_characters_of_literals():
    text = r'''"mov.u32 %0, 1;\n\t" "add \"x\";"
        R"(raw "text" \n)"  R"ptx(more
lines)ptx"'''
    assert ptx.literal(text) == 'mov.u32 %0, 1;\n\tadd "x";raw "text" \\nmore\nlines'
    assert ptx.literal("") == ""


def test_parts_of_a_list_of_operands():
    assert ptx._split("{a, b}, [c + 4, {d, e}], f(1, 2) ,g") == ["{a, b}", "[c + 4, {d, e}]", "f(1, 2)", "g"]
    assert ptx._split("") == [] == ptx._split("  ") and ptx._split("a, ") == ["a"]
