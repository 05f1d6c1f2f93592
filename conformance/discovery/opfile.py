"""A user's own op: one Python file that holds the reference and the contract. docs/your-kernel.md walks through one."""

import inspect
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from touchstone.conformance.derived.contract import DerivedContract
from touchstone.conformance.discovery import importing as worker
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec import budget, compare
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import (
    DTYPES,
    Also,
    Case,
    Contract,
    Draw,
    Inputs,
    Invalid,
    Operand,
    Output,
    Property,
    Regular,
)
from touchstone.conformance.spec.layouts import PLANS
from touchstone.conformance.spec.words import not_one_of

TRIED_WORK = 2e6  # sizes with more work than this are not tried when a contract is validated
_loading: list[Path] = []


def load_op(path: str | Path) -> str:
    """Load the op that the Python file `path` defines, for this process and the ones it judges in; return its name.

    The file holds `contract = Contract(...)` and the reference that the contract's `expect` evaluates; its stem is the
    op's name. A file loaded again is read afresh. Raises ValueError that names the file and the field where the
    contract is mistaken, where the name is that of a built-in op, or where the file does not import.
    """
    path = Path(os.path.realpath(path))
    if path in _loading:
        raise worker.ImportReachedCheck  # the file loads itself at its end: what is above is all there is to load
    name = path.stem
    if not path.is_file() or path.suffix != ".py":
        raise ValueError(f"op file: there is no Python file {path}")
    if not name.isidentifier() or name.startswith("_"):
        raise ValueError(
            f"op file: {path.name}: the stem is the op's name; expected a Python identifier that does not start with _"
        )
    if name in registry.ops():
        raise ValueError(f"op file: {path.name}: {name!r} is a built-in op; give the file another name")
    loaded = registry.op_file(name)
    if loaded not in (None, path):
        raise ValueError(f"op file: {path.name}: {name!r} is loaded from {loaded} already; give one file another name")
    found, complete = _module(path)
    made = getattr(found, "contract", None)
    if made is None and not complete:
        raise ValueError(
            f'op file: {path.name} calls check before it defines contract; put the call under if __name__ == "__main__"'
        )
    if not isinstance(made, Contract):
        got = "nothing of that name" if made is None else f"a {type(made).__name__}"
        raise ValueError(
            f"op file: {path.name}: expected `contract`, a touchstone.conformance.spec.contract.Contract, got {got}"
        )
    made.name = name
    if not isinstance(made, DerivedContract):  # which was tried when it was derived
        validate(made, path.name)
    registry.register(name, made, path)
    return name


def load_op_of_a_run(path: str | Path) -> str:
    """As `load_op`, for a process whose exit status is a verdict: ValueError too where importing the file ends the
    process."""
    whole = Path(os.path.realpath(path))
    if whole.is_file():
        try:
            worker.tried(lambda: worker.load_module(whole))
        except ValueError as error:
            raise ValueError(f"op file: {whole.name} does not import: {error}") from None
    return load_op(path)


def _module(path: Path) -> tuple[Any, bool]:
    _loading.append(path)
    try:
        return worker.load_module(path)
    except (Exception, SystemExit) as error:
        raise ValueError(f"op file: {path.name} does not import: {_raised(error, path.name)}") from error
    finally:
        _loading.remove(path)


