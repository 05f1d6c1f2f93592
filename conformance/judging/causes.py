"""Why a call's values are wrong, where that shows in other calls: values of an earlier call, memory around an operand,
another answer each time.

A cause is a sentence about one output. It is given only where it explains at least 95 % of the wrong elements.
"""

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from touchstone.conformance.judging import diagnosis, left_out, reading
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.executor import Manner, Observed, instruments_of
from touchstone.conformance.judging.judgement import Judgement
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.spec import compare, layouts
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Case, Contract, Inputs

AGAIN = 3  # further calls on the same inputs
MORE = 4  # and beyond them, where each so far is further from the first
KEPT = 200  # earlier calls that are remembered, by their cases
RECENT = 6  # of those with outputs of the same shapes, the first and the latest, whose answers are looked for
CALLS, SEARCH = 64, 1.5  # further calls among which another wrong one is looked for, and seconds for that
SIZES = 4  # that are new to the kernel
NEW, LEAST_WORK = 2, 16.0  # of which the first call alone is right; and the least work of one
DRAWS = 6  # of values of each, one of which the first call has
NOT_A_NUMBER = 0.5  # of the wrong elements, whose NaN alone is explained
BEFORE = 3  # earlier calls of each kind that are tried as the one of which something is kept
SHOWN = 3  # things that one had otherwise
LARGE = 1e4  # in the place of an infinity: float16 has it, too
ELSEWHERE = 2  # further sets of the same operands, at other addresses
AROUND = 0x00  # what lies around an operand in another call: zeros
NUMBERS_DO = ", and with numbers in the place of NaN it is right, as where they are multiplied by 0"
OUTSIDE = "they depend on memory outside the view"
ZEROS = 0x00  # and what fresh memory holds
SMALL = 2**24  # bytes of an operand's buffer of which that is tried
RACES = "races"  # the instrument, of those that backends offer, that looks for them
RACE_MS = 3000  # for that in all failing calls of a kernel: in all of them once one is found
RACE_WORK = 2e6  # work of a case above which they are looked for in another one
RACE_CASES = 3  # of little work, that are tried in its place

DRIFTS = (
    "other values in each call with the same inputs, each further from the first: it goes on from what the calls "
    "before it left, as in a workspace that is added to and not set to 0"
)
UNSTEADY = "other values in each call with the same inputs: "

Wrong = dict[str, torch.Tensor]  # by output, which elements are wrong


def of_call(
    j: Judgement,
    inputs: Inputs,
    values: Mapping[str, Any],
    expected: Mapping[str, Expected | None],
    verdicts: Mapping[str, compare.Verdict],
    blocks: tuple[int, ...],
    again: bool,
) -> dict[str, str]:
    """The causes of what is wrong in one call, by output. `again`: the kernel may be called again."""
    wrong = {n: v.bad for n, v in verdicts.items() if v.bad is not None}
    found = _of_other_calls(j, inputs, values, expected, wrong, blocks, again)
    left = {n: bad for n, bad in wrong.items() if n not in found or found[n].startswith(UNSTEADY)}
    known = j.subject.compared
    if not left or not (again or (known["races"] and j.trial.kind is Kind.CASE)) or known["races, ms"] > RACE_MS:
        return found
    start = time.monotonic()
    races = _of_races(j, inputs.case, left, blocks)
    known["races"] += bool(races)
    known["races, ms"] += round(1000 * (time.monotonic() - start))
    return found | races


