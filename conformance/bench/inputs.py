"""What timed calls work on: values drawn on the device, two sets of memory used alternately, and the answers.

A timed call never sees the values of the call before it in the same memory, and some see values that no call has seen.
They are put there without a trace in torch's version counters. Answers are float64; of what is too large to be answered
whole, on some slices along axes that the contract says are independent, and of those, at random places. Which ones, a
kernel cannot know: they are drawn from the system's randomness.
"""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.spec import budget, compare, layouts
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.contract import Case, Contract, Draw

KNOWN, FRESH, PLACES = 3, 2, 2
SEED = "seed"  # a parameter of this name
# a float64 answer at once: operations, and elements of operands and outputs
FLOPS = {"cuda": 2e11, "cpu": 2e9}
ELEMENTS = {"cuda": 1 << 25, "cpu": 1 << 22}
PICKS = {"cuda": 1 << 15, "cpu": 1 << 14}  # elements of an output that are compared

secret = random.SystemRandom()


class _DeviceDraw(Draw):
    """Draws on the device, from a generator there."""

    def __init__(self, case: Case, contract: Contract, seed: int, device: str):
        super().__init__(case, contract)
        self._generator, self._device = torch.Generator(device).manual_seed(seed), device

    def normal(self, shape, scale=1.0, mean=0.0):
        made = torch.randn(tuple(shape), generator=self._generator, dtype=torch.float64, device=self._device)
        return made * scale + mean

    def uniform(self, shape, low=0.0, high=1.0):
        made = torch.rand(tuple(shape), generator=self._generator, dtype=torch.float64, device=self._device)
        return made * (high - low) + low

    def integers(self, shape, low, high):
        made = torch.randint(low, high, tuple(shape), generator=self._generator, device=self._device)
        return made.to(torch.float64)


@dataclass(frozen=True)
class Answer:
    """Of one output: places in its flat memory, and what must be there."""

    places: torch.Tensor
    expected: budget.Expected


@dataclass(frozen=True)
class Part:
    """Some slices along independent axes: the indices kept of each axis (others are whole)."""

    kept: Mapping[str, torch.Tensor]

    def size(self, size: Mapping[str, Any]) -> dict[str, Any]:
        return {name: len(self.kept[name]) if name in self.kept else n for name, n in size.items()}

    def of(self, tensor: torch.Tensor, axes: str) -> torch.Tensor:
        for position, name in enumerate(axes.split()):
            if name in self.kept:
                tensor = tensor.index_select(position, self.kept[name])
        return tensor


