"""A kernel longer than a screen is cut or says why not."""

import ast
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

from touchstone.conformance.discovery import registry

BACKENDS = registry.ROOT / "backends"
SCREEN = 70  # lines of a function, from its signature to its end
REASON = re.compile(r"\bLonger than a screen: [\w`]")
# Last part of a decorator's name: triton.jit, tg.jit, cuda.jit, wide_jit; numba/lib/gemm.py has one called kernel.
COMPILES = ("jit", "kernel")
# Of C++: comments and literals.
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"' + r"|'(?:\\.|[^'\\\n])'", re.DOTALL)
NAMESPACE = re.compile(r"(?:namespace\b[^(;]*|extern\s*)\{")  # clang-format does not indent what is inside
STRUCT = re.compile(r"(?:template\s*<.*?>\s*)?(?:struct|class|union|enum)\b")
ATTRIBUTE = re.compile(r"__\w+__\s*\([^()]*\)")  # with parentheses before those of the parameters
NAME = re.compile(r"(operator\s*(?:\(\)|[^\s\w(]+)|\w+)\s*(?:<(?:[^<>()]|<[^<>()]*>)*>)?\s*\(")


class Function(NamedTuple):
    name: str
    first: int  # line of the signature, from 1 on
    last: int
    top: int  # line of the first decorator, or `first`

    @property
    def length(self) -> int:
        return self.last - self.first + 1


def python_kernels(text: str) -> Iterator[Function]:
    """What a decorator compiles, nested functions too."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        called = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
        if any(ast.unparse(name).endswith(COMPILES) for name in called):
            assert node.end_lineno
            yield Function(node.name, node.lineno, node.end_lineno, node.decorator_list[0].lineno)


def bare(text: str) -> list[str]:
    """The lines of C++ without comments and literals; "#" for those of a directive, a macro or a comment alone."""
    blank = NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    lines, continued = [], False
    for line, whole in zip(blank.splitlines(), text.splitlines(), strict=True):
        directive = continued or line.startswith("#")
        continued = directive and line.endswith("\\")
        lines.append("#" if directive or (whole.strip() and not line.strip()) else line)
    return lines


def cuda_functions(lines: list[str], before: int = 0) -> Iterator[Function]:
    """Functions, and the members of structs, of bare lines in clang-format's layout, `before` lines down a file.

    What begins in the first column ends with its head, where that ends in a semicolon or has both braces, or with the
    next brace in the first column.
    """
    start = body = None  # the line with which something begins, the line after the brace that opens it
    for number, line in enumerate(lines):
        if line == "#":
            continue
        if start is None or (body is None and not line.strip()):  # a macro's call may lack an end
            start, body = (number if re.match(r"[A-Za-z_]", line) else None), None
        if start is None:
            continue
        if body is None:
            head = " ".join(part for part in lines[start : number + 1] if part != "#").rstrip()
            if head.count("{") > head.count("}"):
                body = number + 1
            if NAMESPACE.match(head):
                start = body = None
            if body or not head.endswith((";", "}")):
                continue
        elif not line.startswith("}"):
            continue
        if STRUCT.match(head):
            if body is not None:
                inner = [part.removeprefix(" " * 4) for part in lines[body:number]]
                yield from cuda_functions(inner, before + body)
        elif "{" in head and (found := NAME.search(ATTRIBUTE.sub("", head.partition("{")[0]))):
            yield Function(found[1], before + start + 1, before + number + 1, before + start + 1)
        start = body = None


def functions(path: Path) -> list[Function]:
    text = path.read_text()
    return list(python_kernels(text) if path.suffix == ".py" else cuda_functions(bare(text)))


def is_comment(line: str) -> bool:
    return line.lstrip().startswith(("#", "//"))


def says_why(path: Path, function: Function) -> bool:
    """In the function's lines or the comment directly above them; where that has line breaks, they count as spaces."""
    lines, above = path.read_text().splitlines(), function.top - 1
    while above and is_comment(lines[above - 1]):
        above -= 1
    parts = groupby(lines[above : function.last], is_comment)
    return any(REASON.search(" ".join(line.strip().lstrip("#/ ") for line in part)) for _, part in parts)


