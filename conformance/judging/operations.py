"""The operations that a reference goes through: what each is written as, where it stands, and what it gives; and a run
with some of them changed."""

import ast
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from touchstone import reference
from touchstone.conformance.spec.contract import Case, Contract
from touchstone.reference import _philox

FOLDER = str(Path(reference.__file__).parent)
Operands = dict[str, torch.Tensor | None]
Place = tuple[CodeType, int]  # a call in the reference's code
# an operation of the reference: where it stands, behind where what it stands in is called from, and its name
Site = tuple[tuple[Place, ...], str]


@dataclass
class Operation:
    """One call of an operation of the reference: its function, arguments and result, and the run that it is of."""

    site: Site
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    run: "Run"

    def of(self, *args: Any) -> Any:
        """What it gives for other arguments."""
        return self.func(*args, *self.args[len(args) :], **self.kwargs)

    def maker(self, position: int = 0) -> "Operation | None":
        """The operation that gave an argument."""
        return self.run.made.get(id(self.args[position])) if position < len(self.args) else None


Step = Callable[[Operation], Any]  # another result
Words = Callable[[np.ndarray, int, int], np.ndarray]  # the words of elements, by index, seed and offset


@dataclass(frozen=True)
class Alteration:
    """A change of operations of the reference, mostly of one, in words; or of the random word of each element of a
    dropout, by the elements' indices, seed and offset."""

    text: str
    steps: Mapping[Site, Step]
    words: Words | None = None


class Run(TorchFunctionMode):
    """Runs a reference, with one operation changed or none; keeps the call of each operation that gives the most
    elements, the first of those."""

    operands: Operands  # of the latest run
    params: Mapping[str, Any]

    def __init__(self, alteration: Alteration | None = None) -> None:
        super().__init__()
        self.alteration = alteration
        self.seen: dict[Site, Operation] = {}
        self.made: dict[int, Operation] = {}
        self.views: dict[Site, Operation] = {}  # attributes, such as a transpose
        self.latest: dict[Site, Any] = {}  # what each operation gave last

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").strip("_")
        places: list[Place] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not outputs_of.__code__:
            if frame.f_code.co_filename.startswith(FOLDER):
                places.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        out = func(*args, **kwargs)
        if not places or name == "set":
            return out
        site = (tuple(places), name)
        operation = Operation(site, func, args, kwargs, out, self)
        kept = self.views if name == "get" else self.seen
        if site not in kept or _numel(kept[site].out) < _numel(out):
            kept[site] = operation
        if self.alteration is not None and site in self.alteration.steps:
            out = self.alteration.steps[site](operation)
            operation.out = out
        self.latest[site] = out
        if isinstance(out, torch.Tensor):
            self.made[id(out)] = operation
        return out


def _numel(value: Any) -> int:
    return value.numel() if isinstance(value, torch.Tensor) else 0


def outputs_of(
    contract: Contract, run: Callable[..., Any], exact: Operands, case: Case, mode: Run
) -> dict[str, torch.Tensor] | None:
    """What the reference gives, float64, by output; None where a change makes it fail."""
    words = None if mode.alteration is None else mode.alteration.words
    mode.operands, mode.params = exact, case.param
    try:
        with torch.no_grad(), mode, nullcontext() if words is None else _with_words(words):
            found = run(**exact, **case.param)
    except Exception:  # not every operation of a reference takes every number
        return None
    every = found if isinstance(found, tuple) else (found,)
    if len(every) != len(contract.outputs):
        return None
    return {name: value.double() for name, value in zip(contract.outputs, every, strict=True) if value is not None}


words_of = _philox.words  # those of the reference, whatever a run has in their place


@contextmanager
def _with_words(words: Words) -> Iterator[None]:
    """Within: the reference has other random words."""

    def theirs(count: int, seed: int, offset: int, start: int = 0) -> np.ndarray:
        return words(np.arange(start, start + count), seed, offset)

    _philox.words = theirs
    try:
        yield
    finally:
        _philox.words = words_of


@cache
def expression_of(site: Site) -> str | None:
    """The expression of an operation, on one line; None where it is not one."""
    code, at = site[0][0]
    line, end, start, stop = list(code.co_positions())[at // 2]
    if line is None or end is None or start is None or stop is None:
        return None
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(line, end + 1)]
    lines[-1] = lines[-1][:stop]
    lines[0] = lines[0][start:]
    try:
        return ast.unparse(ast.parse(b"".join(lines).decode().strip(), mode="eval"))
    except SyntaxError:
        return None


def place_of(site: Site, outer: bool = False) -> str:
    """The folder, file and line of an operation; with `outer` those from which its function is called too."""
    shown = []
    for code, at in site[0] if outer else site[0][:1]:
        line = list(code.co_positions())[at // 2][0]
        path = Path(code.co_filename)
        shown.append(f"{path.parent.name}/{path.name}:{line}")
    return ", from ".join(shown)