class Values:
    """Values of the operands of one timed case, and where their answers are compared: `draw` and `judged`."""

    def __init__(self, contract: Contract, bench: Bench, case: Case, device: str):
        self.contract, self.case, self.device = contract, case, device
        self._output_axes = [contract.output_axes(name, case) for name in contract.outputs]
        self._independent_axes = [group for group in bench.independent_axes if self._applies(group)]
        self.choose()

    def choose(self) -> None:
        """Draw anew where outputs are compared: slices, and places in them."""
        self._part = self._choose()
        self._picks: dict[str, tuple[torch.Tensor, ...]] = {}

    def draw(self, params: Mapping[str, Any] | None = None) -> dict[str, torch.Tensor | None]:
        """Values that nothing has seen before, for a call with these parameters (None: the case's)."""
        return self._draw(secret.getrandbits(60), params)

    def params(self) -> dict[str, Any]:
        """The parameters of a call. A seed is another one each time: what follows from it alone, as a mask does, is
        work that each call owes. It is odd, or a compiler that asks what divides it would compile in some calls."""
        return {**self.case.param, **({SEED: secret.getrandbits(31) | 3} if self.draws_seeds else {})}

    @property
    def draws_seeds(self) -> bool:
        """Whether the op has a seed."""
        return type(self.case.param.get(SEED)) is int

    def judged(
        self,
        outputs: Mapping[str, torch.Tensor],
        values: Mapping[str, torch.Tensor | None],
        compute: str | None,
        owed: Collection[str] = (),
        params: Mapping[str, Any] | None = None,
    ) -> tuple[float, list[str]]:
        """The outputs of a call on these values, with these parameters (None: the case's): the worst error as a
        fraction of the budget, and what is wrong. An output that is `owed` and not there is wrong."""
        with _on(self.device), torch.no_grad():
            answers = self._answer(values, compute, params)
        worst, wrong = self._compared(self.gather(outputs), answers)
        absent = [name for name in owed if name not in outputs and answers[name] is not None]
        return worst, wrong + [f"{name}: nothing came back" for name in absent]

    def gather(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What outputs hold at the places that are compared; queued on the current stream."""
        picked = self._picked()
        return {n: t.reshape(-1).index_select(0, picked[n][0]) for n, t in outputs.items() if n in picked}

    def memory_of(self, given: Mapping[str, torch.Tensor | None]) -> dict[str, Any]:
        """Memory for the operands, in their layouts, that holds these values."""

        def put(values: torch.Tensor, layout: str) -> torch.Tensor:
            if layout == "contiguous":  # as a caller has it: an allocation of its own, without guard bands
                return torch.empty_like(values).copy_(values)
            return layouts.place(values, layout, self.device).view

        layout = self.case.layout
        return {n: None if v is None else put(v, layout.get(n, "contiguous")) for n, v in given.items()}

    def _compared(
        self, gathered: Mapping[str, torch.Tensor], answers: Mapping[str, Answer | None]
    ) -> tuple[float, list[str]]:
        worst, wrong = 0.0, []
        for name, answer in answers.items():
            if answer is None or name not in gathered:
                continue
            verdict = compare.compare(gathered[name], answer.expected, self.case.torch_dtype)
            worst = max(worst, verdict.fraction) if verdict.fraction == verdict.fraction else math.nan
            if not verdict.ok:
                wrong.append(f"{name}: {verdict.message}")
        return worst, wrong

    def _draw(self, seed: int, params: Mapping[str, Any] | None = None) -> dict[str, torch.Tensor | None]:
        """Rounded values of every operand, contiguous."""
        contract, case = self.contract, self.case
        with _on(self.device), torch.no_grad():
            drawn = contract.values[case.values](_DeviceDraw(case, contract, seed, self.device))
            made = {n: self._rounded(n, drawn[n]) for n, operand in contract.operands.items() if not operand.derived}
            if contract.derive is not None:
                derived = self._derive(made, self.case.param if params is None else params)
                made |= {n: self._rounded(n, derived[n]) for n in derived}
        return {n: made[n] for n in contract.operands}

    def _rounded(self, name: str, value: torch.Tensor | None) -> torch.Tensor | None:
        dtype = self.contract.operand_dtype(name, self.case)
        return None if value is None else value.to(self.device, dtype).contiguous()

    def _derive(
        self, made: Mapping[str, torch.Tensor | None], params: Mapping[str, Any]
    ) -> dict[str, torch.Tensor | None]:
        """What the contract derives, slice by slice where the whole is too large."""
        derive = self.contract.derive
        assert derive is not None
        parts = self._parts()
        found = []
        for part in parts:
            exact = {n: None if v is None else part.of(v, self._own(n)).to(torch.float64) for n, v in made.items()}
            found.append({n: self._rounded(n, v) for n, v in derive(exact, params).items()})
        if len(parts) == 1:
            return found[0]
        whole: dict[str, torch.Tensor | None] = {}
        for name in found[0]:
            axes = self._own(name)
            whole[name] = torch.empty(
                self.contract.shape(axes, self.case.size),
                device=self.device,
                dtype=self.contract.operand_dtype(name, self.case),
            )
            for part, values in zip(parts, found, strict=True):
                index = [part.kept.get(axis, torch.arange(n)) for axis, n in self._axes(axes)]
                place = torch.meshgrid(*index, indexing="ij")
                target, value = whole[name], values[name]
                assert target is not None and value is not None
                target[place] = value
        return whole

    def _own(self, operand: str) -> str:
        """The axes that an operand has here."""
        return self.contract.operand_axes(operand, self.case)

    def _axes(self, axes: str) -> list[tuple[str, int]]:
        """(axis, size) of each axis, a `...` taken apart."""
        found = []
        for name in axes.split():
            size = self.case.size["trailing" if name == "..." else name]
            found += [("", n) for n in size] if name == "..." else [(name, size)]
        return found

    def _applies(self, group: Sequence[str]) -> bool:
        """Whether every output runs along one of the axes: what is summed over it can only be answered whole."""
        return all(set(group) & set(axes.split()) for axes in self._output_axes)

    def _units(self, group: Sequence[str]) -> int:
        return math.gcd(*(self.case.size[name] for name in group))

    def _counts(self) -> list[int]:
        """How many units of each group are answered at once."""
        counts = [self._units(group) for group in self._independent_axes]
        while counts and max(counts) > 1 and self._too_large(counts):
            largest = counts.index(max(counts))
            counts[largest] = -(-counts[largest] // 2)
        return counts

    def _too_large(self, counts: Sequence[int]) -> bool:
        size = self._part_of([torch.arange(count) for count in counts]).size(self.case.size)
        axes = [*map(self._own, self.contract.operands), *self._output_axes]
        cut = {name for group in self._independent_axes for name in group}
        elements = sum(math.prod(self.contract.shape(each, size)) for each in axes if cut & set(each.split()))
        return self.contract.flops(size, self.case.param) > FLOPS[self.device] or elements > ELEMENTS[self.device]

    def _part_of(self, units: Sequence[torch.Tensor]) -> Part:
        kept = {}
        for group, chosen in zip(self._independent_axes, units, strict=True):
            for name in group:
                each = self.case.size[name] // self._units(group)
                index = (chosen.cpu()[:, None] * each + torch.arange(each, device="cpu")).reshape(-1)
                kept[name] = index.to(self.device)
        return Part(kept)

    def _choose(self) -> Part:
        """Random units, the last one among them."""
        units = []
        for group, count in zip(self._independent_axes, self._counts(), strict=True):
            total = self._units(group)
            units.append(torch.tensor(sorted([*secret.sample(range(total - 1), count - 1), total - 1]), device="cpu"))
        return self._part_of(units)

    def _parts(self) -> list[Part]:
        """Parts that together are the whole."""
        found: list[list[torch.Tensor]] = [[]]
        for group, count in zip(self._independent_axes, self._counts(), strict=True):
            pieces = torch.arange(self._units(group), device="cpu").split(count)
            found = [[*before, piece] for before in found for piece in pieces]
        return [self._part_of(units) for units in found]

    def _picked(self) -> dict[str, tuple[torch.Tensor, ...]]:
        """For each output: places in its flat memory, and the same as indices into the answer to the part."""
        if self._picks:
            return self._picks
        generator = torch.Generator("cpu").manual_seed(secret.getrandbits(60))
        for name, output_axes in zip(self.contract.outputs, self._output_axes, strict=True):
            part: list[torch.Tensor] = []
            whole: list[torch.Tensor] = []
            step, axes = 1, self._axes(output_axes)
            shape = [len(self._part.kept[axis]) if axis in self._part.kept else n for axis, n in axes]
            total = math.prod(shape)
            count = PICKS[self.device]
            if total <= count:
                flat = torch.arange(total, device="cpu")
            else:
                flat = torch.randint(total, (count,), generator=generator, device="cpu")
            for (axis, n), length in zip(reversed(axes), reversed(shape), strict=True):
                index = flat % max(length, 1)
                flat = flat // max(length, 1)
                part.insert(0, index.to(self.device))
                whole.append((self._part.kept[axis].cpu()[index] if axis in self._part.kept else index) * step)
                step *= n
            places = sum(whole) if whole else torch.zeros(1, dtype=torch.long, device="cpu")
            self._picks[name] = (torch.as_tensor(places).to(self.device), *part)
        return self._picks

    def _answer(
        self, values: Mapping[str, torch.Tensor | None], compute: str | None, params: Mapping[str, Any] | None = None
    ) -> dict[str, Answer | None]:
        exact = {n: None if v is None else self._part.of(v, self._own(n)).to(torch.float64) for n, v in values.items()}
        given = self.case.param if params is None else params
        expected = self.contract.expect(exact, given, dtype=self.case.torch_dtype, compute=compute)
        return {
            name: None if expected[name] is None else Answer(places, _taken(expected[name], index))
            for name, (places, *index) in self._picked().items()
        }


class Bank(Values):
    """The inputs of one timed case: `KNOWN + FRESH` sets of values, `PLACES` sets of memory.

    Values are numbered; those from KNOWN on are fresh, for one timed call of each contestant.
    """

    def __init__(self, contract: Contract, bench: Bench, case: Case, device: str, seed: int | None = None):
        super().__init__(contract, bench, case, device)
        self.seed = secret.getrandbits(32) if seed is None else seed
        self.values = [self._draw(self.seed + number) for number in range(KNOWN + FRESH)]
        self.places = [self.memory_of(self.values[0]) for _ in range(PLACES)]
        self._holds = [0] * PLACES
        self._answers: dict[tuple[int, str | None], dict[str, Answer | None]] = {}

    def arguments(self, place: int) -> dict[str, Any]:
        """The keyword arguments of a call that reads this set of memory."""
        return {**self.places[place], **self.case.param}

    def load(self, place: int, number: int) -> None:
        """Put the values of `number` into the memory of `place`, unseen by torch's version counters."""
        for name, values in self.values[number].items():
            if values is not None:
                self.places[place][name].data.copy_(values)
        self._holds[place] = number

    def another(self, place: int) -> int:
        """The number of known values that are not in this memory now."""
        return secret.choice([number for number in range(KNOWN) if number != self._holds[place]])

    def altered(self, place: int) -> list[str]:
        """The operands that no longer hold the values put there."""
        held = self.values[self._holds[place]]
        return [n for n, v in held.items() if v is not None and not same_bits(self.places[place][n], v)]

    def answers(self, number: int, compute: str | None) -> dict[str, Answer | None]:
        """The answer to the values of `number`, at random places of each output."""
        key = (number, compute)
        if key not in self._answers:
            with _on(self.device), torch.no_grad():
                self._answers[key] = self._answer(self.values[number], compute)
        return self._answers[key]

    @property
    def seeded(self) -> bool:
        """Whether a call may have another seed than the case: not where operands follow from it."""
        return self.draws_seeds and self.contract.derive is None

    def judge(
        self,
        gathered: Mapping[str, torch.Tensor],
        number: int,
        compute: str | None,
        params: Mapping[str, Any] | None = None,
    ) -> tuple[float, list[str]]:
        """The worst error as a fraction of the budget, and what is wrong, of a call with these parameters (None: the
        case's)."""
        if params is None:
            return self._compared(gathered, self.answers(number, compute))
        with _on(self.device), torch.no_grad():
            return self._compared(gathered, self._answer(self.values[number], compute, params))

    def memory(self) -> int:
        """Bytes of one set of values."""
        return sum(t.numel() * t.element_size() for t in self.values[0].values() if t is not None)


def _on(device: str) -> Any:
    """Within: what a contract makes without naming a device is made on this one."""
    return torch.device(device) if device != "cpu" else nullcontext()


def _taken(expected: budget.Expected, index: Sequence[torch.Tensor]) -> budget.Expected:
    """An answer and its budget at some places, on the CPU."""
    shape = expected.answer.shape

    def take(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.ndim:
            return value.expand(shape)[tuple(index)].cpu()
        return value.cpu() if isinstance(value, torch.Tensor) else value

    return replace(
        expected,
        answer=take(expected.answer),
        parts=[(take(terms), take(condition)) for terms, condition in expected.parts],
        rounding=take(expected.rounding),
        extra=take(expected.extra),
        alternatives=[_taken(other, index) for other in expected.alternatives],
    )


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory as integers of the same width."""
    return tensor.detach().view(_INTEGERS[tensor.element_size()])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


def spoil(tensor: torch.Tensor) -> None:
    """Fill an output that was looked at, so that the next call that gets this memory finds nothing of use in it."""
    tensor.detach().reshape(-1).view(torch.uint8).fill_(probe.PATTERNS[0])
