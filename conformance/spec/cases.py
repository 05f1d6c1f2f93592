"""From a contract's axes to cases: each value once (quick), every pair of values (default), more (thorough)."""

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from touchstone.conformance.spec.contract import BEYOND_LARGEST, DTYPES, Case, Contract, Draw, Operand, dtype_name
from touchstone.conformance.spec.layouts import BROADCASTS, FAR_LAYOUTS, PLANS, far_axis
from touchstone.conformance.spec.words import expected_one_of

LEVELS = ("quick", "default", "thorough")
PRODUCT_LIMIT = 1500  # cases of the full product on the smallest shape; a seeded sample beyond
RETRIES = 60
LONG = 1000  # from which on an axis is longer than a tile
VECTOR = 8  # elements of 16 bits that are loaded at once, twice as many as of 32
LAYOUTS = 12  # of many calls, those that are tried: a fourth of the calls
LENGTHS = (64, 50, 59)  # of one axis after another: whole tiles, then less than before, then more
STEP, LITTLE = 8, 1e6  # by which the others are longer: what takes multiples takes those too; and the most work
REGULAR_SIZES = {"quick": 5}  # of a contract's regular sizes; at other levels all of them
REGULAR_FAMILIES = {"quick": 1, "default": 4}  # with each size, parameters and dtype; at level thorough all of them


@dataclass
class Plan:
    """The cases of one op at one level, and what was left out."""

    cases: list[Case]
    regular: frozenset[Case] = frozenset()  # those that are there only for kernels with the usual restrictions
    also: frozenset[Case] = frozenset()  # the contract's single cases, and those of pairs of options
    infeasible: list[str] = field(default_factory=list)  # pairs of axis values that the contract's `valid` rules out
    sampled_out: int = 0  # cases of a full product that the limit dropped
    over_ceiling: int = 0  # cases with more work than the target's ceiling
    elsewhere: int = 0  # cases that other variants of a ladder are judged on in this one's stead

    @property
    def general(self) -> list[Case]:
        """The cases without those for kernels with the usual restrictions, and without the contract's single ones."""
        return [case for case in self.cases if case not in self.regular and case not in self.also]


def plan(contract: Contract, level: str, seed: int = 0, dtypes: Sequence[str] | None = None) -> Plan:
    """All cases of `contract` at `level`; deterministic in (op, level, seed)."""
    if level not in LEVELS:
        raise ValueError(f"level: {expected_one_of(level, LEVELS)}")
    made = _plan(contract, level, seed)
    if dtypes is None:
        return made
    return replace(made, cases=[case for case in made.cases if case.dtype in dtypes])


@lru_cache(maxsize=256)
def _plan(contract: Contract, level: str, seed: int) -> Plan:
    space = _Space(contract, seed)
    rng = random.Random(f"{contract.drawn_for or contract.name} {level}")
    infeasible: list[str] = []
    if level == "quick":
        points = list(_cover(space, 1, rng, infeasible))
    else:
        points = list(_cover(space, 2, rng, infeasible))
    dropped = 0
    if level == "thorough":
        smallest, dropped = _product(space, rng)
        points = smallest + points
    extra = [*_aligned(contract, seed), *_far(contract, level, seed), *_beyond_grid(contract, level, seed)]
    if level != "quick":
        extra += _plain(contract, seed)
    cases = dict.fromkeys([*(space.case(point) for point in points), *extra])
    regular = [case for case in _regular(contract, level, seed) if case not in cases]
    single = [*(also_case(contract, name, seed) for name in contract.also)]
    single += _pairs_of_options(contract, seed, contract.dtypes)
    single += _families_with_options(contract, seed)
    if contract.over_tiles is not None:
        single += _pairs_of_options(contract, seed, contract.dtypes[:1], contract.over_tiles)
        single += _families_over_tiles(contract, seed, contract.over_tiles)
    single += [*_long_and_strided(contract, seed), *single_and_strided(contract, seed)]
    single += [*one_unaligned(contract, seed), *_far_rows(contract, seed)]
    if level != "quick":
        single += [*_in_each_dtype(contract, single_and_strided(contract, seed)), *_beyond_and_strided(contract, seed)]
    also = [case for case in dict.fromkeys(single) if case not in cases]
    return Plan([*cases, *regular, *also], frozenset(regular), frozenset(also), infeasible, sampled_out=dropped)


