"""`check_against` and `describe`: judge a kernel against any function of torch, without a contract written by hand."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from touchstone.conformance.check import check
from touchstone.conformance.derived import families, modules, selftest
from touchstone.conformance.derived.contract import DerivedContract, derive
from touchstone.conformance.discovery import derivation
from touchstone.conformance.discovery import importing as worker
from touchstone.conformance.reporting.report import Report
from touchstone.conformance.spec.budget import EPS, budget
from touchstone.conformance.spec.cases import LEVELS, plain_case
from touchstone.conformance.spec.contract import DTYPES
from touchstone.conformance.spec.words import expected_one_of

Inputs = Sequence[Any] | Callable[..., Sequence[Any]]


def check_against(
    reference: Callable[..., Any],
    kernel: Callable[..., Any],
    inputs: Inputs,
    *,
    dtypes: Sequence[str] = tuple(DTYPES),
    level: str = "default",
    references: Sequence[Callable[..., Any]] = (),
    store: str = "dots",
    sizes: Mapping[str, Sequence[int]] | None = None,
    keep: Sequence[str] = (),
    domain: Mapping[str, tuple[float, float]] | None = None,
    special: str = "eager",
    seed: int = 0,
    **options: Any,
) -> Report:
    """Judge `kernel` by what `reference(*inputs)` computes; return a `Report`, as `check` does.

    `reference` is an eager function of torch, or a torch.nn.Module, whose parameters and buffers become operands.
    `kernel` has the same signature; beside a module it is a module with the same parameters, or takes the inputs by
    position and the parameters by name (dots are underscores). `inputs` is one example of the inputs, a list of
    tensors, numbers and None, or a function that returns one. `dtypes` to `seed` are as `derive` has them, `options`
    as `check` has them. docs/any-function.md says what such a budget is, and when to write a contract by hand.

    Raises Refused, a ValueError that names the op and the way out, for functions of which no budget can be derived
    (random numbers, complex numbers, values that leave torch), and for a contract that accuses right forms of the
    reference; ValueError or TypeError naming the argument, before the kernel runs.
    """
    worker.stop_if_importing()
    if level not in LEVELS:
        raise ValueError(f"level: {expected_one_of(level, LEVELS, repr)}")
    if not callable(kernel):
        raise TypeError(f"kernel: expected a function or a torch.nn.Module, got {type(kernel).__name__}")
    if isinstance(kernel, torch.nn.Module):
        if not isinstance(reference, torch.nn.Module):
            raise TypeError("kernel: a module goes with a reference that is one; pass a function of the inputs")
        kernel = modules.as_kernel(kernel, reference)
    op = derivation.load_derived(
        reference,
        inputs,
        level=level,
        dtypes=dtypes,
        references=references,
        store=store,
        sizes=sizes,
        keep=keep,
        domain=domain,
        special=special,
        seed=seed,
    )
    try:
        return check(op, kernel, level=level, seed=seed, **options)
    except (TypeError, ValueError) as error:
        raise type(error)(f"kernel:{str(error)[3:]}" if str(error).startswith("fn:") else str(error)) from error


def describe(reference: Callable[..., Any], inputs: Inputs, *, mutants: int = 24, **options: Any) -> str:
    """What `check_against` would judge a kernel by, in a few lines: axes, sizes, families of values, the budget, and
    how many wrong versions of the reference it rejects. `options` are those of `derive`; errors as there."""
    return description(derive(reference, inputs, **options), worker.describe(reference), mutants)


def description(contract: DerivedContract, name: str, mutants: int) -> str:
    """The lines of `describe` for a contract that was derived."""
    contract.name = contract.name or "function"
    tested = selftest.examine(contract, mutants)
    found = contract.found
    lines = [f"{name}, called as {contract.form()}"]
    for operand, about in contract.operands.items():
        lines.append(f"  {operand}: ({', '.join(str(about.axes).split())})")
    lines += [f"  {operand} = {options[0]!r}, as given" for operand, options in contract.params.items()]
    lines += [
        f"  -> {output}: ({', '.join(axes)})" for output, axes in zip(contract.outputs, found.outputs, strict=True)
    ]
    lines.append(f"axes: {', '.join(map(str, found.axes)) or 'none'}")
    lines.append(f"sizes: {len(found.sizes)}, the first {found.sizes[0]}")
    lines += [f"  left out: {size}: {why}" for size, why in found.ends.items()]
    lines += found.layouts_left_out()
    lines.append(f"values: {', '.join(found.moves)}")
    lines += [f"  left out: {family}: {why}" for family, why in found.left_out.items()]
    for dtype in contract.dtypes:
        case = plain_case(contract, dtype, "normal" if "normal" in contract.values else "given")
        for output, text in _budgets(contract, case).items():
            lines.append(f"budget of {output} in {dtype}, normal values: {text}")
    for family in filter(families.is_special, contract.values):
        contract.expected(contract.build(plain_case(contract, contract.dtypes[0], family)))
    lines += [f"{what} ({count} cases)" for what, count in contract.notes.items() if "not judged" in what]
    lines += [
        f"judged of {output}: {judged} of {compared} elements{'' if judged else ', so that no kernel passes by it'}"
        for output, (compared, judged) in tested.elements.items()
        if judged < compared
    ]
    lines += [f"no error rule for {op}: taken to be backward stable" for op in sorted(contract.unknown)]
    lines.append(f"right forms of the reference accused: {len(tested.accused)} of {tested.forms} runs")
    lines += [f"  {accused}: the contract would not be used" for accused in tested.accused[:3]]
    lines.append(str(tested.strength))
    return "\n".join(lines)


def _budgets(contract: DerivedContract, case: Any) -> dict[str, str]:
    """Of each output, the budget at the median element in eps of its dtype."""
    texts = {}
    for output, expected in contract.expected(contract.build(case)).items():
        own = expected.dtype or case.torch_dtype
        if not own.is_floating_point:
            texts[output] = "equal, but near a discontinuity"
            continue
        if expected.exact:
            texts[output] = "equal"
            continue
        size = EPS[own] * expected.answer.abs()
        shares = (budget(expected, case.torch_dtype) / size)[size > torch.finfo(own).tiny]
        texts[output] = f"{float(shares.nanmedian()):.3g} eps of |{output}| at the median" if len(shares) else "all 0"
    return texts
