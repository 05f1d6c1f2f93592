"""What an output must be beside its values: its type, shape, dtype, device, strides, and memory of its own."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Case, Contract

# where one of these is found, nothing else is looked at, the values included
_NOT_COMPARABLE = frozenset({Check.RETURNS, Check.SHAPE, Check.DTYPE, Check.DEVICE})


class Problem(NamedTuple):
    """One thing wrong with an output: a sentence that begins with its name, and the input it shares memory with."""

    check: Check
    message: str
    operand: str = ""


def problems(
    contract: Contract,
    case: Case,
    name: str,
    got: Any,
    device: str,
    inputs: Mapping[str, torch.Tensor | None],
    *,
    absent: bool = False,
    library_type: str = "torch.Tensor",
    type_name: Callable[[Any], str] = lambda value: type(value).__name__,
) -> list[Problem]:
    """What is wrong with the output `name` of a call on `case`, beside its values; nothing where it is as it must be.

    `inputs` are tensors over the memory that belongs to the operands, guard bands included where there are some.
    `absent`: there is no such output in this case, and None stands for it. A message about another type says that
    `library_type` was expected, and `type_name(got)` returned.
    """
    if absent:
        return [] if got is None else [Problem(Check.RETURNS, f"{name} must be None here, got {type(got).__name__}")]
    if type(got) is not torch.Tensor:
        return [Problem(Check.RETURNS, f"{name}: expected a {library_type}, got {type_name(got)}")]
    shape, dtype = contract.output_shape(name, case), contract.output_dtype(name, case)
    if tuple(got.shape) != shape:
        return [Problem(Check.SHAPE, f"{name}: expected shape {shape}, got {tuple(got.shape)}")]
    if got.dtype != dtype:
        return [Problem(Check.DTYPE, f"{name}: expected {dtype}, got {got.dtype}")]
    if got.device.type != device:
        return [Problem(Check.DEVICE, f"{name}: expected a tensor on {device}, got {got.device}")]
    found = []
    if not got.is_contiguous():
        found.append(Problem(Check.STRIDES, f"{name}: expected a contiguous tensor, got strides {got.stride()}"))
    for operand, memory in inputs.items():
        if memory is not None and overlap(memory, got) and not contract.may_share(name, operand):
            found.append(Problem(Check.ALIAS, f"{name} shares memory with the input {operand}", operand))
    return found


def comparable(found: list[Problem]) -> bool:
    """Whether the values of an output with these problems can be compared."""
    return not any(problem.check in _NOT_COMPARABLE for problem in found)


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the memory from the first element to the last of each has a byte in common."""
    return meet(extent(a), extent(b))


def meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two extents have a byte in common."""
    return a[0] < b[1] and b[0] < a[1] and a[0] < a[1] and b[0] < b[1]


def extent(x: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first byte of a tensor and of that behind its last, which are equal if it is empty."""
    if not x.numel():
        return x.data_ptr(), x.data_ptr()
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()