def _aligned(contract: Contract, seed: int) -> Iterator[Case]:
    """Contiguous cases at the contract's aligned sizes, one a dtype: layouts drawn at random seldom suit a
    descriptor."""
    for size in contract.aligned:
        for dtype in contract.dtypes:
            yield plain_case(contract, dtype, next(iter(contract.values)), seed, size)


def _beyond_grid(contract: Contract, level: str, seed: int) -> Iterator[Case]:
    """Cases with more rows than the y and z axes of a grid hold: the first family in one dtype each (quick), or two
    families in all dtypes, the second with the other values of the parameters in turn; at a single size the first so
    too."""
    first, *others = contract.values
    for turn, size in enumerate(contract.beyond_grid):
        if level == "quick":
            yield plain_case(contract, contract.dtypes[turn % len(contract.dtypes)], first, seed, size)
            continue
        for number, dtype in enumerate(contract.dtypes, 1):
            plain = [plain_case(contract, dtype, family, seed, size) for family in (first, *others[:1])]
            params = tuple((name, options[number % len(options)]) for name, options in contract.params.items())
            turned = [one for one in (replace(case, params=params) for case in plain) if contract.valid(one)]
            last = turned[-1] if turned and turned[-1].values == plain[-1].values else plain[-1]
            more = turned[:1] if len(contract.beyond_grid) == 1 else []
            yield from filter(contract.valid, dict.fromkeys([plain[0], last, *more]))


def _regular(contract: Contract, level: str, seed: int) -> list[Case]:
    """Cases for kernels with the usual restrictions: each size and each choice of parameters in each 16-bit dtype, with
    some of the families of finite values, which take turns."""
    if contract.regular is None:
        return []
    narrow = [dtype for dtype in contract.dtypes if DTYPES[dtype].itemsize == 2]
    known = contract.regular.params
    params = [dict(zip(known, point, strict=True)) for point in itertools.product(*known.values())]
    found: list[Case] = []
    sizes = contract.regular.sizes[: REGULAR_SIZES.get(level)]
    for turn, (size, given, dtype) in enumerate(itertools.product(sizes, params, narrow)):
        plain = plain_case(contract, dtype, next(iter(contract.values)), seed, size)
        plain = replace(plain, params=tuple((name, given.get(name, value)) for name, value in plain.params))
        first = turn % len(contract.values)
        names = [*list(contract.values)[first:], *list(contract.values)[:first]]
        able = (case for name in names if _is_finite(contract, case := replace(plain, values=name)))
        found += itertools.islice(able, REGULAR_FAMILIES.get(level))
    return found


def _is_finite(contract: Contract, case: Case) -> bool:
    """Whether a case is valid and none of the values that are drawn for it is NaN or infinite."""
    if not contract.valid(case):
        return False
    drawn = contract.family(case.values)(Draw(case, contract))
    return all(values is None or bool(values.isfinite().all()) for values in drawn.values())


def _plain(contract: Contract, seed: int) -> Iterator[Case]:
    """Contiguous cases: in each dtype every family at the smallest size it is valid at, and every size with the first
    family.

    The pairs of the product promise each of these once, possibly under a layout or a parameter that hides the fault.
    """
    first = next(iter(contract.values))
    by_work = sorted(
        contract.sizes[1:], key=lambda size: contract.work(plain_case(contract, contract.dtypes[0], first, seed, size))
    )
    for dtype in contract.dtypes:
        for values in contract.values:
            shapes = (plain_case(contract, dtype, values, seed, size) for size in (contract.sizes[0], *by_work))
            case = next((case for case in shapes if case.filled and contract.valid(case)), None)
            if case is not None:
                yield case
        for size in contract.sizes:
            case = plain_case(contract, dtype, first, seed, size)
            if contract.valid(case):
                yield case


