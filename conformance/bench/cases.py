"""Which groups are timed: ops and their backwards, shapes, dtypes, parameters, and contestants."""

import copy
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from touchstone.backends.storage import files
from touchstone.backends.variants import attributes
from touchstone.conformance.bench import goals
from touchstone.conformance.bench.baselines import declared, runnable
from touchstone.conformance.bench.goals import Goal
from touchstone.conformance.bench.group import Group
from touchstone.conformance.discovery import registry, selection
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation.limits import available_memory
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.baselines import Arguments, Baseline, Bench, Call
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import DTYPES, Case, Contract, Draw, size_text
from touchstone.conformance.spec.words import expected_one_of, not_one_of

MODES = ("fwd", "bwd", "fwd_bwd")
GPU_MEMORY = 1 << 40  # bytes that no GPU has
WIDER = 4  # budgets that a gradient gets when it is computed from a kernel's own rounded outputs


EXPERIMENTS = Path(__file__).with_name("experiments")


@dataclass
class Plan:
    """The groups to measure, and what was left out with the reason."""

    groups: list[Group]
    left_out: dict[str, str]
    goals: list[Goal] = field(default_factory=list)


def plan(
    chosen: selection.Selection,
    shapes: str,
    dtypes: Sequence[str] | None = None,
    mode: str = "fwd",
    baselines: bool = False,
    first: bool = False,
    top: int | None = None,
) -> Plan:
    """The groups of a selection; of every ladder the `top` last variants that can run and take the dtype. Raises
    UsageError naming the option."""
    if mode not in MODES:
        raise selection.UsageError(f"--mode: {expected_one_of(mode, MODES)}")
    for name in dtypes or ():
        if name not in DTYPES:
            raise selection.UsageError(f"--dtype: {not_one_of(name, DTYPES)}")
    named = shapes_of_file(Path(shapes)) if shapes not in ("small", "large") else None
    made = Plan([], {}, goals.of_entries(named or []))
    wanted = _Wanted(shapes, named, dtypes, mode, baselines, first, top)
    for op in chosen.ops:
        _plan_op(made, chosen, op, wanted)
    return made


@dataclass(frozen=True)
class _Wanted:
    """What of every op is timed, as `plan` was asked."""

    shapes: str
    named: list[dict[str, Any]] | None  # of a file
    dtypes: Sequence[str] | None
    mode: str
    baselines: bool
    first: bool
    top: int | None


def _plan_op(made: Plan, chosen: selection.Selection, op: str, wanted: _Wanted) -> None:
    mode, dtypes, baselines = wanted.mode, wanted.dtypes, wanted.baselines
    contract, bench, name = registry.contract(op), declared(op), op
    everyone = chosen_subjects(chosen, op)
    if mode != "fwd":
        gradient = _gradient(op)
        if gradient is None:
            made.left_out[f"{op} --mode {mode}"] = "no op is its gradient"
            return
        name = gradient
        contract, bench, everyone = registry.contract(name), declared(name), chosen_subjects(chosen, name)
        if mode == "fwd_bwd":
            forward = contract.gradient_of
            ahead, before = registry.contract(forward), declared(forward)
            everyone = both_subjects(ahead, contract, chosen_subjects(chosen, forward, every=True), everyone)
            bench = both_benches(ahead, contract, before, bench)
            contract, name = both(ahead, contract), forward
    subjects = []
    for backend, subject in everyone:
        if reason := selection.not_run_reason(backend, subject):
            made.left_out[f"{subject.target} {op} {subject.name}"] = reason
        else:
            subjects.append((backend, subject))
    usual = list(dtypes or [d for d in bench.dtypes if chosen.device == "cuda"] or ["float32"])
    entries = [each for each in wanted.named or [] if each.get("op") in (None, op, name)]
    own = [] if dtypes else [each["dtype"] for each in entries if "dtype" in each]  # which nobody has to ask for
    for dtype in dict.fromkeys([*usual, *own]):
        if dtype not in contract.dtypes:
            continue
        taking = [(b, s) for b, s in subjects if dtype in (attributes(s.fn).dtypes or contract.dtypes)]
        if wanted.top is not None:
            ladders = [[one for one in taking if one[0] == b] for b in dict.fromkeys(b for b, _ in taking)]
            taking = [one for ladder in ladders for one in ladder[-wanted.top :]]
        running, absent = (
            runnable(bench.baselines, chosen.device, dtype, baselines)
            if baselines or chosen.device == "cuda"
            else ([], {})
        )
        named = None if wanted.named is None else [each for each in entries if "dtype" in each or dtype in usual]
        found = _cases(contract, bench, name, dtype, wanted.shapes, named, chosen, taking)
        if found:  # a file of shapes may name none of the op
            made.left_out |= {f"{name}: {baseline}": reason for baseline, reason in absent.items()}
        for case in found[:1] if wanted.first else found:
            within = [(b, s) for b, s in taking if b == "" or contract.work(case) <= chosen.ceiling(b)]
            if within or running:
                made.groups.append(Group(contract, bench, case, within, running, mode))
            elif taking:
                made.left_out[f"{name} {dtype} {size_text(case.sizes)}"] = "more work than the target's limit"


