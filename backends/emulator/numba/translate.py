"""NVVM IR, as numba-cuda writes it, to code for this CPU that asks the engine before every access.

Three steps: what only a GPU knows is renamed to functions of `support.cpp`; LLVM inlines and simplifies; and what then
is left of loads, stores and atomics gets its call, with a number for the line of Python it comes from.
"""

import ctypes
import functools
import importlib.util
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from touchstone.backends.emulator import compiler
from touchstone.backends.emulator.errors import KernelError
from touchstone.backends.emulator.numba import narrow

_HERE = Path(__file__).parent
SITE = 6073470532629640704  # stands for the number of a line until that is known


class UnsupportedCode(KernelError):
    """A kernel uses something that the emulator has no twin of; the message names it."""


class _Site(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("line", ctypes.c_int64)]


class _Sites:
    """Numbers for places in Python files; 0 is none."""

    def __init__(self) -> None:
        self.places: list[tuple[str, int]] = [("unknown", 0)]
        self._table: Any = None
        self._published = 0

    def add(self, places: list[tuple[str, int]]) -> int:
        """The number of the first; the others follow."""
        self.places += places
        return len(self.places) - len(places)

    def publish(self, support: ctypes.CDLL) -> None:
        if self._table is None or len(self._table) < len(self.places):
            self._table, self._published = (_Site * (2 * len(self.places)))(), 0
            support.tsn_sites(self._table)
        for i in range(self._published, len(self.places)):
            file, line = self.places[i]
            self._table[i] = _Site(file.encode(), line)
        self._published = len(self.places)


sites = _Sites()


@functools.cache
def support() -> tuple[ctypes.CDLL, Path]:
    """What kernels call, compiled if it is not yet, and the engine's library that it calls."""
    engine = compiler.engine()
    command = compiler._command()
    flags = ["-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-fvisibility=hidden", *compiler._processor_flags()]
    text = (_HERE / "support.cpp").read_text()
    key = compiler._digest(text, engine.name, *command, *flags)
    output = compiler.cache_folder() / f"libtouchstone_numba_{key}.so"
    if not output.exists():
        where = [f"-I{compiler._ENGINE}", str(_HERE / "support.cpp"), str(engine), f"-Wl,-rpath,{engine.parent}", "-lm"]
        compiler._build([*command, *flags, *where], output, "the emulator's support for Numba")
    ctypes.CDLL(str(engine), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(output), mode=ctypes.RTLD_GLOBAL)
    llvm.load_library_permanently(str(engine))
    llvm.load_library_permanently(str(output))
    return library, engine


def _new_machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2, jit=True, codemodel="jitdefault"
    )


@functools.cache
def _machine() -> llvm.TargetMachine:
    return _new_machine()


