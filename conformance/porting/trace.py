"""`port --trace`: a variant and its port side by side on the CPU, and the first tile of an output in which they differ.

A tile is what one program or block of the source writes of an output. What counts as a difference is the op's own error
budget: the port's element is wrong by the contract, and differs from the source's by more than the budget.
"""

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from touchstone.conformance.discovery import importing as worker
from touchstone.conformance.discovery import registry, selection
from touchstone.conformance.discovery.selection import CEILING_SECONDS, UsageError
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import diagnosis, heatmap
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.call import expected_of, output_bytes
from touchstone.conformance.judging.executor import error_text
from touchstone.conformance.judging.judgement import UNPORTED
from touchstone.conformance.porting.port import Port
from touchstone.conformance.reporting.console import Table
from touchstone.conformance.spec import cases as generate
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.contract import Case

OWNED = 4096  # elements of an output whose owners are asked for
ELEMENTS = 8  # shown of a tile
_TEAM = re.compile(r"^\w+ \([^)]*\)")  # "program (3, 0, 0)" and "block (3, 0, 0)" of what writers say


@dataclass
class Trace:
    """What came of it. `str()` is for a terminal."""

    op: str
    source: str  # "onerow of triton"
    port: str
    case: str | None  # that differs, or None
    cases: int  # compared, that one included
    skipped: dict[str, int] = field(default_factory=dict)  # cases by the reason why they were not
    unported: str | None = None  # what the port raised in place of an answer
    instruments: list[str] = field(default_factory=list)  # under which it was right too
    lines: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        return self.case is None and self.unported is None and self.cases > 0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "agrees": self.agrees}

    def __str__(self) -> str:
        head = f"{self.op}: {self.port} against {self.source}, on the CPU"
        counted = f"{self.cases} case{'s' if self.cases != 1 else ''}"
        left = [f"{count} not compared: {reason}" for reason, count in self.skipped.items()]
        if self.case is not None:
            return "\n".join([head, f"DIFFERS on {self.case}; {counted} tried", *self.lines])
        if self.unported is not None:
            return "\n".join([head, f"FAILED: {self.unported}"])
        if not self.cases:
            return "\n".join([head, "FAILED: nothing was compared", *left])
        also = f"; right under {', '.join(self.instruments)} too" if self.instruments else ""
        return "\n".join([head, f"AGREES on {counted}{also}", *left])


@dataclass
class _Run:
    """One call: outputs by name, or the sentence that says what came instead."""

    outputs: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None
    declined: str | None = None
    writer: Callable[[int], str | None] | None = None  # of an address; None: nobody records


def trace(port: Port, case: str | None = None, seed: int = 0) -> Trace:
    """Compare the one variant of `port` with its port, on `case` or on the cases of level quick, the smallest first.

    Raises UsageError where one of the two does not run here, or the file is missing.
    """
    if len(port.variants) != 1:
        raise UsageError(
            f"--trace: compares one variant; choose one of {', '.join(variant.name for variant in port.variants)} by "
            "--variant"
        )
    if not port.path.is_file():
        raise UsageError(f"-o: there is no file {port.given} to compare; without --trace it is written")
    variant = port.variants[0].name
    for option, name in (("--from", port.source), ("--to", port.target)):
        if reason := registry.backend(name).why_not("cpu"):
            raise UsageError(f"{option}={name}: cannot run on cpu here: {reason}")
    for name in (port.source, port.target):
        try:
            registry.backend(name).prepare("cpu")
        except RuntimeError as error:
            raise UsageError(f"--trace: {error}") from error
    theirs = _source(port)
    if reason := selection.not_run_reason(port.source, theirs):
        raise UsageError(f"--variant: {variant} of {port.source} does not run on the CPU: it {reason}")
    mine = Subject(port.op, _load(port.path, port.names[variant], "-o"), port.names[variant], "user@cpu", "cpu")

    where = port.source if port.kernel is None else str(port.variants[0].file)
    found = Trace(port.op, f"{variant} of {where}", f"{mine.name} of {port.given}", None, 0)
    compared: list[Case] = []
    for one in _cases(port, case, seed):
        first, second = _call(theirs, one), _call(mine, one)
        left = first.declined or first.failed
        if left or second.declined:
            reason = f"{port.source} {left}" if left else f"{port.target} {second.declined}"
            if UNPORTED in reason:
                found.unported = reason.partition(" declines: ")[2]
                return found
            found.skipped[reason] = found.skipped.get(reason, 0) + 1
            continue
        found.cases += 1
        compared.append(one)
        if second.failed or _differ(port, one, first, second):
            found.case = f"{one.id} (seed {seed})"
            found.lines = _described(port, one, theirs, mine, second)
            return found
    for one in _hardest(compared):
        if lines := _under_instruments(port, one, theirs, mine, found):
            found.case, found.lines = f"{one.id} (seed {seed})", lines
            break
    return found


