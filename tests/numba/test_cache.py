"""What the emulator keeps of a Numba kernel is used again where nothing changed that it depends on, and nowhere
else."""

import contextlib
import enum
import functools
import hashlib
import importlib.util
import itertools
import json
import linecache
import math
import pickle
import re
import sys
import threading
import time
import types as python
from typing import NamedTuple

import numpy as np
import pytest

from tests.night import some
from tests.processes import run_touchstone
from touchstone.backends.emulator import numba as emulated

if emulated.why_not():
    pytest.skip(emulated.why_not(), allow_module_level=True)

from numba import cuda
from numba.cuda import dispatcher, types

from touchstone.backends.emulator.errors import OutOfBounds
from touchstone.backends.emulator.numba import build, cache, front, launch, linking, packing, patches
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec.cases import plan

FLOATS = types.Array(types.float32, 1, "C")
TEXT = """
import enum
from typing import NamedTuple
import numpy as np
from llvmlite import ir
from numba import cuda, float32
from numba.cuda import types
from numba.cuda.extending import intrinsic, overload
import {beside} as beside

FACTOR = 3
TABLE = np.array([1.0, 2.0], np.float32)

class Kind(enum.IntEnum):
    first = 1

class Pair(NamedTuple):
    left: int
    right: int

def constant():
    return 7

@intrinsic
def seven(typingctx):
    def lower(context, builder, signature, arguments):
        return ir.Constant(ir.IntType(64), constant())
    return types.int64(), lower

@cuda.jit(device=True)
def inner(v):
    return v + np.float32(1)

@cuda.jit(device=True)
def device(v):
    return inner(v) * float32(FACTOR)

def make(width):
    @cuda.jit(fastmath=False)
    def kernel(x):
        row = cuda.shared.array(width, float32)
        i = cuda.threadIdx.x
        row[i] = cuda.const.array_like(TABLE)[0]
        x[i] = device(x[i]) + seven() + beside.scale(row[i]) + Kind.first.value + beside.DEEP.OFFSET
        x[i] += Pair(i, 2).right
    return kernel

kernel = make(32)
"""
BESIDE = """
import {deep} as DEEP
from numba import cuda
@cuda.jit(device=True)
def scale(v):
    return v * 2
"""


def loaded(tmp_path, edits=(), beside=BESIDE, offset=5):
    """The kernel of TEXT with `edits` made, in modules of the same names and files as ever."""

    def module(name, text):
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(name, file)
        made = importlib.util.module_from_spec(spec)
        sys.modules[name] = made
        exec(compile(text, str(file), "exec"), vars(made))
        return made

    module("tsn_deep", f"OFFSET = {offset}\n")
    module("tsn_beside", beside.format(deep="tsn_deep"))
    text = TEXT.format(beside="tsn_beside")
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    linecache.checkcache()
    return module("tsn_kernels", text).kernel


@pytest.fixture(autouse=True)
def prepared(tmp_path, monkeypatch):
    front.prepare()
    yield
    for name in ("tsn_deep", "tsn_beside", "tsn_kernels", "tsn_extension"):
        sys.modules.pop(name, None)
        cache._seen.pop(name, None)


def test_without_a_compiler_nothing_is_prepared(monkeypatch):
    monkeypatch.setattr(front, "why_not", lambda: "no compiler")
    with pytest.raises(RuntimeError, match="^no compiler$"):
        front.prepare.__wrapped__()


def test_one_thread_at_a_time_compiles_for_the_engine():
    """Within, functions of numba-cuda's are exchanged, which another thread must not put back."""
    inside, most = 0, 0

    def work():
        nonlocal inside, most
        with patches.emulating():
            inside += 1
            most = max(most, inside)
            time.sleep(0.02)
            inside -= 1

    before = [getattr(owner, name, None) for owner, name, _ in patches.PATCHES]
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert [getattr(owner, name, None) for owner, name, _ in patches.PATCHES] == before


