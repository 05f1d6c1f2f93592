"""Inline PTX in Triton's interpreter: what each instruction computes, and which are not interpreted."""

import math

import ml_dtypes
import numpy as np
import pytest

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from touchstone.backends.triton.runtime.interpreter import programs, ptx
from touchstone.backends.triton.runtime.interpreter.registry import KernelError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
NAN, INF = math.nan, math.inf
TYPES = {"f": (np.float32, tl.float32), "u": (np.uint32, tl.uint32), "s": (np.int32, tl.int32)}


def run(asm, *operands, result="f", pack=1, constraints=None):
    """What `asm` writes to `$0`, of operands that are a letter for their type and numbers."""
    handles = [TensorHandle(np.array(numbers, TYPES[kind][0]), TYPES[kind][1]) for kind, numbers in operands]
    constraints = constraints or ", ".join(["=r", *["r"] * len(handles)])
    dtype, ty = TYPES[result]
    (found,) = ptx._elementwise(asm, constraints, handles, [ty], pack)
    assert found.data.dtype == dtype and found.dtype == ty
    return found.data.tolist()


BINARY = {  # of floats
    "add": [5.0, INF, NAN], "sub": [-1.0, INF, NAN], "mul": [6.0, INF, NAN], "min": [2.0, 1.0, 1.0],
    "max": [3.0, INF, 1.0], "min.NaN": [2.0, 1.0, NAN], "max.NaN": [3.0, INF, NAN], "div.rn": [2 / 3, INF, NAN],
    "div.full": [2 / 3, INF, NAN], "div.approx": [2 / 3, INF, NAN], "add.rn": [5.0, INF, NAN],
    "sub.rn": [-1.0, INF, NAN], "mul.rn": [6.0, INF, NAN],
}  # fmt: skip
UNARY = {
    "mov": (1.5, 1.5), "neg": (1.5, -1.5), "abs": (-1.5, 1.5), "rcp.rn": (4.0, 0.25), "rcp.approx": (4.0, 0.25),
    "sqrt.rn": (9.0, 3.0), "sqrt.approx": (9.0, 3.0), "rsqrt.approx": (16.0, 0.25), "ex2.approx": (3.0, 8.0),
    "lg2.approx": (8.0, 3.0), "sin.approx": (0.5, math.sin(0.5)), "cos.approx": (0.5, math.cos(0.5)),
}  # fmt: skip
WORDS = {  # of 0b1100 and 0b1010
    "add": 22, "sub": 2, "and": 8, "or": 14, "xor": 6, "min": 10, "max": 12, "shl": 12288, "shr": 0,
}  # fmt: skip
COMPARISONS = {"eq": [0, 1, 0], "ne": [1, 0, 1], "lt": [1, 0, 0], "le": [1, 1, 0], "gt": [0, 0, 1], "ge": [0, 1, 1]}


