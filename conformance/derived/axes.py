"""Which axes of a function's operands are one size: found by running it with longer ones."""

import contextlib
import itertools
import json
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from touchstone.backends import forks
from touchstone.conformance.derived import families
from touchstone.conformance.derived.noise import Noise, Parts
from touchstone.conformance.derived.ops import tensors_of
from touchstone.conformance.derived.refusals import Refused
from touchstone.conformance.derived.samples import cast, sample

STEPS = (2, 3, 4, 8, 16)  # in which a size may grow that has to be a multiple of something: groups, heads
TOGETHER = 3  # most other axes that have to grow with one
TRIED = (1, 0, 37, 129, 257, 1025)  # sizes of one axis, the others at their first
MULTIPLES = (1, 3, 33)  # of the step, of an axis that grows in steps
FEW = (3, 5, 9)  # elements of every axis at once, the first that works, and one step: no sum averages errors out there
MANY = 4  # times as many elements as there the first size has; else it is not tried
USUAL = 64  # most of an axis at the first size
LARGEST = 20000  # elements of an operand, at the sizes that are chosen here
OUTPUT = 3  # times as many of an output
ALONE = 80000  # elements of an operand, where an axis is long and the others are as short as can be
OWN = 60000  # elements of an operand, at most, where the example is tried as it was given, if it takes no more than OPS
OPS = 4000  # of a run at the sizes that are chosen here, or as many as the first size has
STUCK = 60.0  # seconds of one run, after which it is no longer tried in a fork
DEADLY = 16  # sizes at which a reference may end its process, and others be tried

Place = tuple[int, int]  # (position of an operand, its axis)
Shapes = list[tuple[int, ...]]
Key = tuple[tuple[int, ...], ...]


@dataclass
class Known:
    """What running a function has shown, by the shapes of the values that it was given: the shapes of its outputs, and
    how it ended its process (`ends`). `told` is what of that concerns sizes that are tried."""

    shapes: dict[Key, Shapes | None] = field(default_factory=dict)
    ends: dict[Key, str] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    most: float = math.inf  # ops of a run: with more it is taken not to work
    _written: int | None = None  # in a fork, where what is tried is written

    def explored(self, search: Callable[[], object]) -> None:
        """Learn what runs `search` comes to in a fork of this process, where a function may end it. What raises there
        is run again here, and raises whatever it raises here. ValueError where it ends at too many sizes."""
        while forks.able:

            def run(written: int) -> None:
                self._written = written
                with contextlib.suppress(Exception):
                    search()

            written, status = forks.forked(run, STUCK)
            key = self._read(written)
            if key is None or status is None:
                return
            self.shapes[key] = None
            self.ends[key] = signal.Signals(-status).name if status < 0 else f"with status {status}"
            if len(self.ends) > DEADLY:
                raise ValueError(f"reference: it ends its process at more than {DEADLY} sizes ({self.ends[key]})")

    def _read(self, written: bytes) -> Key | None:
        """Take over what a fork has found; the shapes that it ran with when it ended."""
        key: Key | None = None
        for line in written.splitlines():
            sizes, *found = json.loads(line)
            key = tuple(map(tuple, sizes))
            if found:
                if found[0] is not None:
                    self.shapes[key] = [tuple(shape) for shape in found[0]]
                key = None
        return key

    def write(self, *what: Any) -> None:
        if self._written is not None:
            os.write(self._written, json.dumps(what).encode() + b"\n")


@dataclass(frozen=True)
class Axis:
    """Axes of operands that are one size. `step`: what it is changed by; 0: it is fixed."""

    letter: str
    places: tuple[Place, ...]
    size: int
    step: int

    def __str__(self) -> str:
        how = {0: f" = {self.size}, fixed", 1: ""}.get(self.step, f" in steps of {self.step}")
        return f"{self.letter}{how}"


def letters() -> Iterator[str]:
    """A, B, ..., Z, A1, B1, ..."""
    for round_ in itertools.count():
        for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ":
            yield letter + (str(round_) if round_ else "")


