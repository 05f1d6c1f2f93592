"""What cases may have in common that tells of a kernel: what they have apart from sizes, bounds of sizes, multiples,
tiles, and what two sizes are to one another."""

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from touchstone.conformance.discovery import registry
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.contract import GRID_LIMIT, Case, From

FAILING = 2  # fewest cases, or sizes, of which something is said
FAR = 4  # times all sizes that pass: one case tells
MULTIPLES = (2, 4, 8, 16, 32, 64, 128)
OF_TILES = 5  # of these: what is told of 2 and 4 is, as a rule, told of 8
TILES = (8, 16, 32, 64, 128, 256, 512, 1024)
USUAL = [2**k for k in range(3, 24)]  # sizes at which kernels change; and from one to several
HALF = "a dtype of 16 bits"
ODD_OFFSET = "at an odd offset"  # contiguous, and at no multiple of 16 bytes
LAST_STRIDE = "with a last stride other than 1"


@dataclass(frozen=True)
class Trait:
    """Something that a case can have: in words, and as many of the passing cases as have it too."""

    text: str
    passing: int
    has: Callable[[Case], bool]
    far: bool = False  # a size far beyond all of those that pass, of which one case tells
    relation: bool = False  # of two sizes
    order: tuple[str, str] | None = None  # of two sizes of a like kind: which one is the greater
    among: int = 0  # of sizes alone, and of so many like it
    sizes: int | None = None  # of which a bound is true
    of: str = ""  # the size, or what follows from sizes, that it is about


def had_by_all(cases: Sequence[Case]) -> list[str]:
    """What all cases have, in words."""
    words = [text for text in words_of(cases[0]) if all(text in words_of(case) for case in cases[1:])]
    return [text for text in words if text != HALF or f"dtype {cases[0].dtype}" not in words]


def traits_of(wrong: Sequence[Case], right: Sequence[Case]) -> Iterable[Trait]:
    also = [set(words_of(case)) for case in right]
    for text in had_by_all(wrong):
        yield Trait(text, sum(text in words for words in also), partial(says, text))
    yield from _relations(wrong, right)
    yield from _orders(wrong, right)
    sizes, known = [numbers_of(case) for case in wrong], [numbers_of(case) for case in right]
    bounds = 2 * len(sizes[0])
    if (grid := _of_grid(wrong, right)) is not None:
        yield grid
    for name in sizes[0]:
        if not all(name in size for size in [*sizes, *known]):
            continue
        least, most = min(size[name] for size in sizes), max(size[name] for size in sizes)
        beyond = [size[name] for size in known if size[name] >= least]
        below = [size[name] for size in known if size[name] <= most]
        largest, smallest = (f(size[name] for size in known) for f in (max, min))
        every = list(zip([*wrong, *right], [*sizes, *known], strict=True))
        if len(beyond) < len(known):
            count = len({measure_of(case, name) for case, size in every if size[name] >= least})
            up_to = "" if beyond else f" (right up to {largest})"
            usual = least == 2 or any((largest if not beyond else least - 1) <= tile <= least for tile in USUAL)
            usual = usual or (not beyond and (largest == 2 or largest <= 0 < least))
            far = least >= FAR * largest > 0
            text = f"{name} from {least} on{up_to}"
            if grid is not None and grid.of == name:
                continue
            yield Trait(
                text,
                len(beyond),
                _where(name, partial(operator.le, least)),
                far,
                among=0 if usual else bounds,
                sizes=count,
                of=name,
            )
        if len(below) < len(known):
            count = len({measure_of(case, name) for case, size in every if size[name] <= most})
            from_on = "" if below else f" (right from {smallest} on)"
            usual = (
                most == 1
                or (not below and most < 0 <= smallest)
                or any(most <= tile <= (smallest if not below else most + 1) for tile in USUAL)
            )
            text = f"{name} up to {most}{from_on}"
            yield Trait(
                text,
                len(below),
                _where(name, partial(operator.ge, most)),
                among=0 if usual else bounds,
                sizes=count,
                of=name,
            )
        yield from _of_tiles(name, [size[name] for size in sizes], [size[name] for size in known], len(sizes[0]))
    yield from _quotients(sizes, known)