def _hardest(cases: Sequence[Case]) -> list[Case]:
    """The case of most work, and the one with the longest axis."""
    if not cases:
        return []
    contract = registry.contract(cases[0].op)

    def longest(case: Case) -> int:
        return max(
            (max(size) if isinstance(size, tuple) and size else size for _, size in case.sizes if size), default=0
        )

    return list(dict.fromkeys([max(cases, key=contract.work), max(cases, key=longest)]))


def _under_instruments(port: Port, case: Case, theirs: Subject, mine: Subject, found: Trace) -> list[str]:
    """What the port does in other orders of its threads and under the look for races; nothing where it stays right."""
    offered = getattr(registry.backend(port.target), "instruments", None)
    first = _call(theirs, case)
    for name, within in (offered("cpu") if offered is not None else {}).items():
        with within():
            second = _call(mine, case)
        if second.failed:
            return [f"{port.target}, {name}: {second.failed}"]
        if not second.declined and _differ(port, case, first, second):
            return [
                f"{port.target}, {name}: another answer than in order; what a thread sees depends on who comes first"
            ]
        found.instruments += [name] if name not in found.instruments else []
    return []


def _differ(port: Port, case: Case, theirs: _Run, mine: _Run) -> bool:
    return any(bad is not None for bad in _differences(port, case, theirs, mine).values())


def _source(port: Port) -> Subject:
    """What is ported: a variant, or the user's own function."""
    variant = port.variants[0].name
    if port.kernel is None:
        fn = registry.variants(port.source, port.op)[variant]
        return selection.variant_subject(port.op, port.source, variant, fn, "cpu")
    path, name = selection.kernel_of(port.kernel)
    fn = _load(path, name, "--kernel")
    registry.backend(port.source).adopt(fn, "cpu")
    return Subject(port.op, fn, variant, "user@cpu", "cpu")


def _load(path: Path, name: str, option: str) -> Callable[..., Any]:
    try:
        return worker.load(path, name)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    except (Exception, SystemExit) as error:
        raise UsageError(f"{option}: {path} does not import: {type(error).__name__}: {error}") from error


def _cases(port: Port, wanted: str | None, seed: int) -> list[Case]:
    contract = registry.contract(port.op)
    if wanted is not None:
        for level in generate.LEVELS:
            for case in generate.plan(contract, level, seed).cases:
                if case.id == wanted:
                    return [case]
        some = ", ".join(case.id for case in generate.plan(contract, "quick", seed).cases[:3])
        raise UsageError(f"--case: {wanted!r} is no case of {port.op} with seed {seed}; such as {some}")
    rates = [registry.backend(name).WORK_PER_SECOND["cpu"] for name in (port.source, port.target)]
    ceiling = CEILING_SECONDS["quick"] * min(rates)
    cases = [
        case for case in generate.plan(contract, "quick", seed).cases if case.filled and contract.work(case) <= ceiling
    ]
    return sorted(cases, key=contract.work)


def _call(subject: Subject, case: Case, backend: str | None = None) -> _Run:
    """Call a kernel in poisoned memory; with `backend`, its writers are recorded."""
    contract = subject.contract
    inputs = contract.build(case, "cpu")
    run = _Run()
    watch = getattr(registry.backend(backend), "writers", None) if backend is not None else None
    watching = watch("cpu") if watch is not None else None
    with contextlib.ExitStack() as stack:
        stack.enter_context(probe.poison(probe.PATTERNS[0], "cpu", output_bytes(contract, case)))
        if watching is not None:
            run.writer = stack.enter_context(watching).of
        try:
            values = contract.by_name(subject.call(inputs.arguments))
        except NotImplementedError as error:
            run.declined = f"declines: {error}"
            return run
        except Exception as error:
            run.failed = f"raises {error_text(error)}"
            return run
    if isinstance(values, str):
        run.failed = values
        return run
    for name in contract.outputs:
        got, shape, dtype = values[name], contract.output_shape(name, case), contract.output_dtype(name, case)
        if got is None:
            continue
        if not isinstance(got, torch.Tensor):
            run.failed = f"returns a {type(got).__name__} as {name}"
        elif (tuple(got.shape), got.dtype) != (shape, dtype):
            run.failed = f"returns {name} as {tuple(got.shape)}, {got.dtype}; expected {shape}, {dtype}"
    run.outputs = values
    return run


def _differences(port: Port, case: Case, theirs: _Run, mine: _Run) -> dict[str, torch.Tensor | None]:
    """Which elements of each output differ, as booleans; None where they agree."""
    contract = registry.contract(port.op)
    expected = expected_of(contract, case, None)
    found: dict[str, torch.Tensor | None] = {}
    for name, right in expected.items():
        first, second = theirs.outputs[name], mine.outputs[name]
        found[name] = None
        if right is None or first is None or second is None:
            continue
        bits = diagnosis.exact(contract, case, name)
        judged = compare.compare(second, right, case.torch_dtype, bits)
        if judged.ok:
            continue
        answer = replace(right, answer=first.double(), alternatives=[], drift=math.inf)
        apart = compare.compare(second, answer, case.torch_dtype, bits).bad
        wrong = judged.bad if judged.bad is not None else torch.ones(tuple(second.shape), dtype=torch.bool)
        both = wrong & apart if apart is not None else wrong
        found[name] = both if bool(both.any()) else wrong
    return found


