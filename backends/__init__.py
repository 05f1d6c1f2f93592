"""Kernels, one folder a language. Here: what every launcher shares, whatever its language.

`Unsupported` is how a launcher declines an input that its contract allows; `shapes` is the one-line argument check
that every launcher makes before anything runs.
"""

if __name__ != "touchstone.backends":
    raise ImportError(
        f"touchstone.backends was imported as {__name__!r}: import it as touchstone.backends, so that no module "
        f"exists under two names"
    )

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Unsupported(NotImplementedError):
    """A valid input that this kernel does not take; the message says why (`"5000 columns; one block holds 4096"`)."""


class NotRun(RuntimeError):
    """A kernel that this target cannot execute; it says nothing about whether the kernel is right. The message says
    what is missing (`"libdevice.j0 is not interpreted"`)."""


_running = _launches = 0
before_launch: list[Callable[[], None]] = []  # what is called when a launch begins
after_launch: list[Callable[[], None]] = []  # and when it has ended


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Entered by an interpreter or emulator around a launch: what torch does meanwhile is no call of the launcher's."""
    global _running, _launches
    for told in before_launch if not _running else ():
        told()
    _running += 1
    _launches += 1
    try:
        yield
    finally:
        _running -= 1
        for told in after_launch if not _running else ():
            told()


def launches() -> int:
    """How many launches an interpreter or emulator of this process has begun."""
    return _launches


def kernel_running() -> bool:
    """Whether a kernel is running in an interpreter or emulator of this process."""
    return _running > 0


def shapes(spec: str, **tensors: torch.Tensor | None) -> tuple[int, ...]:
    """Check the operands of a call against `spec`; return the sizes it names, in order of first appearance.

    `spec` has one comma-separated entry an operand, in the order of the keywords: `shapes("M K, K N", a=a, b=b)`
    returns `(M, K, N)`. A letter stands for one size and means the same everywhere; `...` for any number of trailing
    axes, not returned; a number for itself; `K/8` for an eighth of a size named before, which must be a multiple of 8;
    `()` for no axes at all. `:float32` after an entry fixes that operand's dtype, `:int64|int32` to one of several, of
    which `same` is the common one; every other operand must have one common dtype out of float32, float16 and bfloat16.
    `?` after an entry lets the operand be None.

    Raises TypeError (not a tensor, wrong or mixed dtype) or ValueError (rank, size, device), naming the argument.
    """
    entries = [entry.strip() for entry in spec.split(",")]
    if len(entries) != len(tensors):
        raise TypeError(f"shapes: {len(entries)} entries in {spec!r} for {len(tensors)} operands")
    sizes: dict[str, int] = {}
    owner: dict[str, str] = {}
    leader: tuple[str, torch.Tensor] | None = None  # whose device the others share
    first: tuple[str, torch.Tensor] | None = None  # whose dtype the others share
    for entry, (name, tensor) in zip(entries, tensors.items(), strict=True):
        optional = entry.endswith("?")
        axes_text, _, fixed = entry.rstrip("?").partition(":")
        if tensor is None and optional:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{name}: expected a torch.Tensor{' or None' if optional else ''}, got {type(tensor).__name__}"
            )
        _check_dtype(name, tensor, fixed, first)
        _check_axes(name, tensor, axes_text.split(), sizes, owner)
        if leader is None:
            leader = (name, tensor)
        elif tensor.device != leader[1].device:
            raise ValueError(f"{name}: is on {tensor.device}, but {leader[0]} is on {leader[1].device}")
        if first is None and (not fixed or (_SAME in fixed.split("|") and _name(tensor) not in fixed.split("|"))):
            first = (name, tensor)
    return tuple(sizes.values())


_SAME = "same"


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_dtype(name: str, tensor: torch.Tensor, fixed: str, first: tuple[str, torch.Tensor] | None) -> None:
    got, allowed = _name(tensor), fixed.split("|") if fixed else []
    if got in allowed:
        return
    if fixed and _SAME not in allowed:
        raise TypeError(f"{name}: expected dtype {' or '.join(allowed)}, got {got}")
    if tensor.dtype not in FLOATS:
        raise TypeError(f"{name}: expected dtype float32, float16 or bfloat16, got {got}")
    elif first is not None and tensor.dtype != first[1].dtype:
        raise TypeError(
            f"{name}: dtype {got}, but {first[0]} has {_name(first[1])}; all operands share one dtype"
            + "".join(f", or it is {other}" for other in allowed if other != _SAME)
        )


def _check_axes(name: str, tensor: torch.Tensor, axes: list[str], sizes: dict[str, int], owner: dict[str, str]) -> None:
    axes = [] if axes == ["()"] else axes
    form = f"({', '.join(axes)})"
    open_ended = axes[-1:] == ["..."]
    letters = axes[:-1] if open_ended else axes
    if tensor.ndim < len(letters) or (tensor.ndim > len(letters) and not open_ended):
        raise ValueError(f"{name}: expected shape {form}, got {tuple(tensor.shape)}")
    for letter, size in zip(letters, tensor.shape, strict=False):
        whole, _, parts = letter.partition("/")
        if parts and sizes[whole] % int(parts):
            raise ValueError(f"{owner[whole]}: {whole} = {sizes[whole]} is no multiple of {parts}")
        if parts:
            expected = sizes[whole] // int(parts)
        else:
            expected = int(letter) if letter.isdigit() else sizes.setdefault(letter, size)
        if size != expected:
            why = "" if letter.isdigit() else f", where {owner[whole]} gives {whole} = {sizes[whole]}"
            raise ValueError(f"{name}: expected shape {form}{why}, got {tuple(tensor.shape)}")
        owner.setdefault(whole, name)


def seen_by(owner: type, method: str, pick: Callable[[Any, Any], Any], call: Callable[[], Any]) -> list[Any]:
    """What `pick(self, result)` gives of each call of a class's method while `call()` runs, each object once."""
    found: dict[int, Any] = {}
    original = getattr(owner, method)

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        one = pick(self, result)
        if one is not None:
            found[id(one)] = one
        return result

    setattr(owner, method, watched)
    try:
        call()
    finally:
        setattr(owner, method, original)
    return list(found.values())
