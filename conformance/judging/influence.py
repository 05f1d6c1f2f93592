"""What the wrong elements of an output depend on, as calls with other values in a part of an operand tell: on slices
on which their answer does not depend, or not on those on which it does.

One row of the output is looked at, and another one: a part of an operand is changed, and what the kernel gives is
compared bit by bit, what the reference gives in float64.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from touchstone.conformance.judging import diagnosis, reading
from touchstone.conformance.spec import compare, layouts
from touchstone.conformance.spec.budget import EPS, budget
from touchstone.conformance.spec.contract import Case, Contract, Inputs

SECONDS, OF_A_KERNEL = 2.5, 5.0  # for each output that is wrong, and all of those of a kernel
WORK_LIMIT = 1e6  # work of a case above which nothing is tried
COUNTS = (1, 4, 16, 64, 256, 1024)  # slices that are changed together, until the answer moves
SHOWN = 3  # operands that are named
SMALL_CASES = 3  # of little work, that are tried beside the plain one
SAME = 1e-9  # of an answer, by which it may move where it does not depend on something
TOLD = 4.0  # budgets, at least, by which it moves where it does
FEW = 0.2  # of the wrong elements of a row, at least, whose answer does: what is dropped stays with half of all bits
MOST = 0.5  # of the wrong elements of a row, at least, that move with what they must not depend on
WHOLE = 0.9  # of a row, from which on it is called wrong
FAR = 8.0  # of an error, what explains it moves the answer by this part at least
ALONE = 256  # slices of an axis that are changed one by one, at most, where there is time for that
NEAR = 8  # slices next to those that count, that are changed one by one, where not
PERIODS = (2, 3, 4, 5, 8, 16, 32)  # every so many slices of an axis are changed together, where not
HALVINGS = 4  # and halves of it, quarters, down to 16ths
OUTER = 8.0  # budgets by which what a kernel gives has to move with what it must not depend on

Calls = Callable[[Inputs], Mapping[str, Any] | None]  # what the kernel gives on inputs; None: nothing to compare
Box = dict[str, slice | list[int]]  # by operand axis, which slices


@dataclass(frozen=True)
class Row:
    """The wrong elements of an output with one index along all axes, but for the last where an operand has that as its
    last one too."""

    index: tuple[int, ...]
    mask: torch.Tensor


@dataclass(frozen=True)
class Part:
    """Slices of an operand along one of its axes that count for a row, and those of them that are lost at its ends."""

    name: str
    letter: str
    size: int
    span: slice
    lost: set[int]


@dataclass(frozen=True)
class Beside:
    """Slices of an operand along one of its axes with which a row moves outside of `span`, in which all lie on which
    its answer depends: runs that lie next to it, and go as far as there are any."""

    name: str
    letter: str
    size: int
    span: slice
    reached: tuple[slice, ...]


def of_output(contract: Contract, case: Case, output: str, device: Any, call: Calls, seconds: float) -> str | None:
    """What an output depends on and must not, or does not depend on and has to, in words; for so many seconds at
    most."""
    end = time.monotonic() + seconds
    wide = replace(case, dtype="float32") if "float32" in contract.dtypes else case  # whose budget tells more
    every = [like for one in (wide, case) for like in _small(contract, one)]
    for one in dict.fromkeys(every):
        if time.monotonic() > end:
            break
        look = _Look(contract, one, output, device, call, end)
        if look.rows:
            text = look.text()
            return text if text is None or one.sizes == case.sizes else f"{text} ({one.id})"
    return None


def _small(contract: Contract, case: Case) -> list[Case]:
    """Plain cases with the parameters of a case: of its own size, if that is small, and of the least work."""
    cases = [*reading.plainly(contract, case)[-1:], *reading.of_little_work(contract, case)[:SMALL_CASES]]
    return [one for one in cases if one.filled and contract.work(one) <= WORK_LIMIT]


class _Look:
    """A case in which a kernel gives an output of wrong numbers, the same ones in two calls; no rows: it does not."""

    def __init__(self, contract: Contract, case: Case, output: str, device: Any, call: Calls, end: float) -> None:
        self.contract, self.case, self.output, self.device, self.end = contract, case, output, device, end
        self.called, self.rows = call, list[Row]()
        self.plain = contract.build(case)
        given = [operand for name, operand in contract.operands.items() if self.plain.exact[name] is not None]
        self.derived = [
            name for name, o in contract.operands.items() if o.derived and self.plain.exact[name] is not None
        ]
        self.any_draw = not self.derived and all(operand.garbage is None for operand in given)
        self.other = contract.build(reading.again(case)).exact
        for name, value in self.plain.exact.items():
            if value is not None and not self.any_draw and not self._is_float(name):
                self.other[name] = torch.where(value > 0, value - 1, value)
        right = contract.expected(self.plain)[output]
        got = self._result()
        if right is None or got is None or got.shape != right.answer.shape:
            return
        bad = compare.compare(got, right, case.torch_dtype).bad
        again = self._result()
        if bad is None or again is None or not _same(got, again):
            return
        self.got, self.answer, self.bad = got, right.answer.expand(got.shape), bad.cpu()
        self.allowed = torch.as_tensor(budget(right, case.torch_dtype)).expand(got.shape)
        self.allowed = self.allowed + EPS.get(case.torch_dtype, 0.0) * self.got.double().nan_to_num(0, 0, 0).abs()
        plain = self.bad & self.answer.isfinite() & (self.answer != 0)
        wrong = (plain if bool(plain.any()) else self.bad).nonzero()
        letters = {name: contract.operand_axes(name, case).split() for name in contract.operands}
        if (axes := contract.output_axes(output, case).split()) and axes[-1] in [
            of[-1] for of in letters.values() if of
        ]:
            wrong = wrong[:, :-1].unique(dim=0) if wrong.shape[1] > 1 else wrong[:1, :0]
        chosen = dict.fromkeys(tuple(wrong[at].tolist()) for at in (0, len(wrong) // 2))
        rows = [Row(index, self._row(index)) for index in chosen]
        if not any(self._is_nothing(row) for row in rows):
            self.rows = rows

    def text(self) -> str | None:
        """What is said of the first row, as far as there is as much to say of the other."""
        one, *others = [self._of_row(row) for row in self.rows]
        said = []
        for verb, is_so in (("changes", "does not depend"), ("does not change", "depends")):
            parts = [part for key, part in one.items() if key[0] == verb and all(key in other for other in others)]
            if found := list(itertools.islice(filter(None, map(self._in_words, parts)), SHOWN)):
                said.append(f"{verb} with {', '.join(found)}, on which its answer {is_so}")
        if not said and not one and (found := list(itertools.islice(self._inside(), SHOWN))):
            said.append(f"does not change with {', '.join(found)}, on which its answer depends")
        index, mask = self.rows[0].index, self.rows[0].mask
        part = "" if mask[index].double().mean() >= WHOLE else ", where it is wrong,"
        return f"{self.output}{list(index) if index else ''}{part} {', and '.join(said)}" if said else None

    def _in_words(self, part: str | Part | Beside) -> str | None:
        """What is said of the first row; None where that is not why it is wrong."""
        if isinstance(part, str):
            return part
        if isinstance(part, Beside):
            return self._of_reached(part)
        row, lost = self.rows[0], self._elsewhere(self.rows[0], part)
        return _of_some(part, sorted(lost)) if lost and self._is_enough(row, part, lost) else None

    def _of_reached(self, part: Beside) -> str:
        """With which slices the first row moves, in words: each is changed, where there is time for that, and as far as
        there is, those between slices on which its answer depends; else those next to these and at the ends, and what
        lies in one run with them, or one period."""
        name, letter, row = part.name, part.letter, self.rows[0]
        runs = [range(run.start, run.stop) for run in part.reached]
        outside = [at for run in runs for at in run]
        start = time.monotonic()
        moves = {outside[-1]: self._reaches(row, name, letter, outside[-1])}
        took = time.monotonic() - start
        each = len(outside) <= ALONE and took * len(outside) <= self.end - time.monotonic()
        near = [at for run in runs for at in (run[:NEAR] if run[0] >= part.span.stop else run[-NEAR:])]
        moves |= {at: self._reaches(row, name, letter, at) for at in (outside if each else [*near, outside[0]])}
        if time.monotonic() > self.end or True not in moves.values():
            shown = " and ".join(_of(name, letter, run.start, run.stop) for run in runs)
            return shown if len(outside) == 1 else f"some or all of {shown}"
        inside = range(part.span.start, part.span.stop) if each and part.span.stop - part.span.start <= ALONE else ()
        for at in itertools.takewhile(lambda _: time.monotonic() < self.end, inside):
            if self._answer_stays(row, name, {letter: [at]}):
                moves[at] = self._reaches(row, name, letter, at)
        found, kept = ({at for at, so in moves.items() if so is side} for side in (True, False))
        known = slice(min(moves), max(moves) + 1)
        every = _filled(found, kept, known, None if each else NEAR // 2) & (moves.keys() | set(outside))
        more = ", among others" if not each and every == found and len(found) < len(outside) else ""
        return _of_some(part, sorted(every)) + more

    def _reaches(self, row: Row, name: str, letter: str, at: int) -> bool | None:
        """Whether a row moves with one slice of an operand; None where it does by no more than another order of sums
        may move it, or time is up."""
        got = None if time.monotonic() > self.end else self._result(name, {letter: [at]})
        if got is None or got.shape != self.got.shape:
            return None
        if _same(got[row.mask], self.got[row.mask]):
            return False
        return True if self._is_far(row, got) else None

    def _inside(self) -> Iterator[str]:
        """What no row depends on between the ends of an axis."""
        one, *others = self.rows
        for name in filter(self._is_float, self._operands()):
            for part in self._summed(name, one):
                lost = self._elsewhere(one, part)
                if not lost or any(self._is_lost(row, part, sorted(lost)) is False for row in others):
                    continue
                if self._is_enough(one, part, lost):
                    yield _of_some(part, sorted(lost))

    def _of_row(self, row: Row) -> dict[tuple[str, str], str | Part | Beside]:
        """By whether a row depends on it and must not, or the other way round, and by operand: on what of that."""
        found: dict[tuple[str, str], str | Part | Beside] = {}
        for name in self._operands():
            for verb, part in self._of_operand(name, row):
                found.setdefault((verb, name), part)
            if time.monotonic() > self.end:
                break
        return found

    def _operands(self) -> list[str]:
        """Those that follow from no others; of integers that a kernel counts by those of which any draw goes with the
        other operands, else numbers of slices of the output, which may be lower."""
        found, outer = [], self.contract.output_axes(self.output, self.case).split()
        for name, value in self.plain.exact.items():
            letters = self.contract.operand_axes(name, self.case).split()
            if value is None or not value.numel() or self.contract.operands[name].derived:
                continue
            if self._is_float(name) or self.any_draw or (len(letters) == 1 and letters[0] in outer):
                found.append(name)
        return found

    def _sizes(self, name: str) -> dict[str, int]:
        """How many slices an operand has along each axis with a letter."""
        letters, shape = self.contract.operand_axes(name, self.case).split(), self.plain.exact[name].shape  # type: ignore[union-attr]
        front = letters.index("...") if "..." in letters else len(letters)
        back = letters[front + 1 :]
        return dict(zip(letters[:front], shape, strict=False)) | dict(
            zip(back, shape[len(shape) - len(back) :], strict=True)
        )

    def _is_float(self, name: str) -> bool:
        return self.contract.operand_dtype(name, self.case).is_floating_point

    def _of_operand(self, name: str, row: Row) -> Iterator[tuple[str, str | Part | Beside]]:
        """What a row depends on of an operand, and must not, or must and does not."""
        if not self._is_float(name) and self.any_draw:
            if self._answer_moves(row, name, {}) and self._stays(row, name, {}):
                yield "does not change", name
            return
        if self._answer_stays(row, name, {}):
            last = list(self._sizes(name).items())[-1:]
            own = any(self._is_its_own(row, name, letter, 0, count) for letter, count in last)
            if not own and self._moves(row, name, {}):
                yield "changes", name
            return
        shape = self._sizes(name)
        box = {letter: self._span(row, name, letter, size) for letter, size in shape.items()}
        for letter, size in shape.items():
            moves, low, high = partial(self._moves_in, row, name, letter), box[letter].start, box[letter].stop
            stays, reached = partial(self._stays_in, row, name, letter), list[slice]()
            if low > 0 and moves(0, low):
                reached.append(slice(_least(1, low, partial(_not_to, stays, 0)) - 1, low))
            if high < size and moves(high, size):
                reached.append(slice(high, _least(high + 1, size, partial(_from, stays, size))))
            reached = [run for run in reached if not self._is_its_own(row, name, letter, run.start, run.stop)]
            if reached:
                yield "changes", Beside(name, letter, size, box[letter], tuple(reached))
        if not self._is_float(name) or not self._answer_moves(row, name, {}):
            return
        if self._stays(row, name, {}):
            yield "does not change", name
            return
        for part in self._summed(name, row):
            if lost := self._at_ends(row, part):
                yield "does not change", replace(part, lost=lost)

    def _is_its_own(self, row: Row, name: str, letter: str, start: int, stop: int) -> bool:
        """Whether each slice moves one wrong element of a row at most, that with its own index, and other elements of
        the output depend on the operand: it can be what an element makes of its own, by a factor that has to be 0."""
        axes, answer = self.contract.output_axes(self.output, self.case).split(), self._answer(name, {})
        if len(row.index) == len(axes) or not axes or letter != axes[-1] or stop - start > ALONE or answer is None:
            return False
        if not bool((answer != self.answer).any()):
            return False
        for at in range(start, stop):
            got = self._result(name, {letter: [at]}) if time.monotonic() <= self.end else None
            if got is None or got.shape != self.got.shape:
                return False
            moved = (got.double() - self.got.double()).abs() > OUTER * self.allowed
            if set((moved & row.mask)[row.index].nonzero().flatten().tolist()) - {at}:
                return False
        return True

    def _summed(self, name: str, row: Row) -> Iterator[Part]:
        """What counts for a row of the axes of an operand that the output has not."""
        outer = self.contract.output_axes(self.output, self.case).split()
        for letter, size in self._sizes(name).items():
            span = self._span(row, name, letter, size) if letter not in outer else slice(0, 0)
            if span.stop - span.start > 1:
                yield Part(name, letter, size, span, set())

    def _at_ends(self, row: Row, part: Part) -> set[int]:
        """The slices at both ends of an axis without influence."""
        name, letter, low, high, found = part.name, part.letter, part.span.start, part.span.stop, set[int]()
        stays = partial(self._stays_in, row, name, letter)
        last = self._telling(row, name, letter, [(high - n, high) for n in COUNTS if n < high - low])
        if last is not None and stays(*last):
            found.update(range(_least(low, last[0], partial(_from, stays, high)), high))
        first = self._telling(row, name, letter, [(low, low + n) for n in COUNTS if n < high - low])
        if first is not None and stays(*first):
            found.update(range(low, _least(first[1] + 1, high, partial(_not_to, stays, low)) - 1))
        return found

    def _elsewhere(self, row: Row, part: Part) -> set[int]:
        """The slices without influence: those at the ends, and of the others one by one, else some at equal distances
        and parts of the axis. Those with which the answer hardly moves are taken with a run of others, or a period."""
        rest = [at for at in range(part.span.start, part.span.stop) if at not in part.lost]
        start = time.monotonic()
        self._is_lost(row, part, rest[:1])
        took = time.monotonic() - start
        if len(rest) > ALONE or took * len(rest) > self.end - time.monotonic():
            return part.lost.union(*self._some(row, part, rest))
        told = {at: self._is_lost(row, part, [at]) for at in rest}
        found = part.lost | {at for at, so in told.items() if so}
        if not found or time.monotonic() > self.end:
            return found
        unknown = [at for at, so in told.items() if so is None]
        without = {at for at in unknown if self._answer_stays(row, part.name, {part.letter: [at]})}
        return _filled(found, without | {at for at, so in told.items() if so is False}, part.span)

    def _some(self, row: Row, part: Part, rest: list[int]) -> list[list[int]]:
        """Of some slices those at equal distances, or in one part, that have no influence together."""
        apart = [[rest[first::period] for first in range(period)] for period in PERIODS if len(rest) >= 2 * period]
        cuts = [[len(rest) * n // 2**times for n in range(2**times + 1)] for times in range(1, HALVINGS + 1)]
        pieces = [[rest[start:stop] for start, stop in itertools.pairwise(ends)] for ends in cuts]
        for some in [*apart, *pieces]:
            if found := [each for each in some if self._is_lost(row, part, each)]:
                return found
        return []

    def _is_lost(self, row: Row, part: Part, some: list[int]) -> bool | None:
        """Whether a row does not depend on some slices; None where its answer hardly does, or time is up."""
        box: Box = {part.letter: some}
        if time.monotonic() > self.end or not some or not self._answer_moves(row, part.name, box):
            return None
        return self._stays(row, part.name, box)

    def _is_enough(self, row: Row, part: Part, lost: set[int]) -> bool:
        """Whether a row's answer moves by as much as it is wrong by, or a good part of that, without some slices or
        with others in their place: else these are not why."""
        here = self.answer[row.mask]
        error = _length(self.got.double()[row.mask] - here)
        answers = [self._answer(part.name, {part.letter: sorted(lost)}), self._without(part.letter, lost)]
        moved = [_length(answer[row.mask] - here) for answer in answers if answer is not None]
        return not moved or any(not bool(FAR * by < error) for by in moved)

    def _without(self, letter: str, lost: set[int]) -> torch.Tensor | None:
        """The answer for operands without some slices; None where the op cannot be asked for that."""
        exact = {**self.plain.exact}
        for name, value in self.plain.exact.items():
            letters = self.contract.operand_axes(name, self.case).split()
            if value is not None and letter in letters:
                axis = letters.index(letter)
                axis -= len(letters) if "..." not in letters[axis:] else 0
                left = [at for at in range(value.shape[axis]) if at not in lost]
                exact[name] = value.index_select(axis, torch.tensor(left, dtype=torch.int64))
        try:
            params = self.plain.params
            found = self.contract.expect(exact, params, dtype=self.case.torch_dtype, compute=None)[self.output]
            return None if found is None else found.answer.expand(self.got.shape)
        except Exception:  # sizes that do not go together
            return None

    def _telling(self, row: Row, name: str, letter: str, spans: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """The first of some slices of an operand, by their ends, with which the answer of a row moves."""
        return next((span for span in spans if self._answer_moves(row, name, {letter: slice(*span)})), None)

    def _moves_in(self, row: Row, name: str, letter: str, start: int, stop: int) -> bool:
        return self._moves(row, name, {letter: slice(start, stop)})

    def _stays_in(self, row: Row, name: str, letter: str, start: int, stop: int) -> bool:
        return self._stays(row, name, {letter: slice(start, stop)})

    def _span(self, row: Row, name: str, letter: str, size: int) -> slice:
        """From the first to the last slice of an operand on which the answer of a row depends."""
        stop = _least(0, size, lambda h: self._answer_stays(row, name, {letter: slice(h, size)}))
        start = _least(1, size, lambda h: not self._answer_stays(row, name, {letter: slice(0, h)})) - 1
        return slice(start, stop)

    def _changed(self, name: str, box: Box) -> tuple[torch.Tensor, torch.Tensor]:
        """Where other numbers stand for an operand's in some slices, as a mask, and which."""
        exact, other = self.plain.exact[name], self.other[name]
        assert exact is not None and other is not None
        mask = torch.zeros(exact.shape, dtype=torch.bool)
        letters = self.contract.operand_axes(name, self.case).split()
        mask[tuple(box.get(letter, ... if letter == "..." else slice(None)) for letter in letters)] = True
        placed = self.plain.placed[name]
        assert placed is not None
        return mask & placed.view.isfinite() & other.isfinite(), other

    def _exact(self, name: str, box: Box) -> dict[str, torch.Tensor | None]:
        """The operands with other numbers in some slices of one, and what follows from them."""
        mask, other = self._changed(name, box)
        exact: dict[str, torch.Tensor | None] = {**self.plain.exact}
        exact[name] = torch.where(mask, other, self.plain.exact[name])  # type: ignore[arg-type]
        if self.derived and self.contract.derive is not None:
            following = self.contract.derive(dict(exact), self.case.param)
            for of in self.derived:
                value = following[of]
                assert value is not None  # as it is given
                exact[of] = value.to(self.contract.operand_dtype(of, self.case)).double()
        return exact

    def _answer(self, name: str, box: Box) -> torch.Tensor | None:
        exact = self._exact(name, box)
        found = self.contract.expect(exact, self.plain.params, dtype=self.case.torch_dtype, compute=None)[self.output]
        return None if found is None else found.answer.expand(self.got.shape)

    def _moved(self, row: Row, name: str, box: Box) -> torch.Tensor:
        """By how much the answer of the wrong elements of a row moves, in budgets."""
        answer = self._answer(name, box)
        if answer is None:
            return torch.full((int(row.mask.sum()),), math.nan)
        return ((answer - self.answer).abs() / self.allowed)[row.mask]

    def _answer_stays(self, row: Row, name: str, box: Box) -> bool:
        answer = self._answer(name, box)
        if answer is None:
            return False
        here, there = self.answer[row.mask], answer[row.mask]
        return bool(((here - there).abs() <= SAME * here.abs()).logical_or(here.isnan() & there.isnan()).all())

    def _answer_moves(self, row: Row, name: str, box: Box) -> bool:
        return (self._moved(row, name, box) > TOLD).double().mean().item() >= FEW

    def _result(self, name: str | None = None, box: Box | None = None) -> torch.Tensor | None:
        """The output of another call, with other numbers in some slices of an operand."""
        inputs = self.contract.build(self.case, self.device)
        exact = {} if name is None or box is None else self._exact(name, box)
        for changed in [] if name is None else [name, *self.derived]:
            placed, value = inputs.placed[changed], exact[changed]
            assert placed is not None and value is not None
            once = layouts.once(placed.view)
            value = value[tuple(slice(0, n) for n in once.shape)].to(once.device, once.dtype)
            once.copy_(torch.where(once.isfinite(), value, once))  # NaN stays where no answer depends on it
        got = (self.called(inputs) or {}).get(self.output)
        return got.cpu().clone() if isinstance(got, torch.Tensor) else None

    def _moves(self, row: Row, name: str, box: Box) -> bool:
        """Whether what the kernel gives moves, by more than another order of sums moves it."""
        if time.monotonic() > self.end or (got := self._result(name, box)) is None or got.shape != self.got.shape:
            return False
        return self._is_far(row, got)

    def _is_far(self, row: Row, got: torch.Tensor) -> bool:
        """Whether most of a row is apart from what the kernel gave first."""
        off = (got.double() - self.got.double()).abs()[row.mask] > OUTER * self.allowed[row.mask]
        return off.double().mean().item() >= MOST

    def _stays(self, row: Row, name: str, box: Box) -> bool:
        """Whether the kernel gives the same bits."""
        if time.monotonic() > self.end or (got := self._result(name, box)) is None:
            return False
        return got.shape == self.got.shape and _same(got[row.mask], self.got[row.mask])

    def _row(self, index: tuple[int, ...]) -> torch.Tensor:
        mask = torch.zeros_like(self.bad)
        mask[index] = self.bad[index]
        return mask

    def _is_nothing(self, row: Row) -> bool:
        """Whether the wrong elements of a row are one number, or none: they depend on nothing."""
        wrong = self.got[row.mask]
        one = wrong.numel() > 1 and bool((wrong == wrong[0]).all())
        return one or not bool(wrong.isfinite().all()) or bool((wrong == 0).all())


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least number from `low` on for which something holds that holds for all behind it; `high`, where it has to
    hold, at most."""
    holds = cache(holds)
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _from(test: Callable[[int, int], bool], stop: int, start: int) -> bool:
    return test(start, stop)


def _not_to(test: Callable[[int, int], bool], start: int, stop: int) -> bool:
    return not test(start, stop)


def _of(name: str, letter: str, start: int, stop: int) -> str:
    """Slices of an operand, in words."""
    return f"{letter} {start}{f'..{stop - 1}' if stop - start > 1 else ''} of {name}"


def _length(x: torch.Tensor) -> torch.Tensor:
    return x.square().sum().sqrt()


def _of_some(part: Part | Beside, some: list[int]) -> str:
    """Some slices of an operand, in words."""
    name, letter = part.name, part.letter
    if some[-1] - some[0] == len(some) - 1:
        return _of(name, letter, some[0], some[-1] + 1)
    steps = {b - a for a, b in itertools.pairwise(some)}
    if len(steps) == 1 and len(some) > 2:
        (step,) = steps
        listed, every = ", ".join(map(str, some[:3])), diagnosis.ordinal(step)
        return f"{letter} {listed}, ... (every {every} from {some[0]}, {len(some)} of {part.size}) of {name}"
    mask = torch.zeros(part.size, dtype=torch.bool)
    mask[some] = True
    return f"{diagnosis.region(mask, [letter])} of {name}"


def _filled(lost: set[int], kept: set[int], span: slice, longest: int | None = None) -> set[int]:
    """The slices that are lost, with those that are not `kept` either and lie in one run with them, or one period."""
    run = set(range(min(lost), max(lost) + 1))
    if not kept & run:
        return run
    for period in range(2, (longest or (span.stop - span.start) // 3) + 1):
        places = {at % period for at in lost}
        if not any(at % period in places for at in kept):
            return {at for at in range(span.start, span.stop) if at % period in places}
    return lost


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all bits are equal."""
    return one.dtype == other.dtype and torch.equal(compare.bits(one), compare.bits(other))
