"""What the numbers in a slice of an operand have in common where an output is wrong, and nowhere where it is right: the
rows whose largest overflows an exponential, those of negative numbers alone, those with NaN.

Which rows are wrong looks like chance then. A statistic is named where it tells wrong slices from right ones when they
are moved to other places, and with other values, too.
"""

import itertools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from touchstone.conformance.judging import diagnosis, reading
from touchstone.conformance.judging.influence import Calls
from touchstone.conformance.spec import compare, layouts
from touchstone.conformance.spec.contract import Case, Contract, Inputs

SECONDS, OF_A_KERNEL = 2.0, 4.0  # for each output that is wrong, and all of those of a kernel
CHANCE = 1e-3  # that one of the statistics tells so many slices apart without a reason, at most
FAR = 8.0  # budgets by which each wrong slice is off somewhere
WIDE = 0.3  # of the range of a statistic, between wrong and right ones, from which on a bound is anywhere
WORK_LIMIT = 1e6  # work of a case above which nothing is tried
SHIFTS = (1, 2, 5)  # slices by which all operands are moved along an axis
PASSING = 12  # cases that pass in which a statistic is looked for
TOLD = re.compile(
    r"wrong where (?P<what>.+) in its (?P<letters>[^;]+?)"
    r"(?:, and nowhere else| is (?P<bound>\S+) or (?P<side>more, right up to|less, right from) [^;]*?)"
    r"(?:, with values \w+)?"
)

Statistic = Callable[[torch.Tensor], torch.Tensor]  # (slices, elements of each) -> (slices,)
Key = tuple[str, tuple[str, ...], str]  # an operand, the axes that number its slices, a statistic
Numbers = list[tuple[float, bool, tuple[int, ...]]]  # of a slice, whether the output is wrong there, and where

# Of what a slice has or has not: 1 or 0.
HAS: dict[str, Statistic] = {
    "has NaN": lambda x: x.isnan().any(1),
    "has inf": lambda x: (x == math.inf).any(1),
    "has -inf": lambda x: (x == -math.inf).any(1),
    "is -inf alone": lambda x: (x == -math.inf).all(1),
    "is NaN alone": lambda x: x.isnan().all(1),
    "is 0 alone": lambda x: (x == 0).all(1),
    "is negative alone": lambda x: (x < 0).all(1),
    "is positive alone": lambda x: (x > 0).all(1),
    "has a 0": lambda x: (x == 0).any(1),
    "is one number repeated": lambda x: (x == x[:, :1]).all(1),
    "has its largest more than once": lambda x: (x == x.amax(1, keepdim=True)).sum(1) > 1,
}
# Sizes, of which a bound tells. Several grow together: of those the first is named.
SIZES: dict[str, Statistic] = {
    "the largest |{}|": lambda x: x.abs().amax(1),
    "the largest {}": lambda x: x.amax(1),
    "the smallest {}": lambda x: x.amin(1),
    "the range of {}": lambda x: x.amax(1) - x.amin(1),
    "the sum of {}": lambda x: x.sum(1),
    "the mean of {}^2": lambda x: x.square().mean(1),
    "|mean| by standard deviation of {}": lambda x: x.mean(1).abs() / x.std(1, correction=0),
    "the index of the largest {}": lambda x: x.argmax(1),
    "the index of the smallest {}": lambda x: x.argmin(1),
}


def of_output(
    contract: Contract, case: Case, output: str, call: Calls, seconds: float, device: Any = "cpu"
) -> str | None:
    """The statistic of an operand's slices that tells where an output is wrong, in words; None: none does. Where all is
    wrong, or what is wrong is of no statistic, other families of values are looked at, for so many seconds."""
    end, own = time.monotonic() + seconds, dict[Key, Numbers]()
    for values in dict.fromkeys((case.values, *contract.values)):
        other = case if values == case.values else replace(case, values=values, drawn_as=None)
        valid = other is case or contract.valid(other)
        if not valid or contract.work(other) > WORK_LIMIT or time.monotonic() > end:
            continue
        numbers = list(_of(contract, contract.build(other, device), output, call))
        own = dict(numbers) if other is case else own
        text = _of_case(contract, other, output, device, call, numbers, own)
        if text is not None:
            return text if other is case else f"{text}, with values {values}"
    return None


def _of_case(
    contract: Contract,
    case: Case,
    output: str,
    device: Any,
    call: Calls,
    numbers: Iterable[tuple[Key, Numbers]],
    own: Mapping[Key, Numbers],
) -> str | None:
    """As `of_output`, of one case with these numbers; what tells has to hold for those of the `own` case, too."""
    found = {key: each for key, each in numbers if _bound(key, each) and _bound(key, each + own.get(key, []))}
    for axis in dict.fromkeys(letters[0] for _, letters, _ in found):
        for shift in SHIFTS:
            inputs = contract.build(case, device)
            _roll(contract, inputs, axis, shift)
            moved = dict(_of(contract, inputs, output, call))
            for key in [key for key in found if key[1][0] == axis]:
                found[key] = found[key] + moved.get(key, [])
    other = dict(_of(contract, contract.build(reading.again(case), device), output, call)) if found else {}
    found = {key: each + other.get(key, []) for key, each in found.items()}
    return next((text for key, each in found.items() if (text := _bound(key, each)) and not _is_chance(each)), None)