def _described(port: Port, case: Case, theirs: Subject, mine: Subject, failed: _Run) -> list[str]:
    """The first tile that differs, from a second call of both, whose writers are recorded."""
    if failed.failed:
        return [f"{port.target} {failed.failed}"]
    first, second = _call(theirs, case, port.source), _call(mine, case, port.target)
    if first.failed or second.failed or first.declined or second.declined:
        return [f"called once more, {port.target} {second.failed or second.declined or 'gives another answer'}"]
    contract = registry.contract(port.op)
    differences = _differences(port, case, first, second)
    name = next((name for name, bad in differences.items() if bad is not None), None)
    if name is None:
        return ["called once more it agrees: it depends on more than its inputs"]
    bad = differences[name]
    assert bad is not None
    axes = diagnosis.axis_names(contract.output_axes(name, case), bad.ndim)
    lines = [f"{name} differs in {int(bad.sum())} of {bad.numel()} elements: {diagnosis.region(bad, axes)}"]
    right = expected_of(contract, case, None)[name]
    if bad.ndim and not bool(bad.all()):
        answer = replace(right, answer=first.outputs[name].double(), alternatives=[], drift=math.inf)
        shares = diagnosis.shares(second.outputs[name], answer, case.torch_dtype, diagnosis.exact(contract, case, name))
        lines += [f"    {line}" for line in heatmap.text(shares, axes=axes).splitlines()]
    return lines + _tile(port, name, bad, first, second, right)


def _tile(port: Port, name: str, bad: torch.Tensor, theirs: _Run, mine: _Run, right: Any) -> list[str]:
    index = tuple(int(i) for i in bad.nonzero()[0])
    one, other = theirs.outputs[name], mine.outputs[name]
    owner = _owner(theirs, one, index)
    every = [tuple(i) for i in (torch.ones_like(bad) if bad.numel() <= OWNED else bad).nonzero()[:OWNED].tolist()]
    team = _team(owner)
    tile = [place for place in every if team is not None and _team(_owner(theirs, one, place)) == team] or [index]
    wrong = [place for place in tile if bool(bad[place])]
    lines = [f"first tile that differs: {_box(name, tile)}, {len(wrong)} of its {len(tile)} elements"]
    owners = {port.source: owner, port.target: _owner(mine, other, index)}
    width = max(map(len, owners)) + 1
    for backend, run in ((port.source, theirs), (port.target, mine)):
        lines.append(f"  {backend + ':':<{width}} {_element(name, index)} was written by {_who(owners[backend], run)}")
    label = f"  {port.target + ':':<{width}}"
    blank = [place for place in tile if mine.writer is not None and _owner(mine, other, place) is None]
    if blank:
        lines.append(f"{label} no thread wrote {_box(name, blank)}, {len(blank)} elements of the tile")
    teams = dict.fromkeys(found for place in tile if (found := _team(_owner(mine, other, place))) is not None)
    if teams:
        lines.append(f"{label} the tile was written by {_some(list(teams))}")
    answer = right.answer.expand(bad.shape)
    table = Table("", ["element", port.source, port.target, "float64", f"written in {port.target} by"])
    for place in wrong[:ELEMENTS]:
        numbers = [f"{float(value[place]):.9g}" for value in (one, other, answer)]
        table.rows.append([_element(name, place), *numbers, _who(_owner(mine, other, place), mine)])
    return [*lines, *(f"    {line}" for line in table.plain().splitlines()[1:])]


def _owner(run: _Run, output: torch.Tensor, index: Sequence[int]) -> str | None:
    if run.writer is None:
        return None
    place = sum(i * stride for i, stride in zip(index, output.stride(), strict=True))
    return run.writer(output.data_ptr() + place * output.element_size())


def _team(owner: str | None) -> str | None:
    found = _TEAM.match(owner or "")
    return found[0] if found else None


def _who(owner: str | None, run: _Run) -> str:
    if run.writer is None:
        return "somebody (this target records no writers)"
    return owner or "nobody: it holds what was in memory"


def _some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _element(name: str, index: Sequence[int]) -> str:
    return f"{name}[{', '.join(map(str, index))}]" if index else name


def _box(name: str, places: Sequence[Sequence[int]]) -> str:
    """The smallest box around elements: "y[3, 0:127]"."""
    if not places[0]:
        return name
    ends = [(min(axis), max(axis)) for axis in zip(*places, strict=True)]
    parts = [str(low) if low == high else f"{low}:{high + 1}" for low, high in ends]
    return f"{name}[{', '.join(parts)}]"
