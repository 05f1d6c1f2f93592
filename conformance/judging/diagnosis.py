"""What a wrong answer looks like: the mutant it equals, the region that is wrong, and how it relates to the
right one.

A finding of the check "values" names the first and the worst wrong element; this adds what an engineer would look for
next. Everything here works on the CPU, after the kernel has run, and within a few seconds.
"""

import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.faults import Planted
from touchstone.conformance.judging import altered, edges, heatmap, integers, left_out, own_statistics, reading
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.executor import Executor, Manner
from touchstone.conformance.spec import budget, compare, layouts, rounding
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.cases import goes_together, plain_case
from touchstone.conformance.spec.compare import Verdict
from touchstone.conformance.spec.contract import Case, Contract

SECONDS = 2.0  # for each search for a hint
WORK_LIMIT = 2e8  # work of a case above which the mutants are not run
CANCELLING = 4.0  # terms so many times the size of their sum cancel
CHEAP = 1e7  # work of a case that passed, up to which mutants are run on it
LEAST_HALVED = 4  # a size that is halved
ANOTHER_SIZE = 4e6  # work of a case of another size, on which mutants and the kernel are compared once more
PASSED_TRIED = 4  # of those
COUNTED = 8  # cases in which a kernel is wrong, on which several mutants are tried
NAMED, FOUND = 3, 8  # most mutants that a diagnosis names, and that are told apart before
EXPLAINS = 0.95  # of the wrong elements, what a hint has to explain
ROWS = 64  # wrong slices along an axis that are looked for elsewhere
TELLING = 0.5  # of the elements that are found there, at least: others are next to nothing
COMPARED = 2e7  # and up to how many elements more of them are compared with
OF_A_SLICE = 4  # wrong elements of each slice from which slices may hold others in no order
SEVERAL = 8.0  # roundings of the size of the answer: more are no longer those of a few partial sums
DISTINCT = 12  # values that tell a narrower dtype
NARROWER = {torch.float32: (torch.bfloat16, torch.float16), torch.float16: (torch.bfloat16,)}
LOCAL = 8.0  # times the error of another slice: a precision is lower everywhere
SPIKE = 16.0  # times the size of all other errors: one element is wrong by itself
ROUNDED = 2e-6  # of what an answer moves by: a few roundings in float32
AGREEMENT = 2.0  # budgets that two answers with one mutant can be apart: each has its own rounding
NAN = "NaN there: 0/0, inf/inf, inf - inf, 0 * inf, or memory with NaN: outside an operand's view, or not written"
NOT_ZEROED = (
    "right where fresh memory holds zeros: memory that the kernel has allocated is read, or added to, before anything "
    "is written there"
)
INFINITE = "infinite there: an overflow, or a division by 0"
OTHER_SIGN = "an infinity of the other sign"
LOG_OF_0 = "-inf where the answer is a number: the logarithm of 0, as where all that is summed vanishes"
LOGARITHMS = ("lse", "loss")  # outputs that are some
BASES = (  # what a wrong logarithm is times the answer, and what it is then
    (1 / math.log(2), "a logarithm to base 2, of the larger part at least"),
    (math.log(2), "a natural logarithm times ln 2, as one to base 2 has to be, of the larger part at least"),
)
OF_A_BASE = 0.015  # of such a factor, what it may be off: a small part can be another logarithm
CLOSER = 0.5  # of what a difference leaves, what such a factor may, at most
ALL_0 = "all 0 there"
ONE_ANSWER = (NAN, INFINITE, OTHER_SIGN, LOG_OF_0)
ANOTHER_MASK = "0 where the answer is not, and not 0 where it is: another mask, or another index into it"
LOST = "no NaN where the answer is NaN: a comparison, a clamp, a maximum or a product that is skipped loses it"
ANOTHER = "the answer of another "  # slice, as which an operand by other strides can look
# sentences that name no cause, which are said only where nothing better is known
VAGUE = re.compile(
    rf"each row is |{ANOTHER}|the answer's values in another order|0 where the answer|all |"
    r".* x the answer$|the answer \S+$"
)
TELLS_WHERE = re.compile(r"\bas if |\bwrong where|\bright (?:where|with) ")
ELSEWHERE = re.compile(rf"{ANOTHER}|the answer (?:moved|with|reversed) ")
OF_ROWS = re.compile(r"each \w+ is ")
PITCH_OF = "as if each "
MOST_OF_ANOTHER = 0.75  # of the slices in which one output is wrong: errors that are summed may cancel
_NUMBER = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?")
NEAR_ONE = 0.01  # of 1: a factor that is given by what it is off
ORDERED = 4  # different numbers that stand elsewhere, at least
LEAST_TILE = 8  # elements, and the vectors of 2 and 4 that would leave out the same
PITCHED, PITCH = 2**14, 256  # elements of an output, and of a slice, in which other distances of slices are tried
SHIFTED = 6  # elements at least that tell of one
STRAY = 0.01  # of the elements, below which those that are right are so by chance, unless they are a slice,
OF_CHANCE = 4  # or as many, at least, that fill a box
OTHER_MASK = 16  # wrong elements that tell another mask
BOTH_WAYS = 0.1  # of the wrong elements, 0 where they are not to be and the other way round
# kinds that one call does not show by its values, or that would do harm here
NOT_COMPARED = {"mutation", "alias", "cache", "state", "bounds", "contract", "race", "unwritten", "empty"}
CONSTANTS = {
    "ln 2": math.log(2),
    "1/ln 2": 1 / math.log(2),
    "2": 2.0,
    "1/2": 0.5,
    "-1": -1.0,
    "sqrt 2": math.sqrt(2),
    "1/sqrt 2": math.sqrt(0.5),
    "ln 10": math.log(10),
    "pi": math.pi,
    "1": 1.0,
}


