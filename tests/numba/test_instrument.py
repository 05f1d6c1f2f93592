"""Every load, store and atomic of a translated kernel is preceded by its check: what LLVM itself parses is held against
what was recognised in LLVM's text."""

import re
import shutil

import numpy as np
import pytest

from touchstone.backends import emulator
from touchstone.backends.emulator import numba as emulated

if emulated.why_not():
    pytest.skip(emulated.why_not(), allow_module_level=True)

import llvmlite.binding as llvm
from numba import cuda, float32

from touchstone.backends.emulator.numba import cache, instrument, irtext, launch, prelude
from touchstone.backends.emulator.numba.errors import UnsupportedCode

# Accesses in the forms in which LLVM prints them; %p comes from outside, %own is the thread's own.
FORMS = """
%pair = type { i32, i64 }
@table = internal constant [4 x i32] [i32 1, i32 2, i32 3, i32 4]
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define i32 @forms(ptr %p, ptr noalias %"quoted name", i64 %i, i1 %which) {
  %own = alloca [64 x i8], align 16
  %near = getelementptr inbounds i8, ptr %own, i64 8
  %far = getelementptr i8, ptr %p, i64 %i
  %either = select i1 %which, ptr %own, ptr %p
  %v1 = load i8, ptr %p, align 1
  %v2 = load half, ptr %far, align 2
  %v4 = load i32, ptr %"quoted name", align 4
  %v8 = load double, ptr %p, align 8
  %v16 = load <4 x float>, ptr %p, align 16
  %odd = load <4 x float>, ptr %p, align 4
  %three = load <3 x float>, ptr %p, align 16
  %narrow = load i64, ptr %p, align 4
  %whole = load { i32, i64 }, ptr %p, align 8
  %polled = load volatile i32, ptr %p, align 4
  %atomic = load atomic i32, ptr %p monotonic, align 4
  %scoped = load atomic i32, ptr %p syncscope("singlethread") acquire, align 4
  %mixed = load i32, ptr %either, align 4
  %absolute = load i32, ptr inttoptr (i64 64 to ptr), align 4
  %free = load i32, ptr %near, align 4
  %constant = load i32, ptr getelementptr inbounds ([4 x i32], ptr @table, i64 0, i64 2), align 4
  %chosen = load i32, ptr @table, align 4, !range !0
  store i8 %v1, ptr %p, align 1
  store half %v2, ptr %far, align 2
  store i32 7, ptr %"quoted name", align 4
  store double %v8, ptr %p, align 8, !nontemporal !1
  store <4 x float> <float 1.0, float 2.0, float 3.0, float 4.0>, ptr %p, align 16
  store { i32, i64 } %whole, ptr %p, align 8
  store ptr %own, ptr %p, align 8
  store volatile i32 %v4, ptr %p, align 4
  store atomic i32 %v4, ptr %p release, align 4
  store i32 %v4, ptr null, align 4
  store i32 %v4, ptr %near, align 4
  %added = atomicrmw add ptr %p, i32 %v4 monotonic, align 4
  %real = atomicrmw fadd ptr %p, float 1.0 seq_cst, align 4
  atomicrmw volatile xchg ptr %far, i32 5 syncscope("agent") acq_rel, align 4
  %swapped = cmpxchg ptr %p, i32 0, i32 %v4 monotonic monotonic, align 4
  cmpxchg ptr %far, i32 0, i32 %v4 acq_rel monotonic, align 4
  %weak = cmpxchg weak volatile ptr %p, i64 0, i64 1 acq_rel monotonic, align 8
  call void @llvm.memcpy.p0.p0.i64(ptr align 4 %p, ptr nonnull align 4 dereferenceable(16) %far, i64 16, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %own, ptr getelementptr (i8, ptr @table, i64 4), i64 12, i1 false)
  tail call void @llvm.memmove.p0.p0.i64(ptr %p, ptr %near, i64 %i, i1 false)
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 %p, i8 0, i64 24, i1 false)
  %swap = extractvalue { i32, i1 } %swapped, 0
  ret i32 %swap
}
!0 = !{i32 0, i32 5}
!1 = !{i32 1}
"""


def is_own(pointer, made):
    """Whether a pointer is to a variable of the thread's or a constant, as far as LLVM's values say; `made`: the
    instructions of the function by the names of their results."""
    if pointer.value_kind == llvm.ValueKind.global_variable:
        return True
    if pointer.value_kind == llvm.ValueKind.constant_expr:
        return "getelementptr" in str(pointer) and "@table" in str(pointer)
    source = made.get(pointer.name)
    if source is None or source.opcode == "alloca":
        return source is not None
    return source.opcode in ("getelementptr", "bitcast") and is_own(operands(source)[0], made)


def operands(instruction):
    return list(instruction.operands)


