"""What the cases in which a kernel fails have in common, and those in which it is right have not: the sizes beyond
which it is wrong, a dtype, a layout, a parameter, a family of values."""

import itertools
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from touchstone.backends import overflow
from touchstone.conformance.discovery import registry
from touchstone.conformance.judging import diagnosis, slices
from touchstone.conformance.judging.judgement import PASSED, Finding, Outcome
from touchstone.conformance.judging.trials import Kind, Trial
from touchstone.conformance.reporting import lesser, traits
from touchstone.conformance.reporting.groups import MUTANT, grouped, names_a_cause
from touchstone.conformance.reporting.intervention import SECONDS, Intervention
from touchstone.conformance.reporting.traits import FAILING, Trait
from touchstone.conformance.spec.checks import Check, Requirement
from touchstone.conformance.spec.contract import Case

PASSING = 4  # fewest cases that pass of which something is said
CHANCE = 0.05  # that cases have one of some relations of sizes in common without a reason, at most
CHANCE_OF_ANY = 0.015  # the same of any of the other things looked at
SHARE, SHARE_OF_SIZES = 0.5, 0.15  # of the cases that pass, which may have it too; and a bound of sizes
NAMED = 3  # most things that are named
EQUALS, OR = re.compile(r"^(?P<begin>equals the reference, but )(?P<mutants>.*)$", re.MULTILINE), "; or "
KEPT = re.compile(
    r"is kept (?:from one call to the next|by the address|from the first call)|the answer of an earlier call"
)
STEPPED = re.compile(r"\bright with (\w+) \d+(?: and \d+)*, wrong with \1 \d")  # by further calls, in one size
SURE = (overflow.WRAPS, overflow.OF_ACCESS)  # of causes that were seen
ENDINGS = (
    "given",
    "not given",
    "not contiguous",
    traits.ODD_OFFSET,
    traits.LAST_STRIDE,
)  # of words of which one or another may do
SEVERAL = (2, 3)  # so many
UNTRIED = Intervention()
ORDERS = 4  # that are looked at of two sizes of a like kind: the one the greater or not, and the other

Call = Callable[[Case], Outcome | None]  # what comes of a call on a case; None: it is not made


@dataclass(frozen=True)
class Shared:
    """What failing cases have, in words, and the passing cases that have it too and that have not."""

    text: str
    within: Sequence[Case]
    without: Sequence[Case]
    of: str  # the size that it is about, if any

    def needed(self, wrong: Sequence[Case], found: Sequence[Trait], among: int) -> list[Trait]:
        """The traits that some passing cases have without it, so many that this, too, is no chance: one of `among` such
        things would do where few have."""
        return [trait for trait in found if among <= CHANCE * self._choices(wrong, trait)]

    def _choices(self, wrong: Sequence[Case], trait: Trait) -> int:
        """How many choices of so many failing cases there are, of all that have a trait: with a size, of sizes."""
        having = [case for case in self.without if trait.has(case)]
        if self.of:
            measures = {traits.measure_of(case, self.of) for case in wrong}
            return math.comb(len(measures | {traits.measure_of(case, self.of) for case in having}), len(measures))
        return math.comb(len(wrong) + len(having), len(wrong))