def test_the_same_kernel_has_the_same_key(tmp_path):
    first = cache.key(loaded(tmp_path), (FLOATS,))
    assert first is not None
    assert cache.key(loaded(tmp_path), (FLOATS,)) == first
    assert (
        cache.key(
            loaded(tmp_path, [("kernel = make(32)", "kernel = make(32)\ndef other():\n    return 5\n")]), (FLOATS,)
        )
        == first
    )


@pytest.mark.parametrize(
    "edits",
    [
        [("device(x[i]) +", "device(x[i]) -")],
        [("FACTOR = 3", "FACTOR = 4")],
        [("FACTOR = 3", "FACTOR = 3.0")],
        [("[1.0, 2.0]", "[1.5, 2.0]")],
        [("first = 1", "first = 2")],
        [("left: int\n    right: int", "right: int\n    left: int")],
        [("return 7", "return 8")],
        [("v + np.float32(1)", "v + np.float32(2)")],
        [("make(32)", "make(64)")],
        [("fastmath=False", "fastmath=True")],
        [("ir.IntType(64), constant()", "ir.IntType(64), 1 + constant()")],
        [("        row = cuda", "        column = cuda"), ("row[i]", "column[i]")],
        [("import enum", "\nimport enum")],
    ],
    ids=lambda edits: edits[0][1].strip(),
)
def test_whatever_a_kernel_refers_to_changes_the_key(tmp_path, edits):
    assert cache.key(loaded(tmp_path, edits), (FLOATS,)) not in (None, cache.key(loaded(tmp_path), (FLOATS,)))


def test_other_modules_change_the_key(tmp_path):
    first = cache.key(loaded(tmp_path), (FLOATS,))
    others = [dict(beside=BESIDE.replace("v * 2", "v * 3")), dict(offset=6)]
    assert len({first, *(cache.key(loaded(tmp_path, **other), (FLOATS,)) for other in others)} - {None}) == 3


def test_the_types_of_the_arguments_change_the_key(tmp_path):
    kernel = loaded(tmp_path)
    kinds = [
        FLOATS,
        types.Array(types.float32, 1, "A"),
        types.Array(types.float32, 2, "C"),
        types.Array(types.int32, 1, "C"),
    ]
    kinds += [types.float32, types.UniTuple(types.float32, 2), types.Array(types.float32, 1, "C", readonly=True)]
    assert len({cache.key(kernel, (kind,)) for kind in kinds} - {None}) == len(kinds)


def test_a_module_that_extends_numba_changes_the_key(tmp_path):
    kernel = loaded(tmp_path)
    keys = {cache.key(kernel, (FLOATS,))}
    for body in ("return lambda x: x", "return lambda x: x + 1"):
        text = f"from numba.cuda.extending import overload\ndef f(x):\n    pass\n@overload(f)\ndef g(x):\n    {body}\n"
        (tmp_path / "tsn_extension.py").write_text(text)
        spec = importlib.util.spec_from_file_location("tsn_extension", tmp_path / "tsn_extension.py")
        sys.modules["tsn_extension"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["tsn_extension"])
        cache._seen.pop("tsn_extension", None)
        keys.add(cache.key(kernel, (FLOATS,)))
    assert len(keys - {None}) == 3


def test_the_environment_of_numba_changes_the_key(tmp_path, monkeypatch):
    kernel = loaded(tmp_path)
    first = cache.key(kernel, (FLOATS,))
    monkeypatch.setenv("MY_NUMBA_OPT", "1")
    assert cache.key(kernel, (FLOATS,)) == first
    monkeypatch.setenv("NUMBA_OPT", "1")
    assert cache.key(kernel, (FLOATS,)) not in (None, first)


def test_what_is_not_understood_has_no_key(tmp_path):
    odd = [("FACTOR = 3", "FACTOR = type('Odd', (), {'__mul__': 0})()")]
    assert cache.key(loaded(tmp_path, odd), (FLOATS,)) is None
    module = [("cuda.shared.array(width, float32)", "cuda.shared.array(width, float32)\n        module = beside")]
    assert cache.key(loaded(tmp_path, module), (FLOATS,)) is None


