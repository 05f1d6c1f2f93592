"""Inline PTX on the emulator: what each instruction computes, by the PTX ISA, and that no other is taken for one."""

import contextlib
import math
import struct

import numpy as np
import pytest

from touchstone.backends import emulator
from touchstone.backends.emulator import ptx

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

TYPES = {
    "r": ("int", "i4"),
    "f": ("float", "f4"),
    "l": ("long long", "i8"),
    "d": ("double", "f8"),
    "h": ("short", "i2"),
}
MEMORY = [7, 8, 9, 10]  # what the operand M points to: unsigned words
ONES = 0xFFFFFFFF


def half(x):
    return int(np.float16(x).view(np.uint16))


def brain(x):
    return struct.unpack("<I", struct.pack("<f", x))[0] >> 16


def pair(low, high):
    return low | high << 16


# The instructions; the constraint of the result, those of the operands with their values, and the result.
INSTRUCTIONS: list[tuple[str, str, list, float]] = [
    # integers
    ("sub.u32 %0, %1, %2;", "r", [("r", 3), ("r", 5)], -2),
    ("sub.s64 %0, %1, %2;", "l", [("l", 3), ("l", 2**40)], 3 - 2**40),
    ("and.b32 %0, %1, %2;", "r", [("r", 12), ("r", 10)], 8),
    ("or.b32 %0, %1, %2;", "r", [("r", 12), ("r", 10)], 14),
    ("min.s32 %0, %1, %2;", "r", [("r", -5), ("r", 3)], -5),
    ("min.u32 %0, %1, %2;", "r", [("r", -5), ("r", 3)], 3),
    ("max.s32 %0, %1, %2;", "r", [("r", -5), ("r", 3)], 3),
    ("max.u32 %0, %1, %2;", "r", [("r", -5), ("r", 3)], -5),
    ("div.s32 %0, %1, %2;", "r", [("r", -7), ("r", 2)], -3),
    ("div.u32 %0, %1, %2;", "r", [("r", -7), ("r", 2)], (2**32 - 7) // 2),
    ("rem.s32 %0, %1, %2;", "r", [("r", -7), ("r", 4)], -3),
    ("rem.u32 %0, %1, %2;", "r", [("r", 7), ("r", 4)], 3),
    ("not.b32 %0, %1;", "r", [("r", 5)], ~5),
    ("neg.s32 %0, %1;", "r", [("r", 5)], -5),
    ("abs.s32 %0, %1;", "r", [("r", -5)], 5),
    ("popc.b32 %0, %1;", "r", [("r", 0xF0F1)], 9),
    ("clz.b32 %0, %1;", "r", [("r", 0x00010000)], 15),
    ("brev.b32 %0, %1;", "r", [("r", 1)], 2**31),
    ("bfind.u32 %0, %1;", "r", [("r", 0x00012345)], 16),
    ("shl.b32 %0, %1, %2;", "r", [("r", 3), ("r", 4)], 48),
    ("shl.b32 %0, %1, %2;", "r", [("r", 3), ("r", 32)], 0),
    ("shr.u32 %0, %1, 1;", "r", [("r", -8)], 2**31 - 4),
    ("shr.s32 %0, %1, %2;", "r", [("r", -8), ("r", 1)], -4),
    ("shr.s32 %0, %1, %2;", "r", [("r", -8), ("r", 40)], -1),
    ("shl.b64 %0, %1, %2;", "l", [("l", 3), ("r", 40)], 3 << 40),
    ("mul.lo.s32 %0, %1, %2;", "r", [("r", -3), ("r", 7)], -21),
    ("mul.hi.s32 %0, %1, %2;", "r", [("r", -1), ("r", 3)], -1),
    ("mul.wide.s32 %0, %1, %2;", "l", [("r", -(2**30)), ("r", 12)], -12 * 2**30),
    ("mad.lo.u32 %0, %1, %2, %3;", "r", [("r", 3), ("r", 7), ("r", 5)], 26),
    ("mad.hi.u32 %0, %1, %2, %3;", "r", [("r", ONES), ("r", 3), ("r", 5)], 7),
    ("mad.wide.u32 %0, %1, %2, %3;", "l", [("r", ONES), ("r", 2), ("l", 2**40)], 2 * ONES + 2**40),
    ("mad.wide.s32 %0, %1, %2, %3;", "l", [("r", -3), ("r", 2), ("l", 2**40)], 2**40 - 6),
    ("sad.u32 %0, %1, %2, %3;", "r", [("r", 3), ("r", 10), ("r", 5)], 12),
    ("shf.r.wrap.b32 %0, %1, %2, %3;", "r", [("r", 1), ("r", 2), ("r", 33)], 0),
    ("shf.r.clamp.b32 %0, %1, %2, %3;", "r", [("r", 1), ("r", 2), ("r", 33)], 2),
    ("shf.l.clamp.b32 %0, %1, %2, %3;", "r", [("r", 1), ("r", 2), ("r", 33)], 1),
    ("dp4a.s32.s32 %0, %1, %2, %3;", "r", [("r", 0x01FF0302), ("r", 0x02030405), ("r", 10)], 10 + 2 - 3 + 12 + 10),
    ("dp4a.u32.u32 %0, %1, %2, %3;", "r", [("r", 0x01FF0302), ("r", 0x02030405), ("r", 1)], 1 + 2 + 3 * 255 + 12 + 10),
    ("dp4a.s32.u32 %0, %1, %2, %3;", "r", [("r", 255), ("r", 255), ("r", 0)], -255),
    ("prmt.b32 %0, %1, %2, %3;", "r", [("r", 0x03020100), ("r", 0x07060504), ("r", 0x7351)], 0x07030501),
    ("lop3.b32 %0, %1, %2, %3, 0x96;", "r", [("r", 12), ("r", 10), ("r", 7)], 12 ^ 10 ^ 7),
    ("bfi.b32 %0, %1, %2, 8, 4;", "r", [("r", 0x3), ("r", 0xFFFFFFFF)], 0xFFFFF3FF),
    ("bfe.s32 %0, %1, 4, 4;", "r", [("r", 0x80)], -8),
    # floats
    ("add.rn.f32 %0, %1, %2;", "f", [("f", 1.5), ("f", 2.25)], 3.75),
    ("add.sat.f32 %0, %1, %2;", "f", [("f", 0.75), ("f", 0.75)], 1.0),
    ("sub.f32 %0, %1, 1.5;", "f", [("f", 1.0)], -0.5),
    ("mul.sat.f32 %0, %1, %2;", "f", [("f", -0.75), ("f", 2.0)], 0.0),
    ("mul.f64 %0, %1, %2;", "d", [("d", 1.25), ("d", 2.0)], 2.5),
    ("fma.rn.sat.f32 %0, %1, %2, %3;", "f", [("f", 2.0), ("f", 3.0), ("f", -5.5)], 0.5),
    ("fma.rn.f64 %0, %1, %2, 0d3FF0000000000000;", "d", [("d", 2.0), ("d", 3.0)], 7.0),
    ("mad.rn.f32 %0, %1, %2, %3;", "f", [("f", 2.0), ("f", 3.0), ("f", 0.5)], 6.5),
    ("min.f32 %0, %1, %2;", "f", [("f", math.nan), ("f", 3.0)], 3.0),
    ("max.f32 %0, %1, %2;", "f", [("f", -1.0), ("f", -3.0)], -1.0),
    ("div.rn.f32 %0, %1, %2;", "f", [("f", 1.0), ("f", 8.0)], 0.125),
    ("div.full.f32 %0, %1, %2;", "f", [("f", 3.0), ("f", 2.0)], 1.5),
    ("abs.f32 %0, %1;", "f", [("f", -1.5)], 1.5),
    ("neg.f32 %0, %1;", "f", [("f", 1.5)], -1.5),
    ("rcp.approx.ftz.f32 %0, %1;", "f", [("f", 4.0)], 0.25),
    ("sqrt.approx.f32 %0, %1;", "f", [("f", 9.0)], 3.0),
    ("rsqrt.approx.f32 %0, %1;", "f", [("f", 4.0)], 0.5),
    ("lg2.approx.f32 %0, %1;", "f", [("f", 8.0)], 3.0),
    ("ex2.approx.f32 %0, %1;", "f", [("f", -2.0)], 0.25),
    ("sin.approx.f32 %0, %1;", "f", [("f", 0.0)], 0.0),
    ("cos.approx.f32 %0, %1;", "f", [("f", 0.0)], 1.0),
    ("tanh.approx.f32 %0, %1;", "f", [("f", 50.0)], 1.0),
    ("add.f16x2 %0, %1, %2;", "r", [("r", pair(half(1), half(2))), ("r", pair(half(3), half(0.5)))],
     pair(half(4), half(2.5))),
    ("mul.bf16x2 %0, %1, %2;", "r", [("r", pair(brain(1.5), brain(2))), ("r", pair(brain(3), brain(0.5)))],
     pair(brain(4.5), brain(1))),
    ("max.f16x2 %0, %1, %2;", "r", [("r", pair(half(1), half(2))), ("r", pair(half(3), half(0.5)))],
     pair(half(3), half(2))),
    ("add.f16 %0, %1, %2;", "h", [("h", half(1.5)), ("h", half(2))], half(3.5)),
    ("sub.bf16 %0, %1, %2;", "h", [("h", brain(1.5)), ("h", brain(2))], brain(-0.5)),
    ("mul.f16 %0, %1, %2;", "h", [("h", half(1.5)), ("h", half(3))], half(4.5)),
    ("fma.rn.f16 %0, %1, %2, %1;", "h", [("h", half(1.5)), ("h", half(3))], half(6)),
    ("fma.rn.bf16x2 %0, %1, %2, %1;", "r", [("r", pair(brain(1), brain(2))), ("r", pair(brain(3), brain(0.5)))],
     pair(brain(4), brain(3))),
    ("min.f16 %0, %1, %2;", "h", [("h", half(1.5)), ("h", half(-3))], half(-3)),
    ("ex2.approx.f16 %0, %1;", "h", [("h", half(3))], half(8)),
    ("neg.f16 %0, %1;", "h", [("h", half(3))], half(-3)),
    ("neg.f16x2 %0, %1;", "r", [("r", pair(half(1), half(-2)))], pair(half(-1), half(2))),
    ("abs.bf16x2 %0, %1;", "r", [("r", pair(brain(1), brain(-2)))], pair(brain(1), brain(2))),
    # comparisons
    *(
        (f"{{.reg .pred p; setp.{name} p, %1, %2; selp.b32 %0, 1, 0, p;}}", "r", [("r", a), ("r", b)], right)
        for name, a, b, right in (
            ("eq.s32", 2, 2, 1), ("eq.s32", 2, 3, 0), ("ne.s32", 2, 3, 1), ("lt.s32", 2, 2, 0), ("le.s32", 2, 2, 1),
            ("gt.s32", -1, 2, 0), ("gt.u32", -1, 2, 1), ("ge.s32", 2, 2, 1), ("lo.u32", 2, -1, 1), ("ls.u32", 2, 2, 1),
            ("hi.u32", 2, 2, 0), ("hs.u32", 2, 2, 1),
        )
    ),
    *(
        (f"{{.reg .pred p; setp.{name}.f32 p, %1, %2; selp.b32 %0, 1, 0, p;}}", "r", [("f", a), ("f", b)], right)
        for name, a, b, right in (
            ("lt", 1, 2, 1), ("lt", math.nan, 2, 0), ("ltu", math.nan, 2, 1), ("ltu", 1, math.nan, 1), ("ltu", 3, 2, 0),
            ("geu", 3, 2, 1), ("equ", 1, 1, 1), ("neu", 1, 1, 0), ("num", 1, 2, 1), ("num", math.nan, 2, 0),
            ("nan", 1, math.nan, 1), ("nan", 1, 2, 0),
        )
    ),
    *(
        (f"{{.reg .pred p, q, r; setp.ne.s32 r, %3, 0; setp.lt.{join}.s32 p|q, %1, %2, r; selp.b32 %0, 1, 0, p; "
         "@q add.s32 %0, %0, 2;}", "r", [("r", a), ("r", b), ("r", c)], right)
        for join, a, b, c, right in (
            ("and", 1, 2, 1, 1), ("and", 1, 2, 0, 0), ("or", 2, 1, 1, 3), ("or", 2, 1, 0, 2), ("xor", 1, 2, 1, 2),
            ("xor", 1, 2, 0, 1),
        )
    ),
    ("{.reg .pred p; setp.eq.s32 p, %1, 1; selp.f32 %0, 0f40000000, %2, !p;}", "f", [("r", 0), ("f", 5.0)], 2.0),
    ("{.reg .pred p, q; setp.eq.s32 p, %1, 1; not.pred q, p; selp.b32 %0, 3, 4, q;}", "r", [("r", 1)], 4),
    # conversions and moves
    ("cvt.rn.f32.s32 %0, %1;", "f", [("r", -7)], -7.0),
    ("cvt.rzi.u32.f32 %0, %1;", "r", [("f", 2.9)], 2),
    ("cvt.rmi.s32.f32 %0, %1;", "r", [("f", -2.5)], -3),
    ("cvt.rpi.s32.f32 %0, %1;", "r", [("f", -2.5)], -2),
    ("cvt.rni.s32.f32 %0, %1;", "r", [("f", 3.5)], 4),
    ("cvt.rzi.s32.f32 %0, %1;", "r", [("f", 1e20)], 2**31 - 1),
    ("cvt.sat.f32.f32 %0, %1;", "f", [("f", 1.5)], 1.0),
    ("cvt.rni.f32.f32 %0, %1;", "f", [("f", 2.5)], 2.0),
    ("cvt.f64.f32 %0, %1;", "d", [("f", 1.5)], 1.5),
    ("cvt.rn.f32.f64 %0, %1;", "f", [("d", 1.5)], 1.5),
    ("cvt.u64.u32 %0, %1;", "l", [("r", -1)], ONES),
    ("cvt.s64.s32 %0, %1;", "l", [("r", -1)], -1),
    ("cvt.u32.u64 %0, %1;", "r", [("l", 2**40 + 5)], 5),
    ("cvt.s32.s16 %0, %1;", "r", [("h", -3)], -3),
    ("cvt.rna.tf32.f32 %0, %1;", "r", [("f", 1 + 2**-11)], 0x3F802000),
    ("cvt.rn.relu.f16x2.f32 %0, %1, %2;", "r", [("f", -1.0), ("f", 2.0)], pair(half(2), half(0))),
    ("cvt.rn.f16.f32 %0, %1;", "h", [("f", 1.5)], half(1.5)),
    ("cvt.f32.f16 %0, %1;", "f", [("h", half(-2.5))], -2.5),
    ("{.reg .b32 a, b; mov.b64 {a, b}, %1; sub.u32 %0, b, a;}", "r", [("l", (9 << 32) + 5)], 4),
    ("{.reg .b32 b; mov.b64 {_, b}, %1; mov.u32 %0, b;}", "r", [("l", (9 << 32) + 5)], 9),
    ("mov.b64 %0, {%1, %2};", "l", [("r", 5), ("r", 9)], (9 << 32) + 5),
    ("mov.b32 %0, {%1, %2};", "r", [("h", 1), ("h", -1)], pair(1, 0xFFFF)),
    ("mov.f32 %0, 2.5e1;", "f", [], 25.0),
    ("mov.u32 %0, 0x1FU;", "r", [], 31),
    ("{.reg .u32 a<3>; mov.u32 a0, 1; mov.u32 a2, 4; add.u32 %0, a0, a2;}", "r", [], 5),
    ("// nothing\n/* at all */ mov.u32 %0, 3", "r", [], 3),
    ("{.reg .pred p; setp.eq.s32 p, %1, 0; @p bra DONE; mov.u32 %0, 1; DONE:}", "+r", [("r", 0)], 0),
    ("{.reg .pred p; setp.eq.s32 p, %1, 0; @p bra DONE; mov.u32 %0, 1; DONE:}", "+r", [("r", 5)], 1),
    # memory
    ("ld.global.u32 %0, [%1];", "r", [("M", None)], 7),
    ("ld.global.nc.u32 %0, [%1+8];", "r", [("M", None)], 9),
    ("ld.volatile.global.u32 %0, [%1 + 4];", "r", [("M", None)], 8),
    ("ld.acquire.gpu.global.u32 %0, [%1];", "r", [("M", None)], 7),
    ("{.reg .u64 p; add.u64 p, %1, 12; ld.global.u32 %0, [p-4];}", "r", [("M", None)], 9),
    ("{.reg .u64 p; cvta.to.global.u64 p, %1; ld.global.u32 %0, [p];}", "r", [("M", None)], 7),
    ("{.reg .u64 p; cvta.global.u64 p, %1; ld.u32 %0, [p + %2];}", "r", [("M", None), ("l", 12)], 10),
    ("{.reg .u32 a, b; ld.global.v2.u32 {a, b}, [%1]; mad.lo.u32 %0, a, 100, b;}", "r", [("M", None)], 708),
    ("{.reg .u32 a; ld.global.v4.u32 {_, _, a, _}, [%1]; mov.u32 %0, a;}", "r", [("M", None)], 9),
    ("ld.global.u64 %0, [%1];", "l", [("M", None)], (8 << 32) + 7),
    ("ld.global.s8 %0, [%1+4];", "r", [("M", None)], 8),
    ("st.global.u32 [%1], %2; ld.global.u32 %0, [%1];", "r", [("M", None), ("r", 3)], 3),
    ("st.global.v2.u32 [%1], {%2, 5}; ld.global.u64 %0, [%1];", "l", [("M", None), ("r", 3)], (5 << 32) + 3),
    ("st.release.gpu.global.u32 [%1+4], %2; ld.relaxed.gpu.global.u32 %0, [%1+4];", "r", [("M", None), ("r", 3)], 3),
    ("st.volatile.global.u64 [%1], %2; ld.global.u32 %0, [%1+4];", "r", [("M", None), ("l", 3 << 32)], 3),
    *(
        (f"{{.reg .{kind} o; atom.{words}.{kind} o, [%1], {given}; ld.global.{kind} %0, [%1]; "
         f"mad.lo.{kind.replace('b', 'u')} %0, o, 1000, %0;}}", "r", [("M", None)], 7000 + right)
        for words, kind, given, right in (
            ("global.add", "u32", "5", 12), ("global.min", "u32", "3", 3), ("max", "s32", "30", 30),
            ("global.and", "b32", "3", 3), ("or", "b32", "8", 15), ("xor", "b32", "1", 6), ("exch", "b32", "2", 2),
            ("acq_rel.gpu.global.add", "u32", "1", 8), ("inc", "u32", "6", 0), ("dec", "u32", "6", 6),
            ("cas", "b32", "7, 4", 4), ("cas", "b32", "6, 4", 7),
        )
    ),
    ("red.global.add.u32 [%1], 5; ld.global.u32 %0, [%1];", "r", [("M", None)], 12),
    ("red.release.gpu.global.max.s32 [%1], 50; ld.global.u32 %0, [%1];", "r", [("M", None)], 50),
    ("{.reg .f32 o; atom.global.add.f32 o, [%1], %2; ld.global.f32 %0, [%1];}", "f", [("M", None), ("f", 1.0)], 1.0),
    # of one thread alone
    ("bar.sync 0; membar.gl; fence.acq_rel.gpu; nanosleep.u32 20; mov.u32 %0, 1;", "r", [], 1),
    ("barrier.sync 0; fence.proxy.async; fence.sc.cta; prefetch.global.L2 [%1]; mov.u32 %0, 1;", "r",
     [("M", None)], 1),
    ("{.reg .u32 m; bar.warp.sync ONLY; activemask.b32 m; mov.u32 %0, m;}", "r", [], 1),
    ("{.reg .pred p; shfl.sync.idx.b32 %0|p, %1, 0, 0x1f, 1; @!p mov.u32 %0, 0;}", "r", [("r", 6)], 6),
    ("{.reg .pred p; shfl.sync.up.b32 %0|p, %1, 1, 0, 1; @p mov.u32 %0, 0;}", "r", [("r", 6)], 6),
    ("{.reg .pred p; setp.eq.s32 p, %1, 6; vote.sync.ballot.b32 %0, p, 1;}", "r", [("r", 6)], 1),
    ("{.reg .pred p, q; setp.eq.s32 p, %1, 6; vote.sync.any.pred q, p, 1; selp.b32 %0, 1, 0, q;}", "r", [("r", 5)], 0),
    ("{.reg .pred p, q; setp.eq.s32 p, %1, 6; vote.sync.all.pred q, !p, 1; selp.b32 %0, 1, 0, q;}", "r", [("r", 5)], 1),
    ("match.any.sync.b32 %0, %1, 1;", "r", [("r", 6)], 1),
    ("{.reg .pred p; match.all.sync.b32 %0|p, %1, 1; @!p mov.u32 %0, 9;}", "r", [("r", 6)], 1),
    ("redux.sync.add.s32 %0, %1, 1;", "r", [("r", -6)], -6),
    ("redux.sync.or.b32 %0, %1, 1;", "r", [("r", 6)], 6),
    *(
        (f"mov.u32 %0, %%{name};", "r", [], right)
        for name, right in (
            ("tid.x", 0), ("ntid.x", 1), ("ctaid.y", 0), ("nctaid.z", 1), ("laneid", 0), ("warpid", 0), ("nwarpid", 1),
            ("lanemask_eq", 1), ("lanemask_lt", 0), ("lanemask_le", 1), ("lanemask_gt", -2), ("lanemask_ge", -1),
            ("smid", 0), ("nsmid", 132), ("gridid", 0), ("dynamic_smem_size", 0), ("cluster_ctarank", 0),
            ("cluster_nctarank", 1), ("is_explicit_cluster", 0), ("cluster_nctaid.x", 1), ("nclusterid.y", 1),
        )
    ),
    ("{.reg .u64 a, b; mov.u64 a, %%clock64; mov.u64 b, %%globaltimer; min.u64 %0, 1, a;}", "l", [], 1),
]  # fmt: skip
INSTRUCTIONS = [(template.replace("ONLY", "1"), *rest) for template, *rest in INSTRUCTIONS]


NAMES = [f"{n} {template[:60]}" for n, (template, *_) in enumerate(INSTRUCTIONS)]


@pytest.fixture(scope="module")
def program():
    kernels = []
    for n, (template, out, given, _) in enumerate(INSTRUCTIONS):
        kind = TYPES[out[-1]][0]
        parameters = "".join(f", {TYPES[c][0]} a{i}" for i, (c, _) in enumerate(given) if c != "M")
        operands = ", ".join('"l"(m)' if c == "M" else f'"{c}"(a{i})' for i, (c, _) in enumerate(given))
        code = template.replace("\n", "\\n")
        result = f'"{"" if out[0] == "+" else "="}{out}"(r)'
        kernels.append(
            f"__global__ void k{n}({kind}* y, unsigned* m{parameters}) "
            f'{{ {kind} r = 0; asm volatile("{code}" : {result} : {operands}); *y = r; }}'
        )
    return emulator.compile("\n".join(kernels), "instructions.cu")


def signed(value, bits):
    return (int(value) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


@pytest.mark.parametrize("number", range(len(INSTRUCTIONS)), ids=NAMES)
def test_an_instruction_computes_what_the_isa_says(program, number):
    _, out, given, right = INSTRUCTIONS[number]
    dtype = np.dtype(TYPES[out[-1]][1])
    y, memory = np.zeros(1, dtype), np.array(MEMORY, np.uint32)
    sizes = {"r": 32, "l": 64, "h": 16}
    values = [signed(value, sizes[c]) if c in sizes else value for c, value in given if c != "M"]
    program.launch(f"k{number}", 1, 1, (y, memory, *values))
    assert y[0] == (right if dtype.kind == "f" else signed(right, 8 * dtype.itemsize))


NOT_KNOWN = """
add.cc.u32 %0, %1, %1;
addc.u32 %0, %1, %1;
mad.lo.cc.u32 %0, %1, %1, %1;
fma.rn.relu.f16x2 %0, %1, %1, %1;
ret;
exit;
bra NOWHERE;
.reg .foo x;
ld.param.u32 %0, [x];
ld.global.b128 %0, [%1];
mov.u32 %0, x;
mov.u32 x, %1;
prmt.b32.f4e %0, %1, %1, 1;
setp.foo.s32 p, %1, 1;
bar.red.popc.u32 %0, 0, p;
bar.foo 1;
shfl.sync.foo.b32 %0, %1, 0, 0, 1;
vote.sync.foo.b32 %0, p, 1;
cp.foo [%0], [%1], 16;
wgmma.foo;
mbarrier.foo.b64 [%0];
cvt.rn.e4m3x2.f32 %0, %1, %1;
cvt.rn.f16x2.e4m3x2 %0, %1;
redux.sync.add.f32 %0, %1, 1;
atom.global.add.v2.f32 %0, [%1], %1;
atom.global.min.s64 %0, [%1], %1;
atom.foo.u32 %0, [%1], 1;
st.f8 [%0], %1;
mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 %0, %1, %1, %1;
ldmatrix.sync.aligned.m8n16.x1.shared.b8 {%0}, [%1];
mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 %0, %1, %1, %1;
tcgen05.alloc.x [%0], 32;
unknown
add.u32 %0, %1;
selp.b32 %0, 1, 2, p;
@p mov.u32 %0, 1;
wgmma.mma_async.sync.aligned.m64n9k16.f32.f16.f16 %0, %1;
cp.async.bulk.tensor.3d.im2col.shared::cta.global [%0], [%1, {%1}], [%1];
brkpt2;
""".strip().splitlines()


@pytest.mark.parametrize("template", NOT_KNOWN)
def test_an_instruction_without_a_meaning_ends_the_launch(template):
    text = ptx.translate(template, [("=r", "y")], [("r", "x")], 1)
    assert text.startswith('touchstone::not_covered("inline PTX: '), text


def test_constraints():
    assert "the constraint '=x'" in ptx.translate("mov.u32 %0, 1;", [("=x", "y")], [], 1)
    assert ptx.translate("", [], [], 1) == ptx.translate("// nothing", [], [], 1) == "((void)0)"
    quoted = ptx.translate('foo "a\\b";', [], [], 1)
    assert quoted == 'touchstone::not_covered("inline PTX: foo")'


SHARED = """
__global__ void shared(int* y) {
  __shared__ int s[8];
  for (int i = 0; i < 8; ++i) s[i] = 10 * i;
  unsigned a;
  unsigned long long g, back;
  asm("{.reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t;}" : "=r"(a) : "l"(&s[2]));
  asm("ld.shared.u32 %0, [%1];" : "=r"(y[0]) : "r"(a));
  asm("ld.shared.u32 %0, [%1 + 4];" : "=r"(y[1]) : "r"(a));
  asm volatile("st.shared.u32 [%0 + 8], %1;" :: "r"(a), "r"(7));
  y[2] = s[4];
  asm volatile("atom.shared.add.u32 %0, [%1], 5;" : "=r"(y[3]) : "r"(a));
  y[4] = s[2];
  asm("{.reg .u64 t; cvt.u64.u32 t, %1; cvta.shared.u64 %0, t;}" : "=l"(g) : "r"(a));
  asm("ld.u32 %0, [%1];" : "=r"(y[5]) : "l"(g));
  y[6] = g == (unsigned long long)&s[2];
  asm volatile("red.shared.max.u32 [%0], 99;" :: "r"(a));
  asm("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(y[7]), "=r"(y[8]) : "r"(a));
}
"""


def test_addresses_of_shared_memory():
    y = np.zeros(9, np.int32)
    emulator.compile(SHARED, "shared.cu").launch("shared", 1, 1, (y,))
    assert y.tolist() == [20, 30, 7, 20, 25, 25, 1, 99, 30]


LANES = """
__global__ void lanes(int* y) {
  const int i = threadIdx.x;
  int r;
  asm("{.reg .pred p; shfl.sync.bfly.b32 %0|p, %1, 3, 0x1f, 0xffffffff; @!p mov.u32 %0, 0;}" : "=r"(r) : "r"(i));
  y[i] = r;
  asm("shfl.sync.down.b32 %0, %1, 2, 0x1f, -1;" : "=r"(r) : "r"(i));
  y[32 + i] = r;
  asm("{.reg .pred p; shfl.sync.up.b32 %0|p, %1, 2, 0, -1; @!p mov.u32 %0, 99;}" : "=r"(r) : "r"(i));
  y[64 + i] = r;
  asm("{.reg .pred p; setp.lt.s32 p, %1, 5; vote.sync.ballot.b32 %0, p, -1;}" : "=r"(r) : "r"(i));
  y[96 + i] = r;
  asm("match.any.sync.b32 %0, %1, -1;" : "=r"(r) : "r"(i / 8));
  y[128 + i] = r;
  asm("redux.sync.max.s32 %0, %1, -1;" : "=r"(r) : "r"(i - 40));
  y[160 + i] = r;
  asm("{.reg .pred p; setp.lt.s32 p, %1, 40; vote.sync.uni.pred p, p, -1; selp.b32 %0, 1, 0, p;}" : "=r"(r) : "r"(i));
  y[192 + i] = r;
}
"""


def test_instructions_of_a_warp():
    y = np.zeros((7, 32), np.int32)
    emulator.compile(LANES, "lanes.cu").launch("lanes", 1, 32, (y,))
    i = np.arange(32)
    assert np.array_equal(y[0], i ^ 3) and np.array_equal(y[1], np.where(i < 30, i + 2, i))
    assert np.array_equal(y[2], np.where(i < 2, 99, i - 2)) and (y[3] == 31).all()
    assert np.array_equal(y[4].view(np.uint32), np.uint32(255) << (i // 8 * 8).astype(np.uint32))
    assert (y[5] == -9).all() and (y[6] == 1).all()


DROPPED = """
__global__ void dropped(int* y) {
  __shared__ unsigned long long barrier;
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" :: "r"(at));
  __syncthreads();
  if (threadIdx.x == 1) {
    asm volatile("{.reg .b64 state; DROP state, [%0];}" :: "r"(at));
    return;
  }
  for (int phase = 0; phase < 3; ++phase) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at));
    for (int passed = 0; !passed;)
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
                   : "=r"(passed) : "r"(at), "r"(phase & 1));
    ++y[0];
  }
}
"""


def test_a_thread_that_drops_out_of_a_barrier_is_not_waited_for():
    for drop, phases in (("mbarrier.arrive_drop.shared::cta.b64", 3), ("mbarrier.arrive.shared::cta.b64", 1)):
        y = np.zeros(1, np.int32)
        made = emulator.compile(DROPPED.replace("DROP", drop), "dropped.cu")
        with contextlib.nullcontext() if phases == 3 else pytest.raises(emulator.Deadlock, match="lacks 1 of 2"):
            made.launch("dropped", 1, 2, (y,))
        assert y.tolist() == [phases]
