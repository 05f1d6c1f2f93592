"""The mutants under rules in common use, beside this judge: which of them each catches, and whether it
rejects a known-good kernel.

The rules are those of other projects' checks, restated: `torch.testing.assert_close` with its default tolerances on one
randn input a dtype; KernelBench's comparison (float32, one shape, five randn inputs, atol = rtol = 1e-2 or 1e-4);
PyTorch's own OpInfo samples of the op with assert_close, where `expecttest` is installed, which torch's test modules
import. One shape
means: every size the same power of two, as large as a call of 2^22 multiply-adds allows (1024 x 1024 for a softmax, 128
for a matmul), so that all of it takes minutes. The answer is the contract's, in float64, rounded once, which is kinder
than those projects' own.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.faults import Planted
from touchstone.conformance.isolation.fork import fork
from touchstone.conformance.isolation.processes import Death, serve
from touchstone.conformance.reporting.console import Table
from touchstone.conformance.selftest.results import OpResult
from touchstone.conformance.selftest.run import each, last_words_kept
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import DTYPES, Case, Contract

WORK = 2**22
TRIALS = 5  # of KernelBench
SECONDS = 120.0  # for all rules on one mutant

Arguments = dict[str, Any]
Sample = tuple[str, Arguments, dict[str, torch.Tensor | None]]  # dtype, arguments, answer by output


@dataclass(frozen=True)
class Rule:
    """How one project decides: inputs, and when an output is accepted."""

    name: str
    samples: Callable[[Contract], Iterator[Sample]]
    accepts: Callable[[torch.Tensor, torch.Tensor], bool]


@dataclass
class RuleResult:
    """What one rule made of what is planted in one op; names of those to which it applies."""

    rule: str
    caught: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    accused: list[str] = field(default_factory=list)  # known-good kernels
    acquitted: list[str] = field(default_factory=list)


def one_size(contract: Contract) -> dict[str, Any]:
    """Every size the same power of two, as large as `WORK` allows; `trailing` ones are 2 beside others. Where sizes
    depend on one another, the largest of the contract's own that is as large."""
    first = contract.sizes[0]
    alone = all(isinstance(n, tuple) for n in first.values())

    def allowed(size: Mapping[str, Any]) -> bool:
        case = case_of_size(contract, "float32", size, 0)
        return contract.valid(case) and contract.work(case) <= WORK

    def sized(each: int) -> dict[str, Any]:
        return {name: ((each if alone else 2,) * len(n) if isinstance(n, tuple) else each) for name, n in first.items()}

    made = [sized(2**exponent) for exponent in range(3, 13)]
    found = [size for size in made if allowed(size)] or [dict(size) for size in contract.sizes if allowed(size)]
    return max(found, key=lambda size: contract.work(case_of_size(contract, "float32", size, 0)))


def case_of_size(contract: Contract, dtype: str, size: Mapping[str, Any], seed: int) -> Case:
    """The plain case of a size, with the first parameters that fit it: groups that divide the channels."""
    plain = plain_case(contract, dtype, next(iter(contract.values)), seed, size)
    options = itertools.product(*(contract.params[name] for name, _ in plain.params))
    names = [name for name, _ in plain.params]
    cases = (replace(plain, params=tuple(zip(names, values, strict=True))) for values in options)
    return next((case for case in cases if contract.valid(case)), plain)


def _randn(contract: Contract, dtypes: Sequence[str], trials: int) -> Iterator[Sample]:
    """Every operand normal, contiguous, parameters at their first values."""
    size = one_size(contract)

    def family(draw):
        return {
            name: draw.normal(draw.shape(name)) for name, operand in contract.operands.items() if not operand.derived
        }

    plain = replace(contract, values={"randn": family})
    plain.name = contract.name
    for dtype in dtypes:
        for seed in range(trials):
            inputs = plain.build(case_of_size(plain, dtype, size, seed))
            yield dtype, inputs.arguments, _answer(contract, inputs.arguments, dtype)


def _opinfo(contract: Contract) -> Iterator[Sample]:
    if contract.opinfo is None or find_spec("expecttest") is None:  # which torch's test modules import
        return
    from torch.testing._internal.common_methods_invocations import op_db

    name, arguments_of = contract.opinfo
    info = next(op for op in op_db if op.name == name and op.variant_test_name == "")
    for dtype in contract.dtypes:
        if DTYPES[dtype] in info.dtypes:
            for sample in info.sample_inputs("cpu", DTYPES[dtype], requires_grad=False):
                arguments = arguments_of(sample.input, sample.args, sample.kwargs)
                if arguments is not None:
                    params = {name: options[0] for name, options in contract.params.items()}
                    arguments = {**dict.fromkeys(contract.operands), **params, **arguments}
                    yield dtype, arguments, _answer(contract, arguments, dtype)


def _answer(contract: Contract, arguments: Arguments, dtype: str) -> dict[str, torch.Tensor | None]:
    exact = {name: None if arguments[name] is None else arguments[name].double() for name in contract.operands}
    params = {name: arguments[name] for name in contract.params}
    expected = contract.expect(exact, params, dtype=DTYPES[dtype])
    return {n: None if e is None else e.answer.to(e.dtype or DTYPES[dtype]) for n, e in expected.items()}