class Kind(enum.IntEnum):
    ONE = 1
    TWO = 2


class Mute(enum.IntEnum):
    ONE = 1
    TWO = 2

    def __repr__(self):
        return "one of them"


class Pair(NamedTuple):
    left: int
    right: int = 2


class Riap(NamedTuple):
    right: int
    left: int = 2


@functools.lru_cache
def remembered(x):
    return x + 1


def defaulted(x, y=2, *, z=3):
    return x


class Odd:
    def method(self):
        return 1


def digest(value):
    known = cache._Description()
    known.value(value)
    return known.digest()


VALUES = {  # each means something else in a kernel
    **{repr(each): each for each in (0, 1, 2, 0.0, -0.0, 1.0, 1j, True, False, None, "1", b"1", ..., "", float("inf"))},
    **{f"{each!r} of NumPy": each for each in (np.float32(1), np.float64(1), np.int32(1), np.int64(1), np.bool_(True))},
    **{f"a list {each}": each for each in ([], [1], [1, 2], [2, 1], [[1], 2], [[1, 2]])},
    **{f"a tuple {each}": each for each in ((), (1,), (1, 2), (2, 1), ((1,), 2), ((1, 2),))},
    **{f"a set {sorted(each)}": frozenset(each) for each in ([], [1], [1, 2], [1, 3])},
    **{f"a dict {each}": each for each in ({}, {1: 2}, {2: 1}, {1: 2, 3: 4}, {3: 4, 1: 2}, {"1": 2})},
    **{str(kind): Kind[kind] for kind in ("ONE", "TWO")},
    **{f"{kind} without a word": Mute[kind] for kind in ("ONE", "TWO")},
    "an enum": Kind,
    **{f"{kind.__name__} itself": kind for kind in (Pair, Riap)},
    **{repr(pair): pair for pair in (Pair(1), Pair(2), Riap(1), Riap(2, 1))},
    **{f"an array of {dtype}": np.array([1, 2], dtype) for dtype in ("i4", "i8", "f4", "f8")},
    "an array of two axes": np.array([[1, 2]], "f4"),
    "a column": np.array([[1], [2]], "f4"),
    "a square": np.arange(4, dtype="f4").reshape(2, 2),
    "a square in Fortran's order": np.asfortranarray(np.arange(4, dtype="f4").reshape(2, 2)),
    "other numbers": np.array([1, 3], "f4"),
    "a dtype": np.dtype([("x", "f4"), ("y", "i4")]),
    "another dtype": np.dtype([("x", "f4"), ("z", "i4")]),
    "an aligned dtype": np.dtype([("x", "f4"), ("y", "i4")], align=True),
    "a type": types.float32,
    "another type": types.float64,
    "an array's type": FLOATS,
    "functions": math.sin,
    "other functions": math.cos,
    "a universal function": np.add,
    "a remembered function": remembered,
    "defaults": defaulted,
    "other defaults": python.FunctionType(defaulted.__code__, globals(), "defaulted", (3,)),
    "a module": math,
    "another module": np,
    "a pattern": re.compile("a"),
    "another pattern": re.compile("b"),
}


def test_no_two_values_that_differ_have_one_description():
    found = {name: digest(value) for name, value in VALUES.items()}
    assert len(set(found.values())) == len(found), [
        (a, b) for a, b in itertools.combinations(found, 2) if found[a] == found[b]
    ]


def test_what_a_function_is_linked_with_is_described(tmp_path):
    """Its text, not only its name."""

    def described(text):
        (tmp_path / "helper.cu").write_text(text)
        return digest(cuda.jit(link=[str(tmp_path / "helper.cu")])(helped))

    one, other = (f'extern "C" __device__ int f(int* r) {{ *r = {number}; return 0; }}' for number in (1, 2))
    assert described(one) == described(one) != described(other)
    assert described(one) != digest(cuda.jit(helped))