def validate(contract: Contract, source: str) -> None:
    """Raise ValueError "SOURCE: contract.FIELD: ..." at the first mistake found in a contract.

    Looks at every field, then draws every value family and computes the answer at the smallest size in every dtype,
    and once at every other size that is cheap, with every value of each parameter.
    """
    field = "?"

    def demand(condition: Any, message: str) -> None:
        if not condition:
            raise ValueError(f"{source}: contract.{field}: {message}")

    for field, kind in (("operands", Operand), ("outputs", Output)):
        value = getattr(contract, field)
        demand(isinstance(value, Mapping) and value, f"expected a dict of names and {kind.__name__}s")
        for name, item in value.items():
            demand(isinstance(item, kind), f"{name}: expected an {kind.__name__}, got {type(item).__name__}")
            words = isinstance(item.axes, str) or callable(item.axes)
            demand(words, f"{name}: axes: expected letters or words such as 'rows cols'")

    field = "sizes"
    demand(_listed(contract.sizes), "expected a list of dicts, the smallest size first")
    named = [operand.axes for operand in contract.operands.values()]
    named += [output.axes for output in contract.outputs.values()]
    every = [axes for axes in named if isinstance(axes, str)]
    wanted = {"trailing" if axis == "..." else axis for axes in every for axis in axes.split()}
    field = "regular"
    regular = contract.regular or Regular(())
    demand(isinstance(regular, Regular), f"expected a Regular, got {type(regular).__name__}")
    field = "also"
    demand(isinstance(contract.also, Mapping), "expected a dict of names and Alsos")
    for name, one in contract.also.items():
        demand(isinstance(one, Also), f"{name}: expected an Also, got {type(one).__name__}")
    sized = {"regular": regular.sizes, "also": [one.size for one in contract.also.values()]}
    for field in ("sizes", "aligned", "large", "regular", "also"):
        for index, size in enumerate(sized[field] if field in sized else getattr(contract, field)):
            demand(isinstance(size, Mapping), f"[{index}]: expected a dict, got {type(size).__name__}")
            demand(wanted <= set(size), f"[{index}]: no {_words(wanted - set(size))}, an axis of operands or outputs")
            for axis, n in size.items():
                good = all(_count(part) for part in n) if isinstance(n, tuple) else _count(n)
                demand(good, f"[{index}]: {axis}: expected a whole number of at least 0, got {n!r}")

    field = "operands"
    smallest = contract.sizes[0]
    for name, operand in contract.operands.items():
        demand(_listed(operand.layouts), f"{name}: layouts: expected a list of names, got {operand.layouts!r}")
        shape = contract.shape(operand.axes, smallest) if isinstance(operand.axes, str) else ()
        for layout in operand.layouts:
            known = layout == "none" or layout in PLANS
            demand(known, f"{name}: layouts: {not_one_of(layout, [*PLANS, 'none'])}")
            if callable(operand.axes):
                continue  # their number follows from the case
            try:
                PLANS.get(layout, PLANS["contiguous"])(shape)
            except (IndexError, ValueError):
                demand(False, f"{name}: layouts: {layout!r} needs more axes than {operand.axes!r}")

    field = "dtypes"
    demand(_listed(contract.dtypes), "expected a list of names")
    for name in contract.dtypes:
        demand(name in DTYPES, not_one_of(name, DTYPES))

    field = "values"
    demand(isinstance(contract.values, Mapping) and contract.values, "expected a dict of names and functions")
    for name, family in contract.values.items():
        demand(callable(family), f"{name}: expected a function of a Draw, got {type(family).__name__}")

    field = "params"
    demand(isinstance(contract.params, Mapping), "expected a dict of names and lists of values")
    for name, options in contract.params.items():
        demand(_listed(options), f"{name}: expected a list of values, the default first, got {options!r}")
        demand(name not in contract.operands, f"{name} is an operand too")

    field = "regular"
    for name, options in regular.params.items():
        demand(name in contract.params, f"params: {not_one_of(name, contract.params)}")
        demand(_listed(options), f"params: {name}: expected a list of values, got {options!r}")

    field = "also"
    for name, one in contract.also.items():
        demand(name not in contract.values, f"{name}: a family of values has that name")
        known = one.values is None or callable(one.values) or one.values in contract.values
        demand(known, f"{name}: values: expected a function of a Draw or one of {_words(contract.values)}")
        demand(one.dtype in contract.dtypes, f"{name}: dtype: {not_one_of(one.dtype, contract.dtypes)}")
        for param in one.params:
            demand(param in contract.params, f"{name}: params: {not_one_of(param, contract.params)}")
        for given, layout in one.layouts.items():
            demand(given in contract.operands, f"{name}: layouts: {not_one_of(given, contract.operands)}")
            demand(layout == "none" or layout in PLANS, f"{name}: layouts: {not_one_of(layout, [*PLANS, 'none'])}")

    field = "derive"
    derived = [name for name, operand in contract.operands.items() if operand.derived]
    demand(not derived or callable(contract.derive), f"computes the derived operands, {_words(derived)}; it is missing")

    for field in ("expect", "valid", "flops", "bytes"):
        demand(callable(getattr(contract, field)), "expected a function")
    field = "expect"
    try:
        inspect.signature(contract.expect).bind({}, {}, dtype=torch.float32, compute=None)
    except TypeError as error:
        demand(False, f"its signature is (inputs, params, *, dtype, compute=None): {error}")

    field = "exact"
    for exactly, names in contract.exact.items():
        demand(exactly in contract.values, f"{exactly!r} is no family of values; there are {_words(contract.values)}")
        demand(_listed(names) and set(names) <= set(contract.outputs), f"{exactly}: expected outputs, got {names!r}")
    field = "properties"
    for prop in contract.properties:
        demand(isinstance(prop, Property), f"expected Properties, got {type(prop).__name__}")
        demand(prop.values in contract.values, f"{prop.name}: values: {prop.values!r} is no family of values")
    field = "invalid"
    for call in contract.invalid:
        demand(isinstance(call, Invalid), f"expected Invalids, got {type(call).__name__}")

    for case in _tried(contract, source):
        _try(contract, case, source)