def diagnose(
    contract: Contract,
    case: Case,
    got: Mapping[str, torch.Tensor],
    expected: Mapping[str, Expected | None],
    verdicts: Mapping[str, Verdict],
    *,
    mutants: bool = True,
    seconds: float = SECONDS,
    causes: Mapping[str, str] | None = None,
    lower: str | None = None,
    longer: Callable[[str], tuple[torch.Tensor, Expected] | None] = lambda output: None,
    call: reading.Call = reading.nothing,
    passed: Sequence[Case] = (),
    idle: Callable[[str, torch.Tensor], str | None] = lambda output, bad: None,
    kept: Callable[[], str | None] = lambda: None,
    depends: Callable[[str], str | None] = lambda output: None,
    edge: Callable[[str], str | None] = lambda output: None,
    slices: Callable[[str], str | None] = lambda output: None,
) -> dict[str, str]:
    """Of each output whose verdict failed: sentences about it, and a heat map. Left out is what nothing can be said of.

    `got`, `expected` and `verdicts` are by output, for the outputs that were compared. With `mutants` the mutants
    of the op are run on the case's inputs, for about `seconds` at most, and operands are misread. `causes` says of
    outputs why they are wrong, where that is known: nothing else is looked for then, unless it names no cause.
    `lower` is a precision in which all would be right. `longer(output)` calls the kernel where sums are longest, and
    `call(case)` on another case: a hint that what it gives there refutes is not given. `passed` are cases on which the
    kernel is right: a mutant that is wrong there is named only where no other is. `idle(output, bad)` says whether NaN
    comes from what is not to be read, `kept()` whether something of an earlier call is left in this one,
    `depends(output)` what an output depends on otherwise than its answer, `edge(output)` from which size on it is
    wrong, `slices(output)` which slices of an operand are wrong by what is in them.
    """
    failed = {name: verdict for name, verdict in verdicts.items() if not verdict.ok}
    if not failed:
        return {}
    causes, known = dict(causes or {}), {}
    for name in [name for name, cause in causes.items() if cause in ONE_ANSWER]:
        known[name] = causes.pop(name)
    call = call if call is reading.nothing else cache(call)
    look = mutants and not causes.keys() >= failed.keys()
    matching = matching_mutants(contract, case, got, expected, verdicts, seconds, call) if look else {}
    matching = held_again(contract, case, matching, call)
    matching = told_by_families(contract, case, matching, call, seconds)
    matching = {
        name: not_refuted(contract, case, mutants, got[name], verdicts[name], passed)[:NAMED]
        for name, mutants in matching.items()
    }
    short_alone = cache(
        lambda name: _short_alone(contract, case, name, got[name], expected[name], verdicts[name], longer, call)
    )
    for name, mutants_of in matching.items():
        if any(m.kind == "precision" for m in mutants_of) and wrong_in_float32(contract, case, name, call):
            matching[name] = [mutant for mutant in mutants_of if mutant.kind != "precision"]
        elif mutants_of and (short := short_alone(name)) and _all_wrong_in_float32(contract, case, name, mutants_of):
            causes[name] = short
    texts = {}
    for name, verdict in failed.items():
        found: list[Planted] = [] if name in causes else matching.get(name, [])
        lines: list[str] = []
        if found:
            named = "; or ".join(f"{mutant.about} (mutant {mutant.name})" for mutant in found)
            lines.append(f"equals the reference, but {named}")
        if lower and name not in causes and all(mutant.kind == "precision" for mutant in found):
            declare = f'declare compute="{lower}" if its products are meant to be rounded so'
            if not passed_through(got[name], expected[name], verdict.bad):
                lines.insert(0, f"right as {lower}: {declare}")
        right = expected[name]
        if verdict.bad is not None and right is not None:
            axes = axis_names(contract.output_axes(name, case), got[name].ndim)
            place = region(verdict.bad, axes)
            place = (
                without_refuted(place, case, passed)
                if is_left_out(right, got[name], verdict.bad)
                else _OVERHANG.sub("", place)
            )
            stands = None
            if not found and name not in causes:
                stands = integers.told(contract, case, name, verdict.bad, call)
                stands = stands or integers.at_index(contract, case, name, verdict.bad)
            where = f" (where {stands})" if stands else where_alike(right, got[name], verdict.bad)
            parts = [f"wrong: {place}{where}"]
            bits = exact(contract, case, name)
            relation = causes.get(name) or (None if found else passed_through(got[name], right, verdict.bad))
            if relation is None and not found:
                relation = known.get(name) or related(got[name], right, case, verdict.bad, axes, bits)
                if relation is None and name in LOGARITHMS:
                    relation = to_another_base(got[name], right, case, verdict.bad)
                if relation and OF_ROWS.match(relation) and not _is_so_plainly(contract, case, name, relation, call):
                    relation = None
                if (
                    relation
                    and relation.startswith(PITCH_OF)
                    and not _is_so_again(contract, case, name, relation, call)
                ):
                    relation = None
                if relation and relation.startswith(ANOTHER) and _is_of_repeats(contract, case, name, call):
                    relation = None
                if relation == LOG_OF_0 and name not in LOGARITHMS:
                    relation = INFINITE
                if relation in (None, NAN):
                    relation = idle(name, verdict.bad) or relation
                if relation == LOST and not is_right_plainly(contract, case, name, call):
                    relation = None  # the other infinity is among what it leaves out
                if numbers_for_nan(contract, case, name, got[name], right, verdict.bad, call):
                    relation = LOST
                elif relation is None or VAGUE.match(relation) or relation in ONE_ANSWER:
                    said = None
                    if mutants:
                        misread = partial(
                            reading.misread, contract, case, name, got[name], verdict.bad, seconds, call, passed
                        )
                        beside = {n: (got[n], v.bad) for n, v in failed.items() if n != name and v.bad is not None}
                        search = cache(partial(altered.Search, contract, case, name, got, verdict.bad, call, passed))
                        rule = left_out.rule_of(contract, case, name, verdict.bad, call) if relation == ALL_0 else None
                        if rule is not None:
                            said = f"{relation}: {rule}"
                        elif padded := own_statistics.padding(
                            contract,
                            case,
                            reading.Given(got[name].cpu(), right, verdict.bad.cpu()),
                            _padded(contract, case),
                            name,
                            call,
                        ):
                            said = padded
                        elif relation is not None and relation.startswith(ANOTHER):
                            said = misread(beside, only_strides=True)
                        else:
                            said = (
                                misread(beside)
                                or search().alteration(seconds)
                                or (misread(beside, strictly=False) if beside else None)
                                or kept()
                            )
                        if relation in ONE_ANSWER and said is not None and said.endswith(altered.NOT_ELSEWHERE):
                            said = None  # as much is known already
                        if said is not None and "rounded" not in said and rule is None:
                            said = short_alone(name) or said
                        if said is None and relation is None:
                            said = short_alone(name) or search().number(seconds)
                    if said is None and not (relation is not None and relation.startswith(ANOTHER)):
                        said = reading.beyond(contract, case, name, verdict.bad, call)
                        said = said and (short_alone(name) or said)
                        if said is not None and bool(torch.isnan(got[name].cpu()[verdict.bad.cpu()]).all()):
                            said += ": NaN there, as where an exponential or a power overflows: inf/inf or inf - inf"
                    relation = said if relation is None or said is not None else relation
            kept_short = not found and not bits and call is not reading.nothing
            if relation is None and kept_short and not wrong_in_float32(contract, case, name, call):
                relation = short_sums(got[name], right, case, verdict, partial(longer, name))
            unknown = relation in (None, NAN) or (
                VAGUE.match(relation) is not None and not relation.startswith(ANOTHER)
            )
            if unknown and not found and name not in causes:
                value, answer, allowed = aligned(
                    got[name], closest(got[name], right, case.torch_dtype), case.torch_dtype
                )
                near = allowed + budget.EPS.get(got[name].dtype, 0.0) * value.abs()  # a wrong value is rounded as it is
                statistics = own_statistics.of_parts(contract, case, name, value, answer, near, verdict.bad.cpu())
                dependence = depends(name)
                others = (None if stands else edge(name),) if statistics is None else (statistics,)
                found_out = (relation if statistics is None else None, dependence, *others)
                relation = "; ".join(filter(None, found_out)) or None
            if not found and not stands and name not in causes and not (relation and TELLS_WHERE.search(relation)):
                same = None
                if relation is None and not where:
                    same = _where_another_is(contract, case, name, {n: v.bad for n, v in failed.items()})
                relation = "; ".join(filter(None, [relation, same or slices(name)])) or None
            said = "; ".join([*parts, relation] if relation else parts)
            lines.append(f"{name}: {_OVERHANG.sub('', said) if left_out.TOLD.search(said) else said}")
            if not bool(verdict.bad.all()):
                lines.append(heatmap.text(shares(got[name], right, case.torch_dtype, bits), axes=axes))
        elif name in causes:
            lines.append(f"{name}: {causes[name]}")
        elif right is not None and (way := rounding.way(got[name], right.answer)):
            lines.append(f"{name}: as if the exact result were {way}")
        if lines:
            texts[name] = "\n".join(lines)
    return texts


def numbers_for_nan(
    contract: Contract,
    case: Case,
    output: str,
    got: torch.Tensor,
    right: Expected,
    bad: torch.Tensor,
    call: reading.Call,
) -> bool:
    """Whether an output has numbers where its answer is NaN, and is right with plain values."""
    bad = bad.cpu()
    if not most(torch.isnan(right.answer.cpu().expand(got.shape)[bad])) or not most(torch.isfinite(got.cpu()[bad])):
        return False
    return is_right_plainly(contract, case, output, call)


def is_right_plainly(contract: Contract, case: Case, output: str, call: reading.Call) -> bool:
    """Whether an output is right with plain values, as far as that is tried."""
    for plain in reading.plainly(contract, case):
        values, expected = call(plain), contract.expected(contract.build(plain))[output]
        if values is not None and _is_wrong_in(contract, plain, output, values.get(output), expected):
            return False
    return True


def _where_another_is(
    contract: Contract, case: Case, output: str, bad: Mapping[str, torch.Tensor | None]
) -> str | None:
    """Whether an output is wrong in the slices in which one of more axes is, and in no others, in words: a sum of it,
    say, that carries its errors."""
    mine, letters = bad[output], contract.output_axes(output, case).split()
    for name, theirs in bad.items():
        axes = contract.output_axes(name, case).split()
        if mine is None or theirs is None or "..." in axes or not set(letters) < set(axes) or not letters:
            continue
        others = [at for at, axis in enumerate(axes) if axis not in letters]
        along = [axis for axis in axes if axis in letters]
        there = theirs.cpu().any(dim=others)
        mine = mine.cpu()
        if along != letters or bool(there.all()) or bool((mine & ~there).any()):
            continue
        if torch.equal(mine, there):
            return f"wrong where {name} is, and nowhere else"
        if int(mine.sum()) >= MOST_OF_ANOTHER * int(there.sum()):
            return f"wrong in {int(mine.sum())} of the {int(there.sum())} places in which {name} is, and nowhere else"
    return None


def _is_so_plainly(contract: Contract, case: Case, output: str, relation: str, call: reading.Call) -> bool:
    """Whether rows that are wrong have the same relation to the answer with plain values too, where operands do not
    repeat theirs along an axis, as far as that is tried."""
    for plain in reading.plainly(contract, case):
        given = reading.given_on(contract, plain, output, call)
        if given is None or not bool(given.bad.any()):
            continue
        got, right, bad = given
        axes = axis_names(contract.output_axes(output, plain), got.ndim)
        if _NUMBER.sub("", related(got, right, plain, bad, axes, False) or "") != _NUMBER.sub("", relation):
            return False
    return True


def _is_so_again(contract: Contract, case: Case, output: str, relation: str, call: reading.Call) -> bool:
    """Whether an output has the same relation to its answer with other values, and with plain ones, where it is wrong
    then too: among many distances one may fit by chance."""
    for other in (reading.again(case), *reading.plainly(contract, case)):
        given = reading.given_on(contract, other, output, call)
        if given is None:
            return False
        if bool(given.bad.any()):
            axes = axis_names(contract.output_axes(output, other), given.got.ndim)
            if relation not in (related(given.got, given.right, other, given.bad, axes, False) or ""):
                return False
    return True