def helped(x):
    x[0] = 1


def test_a_value_that_lies_where_another_lay_is_not_taken_for_it():
    """What code refers to may be made when it is asked for, and gone when the next is."""

    def described(*numbers):
        known = cache._Description()
        for number in numbers:
            known.value([number])
        return known.digest()

    assert len({described(1, 1, 1), described(1, 2, 3), described(1, 3, 2), described(1, 2, 2)}) == 4


def test_values_that_are_the_same_have_one_description():
    for one, two in (
        (np.array([1, 2], "f4"), np.array([1, 2], "f4")),
        (frozenset([0, 8, 16]), frozenset([16, 8, 0])),  # which are gone through in another order
        ({1: [2]}, {1: [2]}),
        ((1, (2, 3)), (1, (2, 3))),
        (Pair(1), Pair(1, 2)),
        (np.float32(2), np.float32(2)),
    ):
        assert digest(one) == digest(two)
    assert list(frozenset([0, 8, 16])) != list(frozenset([16, 8, 0]))
    shared, apart = [1], [[1], [1]]
    assert digest([shared, shared]) != digest(apart)  # an assignment to one is one to the other
    endless = []
    endless.append(endless)
    assert digest(endless) == digest(endless)


def test_the_lines_of_code_whose_text_nobody_knows_are_part_of_it():
    """Findings name them."""
    found = set()
    for text in (
        "def f(x):\n  y = x\n  return y",
        "def f(x):\n\n  y = x\n  return y",
        "def f(x):\n  y = x\n\n  return y",
    ):
        made = {"__name__": __name__}
        exec(compile(text, "<made>", "exec"), made)
        found.add(digest(made["f"]))
    assert len(found) == 3


def test_whatever_compiles_and_what_it_compiles_for_is_part_of_the_key(monkeypatch, tmp_path):
    compilers, version = cache._compilers.__wrapped__, cache.metadata.version
    library, engine = linking.support()
    found = {compilers(), compilers()}
    changes = [
        *((cache.metadata, "version", lambda name, of=each: "0.0" if name == of else version(name))
          for each in ("numba", "numba-cuda", "llvmlite", "numpy")),
        (cache.platform, "machine", lambda: "another"),
        (cache.llvm, "get_host_cpu_name", lambda: "another"),
        (cache.llvm, "get_host_cpu_features", lambda: python.SimpleNamespace(flatten=lambda: "+another")),
        (cache.sys, "version", "another"),
        (linking, "support", lambda: (library, tmp_path / "another.so")),
        (linking, "support", lambda: (python.SimpleNamespace(_name="another.so"), engine)),
        (cache, "_HERE", tmp_path),
    ]  # fmt: skip
    for owner, name, value in changes:
        with monkeypatch.context() as other:
            other.setattr(owner, name, value)
            found.add(compilers())
    assert len(found) == 1 + len(changes)
    with monkeypatch.context() as other:  # wherever the library lies
        other.setattr(linking, "support", lambda: (python.SimpleNamespace(_name=f"/x/{library._name[1:]}"), engine))
        assert compilers() in found


def reads(x):
    total = rows.warp.sum(x) + n * rows.n  # noqa: F821
    x.own = local = total.real  # attributes of what is no global
    return [m.a(each).b for each in x], lambda: z.w, local, rows  # noqa: F821


def test_the_globals_that_code_refers_to_with_their_attributes():
    """Those of functions within it, too."""
    expected = {("rows", "warp", "sum"), ("n",), ("rows", "n"), ("m", "a"), ("z", "w"), ("rows",)}
    assert cache._references(reads.__code__) == expected
    assert cache._references((lambda x: x.y).__code__) == set()


