"""Judging by a property: what calls with other arguments show, whatever the answer is."""

import time
from collections.abc import Mapping
from typing import Any

import torch

from touchstone.conformance.judging import requirements, special
from touchstone.conformance.judging.executor import CANNOT, DECLINES, Manner, Raised, error_text
from touchstone.conformance.judging.judgement import Judgement
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.checks import Check, Requirement
from touchstone.conformance.spec.contract import Inputs, Property

ANEW = 5.0  # seconds for the calls of a property of which each imports the kernel's file


class _Stopped(Exception):
    """A further call did not return."""

    def __init__(self, raised: Raised):
        self.raised = raised


class _Misshapen(Exception):
    """A further call did not return what the op's outputs are."""


def check_property(j: Judgement, prop: Property, inputs: Inputs, values: tuple[Any, ...]) -> None:
    """Call the kernel again with what a property asks for; `values` are the outputs on `inputs`.

    An error in the property's own comparison is the judge's, and raised, where the right answers lead to it too.
    """

    def call(**arguments: Any) -> tuple[Any, ...]:
        requirements.note_call(j, arguments)
        return _outputs(j, arguments)

    try:
        broken = prop.check(call, inputs.arguments, values, j.case)
    except _Stopped as stopped:
        raised = stopped.raised
        if raised.kind == DECLINES:
            j.decline(raised.said or raised.types[0])
            return
        if raised.kind == CANNOT:
            j.not_run(raised.said or raised.types[0])
            return
        broken = f"a further call raised {raised.text}"
    except _Misshapen as error:
        broken = f"of a further call: {error}"
    except Exception as error:
        if j.debug or _is_ours(j, prop, inputs, error):
            raise
        broken = f"what a further call returned cannot be compared: {error_text(error)}"
    if not broken:
        return
    check = Check.PROPERTY.of(prop.name)
    if _holds_anew(j, prop, inputs):
        kept = "the kernel's file is imported anew for each call: something is kept from one call to the next"
        j.find(check, f"{broken}; but it holds where {kept}", requirement=Requirement.DETERMINISM)
    else:
        j.find(check, broken, requirement=Requirement.VALUES if _broken_plainly(j, prop, inputs, values) else None)


def _outputs(j: Judgement, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a call of the kernel returns."""
    seen = j.call(arguments)
    if seen.raised is not None:
        raise _Stopped(seen.raised)
    if isinstance(seen.values, str):
        raise _Misshapen(seen.values)
    return tuple(seen.values.values())


def _of_right_answers(j: Judgement, prop: Property, inputs: Inputs, further: Requirement | None = None) -> str | None:
    """What a property says of the right answers, in the dtypes of the outputs; with `further` as in `_plain`."""

    def call(**arguments: Any) -> tuple[Any, ...]:
        if further is not None:
            arguments = _plain(arguments, further)
        operands = {name: arguments[name] for name in j.contract.operands}
        exact = {n: t.double().cpu() if isinstance(t, torch.Tensor) else None for n, t in operands.items()}
        given = {name: value for name, value in arguments.items() if name not in operands}
        found = j.contract.expect(exact, given, dtype=j.case.torch_dtype, compute=j.subject.compute)
        names = j.subject.outputs or tuple(found)
        return tuple(_rounded(j, name, found[name]) for name in names)

    return prop.check(call, inputs.arguments, call(**inputs.arguments), j.case)


def _is_ours(j: Judgement, prop: Property, inputs: Inputs, error: Exception) -> bool:
    """Whether the right answers lead to the same error."""
    try:
        _of_right_answers(j, prop, inputs)
    except Exception as other:
        return error_text(other) == error_text(error)
    return False


def _rounded(j: Judgement, name: str, expected: Expected | None) -> torch.Tensor | None:
    if expected is None:
        return None
    return expected.answer.to(j.executor.device, j.contract.output_dtype(name, j.case))


def _broken_plainly(j: Judgement, prop: Property, inputs: Inputs, values: tuple[Any, ...]) -> bool:
    """Whether a property of which calls have NaN or infinities, or operands in strides, is broken without them too,
    where the right answers have it."""
    further = j.further[-1] if j.further else None
    if further is None or not j.subject.diagnosed:
        return False

    def call(**arguments: Any) -> tuple[Any, ...]:
        return _outputs(j, _plain(arguments, further))

    try:
        if _of_right_answers(j, prop, inputs, further):
            return False
        return bool(prop.check(call, inputs.arguments, values, j.case))
    except Exception:  # the property is about NaN, or the kernel raises: nothing is said
        return False


def _plain(arguments: Mapping[str, Any], further: Requirement) -> dict[str, Any]:
    """The arguments of a call without what they show beyond a case: a number in place of all NaN and infinities, or
    every operand contiguous."""
    tensors = {name: one for name, one in arguments.items() if isinstance(one, torch.Tensor)}
    change = special.with_numbers if further is Requirement.SPECIAL else torch.Tensor.contiguous
    return {**arguments, **{name: change(tensor) for name, tensor in tensors.items()}}


def _holds_anew(j: Judgement, prop: Property, inputs: Inputs) -> bool:
    """Whether a property that is broken holds where no call knows of an earlier one."""
    if j.subject.own or j.subject.untrusted or not j.subject.diagnosed:
        return False
    end = time.monotonic() + ANEW

    def call(**arguments: Any) -> tuple[Any, ...]:
        if time.monotonic() > end:
            raise TimeoutError
        j.subject.compared["imports"] += 1
        seen = j.again(debug=False).call(arguments, Manner(anew=j.subject.compared["imports"]))
        if not seen.returned or not isinstance(seen.values, dict):
            raise ValueError
        return tuple(seen.values.values())

    try:
        return not prop.check(call, inputs.arguments, call(**inputs.arguments), j.case)
    except Exception:  # there is no file, or no time, or it fails otherwise: nothing is said
        return False