def _far(contract: Contract, level: str, seed: int) -> Iterator[Case]:
    """Each operand with offsets beyond 2^31 elements: along one axis in a 16-bit dtype (quick), or each axis in each.

    At the size with the least work at which the axis has 3 elements, so that the stride itself fits into 32 bits; above
    level quick at the next size too, in one dtype with the other values of the parameters.
    """
    narrow = [dtype for dtype in contract.dtypes if DTYPES[dtype].itemsize == 2]
    other = tuple((name, options[-1]) for name, options in contract.params.items())
    count = 0
    for name, operand in contract.operands.items():
        if operand.own_dtype or not narrow:
            continue
        for layout in FAR_LAYOUTS:
            dtypes = [narrow[count % len(narrow)]] if level == "quick" else narrow
            found = [_by_work(contract, dtype, name, layout, seed) for dtype in dtypes]
            count += 1
            yield from [cases[0] for cases in found if cases]
            if level == "quick" and any(found):
                break
            for turn, cases in enumerate(found if level != "quick" else ()):
                turned = [] if turn else [replace(case, params=other) for case in cases[1:]]
                yield from itertools.islice(filter(contract.valid, [*turned, *cases[1:]]), 1)


def _far_rows(contract: Contract, seed: int) -> Iterator[Case]:
    """Each operand of more than two axes as in `_far`, in one dtype along its last axis but one, where that is not the
    one of level quick: offsets of heads may be of 64 bits and those of their rows of 32."""
    narrow = [dtype for dtype in contract.dtypes if DTYPES[dtype].itemsize == 2]
    names = [name for name, operand in contract.operands.items() if not operand.own_dtype]
    for turn, name in enumerate(names if narrow else ()):
        dtype = narrow[turn % len(narrow)]
        found = [cases[0] for layout in FAR_LAYOUTS if (cases := _by_work(contract, dtype, name, layout, seed))]
        axes = [(case, len(contract.operand_shape(name, case))) for case in found[1:]]
        yield from (case for case, rank in axes if far_axis(case.layout[name]) == rank - 2)


def _by_work(contract: Contract, dtype: str, name: str, layout: str, seed: int) -> list[Case]:
    """A case of each size at which an operand can have a far layout, that with the least work first."""
    axis = far_axis(layout)
    found = []
    for size in contract.sizes:
        plain = plain_case(contract, dtype, next(iter(contract.values)), seed, size)
        shapes = [contract.operand_shape(operand, plain) for operand in contract.operands]
        shape = contract.operand_shape(name, plain)
        wide = sum(n > 1 for n in shape) >= min(2, len(shape))  # a single column says little
        if (
            axis is not None
            and axis < len(shape)
            and shape[axis] >= 3
            and wide
            and not any(0 in shape for shape in shapes)
        ):
            layouts = tuple((n, layout if n == name else value) for n, value in plain.layouts)
            case = replace(plain, layouts=layouts)
            if contract.valid(case):
                found.append(case)
    return sorted(found, key=contract.work)


def plain_case(
    contract: Contract, dtype: str, values: str, seed: int = 0, size: Mapping[str, Any] | None = None
) -> Case:
    """The contiguous case of `size` (None: the contract's smallest) with each parameter at its first value."""
    layouts = tuple((name, operand.layouts[0]) for name, operand in contract.operands.items())
    params = tuple((name, options[0]) for name, options in contract.params.items())
    return Case(contract.name, dtype, tuple((size or contract.sizes[0]).items()), values, layouts, params, seed)


def also_case(contract: Contract, name: str, seed: int = 0) -> Case:
    """The single case of that name."""
    one = contract.also[name]
    family = next(iter(contract.values)) if one.values is None else one.values if isinstance(one.values, str) else name
    plain = plain_case(contract, one.dtype, family, seed, one.size)
    layouts = tuple((operand, one.layouts.get(operand, layout)) for operand, layout in plain.layouts)
    params = tuple((param, one.params.get(param, value)) for param, value in plain.params)
    return replace(plain, layouts=layouts, params=params)


def _long_and_strided(contract: Contract, seed: int) -> Iterator[Case]:
    """At the longest size of each axis of each operand that is longer than a tile, all operands in strides of their
    own, in one dtype: a path for what is large is often one for what is contiguous too."""
    first, found = next(iter(contract.values)), dict[Case, None]()
    plain = [plain_case(contract, contract.dtypes[0], first, seed, size) for size in contract.sizes]
    plain = [case for case in plain if case.filled]
    for name in [name for name, operand in contract.operands.items() if not operand.own_dtype]:
        shapes = {case: contract.operand_shape(name, case) for case in plain}
        for axis in range(min(map(len, shapes.values()), default=0)):
            long = [case for case in plain if shapes[case][axis] >= LONG]
            long.sort(key=lambda case: (1 in shapes[case], -shapes[case][axis]))  # one row has no strides of its own
            turned = (_all_strided(contract, case) for case in long)
            found |= dict.fromkeys(itertools.islice(filter(contract.valid, turned), 1))
    for turn, case in enumerate(found):
        typed = replace(case, dtype=contract.dtypes[turn % len(contract.dtypes)])
        yield typed if contract.valid(typed) else case