def test_where_something_comes_from():
    roots = [
        *((math, "math"), (math.sin, "math"), (np.float32, "numpy"), (np.add, "numpy"), (3, "builtins")),
        *((types.float32, "numba"), (digest, "tests"), (Odd(), "tests"), (cache, "touchstone")),
    ]
    for value, root in roots:
        assert cache._root(value) == root, value
    library = (math, math.sin, np, np.float32, enum.Enum, cache, cache.key, types.float32, json.dumps, 3)
    assert all(map(cache._is_library, library))
    own = (digest, Odd, Odd(), registry, sys.modules[__name__], python.ModuleType("__main__"))
    assert not any(map(cache._is_library, own))


def test_what_tells_numba_how_to_compile_is_a_module_that_has_something_of_numbas(tmp_path):
    def extension(name="mine", text="@overload(len)", file="mine.py", **members):
        made = python.ModuleType(name)
        vars(made).update(members)
        if file is not None:
            made.__file__ = str(tmp_path / file)
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text)
        return cache._extension(name, made)

    some = {"f": dispatcher.CUDADispatcher}
    for text in (
        "@overload(len)",
        "x\n  @numba.extending.overload_method(T)",
        "register_model(T)",
        "declare_device('f')",
    ):
        assert extension(text=text, **some) == hashlib.sha256(text.encode()).digest(), text
    assert extension(name="__main__", **some) and extension(name="mine.math", **some)
    nothing = [
        extension(), extension(text="overload(len)", **some), extension(file="site-packages/mine.py", **some),
        extension("math", **some), extension("numba.mine", **some), extension(cache.__name__, **some),
        extension(file=None, **some), extension("__main__", file=None),
    ]  # fmt: skip
    assert set(nothing) == {b""}
    with pytest.raises(cache._Unknown):
        extension("__main__", file=None, **some)
    gone = python.ModuleType("gone")
    gone.f, gone.__file__ = some["f"], str(tmp_path / "gone.py")
    assert cache._extension("gone", gone) == b""


class OfInt(int):
    pass