def _gradient(op: str) -> str | None:
    """The op that is the gradient of `op`, or `op` where it is a gradient itself; None where there is none."""
    if registry.contract(op).gradient_of:
        return op
    return next((each for each in registry.ops() if registry.contract(each).gradient_of == op), None)


def _cases(
    contract: Contract,
    bench: Bench,
    op: str,
    dtype: str,
    shapes: str,
    named: Any,
    chosen: selection.Selection,
    subjects: Any,
) -> list[Case]:
    if named is not None:
        return [
            _fitting(contract, case, chosen.device)
            for entry in named
            for case in _of_file(contract, bench, op, dtype, entry)
        ]
    ceiling = min((chosen.ceiling(backend) for backend, _ in subjects if backend), default=math.inf)
    found = []
    if shapes == "large":
        candidates: Sequence[Mapping[str, Any]] = contract.large
    else:
        candidates = [size for size in contract.sizes if _plain(contract, op, dtype, size).filled]
    for size in candidates:
        found += _with_params(bench, _plain(contract, op, dtype, size))
    if shapes == "large":
        return found
    fitting = [case for case in found if contract.valid(case) and contract.work(case) <= ceiling]
    if chosen.device == "cpu":  # what an emulator does in a moment
        fitting = [case for case in fitting if contract.work(case) <= ceiling / 10] or fitting[:1]
    return sorted(fitting, key=_balance)[-1:]


def _balance(case: Case) -> float:
    """How large a case is with no axis long: what every variant of a ladder takes."""
    sizes = [n for _, size in case.sizes for n in (size if isinstance(size, tuple) else (size,))]
    return sum(math.log2(min(n, 64)) for n in sizes)


def _plain(contract: Contract, op: str, dtype: str, size: Mapping[str, Any]) -> Case:
    return replace(plain_case(contract, dtype, next(iter(contract.values)), 0, size), op=op)


def _with_params(bench: Bench, case: Case, given: Mapping[str, Any] | None = None) -> list[Case]:
    """The case with each combination of the parameters that are timed, or with those given."""
    given = given or {}
    options = {
        name: [given[name]] if name in given else list(bench.params.get(name, [value])) for name, value in case.params
    }
    combinations = itertools.product(*options.values())
    return [replace(case, params=tuple(zip(options, values, strict=True))) for values in combinations]


def _of_file(contract: Contract, bench: Bench, op: str, dtype: str, entry: Mapping[str, Any]) -> list[Case]:
    """The cases of one entry of a file of shapes: sizes by their letters, parameters by name, perhaps `dtype`, the
    `layouts` of operands by their names, and `goals`."""
    if entry.get("dtype", dtype) != dtype:
        return []
    letters = list(contract.sizes[0])
    unknown = sorted(set(entry) - {*letters, *contract.params, "op", "dtype", "layouts", goals.KEY})
    missing = [letter for letter in letters if letter not in entry]
    if unknown or missing:
        what = f"has no {', '.join(missing)}" if missing else f"has {', '.join(unknown)}"
        raise selection.UsageError(
            f"--shapes: an entry for {op} {what}; its sizes are {', '.join(letters)}, its parameters "
            f"{', '.join(contract.params) or 'none'}"
        )
    for letter in letters:
        several = entry[letter] if isinstance(entry[letter], list) else [entry[letter]]
        if not all(type(n) is int and 0 <= n < 2**63 for n in several):
            raise selection.UsageError(
                f"--shapes: {letter} of {op}: expected a whole number from 0 to 2^63 - 1, or a list of such, got "
                f"{entry[letter]!r}"
            )
    size = {n: tuple(entry[n]) if isinstance(entry[n], list) else entry[n] for n in letters}
    given = {name: entry[name] for name in contract.params if name in entry}
    plain = _plain(contract, op, dtype, size)
    placed = tuple((plain.layout | _layouts_of_file(contract, op, entry)).items())
    return _with_params(bench, replace(plain, layouts=placed), given)