def note(judged: Iterable[tuple[Trial, Outcome]], call: Call | None = None) -> None:
    """Add to the first finding of each root cause what the cases of all of them have in common, where there is
    anything. `call` judges the kernel on another case: what it refutes is not said."""
    judged, end = list(judged), time.monotonic() + SECONDS
    call = None if call is None else cache(call)
    _book_kept([finding for _, outcome in judged for finding in outcome.findings if finding.fails()])
    cases = [(trial.case, outcome) for trial, outcome in judged if trial.kind is Kind.CASE]
    right = [case for case, outcome in cases if outcome.status == PASSED]
    case_of = {id(finding): case for case, outcome in cases for finding in outcome.findings if finding.fails()}
    failures = [f for _, outcome in cases for f in outcome.findings if id(f) in case_of]
    _drop_refuted(failures)
    for finding in failures:
        _drop_spoiling(finding, case_of[id(finding)], right)
        _drop_statistics(finding, case_of[id(finding)], right)
    _drop_idle([finding for finding in failures if finding.check == Check.VALUES], case_of)
    lesser.drop(failures)
    known = any(map(lesser.is_sure, failures))
    for group in grouped(failures):
        said = "\n".join(f"{finding.message}\n{finding.diagnosis}" for finding in group.findings)
        if any(sure in said for sure in SURE):
            continue
        wrong = list(dict.fromkeys(case_of[id(finding)] for finding in group.findings))
        named = MUTANT.search(group.example.diagnosis or "") is not None and lesser.is_sure(group.example)
        untold = set(STEPPED.findall(group.example.diagnosis or ""))  # of which single steps say more
        if named or (known and not lesser.is_sure(group.example)):
            untold = {*traits.numbers_of(wrong[0]), *traits.counts_of(wrong[0])}  # nor does the cause lie in sizes
        tried = Intervention(partial(_fails_so, call, group.example), end) if call else Intervention()
        if text := in_common(
            wrong, right, relations=not named, far=_far(group.findings, wrong), without=untold, tried=tried
        ):
            group.example.diagnosis = "\n".join(filter(None, [group.example.diagnosis, text]))


def _fails_so(call: Call, finding: Finding, case: Case) -> bool | None:
    """Whether a kernel fails on another case as it does in a finding; None where it is not judged there."""
    outcome = call(case)
    if outcome is None or not outcome.judged:
        return None
    return any(f.fails() and (f.check, f.about) == (finding.check, finding.about) for f in outcome.findings)


def _far(findings: Sequence[Finding], wrong: Sequence[Case]) -> Collection[str]:
    """The sizes of which a value far beyond all that pass tells of these findings. Cases of one size have others that
    are far beyond as well, and wrong values may come of any of them: those tell of which the findings say that it is
    wrong from a place on, and the largest of a case that is there for its many rows."""
    names = list(traits.numbers_of(wrong[0]))
    if any(finding.check != Check.VALUES for finding in findings) or len({case.sizes for case in wrong}) > 1:
        return names
    sizes = traits.sizes_of(wrong[0])
    beyond_grid = registry.contract(wrong[0].op).is_beyond_grid(wrong[0])
    return [
        name
        for name in names
        if (beyond_grid and sizes.get(name) == max(sizes.values()))
        or all(_is_wrong_from(finding, name) for finding in findings)
    ]


def _is_wrong_from(finding: Finding, axis: str) -> bool:
    """Whether the wrong place of a finding is what is beyond an index of that axis."""
    place = rf"^{re.escape(finding.about or '')}: wrong: [^;\n]*\b{re.escape(axis)} from \d"
    return re.search(place, finding.diagnosis or "", re.MULTILINE) is not None


def _drop_refuted(failures: Sequence[Finding]) -> None:
    """Of several mutants that a finding names leave those that another one of the same output names too, where that
    names fewer: the others do not give what the kernel gives there."""
    named = {id(finding): set(MUTANT.findall(finding.diagnosis or "")) for finding in failures}
    for finding in failures:
        mine = named[id(finding)]
        fewer = [named[id(other)] for other in failures if other.about == finding.about]
        least = min((some for some in fewer if set() < some < mine), key=len, default=mine)
        if least < mine and finding.diagnosis:
            finding.diagnosis = EQUALS.sub(partial(_of_these, least), finding.diagnosis)


def _drop_spoiling(finding: Finding, case: Case, right: Sequence[Case]) -> None:
    """Of several mutants that a finding names leave those that spoil nothing that passed, if there are any: few cases
    had when it was found."""
    named = set(MUTANT.findall(finding.diagnosis or ""))
    if len(named) < 2 or finding.about is None or finding.diagnosis is None:
        return
    contract = registry.contract(case.op)
    left = {name for name in named if not diagnosis.spoils_what_passed(contract, name, case, finding.about, right)}
    if left and left < named:
        finding.diagnosis = EQUALS.sub(partial(_of_these, left), finding.diagnosis)