# What the translated code calls. Collectives must neither be merged nor moved to where fewer threads come.
_PRELUDE = f"""
declare i64 @ts_thread_index() memory(none) nounwind willreturn
declare i64 @ts_block_index() memory(none) nounwind willreturn
declare i64 @ts_block_dim() memory(none) nounwind willreturn
declare i64 @ts_grid_dim() memory(none) nounwind willreturn
declare i32 @ts_lane() memory(none) nounwind willreturn
declare void @ts_fence() nounwind
declare i64 @ts_clock() nounwind
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
{{registers}}
define linkonce_odr i32 @"tsn.read.ptx.sreg.warpsize"() alwaysinline {{{{
  ret i32 32
}}}}
define linkonce_odr i32 @"tsn.read.ptx.sreg.laneid"() alwaysinline {{{{
  %r = call i32 @ts_lane()
  ret i32 %r
}}}}
define linkonce_odr void @"tsn.barrier0"() alwaysinline convergent {{{{
  %r = call i32 @tsn_barrier(i32 0, i32 0, i64 {SITE})
  ret void
}}}}
define linkonce_odr i32 @"tsn.barrier0.popc"(i32 %p) alwaysinline convergent {{{{
  %r = call i32 @tsn_barrier(i32 1, i32 %p, i64 {SITE})
  ret i32 %r
}}}}
define linkonce_odr i32 @"tsn.barrier0.and"(i32 %p) alwaysinline convergent {{{{
  %r = call i32 @tsn_barrier(i32 2, i32 %p, i64 {SITE})
  ret i32 %r
}}}}
define linkonce_odr i32 @"tsn.barrier0.or"(i32 %p) alwaysinline convergent {{{{
  %r = call i32 @tsn_barrier(i32 3, i32 %p, i64 {SITE})
  ret i32 %r
}}}}
define linkonce_odr void @"tsn.bar.warp.sync"(i32 %m) alwaysinline convergent {{{{
  call void @tsn_syncwarp(i32 %m, i64 {SITE})
  ret void
}}}}
define linkonce_odr void @"tsn.membar.cta"() alwaysinline {{{{
  call void @ts_fence()
  ret void
}}}}
define linkonce_odr void @"tsn.membar.gl"() alwaysinline {{{{
  call void @ts_fence()
  ret void
}}}}
define linkonce_odr void @"tsn.membar.sys"() alwaysinline {{{{
  call void @ts_fence()
  ret void
}}}}
define linkonce_odr {{{{i32, i1}}}} @"tsn.pair"(i64 %r) alwaysinline {{{{
  %low = trunc i64 %r to i32
  %high = lshr i64 %r, 32
  %flag = trunc i64 %high to i1
  %half = insertvalue {{{{i32, i1}}}} undef, i32 %low, 0
  %all = insertvalue {{{{i32, i1}}}} %half, i1 %flag, 1
  ret {{{{i32, i1}}}} %all
}}}}
define linkonce_odr {{{{i32, i1}}}} @"tsn.shfl.sync.i32"(i32 %m, i32 %mode, i32 %a, i32 %b, i32 %c)
    alwaysinline convergent {{{{
  %r = call i64 @tsn_shuffle(i32 %m, i32 %mode, i32 %a, i32 %b, i32 %c, i64 {SITE})
  %p = call {{{{i32, i1}}}} @"tsn.pair"(i64 %r)
  ret {{{{i32, i1}}}} %p
}}}}
define linkonce_odr {{{{i32, i1}}}} @"tsn.vote.sync"(i32 %m, i32 %mode, i1 %p) alwaysinline convergent {{{{
  %w = zext i1 %p to i32
  %r = call i64 @tsn_vote(i32 %m, i32 %mode, i32 %w, i64 {SITE})
  %q = call {{{{i32, i1}}}} @"tsn.pair"(i64 %r)
  ret {{{{i32, i1}}}} %q
}}}}
define linkonce_odr i32 @"tsn.match.any.sync.i32"(i32 %m, i32 %v) alwaysinline convergent {{{{
  %w = zext i32 %v to i64
  %r = call i64 @tsn_match(i32 %m, i32 0, i64 %w, i64 {SITE})
  %t = trunc i64 %r to i32
  ret i32 %t
}}}}
define linkonce_odr i32 @"tsn.match.any.sync.i64"(i32 %m, i64 %v) alwaysinline convergent {{{{
  %r = call i64 @tsn_match(i32 %m, i32 0, i64 %v, i64 {SITE})
  %t = trunc i64 %r to i32
  ret i32 %t
}}}}
define linkonce_odr {{{{i32, i1}}}} @"tsn.match.all.sync.i32"(i32 %m, i32 %v) alwaysinline convergent {{{{
  %w = zext i32 %v to i64
  %r = call i64 @tsn_match(i32 %m, i32 1, i64 %w, i64 {SITE})
  %p = call {{{{i32, i1}}}} @"tsn.pair"(i64 %r)
  ret {{{{i32, i1}}}} %p
}}}}
define linkonce_odr {{{{i32, i1}}}} @"tsn.match.all.sync.i64"(i32 %m, i64 %v) alwaysinline convergent {{{{
  %r = call i64 @tsn_match(i32 %m, i32 1, i64 %v, i64 {SITE})
  %p = call {{{{i32, i1}}}} @"tsn.pair"(i64 %r)
  ret {{{{i32, i1}}}} %p
}}}}
define linkonce_odr i64 @cudaCGGetIntrinsicHandle(i32 %k) alwaysinline {{{{
  ret i64 1
}}}}
define linkonce_odr i32 @cudaCGSynchronize(i64 %g, i32 %f) alwaysinline convergent {{{{
  call void @tsn_syncgrid(i64 {SITE})
  ret i32 0
}}}}
define linkonce_odr i32 @vprintf(ptr %f, ptr %a) alwaysinline {{{{
  %r = call i32 @tsn_vprintf(ptr %f, ptr %a)
  ret i32 %r
}}}}
"""


def _register(name: str, call: str, shift: int) -> str:
    keep = (
        "%t = trunc i64 %r to i32\n  ret i32 %t"
        if shift == 0
        else f"%s = lshr i64 %r, {shift}\n  %t = trunc i64 %s to i32\n  %m = and i32 %t, 65535\n  ret i32 %m"
    )
    return (
        f'define linkonce_odr i32 @"tsn.read.ptx.sreg.{name}"() alwaysinline {{\n  %r = call i64 @{call}()\n  '
        f"{keep}\n}}\n"
    )


_REGISTERS = "".join(
    _register(f"{name}.{axis}", call, shift)
    for name, call in (
        ("tid", "ts_thread_index"),
        ("ctaid", "ts_block_index"),
        ("ntid", "ts_block_dim"),
        ("nctaid", "ts_grid_dim"),
    )
    for axis, shift in (("x", 0), ("y", 32), ("z", 48))
)

# Numba's atomics that are calls: name, value type, function of support.cpp
_ATOMIC_CALLS = {
    "tsn.atomic.load.add.f32.p0f32": ("float", "add_float"),
    "tsn.atomic.load.add.f64.p0f64": ("double", "add_double"),
    "tsn.atomic.load.inc.32.p0i32": ("i32", "inc_i32"),
    "tsn.atomic.load.dec.32.p0i32": ("i32", "dec_i32"),
    "___numba_atomic_u64_inc": ("i64", "inc_i64"),
    "___numba_atomic_u64_dec": ("i64", "dec_i64"),
    **{
        f"___numba_atomic_{real}_{what}": (real, f"{what}_{real}")
        for real in ("float", "double")
        for what in ("add", "sub", "max", "min", "nanmax", "nanmin")
    },
}