def _of_other_calls(
    j: Judgement,
    inputs: Inputs,
    values: Mapping[str, Any],
    expected: Mapping[str, Expected | None],
    wrong: Wrong,
    blocks: tuple[int, ...],
    again: bool,
) -> dict[str, str]:
    """The causes that plain calls show, by output: earlier ones, and where that may be, further ones."""
    number = j.subject.compared["calls"]
    found = _of_earlier_calls(j, inputs.case, values, wrong, expected if again else None)
    if not again or found.keys() == wrong.keys():
        return found
    kept = {name: values[name].clone() for name in wrong}
    seen = _again(j, inputs, blocks, AGAIN)
    if len(seen) < AGAIN:
        return found
    left = {name: bad for name, bad in wrong.items() if name not in found}
    right = {n for n in left if all(is_right(j, inputs.case, n, other[n], expected[n]) for other in seen)}
    if right:
        found |= dict.fromkeys(right, _once(j, inputs.case, number))
    same = [n for n in left if not any(_differs(kept[n], other[n], left[n], most=False) for other in seen)]
    worn = _worn(j, blocks, number) if same else None
    in_zeros = cache(lambda: _values(j, inputs, blocks, ZEROS) or {})
    # the same call after the other one that _worn made
    after = cache(lambda: (_values(j, inputs, blocks) or {}) if j.subject.held_first else {})
    for name in left.keys() - right:
        if name not in same:
            if all(_grows(kept[name], [other[name] for other in seen], expected[name], left[name])):
                found[name] = "each call adds to what the calls before it left: a sum that does not begin at 0"
            elif all(_differs(kept[name], other[name], left[name]) for other in seen):
                if _counts_on_zeros(j, inputs.case, name, in_zeros(), expected[name], left[name]):
                    found[name] = diagnosis.NOT_ZEROED
                    continue
                if written := _written(j, inputs.case, name, kept[name], blocks):
                    found[name] = (
                        f"other values in each call with the same inputs, and the same ones where these are made anew: "
                        f"it reads what it has itself written into {' and '.join(written)}"
                    )
                    continue
                drifts = _drifts(j, inputs, name, kept[name], [other[name] for other in seen], left[name], blocks)
                found[name] = DRIFTS if drifts else f"{UNSTEADY}{_unsteady(j)}"
        elif worn:
            found[name] = worn
        elif is_right(j, inputs.case, name, after().get(name, math.nan), expected[name]):
            between = _other_in(j.subject.held_first[0][1], inputs.case)
            found[name] = f"right again after another call ({between}): something is kept from one call to the next"
        elif diagnosis.most(~torch.isfinite(kept[name].cpu()[left[name].cpu()])) and _counts_on_zeros(
            j, inputs.case, name, in_zeros(), expected[name], left[name]
        ):
            found[name] = diagnosis.NOT_ZEROED
        elif text := diagnosis.unwritten(kept[name], left[name], sure=True):
            if not _refilled(j, inputs, name, left[name], blocks):
                found[name] = diagnosis.NAN
                continue
            rule = left_out.rule_of(j.contract, inputs.case, name, left[name], lambda case: on_case(j, case))
            found[name] = f"{text}; {rule}" if rule else text
        elif text := _of_places(j, inputs, name, kept[name], left[name], expected[name], blocks):
            found[name] = text
    return found


def _of_races(j: Judgement, case: Case, wrong: Wrong, blocks: tuple[int, ...]) -> dict[str, str]:
    """Of each wrong output whose values a race decides, what the instrument says that looks for races: in this case, or
    where its work is much, in one of little work that is wrong too."""
    for few in [case] if j.contract.work(case) <= RACE_WORK else _little_and_wrong(j, case, wrong):
        inputs = j.contract.build(few, j.executor.device)
        manner = Manner(probe.PATTERNS[0], blocks if few == case else ())
        plain = _observed(j, inputs, manner)
        for backend, _, names in instruments_of(j.subject, plain.launched):
            if RACES not in names:
                continue
            seen = _observed(j, inputs, replace(manner, instrument=(backend, RACES)))
            if seen.raised is None or not seen.raised.types[0].startswith("Race"):
                continue
            others = [
                _observed(j, inputs, replace(manner, instrument=(backend, order))) for order in names if order != RACES
            ]
            where = wrong if few == case else dict.fromkeys(wrong)
            decided = [name for name, bad in where.items() if _decided(plain, others, name, bad)]
            if decided:
                return dict.fromkeys(decided, f"a race: {seen.raised.said}")
    return {}


def _little_and_wrong(j: Judgement, case: Case, wrong: Wrong) -> list[Case]:
    """The case of least work, of a few, in which one of some outputs is wrong; or none."""
    for other in reading.of_little_work(j.contract, case)[:RACE_CASES]:
        values, answers = on_case(j, other), j.contract.expected(j.contract.build(other), j.subject.compute)
        if values and not all(is_right(j, other, name, values.get(name), answers[name]) for name in wrong):
            return [other]
    return []


def _observed(j: Judgement, inputs: Inputs, manner: Manner) -> Observed:
    """A further call, with the outputs apart from what later ones write."""
    seen = j.again(debug=False).call(inputs.arguments, manner, inputs.placed)
    if isinstance(seen.values, dict):
        seen.values = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in seen.values.items()}
    return seen


def _decided(plain: Observed, others: Sequence[Observed], name: str, bad: torch.Tensor | None) -> bool:
    """Whether an output is another one in some other order of threads, where it is `bad` (None: anywhere); so it is
    taken to be where it is NaN, or where no order can be asked for. A race that all orders survive is not why."""
    got = plain.values.get(name) if isinstance(plain.values, dict) else None
    if not isinstance(got, torch.Tensor):
        return False
    where = torch.ones(got.shape, dtype=torch.bool) if bad is None else bad
    given = [seen.values.get(name) for seen in others if seen.returned and isinstance(seen.values, dict)]
    if not given or bool(torch.isnan(got.cpu()[where.cpu()]).any()):
        return True
    return any(_differs(got, other, where, most=False) for other in given)


def _counts_on_zeros(
    j: Judgement, case: Case, name: str, values: Mapping[str, Any], expected: Expected | None, where: torch.Tensor
) -> bool:
    """Whether `values`, what a call in fresh memory of zeros gives, are right where an output is wrong else, and not
    zeros there."""
    got = values.get(name)
    if not isinstance(got, torch.Tensor) or expected is None or not is_right(j, case, name, got, expected):
        return False
    return bool((got.cpu()[where.cpu()] != 0).any())


