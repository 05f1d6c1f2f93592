"""By what rule of tiles and bounds a kernel is said to leave elements unwritten: of kernels that go through their
programs and threads one by one."""

import math

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.judging import left_out
from touchstone.conformance.spec.cases import plain_case

MATMUL = registry.contract("matmul")


def tiles(size, tile):
    return -(-size // tile)


def grouped(high, wide, most, along=0, cut=False, at_most_all=False):
    """The elements that a product's programs write, which take the tiles in groups along an axis."""

    def written(m, n):
        counts, taken = (tiles(m, high), tiles(n, wide)), torch.zeros(m, n, dtype=torch.bool)
        group = min(most, counts[along]) if at_most_all else most
        for program in range(counts[0] * counts[1]):
            first = program // (group * counts[1 - along]) * group
            size = min(group, counts[along] - first) if cut else group
            number = program % (group * counts[1 - along])
            at = [number // size] * 2
            at[along] = first + number % size
            taken[at[0] * high : (at[0] + 1) * high, at[1] * wide : (at[1] + 1) * wide] = True
        return taken

    return written


def exchanged_grid(m, n):
    taken = torch.zeros(m, n, dtype=torch.bool)
    for x in range(tiles(m, 16)):
        for y in range(tiles(n, 16)):
            taken[y * 16 : (y + 1) * 16, x * 16 : (x + 1) * 16] = True
    return taken


def exchanged_threads(m, n):
    taken = torch.zeros(tiles(m, 32) * 32, tiles(n, 32) * 32, dtype=torch.bool)
    for i in range(taken.shape[0]):
        for j in range(taken.shape[1]):
            inside = i // 32 * 32 + j % 32 < m and j // 32 * 32 + i % 32 < n
            taken[i, j] = inside
    return taken[:m, :n]


def up_to(bound):
    def written(m, n):
        taken = torch.zeros(m, n, dtype=torch.bool)
        taken[: bound(m, n), : bound(m, n)] = True
        return taken

    return written


def shared_out(programs, axis):
    """What programs write of which each has the same number of rows, or of columns."""

    def written(m, n):
        taken, size = torch.zeros(m, n, dtype=torch.bool), (m, n)[axis]
        each = size // min(programs, size)
        for program in range(min(programs, size)):
            taken.narrow(axis, program * each, each).fill_(True)
        return taken

    return written


def whole_tiles(tile, axis):
    def written(m, n):
        taken, size = torch.zeros(m, n, dtype=torch.bool), (m, n)[axis]
        for number in range(size // tile):
            taken.narrow(axis, number * tile, tile).fill_(True)
        return taken

    return written


def at_least_one(tile):
    def written(m, n):
        taken = torch.zeros(m, n, dtype=torch.bool)
        taken[: max(m // tile, 1) * tile, : max(n // tile, 1) * tile] = True
        return taken

    return written


def said(written, sizes=(40, 70), call=True, more=()):
    """What is said of a product that is right where a kernel writes, and NaN elsewhere and at `more`."""

    def values(case):
        made = MATMUL.build(case)
        c = MATMUL.by_name(MATMUL.call(lambda a, b: a @ b, made.arguments))["c"]
        return {"c": torch.where(written(*c.shape), c, math.nan)}

    plain = next(iter(MATMUL.values))
    case = plain_case(MATMUL, "float32", plain, size=dict(M=sizes[0], N=sizes[1], K=9))
    bad = values(case)["c"].isnan()
    for index in more:
        bad[index] = True
    return left_out.rule_of(MATMUL, case, "c", bad, values if call else lambda case: None)


GROUPS = "programs take tiles in groups along {}, and the last is not cut to the tiles that are left"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (grouped(16, 16, 4), GROUPS.format("M")),
        (grouped(16, 32, 2), GROUPS.format("M")),
        (grouped(16, 16, 4, along=1), GROUPS.format("N")),
        (exchanged_grid, "the grid has the tiles of N along M, and those of M along N (tiles of 16)"),
        (
            exchanged_threads,
            "the bounds are those of the element whose M and N within a tile are exchanged (tiles of 32)",
        ),
        (shared_out(8, 0), "M is shared out among up to 8 programs, each with the quotient rounded down"),
        (shared_out(4, 1), "N is shared out among up to 4 programs, each with the quotient rounded down"),
        (whole_tiles(4, 0), "the grid has the whole tiles along M alone: a quotient is rounded down (tiles of 4)"),
        (whole_tiles(32, 1), "the grid has the whole tiles along N alone: a quotient is rounded down"),
        (
            lambda m, n: whole_tiles(8, 0)(m, n) & whole_tiles(16, 1)(m, n),
            "the grid has the whole tiles along M and N alone: quotients are rounded down",
        ),
        (at_least_one(16), "the grid has the whole tiles along M and N alone: quotients are rounded down"),
        (up_to(lambda m, n: m), "N is held against the bound of M"),
        (up_to(lambda m, n: n), "M is held against the bound of N"),
        (up_to(lambda m, n: 20), None),
    ],
)
def test_the_rule_by_which_elements_are_left_out(written, text):
    found = said(written, sizes=(70, 40) if text and text.startswith("M is held") else (41, 70))
    assert found == text if text is None else found.startswith(text)


@pytest.mark.parametrize("along", [0, 1])
def test_groups_of_at_most_as_many_tiles_as_there_are(along, monkeypatch):
    """With fewer tiles than a group has nothing is left out, which refutes groups of always so many."""
    plain = next(iter(MATMUL.values))
    sizes = [((31, 100), (100, 31))[along], (100, 90), (90, 100)]
    others = [plain_case(MATMUL, "float32", plain, size=dict(M=m, N=n, K=9)) for m, n in sizes]
    monkeypatch.setattr(left_out, "_of_other_sizes", lambda *given: others)
    rule = GROUPS.format("MN"[along])
    assert said(grouped(16, 16, 4, along, at_most_all=True), sizes=(70, 70)) == f"{rule} (up to 4 tiles of 16 x 16)"
    assert said(grouped(16, 16, 4, along), sizes=(70, 70)) == f"{rule} (4 tiles of 16 x 16)"


def test_other_sizes_have_to_bear_it_out():
    """One row has one tile: where no group is cut is as where rows and columns of tiles are exchanged."""
    one_row = dict(sizes=(1, 40))
    assert said(grouped(16, 16, 4), **one_row).startswith(GROUPS.format("M"))
    assert said(exchanged_grid, **one_row).startswith("the grid has the tiles of N along M")
    assert said(exchanged_grid, call=False, **one_row) is None
    assert said(lambda m, n: exchanged_grid(m, n) if m == 1 else up_to(lambda m, n: 20)(m, n), **one_row) is None
    # right in all other sizes
    assert said(lambda m, n: exchanged_grid(m, n) | torch.tensor(m > 1), **one_row) is None


def test_sizes_in_which_nothing_is_wrong_tell_nothing(monkeypatch):
    plain = next(iter(MATMUL.values))
    small = [plain_case(MATMUL, "float32", plain, size=dict(M=n, N=n, K=9)) for n in (10, 32)]
    large = plain_case(MATMUL, "float32", plain, size=dict(M=10, N=70, K=9))
    monkeypatch.setattr(left_out, "MORE", ())
    monkeypatch.setattr(left_out, "_of_other_sizes", lambda *given: [*small, large])
    assert said(exchanged_threads) is not None
    monkeypatch.setattr(left_out, "_of_other_sizes", lambda *given: small)
    assert said(exchanged_threads) is None


def test_every_element_has_to_be_borne_out():
    assert said(exchanged_grid, more=[(0, 0)]) is None
    assert said(lambda m, n: torch.zeros(m, n, dtype=torch.bool)) is None


def test_a_rule_of_some_columns_alone(monkeypatch):
    def fast_path(m, n):
        return whole_tiles(4, 0)(m, n) if n == 70 else torch.ones(m, n, dtype=torch.bool)

    rule = "the grid has the whole tiles along M alone: a quotient is rounded down (tiles of 4), in sizes with 70 N"
    assert said(fast_path, sizes=(3, 70)) == rule
    assert said(lambda m, n: fast_path(m, n) | torch.tensor(m > 3), sizes=(3, 70)) is None
    monkeypatch.setattr(left_out, "MORE", ())
    assert said(fast_path, sizes=(3, 70)) is None


def test_whole_columns_are_no_matter_of_groups_of_tiles(monkeypatch):
    def half(m, n):
        return (torch.arange(n) < (n // 2 if n == 80 else n)).expand(m, n)

    rule = left_out.Rule(GROUPS.format("M"), "", lambda index, shape: half(*shape))
    monkeypatch.setattr(left_out, "_rules", lambda rows, cols: iter([rule]))
    monkeypatch.setattr(left_out, "_of_other_sizes", lambda contract, case: [])
    assert said(half, sizes=(17, 80)) is None
    other = left_out.Rule("the grid has the whole tiles along N alone", "", rule.written)
    monkeypatch.setattr(left_out, "_rules", lambda rows, cols: iter([other]))
    assert said(half, sizes=(17, 80)) == "the grid has the whole tiles along N alone, in sizes with 80 N"


def test_what_is_not_looked_at(monkeypatch):
    assert said(exchanged_grid) is not None
    monkeypatch.setattr(left_out, "MOST", 40 * 70 - 1)
    assert said(exchanged_grid) is None
    case = plain_case(registry.contract("reduce_rows"), "float32", "normal")
    bad = torch.tensor([True, False])
    assert left_out.rule_of(registry.contract("reduce_rows"), case, "y", bad, lambda case: None) is None
