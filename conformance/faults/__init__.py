"""Mutants, which are wrong on purpose, and known-good kernels, written independently of this repository's.

`conformance/faults/<op>.py` holds both for one op as torch functions of the op's signature. The path and a decorator
are the registration:

    @mutant("accumulator")
    def last_tile_only(a, b):
        "only the last tile of k is kept: `acc =` for `acc +=`"

    @known_good
    def split_k(a, b): ...

`conformance/faults/<backend>/<op>.py` holds kernels in a backend's language, each with a switch for what can be wrong
with it. A table `KERNELS` says what each switch does and what is found then; what kernels in several languages have in
common stands in the table of `conformance/faults/<op>.py`:

    KERNELS = {"stale_sum": Kernel("accumulator", "the sum is not set to 0 for a block's next row")}
    plant_kernels(globals(), _shared, KERNELS, "stale_sum")

A mutant's text, here the docstring's first line, completes the sentence "equals the reference, but ..."; a finding
quotes it. What goes wrong alike in every op is in conformance/faults/_generic.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

ALL = ("float32", "float16", "bfloat16")

# what can be wrong with a kernel, as far as values or behaviour show it
KINDS = {
    "mask": "a boundary mask is missing, or fills with the wrong value",
    "bounds": "memory outside the operands or the output is touched",
    "tail": "a last tile, row or column is left out, or only the first tile is done",
    "accumulator": "partial results are overwritten, added twice, or added to what was there",
    "precision": "operands, accumulator or result pass through a narrower type, or are cut instead of rounded",
    "overflow": "the maximum is not subtracted, or it is that of another set",
    "rescale": "a running result is not rescaled when the maximum moves",
    "special": "NaN and infinities are swallowed, made up, or replaced by a finite sentinel",
    "scale": "a factor is missing, or has the wrong value",
    "causal": "the causal mask is off, misaligned or left out",
    "heads": "a head reads the keys of another group",
    "eps": "eps is missing, hard-coded, or in the wrong place",
    "variance": "biased for unbiased, one pass with cancellation, or over the wrong count",
    "weights": "a weight or bias is ignored, or one element of it stands for all",
    "parameter": "a parameter is ignored",
    "axis": "the wrong axis, or a transposed result",
    "formula": "a term of the formula is missing, has the wrong sign, or belongs to another op",
    "strides": "an operand's strides or offset are ignored",
    "offset": "an offset beyond 2^31 wraps",
    "alignment": "operands are taken to be aligned",
    "race": "the result depends on the order of threads or programs",
    "unwritten": "part of the output keeps what was in memory",
    "mutation": "an input is written",
    "alias": "an output shares memory with an input or with an earlier output",
    "contract": "the dtype, shape or strides of an output are wrong",
    "cache": "a result is handed out again, or depends on earlier calls",
    "empty": "an empty operand is an error",
    "shapes": "right for particular sizes only",
    "state": "global state is left changed",
}


@dataclass(frozen=True, eq=False)
class Planted:
    """A mutant or a known-good kernel of one op."""

    op: str
    name: str
    about: str  # what is wrong, or how a known-good kernel computes: the docstring's first line
    kind: str  # of KINDS; "known-good" for a known-good kernel
    make: Callable[[], Callable[..., Any]]  # a fresh function, so that state begins anew with each check
    dtypes: tuple[str, ...] = ALL  # those in which it is wrong
    backend: str | None = None  # None: torch
    deterministic: bool = True
    generic: bool = False  # what goes wrong alike in every op
    found: str | None = None  # a regular expression that the first finding holds; None: nobody has said so

    @property
    def is_known_good(self) -> bool:
        return self.kind == "known-good"


class Kernel(NamedTuple):
    """What is wrong with a mutant in a backend's language, or how a known-good kernel computes."""

    kind: str  # of KINDS, or "known-good"
    about: str
    # a regular expression that the first finding holds, as "check: message"; an access by a wrong stride may end
    # outside of its operand, or between the operand's rows, before a value is looked at: "values: |OutOfBounds"
    found: str = "values: "
    dtypes: tuple[str, ...] = ALL  # those in which it is wrong


def mutant(
    kind: str,
    *,
    dtypes: Sequence[str] = ALL,
    stateful: bool = False,
    deterministic: bool = True,
    found: str | None = None,
):
    """Mark a function of the op's signature as a mutant of `kind`, wrong in `dtypes`, whose first finding holds
    `found`.

    A `stateful` one takes no argument and returns the function, so that its state begins anew with each check.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: {kind!r} is not one of {', '.join(KINDS)}")
    return lambda fn: _mark(fn, kind, tuple(dtypes), stateful, deterministic, found)


def known_good(fn=None, *, dtypes: Sequence[str] = ALL, deterministic: bool = True):
    """Mark a function of the op's signature as right in `dtypes`, written independently of the kernels."""
    if fn is None:
        return lambda fn: _mark(fn, "known-good", tuple(dtypes), False, deterministic)
    return _mark(fn, "known-good", tuple(dtypes), False, deterministic)


def _mark(fn, kind: str, dtypes: tuple[str, ...], stateful: bool, deterministic: bool, found: str | None = None):
    make = fn if stateful else lambda: fn
    fn.planted = dict(kind=kind, dtypes=dtypes, make=make, deterministic=deterministic, found=found)
    return fn


def planted_in(module: Any, op: str, backend: str | None = None) -> list[Planted]:
    """The mutants and known-good kernels that a module defines, in order."""
    found = []
    for name, value in vars(module).items():
        marks = getattr(value, "planted", None)
        if isinstance(marks, dict):
            about = (value.__doc__ or "").strip().partition("\n")[0]
            found.append(Planted(op, name, about, backend=backend, **marks))
    return found


def plant(namespace: dict[str, Any], name: str, fn: Callable[..., Any], about: str, kind: str, **marks: Any) -> None:
    """Add `fn` to a module's `namespace` as a mutant or, with kind "known-good", as a known-good kernel: for what is
    made in a loop."""
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = about
    namespace[name] = known_good(fn, **marks) if kind == "known-good" else mutant(kind, **marks)(fn)


def plant_kernels(
    namespace: dict[str, Any],
    launcher: Callable[..., Any],
    kernels: Mapping[str, Kernel],
    *names: str,
    deterministic: bool = True,
) -> None:
    """Add the `kernels` called `names` to a module's `namespace`: `launcher`, a function of the op's signature, with
    `fault=name`; a known-good kernel is the launcher as it is."""
    for name in names:
        kind, about, found, dtypes = kernels[name]
        if kind == "known-good":
            plant(namespace, name, partial(launcher), about, kind, dtypes=dtypes, deterministic=deterministic)
        else:
            fn = partial(launcher, fault=name)
            plant(namespace, name, fn, about, kind, dtypes=dtypes, deterministic=deterministic, found=found)