def resized(values: Sequence[Any], change: Mapping[Place, int]) -> list[Any]:
    """The arguments with some axes of other lengths: elements are left out, or the first ones come again, and what
    holds of an argument and a kernel may rely on holds of it then. So do numbers that may count along an axis of
    another argument: those beyond a shorter one become others, where `have_room` says that there are such."""
    found, bounds = [], _bounds(values, change)
    for position, given in enumerate(values):
        value = given
        if isinstance(value, torch.Tensor):
            for axis in range(value.ndim):
                n = change.get((position, axis), value.shape[axis])
                if n and not value.shape[axis]:
                    value = _filled(value, axis, n)
                elif n != value.shape[axis]:
                    value = value.index_select(axis, torch.arange(n) % max(value.shape[axis], 1))
            if position in bounds:
                least = int(given.min())
                value = least + (value - least) % max(bounds[position] - least, 1)
            value = value if value is given else families.structured(value, given)
        found.append(value)
    return found


def _filled(value: torch.Tensor, axis: int, n: int) -> torch.Tensor:
    """A tensor like one without elements, `n` long along an axis: normal numbers, or zeros where it has none."""
    shape = [*value.shape[:axis], n, *value.shape[axis + 1 :]]
    if not value.is_floating_point():
        return value.new_zeros(shape)
    return torch.randn(shape, generator=torch.Generator().manual_seed(axis)).to(value.dtype)


def have_room(values: Sequence[Any], change: Mapping[Place, int]) -> bool:
    """Whether the axes are as long with these lengths as the numbers that may count along them need: what is computed
    with a class beyond the number of classes is undefined, whether the function raises or not."""
    return all(bound > int(values[position].min()) for position, bound in _bounds(values, change).items())


def _bounds(values: Sequence[Any], change: Mapping[Place, int]) -> dict[int, int]:
    """The positions of arguments that are whole numbers below the length of an axis of another, some of them as large
    as its new length, with that length. Not of masks, nor where no number comes twice: of a permutation, none may.
    Numbers in order from 0 to that length are where parts of the other begin and end: they may be the new length."""
    found = {}
    for position, value in enumerate(values):
        if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.dtype is torch.bool:
            continue
        if value.numel() < 2 or int(value.min()) < 0:
            continue
        most, shorter = int(value.max()), []
        others = [(values[p].shape[a], n) for (p, a), n in change.items() if p != position]
        if 2 < value.unique().numel() < value.numel():
            shorter += [n for before, n in others if n <= most < before]
        if value.ndim == 1 and int(value[0]) == 0 and bool((value.diff() >= 0).all()):
            shorter += [n + 1 for before, n in others if n < most == before]
        if shorter:
            found[position] = min(shorter)
    return found


def at(examples: Sequence[Sequence[Any]], axes: Sequence[Axis], size: Mapping[str, int]) -> list[Any]:
    """The arguments at a size: of the example that has it, or whose fixed axes have those lengths (the first, where
    none has)."""
    change = change_of(axes, size)
    for example in examples[1:]:
        if size_of(axes, example) == {axis.letter: size[axis.letter] for axis in axes}:
            return list(example)
    fixed = [place for axis in axes if not axis.step for place in axis.places]

    def fits(example: Sequence[Any]) -> bool:
        return all(example[position].shape[axis] == change[position, axis] for position, axis in fixed)

    return resized(next(filter(fits, examples), examples[0]), change)


def works(function: Callable[..., Any], values: Sequence[Any], known: Known | None = None) -> Shapes | None:
    """The shapes of the outputs; None where the function raises, or gives others when it runs in smaller ops.

    What an op of torch takes by accident (keys and values of unequal length, in one kernel of the CPU) is no size.
    `known` keeps what was found, by the shapes of the values.
    """
    key, known = key_of(values), Known() if known is None else known
    if key not in known.shapes:
        known.write(key)
        try:
            known.shapes[key] = _works(function, values, known.most)
        finally:
            known.write(key, known.shapes.get(key))
    return known.shapes[key]


def key_of(values: Sequence[Any]) -> Key:
    """The shapes of the tensors."""
    return tuple(tuple(t.shape) for t in values if isinstance(t, torch.Tensor))


def _works(function: Callable[..., Any], values: Sequence[Any], most: float) -> Shapes | None:
    single = any(n < 2 for t in values if isinstance(t, torch.Tensor) for n in t.shape)  # where a rule may fail
    try:
        with torch.no_grad():
            shapes = [tuple(t.shape) for t in tensors_of(function(*cast(values, torch.float32)))]
        again = [tuple(t.shape) for t in sample(function, values, Noise(0) if single else Parts(most))]
    except Refused:
        raise
    except Exception:
        return None
    return shapes if shapes == again else None