def unexplained(path: Path) -> list[str]:
    """The functions longer than a screen without a reason, each as "file:line: name has so many lines"."""
    where = path.relative_to(BACKENDS.parent) if path.is_relative_to(BACKENDS) else path.name
    return [
        f"{where}:{function.first}: {function.name} has {function.length} lines"
        for function in functions(path)
        if function.length > SCREEN and not says_why(path, function)
    ]


def kernel_files(backend: str) -> list[Path]:
    found = (BACKENDS / backend).rglob("*")
    runtime = BACKENDS / backend / "runtime"
    return sorted(p for p in found if p.suffix in (".py", ".cu", ".cuh") and runtime not in p.parents)


@pytest.mark.parametrize("backend", registry.backends())
def test_a_kernel_longer_than_a_screen_says_why(backend):
    """As "Longer than a screen: " and the reason, in its docstring or in a comment inside or directly above it."""
    found = [line for path in kernel_files(backend) for line in unexplained(path)]
    assert not found, "\n".join([f"no 'Longer than a screen: ' and a reason, with more than {SCREEN} lines:", *found])


def test_every_cuda_function_is_measured():
    """As many as there are execution spaces, but for declarations; a macro's functions are no lines of their own."""
    for path in kernel_files("cupy"):
        if path.suffix != ".py":
            lines = bare(path.read_text())
            wanted = [bool(re.search("__(global|device)__", line)) and not line.endswith(";") for line in lines]
            measured = [f.name for f in functions(path) if any(wanted[f.first - 1 : f.last])]
            assert len(measured) == sum(wanted), path


PYTHON = '''
import functools
@functools.cache
def factory(width):
    @kernel(128, 2)
    def inner(x):
        """A kernel."""
        BODY

    return inner

# WORDS
@tg.jit(
    do_not_specialize=["n"]
)
def outer(
    x,
):
    BODY

def launcher():
    BODY
'''
CUDA = """
enum Kind { none, some };
struct Pair;
constexpr int SIZES[] = {
    1, 2,
};
MACRO(half)

// WORDS
template <int N>  // {
__device__ inline float sum(float x) { return x; }
template <int N> __device__ float sum(float x);
template <int N>
struct __align__(64) Two {
    float x, y;
    __device__ float& operator[](int i) { return i ? y : x; }

    // BELOW
    __device__ float both(int i = {}) const {
#if A
        if (x > 0) {
#else
        {
#endif
            BODY
        }
    }
};
// WORDS
extern "C" __global__ void __launch_bounds__(128, 1) whole(
    // {
    const char* a, char b
) {
    a = "}", b = '{';
    BODY
}
"""


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("k.py", PYTHON, ["outer", "inner"]),
        ("k.cuh", CUDA, ["both", "whole"]),
        ("k.py", PYTHON.replace("# WORDS", "# Longer than a\n# screen: one table."), ["inner"]),
        ("k.py", PYTHON.replace("# WORDS", "# Longer than a screen: one table.\n"), ["outer", "inner"]),
        ("k.py", PYTHON.replace("# WORDS", "# Longer than a screen:"), ["outer", "inner"]),
        ("k.py", PYTHON.replace("A kernel.", "A kernel.\n\n        Longer than a screen: one table.\n"), ["outer"]),
        ("k.cu", CUDA.replace("// WORDS", "// Longer than a screen:"), ["both", "whole"]),
        ("k.cu", CUDA.replace("// WORDS", "// A kernel. Longer than a\n// screen: one table."), ["both"]),
        ("k.cu", CUDA.replace("// BELOW", "// Longer than a screen: one table."), ["whole"]),
    ],
)
def test_a_long_kernel_without_a_reason_is_seen(tmp_path, name, text, wanted):
    path = tmp_path / name
    path.write_text(text.replace("BODY", "x = (" + "\n" * SCREEN + "1);"))
    assert [line.split()[1] for line in unexplained(path)] == wanted


def test_a_kernel_is_as_long_as_its_lines(tmp_path):
    path = tmp_path / "k.cu"
    path.write_text("// A kernel.\ntemplate <int N>\n__device__ void f() {\n" + "\n" * (SCREEN - 3) + "}\n")
    assert unexplained(path) == []
    path.write_text("\n" + path.read_text().replace("() {\n", "() {\n\n"))
    assert unexplained(path) == [f"k.cu:3: f has {SCREEN + 1} lines"]