def _drop_statistics(finding: Finding, case: Case, right: Sequence[Case]) -> None:
    """Of what a finding tells leave out by which numbers an output is wrong where these are right in cases that pass:
    few had when it was found, and larger errors come with larger numbers from whatever cause."""
    if finding.diagnosis is None or "wrong where " not in finding.diagnosis:
        return
    contract = registry.contract(case.op)
    lines = [line.split("; ") for line in finding.diagnosis.splitlines()]
    left = [[part for part in parts if not slices.is_refuted(part, contract, case, right)] for parts in lines]
    finding.diagnosis = "\n".join("; ".join(parts) for parts in left)


def _drop_idle(failures: Sequence[Finding], case_of: Mapping[int, Case]) -> None:
    """Of several mutants that a finding names leave those that are wrong in as many cases as any of them, of a few in
    which the kernel is wrong: who fills lanes with 0 errs in minima, too, who begins a maximum at 0 does not."""
    for finding in failures:
        named = sorted(set(MUTANT.findall(finding.diagnosis or "")))
        if len(named) < 2 or finding.about is None or finding.diagnosis is None:
            continue
        cases = [case_of[id(other)] for other in failures if other.about == finding.about]
        contract = registry.contract(cases[0].op)
        wrong = {name: diagnosis.wrong_cases(contract, name, finding.about, cases) for name in named}
        left = {name for name, count in wrong.items() if count == max(wrong.values())}
        if len(left) < len(named):
            finding.diagnosis = EQUALS.sub(partial(_of_these, left), finding.diagnosis)


def _book_kept(failures: Sequence[Finding]) -> None:
    """Hold against determinism wrong values of an output of which every cause that was found says that something is
    kept from earlier calls: for most failures none is looked for."""
    values = [finding for finding in failures if finding.check == Check.VALUES]
    for about in {finding.about for finding in values}:
        findings = [finding for finding in values if finding.about == about]
        told = [finding.diagnosis or "" for finding in findings if names_a_cause(finding)]
        if told and all(KEPT.search(text) for text in told):
            for finding in findings:
                finding.requirement = Requirement.DETERMINISM


def _of_these(mutants: set[str], line: re.Match[str]) -> str:
    """What a line says of some mutants."""
    said = [text for text in line["mutants"].split(OR) if mutants & set(MUTANT.findall(text))]
    return line["begin"] + OR.join(said)


def in_common(
    wrong: Sequence[Case],
    right: Sequence[Case],
    relations: bool = True,
    far: Collection[str] | None = None,
    without: Collection[str] = (),
    tried: Intervention = UNTRIED,
) -> str | None:
    """What all of the cases `wrong` have and none of those `right`, else none of those that have one other thing in
    common with them, else what few of them have; None: nothing, or it could well be chance. `relations` of sizes are
    often chance, and are left out where the cause is known. A value far beyond all that pass tells by itself of the
    sizes `far` alone; None: of any. Nothing is said of the sizes `without`, nor what is refuted where it is `tried`."""
    if all(case.filled for case in wrong):
        right = [case for case in right if case.filled]  # where nothing can be wrong
    if not wrong or len(right) < PASSING:
        return None
    every = f"all {len(wrong)} cases that fail so" if len(wrong) > 1 else "the one case that fails so"
    telling = partial(_telling, wrong, relations=relations, without=without)
    found = telling(right, far=far)

    def refuted(trait: Trait) -> bool:
        return tried.refutes(trait, wrong, right)

    if alone := _alone(found, refuted):
        return f"{every}, and none of {len(right)} that pass: {alone}"
    shared = [one for one in _shared(wrong, right) if one.of not in without]
    for one in shared:
        if alone := _alone(one.needed(wrong, telling(one.within, among=len(shared)), len(shared)), refuted):
            return f"{every} have {one.text}, and none of {len(one.within)} with it that pass: {alone}"
    if either := _alone(_either(wrong, right), refuted):
        return f"{every}, and none of {len(right)} that pass: {either}"
    for one in shared:
        if either := _alone(one.needed(wrong, _either(wrong, one.within, len(shared)), len(shared)), refuted):
            return f"{every} have {one.text}, and none of {len(one.within)} with it that pass: {either}"
    few = (trait for trait in found if trait.passing <= _share(trait) * len(right))
    if held := next(itertools.filterfalse(refuted, few), None):
        return f"{every}, but only {held.passing} of {len(right)} that pass: {held.text}"
    return None