def _fitting(contract: Contract, case: Case, device: str) -> Case:
    """A case of a file of shapes; UsageError where its tensors are more than memory holds, of a GPU more than any's."""
    takes = contract.bytes(case.size, case.param, case.torch_dtype.itemsize)
    has = available_memory() if device == "cpu" else GPU_MEMORY
    if takes > has:
        raise selection.UsageError(
            f"--shapes: {case.op} with {', '.join(f'{name} = {n}' for name, n in case.sizes)}: expected operands and "
            f"outputs of at most {has / 2**30:.3g} GiB, the memory to be had, got {takes / 2**30:.3g} GiB"
        )
    return case


def _layouts_of_file(contract: Contract, op: str, entry: Mapping[str, Any]) -> dict[str, str]:
    wanted = entry.get("layouts", {})
    if not isinstance(wanted, dict):
        raise selection.UsageError(f"--shapes: layouts: expected an object of operands and layouts, got {wanted!r}")
    for name, layout in wanted.items():
        if name not in contract.operands:
            known = ", ".join(contract.operands)
            raise selection.UsageError(f"--shapes: layouts: {op} has no operand {name!r}; its operands are {known}")
        able = [each for each in contract.operands[name].layouts if each in layouts.WRITABLE]
        if layout not in able:
            raise selection.UsageError(
                f"--shapes: layouts: expected one of {', '.join(able)} for {op}'s {name}, got {layout!r}"
            )
    return wanted


def shapes_of_file(path: Path) -> list[dict[str, Any]]:
    """A file of shapes: a JSON list of objects, each with sizes by letter and perhaps `op`, `dtype`, parameters,
    `layouts` and `goals`; or an object with such a list as its `shapes`, which an experiment is."""
    if not path.is_file():
        raise selection.UsageError(f"--shapes: expected small, large or a file of JSON, got {str(path)!r}")
    try:
        found = files.read_json(path)
    except ValueError as error:
        raise selection.UsageError(f"--shapes: {path} is no JSON: {error}") from None
    if isinstance(found, dict):
        found = found.get("shapes")
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise selection.UsageError(f"--shapes: {path}: expected a list of objects")
    for entry in found:
        if "dtype" in entry and entry["dtype"] not in DTYPES:
            raise selection.UsageError(f"--shapes: dtype: {not_one_of(entry['dtype'], DTYPES)}")
    return found


def experiments() -> dict[str, dict[str, Any]]:
    """By name: what it is about, its source, the command's options that it sets, and its shapes."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(EXPERIMENTS.glob("*.json"))}


def experiment(name: str) -> tuple[Path, dict[str, Any]]:
    """The file of an experiment, which `shapes_of_file` reads too, and the options that it sets."""
    known = experiments()
    if name not in known:
        raise selection.UsageError(f"--experiment: {expected_one_of(name, known)}")
    return EXPERIMENTS / f"{name}.json", known[name]["options"]


def chosen_subjects(chosen: selection.Selection, op: str, every: bool = False) -> list[tuple[str, Subject]]:
    """The selection's variants of `op`, whether or not the selection names that op; with `every` also of any name."""
    if chosen.kernel is not None:
        return [(b, s) for b, s in chosen.subjects() if s.op == op]
    found = []
    for backend in chosen.backends:
        for name, fn in selection.variants(backend, op, None if every else chosen.variants).items():
            found.append((backend, selection.variant_subject(op, backend, name, fn, chosen.device)))
    return found