@pytest.mark.parametrize(
    "value",
    [
        *(np.array([object()]), OfInt(3), Odd(), Odd().method, object(), {1}, bytearray(), memoryview(b"")),
        *(sys.modules[__name__], (1, Odd()), {"x": Odd()}, iter([]), threading.Lock(), np.random.default_rng(0)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_may_change_or_compute_has_no_description(value):
    with pytest.raises(cache._Unknown):
        digest(value)


@pytest.mark.level("default")
@pytest.mark.parametrize("op", some(registry.ops(), 4))
def test_every_variant_is_kept(op, monkeypatch):
    """Else each process compiles its kernels anew, which takes seconds."""
    contract, launched = registry.contract(op), []

    def not_run(kernel, arguments, configuration):
        kinds = tuple(packing.type_of(packing.as_array(value)) for value in arguments)
        launched.append((variant, kernel.py_func.__qualname__, cache.key(kernel, kinds)))

    monkeypatch.setattr(dispatcher.CUDADispatcher, "call", not_run)
    for variant, fn in registry.variants("numba", op).items():
        for case in plan(contract, "quick").cases:
            with contextlib.suppress(NotImplementedError):
                fn(**contract.build(case).arguments)
        assert any(name == variant for name, _, _ in launched)
    assert {(name, kernel) for name, kernel, key in launched if key is None} == set()


PROCESS = """
import sys
import numpy as np
sys.path.insert(0, {folder!r})
from numba import cuda, float32
from touchstone.backends.emulator.errors import KernelError
from touchstone.backends.emulator.numba import kernels, launch
import tsn_program
if {warm}:  # other places come first
    launch(cuda.jit(lambda x: None), 1, 32, (np.zeros(3),))
lowered = kernels.lowered
kernels.lowered = lambda kernel, kinds: print("lowered", kernel.__name__) or lowered(kernel, kinds)
x = np.arange(64, dtype=np.float32)
launch(tsn_program.reverse, 1, 64, (x, np.float32(2)))
print(x[:3])
for index in (64, -1):
    try:
        launch(tsn_program.outside, 1, 64, (x, index))
    except KernelError as error:
        print(error)
try:
    launch(tsn_program.raises, 1, 64, (x,))
except KernelError as error:
    print(error)
"""
PROGRAM = """
import numpy as np
from numba import cuda, float32
WEIGHTS = np.array([1.0, 4.0], np.float32)
@cuda.jit
def reverse(x, factor):
    weights = cuda.const.array_like(WEIGHTS)
    row = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    row[i] = x[i] * factor * weights[1]
    cuda.syncthreads()
    x[i] = row[63 - i]
@cuda.jit
def outside(x, n):
    column = cuda.shared.array(64, float32)
    column[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    cuda.syncthreads()
    x[0] = column[n]
@cuda.jit
def raises(x):
    if x[0] > 1e9:
        return
    raise ValueError("too small")
"""


@pytest.mark.level("default")
def test_a_second_process_lowers_nothing_and_finds_the_same(tmp_path):
    (tmp_path / "tsn_program.py").write_text(PROGRAM)
    outputs = []
    for warm in (False, True):
        (tmp_path / "main.py").write_text(PROCESS.format(folder=str(tmp_path), warm=warm))
        environment = {"TOUCHSTONE_CACHE": str(tmp_path / "cache")}
        done = run_touchstone([str(tmp_path / "main.py")], environment=environment)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.splitlines())
    lowered = [line for line in outputs[0] if line.startswith("lowered")]
    assert lowered == ["lowered reverse", "lowered outside", "lowered raises"]
    assert outputs[1] == [line for line in outputs[0] if line not in lowered]
    assert outputs[1][0] == "[504. 496. 488.]"
    assert outputs[1][1].startswith("outside (tsn_program.py:18): ") and "column" in outputs[1][1]
    assert "index -1 in axis 0" in outputs[1][2]
    assert "raises (tsn_program.py:23): " in outputs[1][3] and "ValueError: too small" in outputs[1][3]


def test_a_damaged_file_is_compiled_anew(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("TOUCHSTONE_CACHE", str(folder))
    x = np.ones(32, np.float32)
    launch(loaded(tmp_path), 1, 32, (x,))
    right = x.copy()
    (file,) = folder.glob("numba_*.json")
    kept = file.read_bytes()
    for damage in (b"", kept[: len(kept) // 2], kept.replace(b"tsn_base", b"tsn_bare", 1)):
        file.write_bytes(damage)
        x[:] = 1
        launch(loaded(tmp_path), 1, 32, (x,))
        assert np.array_equal(x, right)
        assert cache.read(file.read_bytes()).built.places == cache.read(kept).built.places


def test_an_entry_is_json_of_one_form():
    source = linking.Source("helper.cu", "__device__ int f() { return 1; }")
    code = build.ObjectCode(b"\0\xff", "tsn_base_0", [("a.py", 3)], True, [("table", 64)], ["expf"], [source])
    entry = cache.Entry(code, ["ptr", "i64"], {1: cache.Raised("ValueError: too small", "a.py", 3)})
    text = cache.written(entry)
    assert cache.read(text) == entry
    whole = json.loads(text)
    for name in whole["built"]:
        for wrong in (None, 7.5, {"a": 1}, "*", [1.5]):
            if (name, wrong) != ("base", "*"):
                changed = {**whole, "built": {**whole["built"], name: wrong}}
                assert cache.read(json.dumps(changed).encode()) is None, (name, wrong)
    for other in (b"", b"no json", b"[]", b"null", b"[" * 100_000, pickle.dumps(entry)):
        assert cache.read(other) is None


def test_a_kernel_from_the_cache_is_checked(tmp_path):
    for _ in range(2):
        with pytest.raises(OutOfBounds, match="uses index 8 in axis 0 of x, which has 8"):
            launch(loaded(tmp_path), 1, 32, (np.ones(8, np.float32),))
