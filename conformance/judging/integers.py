"""Which numbers of an operand of integers stand where an output is wrong, and nowhere where it is right: a length of 0,
an index that is left out, lengths beyond a tile.

What is wrong is often put there by such an operand, and its place then looks like chance.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from touchstone.conformance.judging import reading
from touchstone.conformance.spec.contract import Case, Contract

CASES = 6  # others that are looked at
CHANCE = 0.02  # that numbers lie so without a reason, at most
CHANCE_OF_INDICES = 1e-3  # that so many wrong elements lie at indices without a reason, at most
LISTED = 6  # most numbers of a kind that are listed
REPEATED = 6  # places beyond the first of a number, each on the side of the first: a list of them is then no chance
WRONG_AGAIN = 2  # of those, the ones where something is wrong, at least: else any numbers are a list
DIVISORS = (2, 4, 8, 16, 32, 64, 128, 256)

Places = Sequence[tuple[int, bool, tuple[int, ...]]]  # a number, whether the output is wrong where it stands, and where


def told(contract: Contract, case: Case, output: str, bad: torch.Tensor, call: reading.Call) -> str | None:
    """The numbers of an operand that stand where an output is wrong and not where it is right, in words; None: none
    tell the two apart."""
    if not _numbers(contract, case, output, bad.cpu()):
        return None
    places: dict[str, list[tuple[int, bool, tuple[int, ...]]]] = {}
    beside = set[str]()  # those that stand both where something is wrong and where nothing is, in one case
    shown: dict[str, set[int]] = {}  # the right ones of such cases: where all is right it may be so for another reason
    for other, wrong in _looked_at(contract, case, output, bad, call):
        for name, found in _numbers(contract, other, output, wrong).items():
            places.setdefault(name, []).extend(found)
            if len({so for _, so, _ in found}) > 1:
                beside.add(name)
                shown.setdefault(name, set()).update(number for number, so, _ in found if not so)
    told = (
        (name, _apart(*((each, case.param) if name in contract.operands else (_runs(each), {})), shown[name]))
        for name, each in places.items()
        if name in beside and not _is_of_place(each)
    )
    return next((f"{name} {text}" for name, text in told if text), None)


def at_index(contract: Contract, case: Case, output: str, bad: torch.Tensor) -> str | None:
    """The axis of an output along which all that is wrong has the index that an operand of integers names, in words:
    "V is target"; None: there is none, or it could well be chance."""
    bad, axes = bad.cpu(), contract.output_axes(output, case).split()
    for name, along, values in _operands(contract, case, contract.build(case).exact):
        letters = along.split()
        if len(axes) != bad.ndim or len(letters) != values.ndim or not set(letters) < set(axes):
            continue
        left = [letter for letter in axes if letter in letters]
        number = values.permute([letters.index(letter) for letter in left])
        number = number.reshape([bad.shape[at] if letter in letters else 1 for at, letter in enumerate(axes)])
        for at, letter in enumerate(axes):
            count = bad.shape[at]
            if letter in letters or count < 2 or int(bad.sum()) * math.log(count) < -math.log(CHANCE_OF_INDICES):
                continue
            index = torch.arange(count).reshape([-1 if axis == at else 1 for axis in range(len(axes))])
            if not bool((bad & (number != index)).any()):
                return f"{letter} is {name}"
    return None


def _is_of_place(places: Places) -> bool:
    """Whether the place alone can be what tells: none is wrong in one case and right in another."""
    wrong, right = ({at for _, so, at in places if so is side} for side in (True, False))
    return not wrong & right


def _runs(places: Places) -> Places:
    """The first of each run of places with one number on one side: what follows from an operand stands in each row of a
    sequence, say, and is one number of it."""
    return [
        one
        for before, one in itertools.pairwise([(0, False, ()), *places])
        if one[:2] != before[:2] or (*before[2][:-1], sum(before[2][-1:]) + 1) != one[2]
    ]


def _looked_at(
    contract: Contract, case: Case, output: str, bad: torch.Tensor, call: reading.Call
) -> Iterator[tuple[Case, torch.Tensor]]:
    """The case, with other values too, and others of little work with its parameters, each with where the output is
    wrong."""
    yield case, bad.cpu()
    if call is reading.nothing:
        return
    fit = [one for one in reading.of_little_work(contract, case, least=0)[::-1] if one.sizes != case.sizes]
    for other in [reading.again(case), *fit[:CASES]]:
        given = reading.given_on(contract, other, output, call)
        if given is not None:
            yield other, given.bad


def _numbers(contract: Contract, case: Case, output: str, wrong: torch.Tensor) -> Mapping[str, Places]:
    """By what it is called, integers that stand along axes of an output, and whether anything is wrong there."""
    axes, inputs = contract.output_axes(output, case).split(), contract.build(case).exact
    found = {}
    for name, along, values in [*_operands(contract, case, inputs), *contract.numbers(inputs)]:
        letters = along.split()
        if len(axes) != wrong.ndim or len(letters) != values.ndim or not letters or not set(letters) <= set(axes):
            continue
        others = [axis for axis, letter in enumerate(axes) if letter not in letters]
        left = [letter for letter in axes if letter in letters]
        at = (wrong.any(dim=others) if others else wrong).permute([left.index(letter) for letter in letters])
        known = ~torch.isnan(values)
        found[name] = [
            (int(number), bool(so), tuple(place))
            for number, so, place in zip(values[known], at[known], known.nonzero().tolist(), strict=True)
        ]
    return found


def _operands(
    contract: Contract, case: Case, inputs: Mapping[str, torch.Tensor | None]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """The operands of integers."""
    for name, operand in contract.operands.items():
        dtypes = [dtype for dtype in (operand.dtype, *operand.dtypes) if dtype is not None]
        values = inputs[name]
        if values is not None and dtypes and not any(dtype.is_floating_point for dtype in dtypes):
            yield name, contract.operand_axes(name, case), values.cpu()


def _apart(places: Places, params: Mapping[str, object], shown: Collection[int] = ()) -> str | None:
    """How the numbers where something is wrong differ from those where nothing is, in words: by a bound, a divisor, or
    as a list, if enough of them stand at several places. A number at one place is one in all cases. `shown` are the
    right ones that are listed; none: all."""
    none, places = sum(number == 0 for number, *_ in places), list(dict.fromkeys(places))
    wrong, right = ({number for number, at, _ in places if at is side} for side in (True, False))
    if not wrong or len(right) < 2 or wrong & right:
        return None
    choices = math.comb(len(wrong) + len(right), len(wrong))
    if len(wrong) == 1:
        number = next(iter(wrong))
        named = next((name for name, value in params.items() if type(value) is int and value == number), None)
        if named is not None:
            return f"is {named} ({number})"
    beside = f", right where it is {_list(right & set(shown) or right)}"
    if CHANCE * choices >= 2 or (wrong == {0} and none > 1):
        if max(wrong) < min(right):
            return f"is {max(wrong)}{' or less' if len(wrong) > 1 or max(wrong) else ''}{beside}"
        if min(wrong) > max(right):
            return f"is {min(wrong)} or more{beside}"
    for divisor in DIVISORS if CHANCE * choices >= 2 * len(DIVISORS) else ():
        if all(number % divisor for number in wrong) and not any(number % divisor for number in right):
            return f"is no multiple of {divisor}{beside}"
        if all(number % divisor for number in right) and not any(number % divisor for number in wrong):
            return f"is a multiple of {divisor}{beside}"
    of_wrong = sum(at for _, at, _ in places) - len(wrong)
    of_right = sum(not at for _, at, _ in places) - len(right)
    if of_wrong >= WRONG_AGAIN and of_wrong + of_right >= REPEATED and len(wrong) <= LISTED:
        return f"is {_list(wrong)}{beside}"
    return None


def _list(numbers: set[int]) -> str:
    shown = [str(number) for number in sorted(numbers)]
    return ", ".join(shown if len(shown) <= LISTED else [*shown[: LISTED - 1], "...", shown[-1]])