def prelude() -> str:
    text = _PRELUDE.format(registers=_REGISTERS)
    for name, (kind, function) in _ATOMIC_CALLS.items():
        declare = f"declare {kind} @tsn_{function}(ptr, {kind}, i64) nounwind\n"
        text += "" if declare in text else declare
        text += (
            f'define linkonce_odr {kind} @"{name}"(ptr %p, {kind} %v) alwaysinline {{\n'
            f"  %r = call {kind} @tsn_{function}(ptr %p, {kind} %v, i64 {SITE})\n  ret {kind} %r\n}}\n"
        )
    return text


# Inline PTX that has a twin: pattern -> the body of a function with the result type {r} and arguments %0, %1, ...
_C = {
    "f32": "float",
    "f64": "double",
    "s8": "i8",
    "u8": "i8",
    "s16": "i16",
    "u16": "i16",
    "s32": "i32",
    "u32": "i32",
    "s64": "i64",
    "u64": "i64",
}
Twin = Callable[[re.Match[str], str, list[str]], tuple[str, str]]
PTX: list[tuple[re.Pattern[str], Twin]] = []


def twin(pattern: str) -> Callable[[Twin], Twin]:
    """Register what a line of inline PTX that matches `pattern` does here: (declarations, body), in LLVM IR."""

    def register(function: Twin) -> Twin:
        PTX.append((re.compile(pattern), function))
        return function

    return register


@twin(r"activemask\.b32 \$0;")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "", f"%r = call i32 @tsn_activemask(i64 {SITE})\n  ret i32 %r"


@twin(r"mov\.u32 \$0, %lanemask_lt;")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "", "%l = call i32 @ts_lane()\n  %b = shl i32 1, %l\n  %r = sub i32 %b, 1\n  ret i32 %r"


@twin(r"mov\.u32 \$0, %dynamic_smem_size;")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return (
        "declare i64 @ts_dynamic_shared_bytes()",
        "%l = call i64 @ts_dynamic_shared_bytes()\n  %r = trunc i64 %l to i32\n  ret i32 %r",
    )


@twin(r"nanosleep\.u32 \$0;")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "", "call void @tsn_sleep(i32 %0)\n  ret void"


@twin(r"brkpt;")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "", "ret void"


@twin(r"cvt\.(?:rni\.)?(\w+)\.f16 \$0, \$1;")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    name = f"tsn_half_to_{match[1]}"
    return f"declare {result} @{name}(i16 zeroext)", f"%r = call {result} @{name}(i16 zeroext %0)\n  ret {result} %r"


@twin(r"cvt\.rn\.f16\.(\w+) \$0, \$1;")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    name = f"tsn_{match[1].replace('f32', 'f32').replace('f64', 'f64')}_to_half"
    extend = {"s8": " signext", "s16": " signext", "u8": " zeroext", "u16": " zeroext"}.get(match[1], "")
    return (f"declare i16 @{name}({types[0]}{extend})", f"%r = call i16 @{name}({types[0]}{extend} %0)\n  ret i16 %r")


@twin(r"cvt\.rn\.(f16|bf16)x2\.f32 \$0, \$1, \$2;")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    name, kind = ("tsn_f32_to_half", "float") if match[1] == "f16" else ("tsn_f64_to_bfloat", "double")
    body = ""
    for i, part in enumerate(("high", "low")):
        if kind == "double":
            body += f"%w{i} = fpext float %{i} to double\n  "
        value = f"%w{i}" if kind == "double" else f"%{i}"
        body += f"%n{i} = call i16 @{name}({kind} {value})\n  %{part} = zext i16 %n{i} to i32\n  "
    return f"declare i16 @{name}({kind})", f"{body}%s = shl i32 %high, 16\n  %r = or i32 %s, %low\n  ret i32 %r"


@twin(r"ex2\.approx(?:\.ftz)?\.f32 \$0, \$1;")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "declare float @exp2f(float)", "%r = call float @exp2f(float %0)\n  ret float %r"


@twin(r"tanh\.approx\.f32 \$0, \$1;")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "declare float @tanhf(float)", "%r = call float @tanhf(float %0)\n  ret float %r"


@twin(r"ld\.global\.(ca|cg|cs|lu|cv|nc)\.b\d+ \$0, \[\$1\];")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    volatile = "volatile " if match[1] == "cv" else ""
    return "", f"%r = load {volatile}{result}, ptr %0\n  ret {result} %r"


@twin(r"st\.global\.(wb|cg|cs|wt)\.b\d+ \[\$0\], \$1;")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "", f"store {types[1]} %1, ptr %0\n  ret void"


