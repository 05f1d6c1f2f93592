"""The changes of a reference that are tried: what else an operation can give, which tensors can stand in each other's
place, which random words a dropout can have."""

import ast
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import torch

from touchstone.conformance.judging.operations import (
    Alteration,
    Operation,
    Place,
    Run,
    Site,
    Step,
    expression_of,
    place_of,
    words_of,
)
from touchstone.conformance.spec.contract import Case, Contract

WARP = 32
LISTED = 40  # characters of a list of indices, at most
PARTS = (2, 3, 4, 8, 16, 32)  # of a sum, that are added up by themselves
TILES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
KEYS = (16, 32, 64, 128)  # of a tile, in a kernel that goes over keys
SPLITS = (32, 64, 128, 256, 512)  # keys of a part that a kernel goes through by itself
ROWS = (8, 16, 32, 64, 128)  # a multiple of which the length of a row is taken for
WORDS = (8, 16, 32, 64)  # bits of one
MOST_WORDS = 2**23  # random ones, up to the last of which an index may go


def of_words(contract: Contract, case: Case) -> Iterator[Alteration]:
    """Other random words of a dropout's elements: by an index that begins again, or of another counter or key."""
    if not {"p", "seed", "offset"} <= case.param.keys() or case.param["p"] in (0.0, 1.0):
        return
    rows = {
        f"row of {size} ({letter})": size
        for letter, size in case.size.items()
        if isinstance(size, int) and size > 1 and any(letter in contract.output_axes(o, case) for o in contract.outputs)
    }
    for each, size in {**{f"tile of {size}": size for size in (*TILES, 2048, 4096)}, **rows}.items():
        yield Alteration(f"the index into the random words began again with each {each}", {}, partial(_begun, size))
    for size, letters in _of_last_axes(contract, case).items():
        for padded in _padded(size):
            text = f"the index into the random words were counted with rows of {padded} ({letters} of {size})"
            yield Alteration(text, {}, partial(_in_rows, size, padded))
        for unit in (each for each in UNITS if size % each):
            text = f"each row of {size} ({letters}) began at the multiple of {unit} words at or before its start"
            yield Alteration(text, {}, partial(_from_multiples, size, unit))
    by = "the random words were "
    yield Alteration(f"{by}the first of four of the counter e, not number e mod 4 of the counter e/4", {}, _of_counter)
    yield Alteration(
        f"{by}for each four elements the first of theirs", {}, lambda e, *key: _word(e & ~np.int64(3), *key)
    )
    yield Alteration(f"{by}those of the seed's low 32 bits", {}, lambda e, seed, at: _word(e, seed & LOW, at))
    yield Alteration(f"{by}those of the offset's low 32 bits", {}, lambda e, seed, at: _word(e, seed, at & LOW))
    yield Alteration(f"{by}those of offset 0", {}, lambda e, seed, at: _word(e, seed, 0))
    yield Alteration(f"{by}those of seed 0", {}, lambda e, seed, at: _word(e, 0, at))
    yield Alteration(f"{by}those of seed and offset in each other's place", {}, lambda e, seed, at: _word(e, at, seed))
    yield Alteration(f"{by}those of the next element", {}, lambda e, *key: _word(e + 1, *key))


LOW = 2**32 - 1
UNITS = (4, 8, 16, 32)  # words that a thread or a byte mask takes at once