def _of_grid(wrong: Sequence[Case], right: Sequence[Case]) -> Trait | None:
    """Of cases that are there for their many rows, where these are counted along several axes: the product that is
    beyond the blocks of a grid."""
    names = _counted(wrong[0])
    if len(names) < 2 or any(_counted(case) != names for case in wrong):
        return None

    def rows(case: Case) -> int:
        return math.prod(sizes_of(case)[name] for name in names)

    least, largest = min(map(rows, wrong)), max(map(rows, right), default=0)
    if largest > GRID_LIMIT:
        return None
    text = (
        f"{'*'.join(names)} from {least} on (right up to {largest}), more than the {GRID_LIMIT} blocks of a grid along "
        f"y or z"
    )
    most = max(names, key=lambda name: sizes_of(wrong[0])[name])
    return Trait(text, 0, lambda case: rows(case) >= least, far=least >= FAR * largest > 0, of=most)


def _counted(case: Case) -> list[str]:
    """The first axes of an output, or else of an operand, that have more places together than a grid has blocks; none
    where the case is not there for them."""
    contract = registry.contract(case.op)
    if not contract.is_beyond_grid(case):
        return []
    sizes = sizes_of(case)
    shapes = [contract.output_axes(name, case) for name in contract.outputs]
    shapes += [contract.operand_axes(name, case) for name in contract.operands]
    for axes in (shape.split() for shape in shapes):
        for count in range(1, len(axes) + 1):
            names = axes[:count]
            if set(names) <= set(sizes) and math.prod(sizes[name] for name in names) > GRID_LIMIT:
                return [name for name in names if sizes[name] > 1]
    return []


def _of_tiles(name: str, wrong: Sequence[int], right: Sequence[int], count: int) -> Iterable[Trait]:
    """What a size has to do with tiles, one of `count`: multiples, the powers of two, whole tiles, what is left beyond
    one."""
    odd = [tile for tile in MULTIPLES if all(n % tile for n in wrong) and not any(n % tile for n in right)]
    if odd:
        among = f" (or of {odd[-1]})" if len(odd) > 1 else ""
        has = _where(name, lambda n: n % odd[0] > 0)
        yield Trait(f"{name} no multiple of {odd[0]}{among}", 0, has, among=OF_TILES * count, of=name)
    if all(n & (n - 1) for n in wrong) and not any(n & (n - 1) for n in right):
        yield Trait(f"{name} no power of two", 0, _where(name, lambda n: n & (n - 1) > 0), among=count, of=name)
    whole = [tile for tile in MULTIPLES if not any(n % tile for n in wrong) and all(n % tile for n in right)]
    if whole and min(wrong) > 0:
        has = _where(name, lambda n: n % whole[-1] == 0)
        yield Trait(f"{name} a multiple of {whole[-1]}", 0, has, among=OF_TILES * count, of=name)
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
        has = _where(name, lambda n: n > beyond[0] and n % beyond[0] > 0)
        yield Trait(
            f"{name} beyond {beyond[0]}{among} and no multiple of it", 0, has, among=len(TILES) * count, of=name
        )