@twin(r"ld\.(?:global|shared)?\.?(?:nc\.)?v([24])\.f32 \{.*\}, ?\[\$\d\];")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    count = int(match[1])
    body = f"%v = load <{count} x float>, ptr %0, align {4 * count}\n"
    last = "undef"
    for i in range(count):
        body += f"  %e{i} = extractelement <{count} x float> %v, i32 {i}\n"
        body += f"  %s{i} = insertvalue {result} {last}, float %e{i}, {i}\n"
        last = f"%s{i}"
    return "", f"{body}  ret {result} {last}"


@twin(r"st\.(?:global|shared)?\.?v([24])\.f32 \[\$0\], ?\{.*\};")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    count = int(match[1])
    body, last = "", "undef"
    for i in range(count):
        body += f"%v{i} = insertelement <{count} x float> {last}, float %{i + 1}, i32 {i}\n  "
        last = f"%v{i}"
    return "", f"{body}store <{count} x float> {last}, ptr %0, align {4 * count}\n  ret void"


@twin(r"mma\.sync\.aligned\.(m16n8k16|m16n8k8)\.row\.col\.f32\.(bf16|f16|tf32)\.(?:bf16|f16|tf32)\.f32\s.*")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    if (match[1] == "m16n8k8") != (match[2] == "tf32") or len(types) != 10:
        raise UnsupportedCode(f"inline PTX without a twin in the emulator: {match[0]}")
    name = f"tsn_mma_{match[2]}"
    body, last = (
        "%d = alloca [4 x float]\n  %a = alloca [4 x i32]\n  %b = alloca [2 x i32]\n  %c = alloca [4 x float]\n",
        "undef",
    )
    for i, kind in enumerate(types):
        array, at = ("a", i) if i < 4 else ("b", i - 4) if i < 6 else ("c", i - 6)
        body += f"  %p{i} = getelementptr i32, ptr %{array}, i64 {at}\n  store {kind} %{i}, ptr %p{i}\n"
    body += f"  call void @{name}(ptr %d, ptr %a, ptr %b, ptr %c, i64 {SITE})\n"
    for i in range(4):
        body += f"  %q{i} = getelementptr float, ptr %d, i64 {i}\n  %e{i} = load float, ptr %q{i}\n"
        body += f"  %s{i} = insertvalue {result} {last}, float %e{i}, {i}\n"
        last = f"%s{i}"
    declaration = f"declare void @{name}(ptr, ptr, ptr, ptr, i64) convergent nomerge nounwind"
    return declaration, f"{body}  ret {result} {last}"


_LDMATRIX = r"ldmatrix\.sync\.aligned\.m8n8\.x4{}\.shared\.b16 \{{\$0, \$1, \$2, \$3\}}, \[\$4\];"


@twin(
    rf"\{{ \.reg \.pred (\w+); setp\.ne\.s32 \1, \$5, 0; "
    rf"@\1 {_LDMATRIX.format('.trans')} @!\1 {_LDMATRIX.format('')} \}}"
)
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    body, last = f"%m = alloca [4 x i32]\n  call void @tsn_ldmatrix_x4(ptr %m, ptr %0, i32 %1, i64 {SITE})\n", "undef"
    for i in range(4):
        body += f"  %q{i} = getelementptr i32, ptr %m, i64 {i}\n  %e{i} = load i32, ptr %q{i}\n"
        body += f"  %s{i} = insertvalue {result} {last}, i32 %e{i}, {i}\n"
        last = f"%s{i}"
    declaration = "declare void @tsn_ldmatrix_x4(ptr, ptr, i32, i64) convergent nomerge nounwind"
    return declaration, f"{body}  ret {result} {last}"


@twin(r"cp\.async\.cg\.shared\.global \[\$0\], \[\$1\], 16, \$2;")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    declaration = "declare void @tsn_copy16(ptr, ptr, i32, i64) nounwind"
    return declaration, f"call void @tsn_copy16(ptr %0, ptr %1, i32 %2, i64 {SITE})\n  ret void"


@twin(r"cp\.async\.(?:commit_group|wait_group \d+|wait_all);")
def _(match: re.Match[str], result: str, types: list[str]) -> tuple[str, str]:
    return "", "ret void"


_ASM = re.compile(
    r'call (?P<result>.+?) asm\s+(?:sideeffect |alignstack |inteldialect )*"(?P<code>(?:[^"\\]|\\.)*)", "[^"]*"\s*\('
)