def close(found, expected):
    return np.allclose(found, expected, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", BINARY)
def test_two_floats(name):
    assert close(run(f"{name}.f32 $0, $1, $2;", ("f", [2.0, INF, NAN]), ("f", [3.0, 1.0, 1.0])), BINARY[name])
    if "NaN" not in name and name != "div.full":
        words = name.split(".")
        assert close(run(f"{words[0]}{'.' * (len(words) > 1)}{'.'.join(words[1:])}.ftz.f32 $0, $1, $2;",
                         ("f", [2.0, INF, NAN]), ("f", [3.0, 1.0, 1.0])), BINARY[name])  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_one_float(name):
    given, expected = UNARY[name]
    assert close(run(f"{name}.f32 $0, $1;", ("f", [given])), [expected])


def test_three_floats_and_the_hyperbolic_tangent():
    x = np.float32(1 + 2**-12)
    exact = run("fma.rn.f32 $0, $1, $1, $2;", ("f", [x]), ("f", [-1.0]), constraints="=r, r, r")
    assert exact == [2**-11 + 2**-24]
    found = run("tanh.approx.f32 $0, $1;", ("f", [0.3, -2.0, 100.0, NAN]))
    assert found[2] == 1.0 and math.isnan(found[3])
    for got, right in zip(found[:2], (math.tanh(0.3), math.tanh(-2.0)), strict=True):
        assert abs(got / right - 1) <= 2**-11 and got * 2.0**12 == round(got * 2.0**12) and got != np.float32(right)


@pytest.mark.parametrize("name", WORDS)
def test_two_words(name):
    kind = "b32" if name in ("and", "or", "xor", "shl") else "u32"
    assert run(f"{name}.{kind} $0, $1, $2;", ("u", [0b1100]), ("u", [0b1010]), result="u") == [WORDS[name]]


def test_signed_words():
    assert run("min.s32 $0, $1, $2;", ("s", [-5, 3]), ("s", [2, -7]), result="s") == [-5, -7]
    assert run("max.s32 $0, $1, -1;", ("s", [-5, 3]), result="s") == [-1, 3]
    assert run("shr.s32 $0, $1, 1;", ("s", [-5, 6]), result="s") == [-3, 3]
    assert run("shr.u32 $0, $1, 1;", ("u", [2**32 - 2]), result="u") == [2**31 - 1]
    assert run("not.b32 $0, $1;", ("u", [0xF0]), result="u") == [0xFFFFFF0F]
    assert run("add.s32 $0, $1, 0x10;", ("s", [-5]), result="s") == [11]
    assert run("mov.b32 $0, $1;", ("f", [1.0]), result="u") == [0x3F800000]


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_and_choices(name):
    asm = f"{{ .reg .pred p; setp.{name}.f32 p, $1, $2; selp.b32 $0, 1, 0, p; }}"
    assert run(asm, ("f", [1.0, 2.0, 3.0]), ("f", [2.0] * 3), result="u") == COMPARISONS[name]
    asm = f"setp.{name}.s32 p, $1, $2; selp.s32 $0, 1, 0, p;"
    assert run(asm, ("s", [-3, -2, -1]), ("s", [-2] * 3), result="s") == COMPARISONS[name]
    for guard, kept in (("@p", COMPARISONS[name]), ("@!p", [1 - each for each in COMPARISONS[name]])):
        asm = f"mov.u32 $0, 0; setp.{name}.f32 p, $1, $2; {guard} mov.u32 $0, 1;"
        assert run(asm, ("f", [1.0, 2.0, 3.0]), ("f", [2.0] * 3), result="u") == kept


def test_constants_comments_and_what_has_no_effect():
    asm = """{ // a comment; with a semicolon
      .reg .f32 t;  /* another;
      one */ mov.f32 t, 0f40000000; bar.sync 0; membar.gl; fence.acq_rel.gpu; nanosleep.u32 10; prefetch.global.L1 x;
      griddepcontrol.wait; barrier.sync 1; mul.f32 $0, $1, t; ; }"""
    assert run(asm, ("f", [3.0, 4.0])) == [6.0, 8.0]
    assert run("add.f32 $0, $1, 1.5;", ("f", [3.0])) == [4.5] and run("add.f32 $0, $1, 0F3F800000;", ("f", [3.0])) == [
        4.0
    ]
    assert run("@p mov.u32 $0, 1;".replace("@p ", ""), ("f", [3.0, 1.0]), result="u") == [1, 1]
    tiny = 2.0**-140
    assert run("add.f32 $0, $1, 0f00000000;", ("f", [tiny])) == [tiny]
    assert run("add.ftz.f32 $0, $1, 0f00000000;", ("f", [tiny])) == [0.0]
    assert run("mul.ftz.f32 $0, $1, 0f2B800000;", ("f", [2.0**-100])) == [0.0]  # by 2^-40


def test_two_numbers_in_a_word_and_tf32():
    for kind, dtype in (("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)):
        (word,) = run(f"cvt.rn.{kind}.f32 $0, $1, $2;", ("f", [1.5]), ("f", [-2.0]), result="u")
        low, high = np.array([word], np.uint32).view(dtype).astype(float)
        assert (low, high) == (-2.0, 1.5)
    x = [1 + 2**-11, 1 + 2**-11 - 2**-20, -1 - 2**-11, INF, -INF, 3.4028235e38]
    assert run("cvt.rna.tf32.f32 $0, $1;", ("f", x)) == [1 + 2**-10, 1.0, -1 - 2**-10, INF, -INF, INF]
    assert math.isnan(run("cvt.rna.tf32.f32 $0, $1;", ("f", [NAN]))[0])


@pytest.mark.parametrize(
    ("asm", "what"),
    [
        ("add.s64 $0, $1, $1;", "add.s64"),
        ("popc.b32 $0, $1;", "popc.b32"),
        ("div.s32 $0, $1, $1;", "div.s32"),
        ("selp.f32 $0, $1, $1, q;", "the predicate q"),
        ("@q mov.f32 $0, $1;", "the predicate q"),
        ("mov.f32 $0, name;", "the operand name"),
        ("mov.u32 $0, 1.5;", "the operand 1.5"),
        ("ld.global.f32 $0, [$1];", r"ld.global.f32 \$0, \[\$1\]"),
        ("mov.b64 {$0, $1}, $1;", "mov.b64 {"),
        ("setp.foo.f32 p, $1, $1;", "setp.foo.f32"),
    ],
)
def test_what_is_not_interpreted(asm, what):
    with pytest.raises(ptx._Unknown, match=f"^{what}"):
        run(asm, ("f", [1.0]))


def test_a_barrier_within_a_partition_is_not_interpreted(monkeypatch):
    monkeypatch.setattr(programs, "divided", lambda: True)
    for barrier in ("bar.sync 0;", "barrier.sync 1;"):
        with pytest.raises(ptx._Unknown, match="^bar.*sync within a partition$"):
            run(f"{barrier} mov.f32 $0, $1;", ("f", [1.0]))
    assert run("membar.gl; mov.f32 $0, $1;", ("f", [1.0])) == [1.0]


def test_elements_share_the_registers_of_their_pack():
    halves = TensorHandle(np.array([1.0, 2.0, 3.0, 4.0], np.float16), tl.float16)
    (found,) = ptx._elementwise("mov.b32 $0, $1;", "=r,r", [halves], [tl.float16], 2)
    assert found.data.tolist() == [1.0, 2.0, 3.0, 4.0] and found.data.dtype == np.float16
    words = TensorHandle(np.arange(4, dtype=np.uint32), tl.uint32)
    (found,) = ptx._elementwise("mov.b32 $0, $3; mov.b32 $1, $2;", "=r,=r,r,r", [words], [tl.uint32], 2)
    assert found.data.tolist() == [1, 0, 3, 2]
    one, other = ptx._elementwise(
        "add.u32 $0, $2, $3; sub.u32 $1, $2, $3;", "=r,=r,r,r", [words, words], [tl.uint32, tl.int32], 1
    )
    assert one.data.tolist() == [0, 2, 4, 6] and other.data.tolist() == [0] * 4 and other.dtype == tl.int32
    square = TensorHandle(np.arange(4, dtype=np.uint32).reshape(2, 2), tl.uint32)
    assert ptx._elementwise("mov.b32 $0, $1;", "=r,r", [square], [tl.uint32], 1)[0].data.tolist() == [[0, 1], [2, 3]]
    (nothing,) = ptx._elementwise("bar.sync 0;", "=r", [], [tl.int32], 1)
    assert nothing.data.tolist() == [0] and nothing.dtype == tl.int32
    wide = TensorHandle(np.zeros(4, np.float64), tl.float64)
    (effect,) = ptx._elementwise("membar.gl;", "=r,l", [wide], [tl.int32], 1)
    assert effect.data.tolist() == [0] * 4


def test_packs_and_constraints_that_do_not_fit():
    words, bytes_ = (
        TensorHandle(np.arange(3, dtype=np.uint32), tl.uint32),
        TensorHandle(np.zeros(4, np.uint8), tl.uint8),
    )
    with pytest.raises(KernelError, match="^inline assembly takes 2 elements at a time: 3 is no multiple of that$"):
        ptx._elementwise("mov.b32 $0, $1;", "=r,r", [words], [tl.uint32], 2)
    with pytest.raises(ptx._Unknown, match='^the constraints "=r,r,r" for 2 registers$'):
        ptx._elementwise("mov.b32 $0, $1;", "=r,r,r", [words], [tl.uint32], 1)
    with pytest.raises(ptx._Unknown, match="^a result of 8 bits, 2 at a time$"):
        ptx._elementwise("mov.u32 $0, 1;", "=r,r,r", [bytes_], [tl.uint8], 2)