def _written(j: Judgement, case: Case, name: str, got: torch.Tensor, blocks: tuple[int, ...]) -> list[str]:
    """The operands that the kernel has written on this case, where with all of them made anew it gives an output bit by
    bit as it did first; none else."""
    written = [f.about for f in j.outcome.findings if f.check == Check.INPUTS and f.about is not None]
    other = (_values(j, j.contract.build(case, j.executor.device), blocks) or {}).get(name) if written else None
    if not isinstance(other, torch.Tensor) or not torch.equal(compare.bits(other.cpu()), compare.bits(got.cpu())):
        return []
    return written


def _unsteady(j: Judgement) -> str:
    """Why a kernel can give other values in each call."""
    if j.subject.untrusted and not j.subject.allow_library and j.subject.device == "cpu":
        return "a race, memory that nothing wrote, or the library's arithmetic, which is given other numbers here"
    return "a race, or memory that nothing wrote"


def _again(j: Judgement, inputs: Inputs, blocks: tuple[int, ...], count: int) -> list[Mapping[str, Any]]:
    """What further calls give, up to one that gives nothing to compare."""
    seen: list[Mapping[str, Any]] = []
    while len(seen) < count and (values := _values(j, inputs, blocks)) is not None:
        seen.append({n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in values.items()})
    return seen


def _once(j: Judgement, case: Case, number: int) -> str:
    """Of a call, the `number`th of the kernel, that is wrong where further ones on the same inputs are right."""
    plain = j.subject.held_first[0][1] if j.subject.held_first else case  # a cheap one
    inputs, end = j.contract.build(plain, j.executor.device), time.monotonic() + SEARCH
    expected = j.contract.expected(j.contract.build(plain), j.subject.compute)
    steady = True
    for _ in range(CALLS):
        values = _values(j, inputs, ())
        if values is None or time.monotonic() > end:
            break
        if not all(is_right(j, plain, n, values[n], e) for n, e in expected.items() if j.judges(n)):
            steady, period = False, j.subject.compared["calls"] - number
            if number % period == 0:
                return f"every {period}th call is wrong: this is call {number}, and call {number + period} is too"
            break
    if steady and _first_of_new_sizes(j, case):  # else one of those calls is wrong by chance
        return (
            "right in further calls with the same inputs: only the first call of a size is wrong, as where a kernel is "
            "tuned on its own output"
        )
    return f"right in further calls with the same inputs: call {number} alone, the first of these sizes or one of many"


def _first_of_new_sizes(j: Judgement, case: Case) -> bool | None:
    """Whether of two calls of one of some sizes that the kernel was not called with the first alone is wrong; None:
    none is left."""
    tried: list[bool] = []
    known = {other.sizes for _, other in j.subject.recent}
    for size in reversed(j.contract.sizes):
        new = plain_case(j.contract, case.dtype, next(iter(j.contract.values)), j.case.seed, size)
        if len(tried) == SIZES or any(tried):
            break
        if new.sizes in known or not new.filled or not j.contract.valid(new):
            continue
        inputs = j.contract.build(new, j.executor.device)
        seen = _again(j, inputs, (), 2)
        if len(seen) < 2:
            continue
        expected = j.contract.expected(j.contract.build(new), j.subject.compute)
        first, second = (
            all(is_right(j, new, n, values[n], e) for n, e in expected.items() if j.judges(n)) for values in seen
        )
        j.subject.recent.append((f"on {new.id}", new))
        tried.append(second and not first)
    return any(tried) if tried else None


def kept_from_first(j: Judgement, case: Case) -> str | None:
    """Whether of calls on new sizes the first alone is right, whatever its values, and again with these: something that
    it computed is kept. Where some of the other values are right too, rounding can be what is wrong."""
    found = 0
    for size in itertools.islice(_of_new_sizes(j, case), SIZES):
        one, *others = (replace(size, seed=size.seed + by) for by in range(DRAWS))
        j.subject.recent.append((f"on {one.id}", one))
        if not _all_right(j, one):
            return None
        seen = {_all_right(j, other) for other in others}
        if len(seen) > 1 or None in seen or not _all_right(j, one):
            return None
        found += False in seen  # values do not count in every size
        if found == NEW:
            break
    if found < NEW:
        return None
    return (
        "of calls with sizes that are new to it the first is right, and those with other values after it are not: "
        "something that depends on values is kept from the first call of a size"
    )