def _types_of(arguments: str) -> list[str]:
    """The types in "i8* %\".1\", {i32, float} %x"."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(arguments + ","):
        depth += (c in "([{<") - (c in ")]}>")
        if c == "," and depth == 0:
            word = arguments[start:i].strip()
            if word:
                kind = re.match(r'(.+?)\s+(?:[%@"].*|-?[\w.+]+|undef|null)$', word)
                out.append((kind[1] if kind else word).strip())
            start = i + 1
    return out


def _closing(text: str, start: int) -> int:
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "([{<") - (text[i] in ")]}>")
        if depth == 0:
            return i
    raise ValueError("unbalanced")


class _Asm:
    """Inline PTX becomes calls of functions made for it."""

    def __init__(self) -> None:
        self.declarations: set[str] = set()
        self.functions: dict[tuple[str, str, tuple[str, ...]], tuple[str, str]] = {}

    def replace(self, text: str) -> str:
        out, at = [], 0
        used = set()
        for found in _ASM.finditer(text):
            code = re.sub(r"\\([0-9A-Fa-f]{2})", lambda m: chr(int(m[1], 16)), found["code"]).strip()
            end = _closing(text, found.end() - 1)
            types = ["ptr" if t.endswith("*") else t for t in _types_of(text[found.end() : end])]
            result = found["result"].strip()
            if result.endswith("*") or re.search(r"\)\*?$", result):
                result = result[: result.index("(")].strip()  # a function type
            name = self._function(code, result, tuple(types))
            used.add(f'\ndeclare {result} @"{name}"({", ".join(types)})')
            out += [text[at : found.start()], f'call {result} @"{name}"(']
            at = found.end()
        return "".join([*out, text[at:], *sorted(used), "\n"])

    def _function(self, code: str, result: str, types: tuple[str, ...]) -> str:
        key = (code, result, types)
        if key not in self.functions:
            for pattern, make in PTX:
                match = pattern.fullmatch(code)
                if match:
                    declaration, body = make(match, result, list(types))
                    break
            else:
                raise UnsupportedCode(f"inline PTX without a twin in the emulator: {code}")
            self.declarations.update(line for line in declaration.splitlines() if line)
            name = f"tsn.asm.{len(self.functions)}"
            parameters = ", ".join(f"{kind} %{i}" for i, kind in enumerate(types))
            body = f"entry:\n  {body}"
            self.functions[key] = (
                name,
                f'define linkonce_odr {result} @"{name}"({parameters}) alwaysinline {{\n{body}\n}}\n',
            )
        return self.functions[key][0]

    def text(self) -> str:
        return "\n".join([*sorted(self.declarations), *(text for _, text in self.functions.values())])


_DROPPED = re.compile(
    r'^(?:target .*|@"?llvm\.used"? = .*|\s*call void @"?llvm\.dbg\.\w+"?\(.*|declare .*llvm\.dbg\..*)$', re.M
)


def _neutral(text: str) -> str:
    """A module without what ties it to a GPU."""
    text = _DROPPED.sub("", text)
    text = text.replace('"llvm.nvvm.', '"tsn.').replace("addrspacecast", "bitcast")
    return re.sub(r" addrspace\(\d\)", "", text)


_FUNCTION = re.compile(r"^(?:declare|define)[^@]*@\"?(__nv_\w+)\"?\(", re.M)


@functools.cache
def _libdevice(name: str) -> str:
    """The name of a function here that does what libdevice's does."""
    support()
    if llvm.address_of_symbol(name):
        return name
    bare = name.removeprefix("__nv_")
    for candidate in (bare, bare.removeprefix("fast_"), re.sub(r"_r[nzud]$", "", bare)):
        if llvm.address_of_symbol(candidate):
            return candidate
    raise UnsupportedCode(f"libdevice's {name} has no twin in the emulator")


_DECLARED = re.compile(r'^declare [^@\n]*@"?([^"(\n]+)"?\(', re.M)


def _declared_once(text: str) -> str:
    """Two functions of libdevice may have become one."""
    seen: set[str] = set()

    def keep(found: re.Match[str]) -> str:
        first = found[1] not in seen
        seen.add(found[1])
        return found[0] if first else ""

    return re.sub(r'^declare [^@\n]*@"?([^"(\n]+)"?\(.*$', keep, text, flags=re.M)


# Loads, stores and atomics as LLVM prints them.
_NAME = r'%(?:"[^"]*"|[\w.$-]+)|@(?:"[^"]*"|[\w.$-]+)'
_DBG = re.compile(r"!dbg !(\d+)")
_LOAD = re.compile(
    rf"^  (?:{_NAME}) = load (atomic )?(volatile )?(.+?), ptr ({_NAME}|getelementptr.*?\)), (?:.*?)align (\d+)(.*)$"
)
_STORE = re.compile(rf"^  store (atomic )?(volatile )?(.+), ptr ({_NAME}|getelementptr.*?\)), (?:.*?)align (\d+)(.*)$")
_RMW = re.compile(rf"^  (?:({_NAME}) = )?atomicrmw (?:volatile )?(\w+) ptr ({_NAME}), (\w+) (\S+) .*$")
_CAS = re.compile(rf"^  (?:({_NAME}) = )?cmpxchg (?:weak )?(?:volatile )?ptr ({_NAME}), (\w+) (\S+), \w+ (\S+) .*$")
_COPY = re.compile(
    rf"^  (?:tail )?call void @llvm\.mem(cpy|move|set)\S*\(ptr [^%@]*({_NAME}), (?:ptr [^%@]*({_NAME})|i8 \S+), "
    rf"i64 (\S+), i1 .*$"
)
_LOCAL = re.compile(
    rf"^  ({_NAME}) = (?:alloca|getelementptr (?:inbounds |nuw |nusw )*.+?, ptr ({_NAME})|bitcast ptr ({_NAME}))\b.*$"
)
_CELL = re.compile(r"%(?:a|[pq]\d+)")  # where tsn_entry takes a kernel's arguments from
_SIMPLE = {
    "i1": 1,
    "i8": 1,
    "i16": 2,
    "half": 2,
    "bfloat": 2,
    "i32": 4,
    "float": 4,
    "i64": 8,
    "double": 8,
    "ptr": 8,
    "i128": 16,
}


