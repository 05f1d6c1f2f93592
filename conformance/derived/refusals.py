"""What no contract can be derived from, with the way out: randomness, complex numbers, values that leave torch."""

import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from touchstone.conformance.derived.ops import EXACT, OF_COMPLEX

NOT_USERS = (str(Path(__file__).parent), str(Path(torch.__file__).parent), "<")  # where files begin that are no user's
# methods that hand a tensor's values to other code, where no error can be added to what is computed of them
LEAVING = ("numpy", "__array__", "tolist", "data_ptr", "__dlpack__")
UNIQUE = ("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive")


class Refused(ValueError):
    """No contract can be derived from the function; the message names the op and the way out."""


class Leaving(TorchFunctionMode):
    """Refuses a function that takes values out of torch."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in LEAVING and args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            raise Refused(
                f"the reference leaves torch: Tensor.{name}(){_place()}; what is computed outside cannot be followed: "
                "write that part with torch, or write a contract by hand (docs/your-kernel.md)"
            )
        return func(*args, **(kwargs or {}))


def _place() -> str:
    """Where the user's code calls: the innermost line that is neither torch's nor ours."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(NOT_USERS):
            return f" at {Path(frame.filename).name}:{frame.lineno}"
    return ""


@cache
def _may_draw(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def check_op(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise Refused for an op that has no rule by its nature."""
    if _may_draw(func) and _draws(func, name, args, kwargs):
        raise Refused(
            f"the reference draws random numbers: {func}; pass model.eval(), p=0, or the random tensor as an input"
        )
    if name in UNIQUE and any(isinstance(t, torch.Tensor) and t.is_floating_point() for t in args):
        raise Refused(f"the shape of an output depends on which computed values are equal: {func}; return fixed shapes")
    if name == "view" and any(isinstance(arg, torch.dtype) for arg in args):
        raise Refused(f"the reference reads the bits of a tensor: {func}; what an error does to them is unknown")
    if name.removesuffix("_") == "nextafter":
        raise Refused(
            f"the answer depends on how far apart the numbers of a dtype are: {func}; write the contract by hand "
            "(docs/your-kernel.md)"
        )
    for value in args:
        check_kind(value, func, name)
    for value in kwargs.values():
        check_kind(value, func, name)


def _has_rule(func: Any, name: str) -> bool:
    """Whether there is a rule for an op of complex numbers."""
    return func.is_view or name in EXACT or name in OF_COMPLEX or torch.Tag.pointwise in func.tags


def check_kind(value: Any, func: Any, name: str) -> None:
    """Raise Refused for a tensor of a kind that no rule knows: what an op takes, or gives."""
    if isinstance(value, list | tuple):
        for each in value:
            check_kind(each, func, name)
        return
    if not isinstance(value, torch.Tensor):
        return
    kind, tensor = None, value
    if tensor.is_complex() and not _has_rule(func, name):
        kind = "complex numbers"
    elif tensor.is_quantized:
        kind = "a quantised tensor"
    elif tensor.layout is not torch.strided:
        kind = "a sparse tensor"
    if kind is not None:
        raise Refused(
            f"no rule for {kind}: {func}; write the contract by hand (docs/your-kernel.md), with real, dense tensors"
        )


def check_real(value: Any, what: str, way: str) -> None:
    """Raise Refused for a tensor of complex numbers, a sparse or a quantised one, that goes into a function, or comes
    out of it."""
    if isinstance(value, torch.Tensor) and (value.is_quantized or value.layout is not torch.strided):
        kind = "quantised" if value.is_quantized else "sparse"
        raise Refused(f"no contract for a {kind} tensor: {what}; write the contract by hand (docs/your-kernel.md)")
    if isinstance(value, torch.Tensor) and value.is_complex():
        raise Refused(f"no contract for complex numbers: {what}; {way}; within the function they may be")


def _draws(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an op that can draw random numbers does: not dropout with p = 0, or not in training."""
    given: dict[str, Any] = {
        argument.name: argument.default_value for argument in func._schema.arguments if argument.has_default_value()
    }
    given |= dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)
    if given.get("train", True) is False or given.get("training", True) is False:
        return False
    return next((given[key] for key in ("p", "dropout_p", "dropout") if key in given), None) not in (0, 0.0)