def single_and_strided(contract: Contract, seed: int = 0) -> Iterator[Case]:
    """For each axis that is 1 long in an operand of several axes at some size: there, with what is left of it, a row or
    a column, in elements that are no neighbours. A path for one row often takes it for a vector without a stride."""
    first, found = next(iter(contract.values)), dict[Case, None]()
    sizes = [*contract.sizes, *(one.size for one in contract.also.values())]
    plain = dict.fromkeys(plain_case(contract, contract.dtypes[0], first, seed, size) for size in sizes)
    able = [case for case in plain if case.filled and contract.valid(case)]
    for name in [name for name, operand in contract.operands.items() if not operand.own_dtype]:
        ones: dict[int, list[Case]] = {}  # by the axis, counted from the last, that is 1 long
        for case in able:
            shape = contract.operand_shape(name, case)
            for axis, length in enumerate(shape, -len(shape)):
                if length == 1 and max(shape) > 1:
                    ones.setdefault(axis, []).append(case)
        for those in ones.values():
            those.sort(key=lambda case: (contract.operand_shape(name, case).count(1), contract.work(case)))
            turned = (_apart(contract, case) for case in those)
            shown = (
                case for case in turned if case.layout[name] not in ("contiguous", "none") and contract.valid(case)
            )
            found |= dict.fromkeys(itertools.islice(shown, 1))
    for turn, case in enumerate(found):
        typed = replace(case, dtype=contract.dtypes[turn % len(contract.dtypes)])
        yield typed if contract.valid(typed) else case


def _in_each_dtype(contract: Contract, cases: Iterable[Case]) -> Iterator[Case]:
    for case in cases:
        yield from filter(contract.valid, (replace(case, dtype=dtype) for dtype in contract.dtypes))


def _beyond_and_strided(contract: Contract, seed: int) -> Iterator[Case]:
    """The single cases of results beyond the largest number of their dtype, all operands in strides of their own."""
    names = [name for name in contract.also if name.startswith(BEYOND_LARGEST)]
    yield from filter(contract.valid, (_all_strided(contract, also_case(contract, name, seed)) for name in names))


def one_unaligned(contract: Contract, seed: int = 0) -> Iterator[Case]:
    """Each operand alone at an odd offset, where all have rows of whole vectors: a path that loads 16 bytes at a time
    may ask whether another operand is aligned, or only how long rows are."""
    first, names = next(iter(contract.values)), [n for n, operand in contract.operands.items() if not operand.own_dtype]
    sizes = [*contract.sizes, *contract.aligned, *(one.size for one in contract.also.values())]
    sizes += contract.regular.sizes if contract.regular else []
    plain = dict.fromkeys(plain_case(contract, contract.dtypes[0], first, seed, size) for size in sizes)
    shapes = {case: [contract.operand_shape(name, case) for name in names] for case in plain if case.filled}
    whole = [case for case, found in shapes.items() if all(shape and shape[-1] % VECTOR == 0 for shape in found)]
    read = [name for name in names if contract.operands[name].counts]
    for name in [name for name in read if "offset" in contract.operands[name].layouts]:
        moved = (replace(case, layouts=tuple({**case.layout, name: "offset"}.items())) for case in whole)
        found = min(filter(contract.valid, moved), key=contract.work, default=None)
        if found is not None:
            typed = replace(found, dtype=contract.dtypes[names.index(name) % len(contract.dtypes)])
            yield typed if contract.valid(typed) else found


def _apart(contract: Contract, case: Case) -> Case:
    """The case with each operand of several axes in its first layout, of those that share no element, that leaves a gap
    between neighbours along the innermost axis longer than 1."""
    layouts = dict(case.layouts)
    for name, operand in contract.operands.items():
        shape = contract.operand_shape(name, case)
        inner = max((axis for axis, length in enumerate(shape) if length > 1), default=None)
        if len(shape) > 1 and inner is not None and not operand.own_dtype and layouts[name] != "none":
            able = [layout for layout in operand.layouts if layout not in (*BROADCASTS, "none")]
            layouts[name] = next((one for one in able if PLANS[one](shape)[1][inner] != 1), layouts[name])
    return replace(case, layouts=tuple(layouts.items()))