def _of_new_sizes(j: Judgement, case: Case) -> Iterator[Case]:
    """Plain cases, of little work, in sizes that the kernel was not called with: those of the contract with another
    number along one axis."""
    contract, known = j.contract, {other.sizes for _, other in j.subject.recent}
    plain = [plain_case(contract, case.dtype, next(iter(contract.values)), case.seed, size) for size in contract.sizes]
    for base in sorted(plain, key=contract.work):
        for letter, number in base.sizes if LEAST_WORK <= contract.work(base) <= reading.LITTLE else ():
            new = replace(base, sizes=tuple((n, x + 1 if n == letter else x) for n, x in base.sizes if type(x) is int))
            if type(number) is not int or len(new.sizes) < len(base.sizes) or new.sizes in known:
                continue
            try:
                if not new.filled or not contract.valid(new):
                    continue
                contract.expected(contract.build(new))
            except Exception:  # sizes that do not go together
                continue
            yield new
            break


def _all_right(j: Judgement, case: Case) -> bool | None:
    """Whether all outputs that are judged of a call on another case are what they have to be; None: it gives none."""
    values = on_case(j, case)
    if values is None:
        return None
    expected = j.contract.expected(j.contract.build(case), j.subject.compute)
    return all(is_right(j, case, name, values.get(name), e) for name, e in expected.items() if j.judges(name))


def _worn(j: Judgement, blocks: tuple[int, ...], number: int) -> str | None:
    """Whether the inputs of the first call that was right give wrong values now."""
    if not j.subject.held_first:
        return None
    earlier, case = j.subject.held_first[0]
    values = _values(j, j.contract.build(case, j.executor.device), ())
    if values is None:
        return None
    expected = j.contract.expected(j.contract.build(case), j.subject.compute)
    if all(is_right(j, case, n, values[n], e) for n, e in expected.items() if j.judges(n)):
        return None
    told = j.subject.compared
    last, number = told["right up to"], told.setdefault("wrong from", number)
    return (
        f"the inputs of call {earlier}, whose values were right, give wrong ones by now: right up to call {last}, "
        f"wrong from call {number} on"
    )


def remember(j: Judgement, number: int, values: Mapping[str, Any]) -> None:
    """That the kernel was called on the trial's case, in its `number`th call, and gave `values`: that they are right
    tells of what is kept between calls only where there is a number among them that is not 0."""
    subject = j.subject
    if len(subject.recent) < KEPT:
        subject.recent.append((f"on {j.case.id}", j.case))
    if j.passes:
        if len(subject.passed) < KEPT:
            subject.passed.append(j.case)
        if any(bool((x.isfinite() & (x != 0)).any()) for x in values.values() if isinstance(x, torch.Tensor)):
            subject.compared["right up to"] = number
            if not subject.held_first:
                subject.held_first.append((number, j.case))


def _of_earlier_calls(
    j: Judgement, case: Case, values: Mapping[str, Any], wrong: Wrong, expected: Mapping[str, Expected | None] | None
) -> dict[str, str]:
    """Of each output that is an earlier call's, which; with `expected`, what the call should have given, the kernel is
    called again where that is to be refuted."""
    found: dict[str, str] = {}
    kept = {name: values[name].clone() for name in wrong}
    further = cache(lambda: on_case(j, reading.again(case)))
    alike = [(label, other) for label, other in j.earlier if other != case and _alike(j, other, case)]
    for label, other in dict.fromkeys([*reversed(alike[-RECENT:]), *alike[:RECENT]]):
        answers: Mapping[str, Expected | None] | None = None
        for name, bad in wrong.items():
            if name in found:
                continue
            if answers is None:
                answers = j.contract.expected(j.contract.build(other), j.subject.compute)
            answer = answers[name]
            if answer is None or not tells(answer, bad):
                continue
            got, dtype = kept[name], case.torch_dtype
            fits = diagnosis.explains(answer, got, bad, dtype)
            if not fits or diagnosis.explains(answer, torch.zeros_like(got), bad, dtype):
                continue  # 0 is within the budget of what is next to nothing
            if not (expected and _refuted(j, reading.again(case), name, further(), [answer, expected[name]])):
                found[name] = f"the answer of an earlier call, {label}{_instead(j, other, case)}"
    return found


def tells(answer: Expected, bad: torch.Tensor) -> bool:
    """Whether an answer has numbers enough where another is wrong that could not come about otherwise."""
    if answer.answer.shape != bad.shape:
        return False
    there = answer.answer[bad.cpu()]
    numbers = there[torch.isfinite(there) & (there != 0)].unique()
    return numbers.numel() >= min(reading.LEAST, there.numel())


def _instead(j: Judgement, other: Case, case: Case) -> str:
    """That two calls differ in parameters alone, which a kernel may not look at; or nothing."""
    changed = [name for name, value in case.param.items() if other.param.get(name) != value]
    operands, others = j.contract.build(case).exact, j.contract.build(other).exact
    if not changed or not all(_equal(value, others[name]) for name, value in operands.items()):
        return ""
    kept = ", ".join(f"{name}={other.param[name]}" for name in changed)
    return f", of {kept}: it is kept, or {' and '.join(changed)} of this call not looked at"


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether two operands hold the same numbers."""
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _refuted(
    j: Judgement, case: Case, name: str, values: Mapping[str, Any] | None, kept: Sequence[Expected | None]
) -> bool:
    """Whether the kernel gives wrong values for other inputs of the same sizes that are no earlier call's, `kept`."""
    expected = j.contract.expected(j.contract.build(case))[name]
    got = None if values is None else values.get(name)
    if not isinstance(got, torch.Tensor) or expected is None or got.shape != expected.answer.shape:
        return False
    bad = compare.compare(got, expected, case.torch_dtype).bad
    if bad is None:
        return False
    return not any(e is not None and diagnosis.explains(e, got, bad, case.torch_dtype) for e in kept)