def _tried(contract: Contract, source: str) -> list[Case]:
    families, dtypes = list(contract.values), list(contract.dtypes)
    cases = [plain_case(contract, dtype, family) for family in families for dtype in dtypes]
    first = cases[0]
    cases += [plain_case(contract, dtypes[0], families[0], size=size) for size in contract.sizes[1:]]
    for name, options in contract.params.items():
        for option in options[1:]:
            params = tuple((key, option if key == name else value) for key, value in first.params)
            cases.append(Case(first.op, first.dtype, first.sizes, first.values, first.layouts, params))
    kept = []
    for case in cases:
        for field in ("valid", "flops", "bytes"):
            try:
                answer = contract.valid(case) if field == "valid" else contract.work(case)
            except Exception as error:
                raise ValueError(f"{source}: contract.{field}: raised {_raised(error, source)} for {case}") from error
        if contract.valid(case) and answer <= TRIED_WORK:
            kept.append(case)
    if first not in kept:
        raise ValueError(
            f"{source}: contract.valid: rules out {first}, the plain case of the first size and the first family"
        )
    return kept


def _try(contract: Contract, case: Case, source: str) -> None:
    """Draw, derive and expect one case; say which of them gave something else than the contract promises."""

    def attempt(field: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise ValueError(f"{source}: contract.{field}: raised {_raised(error, source)} for {case}") from error

    def demand(condition: Any, message: str) -> None:
        if not condition:
            raise ValueError(f"{source}: contract.{message} (for {case})")

    drawn = attempt(f"values[{case.values!r}]", lambda: contract.family(case.values)(Draw(case, contract)))
    own = {name: operand for name, operand in contract.operands.items() if not operand.derived}
    _check_operands(contract, case, own, drawn, f"values[{case.values!r}]", demand)
    if contract.derive is not None:
        derive = contract.derive
        exact = {
            name: None if value is None else value.to(contract.operand_dtype(name, case)).to(torch.float64)
            for name, value in drawn.items()
        }
        rest = {name: operand for name, operand in contract.operands.items() if operand.derived}
        _check_operands(contract, case, rest, attempt("derive", lambda: derive(exact, case.param)), "derive", demand)
    inputs: Inputs = attempt("operands", lambda: contract.build(case))
    expected = attempt("expect", lambda: contract.expected(inputs))
    demand(isinstance(expected, Mapping), f"expect: expected a dict of outputs, got {type(expected).__name__}")
    names = set(contract.outputs)
    demand(set(expected) == names, f"expect: expected the outputs {_words(names)}, got {_words(expected)}")
    for name, output in contract.outputs.items():
        if expected[name] is not None:
            for answer in (expected[name], *getattr(expected[name], "alternatives", ())):
                _check_answer(contract, case, name, output, answer, demand)


def _check_operands(
    contract: Contract, case: Case, operands: Mapping[str, Operand], drawn: Any, field: str, demand: Callable
) -> None:
    demand(isinstance(drawn, Mapping), f"{field}: expected a dict of tensors, got {type(drawn).__name__}")
    demand(set(drawn) == set(operands), f"{field}: expected the operands {_words(operands)}, got {_words(drawn)}")
    for name in operands:
        value, shape, axes = drawn[name], contract.operand_shape(name, case), contract.operand_axes(name, case)
        if value is None:
            continue
        demand(isinstance(value, torch.Tensor), f"{field}: {name}: expected a tensor, got {type(value).__name__}")
        got = tuple(value.shape)
        demand(got == shape, f"{field}: {name}: expected shape {shape}, which is {axes!r}, got {got}")


def _check_answer(contract: Contract, case: Case, name: str, output: Output, got: Any, demand: Callable) -> None:
    demand(
        isinstance(got, budget.Expected),
        (
            f"expect: {name}: expected an Expected (touchstone.conformance.spec.budget.simple makes one), got "
            f"{type(got).__name__}"
        ),
    )
    answer, shape = got.answer, contract.output_shape(name, case)
    demand(isinstance(answer, torch.Tensor), f"expect: {name}: answer: expected a tensor, got {type(answer).__name__}")
    demand(answer.dtype == torch.float64, f"expect: {name}: answer: expected float64, got {answer.dtype}")
    same, axes = tuple(answer.shape) == shape, contract.output_axes(name, case)
    demand(same, f"expect: {name}: answer: expected shape {shape}, which is {axes!r}, got {tuple(answer.shape)}")
    dtype = contract.output_dtype(name, case)
    demand(
        got.dtype in (None, dtype) and (got.dtype or case.torch_dtype) == dtype,
        f"expect: {name}: dtype: the output is {dtype}; Expected(..., dtype={dtype}) says so",
    )
    for part in got.parts:
        demand(
            isinstance(part, Sequence) and len(part) == 2, f"expect: {name}: parts: expected (terms, condition) pairs"
        )
        terms = torch.as_tensor(part[0])
        demand(bool((terms >= 0).all()), f"expect: {name}: parts: expected at least 0 terms, got {part[0]}")
    try:
        allowed = torch.as_tensor(budget.budget(got, case.torch_dtype)).expand(shape)
    except (RuntimeError, TypeError, ValueError) as error:
        demand(False, f"expect: {name}: parts, rounding or extra do not fit the answer's shape {shape}: {error}")
        return
    finite = torch.isfinite(answer)
    demand(bool((allowed[finite] > 0).all()), f"expect: {name}: parts, rounding or extra are negative or NaN")
    verdict = compare.compare(answer.to(dtype), got, case.torch_dtype)
    demand(
        verdict.ok, f"expect: {name}: the answer itself, rounded to {dtype}, is outside the budget: {verdict.message}"
    )


def _raised(error: BaseException, source: str) -> str:
    """What was raised and on which line of the user's file."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == source]
    return f"{type(error).__name__}: {str(error).strip() or 'no message'}" + (f" (line {lines[-1]})" if lines else "")


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0


def _count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0 and not isinstance(value, bool)


def _words(names: Any) -> str:
    return ", ".join(map(str, sorted(names) if isinstance(names, set) else names)) or "none"