def _ops_of(function: Callable[..., Any], values: Sequence[Any]) -> int:
    """The ops of a run, of which a loop has some for each step."""
    mode = Parts()
    sample(function, values, mode)
    return mode.count


def shrunk(
    function: Callable[..., Any], values: Sequence[Any], state: frozenset[int] = frozenset(), known: Known | None = None
) -> list[Any]:
    """The example with its long axes shorter, all axes of one length together, where the function works so too."""
    found = list(values)
    lengths = {n for p, t in enumerate(values) if isinstance(t, torch.Tensor) and p not in state for n in t.shape}
    for n in sorted((n for n in lengths if n > USUAL), reverse=True):
        if not any(isinstance(t, torch.Tensor) and t.numel() > LARGEST and p not in state for p, t in enumerate(found)):
            break
        places = [(p, a) for p, t in enumerate(found) if isinstance(t, torch.Tensor) for a in range(t.ndim)]
        alike = [(p, a) for p, a in places if found[p].shape[a] == n and p not in state]
        for m in (USUAL, 33, 16):
            change = dict.fromkeys(alike, m)
            given = resized(found, change)
            if have_room(found, change) and works(function, given, known) is not None:
                found = given
                break
    return found


def is_small(function: Callable[..., Any], values: Sequence[Any]) -> bool:
    """Whether an example, with which the function works, has so few elements and ops that it is tried as it was
    given."""
    if any(t.numel() > OWN for t in values if isinstance(t, torch.Tensor)):
        return False
    try:
        sample(function, values, Parts(OPS))
    except OverflowError:
        return False
    return True


def find(
    function: Callable[..., Any], values: Sequence[Any], state: frozenset[int] = frozenset(), known: Known | None = None
) -> list[Axis]:
    """The axes of all operands. Those of the operands at the positions `state` stay as they are, and what goes with
    them: the code of a module may hold their sizes in attributes."""
    names, known = letters(), Known() if known is None else known
    places = [(p, a) for p, t in enumerate(values) if isinstance(t, torch.Tensor) for a in range(t.ndim)]
    size = {(p, a): values[p].shape[a] for p, a in places}
    found: list[Axis] = []
    done: set[Place] = set()
    for place in places:
        if place in done:
            continue
        n = size[place]
        alike = [e for e in places if e not in done and e != place and size[e] == n and e[0] not in state]
        alone: tuple[tuple[Place, ...], int] = ((place,), 0)
        group, step = alone if place[0] in state else _group(function, values, place, n, alike, known) or alone
        found.append(Axis(next(names), group, n, step))
        done |= set(group)
    return found


def _group(
    function, values, place: Place, n: int, alike: list[Place], known: Known
) -> tuple[tuple[Place, ...], int] | None:
    """The axes that grow together with one, and by how much. As many whole numbers, labels or indices, grow too where
    they can: `gather` takes fewer of them, which no kernel has to."""

    def grows(group: tuple[Place, ...], step: int) -> bool:
        grown = (n + step, n + (3 if step == 1 else 2 * step))
        return all(works(function, resized(values, dict.fromkeys(group, m)), known) is not None for m in grown)

    for step in (1, *STEPS):
        for count in range(min(len(alike), TOGETHER) + 1):
            for others in itertools.combinations(alike, count):
                group = (place, *others)
                if not grows(group, step):
                    continue
                for other in alike:
                    whole = not values[other[0]].is_floating_point() and values[other[0]].dtype is not torch.bool
                    if whole and other not in group and grows((*group, other), step):
                        group = (*group, other)
                return group, step
    return None


def ranks(shapes: Shapes | None) -> list[int] | None:
    """How many axes each output has; None where there are none."""
    return None if shapes is None else [len(shape) for shape in shapes]


def _most(shapes: Shapes | None) -> int:
    """The elements of the largest output."""
    return max(map(math.prod, shapes or ()), default=0)


def change_of(axes: Sequence[Axis], sizes: Mapping[str, int]) -> dict[Place, int]:
    """The lengths of the operands' axes at these sizes."""
    return {place: sizes[axis.letter] for axis in axes for place in axis.places}