def _quotients(wrong: Sequence[dict[str, int]], right: Sequence[dict[str, int]]) -> Iterable[Trait]:
    """Two sizes of which the one goes into the other, in all cases, an odd number of times in those of the one kind."""
    every = [*wrong, *right]
    names = [name for name in wrong[0] if all(size.get(name, 0) > 0 for size in every)]
    for one, other in itertools.permutations(names, 2):
        if any(size[one] % size[other] for size in every):
            continue
        odd, even = ([size[one] // size[other] % 2 for size in some] for some in (wrong, right))
        if all(odd) and not any(even):
            has = _both(one, other, lambda n, by: by > 0 and n % by == 0 and n // by % 2 == 1)
            yield Trait(f"{one}/{other} odd", 0, has, among=len(names) * (len(names) - 1))


def _relations(wrong: Sequence[Case], right: Sequence[Case]) -> Iterable[Trait]:
    """Two sizes that are equal in all cases of the one kind, in two sizes at least, and in none of the other; or of
    which one is twice the other so."""
    sizes, known = [sizes_of(case) for case in wrong], [sizes_of(case) for case in right]
    pairs = [(one, other, 1) for one, other in itertools.combinations(sizes[0], 2)]
    for one, other, times in [*pairs, *((one, other, 2) for one, other in itertools.permutations(sizes[0], 2))]:
        if not all(one in size and other in size for size in [*sizes, *known]):
            continue
        name = other if times == 1 else f"2 {other}"
        for equal, apart, text, compare in (
            (known, sizes, f"{one} other than {name}", operator.ne),
            (sizes, known, f"{one} equal to {name}", operator.eq),
        ):
            if any(size[one] != times * size[other] for size in equal):
                continue
            if any(size[one] == times * size[other] for size in apart):
                continue
            if len({size[one] for size in equal}) >= FAILING:
                yield Trait(text, 0, _both(one, other, partial(_times, compare, times)), relation=True)


def _orders(wrong: Sequence[Case], right: Sequence[Case]) -> Iterable[Trait]:
    """Two sizes of a like kind of which the one is greater in all cases of the one kind, and in none of the other."""
    sizes, known = [sizes_of(case) for case in wrong], [sizes_of(case) for case in right]
    for pair in pairs_alike(wrong[0]):
        if not all(name in size for name in pair for size in [*sizes, *known]):
            continue
        for one, other in itertools.permutations(pair):
            greater, also = ([size[one] > size[other] for size in some] for some in (sizes, known))
            if all(greater) and not any(also):
                yield Trait(f"{one} greater than {other}", 0, _both(one, other, operator.gt), relation=True, order=pair)
            if all(also) and not any(greater):
                yield Trait(
                    f"{one} not greater than {other}", 0, _both(one, other, operator.le), relation=True, order=pair
                )


def says(text: str, case: Case) -> bool:
    return text in words_of(case)


def has_several(name: str, case: Case) -> bool:
    """Whether there is more than one of something in a case."""
    return counts_of(case).get(name, 0) >= 2


def _where(name: str, is_so: Callable[[int], bool]) -> Callable[[Case], bool]:
    """Whether something is so of one of a case's numbers, where it has it."""
    return lambda case: name in (numbers := numbers_of(case)) and is_so(numbers[name])


def _both(one: str, other: str, are_so: Callable[[int, int], bool]) -> Callable[[Case], bool]:
    """The same of two of its numbers."""
    return lambda case: {one, other} <= set(numbers := numbers_of(case)) and are_so(numbers[one], numbers[other])


def _times(compare: Callable[[int, int], bool], times: int, one: int, other: int) -> bool:
    return compare(one, times * other)


def pairs_alike(case: Case) -> list[tuple[str, str]]:
    """The pairs of sizes of a like kind: of queries and of keys."""
    sizes = sizes_of(case)
    return [(name, f"{name[:-1]}k") for name in sizes if name.endswith("q") and f"{name[:-1]}k" in sizes]


def looked_at(case: Case) -> int:
    """How many traits are looked at: two bounds of each size, and what a case has apart from sizes, but what follows
    from that."""
    own = [text for text in words_of(case) if text != HALF and not text.endswith(LAST_STRIDE)]
    return 2 * len(numbers_of(case)) + len(own)


def words_of(case: Case) -> list[str]:
    """What a case has apart from sizes, in words."""
    found = [f"dtype {case.dtype}", *([HALF] if case.torch_dtype.itemsize == 2 else []), f"values {case.values}"]
    for name, layout in case.layouts:
        found.append(f"{name} not given" if layout == "none" else f"{name} given")
        if layout == "offset":
            found.append(f"{name} {ODD_OFFSET}")
        elif layout not in ("none", "contiguous"):
            found += [f"{name} not contiguous", f"{name} {layout}"]
            if layouts.has_last_stride(registry.contract(case.op).operand_shape(name, case), layout):
                found.append(f"{name} {LAST_STRIDE}")
    found += [f"{name} {dtype}" for name, dtype in case.dtypes]
    found += [f"{name}={value}" for name, value in case.params if not isinstance(value, From)]
    found += [f"{len(size)} axes as {name}" for name, size in case.sizes if isinstance(size, tuple)]
    return [*found, "a size of 0"] if not case.filled else found


def measure_of(case: Case, name: str) -> tuple:
    """What a case has that decides a size, or what follows from sizes: cases of one measure are one."""
    return case.sizes, dict(_whole(case)).get(name.rpartition("/")[2])


def counts_of(case: Case) -> dict[str, int]:
    """Of what a case may have more than one, by name."""
    return {**dict(_whole(case)), **{name: n for name, n in numbers_of(case).items() if " - " not in name}}


def _whole(case: Case) -> list[tuple[str, int]]:
    """The parameters of a case that are whole numbers beyond 0."""
    return [(name, value) for name, value in case.params if type(value) is int and value > 0]


def numbers_of(case: Case) -> dict[str, int]:
    """The sizes of a case by name, and what follows from them that kernels depend on."""
    found = sizes_of(case)
    if found.get("Hq") and found.get("Hkv"):
        found["Hq/Hkv"] = found["Hq"] // found["Hkv"]
    if "Sq" in found and "Sk" in found:
        found["Sk - Sq"] = found["Sk"] - found["Sq"]
    for (name, size), (by, count) in itertools.product(sizes_of(case).items(), _whole(case)):
        if size % count == 0:  # of groups, say
            found[f"{name}/{by}"] = size // count
    return found


def sizes_of(case: Case) -> dict[str, int]:
    return {name: size for name, size in case.sizes if isinstance(size, int)}