def _all_strided(contract: Contract, case: Case) -> Case:
    return replace(case, layouts=tuple((name, _strided(contract, case, name)) for name, _ in case.layouts))


def _strided(contract: Contract, case: Case, name: str) -> str:
    """The first layout of an operand, of those that share no element, in which a case has other strides than usual;
    with "transposed" before the others."""
    operand, shape = contract.operands[name], contract.operand_shape(name, case)
    if operand.own_dtype:
        return operand.layouts[0]
    _, usual, _ = PLANS["contiguous"](shape)
    for layout in sorted(operand.layouts, key=lambda layout: layout != "transposed"):
        if layout not in (*BROADCASTS, "none"):
            _, strides, _ = PLANS[layout](shape)
            if any(n > 1 and one != other for n, one, other in zip(shape, strides, usual, strict=True)):
                return layout
    return operand.layouts[0]


def _pairs_of_options(
    contract: Contract, seed: int, dtypes: Sequence[str], size: Mapping[str, Any] | None = None
) -> Iterator[Case]:
    """Plain cases of one size (None: the smallest) that together have every option of a parameter, and every optional
    operand both given and left out, in each of these dtypes and beside every option of each other one: what is
    forgotten under some alone."""
    params = {name: options for name, options in contract.params.items() if len(options) > 1}
    optional = {name: _given_or_not(operand) for name, operand in contract.operands.items() if operand.optional}
    axes = [*params.items(), *optional.items()]
    if not axes:
        return

    def case_of(point: Mapping[int, int]) -> Case:
        given = {name: options[point[axis]] for axis, (name, options) in enumerate(axes, 1)}
        plain = plain_case(contract, dtypes[point[0]], next(iter(contract.values)), seed, size)
        return replace(
            plain,
            layouts=tuple((name, given[name] if name in optional else layout) for name, layout in plain.layouts),
            params=tuple((name, given[name] if name in params else value) for name, value in plain.params),
        )

    missing = _Missing([len(dtypes), *(len(options) for _, options in axes)], 2)
    while missing.combinations:
        goal = next(iter(missing.combinations))
        full = dict(goal)
        for axis in range(len(axes) + 1):
            if axis not in full:
                gains = missing.gains(full, axis)
                full[axis] = gains.index(max(gains))
        alone = dict.fromkeys(range(len(axes) + 1), 0) | dict(goal)  # where what it would go with makes it invalid
        point = next((point for point in (full, alone) if contract.valid(case_of(point))), None)
        if point is not None:
            yield case_of(point)
        for pair in itertools.combinations(sorted((point or dict(goal)).items()), 2):
            missing.drop(pair)


def _families_with_options(contract: Contract, seed: int) -> Iterator[Case]:
    """Plain cases of the smallest size in one dtype, that together have each family with each option of each parameter:
    each option may be a formula of its own."""
    longest = max(map(len, contract.params.values()), default=1)
    for values, turn in itertools.product(contract.values, range(longest)):
        params = tuple((name, options[turn % len(options)]) for name, options in contract.params.items())
        case = replace(plain_case(contract, contract.dtypes[0], values, seed), params=params)
        if contract.valid(case):
            yield case


def _families_over_tiles(contract: Contract, seed: int, size: Mapping[str, Any]) -> Iterator[Case]:
    """Plain cases of a size of several tiles, one of each family: what goes on from tile to tile may be computed by
    another formula than what fits into one."""
    plain = (plain_case(contract, contract.dtypes[0], family, seed, size) for family in contract.values)
    yield from filter(contract.valid, plain)


def _given_or_not(operand: Operand) -> tuple[str, str]:
    """Two layouts of an optional operand: its first, and "none" or, if that is the first, the next."""
    first, second, *_ = operand.layouts
    return (first, second if first == "none" else "none")