def _alike(j: Judgement, one: Case, other: Case) -> bool:
    """Whether two calls give outputs of the same shapes and dtypes."""
    return one.dtype == other.dtype and all(
        j.contract.output_shape(name, one) == j.contract.output_shape(name, other) for name in j.contract.outputs
    )


def _refilled(j: Judgement, inputs: Inputs, name: str, where: torch.Tensor, blocks: tuple[int, ...]) -> bool:
    """Whether the elements `where` of an output are another fill in a call with other fresh memory: nothing wrote
    them."""
    values = _values(j, inputs, blocks, probe.PATTERNS[1])
    got = None if values is None else values.get(name)
    return not isinstance(got, torch.Tensor) or diagnosis.filled(got, where, probe.PATTERNS[1:]) > 0


def _values(
    j: Judgement, inputs: Inputs, blocks: tuple[int, ...], byte: int = probe.PATTERNS[0], anew: int = 0
) -> Mapping[str, Any] | None:
    """What another call gives, with fresh memory of that byte and `anew` as `Manner` has it; None where that cannot be
    compared."""
    again = j.again(debug=False)
    seen = again.call(inputs.arguments, Manner(byte, blocks, anew=anew), inputs.placed)
    return seen.values if seen.returned and isinstance(seen.values, dict) else None


def on_inputs(j: Judgement, inputs: Inputs) -> Mapping[str, Any] | None:
    """What a call on these inputs gives; None where it gives nothing to compare."""
    return _values(j, inputs, ())


def on_case(j: Judgement, case: Case, contract: Contract | None = None) -> Mapping[str, Any] | None:
    """What a call on another case gives, of the op's contract or of `contract`, apart from what later calls write; None
    where it gives nothing to compare."""
    contract = j.contract if contract is None else contract
    if not contract.valid(case):
        return None
    try:
        inputs = contract.build(case, j.executor.device)
    except layouts.NoRoom:
        return None
    values = _values(j, inputs, ())
    return values and {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in values.items()}


def is_right(j: Judgement, case: Case, name: str, got: Any, expected: Expected | None) -> bool:
    """Whether an output of another call is what it has to be."""
    if expected is None or not isinstance(got, torch.Tensor):
        return expected is got
    if got.shape != expected.answer.shape:
        return False
    return compare.compare(got, expected, case.torch_dtype, diagnosis.exact(j.contract, case, name)).ok


def _differs(one: torch.Tensor, other: Any, where: torch.Tensor, most: bool = True) -> bool:
    """Whether most of the elements `where`, or any, differ in their bits."""
    if not isinstance(other, torch.Tensor) or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    bits = compare.bits(one.cpu()) != compare.bits(other.cpu())
    return diagnosis.most(bits[where.cpu()]) if most else bool(bits[where.cpu()].any())


def _grows(first: torch.Tensor, later: Sequence[Any], expected: Expected | None, where: torch.Tensor) -> list[bool]:
    """Of each of some further calls with the same inputs, whether its output is that of the call before and the answer
    once more, where the first was wrong."""
    every = [first, *later]
    if expected is None or not first.is_floating_point():
        return [False]
    if not all(isinstance(x, torch.Tensor) and x.shape == first.shape for x in every):
        return [False]
    wide = [x.detach().cpu().double() for x in every]
    answer, unit = expected.answer.cpu().expand(first.shape), torch.finfo(first.dtype).eps
    bad = where.cpu() & torch.isfinite(answer)
    near = [
        (b - a - answer).abs() <= 4 * unit * (a.abs() + b.abs() + answer.abs()) for a, b in itertools.pairwise(wide)
    ]
    return [diagnosis.most(close[bad]) for close in near]


def _drifts(
    j: Judgement,
    inputs: Inputs,
    name: str,
    first: torch.Tensor,
    later: Sequence[Any],
    where: torch.Tensor,
    blocks: tuple[int, ...],
) -> bool:
    """Whether each further call is further from the first, where that was wrong, than the one before: of seven calls
    that a race tells apart, one in 5040 are in that order."""
    if not first.is_floating_point() or not _go_off(first, later, where):
        return False
    more = [values[name] for values in _again(j, inputs, blocks, MORE)]
    return len(more) == MORE and _go_off(first, [*later, *more], where)