def _close(got: torch.Tensor, right: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(got, right, equal_nan=True)
    except AssertionError:
        return False
    return True


def _within(tolerance: float) -> Callable[[torch.Tensor, torch.Tensor], bool]:
    return lambda got, right: (
        got.shape == right.shape and torch.allclose(got.to(right.dtype), right, atol=tolerance, rtol=tolerance)
    )


RULES = (
    Rule("assert_close, randn", lambda contract: _randn(contract, contract.dtypes, 1), _close),
    Rule("KernelBench 1e-2", lambda contract: _randn(contract, ["float32"], TRIALS), _within(1e-2)),
    Rule("KernelBench 1e-4", lambda contract: _randn(contract, ["float32"], TRIALS), _within(1e-4)),
    Rule("OpInfo samples", _opinfo, _close),
)


def compare_op(op: str, named: Sequence[str] | None = None) -> list[RuleResult]:
    """Put everything planted in `op` in torch before each rule; each mutant in a child of this process."""
    torch.set_num_threads(1)
    contract = registry.contract(op)
    samples = {rule.name: list(rule.samples(contract)) for rule in RULES}
    found = {rule.name: RuleResult(rule.name) for rule in RULES}
    with last_words_kept():
        _put(contract, named, samples, found)
    return list(found.values())


def _put(
    contract: Contract,
    named: Sequence[str] | None,
    samples: Mapping[str, list[Sample]],
    found: Mapping[str, RuleResult],
) -> None:
    for planted in registry.planted(contract.name):
        if named is not None and planted.name not in named:
            continue
        rejected = _in_child(contract, planted, samples)
        for rule in RULES:
            if not any(dtype in planted.dtypes for dtype, _, _ in samples[rule.name]):
                continue
            one, no = found[rule.name], rejected is None or rule.name in rejected
            if planted.is_known_good:
                (one.accused if no else one.acquitted).append(planted.name)
            else:
                (one.caught if no else one.missed).append(planted.name)


def _in_child(contract: Contract, planted: Planted, samples: Mapping[str, list[Sample]]) -> set[str] | None:
    """The rules that reject; None where the child died, hung or raised, which any check notices."""
    child = fork(lambda connection: serve(connection, lambda _: _rejected(contract, planted, samples)))
    try:
        answer = child.ask(None, SECONDS)
    except Exception:
        return None
    finally:
        child.close()
    return None if isinstance(answer, Death) else answer


def _rejected(contract: Contract, planted: Planted, samples: Mapping[str, list[Sample]]) -> set[str]:
    return {rule.name for rule in RULES if any(map(_rejects(rule, contract, planted), samples[rule.name]))}


def _rejects(rule: Rule, contract: Contract, planted: Planted) -> Callable[[Sample], bool]:
    fn = planted.make()

    def rejects(sample: Sample) -> bool:
        dtype, arguments, answer = sample
        if dtype not in planted.dtypes:
            return False
        fresh = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
        try:
            got = contract.by_name(contract.call(fn, fresh))
        except Exception:
            return True
        if isinstance(got, str):
            return True
        for name, right in answer.items():
            one = got[name]
            if right is not None and (not isinstance(one, torch.Tensor) or not rule.accepts(one, right)):
                return True
        return False

    return rejects


def run(ops: Sequence[str], jobs: int | None = None) -> dict[str, list[RuleResult]]:
    """`compare_op` of each op, `jobs` at a time (None: one per core)."""
    return dict(zip(ops, each(compare_op, ops, jobs, "comparison"), strict=True))


def table(compared: Mapping[str, Sequence[RuleResult]], judged: Sequence[OpResult]) -> Table:
    """Ops by rules, and this judge in the last column: caught / mutants to which the rule applies; known-good kernels
    rejected below."""
    level = judged[0].level
    names = [rule.name for rule in RULES]
    made = Table("mutants that each rule rejects", ["op", *names, f"Touchstone, {level}"])
    total = {name: [0, 0, 0, 0] for name in [*names, "own"]}
    for result in judged:
        own = [one for one in result.mutants if one.backend is None]
        killed = [one for one in own if one.killed]
        cells = []
        for one in compared[result.op]:
            applies = len(one.caught) + len(one.missed)
            cells.append(f"{len(one.caught)}/{applies}" if applies else "-")
            _add(total[one.rule], len(one.caught), applies, len(one.accused), len(one.accused) + len(one.acquitted))
        _add(total["own"], len(killed), len(own), len(result.false_alarms), len(result.known_good))
        made.rows.append([result.op, *cells, f"{len(killed)}/{len(own)}"])
    sums = list(total.values())
    made.rows.append(["all", *(f"{caught}/{applies}" for caught, applies, _, _ in sums)])
    made.rows.append(["share", *(f"{caught / applies:.0%}" if applies else "-" for caught, applies, _, _ in sums)])
    made.rows.append(["known-good rejected", *(f"{accused}/{known_good}" for _, _, accused, known_good in sums)])
    return made


def _add(total: list[int], *more: int) -> None:
    for position, n in enumerate(more):
        total[position] += n