def _size(kind: str) -> int:
    """Bytes of a type; of a struct without its padding at the end."""
    kind = kind.strip()
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if vector := re.fullmatch(r"[<\[](\d+) x (.+)[>\]]", kind):
        return int(vector[1]) * _size(vector[2])
    if kind.startswith("{"):
        at = 0
        parts, depth, start = [], 0, 1
        for i, c in enumerate(kind[1:-1] + ",", 1):
            depth += (c in "([{<") - (c in ")]}>")
            if c == "," and depth == 0:
                parts.append(kind[start:i])
                start = i + 1
        for part in parts:
            size = _size(part)
            natural = min(size & -size, 8) if size else 1
            at = (at + natural - 1) // natural * natural + size
        return at
    if odd := re.fullmatch(r"i(\d+)", kind):
        return (int(odd[1]) + 7) // 8
    return 1


@functools.cache
def _numba_folders() -> tuple[str, ...]:
    """Where Numba's own functions lie, whose lines tell a user nothing."""
    found = (importlib.util.find_spec(name) for name in ("numba", "numba_cuda"))
    return tuple(os.path.join(folder, "") for spec in found if spec for folder in spec.submodule_search_locations or ())


class _Lines:
    """From the numbers of debug locations to places in files."""

    def __init__(self, text: str) -> None:
        self._nodes: dict[str, str] = dict(re.findall(r"^!(\d+) = (.+)$", text, re.M))
        self._files: dict[str, str] = {}
        self._places: dict[str, tuple[str, int]] = {}

    def _field(self, node: str, name: str) -> str | None:
        found = re.search(rf"\b{name}: !?(\"[^\"]*\"|\w+)", self._nodes.get(node, ""))
        return found[1].strip('"') if found else None

    def _file(self, scope: str | None) -> str:
        while scope is not None:
            if scope in self._files:
                return self._files[scope]
            node = self._field(scope, "file")
            if node:
                path = os.path.join(self._field(node, "directory") or "", self._field(node, "filename") or "unknown")
                self._files[scope] = path
                return path
            scope = self._field(scope, "scope")
        return "unknown"

    def of(self, number: str) -> tuple[str, int]:
        """The innermost place that is not Numba's own."""
        if number not in self._places:
            at: str | None = number
            place, first = ("unknown", 0), None
            while at is not None:
                line = int(self._field(at, "line") or 0)
                place = (self._file(self._field(at, "scope")), line)
                first = first or place
                if line and not place[0].startswith(_numba_folders()):
                    break
                at = self._field(at, "inlinedAt")
            else:
                place = first or place
            self._places[number] = place
        return self._places[number]