def _go_off(first: torch.Tensor, later: Sequence[Any], where: torch.Tensor) -> bool:
    """Whether each of some outputs is further from the first, in the mean of the elements `where`."""
    if not all(isinstance(x, torch.Tensor) and x.shape == first.shape for x in later):
        return False
    bad = where.cpu()
    far = [(x.cpu().double() - first.cpu().double())[bad].abs().mean().item() for x in later]
    return math.isfinite(sum(far)) and all(a < b for a, b in itertools.pairwise([0.0, *far]))


def _of_places(
    j: Judgement,
    inputs: Inputs,
    name: str,
    got: torch.Tensor,
    bad: torch.Tensor,
    expected: Expected | None,
    blocks: tuple[int, ...],
) -> str | None:
    """What wrong values have to do with where operands lie: something is kept by their addresses, or what lies around
    them is read. Operands that are made anew lie elsewhere, and values that change with that alone tell nothing of what
    lies around."""
    elsewhere = [j.contract.build(inputs.case, j.executor.device) for _ in range(ELSEWHERE)]
    seen = [(_values(j, other, blocks) or {}).get(name) for other in elsewhere]
    if any(value is None or _differs(got, value, bad, most=False) for value in seen):
        if not any(is_right(j, inputs.case, name, value, expected) for value in seen):
            return None
        moved = _moved_alone(j, inputs, elsewhere[0], name, expected, blocks)
        return (
            f"right where {' or '.join(moved) or 'the operands'} with the same values lies at another address: "
            "something that an earlier call made of what lay there then is kept by the address (data_ptr)"
        )
    if text := kept_between(j, inputs, name, expected, blocks):
        return text
    if operands := _read_around(j, inputs.case, name, got, bad, blocks):
        return f"{OUTSIDE} of {' and '.join(operands)}: what lies around it or in its gaps is read"
    return None


def kept_between(
    j: Judgement, inputs: Inputs, name: str, expected: Expected | None, blocks: tuple[int, ...]
) -> str | None:
    """Whether an output that is wrong in this call is right in the first one of the kernel whose file is imported once
    more; and after which of some earlier calls it is wrong there too."""
    if j.subject.own or j.subject.untrusted:
        return None
    case, compared = inputs.case, j.subject.compared

    def right(anew: int) -> bool | None:
        value = (_values(j, inputs, blocks, anew=anew) or {}).get(name)
        return is_right(j, case, name, value, expected) if isinstance(value, torch.Tensor) else None

    compared["imports"] += 1
    if right(0) is not False:
        return None
    if right(compared["imports"]) is not True:
        compared["imports"] += 1
        zeros = (_values(j, inputs, blocks, ZEROS, compared["imports"]) or {}).get(name)
        return diagnosis.NOT_ZEROED if is_right(j, case, name, zeros, expected) else None
    first = "right as the first call of the kernel's file imported anew, and wrong after other calls"
    for label, other in _likely_kept(j, case):
        compared["imports"] += 1
        before = j.contract.build(other, j.executor.device)
        if _values(j, before, (), anew=compared["imports"]) is not None and right(compared["imports"]) is False:
            call = label if label.startswith("call") else f"a call {label}"
            return f"{first}, as after {call} ({_other_in(other, case)}): something is kept from one call to the next"
    return f"{first}: something is kept from one call to the next"


def is_wrong_anew(j: Judgement, case: Case, name: str | None) -> bool | None:
    """Whether an output of a case is wrong in the first call of the kernel whose file is imported once more too: then
    no earlier call is why. None: it cannot be imported so."""
    if j.subject.own or j.subject.untrusted or name is None:
        return None
    j.subject.compared["imports"] += 1
    inputs = j.contract.build(case, j.executor.device)
    value = (_values(j, inputs, (), anew=j.subject.compared["imports"]) or {}).get(name)
    if not isinstance(value, torch.Tensor):
        return None
    return not is_right(j, case, name, value, j.contract.expected(inputs, j.subject.compute)[name])


def _likely_kept(j: Judgement, case: Case) -> list[tuple[str, Case]]:
    """A few of the earlier calls: the latest with outputs of the same shapes, those of most work, those that have most
    of their sizes in common with a case."""
    latest = [(label, other) for label, other in reversed(j.earlier) if other != case]
    alike = [one for one in latest if _alike(j, one[1], case)]
    most = sorted(latest, key=lambda one: -j.contract.work(one[1]))
    sizes = set(case.sizes)
    nearest = sorted(latest, key=lambda one: -len(sizes & set(one[1].sizes)))
    return list(dict.fromkeys([*alike[:BEFORE], *most[:BEFORE], *nearest[:BEFORE]]))


def _other_in(other: Case, case: Case) -> str:
    """What another call had otherwise, in words."""
    found = [f"{name}={value}" for name, value in other.params if case.param.get(name) != value]
    found += [f"{name}={size}" for name, size in other.sizes if case.size.get(name) != size]
    found += [f"{name} {layout}" for name, layout in other.layouts if case.layout.get(name) != layout]
    return ", ".join(found[:SHOWN]) or "with other values"


