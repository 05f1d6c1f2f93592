"""What the cases in which a kernel fails have in common, and those in which it is right have not: the sizes beyond
which it is wrong, a dtype, a layout, a parameter, a family of values."""

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from touchstone.conformance.judging.judgement import PASSED, Finding, Outcome
from touchstone.conformance.judging.trials import Kind, Trial
from touchstone.conformance.reporting.groups import MUTANT, grouped, names_a_cause
from touchstone.conformance.spec.checks import Check, Requirement
from touchstone.conformance.spec.contract import Case, From

FAILING, PASSING = 2, 4  # fewest cases of which something is said
FAR = 4  # times all sizes that pass: one case tells
CHANCE = 0.05  # that cases have one of some relations of sizes in common without a reason, at most
CHANCE_OF_ANY = 0.015  # the same of any of the other things looked at
SHARE, SHARE_OF_SIZES = 0.5, 0.15  # of the cases that pass, which may have it too; and a bound of sizes
NAMED = 3  # most things that are named
MULTIPLES = (8, 16, 32, 64, 128)
TILES = (8, 16, 32, 64, 128, 256, 512, 1024)
EQUALS, OR = re.compile(r"^(?P<begin>equals the reference, but )(?P<mutants>.*)$", re.MULTILINE), "; or "
KEPT = re.compile(
    r"is kept (?:from one call to the next|by the address|from the first call)|the answer of an earlier call"
)
HALF = "a dtype of 16 bits"
USUAL = [2**k for k in range(3, 24)]  # sizes at which kernels change; and from one to several


@dataclass(frozen=True)
class Trait:
    """Something that a case can have: in words, and as many of the passing cases as have it too."""

    text: str
    passing: int
    far: bool = False  # a size far beyond all of those that pass, of which one case tells
    relation: bool = False  # of two sizes
    among: int = 0  # of sizes alone, and of so many like it
    sizes: int | None = None  # of which a bound is true


def note(judged: Iterable[tuple[Trial, Outcome]]) -> None:
    """Add to the first finding of each root cause what the cases of all of them have in common, where there is
    anything."""
    judged = list(judged)
    _book_kept([finding for _, outcome in judged for finding in outcome.findings if finding.fails()])
    cases = [(trial.case, outcome) for trial, outcome in judged if trial.kind is Kind.CASE]
    right = [case for case, outcome in cases if outcome.status == PASSED]
    case_of = {id(finding): case for case, outcome in cases for finding in outcome.findings if finding.fails()}
    failures = [f for _, outcome in cases for f in outcome.findings if id(f) in case_of]
    _drop_refuted(failures)
    for group in grouped(failures):
        wrong = list(dict.fromkeys(case_of[id(finding)] for finding in group.findings))
        named = MUTANT.search(group.example.diagnosis or "") is not None
        if text := in_common(wrong, right, relations=not named):
            group.example.diagnosis = "\n".join(filter(None, [group.example.diagnosis, text]))


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


def in_common(wrong: Sequence[Case], right: Sequence[Case], relations: bool = True) -> str | None:
    """What all of the cases `wrong` have and none of those `right`, else none of those that have one other thing in
    common with them, else what few of them have; None: nothing, or it could well be chance. `relations` of sizes are
    often chance, and are left out where the cause is known."""
    if all(case.filled for case in wrong):
        right = [case for case in right if case.filled]  # where nothing can be wrong
    if not wrong or len(right) < PASSING:
        return None
    every = f"all {len(wrong)} cases that fail so" if len(wrong) > 1 else "the one case that fails so"
    found = _telling(wrong, right, relations)
    if alone := _alone(found):
        return f"{every}, and none of {len(right)} that pass: {alone}"
    shared = _shared(wrong, right)
    for word, within in shared:
        if alone := _alone(_telling(wrong, within, relations, among=len(shared))):
            return f"{every} have {word}, and none of {len(within)} with it that pass: {alone}"
    few = [one for one in found if one.passing <= (SHARE if one.sizes is None else SHARE_OF_SIZES) * len(right)]
    if few:
        return f"{every}, but only {few[0].passing} of {len(right)} that pass: {few[0].text}"
    return None


def _alone(found: Sequence[Trait]) -> str:
    """The traits of no passing case, in words; empty: none."""
    return ", ".join([trait.text for trait in found if not trait.passing][:NAMED])