def _is_of_repeats(contract: Contract, case: Case, output: str, call: reading.Call) -> bool:
    """Whether an output holds another slice's answer for want of a difference alone: an operand repeats its slices, and
    with plain operands of these sizes what is wrong is no other slice's."""
    if not any(layout in layouts.BROADCASTS for _, layout in case.layouts):
        return False
    plain = reading.plainly(contract, case)[-1:]
    given = reading.given_on(contract, plain[0], output, call) if plain else None
    if given is None or not bool(given.bad.any()):
        return False
    got, right, bad = given
    axes = axis_names(contract.output_axes(output, plain[0]), got.ndim)
    return ELSEWHERE.match(related(got, right, plain[0], bad, axes, False) or "") is None


def _padded(contract: Contract, case: Case) -> list[Case]:
    """Plain cases of several sizes on which padding is looked for, in float32 first."""
    wide = replace(case, dtype="float32") if "float32" in contract.dtypes else case
    found = []
    for one in dict.fromkeys((wide, case)):
        sizes = [*reading.plainly(contract, one)[-1:], *reading.of_little_work(contract, one, least=0)[::-1]]
        found += list(dict.fromkeys(sizes))[: own_statistics.SIZES]
    return found


def exact(contract: Contract, case: Case, output: str) -> bool:
    """Whether an output of the case must be bit-equal, every intermediate being exact."""
    return output in contract.exact.get(case.values, ())


def matching_mutants(
    contract: Contract,
    case: Case,
    got: Mapping[str, torch.Tensor],
    expected: Mapping[str, Expected | None],
    verdicts: Mapping[str, Verdict],
    seconds: float = SECONDS,
    call: reading.Call = reading.nothing,
) -> dict[str, list[Planted]]:
    """By wrong output, the mutants whose answer on this case is `got`: the op's own, the closest first.

    Those that give `got` in every output, where there are any that give this output; else those that give it in this
    one, wrong or right in others: each output may be wrong for a reason of its own. But what they make of another
    output of the same rows has to be right or as it is, unless that is NaN, and of any output where this one is that.
    Of a case of much work those come first that give what the kernel gives, by `call`, on one of little.
    """
    if contract.work(case) > WORK_LIMIT:
        return {}
    end = time.monotonic() + seconds
    wrong = [name for name, verdict in verdicts.items() if not verdict.ok]
    found: dict[str, list[tuple[bool, bool, float, int, Planted]]] = {name: [] for name in wrong}
    tried = [
        (position, mutant)
        for position, mutant in enumerate(registry.planted(contract.name))
        if not (mutant.is_known_good or mutant.backend or mutant.kind in NOT_COMPARED) and case.dtype in mutant.dtypes
    ]
    if contract.work(case) > reading.MUCH:
        likely = _of_a_small_case(contract, case, [mutant for _, mutant in tried], wrong, call, end - seconds / 2)
        tried.sort(key=lambda one: one[1] not in likely)
    for position, mutant in tried:
        if time.monotonic() > end:
            break
        theirs = _given_by(mutant, contract, case)
        if theirs is None:
            continue
        distances = {
            name: _distance(case, exact(contract, case, name), mine, expected[name], verdicts[name], theirs[name])
            for name, mine in got.items()
            if expected[name] is not None and name in verdicts
        }
        partly = None in distances.values()
        otherwise = [
            name
            for name, distance in distances.items()
            if distance is None and _is_wrong_in(contract, case, name, theirs[name], expected[name])
        ]
        # what is NaN, or rounded otherwise, can be wrong in a way of its own
        apart = {n for n in wrong if mutant.kind == "precision" or _is_nan(got[n], verdicts[n])}
        for name in wrong:
            of_nan = _is_nan(got[name], verdicts[name])
            if any(
                of_nan or (other not in apart and reading.alike(contract, case, name, other)) for other in otherwise
            ):
                continue
            if (distance := distances.get(name)) is not None:
                found[name].append((partly, mutant.generic, distance, position, mutant))
    named = {}
    for name, matches in found.items():
        matches.sort(key=lambda match: match[:4])
        named[name] = [mutant for partly, *_, mutant in matches if partly == matches[0][0]][:FOUND]
    return named


def _of_a_small_case(
    contract: Contract, case: Case, mutants: Sequence[Planted], outputs: Sequence[str], call: reading.Call, end: float
) -> list[Planted]:
    """The mutants that give one of some outputs as the kernel does on the first plain case of little work, with the
    parameters of `case`, on which it is wrong."""
    for small in reading.of_little_work(contract, case):
        if (values := call(small)) is None:
            return []
        expected = contract.expected(contract.build(small))
        verdicts = {
            name: compare.compare(values[name], right, case.torch_dtype, exact(contract, small, name))
            for name in outputs
            if (right := expected[name]) is not None
            and isinstance(values.get(name), torch.Tensor)
            and values[name].shape == right.answer.shape
        }
        verdicts = {name: verdict for name, verdict in verdicts.items() if not verdict.ok}
        if not verdicts:
            continue
        found = []
        for mutant in itertools.takewhile(lambda _: time.monotonic() < end, mutants):
            theirs = _given_by(mutant, contract, small) or {}
            if any(
                _distance(small, exact(contract, small, n), values[n], expected[n], v, theirs.get(n)) is not None
                for n, v in verdicts.items()
            ):
                found.append(mutant)
        return found
    return []


def _given_by(mutant: Planted, contract: Contract, case: Case) -> Mapping[str, Any] | None:
    """What a mutant gives on a case, by output; None where it fails, or gives too much or too little."""
    with torch.no_grad():
        try:
            theirs = contract.by_name(contract.call(mutant.make(), contract.build(case).arguments))
        except Exception:  # mutants may fail on a case in ways of their own
            return None
    return None if isinstance(theirs, str) else theirs


def held_again(
    contract: Contract, case: Case, matching: Mapping[str, Sequence[Planted]], call: reading.Call
) -> dict[str, list[Planted]]:
    """Those of the mutants of each output that give what the kernel gives with other values too, and where it is wrong
    with plain ones, another option of a parameter or in another size; all where it cannot be called."""
    found = {name: list(mutants) for name, mutants in matching.items()}
    if not any(found.values()):
        return found
    every = [reading.again(case), *reading.refuting(contract, case), *_of_other_sizes(contract, case)]
    for other in dict.fromkeys(every):
        if (values := call(other)) is not None:
            _held(contract, other, found, values, only_wrong=other != reading.again(case))
    _drop_spoiling(contract, _laid_plainly(contract, case), found, call)
    _drop_bounded(contract, case, found, call)
    return found


def _laid_plainly(contract: Contract, case: Case) -> Case:
    """The case with the same operands, contiguous."""
    return replace(case.plainly_laid(case.absent), drawn_as=case.drawn_as or case.id)


def _drop_spoiling(contract: Contract, case: Case, found: dict[str, list[Planted]], call: reading.Call) -> None:
    """Drop the mutants of each output, `found`, that are wrong on a case on which it is right."""
    given = {name: reading.given_on(contract, case, name, call) for name, mutants in found.items() if mutants}
    for name, of in given.items():
        if of is None or bool(of.bad.any()):
            continue
        found[name] = [m for m in found[name] if not _is_wrong(contract, m, case, {name: of.right})]


def _drop_bounded(contract: Contract, case: Case, found: dict[str, list[Planted]], call: reading.Call) -> None:
    """Drop the mutants of each output, `found`, that are wrong beyond some size alone, if the kernel is right in a
    larger size, or wrong otherwise: what is lost beyond 1024 of 1025 elements can be what does not fill a tile."""
    letters = [letter for letter, size in case.size.items() if isinstance(size, int) and size >= LEAST_HALVED]
    for mutant, letter in itertools.product({id(m): m for ms in found.values() for m in ms}.values(), letters):
        names = [name for name, mutants in found.items() if mutant in mutants]
        half, full, *longer = (edges.resized(contract, case, {letter: n}) for n in _around(case.size[letter]))
        if not names or half is None or full is None or contract.work(full) > ANOTHER_SIZE:
            continue
        if not goes_together(contract, half):  # half of the query heads may not go with all key heads
            continue
        at_half, at_full = (contract.expected(contract.build(one)) for one in (half, full))
        bounded = [
            name
            for name in names
            if not _is_wrong(contract, mutant, half, {name: at_half[name]})
            and _is_wrong(contract, mutant, full, {name: at_full[name]})
        ]
        for other in longer if bounded else ():
            if other is None or contract.work(other) > ANOTHER_SIZE or not goes_together(contract, other):
                continue
            if (values := call(other)) is None:
                continue
            expected, theirs = contract.expected(contract.build(other)), _given_by(mutant, contract, other) or {}
            for name in bounded:
                right = not _is_wrong_in(contract, other, name, values.get(name), expected[name])
                if right and _is_wrong_in(contract, other, name, theirs.get(name), expected[name]):
                    found[name] = [one for one in found[name] if one is not mutant]
            _held(contract, other, {name: found[name] for name in bounded}, values, only_wrong=True)