def both(forward: Contract, backward: Contract) -> Contract:
    """The contract of a call that computes an op and then its gradient from the op's own outputs.

    Operands of the gradient that are neither the op's operands nor its outputs are drawn, unless they are derived:
    those are left out. Gradients get WIDER budgets, since they start from rounded outputs.
    """
    own = {
        n: replace(o, positional=False)
        for n, o in backward.operands.items()
        if n not in forward.operands and n not in forward.outputs and not o.derived
    }
    first, second = next(iter(forward.values)), next(iter(backward.values))

    def draw_all(draw: Draw) -> dict[str, torch.Tensor | None]:
        drawn = []
        for contract, family in ((forward, first), (backward, second)):
            part = copy.copy(draw)
            part._contract = contract
            drawn.append(contract.values[family](part))
        return {**{n: drawn[1][n] for n in own}, **{n: drawn[0][n] for n in forward.operands}}

    def expect(inputs: Mapping[str, Any], params: Mapping[str, Any], *, dtype: torch.dtype, compute: str | None = None):
        ahead = forward.expect(inputs, params, dtype=dtype, compute=compute)
        given = {n: ahead[n].answer if n in ahead else inputs.get(n) for n in backward.operands}
        behind = backward.expect(given, params, dtype=dtype, compute=compute)
        return {**ahead, **{n: None if e is None else _wider(e) for n, e in behind.items()}}

    return Contract(
        name=forward.name,
        operands={**forward.operands, **own},
        outputs={**forward.outputs, **backward.outputs},
        sizes=backward.sizes,
        large=backward.large or forward.large,
        values={first: draw_all},
        expect=expect,
        params=forward.params,
        dtypes=[d for d in forward.dtypes if d in backward.dtypes],
        valid=lambda case: (
            forward.valid(_with_layouts(case, forward)) and backward.valid(_with_layouts(case, backward))
        ),
        flops=lambda size, params: forward.flops(size, params) + backward.flops(size, params),
        bytes=lambda size, params, item: forward.bytes(size, params, item) + backward.bytes(size, params, item),
    )


def _with_layouts(case: Case, contract: Contract) -> Case:
    return replace(case, layouts=tuple((name, operand.layouts[0]) for name, operand in contract.operands.items()))


def _wider(expected: Expected) -> Expected:
    return replace(
        expected,
        parts=[(terms, WIDER * condition) for terms, condition in expected.parts],
        rounding=WIDER * (expected.rounding + expected.answer.abs()),
        extra=WIDER * expected.extra,
        drift=math.inf,
        alternatives=[_wider(other) for other in expected.alternatives],
    )


def both_subjects(
    forward: Contract, backward: Contract, ahead: Sequence[tuple[str, Subject]], behind: Sequence[tuple[str, Subject]]
) -> list[tuple[str, Subject]]:
    """Each variant of the gradient after the forward variant of its name, or after the last that can run there."""
    found = []
    for backend, second in behind:
        ladder = [s for b, s in ahead if b == backend and not selection.not_run_reason(backend, s)]
        if not ladder:
            continue
        first = next((s for s in ladder if s.name == second.name), ladder[-1])
        fn = _chain(forward, backward, first.fn, second.fn)
        name = second.name if first.name == second.name else f"{first.name}+{second.name}"
        compute = second.compute or first.compute
        found.append((backend, replace(second, fn=fn, name=name, compute=compute)))
    return found


def _chain(
    forward: Contract, backward: Contract, first: Callable[..., Any], second: Callable[..., Any]
) -> Callable[..., Any]:
    def chained(**arguments: Any) -> tuple[Any, ...]:
        ahead = {n: v for n, v in arguments.items() if n in forward.operands or n in forward.params}
        returned = first(**ahead)
        outputs = returned if isinstance(returned, tuple) else (returned,)
        given = {**arguments, **dict(zip(forward.outputs, outputs, strict=True))}
        behind = second(**{n: v for n, v in given.items() if n in backward.operands or n in backward.params})
        return (*outputs, *(behind if isinstance(behind, tuple) else (behind,)))

    return chained


def both_benches(forward: Contract, backward: Contract, ahead: Bench, behind: Bench) -> Bench:
    """Baselines that have both, by name; the gradient's own graph is made beforehand, its forward pass is timed
    besides."""
    second = {baseline.name: baseline for baseline in behind.baselines}
    baselines = [
        _pair(forward, backward, baseline, second[baseline.name])
        for baseline in ahead.baselines
        if baseline.name in second
    ]
    return replace(behind, baselines=baselines)


def _pair(forward: Contract, backward: Contract, first: Baseline, second: Baseline) -> Baseline:
    def make(arguments: Arguments) -> Call:
        ahead = first.make({n: v for n, v in arguments.items() if n in forward.operands or n in forward.params})
        given = {**dict.fromkeys(backward.operands), **arguments}
        given |= {n: v.detach().clone() for n, v in ahead().items()}
        behind = second.make({n: v for n, v in given.items() if n in backward.operands or n in backward.params})
        return lambda: {**ahead(), **behind()}

    return replace(first, make=make, compiles=first.compiles or second.compiles)