def variants(contract: Contract, case: Case) -> tuple[Case, ...]:
    """The plain `case` in other layouts, all operands at once and, as far as there are not many, each alone, and with
    each other value of each parameter."""
    found = []
    for position in range(1, max(len(operand.layouts) for operand in contract.operands.values())):
        layouts = []
        for name, operand in contract.operands.items():
            present = [layout for layout in operand.layouts if layout != "none"] or ["none"]
            layouts.append((name, present[position % len(present)]))
        found.append(replace(case, layouts=tuple(layouts)))
    alone = [case for case in _one_apart(contract, case) if case not in found]
    found += alone[: max(0, LAYOUTS - len(found))]
    for name, options in contract.params.items():
        for option in options[1:]:
            found.append(replace(case, params=tuple((n, option if n == name else old) for n, old in case.params)))
    return tuple(other for other in found if contract.valid(other))


def lengths_in_turn(contract: Contract, case: Case) -> tuple[Case, ...]:
    """Like the plain `case`, with one of its sizes after another at several lengths: what is kept from one call to the
    next may be kept without one of them. All other sizes are the same in these calls, and where that is little work
    others than elsewhere."""
    found: list[Case] = []
    for name, size in case.sizes:
        if size == ():
            continue
        lengths = [(*size[:-1], n) if isinstance(size, tuple) else n for n in LENGTHS]
        new = _resized(case, {name: lengths[0]})
        for other, old in case.sizes:
            longer = _resized(new, {other: old + STEP}) if isinstance(old, int) and other != name else new
            new = longer if contract.work(longer) <= LITTLE and goes_together(contract, longer) else new
        some = [_resized(new, {name: length}) for length in lengths]
        found += [replace(one, seed=case.seed + len(found) + n) for n, one in enumerate(some)]
    return tuple(one for one in found if contract.work(one) <= LITTLE and goes_together(contract, one))


def _resized(case: Case, other: Mapping[str, Any]) -> Case:
    return replace(case, sizes=tuple((name, other.get(name, size)) for name, size in case.sizes))


def goes_together(contract: Contract, case: Case) -> bool:
    """Whether sizes that no plan has are ones that a call can have."""
    try:
        answers = contract.expected(contract.build(case)) if contract.valid(case) else {}
    except Exception:
        return False
    shapes = {name: contract.output_shape(name, case) for name in answers}
    return bool(answers) and all(one is None or one.answer.shape == shapes[name] for name, one in answers.items())


def _one_apart(contract: Contract, case: Case) -> Iterator[Case]:
    """The plain `case` with one operand after the other transposed, or else in the first layout that is not
    contiguous: a kernel may take the strides of one operand for another's."""
    for name, operand in contract.operands.items():
        strided = [layout for layout in operand.layouts if layout not in ("contiguous", "none")]
        if strided and len(contract.operands) > 1:
            layout = "transposed" if "transposed" in strided else strided[0]
            yield replace(case, layouts=tuple((n, layout if n == name else old) for n, old in case.layouts))


