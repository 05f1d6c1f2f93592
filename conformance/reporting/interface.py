"""The interface of an op in a few lines: how it is called, with which operands and options, what it returns, what it
computes, and on what it is judged."""

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import Case, Contract, From, dtype_name

CALLS_DTYPE = "T"  # what stands for the dtype in which a case has its operands


def described(contract: Contract) -> str:
    """The lines of `touchstone describe OP`.

    Shapes are by the letters of the contract's sizes, T is the dtype in which a call has its operands, and an option's
    values are those that are tried, the default first.
    """
    lines = [f"{contract.name}, called as {contract.form()}"]
    lines += [f"  {name}: {_operand(contract, name)}" for name in contract.operands]
    lines += [f"  {name} = {_option(options)}" for name, options in contract.params.items()]
    lines += [f"  -> {name}: {_output(contract, name)}" for name in contract.outputs]
    lines.append(f"{CALLS_DTYPE}: {_either(contract.dtypes)}")
    lines += ["", *_semantics(contract.name), ""]
    lines.append(f"sizes: {len(contract.sizes)}, the first {dict(contract.sizes[0])}")
    lines.append(f"values: {', '.join(contract.values)}")
    lines += [f"layouts of {names}: {found}" for found, names in _layouts(contract).items()]
    return "\n".join(lines)


def _operand(contract: Contract, name: str) -> str:
    operand = contract.operands[name]
    dtypes = [CALLS_DTYPE if dtype is None else dtype_name(dtype) for dtype in operand.dtypes or (operand.dtype,)]
    text = _of_cases(contract, lambda case: f"{_shape(contract.operand_axes(name, case))}, {_either(dtypes)}")
    return text + (", or None" if "none" in operand.layouts else "")


def _output(contract: Contract, name: str) -> str:
    def dtype(case: Case) -> str:
        own = contract.outputs[name].dtype
        return CALLS_DTYPE if own is None else dtype_name(own if isinstance(own, torch.dtype) else own(case))

    return _of_cases(contract, lambda case: f"{_shape(contract.output_axes(name, case))}, {dtype(case)}")


def _shape(axes: str) -> str:
    return f"({', '.join(axes.split())})"


def _of_cases(contract: Contract, text: Callable[[Case], str]) -> str:
    """What holds with every option at its default; then what another option's value makes of it."""
    usual = plain_case(contract, contract.dtypes[0], next(iter(contract.values)))
    found = text(usual)
    others: dict[str, list[str]] = {}
    for said, case in _options_by_turns(contract, usual):
        if (other := text(case)) != found:
            others.setdefault(other, []).append(said)
    return "; ".join([found, *(f"{other} where {' or '.join(said)}" for other, said in others.items())])


def _options_by_turns(contract: Contract, usual: Case) -> Iterator[tuple[str, Case]]:
    for name, options in contract.params.items():
        for value in options[1:]:
            params = tuple((n, value if n == name else v) for n, v in usual.params)
            yield f"{name}={value!r}", replace(usual, params=params)


def _option(options: Sequence[Any]) -> str:
    if any(isinstance(value, From) for value in options):
        return "what follows from the operands"
    return _either([repr(value) for value in options])


def _either(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _semantics(op: str) -> list[str]:
    """The docstring of the op's reference; nothing for an op of a user's, which has no such file."""
    try:
        module = importlib.import_module(f"touchstone.reference.{op}")
    except ModuleNotFoundError:
        return []
    return (inspect.getdoc(module) or "").splitlines()


def _layouts(contract: Contract) -> dict[str, str]:
    """Layouts -> the operands that are tried in them."""
    names: dict[str, list[str]] = {}
    for name, operand in contract.operands.items():
        found = [layout for layout in operand.layouts if layout != "none"]
        names.setdefault(", ".join(found or ["contiguous"]), []).append(name)
    return {found: ", ".join(of) for found, of in names.items()}
