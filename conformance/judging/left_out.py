"""By what rule of tiles and bounds a kernel leaves elements of a matrix unwritten, or as zeros that were there before.

A rule says of a shape which elements are written. It is named where it leaves out what is unwritten on a case, and on
others of other sizes too: on one size many rules leave out the same.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from touchstone.conformance.judging import reading
from touchstone.conformance.spec.cases import goes_together, plain_case
from touchstone.conformance.spec.contract import Case, Contract

TILES = (8, 16, 32, 64, 128)
GROUPS = (2, 4, 8, 16)  # tiles along one axis that neighbouring programs share an operand of
SHARES = (2, 3, 4, 8, 16, 32, 64, 108, 132)  # programs that a number of rows is shared out among
OTHERS = 8  # cases of other sizes on which a rule is tried
MORE = (1, 2, 6, 13)  # rows or columns, in others
GROUPED = "programs take tiles in groups"
MOST = 2**20  # elements of an output beyond which none is
TOLD = re.compile(
    r"\b(?:programs take tiles|the grid has|the bounds are|is held against the bound|is shared out among)\b"
)


Shape = tuple[int, int]  # rows and columns, of a matrix or of a tile
Indices = tuple[torch.Tensor, torch.Tensor]  # (rows, 1) and (1, columns)


class Rule(NamedTuple):
    """Which elements are written, of so many rows and columns; what is done wrong, in words, and with which tiles."""

    text: str
    tiles: str
    written: Callable[[Indices, Shape], torch.Tensor]


def rule_of(contract: Contract, case: Case, output: str, bad: torch.Tensor, call: reading.Call) -> str | None:
    """By what rule the elements `bad` of an output are unwritten, in words; None: by none, by several, or other sizes
    do not tell."""
    axes = contract.output_axes(output, case).split()
    if bad.ndim < 2 or len(axes) != bad.ndim or bad.numel() > MOST:
        return None
    rules = [rule for rule in _rules(axes[-2], axes[-1]) if _leaves_out(rule, bad)]
    if not rules:
        return None
    if text := _borne_out(contract, rules, _of_other_sizes(contract, case), output, call):
        return text
    whole = bool((bad == bad[..., :1, :]).all()) or bool((bad == bad[..., :1]).all())
    for letter, other in (axes[-2:], axes[:-3:-1]):
        text = _borne_out(contract, rules, _of_more(contract, case, letter), output, call)
        if text and not (whole and text.startswith(GROUPED)):  # much else leaves out whole rows or columns
            return f"{text}, in sizes with {case.size[other]} {other}"
    return None


def _borne_out(
    contract: Contract, rules: Sequence[Rule], cases: Sequence[Case], output: str, call: reading.Call
) -> str | None:
    """The rule that leaves out what is wrong in all these cases, in some of which something is, in words; None: none,
    or several."""
    left, told = list(rules), False
    for case in cases:
        given = reading.given_on(contract, case, output, call)
        if given is not None:
            left = [rule for rule in left if _leaves_out(rule, given.bad)]
            told = told or bool(given.bad.any())
    if not told or len({rule.text for rule in left}) != 1:
        return None
    return left[0].text + (f" ({left[0].tiles})" if left[0].tiles and len(left) == 1 else "")


def _rules(rows: str, cols: str) -> Iterator[Rule]:
    yield Rule(f"{cols} is held against the bound of {rows}", "", partial(_bounded, 0))
    yield Rule(f"{rows} is held against the bound of {cols}", "", partial(_bounded, 1))
    for axis, letter in enumerate((rows, cols)):
        for number in SHARES:
            text = f"{letter} is shared out among up to {number} programs, each with the quotient rounded down"
            text += f", or the grid has its whole tiles of {number} alone, one at least"  # the same in every size
            yield Rule(text, "", partial(_shared_out, axis, number))
        for tile in (2, 4, *TILES):
            text = f"the grid has the whole tiles along {letter} alone: a quotient is rounded down"
            yield Rule(text, f"tiles of {tile}", partial(_whole_tiles, axis, tile))
    both = f"the grid has the whole tiles along {rows} and {cols} alone: quotients are rounded down"
    for tiles in itertools.product(TILES, TILES):
        of = f"tiles of {tiles[0]} x {tiles[1]}"
        yield Rule(both, of, partial(_whole_in_both, tiles))
        yield Rule(both, f"{of}, one at least", partial(_whole_in_both, tiles, least=1))
    grid = f"the grid has the tiles of {cols} along {rows}, and those of {rows} along {cols}"
    bounds = f"the bounds are those of the element whose {rows} and {cols} within a tile are exchanged"
    for tile in TILES:
        yield Rule(grid, f"tiles of {tile}", partial(_other_grid, tile))
        yield Rule(bounds, f"tiles of {tile}", partial(_other_element, tile))
    for tiles in itertools.product(TILES, TILES):
        for group, (along, letter) in itertools.product(GROUPS, enumerate((rows, cols))):
            text = f"{GROUPED} along {letter}, and the last is not cut to the tiles that are left"
            of = f"{group} tiles of {tiles[0]} x {tiles[1]}"
            yield Rule(text, of, partial(_grouped, tiles, group, along))
            yield Rule(text, f"up to {of}", partial(_grouped, tiles, group, along, at_most_all=True))


def _bounded(by: int, index: Indices, shape: Shape) -> torch.Tensor:
    return (index[0] < shape[by]) & (index[1] < shape[by])


def _shared_out(axis: int, programs: int, index: Indices, shape: Shape) -> torch.Tensor:
    number = min(programs, shape[axis])
    written: torch.Tensor = index[axis] < shape[axis] // number * number
    return written.expand(shape)


def _whole_tiles(axis: int, tile: int, index: Indices, shape: Shape, least: int = 0) -> torch.Tensor:
    written: torch.Tensor = index[axis] < max(shape[axis] // tile * tile, least)
    return written.expand(shape)


def _whole_in_both(tiles: Shape, index: Indices, shape: Shape, least: int = 0) -> torch.Tensor:
    one, other = (_whole_tiles(axis, tile, index, shape, least * tile) for axis, tile in enumerate(tiles))
    return one & other


def _other_grid(tile: int, index: Indices, shape: Shape) -> torch.Tensor:
    return (index[0] // tile < -(-shape[1] // tile)) & (index[1] // tile < -(-shape[0] // tile))


def _other_element(tile: int, index: Indices, shape: Shape) -> torch.Tensor:
    (row, col), (rows, cols) = index, shape
    return (row // tile * tile + col % tile < rows) & (col // tile * tile + row % tile < cols)


def _grouped(
    tiles: Shape, group: int, along: int, index: Indices, shape: Shape, at_most_all: bool = False
) -> torch.Tensor:
    """What programs write whose number p in a group is tile p % group of it along one axis, p // group of the other."""
    count = [-(-size // tile) for size, tile in zip(shape, tiles, strict=True)]
    group = min(group, max(count[along], 1)) if at_most_all else group
    program = torch.arange(count[0] * count[1])
    in_group = group * count[1 - along]
    at = [program % in_group // group] * 2
    at[along] = program // in_group * group + program % in_group % group
    taken = torch.zeros(count[0] + group, count[1] + group, dtype=torch.bool)
    taken[at[0], at[1]] = True
    return taken[index[0] // tiles[0], index[1] // tiles[1]]


def _leaves_out(rule: Rule, bad: torch.Tensor) -> bool:
    """Whether the elements `bad`, and no others, are those that a rule leaves out, in every matrix."""
    rows, cols = bad.shape[-2:]
    written = rule.written((torch.arange(rows)[:, None], torch.arange(cols)[None]), (rows, cols))
    return bool((bad.cpu() == ~written).all())


def _of_other_sizes(contract: Contract, case: Case) -> list[Case]:
    """Plain cases of little work with the parameters of a case, of other sizes than its own: those of the most
    work and those of the least."""
    fit = [one for one in reading.of_little_work(contract, case, least=0)[::-1] if one.sizes != case.sizes]
    return fit if len(fit) <= OTHERS else [*fit[: OTHERS // 2], *fit[-OTHERS // 2 :]]


def _of_more(contract: Contract, case: Case, letter: str) -> list[Case]:
    """Plain cases of a few more rows, or columns, than a case has: a kernel can have a way of its own for them."""
    found = []
    for more in MORE if isinstance(case.size.get(letter), int) else ():
        size = {**case.size, letter: case.size[letter] + more}
        one = plain_case(contract, case.dtype, next(iter(contract.values)), case.seed, size)
        one = replace(one, params=case.params)
        if contract.work(one) <= reading.LITTLE and goes_together(contract, one):
            found.append(one)
    return found