def _moved_alone(
    j: Judgement, inputs: Inputs, other: Inputs, name: str, expected: Expected | None, blocks: tuple[int, ...]
) -> list[str]:
    """The operands of which each by itself at another address makes an output right."""
    found = []
    for operand, placed in other.placed.items():
        if placed is None:
            continue
        moved = Inputs(inputs.case, {**inputs.placed, operand: placed}, inputs.exact, inputs.params)
        value = (_values(j, moved, blocks) or {}).get(name)
        if is_right(j, inputs.case, name, value, expected):
            found.append(operand)
    return found


def _read_around(
    j: Judgement, case: Case, name: str, got: torch.Tensor, bad: torch.Tensor, blocks: tuple[int, ...]
) -> list[str]:
    """The operands around which other memory gives other values in place of the wrong ones."""
    found = []
    for operand, about in j.contract.operands.items():
        inputs = j.contract.build(case, j.executor.device)
        placed = inputs.placed[operand]
        if placed is None or about.own_dtype or placed.buffer.numel() > SMALL:
            continue
        if not layouts.surround(placed, AROUND):
            continue
        other = _values(j, inputs, blocks)
        if other is not None and _differs(got, other[name], bad):
            found.append(operand)
    return found


def let_through(
    j: Judgement, case: Case, name: str, got: torch.Tensor, bad: torch.Tensor, expected: Expected | None
) -> str | None:
    """Whether wrong elements are NaN for that of operands in places on which the right answer does not depend."""
    if expected is None:
        return None
    where = bad.cpu() & torch.isnan(got.cpu()) & ~torch.isnan(expected.answer.cpu().expand(got.shape))
    if int(where.sum()) < NOT_A_NUMBER * int(bad.sum()):
        return None
    gone = {operand: _without_nan(j, case, [operand], name, where, expected) for operand in j.contract.operands}
    found = [operand for operand, share in gone.items() if share]
    idle = [operand for operand, share in gone.items() if share is not None]
    right = max((gone[operand] or 0.0 for operand in found), default=0.0)
    if not found and len(idle) > 1 and (right := _without_nan(j, case, idle, name, where, expected) or 0.0):
        found = idle
        for one in idle:  # which are all that have NaN: some of them may do nothing
            rest = [operand for operand in found if operand != one]
            if rest and (_without_nan(j, case, rest, name, where, expected) or 0.0) >= right:
                found = rest
    if not found:
        return None
    by_0 = right >= diagnosis.EXPLAINS
    exact = j.contract.build(case).exact
    if any(j.contract.operands[operand].garbage is None or _has_nan(exact[operand]) for operand in found):
        shown = [f"{_nan_of(j, case, operand, exact[operand])} of {operand}" for operand in found]
        so = NUMBERS_DO if by_0 else ""
        return (
            f"they depend on the NaN at {' and at '.join(shown)}, on which these answers do not: it is read there{so}"
        )
    unused = " and ".join(dict.fromkeys(j.contract.operands[operand].unused for operand in found))
    return (
        f"{' and '.join(found)} {'has' if len(found) == 1 else 'have'} NaN in {unused}, on which no answer depends: "
        f"they are read{NUMBERS_DO if by_0 else ', and count'}"
    )


def _has_nan(exact: torch.Tensor | None) -> bool:
    return exact is not None and bool(exact.isnan().any())


def _nan_of(j: Judgement, case: Case, operand: str, value: torch.Tensor | None) -> str:
    """Where an operand has NaN, in words."""
    assert value is not None
    return diagnosis.region(value.isnan(), diagnosis.axis_names(j.contract.operand_axes(operand, case), value.ndim))


def of_nan(
    j: Judgement, case: Case, name: str, got: torch.Tensor, bad: torch.Tensor, expected: Expected | None
) -> str | None:
    """Where the NaN of an output comes from, as further calls tell: from between the elements of an operand, or of
    infinities."""
    if expected is None or not diagnosis.most(torch.isnan(got.cpu()[bad.cpu()])):
        return None
    return _of_layouts(j, case, name) or _of_infinities(j, case, name, bad)


def _of_layouts(j: Judgement, case: Case, name: str) -> str | None:
    """The operands that have to be contiguous for an output to be right: one, or all that are not."""
    strided = [operand for operand, layout in case.layouts if layout not in ("contiguous", "none")]
    for names in [[one] for one in strided] + ([strided] if len(strided) > 1 else []):
        plain = tuple((operand, "contiguous" if operand in names else layout) for operand, layout in case.layouts)
        other = replace(case, layouts=plain, drawn_as=case.drawn_as or case.id)
        if not j.contract.valid(other):
            continue
        value = (on_case(j, other) or {}).get(name)
        answer = j.contract.expected(j.contract.build(other), j.subject.compute)[name]
        if isinstance(value, torch.Tensor) and is_right(j, other, name, value, answer):
            far = any(layouts.far_axis(case.layout[operand]) is not None for operand in names)
            way = ", or an offset is computed in 32 bits" if far else ""
            are, them = ("is", "it") if len(names) == 1 else ("are", "them")
            offset = all(case.layout[operand] == "offset" for operand in names)
            how = "at a multiple of 16 bytes" if offset else "contiguous"
            return (
                f"right where {' and '.join(names)} {are} {how}: NaN around or between the elements of {them} is "
                f"read; strides, offset or end are not used as they are{way}"
            )
    return None