def _instrument(text: str, first: str) -> tuple[str, list[tuple[str, int]], bool]:
    """The module with its calls of the engine, the places that these name, and whether it meets the whole grid.

    A place is named by its position in the list, added to the address of the symbol `first`.
    """
    lines = _Lines(text)
    places: list[tuple[str, int]] = []
    out: list[str] = []
    local: set[str] = set()
    used: set[str] = set()
    fresh = 0

    def site(line: str) -> str:
        found = _DBG.search(line)
        places.append(lines.of(found[1]) if found else ("line unknown", 0))
        return f"ptrtoint (ptr getelementptr (i8, ptr @{first}, i64 {len(places) - 1}) to i64)"

    def access(line: str, verb: str, kind: str, pointer: str, align: int, volatile: bool) -> None:
        if pointer in local or pointer.startswith("@"):
            return
        if _CELL.fullmatch(pointer) and not _DBG.search(line):
            return
        base = re.search(rf"ptr ({_NAME})", pointer) if pointer.startswith("getelementptr") else None
        if base and (base[1] in local or base[1].startswith("@")):
            return
        size, number = _size(kind), site(line)
        if volatile:
            used.add("declare void @ts_volatile(ptr, i64, i32, i64) nounwind")
            out.append(f"  call void @ts_volatile(ptr {pointer}, i64 {size}, i32 {int(verb == 'write')}, i64 {number})")
        elif size in (1, 2, 4, 8, 16) and align >= size:
            used.add(f"declare void @ts_{verb}{size}(ptr, i64) nounwind")
            out.append(f"  call void @ts_{verb}{size}(ptr {pointer}, i64 {number})")
        else:
            used.add(f"declare void @tsn_{verb}_range(ptr, i64, i64) nounwind")
            out.append(f"  call void @tsn_{verb}_range(ptr {pointer}, i64 {size}, i64 {number})")

    for line in text.splitlines():
        if line.startswith("define"):
            local.clear()
        elif line.startswith("  "):
            if found := _LOCAL.match(line):
                base = found[2] or found[3]
                if base is None or base in local or base.startswith("@"):
                    local.add(found[1])
            elif found := _LOAD.match(line):
                access(line, "read", found[3], found[4], int(found[5]), bool(found[2]))
            elif found := _STORE.match(line):
                stored = _types_of(found[3])
                access(line, "write", stored[0] if stored else "i8", found[4], int(found[5]), bool(found[2]))
            elif found := _RMW.match(line):
                result, what, pointer, kind, value = found.groups()
                real = {"fadd": "add", "fsub": "sub", "fmax": "max", "fmin": "min"}.get(what, what)
                name = f"tsn_{real}_{kind}"
                used.add(f"declare {kind} @{name}(ptr, {kind}, i64) nounwind")
                value = value.rstrip(",")
                call = f"call {kind} @{name}(ptr {pointer}, {kind} {value}, i64 {site(line)})"
                out.append(f"  {result} = {call}" if result else f"  {call}")
                continue
            elif found := _CAS.match(line):
                result, pointer, kind, compare, value = found.groups()
                name, fresh = f"tsn_cas_{kind}", fresh + 1
                used.add(f"declare {kind} @{name}(ptr, {kind}, {kind}, i64) nounwind")
                old = f"%tsn.old.{fresh}"
                out.append(
                    f"  {old} = call {kind} @{name}(ptr {pointer}, {kind} {compare}, {kind} {value.rstrip(',')}, "
                    f"i64 {site(line)})"
                )
                if result:
                    out.append(f"  %tsn.same.{fresh} = icmp eq {kind} {old}, {compare}")
                    out.append(f"  %tsn.part.{fresh} = insertvalue {{ {kind}, i1 }} undef, {kind} {old}, 0")
                    out.append(f"  {result} = insertvalue {{ {kind}, i1 }} %tsn.part.{fresh}, i1 %tsn.same.{fresh}, 1")
                continue
            elif found := _COPY.match(line):
                for pointer, verb in ((found[2], "write"), (found[3], "read")):
                    if pointer and pointer not in local and not pointer.startswith("@"):
                        used.add(f"declare void @tsn_{verb}_range(ptr, i64, i64) nounwind")
                        out.append(f"  call void @tsn_{verb}_range(ptr {pointer}, i64 {found[4]}, i64 {site(line)})")
            if str(SITE) in line:
                line = line.replace(str(SITE), site(line))
        out.append(line)
    known = set(_DECLARED.findall(text))
    out += [line for line in sorted(used) if line.split("@")[1].split("(")[0] not in known]
    out.append(f"@{first} = external global i8")
    return "\n".join(out), places, "call void @tsn_syncgrid(" in text


def _optimise(module: llvm.ModuleRef, level: int) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = options.slp_vectorization = options.loop_interleaving = False
    builder = llvm.create_pass_builder(_machine(), options)
    builder.getModulePassManager().run(module, builder)


class Source(NamedTuple):
    """CUDA C++ that a kernel is linked with."""

    name: str
    data: str
    kind: str = "cu"


def _resolve(names: list[str], linked_with: Sequence[Source]) -> None:
    """Compile what a kernel is linked with, if one of `names` is not known yet."""
    missing = [name for name in names if not llvm.address_of_symbol(name)]
    if any(name.startswith(("tsn_mma_", "tsn_ldmatrix_")) for name in missing):
        _link(_source_of(_HERE / "mma.cpp"))
    for file in linked_with if missing else ():
        _link(file)
    missing = [name for name in missing if not llvm.address_of_symbol(name)]
    if missing:
        raise UnsupportedCode(f"a function that the emulator does not know: {', '.join(sorted(missing))}")


def _compiled_source(text: str, name: str, engine: Path, watched: bool) -> Path:
    """The library of CUDA C++; `watched`: its accesses are checked, though not by line."""
    command = compiler._command()
    flags = [
        "-std=c++17",
        "-O2",
        "-g1",
        "-fPIC",
        "-ffp-contract=off",
        "-fno-strict-aliasing",
        "-fwrapv",
        "-w",
        *compiler._processor_flags(),
        *(compiler.sanitizers(command) if watched else ()),
    ]
    headers = str(compiler.cuda_headers())
    key = compiler._digest(text, compiler._own_text(), engine.name, headers, *command, *flags)
    output = compiler.cache_folder() / f"{name}_{key}.so"
    if not output.exists():
        with tempfile.TemporaryDirectory(dir=compiler.cache_folder(), prefix="source_") as folder:
            source, code = Path(folder) / f"{name}.cpp", Path(folder) / "code.o"
            source.write_text(text)
            include = [f"-I{compiler._INCLUDE}", f"-I{compiler._ENGINE}", "-isystem", headers]
            compiler._build([*command, *flags, *include, "-c", str(source)], code, name)
            compiler._build(
                [*command, "-shared", str(code), str(engine), f"-Wl,-rpath,{engine.parent}", "-lm"], output, name
            )
    return output


def _source_of(file: Any) -> Source:
    """What numba-cuda's LinkableCode or a path stands for; of the wrong kind it raises when it is needed."""
    if isinstance(file, (str, os.PathLike)):
        name = str(file)
        plain = name.endswith((".cu", ".cpp"))
        return Source(name, Path(file).read_text() if plain else "", "cu" if plain else "other")
    return Source(file.name, file.data.decode() if isinstance(file.data, bytes) else str(file.data), file.kind)