class _Space:
    """The axes of a contract: dtype, size, value family, the layout of each operand, each parameter."""

    def __init__(self, contract: Contract, seed: int):
        self.contract, self.seed = contract, seed
        self.axes: dict[str, list[Any]] = {
            "dtype": list(contract.dtypes),
            "size": [tuple(size.items()) for size in contract.sizes],
            "values": list(contract.values),
        }
        for name, operand in contract.operands.items():
            self.axes[f"layout {name}"] = list(operand.layouts)
        for name, operand in contract.operands.items():
            if len(operand.dtypes) > 1:
                self.axes[f"dtype {name}"] = [dtype_name(dtype) for dtype in operand.dtypes]
        for name, values in contract.params.items():
            self.axes[f"param {name}"] = list(values)
        self.names = list(self.axes)
        words = [(axis, *name.partition(" ")) for axis, name in enumerate(self.names)]
        self._of_kind = {  # the axes of each kind, with the names of their operands or parameters
            kind: [(axis, name) for axis, word, _, name in words if word == kind and name]
            for kind in ("layout", "dtype", "param")
        }
        self._valid: dict[tuple, bool] = {}
        self._size_axis, self._values_axis = self.names.index("size"), self.names.index("values")
        self._plain_axes = {
            axis for axis, name in enumerate(self.names) if name == "dtype" or name.startswith(("param ", "dtype "))
        }
        spreads = [self._spread(dict(size)) for size in self.axes["size"]]
        self._degenerate = {i for i, spread in enumerate(spreads) if spread < min(2, max(spreads))}
        self._seen: dict[tuple[int, int, tuple[int, ...]], bool] = {}

    def case(self, point: tuple[int, ...]) -> Case:
        value = [options[index] for options, index in zip(self.axes.values(), point, strict=True)]
        return Case(
            op=self.contract.name,
            dtype=value[0],
            sizes=value[self._size_axis],
            values=value[self._values_axis],
            layouts=tuple((name, value[axis]) for axis, name in self._of_kind["layout"]),
            params=tuple((name, value[axis]) for axis, name in self._of_kind["param"]),
            seed=self.seed,
            # the first dtype of an operand has no name in a case
            dtypes=tuple((name, value[axis]) for axis, name in self._of_kind["dtype"] if point[axis]),
        )

    def valid(self, point: tuple[int, ...]) -> bool:
        if point not in self._valid:
            self._valid[point] = self.contract.valid(self.case(point))
        return self._valid[point]

    def is_degenerate(self, point: tuple[int, ...]) -> bool:
        """Whether operands are empty, single or one-dimensional there, and at other sizes are not."""
        return point[self._size_axis] in self._degenerate

    def shows(self, point: tuple[int, ...], combination: Sequence[tuple[int, int]]) -> bool:
        """Whether a kernel that gets `combination` wrong can be seen at `point`.

        Not on an empty, single or one-dimensional operand, nor with a layout that is contiguous at this size, nor a
        dtype with a parameter under another than the first value family, unless the combination itself has the size.
        A size by itself not where an operand is broadcast, whose slices are all alike.
        """
        chosen = {axis for axis, _ in combination}
        if self._size_axis in chosen:
            layouts = [(self.names[axis], point[axis]) for axis, _ in self._of_kind["layout"]]
            return len(chosen) > 1 or not any(self.axes[name][option] in BROADCASTS for name, option in layouts)
        if chosen <= self._plain_axes and point[self._values_axis] != 0:
            return False
        return not self.is_degenerate(point) and all(
            self._layout_shows(axis, option, point) for axis, option in combination
        )

    def _spread(self, size: dict[str, Any]) -> int:
        """The most axes longer than 1 that an operand has; -1 where an operand is empty."""
        plain = plain_case(self.contract, self.contract.dtypes[0], next(iter(self.contract.values)), self.seed, size)
        shapes = [self.contract.operand_shape(name, plain) for name in self.contract.operands]
        return -1 if any(0 in shape for shape in shapes) else max(sum(n > 1 for n in shape) for shape in shapes)

    def _layout_shows(self, axis: int, option: int, point: tuple[int, ...]) -> bool:
        name, layout = self.names[axis], self.axes[self.names[axis]][option]
        if not name.startswith("layout ") or layout in ("contiguous", "none"):
            return True
        shape = self._shape(name.removeprefix("layout "), point)
        if (axis, option, shape) not in self._seen:
            (_, strides, offset), (_, plain, _) = PLANS[layout](shape), PLANS["contiguous"](shape)
            moved = any(n > 1 and stride != other for n, stride, other in zip(shape, strides, plain, strict=True))
            self._seen[axis, option, shape] = offset != 0 or moved
        return self._seen[axis, option, shape]

    def _shape(self, operand: str, point: tuple[int, ...]) -> tuple[int, ...]:
        axes = self.contract.operands[operand].axes
        if isinstance(axes, str):
            return self.contract.shape(axes, dict(self.axes["size"][point[self._size_axis]]))
        return self.contract.operand_shape(operand, self.case(point))


class _Missing:
    """Combinations of the values of one axis, or of two, that no point shows yet: of each axis and option a pair."""

    def __init__(self, counts: Sequence[int], strength: int):
        self._counts = counts
        self.combinations: dict[tuple[tuple[int, int], ...], None] = {}  # in order
        self._beside: dict[tuple[int, int], dict[int, set[int]]] = {}  # of a pair: the options of another axis
        for chosen in itertools.combinations(range(len(counts)), strength):
            for options in itertools.product(*(range(counts[axis]) for axis in chosen)):
                self.combinations[tuple(zip(chosen, options, strict=True))] = None
        for one, other in self.combinations if strength == 2 else ():
            self._beside.setdefault(one, {}).setdefault(other[0], set()).add(other[1])
            self._beside.setdefault(other, {}).setdefault(one[0], set()).add(one[1])

    def drop(self, combination: tuple[tuple[int, int], ...]) -> None:
        if combination not in self.combinations:
            return
        del self.combinations[combination]
        if self._beside:
            one, other = combination
            self._beside[one][other[0]].discard(other[1])
            self._beside[other][one[0]].discard(one[1])

    def gains(self, point: Mapping[int, int], axis: int) -> list[int]:
        """How many of the combinations each option of an axis makes with what is chosen in `point`."""
        if not self._beside:
            return [((axis, option),) in self.combinations for option in range(self._counts[axis])]
        gains = [0] * self._counts[axis]
        for held in point.items():
            for option in self._beside.get(held, {}).get(axis, ()):
                gains[option] += 1
        return gains