def watched(instruction, verb):
    """The operand that a call checks, if it is the call of a check; `verb`: "read" or "write"."""
    if instruction.opcode != "call":
        return None
    *given, function = operands(instruction)
    name = function.name
    if name == "ts_volatile":
        return str(given[0]) if str(given[2]) == f"i32 {int(verb == 'write')}" else None
    return str(given[0]) if re.fullmatch(rf"ts_{verb}\d+|tsn_{verb}_range", name) else None


def unchecked(text):
    """The accesses of a module that no check goes before."""
    missing = []
    for function in llvm.parse_assembly(text).functions:
        made = {each.name: each for block in function.blocks for each in block.instructions if each.name}
        for block in function.blocks:
            checks = []  # since the last instruction that is none
            for instruction in block.instructions:
                reads, writes = [], []
                if instruction.opcode == "load":
                    reads = operands(instruction)
                elif instruction.opcode == "store":
                    writes = operands(instruction)[1:]
                elif instruction.opcode in ("atomicrmw", "cmpxchg"):
                    missing.append(str(instruction))
                elif instruction.opcode == "call" and operands(instruction)[-1].name.startswith("llvm.mem"):
                    writes, reads = operands(instruction)[:1], operands(instruction)[1:2]
                    reads = reads if "memset" not in operands(instruction)[-1].name else []
                entry = function.name == "tsn_entry" and "!dbg" not in str(instruction)  # takes a kernel's arguments
                for pointers, verb in ((reads, "read"), (writes, "write")):
                    for pointer in pointers:
                        found = any(watched(check, verb) == str(pointer) for check in checks)
                        if not found and not is_own(pointer, made) and not entry:
                            missing.append(str(instruction))
                is_check = watched(instruction, "read") or watched(instruction, "write")
                checks = [*checks, instruction] if is_check else []
    return missing


def parsed(text):
    return str(llvm.parse_assembly(text))


def test_every_form_of_access_is_checked():
    text, places, meets_grid = instrument.instrument(parsed(FORMS), "tsn_base_test")
    assert unchecked(text) == []
    assert unchecked(parsed(FORMS))  # the checker sees them without
    assert not meets_grid and set(places) == {("line unknown", 0)}
    llvm.parse_assembly(text).verify()
    calls = re.findall(r"call \w+ @(ts\w+)\(", text)
    assert {"ts_read1", "ts_read2", "ts_read4", "ts_read8", "ts_read16", "ts_volatile", "tsn_read_range"} <= {*calls}
    assert {"ts_write1", "ts_write16", "tsn_add_i32", "tsn_add_float", "tsn_xchg_i32", "tsn_cas_i64"} <= {*calls}
    assert len(calls) == len(places) == 34


def test_what_is_checked_is_still_done():
    """Atomic operations are the emulator's own; all other accesses stay as they are."""
    text, _, _ = instrument.instrument(parsed(FORMS), "tsn_base_test")
    done = re.compile(r"^  (?:%\S+ = )?(?:load|store|(?:tail )?call void @llvm\.mem\w+).*", re.M)
    assert done.findall(text) == done.findall(parsed(FORMS))


def test_an_address_that_is_a_nested_constant_is_checked():
    held = "ptr addrspacecast (ptr addrspace(3) @held to ptr)"
    text = f"""
@held = internal addrspace(3) global [4 x i32] undef
define void @nested() {{
  %v = load i32, ptr inttoptr (i64 add (i64 ptrtoint ({held} to i64), i64 4) to ptr), align 4
  ret void
}}
"""
    made, _, _ = instrument.instrument(parsed(text), "tsn_base_test")
    assert len(re.findall(r"call void @ts_read4\(ptr inttoptr \(i64 add ", made)) == 1


def test_a_wide_constant_is_checked_in_its_whole_width():
    text, _, _ = instrument.instrument(parsed(FORMS), "tsn_base_test")
    before = text[: text.index("store <4 x float> <float 1.0")].rstrip().splitlines()[-1]
    assert before.startswith("  call void @ts_write16(ptr %p, ")


def test_a_table_or_a_variable_of_the_threads_own_needs_no_check():
    text, _, _ = instrument.instrument(parsed(FORMS), "tsn_base_test")
    assert not re.search(r"call .*@ts\w+\(ptr (?:%own|%near|@table|getelementptr)", text)


@pytest.mark.parametrize("pattern", ["_LOAD", "_STORE", "_RMW", "_CAS", "_COPY"])
def test_an_access_that_no_pattern_takes_apart_is_an_error(monkeypatch, pattern):
    """What would go unchecked must not compile: here by breaking each pattern."""
    broken = getattr(instrument, pattern)
    instructions = tuple((other, method) for other, method in instrument._INSTRUCTIONS if other is not broken)
    monkeypatch.setattr(instrument, "_INSTRUCTIONS", instructions)
    with pytest.raises(UnsupportedCode, match="an access to memory that the emulator cannot check: "):
        instrument.instrument(parsed(FORMS), "tsn_base_test")