def _link(file: Source) -> None:
    name, text = file.name, file.data
    if file.kind != "cu":
        raise UnsupportedCode(f"a kernel linked with {name}: the emulator takes CUDA C++ (.cu) only")
    reason = compiler.why_not()
    if reason:
        raise RuntimeError(reason)
    own = "_nbst(" in text or Path(name).parent == _HERE or "numba_cuda" in Path(name).parts
    headers = f'#include <new>\n#include "touchstone.h"\n#line 1 "{name}"\n'
    engine = compiler.engine()
    path = _compiled_source(headers + text, Path(name).stem, engine, watched=not own)
    llvm.load_library_permanently(str(path))


class ObjectCode(NamedTuple):
    """A kernel's object code for this CPU and what it takes to load it; all of it can be pickled."""

    code: bytes
    base: str  # the symbol that stands for the number of the first of its places
    places: list[tuple[str, int]]
    cooperative: bool
    constants: list[tuple[str, int]]  # arrays of constants: name, bytes
    functions: list[str]  # that it calls
    sources: list[Source]


class NativeCode(NamedTuple):
    entry: int  # void (*)(void** arguments)
    cooperative: bool
    constants: list[tuple[int, int]]  # where arrays of constants lie: start, bytes
    keep: Any


def build(modules: list[str], kernel: str, types: list[str], linked_with: Sequence[Any] = ()) -> ObjectCode:
    """Object code of the NVVM `modules`, whose function `kernel` takes a pointer for its result and `types`.

    `linked_with`: CUDA C++ as numba-cuda's LinkableCode or the paths of files.
    """
    support()
    asm = _Asm()
    texts = [asm.replace(_neutral(text)) for text in modules]
    loads = "".join(
        (
            f"  %p{i} = getelementptr ptr, ptr %a, i64 {i}\n  %q{i} = load ptr, ptr %p{i}\n  %v{i} = load {kind}, "
            f"ptr %q{i}\n"
        )
        for i, kind in enumerate(types)
    )
    values = "".join(f", {kind} %v{i}" for i, kind in enumerate(types))
    entry = (
        f'declare i32 @"{kernel}"(ptr{"".join(", " + kind for kind in types)})\n'
        f"define void @tsn_entry(ptr %a) {{\n  %r = alloca ptr\n{loads}"
        f'  %s = call i32 @"{kernel}"(ptr %r{values})\n'
        "  %positive = icmp sgt i32 %s, 0\n  %python = icmp eq i32 %s, -1\n  %bad = or i1 %positive, %python\n"
        "  br i1 %bad, label %raised, label %done\nraised:\n  call void @tsn_raise(i32 %s)\n  unreachable\n"
        "done:\n  ret void\n}\n"
    )
    known = narrow.definitions()
    wanted = {name for text in texts for name in _DECLARED.findall(text)}
    start = _declared_once(
        prelude() + asm.text() + entry + "".join(known[name] for name in sorted(wanted & set(known)))
    )
    linked = llvm.parse_assembly(start)
    linked.triple = llvm.get_process_triple()
    linked.data_layout = str(_machine().target_data)
    for text in texts:
        for name in set(_FUNCTION.findall(text)):
            text = re.sub(rf'@"?{name}"?\(', f"@{_libdevice(name)}(", text)
        text = _declared_once(text)
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = linked.triple, linked.data_layout
        linked.link_in(module)
    functions = [f.name for f in linked.functions if f.is_declaration and not f.name.startswith("llvm.")]
    sources = [_source_of(file) for file in linked_with]
    _resolve(functions, sources)
    for function in linked.functions:
        if not function.is_declaration and function.name != "tsn_entry":
            function.linkage = "internal"
    _optimise(linked, 2)
    text = str(linked)
    base = f"tsn_base_{compiler._digest(text)}"
    text, places, cooperative = _instrument(text, base)
    module = llvm.parse_assembly(text)
    module.verify()
    _optimise(module, 1)
    arrays = [variable for variable in module.global_variables if "_cudapy_cmem" in variable.name]
    for variable in arrays:
        variable.linkage = "external"
    constants = [(g.name, _machine().target_data.get_abi_size(g.global_value_type)) for g in arrays]
    return ObjectCode(_machine().emit_object(module), base, places, cooperative, constants, functions, sources)


def load(built: ObjectCode) -> NativeCode:
    """Native code of this process."""
    support()
    _resolve(built.functions, built.sources)
    if not llvm.address_of_symbol(built.base):
        llvm.add_symbol(built.base, sites.add(built.places))
    empty = llvm.parse_assembly("")
    empty.triple = llvm.get_process_triple()
    jit = llvm.create_mcjit_compiler(empty, _new_machine())  # which it owns from now on
    jit.add_object_file(llvm.ObjectFileRef.from_data(built.code))
    jit.finalize_object()
    constants = [(jit.get_global_value_address(name), size) for name, size in built.constants]
    return NativeCode(jit.get_function_address("tsn_entry"), built.cooperative, constants, jit)