def _shared(wrong: Sequence[Case], right: Sequence[Case]) -> list[tuple[str, list[Case]]]:
    """What all of several failing cases have, in words, and the passing cases that have it too, some but not all."""
    if len(wrong) < FAILING:
        return []
    words = _common(wrong)
    within = [(text, [case for case in right if text in _words(case)]) for text in words]
    return [(text, cases) for text, cases in within if PASSING <= len(cases) < len(right)]


def _common(cases: Sequence[Case]) -> list[str]:
    """What all cases have, in words."""
    words = [text for text in _words(cases[0]) if all(text in _words(case) for case in cases[1:])]
    return [text for text in words if text != HALF or f"dtype {cases[0].dtype}" not in words]


def _telling(wrong: Sequence[Case], right: Sequence[Case], relations: bool, among: int | None = None) -> list[Trait]:
    """What all of the cases `wrong` have and few of those `right`, by how many these are. Of one of `among` such
    comparisons, each with some of the passing cases, it could well be chance: there a size far beyond the others tells
    nothing by itself, nor do cases of one size more than one."""
    sizes, known = ({case.sizes for case in some} for some in (wrong, right))
    choices = math.comb(len(wrong) + len(right), len(wrong)) / (among or 1)
    of_sizes = math.comb(len(sizes | known), len(sizes)) / (among or 1)  # cases of one size are one

    def tells(trait: Trait) -> bool:
        if trait.relation:  # of sizes, which are rarely equal: how many other choices of so many cases there are
            pairs = math.comb(len(_sizes(wrong[0])), 2)
            return 3 * pairs <= CHANCE * choices  # equal, or either twice the other
        if trait.far and among is None:
            return True
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
            chance = 1 / (choices if among is None or trait.sizes is None else min(choices, of_sizes))
        return len(wrong) >= FAILING and chance * _looked_at(wrong[0]) <= CHANCE_OF_ANY

    found = [trait for trait in _traits(wrong, right) if (relations or not trait.relation) and tells(trait)]
    return sorted(found, key=lambda trait: (bool(trait.among and trait.passing), trait.passing))


def _traits(wrong: Sequence[Case], right: Sequence[Case]) -> Iterable[Trait]:
    also = [set(_words(case)) for case in right]
    for text in _common(wrong):
        yield Trait(text, sum(text in words for words in also))
    yield from _relations(wrong, right)
    sizes, known = [_numbers(case) for case in wrong], [_numbers(case) for case in right]
    bounds = 2 * len(sizes[0])
    for name in sizes[0]:
        if not all(name in size for size in [*sizes, *known]):
            continue
        least, most = min(size[name] for size in sizes), max(size[name] for size in sizes)
        beyond = [size[name] for size in known if size[name] >= least]
        below = [size[name] for size in known if size[name] <= most]
        largest, smallest = (f(size[name] for size in known) for f in (max, min))
        every = list(zip([*wrong, *right], [*sizes, *known], strict=True))
        if len(beyond) < len(known):
            count = len({case.sizes for case, size in every if size[name] >= least})
            up_to = "" if beyond else f" (right up to {largest})"
            usual = least == 2 or any((largest if not beyond else least - 1) <= tile <= least for tile in USUAL)
            usual = usual or (not beyond and (largest == 2 or largest <= 0 < least))
            far = least >= FAR * largest > 0
            text = f"{name} from {least} on{up_to}"
            yield Trait(text, len(beyond), far, among=0 if usual else bounds, sizes=count)
        if len(below) < len(known):
            count = len({case.sizes for case, size in every if size[name] <= most})
            from_on = "" if below else f" (right from {smallest} on)"
            usual = (
                most == 1
                or (not below and most < 0 <= smallest)
                or any(most <= tile <= (smallest if not below else most + 1) for tile in USUAL)
            )
            yield Trait(f"{name} up to {most}{from_on}", len(below), among=0 if usual else bounds, sizes=count)
        odd = [d for d in MULTIPLES if all(size[name] % d for size in sizes)]
        alone = [d for d in odd if not any(size[name] % d for size in known)]
        if alone:
            among = f" (or of {alone[-1]})" if len(alone) > 1 else ""
            yield Trait(f"{name} no multiple of {alone[0]}{among}", 0, among=len(MULTIPLES) * len(sizes[0]))
        yield from _of_tiles(name, [size[name] for size in sizes], [size[name] for size in known], len(sizes[0]))
    yield from _quotients(sizes, known)