def _cover(space: _Space, strength: int, rng: random.Random, infeasible: list[str]) -> Iterator[tuple[int, ...]]:
    """Points that together show every combination of `strength` axis values that some valid point has.

    Where no point shows a combination, one that merely holds it will do.
    """
    counts = [len(space.axes[name]) for name in space.names]
    missing = _Missing(counts, strength)
    hard: dict[tuple, None] = {}  # no point that shows it came up by chance
    found: list[tuple[int, ...]] = []
    while missing.combinations or hard:
        if missing.combinations:
            goal = next(iter(missing.combinations))
            point = _point_with(space, goal, counts, missing, rng, space.shows)
            if point is None:
                missing.drop(goal)
                hard[goal] = None
                continue
        else:
            goal = next(iter(hard))
            del hard[goal]
            point = (
                _point_near(space, goal, found, space.shows)
                or _point_near(space, goal, sorted(found, key=space.is_degenerate), _holds)
                or _point_with(space, goal, counts, missing, rng, _holds)
            )
            if point is None:
                infeasible.append(
                    " with ".join(f"{space.names[axis]}={space.axes[space.names[axis]][i]}" for axis, i in goal)
                )
                continue
        for held in itertools.combinations(enumerate(point), strength):
            if space.shows(point, held):
                missing.drop(held)
                hard.pop(held, None)
        found.append(point)
        yield point


def _holds(point: tuple[int, ...], combination: Sequence[tuple[int, int]]) -> bool:
    return True


def _point_with(
    space, goal: Sequence[tuple[int, int]], counts, missing: _Missing, rng, shows
) -> tuple[int, ...] | None:
    """A valid point that shows `goal` and, greedily, holds as many missing combinations as it can."""
    for attempt in range(RETRIES):
        point = dict(goal)
        free = [axis for axis in range(len(counts)) if axis not in point]
        rng.shuffle(free)
        for axis in free:
            options = list(range(counts[axis]))
            rng.shuffle(options)
            if attempt < RETRIES // 2:
                gains = missing.gains(point, axis)
                options.sort(key=lambda option: -gains[option])
            elif attempt == RETRIES - 1:  # what `valid` rules out is seldom the plain case
                options[0] = 0
            point[axis] = options[0]
        candidate = tuple(point[axis] for axis in range(len(counts)))
        if shows(candidate, goal) and space.valid(candidate):
            return candidate
    return None


def _point_near(space, goal: Sequence[tuple[int, int]], found: list[tuple[int, ...]], shows) -> tuple[int, ...] | None:
    """A valid point that shows `goal` and else is one of `found`: where `valid` leaves too few points to meet one by
    chance."""
    for point in found:
        candidate = tuple(dict(goal).get(axis, option) for axis, option in enumerate(point))
        if shows(candidate, goal) and space.valid(candidate):
            return candidate
    return None


def _product(space: _Space, rng: random.Random) -> tuple[list[tuple[int, ...]], int]:
    """Every valid point on the smallest shape, or a sample of PRODUCT_LIMIT of them and how many that leaves out."""
    ranges = [[0] if name == "size" else range(len(space.axes[name])) for name in space.names]
    total = 1
    for options in ranges:
        total *= len(options)
    if total > 20 * PRODUCT_LIMIT:
        drawn = {tuple(rng.choice(options) for options in ranges) for _ in range(4 * PRODUCT_LIMIT)}
        points = [point for point in sorted(drawn) if space.valid(point)]
        valid = round(total * len(points) / len(drawn))  # an estimate: the share of the drawn ones
    else:
        points = [point for point in itertools.product(*ranges) if space.valid(point)]
        valid = len(points)
    if len(points) > PRODUCT_LIMIT:
        points = sorted(rng.sample(points, PRODUCT_LIMIT))
    return points, valid - len(points)