def _around(size: int) -> tuple[int, ...]:
    """Half of a size, itself, the power of two that comes next, and twice it."""
    return tuple(dict.fromkeys((size // 2, size, 1 << size.bit_length(), 2 * size)))


def told_by_families(
    contract: Contract, case: Case, matching: Mapping[str, Sequence[Planted]], call: reading.Call, seconds: float
) -> dict[str, list[Planted]]:
    """Those of the mutants of each output that are right wherever the kernel is, in other families of values of the
    same sizes, layouts and parameters; and of several, those that are wrong there as it is, if there are any. Of a case
    with NaN or infinities only those that are wrong as it is in other such families."""
    special = not _is_finite(contract, case)
    found, end = {name: list(mutants) for name, mutants in matching.items()}, time.monotonic() + seconds
    for family in contract.values:
        other = replace(case, values=family, drawn_as=None)
        if not any(found.values()) or time.monotonic() > end:
            break
        if family == case.values or contract.work(case) > ANOTHER_SIZE or not contract.valid(other):
            continue
        values = call(other)
        if values is None:
            continue
        expected = contract.expected(contract.build(other))
        right = [name for name in found if not _is_wrong_in(contract, other, name, values.get(name), expected[name])]
        exactly = [m for name in right for m in found[name] if m.kind != "precision"]  # others round otherwise
        for mutant in {id(m): m for m in exactly}.values():
            theirs = _given_by(mutant, contract, other) or {}
            for name in right:
                if mutant in found[name] and _is_wrong_in(contract, other, name, theirs.get(name), expected[name]):
                    found[name].remove(mutant)
        alone = special and not _is_finite(contract, other)
        left = {n: list(mutants) for n, mutants in found.items() if n not in right and len(mutants) > (not alone)}
        if left:
            _held(contract, other, left, values, only_wrong=True)
            found |= {name: mutants for name, mutants in left.items() if mutants or alone}
    return found


def _is_finite(contract: Contract, case: Case) -> bool:
    """Whether no operand of a case has NaN or infinities."""
    return all(bool(value.isfinite().all()) for value in contract.build(case).exact.values() if value is not None)


def _of_other_sizes(contract: Contract, case: Case) -> list[Case]:
    """The plain cases with the parameters of `case` whose work is little: the most of it, and where a third and two
    thirds of them have less, in other sizes of the contract, and the most in those of its single cases, which may have
    more of something than any other."""
    found: list[Case] = []
    for sizes, places in ((contract.sizes, (1, 2, 3)), ([one.size for one in contract.also.values()], (3,))):
        plain = [
            replace(plain_case(contract, case.dtype, next(iter(contract.values)), case.seed, size), params=case.params)
            for size in sizes
        ]
        fit = [one for one in plain if one.sizes != case.sizes and one.filled and contract.valid(one)]
        little = sorted((one for one in fit if contract.work(one) <= ANOTHER_SIZE), key=contract.work)
        found += [little[len(little) * place // 3 - 1] for place in reversed(places) if len(little) * place // 3]
    return list(dict.fromkeys(found))


def _held(
    contract: Contract, case: Case, found: dict[str, list[Planted]], values: Mapping[str, Any], only_wrong: bool
) -> None:
    """Leave those of the mutants of each output, `found`, that give what the kernel gives on a case, `values`; with
    `only_wrong` all of an output that is right there."""
    expected = contract.expected(contract.build(case))

    compared = {
        name: (got, right)
        for name in found
        if isinstance(got := values.get(name), torch.Tensor)
        and (right := expected[name]) is not None
        and got.shape == right.answer.shape
    }

    def wrong(name: str) -> bool:
        got, right = compared[name]
        return not compare.compare(got, right, case.torch_dtype, exact(contract, case, name)).ok

    names = [name for name in compared if not only_wrong or wrong(name)]

    def same(mutant: Planted, name: str, theirs: Any) -> bool:
        got, right = compared[name]
        if not isinstance(theirs, torch.Tensor) or theirs.shape != got.shape:
            return False
        answer = closest(got, right, case.torch_dtype)
        near = _beside(got, answer, theirs, case.torch_dtype)
        return near.fraction <= AGREEMENT or mutant.kind == "precision"

    for mutant in {id(m): m for name in names for m in found[name]}.values():
        theirs = _given_by(mutant, contract, case)
        for name in names:
            if mutant in found[name] and theirs is not None and not same(mutant, name, theirs.get(name)):
                found[name].remove(mutant)


def not_refuted(
    contract: Contract,
    case: Case,
    mutants: Sequence[Planted],
    got: torch.Tensor,
    verdict: Verdict,
    passed: Sequence[Case],
) -> list[Planted]:
    """Of mutants that give a wrong output, those that are right wherever the kernel is, as far as that is tried, of
    several in other dtypes too; else those of the op itself, as what is wrong in some cases, unless the output is NaN
    or one number there, which many give, or all but the last word of packed bits is."""
    if verdict.bad is not None and _is_nan(got, verdict):
        mutants = [mutant for mutant in mutants if not mutant.generic and verdict.bad.numel() > 1]  # any NaN is equal
    cheap = [other for other in passed if other.dtype == case.dtype and contract.work(other) <= CHEAP]
    others = list(dict.fromkeys([*_apart_from(case, cheap), *_of_each_family(cheap)])) if mutants else []
    expected = {other: contract.expected(contract.build(other)) for other in others}
    kept = [m for m in mutants if not any(_is_wrong(contract, m, other, expected[other]) for other in others)]
    if len(kept) > 1:
        elsewhere = [one for one in passed if one.dtype != case.dtype and contract.work(one) <= CHEAP][-PASSED_TRIED:]
        answers = [(one, contract.expected(contract.build(one))) for one in elsewhere]
        right = [
            m for m in kept if not any(one.dtype in m.dtypes and _is_wrong(contract, m, one, e) for one, e in answers)
        ]
        kept = right or kept
    if kept or verdict.bad is None:
        return kept
    wrong = got.cpu()[verdict.bad.cpu()]
    few = 1 if wrong.is_floating_point() else 2
    if wrong.unique().numel() <= few or _is_nan(got, verdict):
        return []
    own = [mutant for mutant in mutants if not mutant.generic]
    return [replace(mutant, about=f"{mutant.about}, {altered.NOT_ELSEWHERE}") for mutant in own]


def spoils_what_passed(contract: Contract, name: str, case: Case, output: str, passed: Sequence[Case]) -> bool:
    """Whether a mutant, by name, makes an output wrong in one of a few cases of a case's dtype that passed."""
    mutant = next(mutant for mutant in registry.planted(contract.name) if mutant.name == name)
    cheap = [other for other in passed if other.dtype == case.dtype and contract.work(other) <= CHEAP]
    return any(
        _is_wrong(contract, mutant, other, {output: contract.expected(contract.build(other))[output]})
        for other in _apart_from(case, cheap)
    )


def wrong_cases(contract: Contract, name: str, output: str, cases: Sequence[Case]) -> int:
    """In how many of a few cheap cases, of each choice of parameters and each family of values, a mutant, by name,
    makes an output wrong."""
    mutant = next(mutant for mutant in registry.planted(contract.name) if mutant.name == name)
    cheap = [case for case in cases if contract.work(case) <= CHEAP]
    some = list({(case.params, case.values): case for case in cheap}.values())[:COUNTED]
    return sum(
        _is_wrong(contract, mutant, case, {output: contract.expected(contract.build(case))[output]})
        for case in some
        if case.dtype in mutant.dtypes
    )


def _apart_from(case: Case, passed: Sequence[Case]) -> list[Case]:
    """A few of the cases that passed: the latest, half of them with other parameters than `case` if there are such."""
    of_params = {other.params: other for other in passed if other.params != case.params}
    others = list(of_params.values())[-(PASSED_TRIED // 2) :]
    latest = [other for other in passed if other not in others]
    return [*others, *latest[len(others) - PASSED_TRIED :]]


def _of_each_family(passed: Sequence[Case]) -> list[Case]:
    """Of each family of values the latest case that passed."""
    return list({other.values: other for other in passed}.values())


def _is_nan(got: torch.Tensor, verdict: Verdict) -> bool:
    """Whether all that is wrong of an output is NaN."""
    return verdict.bad is not None and bool(torch.isnan(got.cpu()[verdict.bad.cpu()]).all())


def _is_wrong_in(contract: Contract, case: Case, name: str, their: Any, right: Expected | None) -> bool:
    """Whether a mutant's output is wrong on a case."""
    if right is None or not isinstance(their, torch.Tensor):
        return False
    if their.shape != right.answer.shape:
        return True
    return not compare.compare(their, right, case.torch_dtype, exact(contract, case, name)).ok


def _is_wrong(contract: Contract, mutant: Planted, case: Case, expected: Mapping[str, Expected | None]) -> bool:
    """Whether a mutant gives wrong values on a case."""
    theirs = _given_by(mutant, contract, case)
    if theirs is None:
        return True
    return any(_is_wrong_in(contract, case, name, theirs.get(name), right) for name, right in expected.items())


def _distance(
    case: Case, bits: bool, mine: torch.Tensor, right: Expected | None, verdict: Verdict, other: Any
) -> float | None:
    """How far one output is from a mutant's, in budgets; 0 where both are right, None where they are not the same."""
    if right is None or not isinstance(other, torch.Tensor) or other.shape != mine.shape or other.dtype != mine.dtype:
        return None
    dtype = case.torch_dtype
    wrong = compare.compare(other, right, dtype, bits)
    if wrong.ok != verdict.ok or (wrong.bad is None) != (verdict.bad is None):
        return None
    if verdict.ok:
        return 0.0
    if verdict.bad is None:  # errors that lean one way, each within the budget
        same = (other == mine.cpu()).double().mean().item()
        return None if same < 0.9 else 1 - same
    answer = closest(mine, right, dtype, bits)
    near = _beside(mine, answer, other, dtype)
    return near.fraction if near.fraction <= min(AGREEMENT, verdict.fraction / 2) else None


def _beside(mine: torch.Tensor, right: Expected, other: torch.Tensor, dtype: torch.dtype) -> Verdict:
    """One output compared with another that takes the place of the right one: zeros of either sign are equal."""
    mine, other = (x + 0.0 if x.is_floating_point() else x for x in (mine, other))
    return compare.compare(mine, _moved_to(right, other), dtype)


def _moved_to(right: Expected, other: torch.Tensor) -> Expected:
    """Another answer with the budget of the right one, which knows nothing of the terms that only the other has: what
    an answer moves by is rounded too."""
    moved = budget.finite(other.double() - right.answer.expand(other.shape)).abs()
    return replace(right, answer=other.double(), drift=math.inf, extra=right.extra + ROUNDED * moved)


def closest(got: torch.Tensor, expected: Expected, dtype: torch.dtype, bits: bool = False) -> Expected:
    """The answer that `got` is compared with: the right one, or the alternative it comes closest to, alone."""
    answers = [replace(answer, alternatives=[]) for answer in (expected, *expected.alternatives)]
    if len(answers) == 1:
        return answers[0]

    return min(answers, key=lambda answer: compare.compare(got, answer, dtype, bits).distance)


def shares(got: torch.Tensor, expected: Expected, dtype: torch.dtype, bits: bool = False) -> torch.Tensor:
    """Error over budget of each element of `got`, float64; at most 1 where it is right, inf where it is not finite."""
    answer = closest(got, expected, dtype, bits)
    verdict = compare.compare(got, answer, dtype, bits)
    value, right, allowed = aligned(got, answer, dtype)
    fractions = (budget.finite(value) - budget.finite(right)).abs() / allowed
    if verdict.bad is None:
        return fractions.clamp_max(1.0)
    both = torch.isfinite(value) & torch.isfinite(right)
    wrong = torch.where(both, fractions.clamp_min(1.0 + 1e-9), math.inf)
    return torch.where(verdict.bad, wrong, fractions.clamp_max(1.0))


def aligned(got: torch.Tensor, expected: Expected, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Value, answer and budget in float64 on the CPU, of one shape."""
    value = got.detach().cpu().to(torch.float64)
    answer = expected.answer.cpu().expand(value.shape)
    allowed = torch.as_tensor(budget.budget(expected, dtype)).cpu().expand(value.shape)
    return value, answer, allowed


def axis_names(axes: str, ndim: int) -> list[str]:
    """The letters of a contract's axes; a `...` becomes as many numbered axes as `ndim` leaves."""
    letters = axes.split()
    names: list[str] = []
    for letter in letters:
        count = ndim - len(letters) + 1 if letter == "..." else 1
        names += [f"axis {len(names) + i}" for i in range(count)] if letter == "..." else [letter]
    return names


def region(bad: torch.Tensor, axes: Sequence[str]) -> str:
    """Which elements of `bad` (booleans) are set, in words: ranges along each axis, or how they lie scattered."""
    bad = bad.detach().cpu()
    count = int(bad.sum())
    if count == bad.numel():
        return "everything"
    if count == 1:
        index = [int(i) for i in bad.nonzero()[0]]
        return f"one element of {bad.numel()}, at {index}"
    box, sets = _box(bad)
    if count == box:
        return _axes_text(sets, bad.shape, axes) + _flat_overhang(bad)
    outside, right = _box(~bad)
    few = bad.numel() - count
    stray = few < STRAY * bad.numel() and few < OF_CHANCE and not _is_slice(right, bad.shape)
    if few == outside and not stray:
        return f"everything but {_axes_text(right, bad.shape, axes)}"
    if stray and few == 1:
        return f"everything but one element of {bad.numel()}, at {[at for (at,) in right]}"
    if (stray or few < STRAY * bad.numel()) and box == bad.numel():  # no slice is right
        return f"everything but {few} of {bad.numel()} elements"
    steps = bad.reshape(-1).nonzero().flatten().tolist()
    if stride := _step(steps):
        return f"every {ordinal(stride)} element in memory order, from {steps[0]}"
    share = count / box
    if share >= 0.5:
        return f"most of {_axes_text(sets, bad.shape, axes)} ({count} of {box})"
    return f"{count} of {bad.numel()} elements, scattered over {_axes_text(sets, bad.shape, axes)}"


def _is_slice(sets: Sequence[list[int]], shape: Sequence[int]) -> bool:
    """Whether the product of some indices along each axis has all of every axis but one at most."""
    return sum(len(found) < size for found, size in zip(sets, shape, strict=True)) <= 1


def where_alike(right: Expected, got: torch.Tensor, bad: torch.Tensor) -> str:
    """ " (where the answer is 0)" where what is wrong has one answer that stands for nothing, or NaN, or what is right
    alone is 0."""
    every = right.answer.cpu().expand(got.shape)
    answer = every[bad.cpu()]
    for number in (0.0, -math.inf, math.inf):
        if bool((answer == number).all()):
            return f" (where the answer is {number:g})"
    if not bool(bad.all()) and torch.equal(every != 0, bad.cpu()):
        return " (everywhere that the answer is not 0)"
    return " (where the answer is NaN)" if bool(torch.isnan(answer).all()) else ""


def _box(bad: torch.Tensor) -> tuple[int, list[list[int]]]:
    """The indices along each axis at which anything is set, and how many elements their product has."""
    sets = []
    for axis in range(bad.ndim):
        others = [other for other in range(bad.ndim) if other != axis]
        along = bad.any(dim=others) if others else bad
        sets.append(along.nonzero().flatten().tolist())
    return math.prod(len(found) for found in sets), sets


def _axes_text(sets: Sequence[list[int]], shape: Sequence[int], axes: Sequence[str]) -> str:
    parts = [_range_text(found, size, name) for found, size, name in zip(sets, shape, axes, strict=True) if size > 1]
    whole = [part for part in parts if part.startswith("all ")]
    return ", ".join([part for part in parts if part not in whole] + whole) or "everything"


def _range_text(found: list[int], size: int, axis: str) -> str:
    """`rows 32..36 of 37`, with what is special about it."""
    first, last = found[0], found[-1]
    if len(found) == size:
        return f"all {axis}"
    if len(found) == 1:
        place = ", the last" if first == size - 1 else ", the first" if first == 0 else ""
        return f"{axis} {first} of {size}{place}{_overhang(first, size) if first == size - 1 else ''}"
    if len(found) == last - first + 1:
        if last == size - 1:
            return f"{axis} from {first} on, the last {len(found)} of {size}{_overhang(first, size)}"
        return f"{axis} {first}..{last} of {size}"
    step = _step(found)
    if first < step and last + step >= size:
        return f"every {ordinal(step)} of {size} {axis}, from {first}"
    runs = list(_runs(found))
    if period := _period(runs):
        first, last = runs[0]
        return f"{axis} {first}..{last} of every {period} ({len(found)} of {size})"
    shown = ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in runs[:4])
    return f"{axis} {shown}{', ...' if len(runs) > 4 else ''} ({len(found)} of {size})"


def _overhang(first: int, size: int) -> str:
    """What a kernel without a masked last tile, or vector, leaves out: the part beyond the last whole one of 2^k."""
    tiles = [2**k for k in range(1, 13) if size % 2**k and size // 2**k * 2**k == first]
    return _of_tiles(tiles) if first and tiles and tiles[-1] >= LEAST_TILE else ""


def _of_tiles(tiles: Sequence[int]) -> str:
    among = f" to {tiles[-1]}" if len(tiles) > 1 else ""
    return f" (the overhang of tiles of {tiles[0]}{among})" if tiles else ""


_OVERHANG = re.compile(r" \(the overhang of tiles of (?P<least>\d+)(?: to (?P<most>\d+))?\)")
_ALONG = re.compile(
    rf"(?P<place>(?P<axis>\w+) (?:from \d+ on, the last \d+ of \d+|\d+ of \d+, the last)){_OVERHANG.pattern}"
)


def without_refuted(text: str, case: Case, passed: Sequence[Case]) -> str:
    """What `region` says, without the overhang of tiles that cases of the same dtype have too, and are right."""

    def left(found: re.Match[str]) -> str:
        sizes = [other.size.get(found["axis"], 0) for other in passed if other.dtype == case.dtype]
        known = [n for n in sizes if isinstance(n, int)]
        tiles = [2**k for k in range(13) if int(found["least"]) <= 2**k <= int(found["most"] or found["least"])]
        return found["place"] + _of_tiles([t for t in tiles if not any(n > t and n % t for n in known)])

    return _ALONG.sub(left, text)


def is_left_out(right: Expected, got: torch.Tensor, bad: torch.Tensor) -> bool:
    """Whether wrong elements can be what nothing was computed of: one number, and not the very elements whose answer
    stands for nothing, which lie where the values put them."""
    bad, answer = bad.cpu(), right.answer.cpu().expand(got.shape)
    wrong = got.cpu()[bad].double()
    if not most(torch.isnan(wrong)) and not most(wrong == wrong.median()):
        return False
    number = answer[bad][0]
    return not where_alike(right, got, bad) or bool(
        ((answer == number) | (answer.isnan() & number.isnan()))[~bad].any()
    )


def _flat_overhang(bad: torch.Tensor) -> str:
    """What is left out where all axes are one: the elements beyond the last whole tile, where no axis has that tile."""
    first = bad.numel() - int(bad.sum())
    tiles = _overhang(first, bad.numel())
    count, row = bad.numel() - first, bad.shape[-1] if bad.ndim else 1
    if (
        bad.ndim < 2
        or count >= row
        or not tiles
        or _overhang(row - count, row)
        or not bool(bad.reshape(-1)[first:].all())
    ):
        return ""
    return f": the last {count} in memory order{tiles}"


def _step(found: Sequence[int]) -> int:
    """The distance, above 1, between at least three indices that lie evenly; else 0."""
    steps = {b - a for a, b in itertools.pairwise(found)}
    return steps.pop() if len(found) >= 3 and len(steps) == 1 and steps != {1} else 0


def _period(runs: Sequence[tuple[int, int]]) -> int:
    """The tile, of 2^k, in each of which the same indices are found, but for the last run, which may be cut; else 0."""
    steps = {b[0] - a[0] for a, b in itertools.pairwise(runs)}
    lengths = {last - first for first, last in runs[:-1]}
    if len(runs) < 3 or len(steps) != 1 or len(lengths) != 1 or runs[-1][1] - runs[-1][0] > max(lengths):
        return 0
    step = steps.pop()
    return step if step & (step - 1) == 0 and runs[0][1] < step and lengths != {0} else 0


def ordinal(n: int) -> str:
    names = {2: "second", 3: "third", 4: "fourth"}
    return names.get(n) or f"{n}th"


def _runs(found: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = previous = found[0]
    for index in [*found[1:], found[-1] + 2]:
        if index != previous + 1:
            yield start, previous
            start = index
        previous = index


def related(
    got: torch.Tensor, expected: Expected, case: Case, bad: torch.Tensor, axes: Sequence[str], bits: bool
) -> str | None:
    """How the wrong elements relate to the right answer: never written, a factor, a difference, another place. What
    explains less than EXPLAINS of them is not said; of several hints that which explains most comes first."""
    value, answer, allowed = aligned(got, closest(got, expected, case.torch_dtype, bits), case.torch_dtype)
    bad = bad.cpu()
    wrong = value[bad]
    if text := unwritten(got, bad, probe.PATTERNS[got.dtype is torch.bfloat16 :]):
        return text
    if most(torch.isnan(wrong)):
        return NAN
    if most(torch.isinf(wrong)):
        if most(wrong == -answer[bad]):
            return OTHER_SIGN
        if most(answer[bad].isnan()):
            return LOST
        return LOG_OF_0 if most((wrong == -math.inf) & answer[bad].isfinite()) and bool((wrong < 0).all()) else INFINITE
    here, there = wrong == 0, answer[bad] == 0
    both = min(here.double().mean().item(), there.double().mean().item())
    masked = most(here != there) and both >= BOTH_WAYS
    if masked and len(here) >= OTHER_MASK:
        return ANOTHER_MASK
    common = wrong.median()
    if wrong.numel() > 1 and most(wrong == common):
        return f"all {common.item():.6g} there"
    if got.dtype is torch.int32 and (order := _bits_moved(got.cpu()[bad], answer[bad])):
        return order
    unit = budget.EPS.get(got.dtype, 0.0)  # 0 for integers
    tolerance = 2 * allowed + 2 * unit * value.abs()
    names = {**CONSTANTS, **_case_constants(case)}
    hints = [_fitted(value, answer, tolerance, bad, names, unit)]
    if moved := _moved(value, answer, tolerance, axes):
        hints.append((1.0, moved))
    elif not where_alike(expected, got, bad):
        hints.append(_elsewhere(value, answer, tolerance, bad, axes))
        hints.append(_surplus(value, answer, tolerance, bad, axes) if not any(hints) else None)
        hints.append(_apart_otherwise(value, answer, tolerance, bad, axes) if not any(hints) else None)
    ranked = sorted((hint for hint in hints if hint is not None), key=lambda hint: -hint[0])
    return "; or ".join(text for _, text in ranked) or (
        ANOTHER_MASK if masked and bool((here != there).all()) else None
    )


def to_another_base(got: torch.Tensor, expected: Expected, case: Case, bad: torch.Tensor) -> str | None:
    """Whether the wrong elements of a logarithm are about those to base 2, in words: a factor explains them better than
    a difference does. What is added to one after that is another one's share, and small."""
    value, answer, _ = aligned(got, closest(got, expected, case.torch_dtype), case.torch_dtype)
    value, answer = value[bad.cpu()], answer[bad.cpu()]
    told = value.isfinite() & answer.isfinite() & (answer.abs() > 1)
    if not most(told) or len(answer[told].unique()) < 3:
        return None
    value, answer = value[told], answer[told]
    ratio, difference = value / answer, value - answer
    for factor, text in BASES:
        left = (value - ratio.median() * answer).square().mean().sqrt()
        if most((ratio / factor - 1).abs() <= OF_A_BASE) and left <= CLOSER * difference.std(correction=0):
            low, high = (f"{float(x):.4g}" for x in ratio.aminmax())
            return f"{low if low == high else f'{low} to {high}'} times the answer: {text}"
    return None


def _bits_moved(got: torch.Tensor, answer: torch.Tensor) -> str | None:
    """How the bits of the words of a wrong output lie otherwise than those of the answer, in memory of 32 bits."""
    words = [w.to(torch.int64).numpy().astype(np.uint32).view(np.uint8).reshape(-1, 4) for w in (got, answer)]
    theirs, right = (np.unpackbits(word, axis=1, bitorder="little") for word in words)
    ways = {
        "every bit is the other one": 1 - right,
        "the bits of each word lie in the reverse order": right[:, ::-1],
        "the bits of each byte lie in the reverse order": right.reshape(-1, 4, 8)[:, :, ::-1].reshape(-1, 32),
        "the bytes of each word lie in the reverse order": right.reshape(-1, 4, 8)[:, ::-1].reshape(-1, 32),
    }
    found = [way for way, bits in ways.items() if most(torch.from_numpy((theirs == bits).all(1)))]
    return found[0] if len(found) == 1 else None


def most(explained: torch.Tensor) -> bool:
    """Whether so many of the wrong elements, as booleans, are explained that it may be said."""
    return explained.numel() > 0 and explained.double().mean().item() >= EXPLAINS


def passed_through(got: torch.Tensor, expected: Expected | None, bad: torch.Tensor | None) -> str | None:
    """The narrower dtype of which the wrong elements have values alone, where the right ones have not."""
    if (
        bad is None
        or expected is None
        or got.dtype not in NARROWER
        or len(set(got.cpu()[bad.cpu()].tolist())) < DISTINCT
    ):
        return None
    value, right = (
        got.cpu()[bad.cpu()].double(),
        expected.answer.cpu().expand(got.shape)[bad.cpu()].to(got.dtype).double(),
    )
    for dtype in NARROWER[got.dtype]:
        if bool((value.to(dtype).double() == value).all()) and not most(right.to(dtype).double() == right):
            return f"every value is one of {str(dtype).removeprefix('torch.')}: a sum or the result passes through it"
    return None


def wrong_in_float32(contract: Contract, case: Case, output: str, call: reading.Call) -> bool:
    """Whether an output of a 16-bit case is wrong with the same values in float32, where no sum or intermediate in the
    inputs' dtype is short."""
    found = _in_float32(contract, case, output, call)
    return found is not None and found[2].bad is not None and passed_through(found[0], found[1], found[2].bad) is None


def _in_float32(
    contract: Contract, case: Case, output: str, call: reading.Call
) -> tuple[torch.Tensor, Expected, Verdict] | None:
    """An output of a 16-bit case with the same values in float32, what it has to be, and the verdict; None where there
    is none."""
    if case.torch_dtype.itemsize != 2 or "float32" not in contract.dtypes:
        return None
    wide = replace(case, dtype="float32", drawn_as=case.drawn_as or case.id)
    got = (call(wide) or {}).get(output)
    if not isinstance(got, torch.Tensor):
        return None
    answer = contract.expected(contract.build(wide))[output]
    if answer is None or got.shape != answer.answer.shape:
        return None
    return got, answer, compare.compare(got, answer, torch.float32)


def _all_wrong_in_float32(contract: Contract, case: Case, output: str, mutants: Sequence[Planted]) -> bool:
    """Whether an output of all these mutants is wrong with the same values in float32."""
    wide = replace(case, dtype="float32", drawn_as=case.drawn_as or case.id)
    right = contract.expected(contract.build(wide))[output]
    return all(
        _is_wrong_in(contract, wide, output, (_given_by(mutant, contract, wide) or {}).get(output), right)
        for mutant in mutants
    )


def _short_alone(
    contract: Contract,
    case: Case,
    output: str,
    got: torch.Tensor,
    expected: Expected | None,
    verdict: Verdict,
    longer: Callable[[str], tuple[torch.Tensor, Expected] | None],
    call: reading.Call,
) -> str | None:
    """That sums in 16 bits are what is wrong, in words: an output is right with the same values in float32, and no
    further off than they explain. A mutant that gives it too is wrong there."""
    if expected is None or verdict.bad is None or exact(contract, case, output):
        return None
    wide = _in_float32(contract, case, output, call)
    if wide is None or not wide[2].ok:
        return None
    return short_sums(got, expected, case, verdict, partial(longer, output))


def short_sums(
    got: torch.Tensor,
    expected: Expected,
    case: Case,
    verdict: Verdict,
    longer: Callable[[], tuple[torch.Tensor, Expected] | None] = lambda: None,
) -> str | None:
    """Whether errors in 16 bits are no larger than sums kept in the inputs' dtype explain, and whether terms cancel at
    the worst element. Over the longest sums, `longer`, a single running sum is off by more than a few partial sums."""
    dtype = case.torch_dtype
    if dtype.itemsize != 2:
        return None
    answer = closest(got, expected, dtype)
    short = sum(budget.C * budget.EPS[dtype] * (terms + 8.0) ** 0.5 * condition for terms, condition in answer.parts)
    if not compare.compare(got, replace(answer, extra=answer.extra + short, drift=math.inf), dtype).ok:
        return None
    value, right, _ = aligned(got, answer, dtype)
    unit = torch.as_tensor(short).cpu().expand(value.shape) + budget.EPS[dtype] * right.abs()
    if _local((value - right) / unit):
        return None
    text = f"no further off than sums kept in {case.dtype} explain, where float32 is asked for"
    if all(bool((torch.as_tensor(terms) <= 1).all()) for terms, _ in answer.parts):  # there are no sums
        text = f"no further off than an intermediate, or a factor, rounded to {case.dtype} explains"
    elif (found := longer()) is not None:
        roundings = roundings_of(*found, dtype)
        if roundings <= SEVERAL:
            text = (
                f"no further off than a few partial sums, or an intermediate, stored in {case.dtype} explain: over the "
                f"longest sums a single running sum of all terms, rounded after each, would be off by more"
            )
            if dtype is torch.bfloat16:
                text += ", though not one in float16"
    size = sum(torch.as_tensor(condition) for _, condition in answer.parts)
    share = (
        torch.as_tensor(size).expand(got.shape)[verdict.worst] / answer.answer.expand(got.shape)[verdict.worst].abs()
    )
    if math.isfinite(share) and share > CANCELLING:
        text += f"; the worst element is what is left of terms {share.item():.3g} times its size, which cancel"
    return text


def _local(error: torch.Tensor) -> bool:
    """Whether errors, in units of what is expected of each, are of another size in some slices than in others, or in
    one element than in all others. A slice that has one error again and again, as of what is broadcast, tells none."""
    every = budget.finite(error).abs().flatten().sort(descending=True).values
    if every.numel() >= 16 and every[0] > SPIKE * every[1:].square().mean().sqrt():
        return True
    for axis in range(error.ndim):
        slices = budget.finite(error).movedim(axis, 0).reshape(error.shape[axis], -1)
        if len(slices) > 1 and slices.shape[1] >= 16:
            distinct = (slices.sort(1).values.diff(dim=1) != 0).sum(1) + 1
            sizes = slices.square().mean(1).sqrt()[(distinct >= 16) | ~slices.any(1)]
            if len(sizes) > 1 and sizes.min() * LOCAL < sizes.max():
                return True
    return False


def roundings_of(got: torch.Tensor, expected: Expected, dtype: torch.dtype) -> float:
    """How many independent roundings of the answer's usual size the errors amount to."""
    value, right, _ = aligned(got, closest(got, expected, dtype), dtype)
    both = torch.isfinite(value) & torch.isfinite(right)
    scale = right[both].square().mean() * budget.EPS[dtype] ** 2 / 12
    return ((value - right)[both].square().mean() / scale).item()


def filled(got: torch.Tensor, bad: torch.Tensor, patterns: Sequence[int] = probe.PATTERNS) -> int:
    """How many wrong elements hold a byte that fresh memory is filled with; 0 where they are too few to explain it."""
    memory = probe.raw(got.cpu()).reshape(-1, got.element_size())
    same = bad.cpu().reshape(-1) & torch.stack([(memory == byte).all(1) for byte in patterns]).any(0)
    return int(same.sum()) if int(same.sum()) >= EXPLAINS * int(bad.sum()) else 0


def unwritten(
    got: torch.Tensor, bad: torch.Tensor, patterns: Sequence[int] = probe.PATTERNS, sure: bool = False
) -> str | None:
    """Whether wrong elements hold the byte that fresh memory is filled with. In bfloat16 the first one is the NaN that
    torch's vectorised conversion makes of any other, so that it tells in another call alone. Unless that has made it
    `sure`, small numbers may have been added to the fill, which leave it as it is."""
    count, wrong = filled(got, bad, patterns), int(bad.sum())
    if not count:
        return None
    some = "they were" if count == wrong else f"{count} of them were"
    return f"{some} never written{'' if sure else ', or added to'}: the allocator's fill is still there"


def _case_constants(case: Case) -> dict[str, float]:
    """Factors that a kernel can lose or gain at these sizes and parameters, by name."""
    found: dict[str, float] = {}
    for name, size in case.size.items():
        if isinstance(size, int) and size > 1:
            found |= {name: size, f"1/{name}": 1 / size, f"sqrt({name})": size**0.5, f"1/sqrt({name})": size**-0.5}
            found |= {f"{name}/({name} - 1)": size / (size - 1), f"({name} - 1)/{name}": (size - 1) / size}
    for name, option in case.param.items():
        if isinstance(option, float) and option not in (0.0, 1.0):
            found |= {name: option, f"1/{name}": 1 / option}
            if option != 0.5:
                found |= {f"1 - {name}": 1 - option, f"1/(1 - {name})": 1 / (1 - option)}
                found |= {f"(1 - {name})/{name}": (1 - option) / option, f"{name}/(1 - {name})": option / (1 - option)}
    return found


def _fitted(value, answer, tolerance, bad, names: Mapping[str, float], unit: float) -> tuple[float, str] | None:
    """One factor or one difference for all wrong elements, or one for each row; where enough elements tell. With the
    share that it explains."""
    error = (value - answer).abs()
    told = bad & (error > 3 * tolerance) & (answer != 0)
    if not most((torch.minimum(value.abs(), answer.abs()) > tolerance)[told]):
        return None  # a factor to or from next to nothing tells nothing
    if int(told.sum()) >= 3 and answer[told].unique().numel() >= 3:
        ratio = (value[told] / answer[told]).median()
        near = tolerance * ratio.abs().clamp_min(1.0)
        if most((error > 3 * near)[told]) and (share := _fits(value, ratio * answer, near, bad)):
            shown = f"{ratio.item():.4g}" if abs(ratio.item() - 1) > NEAR_ONE else f"(1 {ratio.item() - 1:+.2g})"
            return share, f"{shown} x the answer{_name(ratio.item(), names, unit + 1e-4)}"
        difference = (value - answer)[told][tolerance[told].argmin()]
        if share := _fits(value, answer + difference, tolerance, bad):
            return share, f"the answer {difference.item():+.4g}{_name(difference.item(), names, 1e-3)}"
    if value.ndim > 1 and value.shape[-1] >= 4 and int(told.sum()) >= 8:
        safe = torch.where(told, value / answer, math.nan)
        ratios = safe.nanmedian(-1, keepdim=True).values.nan_to_num(nan=1.0)
        if share := _fits(value, ratios * answer, tolerance * ratios.abs().clamp_min(1.0), bad):
            low, high = (float(r) for r in ratios[told.any(-1, keepdim=True)].aminmax())
            return share, f"each row is a factor of its own times the answer, {low:.3g} to {high:.3g}"
        moves = torch.where(told, value - answer, math.nan).nanmedian(-1, keepdim=True).values.nan_to_num(nan=0.0)
        if share := _fits(value, answer + moves, tolerance, bad):
            low, high = (float(m) for m in moves[told.any(-1, keepdim=True)].aminmax())
            return share, f"each row is the answer plus a number of its own, {low:.3g} to {high:.3g}"
    return None


def _fits(value, model, tolerance, where) -> float:
    """The share of `where` at which a model explains the value; 0 where it is too little."""
    near = ((value - model).abs() <= tolerance)[where]
    return near.double().mean().item() if most(near) else 0.0


def _surplus(value, answer, tolerance, bad, axes: Sequence[str]) -> tuple[float, str] | None:
    """The share of the wrong elements by which what is too much is another slice of the answer, or of what is given
    there: a sum that goes on from another one's, or into its place."""
    excess = torch.where(torch.isfinite(value) & torch.isfinite(answer), value - answer, math.nan)
    for there, whose, so in (
        (answer, ANOTHER, "added in the wrong place"),
        (value, "the result of another ", "it goes on from there"),
    ):
        if found := _elsewhere(excess, there, tolerance, bad, axes, own=True):
            share, text = found
            return share, f"too much, by {whose}{text.removeprefix(ANOTHER)} ({so})"
    return None


def _elsewhere(value, answer, tolerance, bad, axes: Sequence[str], own: bool = False) -> tuple[float, str] | None:
    """The share of the wrong elements that are those of another slice of the answer along an axis, and which. With
    `own` the tolerance of a wrong element counts too, and what is next to nothing tells nothing."""
    for axis in range(value.ndim):
        slices = [x.movedim(axis, 0).reshape(value.shape[axis], -1) for x in (value, answer, tolerance, bad)]
        here, right, near, wrong = slices
        places = wrong.any(1).nonzero().flatten().tolist()
        few = len(places) <= ROWS or len(places) * value.numel() <= COMPARED
        if value.shape[axis] < 2 or not places or not few or here.shape[1] < 2:
            continue
        explained, telling, sources, matches = 0, 0, {}, {}
        left, total = int(wrong.sum()), int(wrong.sum())  # that may be explained yet
        for place in places:
            where = wrong[place]
            within = near[:, where] + near[place, where] if own else near[:, where]
            close = (here[place, where] - right[:, where]).abs() <= within
            other = (right[:, where] - (0.0 if own else right[place, where])).abs() > 2 * within
            match = (close if own else other & close).sum(1)
            match[place] = 0
            sources[place] = source = int(match.argmax())
            matches[place] = match if int(where.sum()) > 1 else torch.zeros_like(match)
            explained += int(matches[place][source])
            left -= int(where.sum()) - int(matches[place][source])
            if left / total < EXPLAINS:
                break
            telling += int((other & close)[source].sum())
        share = explained / total
        if left / total < EXPLAINS or telling < TELLING * explained:
            continue
        by, _ = Counter(there - here for here, there in sources.items()).most_common(1)[0]
        at_one = {here: here + by for here in places if 0 <= here + by < len(right)}
        evenly = sum(int(matches[here][there]) for here, there in at_one.items()) / total
        if len(at_one) == len(places) and evenly >= EXPLAINS:
            share, sources = evenly, at_one
        regular = len(set(sources.values())) == 1 or len({there - here for here, there in sources.items()}) == 1
        if not regular and int(wrong.sum(1)[places].min()) < OF_A_SLICE:
            continue  # among so many places a few numbers are found by chance
        if share >= EXPLAINS:
            return share, f"{ANOTHER}{axes[axis]}: {_sources(sources)}"
    return None


def _apart_otherwise(value, answer, tolerance, bad, axes: Sequence[str]) -> tuple[float, str] | None:
    """The share of the wrong elements by which slices lie closer together, or further apart, than an output's do: of
    those that are written then."""
    if value.numel() > PITCHED:
        return None
    flat, right, near, wrong = (x.expand(value.shape).reshape(-1) for x in (value, answer, tolerance, bad))
    place = torch.arange(value.numel())
    for axis in range(1, value.ndim):
        count, length = math.prod(value.shape[:axis]), math.prod(value.shape[axis:])
        if count < 2 or not 1 < length <= PITCH:
            continue
        for pitch in [n for n in range(1, 2 * length) if n != length]:
            row = (place // pitch).clamp_max(count - 1)  # the last that has it: later slices lie over others
            within = place - row * pitch
            told = wrong & (within < length)
            other = right[row * length + within.clamp_max(length - 1)]
            same = ((flat - other).abs() <= near) | (flat == other)
            if not most(same[told]):
                continue
            telling = told & (((other - right).abs() > 2 * near) | (other.isfinite() != right.isfinite()))
            if int(telling.sum()) < SHIFTED or len(flat[telling].unique()) < ORDERED:
                continue
            share = same[told].double().mean().item()
            return share, f"{PITCH_OF}{axes[axis - 1]} were {pitch} elements from the next, not {length}"
    return None


def _sources(sources: Mapping[int, int]) -> str:
    """Which slice holds the answer of which, in words."""
    if len(set(sources.values())) == 1:
        return f"that of {next(iter(sources.values()))}"
    apart = {there - here for here, there in sources.items()}
    if len(apart) == 1:
        by = apart.pop()
        return f"that of {abs(by)} {'before' if by < 0 else 'after'}"
    shown = [f"{here} holds that of {there}" for here, there in sources.items()]
    return ", ".join(shown[:4]) + (", ..." if len(shown) > 4 else "")


def explains(other: Expected, got: torch.Tensor, bad: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the wrong elements of an output are those of another answer."""
    if other.answer.shape != got.shape:
        return False
    off = compare.compare(got, replace(other, drift=math.inf), dtype).bad
    return off is None or most(~off[bad.cpu()])


def _name(number: float, names: Mapping[str, float], tolerance: float) -> str:
    near = {name: abs(number - constant) / abs(constant) for name, constant in names.items()}
    close = [name for name, off in sorted(near.items(), key=lambda item: item[1]) if off <= tolerance]
    return f" ({close[0]})" if close else ""


def _moved(value, answer, tolerance, axes: Sequence[str]) -> str | None:
    """The answer's elements at other places."""

    def same(a, b, near) -> bool:
        return bool(((a == b) | ((a - b).abs() <= near) | (torch.isnan(a) & torch.isnan(b))).all())

    def tells(move) -> bool:
        return not same(move(answer), answer, tolerance) and same(value, move(answer), move(tolerance))

    if same(value, answer, tolerance):
        return None
    shape = value.shape
    for first, second in [(-2, -1), *((a, a + 1) for a in range(value.ndim - 2))] if value.ndim > 1 else []:
        if tells(lambda x, a=first, b=second: x.transpose(a, b).reshape(shape)):
            return f"the answer with {axes[first]} and {axes[second]} swapped in memory"
    for axis in range(value.ndim):
        size = shape[axis]
        if size < 3:
            continue
        for by in (1, -1):
            to, source = (1, 0) if by == 1 else (0, 1)
            near, moved = (x.narrow(axis, source, size - 1) for x in (tolerance, answer))
            here, unmoved = (x.narrow(axis, to, size - 1) for x in (value, answer))
            if same(here, moved, near) and not same(unmoved, moved, near):
                return f"the answer moved by {by:+d} along {axes[axis]}"
        if size % 2 == 0 and tells(lambda x, a=axis: x.unflatten(a, (-1, 2)).flip(a + 1).flatten(a, a + 1)):
            return f"the answer with each two neighbours along {axes[axis]} swapped"
        if size % 2 == 0 and tells(lambda x, a=axis: x.roll(x.shape[a] // 2, a)):
            return f"the answer with both halves along {axes[axis]} swapped"
        if tells(lambda x, a=axis: x.flip(a)):
            return f"the answer reversed along {axes[axis]}"
    if value.numel() > 3 and bool(torch.isfinite(value).all() & torch.isfinite(answer).all()):
        order, there = answer.reshape(-1).sort(), value.reshape(-1).sort()
        near = tolerance.reshape(-1)[order.indices]
        apart = order.values.diff()
        told = bool((apart > 0).any()) and apart[apart > 0].median() > near.median()
        elsewhere = answer[((value - answer).abs() > tolerance) & (answer != 0)]
        told = told and len(elsewhere.unique()) >= ORDERED  # of fewer one for another is no order
        if told and same(there.values, order.values, near):  # else any draw of so many has such values
            return "the answer's values in another order"
    return None


def owner(executor: Executor, contract: Contract, case: Case, output: str, index: Sequence[int]) -> str | None:
    """Who wrote one element of an output ("program (3, 0, 0), line 57 of softmax.py"); None where no target knows.

    Calls the kernel again. A kernel that fails, or returns something else this time, has no owner to name.
    """
    inputs = contract.build(case, executor.device)
    seen = executor.call(inputs.arguments, Manner(element=(output, tuple(index))), inputs.placed)
    return seen.writer