def sizes_of(
    function: Callable[..., Any],
    values: Sequence[Any],
    axes: Sequence[Axis],
    asked: Mapping[str, Sequence[int]] | None = None,
    known: Known | None = None,
) -> list[dict[str, int]]:
    """The sizes to try: a small one of every axis, one where all are a few elements long, then one axis at a time, as
    far as the function works and its outputs have as many axes.

    `asked` are sizes by letter, in place of those tried here. Raises ValueError where one does not work.
    """

    def at(sizes: dict[str, int], largest: float = LARGEST) -> bool:
        change = change_of(axes, sizes)
        if not have_room(values, change) or _elements(values, axes, sizes) > largest:
            return False
        shapes = works(function, resized(values, change), known)
        return usual is not None and ranks(shapes) == usual and _most(shapes) <= max(OUTPUT * largest, first)

    def thin() -> dict[str, int]:
        """As few elements of each axis as the function works with, two at least."""
        found = fewer or base
        for axis in axes:
            two = {**found, axis.letter: 2}
            found = two if axis.step == 1 and found[axis.letter] > 2 and at(two) else found
        return found

    known, first = Known() if known is None else known, 0
    usual = ranks(works(function, values, known))

    def ended(sizes: dict[str, int]) -> str | None:
        return known.ends.get(key_of(resized(values, change_of(axes, sizes))))

    base = {axis.letter: axis.size for axis in axes}
    for axis in axes:
        for small in (64, 33, 16, 8, 3) if axis.step else ():
            small = max(axis.step, small // axis.step * axis.step)
            if small < axis.size and (axis.size > USUAL or _elements(values, axes, base) > LARGEST):
                shrunk = {**base, axis.letter: small}
                if at(shrunk, math.inf):
                    base = shrunk
                    if small <= USUAL and _elements(values, axes, base) <= LARGEST:
                        break
    found = [base]
    first = _most(works(function, resized(values, change_of(axes, base)), known))
    if asked is None and usual is not None:
        known.most = max(OPS, _ops_of(function, resized(values, change_of(axes, base))))
    fewer: dict[str, int] = {}
    for most in FEW if asked is None else ():
        few = {axis.letter: min(axis.size, most if axis.step == 1 else axis.step or axis.size) for axis in axes}
        if _elements(values, axes, few) * MANY < _elements(values, axes, base) and at(few):
            found.append(few)
            fewer = few
            break
    for axis in axes:
        if asked is not None and axis.letter not in asked:
            continue
        tried = [m * axis.step for m in MULTIPLES] if axis.step > 1 else TRIED if axis.step else ()
        for n in tried if asked is None else asked[axis.letter]:
            sizes = {**base, axis.letter: n}
            if sizes in found:
                continue
            working = at(sizes, LARGEST if asked is None else math.inf)
            if not working and asked is None and n > base[axis.letter]:  # too many elements beside the others, maybe
                sizes = {**(fewer or base), axis.letter: n}
                if not (working := at(sizes)):
                    sizes = {**thin(), axis.letter: n}
                    working = at(sizes, ALONE)
            if working:
                found.append(sizes)
            elif asked is not None:
                how = f"ends its process ({ended(sizes)})" if ended(sizes) else "does not work"
                raise ValueError(f"sizes: the reference {how} with {axis.letter}={n}")
            elif ended(sizes):
                known.told[f"{axis.letter}={n}"] = f"the reference ends its process ({ended(sizes)})"
    known.most = math.inf
    return found


def size_of(axes: Sequence[Axis], example: Sequence[Any]) -> dict[str, int] | None:
    """The lengths of an example's axes by letter; None where axes of one letter differ, or of other tensors."""
    found = {}
    for axis in axes:
        lengths = {_length(example, place) for place in axis.places}
        if len(lengths) > 1 or None in lengths:
            return None
        found[axis.letter] = lengths.pop()
    return found  # type: ignore[return-value]


def _length(example: Sequence[Any], place: Place) -> int | None:
    value, axis = example[place[0]], place[1]
    return value.shape[axis] if isinstance(value, torch.Tensor) and axis < value.ndim else None


def _elements(values: Sequence[Any], axes: Sequence[Axis], sizes: Mapping[str, int]) -> int:
    """The elements of the largest operand, of those that have an axis which is not fixed."""
    change = change_of(axes, sizes)
    varied = {position for axis in axes if axis.step for position, _ in axis.places}
    return max((math.prod(change[p, a] for a in range(values[p].ndim)) for p in varied), default=0)