def _of_infinities(j: Judgement, case: Case, name: str, bad: torch.Tensor) -> str | None:
    """The operands whose infinities make NaN of an output: large numbers in their place do not."""
    exact = j.contract.build(case).exact
    infinite = [operand for operand, value in exact.items() if value is not None and bool(value.isinf().any())]
    for names in [[one] for one in infinite] + ([infinite] if len(infinite) > 1 else []):
        inputs = j.contract.build(case, j.executor.device)
        for operand in names:
            placed, value = inputs.placed[operand], inputs.exact[operand]
            assert placed is not None and value is not None
            for each in (layouts.once(placed.view), value):
                each[each == math.inf], each[each == -math.inf] = LARGE, -LARGE
        answer = j.contract.expected(inputs, j.subject.compute)[name]
        value = (_values(j, inputs, ()) or {}).get(name)
        if answer is None or not isinstance(value, torch.Tensor) or not is_right(j, case, name, value, answer):
            continue
        if bool(answer.answer.cpu().expand(bad.shape)[bad.cpu()].isfinite().all()):
            signs = {math.copysign(1, x) for one in names for x in exact[one][exact[one].isinf()].tolist()}  # type: ignore[index, union-attr]
            number = f"{LARGE:g} of their sign" if len(signs) > 1 else f"{LARGE * signs.pop():g}"
            return f"right with {number} in the place of the infinities of {' and '.join(names)}: 0 * inf, or inf - inf"
    return None


def of_numbers(contract: Contract) -> Contract | None:
    """The contract with numbers in the elements that no answer depends on, where it has NaN there; None: nowhere."""
    if all(operand.garbage is None for operand in contract.operands.values()):
        return None
    return replace(contract, operands={name: replace(o, garbage=None) for name, o in contract.operands.items()})


def _without_nan(
    j: Judgement, case: Case, operands: Sequence[str], name: str, where: torch.Tensor, expected: Expected
) -> float | None:
    """Of the elements `where` the share that is right, and at least a little, if most are numbers once 1 stands for the
    NaN of some operands, which 0 alone makes nothing of; else 0. None where these have no NaN, or the right answer is
    another one then."""
    inputs = j.contract.build(case, j.executor.device)
    changed = False
    for operand in operands:
        placed, exact = inputs.placed[operand], inputs.exact[operand]
        if placed is None or exact is None or not bool(torch.isnan(placed.view).any()):
            continue
        for values in (layouts.once(placed.view), exact):
            values[torch.isnan(values)] = 1
        changed = True
    if not changed:
        return None
    answer = j.contract.expected(inputs, j.subject.compute)[name]
    right = expected.answer.cpu().expand(where.shape)[where]
    if answer is None or not torch.equal(answer.answer.cpu().expand(where.shape)[where], right):
        return None
    got = (_values(j, inputs, ()) or {}).get(name)
    if not isinstance(got, torch.Tensor) or not diagnosis.most(~torch.isnan(got.cpu()[where])):
        return 0.0
    bad = compare.compare(got, answer, case.torch_dtype).bad
    return 1.0 if bad is None else max(1 - bad.cpu()[where].double().mean().item(), 1e-9)


def of_many(cases: Sequence[Case], first: int, wrong: Sequence[int]) -> str | None:
    """Which of the calls on `cases` are wrong, `first` of them the first and `wrong` all, in words; None: no rule. A
    parameter or layout that all of them have, and no right one, says more than their numbers."""
    count = len(cases)
    right = [case for number, case in enumerate(cases, 1) if number not in wrong]
    for kind in ("params", "layouts"):
        of_wrong = set.intersection(*(set(getattr(cases[number - 1], kind)) for number in wrong))
        if apart := sorted(of_wrong.difference(*(getattr(case, kind) for case in right)) if right else ()):
            shown = " and ".join(f"{name}={value}" if kind == "params" else f"{name} {value}" for name, value in apart)
            return f"wrong in {len(wrong)} of {count} calls, those with {shown}"
    later = list(range(first, count + 1))
    if list(wrong) == later and len(later) > 4:
        return f"right in the first {first - 1} calls, wrong from call {first} on"
    if len(wrong) > 1 and list(wrong) == list(range(first, count + 1, first)):
        return f"every {first}th call is wrong: {', '.join(map(str, wrong[:4]))}{', ...' if len(wrong) > 4 else ''}"
    if list(wrong) == [first] and len(later) > 4:
        return f"only call {first} of {count} is wrong"
    return None