UNFILLED = {"{ i8, i16, i8 }": 5, "{ ptr, [3 x float], i8 }": 21, "{ i64, <2 x float>, i1 }": 17, "i24": 3}
FILLED = (
    *("i1", "i8", "i16", "i32", "i64", "i128", "half", "bfloat", "float", "double", "ptr", "[5 x i16]", "<4 x float>"),
    *("[2 x { i8, i32 }]", "{ i32, i64 }", "{ i8, i16, i8, i32, double }", "{ i64, ptr, { ptr, i64 } }", "<2 x half>"),
    *("[0 x i8]", "{ i8, { i8, i64 } }", "[3 x [2 x i64]]", "{ i8, i128 }"),
)


@pytest.mark.parametrize("kind", [*FILLED, *UNFILLED])
def test_an_access_is_as_wide_as_llvm_makes_it(kind):
    """From the first byte to the last that it needs: what fills a struct up at its end is nobody's."""
    module = llvm.parse_assembly(f"@one = external global {kind}")
    data = llvm.create_target_data("e-m:e-i64:64-i128:64-f80:128-n8:16:32:64-S128")  # i128 as numba-cuda aligns it
    stored = data.get_abi_size(module.get_global_variable("one").global_value_type)
    size = irtext.size_of(kind)
    assert size == UNFILLED.get(kind, stored) and stored - size < 8


def test_types_without_a_known_size_are_not_taken_for_a_byte():
    for kind in ("%pair", "label", "x86_fp80", "ptr addrspace(3)"):
        with pytest.raises(UnsupportedCode, match="whose size is not known"):
            irtext.size_of(kind)


@cuda.jit
def tile_sums(x, out, counts):
    tile = cuda.shared.array((8, 32), float32)
    column = cuda.local.array(4, float32)
    ty, tx = cuda.threadIdx.y, cuda.threadIdx.x
    for k in range(4):
        column[(ty + k) % 4] = x[ty, tx * 4 + k]
    tile[ty, tx] = column[0] + column[tx % 4]
    cuda.syncthreads()
    total = tile[tx % 8, ty]
    cuda.atomic.add(out, ty, total)
    cuda.atomic.cas(counts, ty, 0, tx)
    cuda.atomic.max(out, ty + 8, total)


def test_every_access_of_a_compiled_kernel_is_checked(monkeypatch, tmp_path):
    monkeypatch.setenv("TOUCHSTONE_CACHE", str(tmp_path))  # so that it is compiled
    texts, stock = [], instrument.instrument

    def kept(text, first):
        found = stock(text, first)
        texts.append(found[0])
        return found

    monkeypatch.setattr(instrument, "instrument", kept)
    launch(tile_sums, 1, (32, 8), (np.ones((8, 128), np.float32), np.zeros(16, np.float32), np.zeros(8, np.int32)))
    (text,) = texts
    assert unchecked(text) == []
    assert {"ts_read4", "ts_write4", "tsn_add_float", "tsn_cas_i32", "tsn_max_float"} <= {
        *re.findall(r"call \w+ @(ts\w+)\(", text)
    }


def test_the_prelude_is_a_module_that_llvm_takes():
    module = llvm.parse_assembly(prelude.prelude())
    module.verify()
    assert {"tsn.read.ptx.sreg.tid.x", "tsn.barrier0", "___numba_atomic_double_nanmin"} <= {
        function.name for function in module.functions
    }


def test_the_key_of_a_kept_kernel_covers_all_files(monkeypatch, tmp_path):
    folder = tmp_path / "numba"
    shutil.copytree(cache._HERE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(cache, "_HERE", folder)
    before = cache._compilers.__wrapped__()
    assert cache._compilers.__wrapped__() == before
    for file in sorted(each for each in folder.iterdir() if each.is_file()):
        text = file.read_text()
        file.write_text(text + "\n")
        assert cache._compilers.__wrapped__() != before, file.name
        file.write_text(text)


@cuda.jit
def _branches(x, y):
    if cuda.threadIdx.x == 0:
        if x[0] > 2:
            y[0] = x[0]
        elif x[0] < 0:
            y[0] = x[1] + float32(1)
        else:
            y[0] = x[1] * float32(3)


def test_a_store_that_branches_share_has_their_lines(monkeypatch):
    """LLVM makes one of the three, of line 0."""
    monkeypatch.setattr(cache, "load", lambda key: None)
    x, y = np.ones(2, np.float32), np.zeros(1, np.float32)
    with emulator.writers() as writers:
        launch(_branches, 1, 32, (x, y), 0)
        told = writers.of(y.ctypes.data)
    first = _branches.py_func.__code__.co_firstlineno + 4
    assert told.endswith(f"line {first}, {first + 2} or {first + 4} of test_instrument.py")