def _roll(contract: Contract, inputs: Inputs, axis: str, shift: int) -> None:
    """Move the slices of all operands along an axis: other places are wrong then, if what is in them is what tells."""
    for name, exact in inputs.exact.items():
        placed, along = inputs.placed[name], contract.operand_axes(name, inputs.case).split()
        if placed is not None and exact is not None and axis in along and len(along) == exact.ndim:
            exact.copy_(exact.roll(shift, along.index(axis)))
            once = layouts.once(placed.view)
            once.copy_(exact[tuple(slice(0, n) for n in once.shape)])


def _of(contract: Contract, inputs: Inputs, output: str, call: Calls) -> Iterator[tuple[Key, Numbers]]:
    """Each statistic of each operand, of its slices by axes that it shares with the output."""
    right, got = contract.expected(inputs)[output], (call(inputs) or {}).get(output)
    if right is None or not isinstance(got, torch.Tensor) or got.shape != right.answer.shape:
        return
    axes = contract.output_axes(output, inputs.case).split()
    bad = compare.compare(got, right, inputs.case.torch_dtype).bad
    if bad is None or len(axes) != bad.ndim:
        return
    off = diagnosis.shares(got, right, inputs.case.torch_dtype)
    for letters in (each for count in range(len(axes), 0, -1) for each in itertools.combinations(axes, count)):
        others = [at for at, letter in enumerate(axes) if letter not in letters]
        wrong = bad.cpu().any(dim=others) if others else bad.cpu()
        worst = off.amax(dim=others) if others else off
        if bool((wrong & (worst < FAR)).any()):
            continue  # an error that grows: a bound is where it leaves the budget
        places = list(itertools.product(*map(range, wrong.shape)))
        for name, value in _sliced(contract, inputs, letters):
            for text, statistic in itertools.chain(HAS.items(), SIZES.items()):
                numbers = statistic(value).double()
                if len(numbers) == len(places) and not bool(numbers.isnan().any()):
                    yield (
                        (name, letters, text),
                        list(zip(numbers.tolist(), wrong.flatten().tolist(), places, strict=True)),
                    )


def _sliced(contract: Contract, inputs: Inputs, letters: tuple[str, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    """The operands of floating-point numbers that have these axes and others: (slices, elements of each)."""
    for name, value in inputs.exact.items():
        along = contract.operand_axes(name, inputs.case).split()
        if value is None or not value.is_floating_point() or value.numel() == 0 or len(along) != value.ndim:
            continue
        if set(letters) < set(along) and len(set(along)) == len(along):
            first = [along.index(letter) for letter in letters]
            rest = [axis for axis in range(value.ndim) if axis not in first]
            yield name, value.cpu().permute(*first, *rest).reshape(math.prod(value.shape[at] for at in first), -1)


def _bound(key: Key, numbers: Numbers) -> str | None:
    """How all slices where something is wrong differ from all others, in words; None: they do not."""
    name, letters, text = key
    wrong, right = ([number for number, so, _ in numbers if so is side] for side in (True, False))
    each = f"in its {', '.join(letters)}"
    if not wrong or not right:
        return None
    if text in HAS:
        return f"wrong where {name} {text} {each}, and nowhere else" if min(wrong) > max(right) else None
    text, gap = f"wrong where {text.format(name)} {each}", max(min(wrong) - max(right), min(right) - max(wrong))
    if gap <= 0 or not gap < WIDE * (max(*wrong, *right) - min(*wrong, *right)):
        return None
    if min(wrong) > max(right):
        return f"{text} is {min(wrong):.4g} or more, right up to {max(right):.4g}"
    return f"{text} is {max(wrong):.4g} or less, right from {min(right):.4g} on"


def _is_chance(numbers: Numbers) -> bool:
    """Whether the place alone can be what tells, or some statistic does that of so few slices without a reason."""
    distinct = {(number, at): so for number, so, at in numbers}
    wrong, right = ({at for (_, at), so in distinct.items() if so is side} for side in (True, False))
    count = sum(distinct.values())
    return not wrong & right or (len(HAS) + len(SIZES)) / math.comb(len(distinct), count) > CHANCE


def is_refuted(part: str, contract: Contract, case: Case, passing: Sequence[Case]) -> bool:
    """Whether a part of a hint says that an output is wrong by a statistic, and slices of which that is so are right in
    cases that pass, of the same dtype and parameters."""
    told = TOLD.fullmatch(part)
    if told is None:
        return False
    alike = [one for one in passing if (one.dtype, one.params) == (case.dtype, case.params) and one.filled]
    for one in [each for each in alike if contract.work(each) <= WORK_LIMIT][:PASSING]:
        for name, value in _sliced(contract, contract.build(one), tuple(told["letters"].split(", "))):
            if (numbers := _numbers(told["what"], name, value)) is None:
                continue
            if told["bound"] is None:
                beyond = numbers > 0
            else:
                bound = float(told["bound"])
                beyond = numbers >= bound if told["side"].startswith("more") else numbers <= bound
            if bool(beyond.any()):
                return True
    return False


def _numbers(what: str, name: str, value: torch.Tensor) -> torch.Tensor | None:
    """The statistic of an operand that is called so, of each slice; None where none is."""
    for text, statistic in SIZES.items():
        if what == text.format(name):
            return statistic(value).double()
    has = HAS.get(what.removeprefix(f"{name} "))
    return None if has is None or not what.startswith(f"{name} ") else has(value).double()