def _alone(found: Sequence[Trait], refuted: Callable[[Trait], bool]) -> str:
    """The traits of no passing case that are not refuted, in words; empty: none. Of two sizes of which the one is the
    greater, not by how much."""
    alone = [trait for trait in found if not trait.passing]
    plainer = {
        f"{one} - {other}" for trait in alone if trait.order for one, other in itertools.permutations(trait.order)
    }
    left = itertools.filterfalse(refuted, (trait for trait in alone if trait.of not in plainer))
    return ", ".join(trait.text for trait in itertools.islice(left, NAMED))


def _share(trait: Trait) -> float:
    return SHARE if trait.sizes is None else SHARE_OF_SIZES


def _shared(wrong: Sequence[Case], right: Sequence[Case]) -> list[Shared]:
    """What all of several failing cases have and some of those that pass, but not all: what they have apart from sizes,
    and that there is more than one of something. Of what the same cases have, one."""
    if len(wrong) < FAILING:
        return []
    has = [("", text, partial(traits.says, text)) for text in traits.had_by_all(wrong)]
    has += [(name, f"{name} from 2 on", partial(traits.has_several, name)) for name in traits.counts_of(wrong[0])]
    found: dict[tuple[bool, ...], Shared] = {}
    for of, text, is_so in has:
        which = tuple(is_so(case) for case in right)
        if PASSING <= sum(which) < len(right) and all(is_so(case) for case in wrong):
            within, without = (
                [case for case, so in zip(right, which, strict=True) if so is kind] for kind in (True, False)
            )
            found.setdefault(which, Shared(text, within, without, of))
    return list(found.values())


def _either(wrong: Sequence[Case], right: Sequence[Case], among: int = 1) -> list[Trait]:
    """Words of one sort of which all of the cases `wrong` have one or another, and none of those `right` any: two
    words, or more where no two do. Nothing where it could be others as well, or chance."""
    have, also = [set(traits.words_of(case)) for case in wrong], [set(traits.words_of(case)) for case in right]
    sorts = _sorts([*wrong, *right])
    combinations = sum(math.comb(len(texts), count) for texts in sorts.values() for count in SEVERAL)
    choices = math.comb(len(wrong) + len(right), len(wrong)) / among
    if len(wrong) < FAILING or combinations + traits.looked_at(wrong[0]) > CHANCE_OF_ANY * choices:
        return []
    for count in SEVERAL:
        found = [
            (ending, texts, len(every) - count + 1)
            for ending, every in sorts.items()
            for texts in itertools.combinations([text for text in every if not any(text in a for a in also)], count)
            if all(words & set(texts) for words in have)
        ]
        if found:
            ending, texts, others = found[0]
            is_all = len(found) == 1 and all(_adds(text, texts, have, len(right), others) for text in texts)
            return [_any_of(texts, ending)] if is_all else []
    return []