def _from_multiples(size: int, unit: int, index: np.ndarray, seed: int, offset: int) -> np.ndarray:
    return _word(index // size * size // unit * unit + index % size, seed, offset)


def _of_last_axes(contract: Contract, case: Case) -> dict[int, str]:
    """The lengths of rows, by the last axes of operands and outputs, with the letters of these."""
    axes = [contract.output_axes(o, case) for o in contract.outputs]
    axes += [contract.operand_axes(o, case) for o in contract.operands]
    found: dict[int, list[str]] = {}
    for letter in dict.fromkeys(words.split()[-1] for words in axes if words):
        size, name = (case.size["trailing"][-1:], "a last axis") if letter == "..." else (case.size[letter], letter)
        size = size[0] if isinstance(size, tuple) and size else size
        if isinstance(size, int) and size > 1:
            found.setdefault(size, []).append(name)
    return {size: " or ".join(names) for size, names in found.items()}


def _padded(size: int) -> list[int]:
    """The lengths that a row can be taken for which has so many elements."""
    return sorted({*(-(-size // whole) * whole for whole in ROWS), 1 << (size - 1).bit_length()} - {size})


def _in_rows(size: int, padded: int, index: np.ndarray, seed: int, offset: int) -> np.ndarray:
    index = index // size * padded + index % size
    if index.max(initial=0) >= MOST_WORDS:
        raise LookupError("too many words")
    return _word(index, seed, offset)


def _begun(size: int, index: np.ndarray, seed: int, offset: int) -> np.ndarray:
    return _word(index % size, seed, offset)


def _of_counter(index: np.ndarray, seed: int, offset: int) -> np.ndarray:
    return _word(4 * index, seed, offset)


def _word(index: np.ndarray, seed: int, offset: int) -> np.ndarray:
    """The words of elements in any order."""
    return words_of(int(index.max(initial=-1)) + 1, seed, offset)[index]


def of_operations(plain: Run) -> Iterator[Alteration]:
    """All changes of the operations that a reference went through: the first of each, then the second of each."""
    bases = {o.site: _in_base_2 for o in plain.seen.values() if o.site[1] in IN_BASE_2}
    if len(bases) > 1:
        yield Alteration("all exponentials and logarithms were to base 2", bases)
    yield from _not_rescaled(plain)
    yield from _merged_in_two_bases(plain)
    yield from _late_factors(plain)
    yield from _together(plain)
    calls = Counter((operation.site[0][0], operation.site[1]) for operation in plain.seen.values())
    shared = {operation.site for operation in plain.seen.values() if calls[operation.site[0][0], operation.site[1]] > 1}
    every = [list(_of_site(operation, operation.site in shared)) for operation in list(plain.seen.values())]
    for nth in itertools.zip_longest(*every):
        yield from (alteration for alteration in nth if alteration is not None)
    yield from _confused(plain)


class Number(NamedTuple):
    """A number that is an argument of operations which stand in one place; or how often they add `summand`, the term
    number `at`; or, where none stands there, the factor 1 of the argument of functions."""

    shown: str
    value: float
    place: str
    sites: tuple[Site, ...]
    summand: str | None = None
    at: int = 0
    of_argument: bool = False

    def alterations(self, fitted: float | None) -> Iterator[Alteration]:
        """The numbers near a fitted one in its place: those that go by a name, and those of few digits. Of arguments
        those of another base too, which are far from 1."""
        for name, ratio in self._names().items():
            off = math.inf if fitted is None else abs(fitted / self.value - ratio)
            if off <= min(NEAR * ratio, NEARER * abs(ratio - 1)) or (self.of_argument and name in OF_BASES):
                yield self.alteration(ratio * self.value, name)
        for digits in () if fitted is None else DIGITS:
            if self.may_be(other := float(f"{fitted:.{digits}g}")):
                yield self.alteration(other)

    def _names(self) -> dict[str, float]:
        if self.summand is not None:
            return {}
        return BY_NAME | ROUNDED if self.of_argument else BY_NAME

    def may_be(self, other: float) -> bool:
        """Whether another number in its place says something."""
        if self.of_argument:
            return other != self.value
        return self.summand is None or (other.is_integer() and other != self.value)

    def alteration(self, other: float, name: str | None = None) -> Alteration:
        """Another number in its place, so many times as large as one with a name."""
        if self.summand is not None:
            text = f"`{self.summand}` of `{self.shown}` were added {other:g} times, not once ({self.place})"
            return Alteration(text, {site: partial(_weighted, self.at, other) for site in self.sites})
        if self.of_argument:
            by = f"{other:.8g}" if name is None else f"{other:.5g}: {name}"
            text = f"the argument of {self.shown} were multiplied by {by} ({self.place})"
            return Alteration(text, {site: partial(_with_factor, other) for site in self.sites})
        there = f"{other:.8g} in the place of {self.value:.8g}"
        if name is not None:
            there = f"{other:.5g} in the place of {self.value:.8g}, {other / self.value:.5g} times as large: {name}"
        text = f"`{self.shown}` were with {there} ({self.place})"
        return Alteration(text, {site: partial(_with_number, other / self.value) for site in self.sites})


DIGITS = range(1, 9)  # of a number that is fitted: the fewest that explain as much
NEAR, NEARER = 1e-3, 0.05  # of a number, and of what it is off 1 by, up to which a fitted one is taken for it
BY_NAME = {
    "log2 e": 1 / math.log(2),
    "ln 2": math.log(2),
    "ln 10": math.log(10),
    "1/ln 10": 1 / math.log(10),
    "pi": math.pi,
    "1/pi": 1 / math.pi,
    "pi/2": math.pi / 2,
    "2/pi": 2 / math.pi,
    "sqrt(2)": math.sqrt(2),
    "1/sqrt(2)": math.sqrt(0.5),
    "sqrt(pi/2)": math.sqrt(math.pi / 2),
    "sqrt(2/pi)": math.sqrt(2 / math.pi),
    "sqrt(pi)": math.sqrt(math.pi),
    "sqrt(2 pi)": math.sqrt(2 * math.pi),
    "1/sqrt(2 pi)": 1 / math.sqrt(2 * math.pi),
}
OF_BASES = ("log2 e", "ln 2")  # 2^(x log2 e) is e^x
# these of few digits, cut off or rounded
ROUNDED = {
    f"{short:g} in the place of {name}": short / BY_NAME[name]
    for name in OF_BASES
    for digits in range(1, 6)
    for short in (
        math.floor(BY_NAME[name] * 10**digits) / 10**digits,
        math.ceil(BY_NAME[name] * 10**digits) / 10**digits,
    )
}


def of_numbers(plain: Run) -> Iterator[Number]:
    """The numbers of products, quotients, sums and differences that a reference went through."""
    places: dict[tuple[Place, str], list[Operation]] = {}
    for operation in plain.seen.values():
        places.setdefault((operation.site[0][0], operation.site[1]), []).append(operation)
    for operations in places.values():
        site, shown = operations[0].site, expression_of(operations[0].site)
        numbers = {arg for o in operations for arg in o.args[:2] if isinstance(arg, int | float)}
        if shown is None or site[1] not in WITH_NUMBERS or len(numbers) != 1:
            continue
        if (number := float(numbers.pop())) and math.isfinite(number):
            yield Number(shown, number, place_of(site), tuple(o.site for o in operations))


def of_weights(plain: Run) -> Iterator[Number]:
    """How often each term of the sums of two tensors is added that a reference went through."""
    places: dict[tuple[Place, str], list[Operation]] = {}
    for operation in plain.seen.values():
        if operation.site[1] == "add" and all(isinstance(arg, torch.Tensor) for arg in operation.args[:2]):
            places.setdefault((operation.site[0][0], operation.site[1]), []).append(operation)
    for operations in places.values():
        site, shown = operations[0].site, expression_of(operations[0].site)
        node = None if shown is None else ast.parse(shown, mode="eval").body
        if shown is not None and isinstance(node, ast.BinOp):
            for at, term in enumerate((node.left, node.right)):
                yield Number(shown, 1.0, place_of(site), tuple(o.site for o in operations), ast.unparse(term), at)


def of_arguments(plain: Run) -> Iterator[Number]:
    """The factor 1 of the arguments of exponentials and the like: of all of one name, then of those in each place."""
    by_name: dict[str, list[Operation]] = {}
    for operation in plain.seen.values():
        if operation.site[1] in OF_EXPONENTIALS and isinstance(operation.out, torch.Tensor):
            by_name.setdefault(operation.site[1], []).append(operation)
    for name, operations in by_name.items():
        places = dict.fromkeys(place_of(o.site) for o in operations)
        if len(operations) > 1:
            yield Number(f"each `{name}`", 1.0, ", ".join(places), tuple(o.site for o in operations), of_argument=True)
        by_place: dict[tuple[Place, str], list[Operation]] = {}
        for operation in operations:
            by_place.setdefault((operation.site[0][0], name), []).append(operation)
        for some in by_place.values() if len(by_place) > 1 or len(operations) == 1 else ():
            shown = expression_of(some[0].site)
            if shown is not None:
                sites = tuple(o.site for o in some)
                yield Number(f"`{shown}`", 1.0, place_of(some[0].site), sites, of_argument=True)


def _with_factor(by: float, operation: Operation) -> Any:
    return operation.of(operation.args[0] * by)


def _weighted(at: int, times: float, operation: Operation) -> torch.Tensor:
    return operation.out + (times - 1) * operation.args[at]


def _late_factors(plain: Run) -> Iterator[Alteration]:
    """A factor that comes in behind a function of the product that it belongs to."""
    operations = list(plain.seen.values())
    scaled = [o.maker() for o in operations if o.site[1] in ("mul", "div") and _number_of(o) is not None]
    for last in operations:
        factor = None if any(last is one for one in scaled) else _factor_before(last)
        shown = expression_of(last.site)
        early = None if factor is None else expression_of(factor.site)
        if factor is not None and shown is not None and early is not None:
            text = f"`{shown}` were multiplied by the factor of `{early}`, and that were not ({place_of(last.site)})"
            yield Alteration(text, {factor.site: lambda o: o.args[0].clone(), last.site: _late})


def _not_rescaled(plain: Run) -> Iterator[Alteration]:
    """A softmax and the logarithm of its sum, by running sums in tiles that keep the maximum which was known when their
    addends came: in the sums alone, or in what is weighed by them too."""
    found = _softmax_with_lse(plain)
    for tile in (tile for tile in KEYS if found and tile < found[0][0].args[0].shape[found[0][1]]):
        for what, of_softmax in (
            ("the sums are", _not_scaled),
            ("neither the sums nor what they weigh are", _all_kept),
        ):
            steps: dict[Site, Step] = {
                o.site: partial(of_softmax if o.site[1] == "softmax" else _not_scaled, axis, tile) for o, axis in found
            }
            text = f"{what} scaled anew where the running maximum grows, in tiles of {tile}"
            yield Alteration(f"the softmax were by running sums: {text}", steps)


def _merged_in_two_bases(plain: Run) -> Iterator[Alteration]:
    """A softmax and the logarithm of its sum, by splits that are merged by the logarithms of their sums: powers of e of
    logarithms to base 2, or of 2 of those to base e."""
    found = _softmax_with_lse(plain)
    for split in (split for split in SPLITS if found and split < found[0][0].args[0].shape[found[0][1]]):
        for text, by in (
            ("powers of e of logarithms to base 2", 1 / math.log(2)),
            ("powers of 2 of natural logarithms", math.log(2)),
        ):
            steps: dict[Site, Step] = {o.site: partial(_merged, axis, split, by) for o, axis in found}
            text = f"the softmax were merged of splits of {split} by weights that are {text} of their sums"
            yield Alteration(text, steps)


def _softmax_with_lse(plain: Run) -> list[tuple[Operation, int]]:
    """The operations of a softmax and the logarithm of its sum, with the axis of each; none where there is but one of
    the two, or they are of different sizes."""
    operations = [o for o in plain.seen.values() if o.site[1] in ("softmax", "logsumexp")]
    found = [(o, axis) for o in operations if (axis := _axis(o)) is not None]
    sizes = {o.args[0].shape[axis] for o, axis in found}
    return found if {o.site[1] for o, _ in found} == {"softmax", "logsumexp"} and len(sizes) == 1 else []


def _number_of(operation: Operation) -> float | None:
    """The number that a tensor is multiplied or divided by."""
    number = operation.args[1] if len(operation.args) == 2 else None
    return number if isinstance(number, int | float) else None


def _factor_before(operation: Operation) -> Operation | None:
    """The product of a tensor and a number, the latest one, that an operation is of by way of a function that is not
    linear."""
    curved, maker = operation.site[1] in CURVED, operation.maker()
    while maker is not None and maker.site[1] in (*CURVED, "mul", "div"):
        if curved and maker.site[1] == "mul" and _number_of(maker) is not None:
            return maker
        curved, maker = curved or maker.site[1] in CURVED, maker.maker()
    return None


def _late(operation: Operation) -> torch.Tensor | None:
    factor = _factor_before(operation)
    return None if factor is None else operation.out * factor.args[1]


def _together(plain: Run) -> Iterator[Alteration]:
    """One change of all the means, sums and the like that stand in one line, and of an operation wherever the function
    that it stands in is called from."""
    lines: dict[tuple[str, str], dict[Site, Step]] = {}
    for operation in plain.seen.values():
        name = operation.site[1]
        changes = _of_reduction if name in REDUCTIONS else _of_bits if name in BITS else None
        if changes is not None and isinstance(operation.out, torch.Tensor):
            for words, step in changes(name, operation):
                lines.setdefault((place_of(operation.site), words), {})[operation.site] = step
    for (place, words), steps in lines.items():
        if len(steps) > 1:
            names = " and ".join(f"`{name}`" for name in dict.fromkeys(name for _, name in steps))
            yield Alteration(f"each {names} of a line were {words} ({place})", steps)
    shared: dict[tuple[Place, str], dict[Site, Step]] = {}
    for operation in plain.seen.values():
        for alteration in _of_site(operation, False):
            shared.setdefault((operation.site[0][0], alteration.text), {}).update(alteration.steps)
    for (_, text), steps in shared.items():
        if len(steps) > 1:
            yield Alteration(text, steps)


Source = Site | str  # of a tensor: the operation that made it, or the operand that it is


class _Use(NamedTuple):
    """An argument of an operation: where it is, its text in the code, the tensor, and where that comes from."""

    site: Site
    position: int
    text: str
    value: torch.Tensor
    source: Source


def _confused(plain: Run) -> Iterator[Alteration]:
    """One tensor in the place of another of its shape, in one expression of a function wherever that is called from:
    an element that is overwritten before it is read, the input of a step in the place of its result."""
    uses = [use for operation in list(plain.seen.values()) for use in _uses(operation)]
    ranges = {use.site: _range(use.site) for use in uses}
    changes: dict[tuple[Any, str, str], dict[Site, dict[int, Source]]] = {}
    for use in uses:
        call = _call_of(use.site)
        nearby = [other for other in uses if _call_of(other.site) == call]
        others = {other.source: other.text for other in nearby if other.value.shape == use.value.shape}
        for site, operation in [*plain.seen.items(), *plain.views.items()]:
            text = expression_of(site) if _call_of(site) == call else None
            if isinstance(operation.out, torch.Tensor) and operation.out.shape == use.value.shape and text is not None:
                others.setdefault(site, text)
        others.pop(use.source, None)
        outer = max((ranges[o.site] for o in nearby if _within(use.site, o.site, ranges)), key=_length)
        for source, text in others.items():
            if text == use.text:
                continue
            key = (use.site[0][0][0], outer), use.text, text
            changes.setdefault(key, {}).setdefault(use.site, {})[use.position] = source
    for (_, text, other_text), sources in changes.items():
        steps = {site: partial(_with_sources, by_position) for site, by_position in sources.items()}
        yield Alteration(f"`{text}` were `{other_text}` ({place_of(next(iter(sources)))})", steps)


def _call_of(site: Site) -> tuple[CodeType, tuple[Place, ...]]:
    """The function that an operation stands in, and from where that is called."""
    (code, _), *outer = site[0]
    return code, tuple(outer)


def _uses(operation: Operation) -> Iterator[_Use]:
    """The tensors that an operation takes, as they are written."""
    text = expression_of(operation.site)
    node = None if text is None else ast.parse(text, mode="eval").body
    written: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and all(isinstance(arg, torch.Tensor) for arg in operation.args):
        written = [node.left, node.right]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        written = [*([] if of_torch else [node.func.value]), *node.args][:1]
    for position, (arg, part) in enumerate(zip(operation.args, written, strict=False)):
        if isinstance(arg, torch.Tensor) and arg.is_floating_point() and arg.numel() > 1:
            maker = operation.run.made.get(id(arg))
            operand = next((name for name, value in operation.run.operands.items() if value is arg), None)
            source = operand if maker is None else maker.site
            if source is not None:
                yield _Use(operation.site, position, ast.unparse(part), arg, source)


def _with_sources(sources: Mapping[int, Source], operation: Operation) -> Any:
    """What an operation gives for other tensors, as far as they are there by then."""
    args, run = list(operation.args), operation.run
    for position, source in sources.items():
        other = run.operands.get(source) if isinstance(source, str) else run.latest.get(source)
        if not isinstance(other, torch.Tensor) or other.shape != args[position].shape:
            raise LookupError("not made yet")
        args[position] = other
    return operation.of(*args)


def _range(site: Site) -> tuple[int, int, int, int]:
    """Where an operation begins and ends: line and column."""
    code, at = site[0][0]
    line, end, start, stop = list(code.co_positions())[at // 2]
    return line or 0, start or 0, end or 0, stop or 0


def _within(inner: Site, outer: Site, ranges: Mapping[Site, tuple[int, int, int, int]]) -> bool:
    """Whether an operation is a part of another."""
    a, b = ranges[inner], ranges[outer]
    return b[:2] <= a[:2] and a[2:] <= b[2:]


def _length(place: tuple[int, int, int, int]) -> tuple[int, int]:
    return place[2] - place[0], place[3] - place[1]


def _of_site(operation: Operation, shared: bool) -> Iterator[Alteration]:
    shown = expression_of(operation.site)
    if shown is None or not isinstance(operation.out, torch.Tensor):
        return
    for words, step in _changes(operation, shown):
        place = place_of(operation.site, shared)
        yield Alteration(f"`{shown}` were {words} ({place})", {operation.site: step})


def _changes(operation: Operation, shown: str) -> Iterator[tuple[str, Step]]:
    """Other results of an operation, in words."""
    name, out = operation.site[1], operation.out
    node = ast.parse(shown, mode="eval").body
    if name in ("mul", "div", "rdiv", "add", "sub", "rsub") and len(operation.args) == 2:
        yield from _of_two(name, node, operation)
    elif name in COMPARISONS:
        yield f"`{COMPARISONS[name]}`", lambda o: getattr(o.args[0], COMPARISONS[name].split()[0])(o.args[1])
    elif name in ("matmul", "mv", "dot"):
        yield from _of_product(operation)
    elif name == "getitem":
        yield from _of_index(operation)
    elif name in REDUCTIONS:
        yield from _of_reduction(name, operation)
    elif name in ("tril", "triu"):
        yield from _of_triangle(name, operation)
    elif name in BASES:
        yield BASES[name], lambda o: getattr(torch, BASES[name])(o.args[0])
    elif name in BITS:
        yield from _of_bits(name, operation)
    elif name == "repeat_interleave":
        yield "`repeat`: all heads in turn, not each several times", _repeated
    elif name == "masked_fill":
        yield "left out: nothing masked", lambda o: o.args[0].expand(o.out.shape).clone()
    elif name == "where":
        yield f"`{_argument(node, 1)}` everywhere", lambda o: _in_place_of(o.args[1], o.out)
    if name == "mul":
        yield from _of_factor(operation, node)
    if name in ("add", "sub"):
        yield from _of_term(operation, node)
    if name in ("mul", "div", "add", "sub", "masked_fill"):
        yield from _of_first_slices(operation, node)
    if name in ("rsqrt", "sqrt"):
        yield "taken before the number is added: the root, and then the number", _rooted_first
    if not out.is_floating_point() or out.numel() < 2:
        return
    if name in UNARY:
        yield "its argument alone", lambda o: o.args[0].clone()
    yield from _earlier(operation)
    for dtype in (torch.bfloat16, torch.float16):
        text = f"rounded to {str(dtype).removeprefix('torch.')}"
        yield text, partial(_rounded, dtype)


UNARY = {"square", "tanh", "exp", "log", "sqrt", "rsqrt", "sigmoid", "abs", "neg", "erf", "clamp", "clamp_min", "relu"}
REDUCTIONS = ("mean", "sum", "amax", "amin", "max", "logsumexp", "softmax")
BITS = ("and", "rshift")
CURVED = ("tanh", "exp", "log", "sqrt", "rsqrt", "sigmoid", "erf", "square")
OF_EXPONENTIALS = ("exp", "expm1", "sigmoid", "tanh", "softmax", "logsumexp", "log", "erf", "erfc")
IN_BASE_2 = {"exp", "log", "logsumexp", "softmax"}
BASES = {"exp": "exp2", "log": "log2"}
WITH_NUMBERS = ("mul", "div", "rdiv", "add", "sub", "rsub")
COMPARISONS = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq"}


def _in_base_2(operation: Operation) -> torch.Tensor:
    """What an operation gives with 2 in the place of e."""
    name, x, ln2 = operation.site[1], operation.args[0], math.log(2)
    if name == "log":
        return operation.out / ln2
    return operation.of(x * ln2) / (ln2 if name == "logsumexp" else 1)


def _in_place_of(value: Any, out: torch.Tensor) -> torch.Tensor:
    """A factor or term as a result of the shape of another."""
    if not isinstance(value, torch.Tensor):
        return torch.full_like(out, float(value))
    return value.to(out.dtype).expand(out.shape).clone()


def _of_two(name: str, node: ast.expr, operation: Operation) -> Iterator[tuple[str, Step]]:
    """A product, quotient, sum or difference without one side, or the other way round."""
    numbers = [arg for arg in operation.args if not isinstance(arg, torch.Tensor)]
    of_sum = name in ("add", "sub", "rsub")
    if numbers:  # which side of a product or sum stands left in the code is not known
        words = f"without the {'term' if of_sum else 'factor' if name == 'mul' else 'quotient'} {numbers[0]:.4g}"
        yield words, lambda o: _in_place_of(o.args[0], o.out)
        if name == "mul":
            yield f"with the factor {numbers[0]:.4g} twice", lambda o: o.out * o.args[1]
            yield f"divided by {numbers[0]:.4g}", lambda o: o.args[0] / o.args[1]
        elif name in ("div", "add", "sub", "rsub"):
            word = "multiplied by" if name == "div" else "with the other sign before"
            other = {"div": "mul", "add": "sub", "sub": "add", "rsub": "add"}[name]
            yield f"{word} {numbers[0]:.4g}", lambda o: getattr(o.args[0], other)(o.args[1])
        for by, of in _scales(operation).items():
            text = f"with {by * numbers[0]:.4g}, {of} {numbers[0]:.4g}, in its place"
            yield text, partial(_with_number, by)
        return
    if not isinstance(node, ast.BinOp):
        return
    left, right = ast.unparse(node.left), ast.unparse(node.right)
    yield f"`{left}` alone", lambda o: _in_place_of(o.args[0], o.out)
    if name != "div":
        sign = -1.0 if name == "sub" else 1.0
        alone = ast.unparse(ast.UnaryOp(ast.USub(), node.right)) if sign < 0 else right
        yield f"`{alone}` alone", lambda o: _in_place_of(sign * o.args[1], o.out)
    turned = {"add": ast.Sub(), "sub": ast.Add(), "mul": ast.Div(), "div": ast.Mult()}[name]
    shown = ast.unparse(ast.BinOp(node.left, turned, node.right))
    if of_sum:
        other = {"add": "sub", "sub": "add"}[name]
        yield f"`{shown}`", lambda o: getattr(o.args[0], other)(o.args[1])
        yield f"with `{right}` twice", lambda o: o.of(o.out, o.args[1])
        yield f"with `{left}` twice", lambda o: o.out + o.args[0]
    else:
        yield f"`{shown}`", lambda o: o.args[0] / o.args[1] if name == "mul" else o.args[0] * o.args[1]
        yield f"{'multiplied' if name == 'mul' else 'divided'} by `{right}` twice", lambda o: o.of(o.out, o.args[1])


def _scales(operation: Operation) -> dict[float, str]:
    """What a number in a sum or product may be off by."""
    found = {2.0: "twice", 0.5: "half of"}
    if isinstance(operation.out, torch.Tensor):
        for size in sorted(set(operation.out.shape) - {0, 1, 2}):
            found |= {float(size): f"{size} times", 1 / size: f"1/{size} of"}
    return found


def _with_number(by: float, operation: Operation) -> Any:
    return operation.of(*(arg if isinstance(arg, torch.Tensor) else by * arg for arg in operation.args[:2]))


def _of_factor(operation: Operation, node: ast.expr) -> Iterator[tuple[str, Step]]:
    """A factor of a sum or difference that only one of the two terms gets."""
    for at in (0, 1):
        terms = operation.maker(at)
        shown = None if terms is None else expression_of(terms.site)
        if terms is None or shown is None or terms.site[1] not in ("add", "sub"):
            continue
        sides = ast.parse(shown, mode="eval").body
        if not isinstance(sides, ast.BinOp):
            continue
        for side, of_side in enumerate((sides.left, sides.right)):
            text = f"with `{ast.unparse(of_side)}` alone multiplied, not all of `{shown}`"
            yield text, partial(_one_term, at, side)


def _one_term(at: int, side: int, operation: Operation) -> torch.Tensor:
    terms = operation.maker(at)
    assert terms is not None
    parts = list(terms.args)
    parts[side] = parts[side] * operation.args[1 - at]
    return terms.of(*parts).expand(operation.out.shape)


def _of_term(operation: Operation, node: ast.expr) -> Iterator[tuple[str, Step]]:
    """A term that comes in before the factor or divisor of the other one, not after it."""
    factors = operation.maker()
    shown = None if factors is None else expression_of(factors.site)
    if factors is None or shown is None or factors.site[1] not in ("mul", "div") or not isinstance(node, ast.BinOp):
        return
    sides = ast.parse(shown, mode="eval").body
    if isinstance(sides, ast.BinOp):
        term = ast.unparse(node.left if isinstance(node.left, ast.Constant) else node.right)  # `1 + x` adds 1 to x
        first, then = sides.left, sides.right
        names = {name.id for name in ast.walk(first) if isinstance(name, ast.Name)}
        if not isinstance(factors.args[1], torch.Tensor) and names <= operation.run.params.keys():
            first, then = then, first  # `2 * x` is a product of x and 2
        how = "taken off" if isinstance(node.op, ast.Sub) else "added to"
        one, other = ast.unparse(first), ast.unparse(then)
        yield f"with `{term}` {how} `{one}`, before `{other}`", partial(_term_first, 0)
        if factors.site[1] == "mul" and all(isinstance(each, torch.Tensor) for each in factors.args[:2]):
            yield f"with `{term}` {how} `{other}`, before `{one}`", partial(_term_first, 1)


def _term_first(factor: int, operation: Operation) -> Any:
    factors = operation.maker()
    assert factors is not None
    args = list(factors.args)
    args[factor] = operation.of(args[factor])
    return factors.of(*args[:2]).expand(operation.out.shape)


def _of_first_slices(operation: Operation, node: ast.expr) -> Iterator[tuple[str, Step]]:
    """An argument whose first slice along an axis, or along all but the last two, is taken for every one: an index that
    is left out."""
    if isinstance(node, ast.BinOp):  # `2 * x` is a product of x and 2
        reflected = isinstance(node.left, ast.Constant)
        written: list[ast.expr | None] = [node.right, None] if reflected else [node.left, node.right]
    else:
        written = [None, node.args[0] if isinstance(node, ast.Call) and node.args else None]
    for at, (arg, source) in enumerate(zip(operation.args, written, strict=False)):
        if source is None or not isinstance(arg, torch.Tensor) or arg.ndim != operation.out.ndim:
            continue
        axes = [(axis,) for axis in range(arg.ndim) if arg.shape[axis] > 1]
        leading = tuple(axis for axis in range(arg.ndim - 2) if arg.shape[axis] > 1)
        for chosen in [*axes, *([leading] if len(leading) > 1 else [])]:
            along = " and ".join(f"axis {axis}" for axis in chosen)
            yield f"with `{ast.unparse(source)}` of index 0 along {along} for all", partial(_with_first, at, chosen)


def _with_first(at: int, axes: Sequence[int], operation: Operation) -> Any:
    value = operation.args[at]
    for axis in axes:
        value = value.narrow(axis, 0, min(1, value.shape[axis])).expand(value.shape)
    args = list(operation.args)
    args[at] = value
    return operation.of(*args)


def _of_product(operation: Operation) -> Iterator[tuple[str, Step]]:
    size = operation.args[0].shape[-1]
    for tile in _cut(size):
        text = f"without the last {size % tile} of {size} terms{_beyond(tile, size)}"
        yield text, partial(_terms, slice(0, size // tile * tile))
    if kept := _kept_by_halves(size):
        yield f"without {kept[0]} terms: {_halved(size)}", partial(_terms, kept[1])
    for tile in TILES:
        if tile < size and size % tile:
            yield f"of more than {size} terms: {_stale(tile)}", partial(_terms, _filled_up(size, tile))
    for tile in TILES:
        for side, operand in enumerate(("first", "second")):
            if tile < size:
                whose = f"in whose last tile, of {tile} of {size} terms"
                text = f"{whose}, the {operand} operand is still that of the one before"
                yield text, partial(_terms_of_one, side, (size - 1) // tile * tile, tile)
    for tile in TILES:
        if 2 * tile <= size:
            yield f"of the first {tile} of {size} terms alone", partial(_terms, slice(0, tile))
            last = (size - 1) // tile * tile
            yield f"of the last tile of terms alone, from {last} of {size} on", partial(_terms, slice(last, size))
    for parts in PARTS:
        if (whole := (parts - 1) * -(-size // parts)) < size:
            text = f"without the last of {parts} parts of its terms, from {whole} of {size} on"
            yield text, partial(_terms, slice(0, whole))
    if operation.out.is_floating_point():
        for dtype in (torch.bfloat16, torch.float16):
            text = f"a product of what is rounded to {str(dtype).removeprefix('torch.')}"
            yield text, partial(_of_rounded, dtype)


def _terms(chosen: slice | torch.Tensor, operation: Operation) -> torch.Tensor:
    """A product with some of its terms, or with some of them twice."""
    a, b = operation.args[:2]
    return operation.of(a[..., chosen], b[chosen] if b.ndim == 1 else b[..., chosen, :])


def _terms_of_one(side: int, last: int, tile: int, operation: Operation) -> torch.Tensor:
    """A product of which one operand has, from term `last` on, those of a tile before."""
    a, b = operation.args[:2]
    index = torch.arange(a.shape[-1], device=a.device)
    index = torch.where(index < last, index, index - tile)
    return operation.of(a if side else a[..., index], b.index_select(max(b.ndim - 2, 0), index) if side else b)


def _stale(tile: int) -> str:
    return f"beyond the last of them the last tile, of {tile}, still holds the one before"


def _filled_up(size: int, tile: int) -> torch.Tensor:
    """The indices of whole tiles, the last of which is filled up with those of the tile before."""
    index = torch.arange(-(-size // tile) * tile)
    return torch.where(index < size, index, index - tile)


def _cut(size: int) -> list[int]:
    """Tiles that do not divide a size, each of another number of whole ones."""
    found: dict[int, int] = {}
    for tile in TILES:
        if tile < size and size % tile:
            found.setdefault(size // tile * tile, tile)
    return list(found.values())


def _of_index(operation: Operation) -> Iterator[tuple[str, Step]]:
    """Other elements of a tensor: the first in place of a number's, all in place of a part."""
    index = operation.args[1]
    parts = index if isinstance(index, tuple) else (index,)
    if any(type(part) is int for part in parts):
        first = lambda part: 0 if type(part) is int else part  # noqa: E731
        yield "that of index 0, whatever the index", lambda o: o.args[0][_each(o.args[1], first)]
    for at, part in enumerate(parts):
        if isinstance(part, slice) and type(part.stop) is int and not part.start:
            yield "all up to the end", partial(_up_to_the_end, at)
            yield f"the last {part.stop}, not the first", partial(_the_last, at)
    yield from _of_rows(operation, parts)
    if any(_is_indices(part) for part in parts):
        zero = lambda part: torch.zeros_like(part) if _is_indices(part) else part  # noqa: E731
        yield "that of index 0, whatever the indices", lambda o: o.args[0][_each(o.args[1], zero)]
        plain = lambda part: _counted(part) if _is_indices(part) else part  # noqa: E731
        yield "of the indices 0, 1, 2, ... whatever they are", lambda o: o.args[0][_each(o.args[1], plain)]


def _of_rows(operation: Operation, parts: tuple[Any, ...]) -> Iterator[tuple[str, Step]]:
    """Of a list with a number for each element of an operand, such as bits that are packed, others: rows that are
    longer there, or begin with a whole word."""
    whole, count = operation.args[0], parts[0].stop if len(parts) == 1 and isinstance(parts[0], slice) else None
    if whole.ndim != 1 or count is None or parts[0].start:
        return
    operands = [x for x in operation.run.operands.values() if isinstance(x, torch.Tensor) and x.numel() == count]
    for size in sorted({x.shape[-1] for x in operands if x.ndim} - {0, 1, count}):
        starts = torch.arange(count) // size * size
        cols, rows = torch.arange(count) - starts, starts // size
        for padded in _padded(size):
            yield f"with rows of {padded}, not of {size}", partial(_picked, rows * padded + cols)
        for word in WORDS:
            text = f"with each row of {size} counted from the start of the {word} in which it begins"
            yield text, partial(_picked, starts // word * word + cols)


def _picked(index: torch.Tensor, operation: Operation) -> torch.Tensor:
    """Other elements of a list, as far as it goes."""
    whole = operation.args[0]
    return whole[index.clamp_max(len(whole) - 1)]


def _up_to_the_end(at: int, operation: Operation) -> torch.Tensor:
    return operation.args[0][_whole(operation.args[1], at)]


def _the_last(at: int, operation: Operation) -> torch.Tensor:
    index = operation.args[1]
    parts = list(index) if isinstance(index, tuple) else [index]
    if not isinstance(parts[at], slice):
        return operation.out
    parts[at] = slice(-parts[at].stop or operation.args[0].shape[0], None)
    return operation.args[0][tuple(parts)]


def _whole(index: Any, at: int) -> Any:
    """An index without the end of one of its slices."""
    if not isinstance(index, tuple):
        return slice(index.start, None)
    return (*index[:at], slice(index[at].start, None), *index[at + 1 :])


def _is_indices(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dtype is torch.int64 and part.ndim > 0


def _counted(part: torch.Tensor) -> torch.Tensor:
    return torch.arange(part.shape[-1], device=part.device).expand(part.shape).contiguous()


def _each(index: Any, change: Callable[[Any], Any]) -> Any:
    return tuple(change(part) for part in index) if isinstance(index, tuple) else change(index)


def _axis(operation: Operation) -> int | None:
    """The one axis of a reduction; None where there are several, or none is given."""
    dim = operation.kwargs.get("dim", operation.args[1] if len(operation.args) > 1 else None)
    return dim if isinstance(dim, int) else None


def _of_reduction(name: str, operation: Operation) -> Iterator[tuple[str, Step]]:
    """A mean, sum or maximum of other elements than all, or of another count."""
    dim, whole = _axis(operation), operation.args[0]
    if dim is None or not isinstance(operation.out, torch.Tensor):
        return
    size = whole.shape[dim]
    if name in ("mean", "sum"):
        other = "sum" if name == "mean" else "mean"
        yield f"the {other}, not the {name}", lambda o: o.out * o.args[0].shape[dim] ** (1 if name == "mean" else -1)
    if name == "mean" and size > 1:
        yield f"divided by {size} - 1", lambda o: o.out * o.args[0].shape[dim] / (o.args[0].shape[dim] - 1)
        for padded in sorted({-(-size // tile) * tile for tile in TILES} - {size}):
            yield f"divided by {padded}", partial(_divided, padded / size)
    if name in ("amax", "max"):
        yield "at least 0", lambda o: o.out.clamp_min(0)
    if name == "amin":
        yield "at most 0", lambda o: o.out.clamp_max(0)
    if name == "logsumexp":
        yield "in base 2: log2 of the sum of exp2", lambda o: o.of(o.args[0] * math.log(2)) / math.log(2)
        yield "the logarithm to base 2", lambda o: o.out / math.log(2)
        yield "without the logarithm: the sum", lambda o: o.out.exp()
        yield "the maximum alone", lambda o: o.args[0].amax(*o.args[1:], **o.kwargs)
        of_sum = "the maximum and the logarithm of the sum of powers of its distances, "
        yield f"{of_sum}the maximum divided by ln 2 alone", partial(_of_maximum, 1 / math.log(2))
        yield f"{of_sum}the logarithm alone to base 2", partial(_log_of_sum, 1 / math.log(2))
        if (factor := _factor_of(operation)) is not None:
            yield f"{of_sum}the maximum being that before `* {factor[1]}`", _maximum_before_factor
    if name in ("logsumexp", "softmax"):
        for tile in (1, *TILES):
            if tile < size:
                each = f"in tiles of {tile}" if tile > 1 else "of one element after the other"
                text = f"of a running sum {each} that is not scaled anew where the maximum grows"
                yield text, partial(_not_scaled, dim, tile)
        for tile in TILES:
            if WARP <= tile < size:
                text = f"of {tile} running sums, by the index modulo {tile}, that are not scaled anew where their"
                yield f"{text} maximum grows", partial(_lanes_not_scaled, dim, tile)
                text = f"of {tile} sums, by the index modulo {tile}, of each less its own maximum"
                yield text, partial(_lanes_own_maximum, dim, tile)
            if tile < size:
                yield f"of tiles of {tile}, of each less its own maximum", partial(_own_maximum, dim, tile)
                text = f"NaN in rows whose first tile, of {tile}, is all -inf: -inf less a maximum of -inf"
                yield text, partial(_hidden_first, dim, tile)
    if name in ("logsumexp", "softmax"):
        yield f"of an empty sum, without all {size}", partial(_of_part, dim, 0, 0)
    if name == "softmax":
        yield "of powers of e over a sum of powers of 2", partial(_in_two_bases, dim, math.e, 2.0)
        yield "of powers of 2 over a sum of powers of e", partial(_in_two_bases, dim, 2.0, math.e)
        yield "not divided by its sum", lambda o: (o.args[0] - o.args[0].amax(dim, keepdim=True)).exp()
    for tile in _cut(size):
        whole_tiles = size // tile * tile
        beyond = _beyond(tile, size, tree=name != "softmax" and size <= TILES[-1])
        yield f"without the last {size % tile} of {size}{beyond}", partial(_of_part, dim, 0, whole_tiles)
    if name != "softmax" and (kept := _kept_by_halves(size)):
        yield f"without {kept[0]}: {_halved(size)}", partial(_of_indices, dim, kept[1])
    for tile in TILES:
        if 2 * tile <= size:
            yield f"of the first {tile} of {size} alone", partial(_of_part, dim, 0, tile)
            last = (size - 1) // tile * tile
            yield f"of the last tile alone, from {last} of {size} on", partial(_of_part, dim, last, size)
        if tile < size and size % tile and name not in ("softmax", "logsumexp", "amax", "amin", "max"):
            stale = partial(_of_indices, dim, _filled_up(size, tile))
            yield f"of more than {size}: {_stale(tile)}", stale
        if tile <= size and name != "softmax":
            half = tile // 2
            text = f"of the elements whose index has {half} as no part of it, of {size}: a step of its tree is left out"
            yield text, partial(_of_indices, dim, _lanes(size, tile, half))
            if operation.kwargs.get("keepdim"):
                text = f"of each element's own half of every {tile} of {size}: a step of its tree is left out"
                yield text, partial(_own_half, dim, half)
        if WARP < tile < size and name != "softmax":
            most, first = (partial(_of_indices, dim, _lanes(size, tile, lanes)) for lanes in (tile - WARP, WARP))
            yield f"without the last {WARP} of each {tile} of {size}", most
            if tile > 2 * WARP:
                yield f"of the first {WARP} of each {tile} of {size} alone", first
    if name == "softmax" or (name in ("mean", "sum") and operation.kwargs.get("keepdim")):
        index = torch.arange(size)
        for tile in TILES:
            if tile < size:
                text = f"of each element's own tile of {tile} of {size} alone: the tiles are not brought together"
                yield text, partial(_own, dim, index // tile)
            if WARP < tile < size:
                text = f"of each element's own warp alone, {WARP} of each {tile} of {size}: the warps' are not brought"
                yield f"{text} together", partial(_own, dim, index % tile // WARP)


def _factor_of(operation: Operation) -> tuple[float, str] | None:
    """The number that an argument was multiplied by last, masked since then or not, and as it is written."""
    maker = operation.maker()
    while maker is not None and maker.site[1] == "masked_fill":
        maker = maker.maker()
    shown = None if maker is None else expression_of(maker.site)
    if maker is None or shown is None or maker.site[1] != "mul" or len(maker.args) != 2:
        return None
    number, node = maker.args[1], ast.parse(shown, mode="eval").body
    if isinstance(number, torch.Tensor) or number in (0, 1) or not isinstance(node, ast.BinOp):
        return None
    return float(number), ast.unparse(ast.BinOp(ast.Name("x"), ast.Mult(), node.right)).removeprefix("x * ")


def _maximum_before_factor(operation: Operation) -> torch.Tensor:
    factor = _factor_of(operation)
    assert factor is not None
    return _of_maximum(1 / factor[0], operation)


def _of_maximum(by: float, operation: Operation) -> torch.Tensor:
    """The logarithm of a sum, whose maximum, taken out of it, comes back in so many times."""
    largest = operation.args[0].amax(*operation.args[1:], **operation.kwargs)
    return torch.where(largest.isfinite(), operation.out + (by - 1) * largest, operation.out)


def _log_of_sum(by: float, operation: Operation) -> torch.Tensor:
    """The logarithm of a sum, of which the part beside the maximum counts so many times."""
    largest = operation.args[0].amax(*operation.args[1:], **operation.kwargs)
    return torch.where(largest.isfinite(), largest + by * (operation.out - largest), operation.out)


def _beyond(tile: int, size: int, tree: bool = False) -> str:
    """Beyond which whole tiles elements lie that are left out: several tiles leave out the same, and so may a tree."""
    largest = max(other for other in TILES if other < size and size // other * other == size // tile * tile)
    text = f", beyond whole tiles of {tile}" + (f" to {largest}" if largest > tile else "")
    if tree and _lost_by_halves(size) == list(range(size // tile * tile, size)):
        return f"{text}, or {_halved(size)}"
    return text


def _halved(size: int) -> str:
    return f"what a tree over {size} threads loses where it halves an odd number"


def _lost_by_halves(size: int) -> list[int]:
    """The indices of the elements that a reduction loses which, half by half in whole numbers, adds element i + half to
    element i of each i below it: none where the size is a power of two."""
    kept = {0}
    for step in range(size.bit_length() - 1, 0, -1):
        kept |= {index + (size >> step) for index in kept}
    return [index for index in range(size) if index not in kept]


def _kept_by_halves(size: int) -> tuple[str, torch.Tensor] | None:
    """What such a reduction loses, in words, and the indices that it keeps; None where it loses nothing, or what lies
    beyond whole tiles."""
    lost = _lost_by_halves(size) if size <= TILES[-1] else []
    if not lost or lost[0] == size - len(lost):
        return None
    shown = ", ".join(str(index) for index in lost)
    kept = torch.tensor([index for index in range(size) if index not in lost])
    return f"{shown if len(shown) <= LISTED else len(lost)} of {size}", kept


def _of_indices(dim: int, index: torch.Tensor, operation: Operation) -> torch.Tensor:
    """A reduction of the elements of some indices, of which a mean still divides by the number of all."""
    whole = operation.args[0]
    found = operation.of(whole.index_select(dim, index))
    return found * len(index) / whole.shape[dim] if operation.site[1] == "mean" else found


def _of_part(dim: int, start: int, stop: int, operation: Operation) -> torch.Tensor:
    """A reduction of some elements alone, of which a mean still divides by the number of all."""
    whole = operation.args[0]
    part = whole.narrow(dim, start, stop - start)
    if operation.site[1] == "softmax":
        return (whole - part.logsumexp(dim, keepdim=True)).exp()
    found = operation.of(part)
    return found * (stop - start) / whole.shape[dim] if operation.site[1] == "mean" else found


def _addends(dim: int, tile: int, operation: Operation) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the argument, its axis last: the powers of its distances from the maximum that was known when a tile came; and
    that known at the end."""
    x = operation.args[0].movedim(dim, -1)
    known = x.cummax(-1).values[..., [min(stop, x.shape[-1]) - 1 for stop in _ends(x.shape[-1], tile)]]
    addends = (x - known.repeat_interleave(tile, -1)[..., : x.shape[-1]]).exp()
    return addends.masked_fill(x == -math.inf, 0.0), known[..., -1]


def _all_kept(dim: int, tile: int, operation: Operation) -> torch.Tensor:
    """A softmax whose addends and numerators keep the maximum that was known when they came."""
    if not operation.args[0].numel():
        return operation.out
    addends, _ = _addends(dim, tile, operation)
    return (addends / addends.sum(-1, keepdim=True)).movedim(-1, dim)


def _not_scaled(dim: int, tile: int, operation: Operation) -> torch.Tensor:
    """A softmax, or the logarithm of the sum, whose addends keep the maximum that was known when they came."""
    if not operation.args[0].numel():
        return operation.out
    x = operation.args[0].movedim(dim, -1)
    addends, last = _addends(dim, tile, operation)
    total = addends.sum(-1)
    if operation.site[1] == "softmax":
        return ((x - last[..., None]).exp() / total[..., None]).movedim(-1, dim)
    found = last + total.log()
    return found.reshape(operation.out.shape)


def _merged(dim: int, split: int, by: float, operation: Operation) -> torch.Tensor:
    """A softmax, or the logarithm of the sum, of splits whose weights are powers of their logarithms, times a
    number, less the largest."""
    x = operation.args[0].movedim(dim, -1)
    if not x.numel():
        return operation.out
    of_splits = torch.stack([part.logsumexp(-1) for part in x.split(split, -1)], -1)
    base = of_splits.amax(-1, keepdim=True).nan_to_num(neginf=0.0, nan=math.nan, posinf=math.inf)
    weights = (by * (of_splits - base)).exp()
    total = weights.sum(-1, keepdim=True)
    if operation.site[1] == "logsumexp":
        return (base + total.log()).reshape(operation.out.shape)
    own = of_splits.masked_fill(of_splits == -math.inf, 0.0)
    own, shares = (value.repeat_interleave(split, -1)[..., : x.shape[-1]] for value in (own, weights / total))
    return ((x - own).exp() * shares).movedim(-1, dim)


def _in_two_bases(dim: int, above: float, below: float, operation: Operation) -> torch.Tensor:
    """A softmax whose numerators are powers of another number than those in its sum."""
    less = operation.args[0] - operation.args[0].amax(dim, keepdim=True)
    return torch.pow(above, less) / torch.pow(below, less).sum(dim, keepdim=True)


def _lanes_not_scaled(dim: int, lanes: int, operation: Operation) -> torch.Tensor:
    """A softmax, or the logarithm of the sum, of running sums of every `lanes`-th element each, whose addends keep the
    maximum that their sum knew when they came; the sums are brought together as they have to be."""
    x = _in_lanes(dim, lanes, operation)
    known = x.cummax(-2).values
    total = (x - known).exp().masked_fill(x == -math.inf, 0.0).sum(-2)
    return _by_log_sum(dim, (known[..., -1, :] + total.log()).logsumexp(-1), operation)


def _lanes_own_maximum(dim: int, lanes: int, operation: Operation) -> torch.Tensor:
    """A softmax, or the logarithm of the sum, of sums of every `lanes`-th element each, about maxima of their own, that
    are added as they are."""
    x = _in_lanes(dim, lanes, operation)
    apart = (x - x.amax(-2, keepdim=True)).exp().masked_fill(x == -math.inf, 0.0)
    return _by_log_sum(dim, x.amax((-2, -1)) + apart.sum((-2, -1)).log(), operation)


def _in_lanes(dim: int, lanes: int, operation: Operation) -> torch.Tensor:
    """The argument of a reduction, its axis last and parted as (rows, lanes), with -inf behind it."""
    x = operation.args[0].movedim(dim, -1)
    rows = -(-x.shape[-1] // lanes)
    return torch.nn.functional.pad(x, (0, rows * lanes - x.shape[-1]), value=-math.inf).unflatten(-1, (rows, lanes))


def _by_log_sum(dim: int, log_sum: torch.Tensor, operation: Operation) -> torch.Tensor:
    """What a softmax, or the logarithm of the sum, gives with another logarithm of its sum."""
    if operation.site[1] == "softmax":
        return (operation.args[0] - log_sum.unsqueeze(-1).movedim(-1, dim)).exp()
    return log_sum.reshape(operation.out.shape)


def _own_maximum(dim: int, tile: int, operation: Operation) -> torch.Tensor:
    """A softmax, or the logarithm of the sum, of tiles whose maxima do not meet."""
    x = operation.args[0].movedim(dim, -1)
    apart = torch.cat([(part - part.amax(-1, keepdim=True)).exp() for part in x.split(tile, -1)], -1)
    if operation.site[1] == "softmax":
        return (apart / apart.sum(-1, keepdim=True)).movedim(-1, dim)
    return (x.amax(-1) + apart.sum(-1).log()).reshape(operation.out.shape)


def _hidden_first(dim: int, tile: int, operation: Operation) -> torch.Tensor:
    """NaN where a running maximum is still -inf after the first tile."""
    first = operation.args[0].narrow(dim, 0, tile).amax(dim, keepdim=operation.out.ndim == operation.args[0].ndim)
    return operation.out.masked_fill(first == -math.inf, math.nan)


def _own(dim: int, part: torch.Tensor, operation: Operation) -> torch.Tensor:
    """A mean or sum, for each element along an axis, of the elements of its own part, by the parts' numbers; a mean
    still divides by the number of all, and a softmax takes the maximum of all."""
    whole, is_softmax = operation.args[0], operation.site[1] == "softmax"
    addends = (whole - whole.amax(dim, keepdim=True)).exp() if is_softmax else whole
    sums = torch.zeros_like(whole).index_add_(dim, part, addends).index_select(dim, part)
    if is_softmax:
        return addends / sums
    return sums / len(part) if operation.site[1] == "mean" else sums


def _ends(size: int, tile: int) -> range:
    return range(tile, size + tile, tile)


def _lanes(size: int, tile: int, lanes: int) -> torch.Tensor:
    """The indices of the first `lanes` elements of each tile."""
    index = torch.arange(size)
    return index[index % tile < lanes]


def _own_half(dim: int, half: int, operation: Operation) -> torch.Tensor:
    """Of each element along an axis, the reduction of those whose index has `half` as a part where its own has, and not
    where it has not: lanes that did not exchange in one step."""
    whole = operation.args[0]
    side = (torch.arange(whole.shape[dim]) & half) != 0
    parts = [operation.of(whole.index_select(dim, at.nonzero().flatten())) for at in (~side, side)]
    if operation.site[1] == "mean":
        parts = [part * int(at.sum()) / len(side) for part, at in zip(parts, (~side, side), strict=True)]
    return torch.cat(parts, dim).index_select(dim, side.long())


def _divided(by: float, operation: Operation) -> torch.Tensor:
    return operation.out / by


def _rounded(dtype: torch.dtype, operation: Operation) -> torch.Tensor:
    return operation.out.to(dtype).to(operation.out.dtype)


def _of_rounded(dtype: torch.dtype, operation: Operation) -> torch.Tensor:
    return operation.of(*(x.to(dtype).to(x.dtype) for x in operation.args[:2]))


def _of_triangle(name: str, operation: Operation) -> Iterator[tuple[str, Step]]:
    yield "from the top left: of the diagonal 0", lambda o: o.func(o.args[0])
    for by in (1, -1):
        text = f"of the diagonal one {'later' if by > 0 else 'earlier'}"
        yield text, partial(_moved_by, by)
    params = operation.run.params
    counts = [name for name, value in params.items() if type(value) is int and value > 0]
    moved = {pair: params[pair[0]] - params[pair[1]] for pair in itertools.permutations(counts, 2)}
    even = "".join(f" or {one} - {other}, which is 0" for (one, other), by in moved.items() if by == 0 and one < other)
    for tile in TILES if name == "tril" else ():
        if WARP // 2 <= tile < operation.out.shape[-1]:
            text = f"without what lies beyond the end of the row's tile of {tile}, counted from"
            yield (
                f"{text} the top left{even}: a loop that ends there, whatever the diagonal",
                partial(_within_tiles, tile, 0),
            )
            for (one, other), by in moved.items():
                if by:
                    end = f"{one} - {other}: a loop that ends there, whatever the diagonal"
                    yield f"{text} {end}", partial(_within_tiles, tile, by)


def _within_tiles(tile: int, by: int, operation: Operation) -> torch.Tensor:
    """A triangle of which a row's elements beyond the end of the tile that the row itself lies in are 0, or of the tile
    in which that end moved by a number lies."""
    rows, cols = (torch.arange(size) for size in operation.out.shape[-2:])
    return operation.out * (cols < (rows // tile + 1 - (-by // tile))[:, None] * tile)


def _moved_by(by: int, operation: Operation) -> torch.Tensor:
    return operation.func(operation.args[0], (operation.args[1] if len(operation.args) > 1 else 0) + by)


def _of_bits(name: str, operation: Operation) -> Iterator[tuple[str, Step]]:
    """A part of an integer's bits, taken with its sign."""
    number = operation.args[1]
    if not isinstance(number, int) or isinstance(number, bool) or operation.out.is_floating_point():
        return
    bits = (number + 1).bit_length() - 1
    if name == "rshift":
        largest = int(operation.args[0].max()) if operation.args[0].numel() else 0
        bits = next((8 * size for size in (1, 2, 4) if largest < 1 << 8 * size), 0) - number
    elif number & (number + 1):
        return
    if 1 < bits < 32:
        half = 1 << (bits - 1)
        yield f"of signed numbers: of {half} and more, less {2 * half}", partial(_signed, half)


def _signed(half: int, operation: Operation) -> torch.Tensor:
    """Numbers below 2 * half of which the upper half stands for negative ones."""
    return operation.out - 2 * half * (operation.out >= half)


def _repeated(operation: Operation) -> torch.Tensor:
    value, times, dim = operation.args[0], operation.args[1], operation.args[2]
    counts = [1] * value.ndim
    counts[dim] = times
    return value.repeat(counts)


def _argument(node: ast.expr, at: int) -> str:
    return ast.unparse(node.args[at]) if isinstance(node, ast.Call) and at < len(node.args) else "the first"


def _rooted_first(operation: Operation) -> torch.Tensor | None:
    """1/(sqrt(a) + b), or sqrt(a) + b, in place of 1/sqrt(a + b) and sqrt(a + b)."""
    sum_of = operation.maker()
    if sum_of is None or sum_of.site[1] != "add" or isinstance(sum_of.args[1], torch.Tensor):
        return operation.out
    root = sum_of.args[0].sqrt() + sum_of.args[1]
    return 1 / root if operation.site[1] == "rsqrt" else root


def _earlier(operation: Operation) -> Iterator[tuple[str, Step]]:
    """What an operation gives where an argument is taken as it was a step before."""
    for position, arg in enumerate(operation.args[:2]):
        maker = operation.maker(position)
        shown = None if maker is None else expression_of(maker.site)
        if maker is None or shown is None or not isinstance(arg, torch.Tensor):
            continue
        node = ast.parse(shown, mode="eval").body
        for side, part in enumerate(maker.args[:2]):
            if isinstance(part, torch.Tensor) and part.shape == arg.shape and part.dtype == arg.dtype:
                before = ""
                if isinstance(node, ast.BinOp) and all(isinstance(x, torch.Tensor) for x in maker.args[:2]):
                    before = f"`{ast.unparse(node.right if side else node.left)}`"
                text = f"taken of {before or 'what goes into it'}, not of `{shown}`"
                yield text, partial(_with_earlier, position, side)


def _with_earlier(position: int, side: int, operation: Operation) -> Any:
    maker = operation.maker(position)
    assert maker is not None
    args = list(operation.args)
    args[position] = maker.args[side]
    return operation.of(*args)