def _of_tiles(name: str, wrong: Sequence[int], right: Sequence[int], count: int) -> Iterable[Trait]:
    """What a size has to do with tiles, one of `count`: the powers of two, whole tiles, what is left beyond one."""
    if all(n & (n - 1) for n in wrong) and not any(n & (n - 1) for n in right):
        yield Trait(f"{name} no power of two", 0, among=count)
    whole = [tile for tile in MULTIPLES if not any(n % tile for n in wrong) and all(n % tile for n in right)]
    if whole and min(wrong) > 0:
        yield Trait(f"{name} a multiple of {whole[-1]}", 0, among=len(MULTIPLES) * count)
    beyond = [
        tile
        for tile in TILES
        if all(n > tile and n % tile for n in wrong)
        and not any(n > tile and n % tile for n in right)
        and any(n > tile for n in right)
        and any(n % tile for n in right)  # else it is one of both
    ]
    if beyond:
        among = f" (or {beyond[-1]})" if len(beyond) > 1 else ""
        yield Trait(f"{name} beyond {beyond[0]}{among} and no multiple of it", 0, among=len(TILES) * count)


def _quotients(wrong: Sequence[dict[str, int]], right: Sequence[dict[str, int]]) -> Iterable[Trait]:
    """Two sizes of which the one goes into the other, in all cases, an odd number of times in those of the one kind."""
    every = [*wrong, *right]
    names = [name for name in wrong[0] if all(size.get(name, 0) > 0 for size in every)]
    for one, other in itertools.permutations(names, 2):
        if any(size[one] % size[other] for size in every):
            continue
        odd, even = ([size[one] // size[other] % 2 for size in some] for some in (wrong, right))
        if all(odd) and not any(even):
            yield Trait(f"{one}/{other} odd", 0, among=len(names) * (len(names) - 1))


def _relations(wrong: Sequence[Case], right: Sequence[Case]) -> Iterable[Trait]:
    """Two sizes that are equal in all cases of the one kind, in two sizes at least, and in none of the other; or of
    which one is twice the other so."""
    sizes, known = [_sizes(case) for case in wrong], [_sizes(case) for case in right]
    pairs = [(one, other, 1) for one, other in itertools.combinations(sizes[0], 2)]
    for one, other, times in [*pairs, *((one, other, 2) for one, other in itertools.permutations(sizes[0], 2))]:
        if not all(one in size and other in size for size in [*sizes, *known]):
            continue
        name = other if times == 1 else f"2 {other}"
        for equal, apart, text in (
            (known, sizes, f"{one} other than {name}"),
            (sizes, known, f"{one} equal to {name}"),
        ):
            if any(size[one] != times * size[other] for size in equal):
                continue
            if any(size[one] == times * size[other] for size in apart):
                continue
            if len({size[one] for size in equal}) >= FAILING:
                yield Trait(text, 0, relation=True)


def _looked_at(case: Case) -> int:
    """How many traits are looked at: two bounds of each size, and what a case has apart from sizes."""
    return 2 * len(_numbers(case)) + len([text for text in _words(case) if text != HALF])


def _words(case: Case) -> list[str]:
    """What a case has apart from sizes, in words."""
    found = [f"dtype {case.dtype}", *([HALF] if case.torch_dtype.itemsize == 2 else []), f"values {case.values}"]
    for name, layout in case.layouts:
        found.append(f"{name} not given" if layout == "none" else f"{name} given")
        if layout not in ("none", "contiguous"):
            found += [f"{name} not contiguous", f"{name} {layout}"]
    found += [f"{name} {dtype}" for name, dtype in case.dtypes]
    found += [f"{name}={value}" for name, value in case.params if not isinstance(value, From)]
    found += [f"{len(size)} axes as {name}" for name, size in case.sizes if isinstance(size, tuple)]
    return [*found, "a size of 0"] if not case.filled else found


def _numbers(case: Case) -> dict[str, int]:
    """The sizes of a case by name, and what follows from them that kernels depend on."""
    found = _sizes(case)
    if found.get("Hq") and found.get("Hkv"):
        found["Hq/Hkv"] = found["Hq"] // found["Hkv"]
    if "Sq" in found and "Sk" in found:
        found["Sk - Sq"] = found["Sk"] - found["Sq"]
    counts = [(name, value) for name, value in case.params if type(value) is int and value > 0]
    for (name, size), (by, count) in itertools.product(_sizes(case).items(), counts):
        if size % count == 0:  # of groups, say
            found[f"{name}/{by}"] = size // count
    return found


def _sizes(case: Case) -> dict[str, int]:
    return {name: size for name, size in case.sizes if isinstance(size, int)}