def _sorts(cases: Sequence[Case]) -> dict[str, list[str]]:
    """The words that some of the cases have, and not all, by their ending, or by the parameter of which they are."""
    words = [set(traits.words_of(case)) for case in cases]
    sorts = {ending: [f"{name} {ending}" for name, _ in cases[0].layouts] for ending in ENDINGS}
    for name, _ in cases[0].params:
        sorts[f"{name}="] = sorted({text for some in words for text in some if text.startswith(f"{name}=")})
    found = {
        ending: [text for text in texts if 0 < sum(text in some for some in words) < len(words)]
        for ending, texts in sorts.items()
    }
    plain = {tuple(f"{name} {ENDINGS[2]}" in some for some in words) for name, _ in cases[0].layouts}
    strided = found[traits.LAST_STRIDE]  # where that is all that is not contiguous it is no sort of its own
    found[traits.LAST_STRIDE] = [text for text in strided if tuple(text in some for some in words) not in plain]
    return found


def _adds(text: str, texts: Sequence[str], have: Sequence[set[str]], right: int, others: int) -> bool:
    """Whether one of some words is there for failing cases that `have` none of the others, so many that it is no chance
    that none of those that pass, `right`, has it, where it is one of so many `others`."""
    needing = sum(not words & (set(texts) - {text}) for words in have)
    return others <= CHANCE_OF_ANY * math.comb(needing + right, needing)


def _any_of(texts: Sequence[str], ending: str) -> Trait:
    *names, last = (text.removesuffix(f" {ending}").removeprefix(ending) for text in texts)
    either = f"{', '.join(names)} or {last}"
    text = f"{ending}{either}" if ending.endswith("=") else f"{either} {ending}"
    return Trait(text, 0, partial(_has_any, frozenset(texts)))


def _has_any(texts: Collection[str], case: Case) -> bool:
    return any(text in texts for text in traits.words_of(case))


def _telling(
    wrong: Sequence[Case],
    right: Sequence[Case],
    relations: bool,
    among: int | None = None,
    far: Collection[str] | None = None,
    without: Collection[str] = (),
) -> list[Trait]:
    """What all of the cases `wrong` have and few of those `right`, by how many these are. Of one of `among` such
    comparisons, each with some of the passing cases, it could well be chance: there a size far beyond the others tells
    nothing by itself, nor do cases of one size more than one. Elsewhere it is one of the sizes `far`; None: any.
    Nothing is told of the sizes `without`."""
    choices = math.comb(len(wrong) + len(right), len(wrong)) / (among or 1)

    def tells(trait: Trait) -> bool:
        sizes, known = ({traits.measure_of(case, trait.of) for case in some} for some in (wrong, right))
        of_sizes = math.comb(len(sizes | known), len(sizes)) / (among or 1)  # cases of one size are one
        fewest = min(choices, of_sizes)
        if trait.order:
            orders = ORDERS * len(traits.pairs_alike(wrong[0]))
            return len(wrong) >= FAILING and orders <= CHANCE * fewest
        if trait.relation:  # of sizes, which are rarely equal: how many other choices of so many cases there are
            pairs = math.comb(len(traits.sizes_of(wrong[0])), 2)
            return 3 * pairs <= CHANCE * (choices if among is None else fewest)  # equal, or either twice the other
        if trait.far and among is None:
            return far is None or trait.of in far
        if trait.among and not trait.passing:
            return not sizes & known and trait.among <= CHANCE * of_sizes
        if trait.passing:  # one of many traits that are looked at is easily shared by so many
            having = len(wrong) + trait.passing
            chance = math.comb(having, len(wrong)) / choices
            if trait.sizes is not None:
                chance = max(chance, math.comb(trait.sizes, len(sizes)) / of_sizes)
            if trait.among:  # of a bound at which kernels do not change
                return trait.sizes is not None and not sizes & known and trait.among * chance <= CHANCE_OF_ANY
        else:
            chance = 1 / (choices if among is None or trait.sizes is None else fewest)
        return len(wrong) >= FAILING and chance * traits.looked_at(wrong[0]) <= CHANCE_OF_ANY

    every = [trait for trait in traits.traits_of(wrong, right) if trait.of not in without]
    found = [trait for trait in every if (relations or not trait.relation) and tells(trait)]
    return sorted(found, key=lambda trait: (bool(trait.among and trait.passing), trait.passing))
