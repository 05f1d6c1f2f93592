"""What is tried as a change of a reference: each in words, with what the reference gives then, worked out by hand."""

import ast
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from touchstone.conformance.judging import alterations, operations
from touchstone.conformance.judging.alterations import _argument, of_operations, of_words
from touchstone.conformance.judging.operations import Run, outputs_of

F64 = torch.float64
X = torch.tensor([[-1.5, 2.0, 0.3], [3.0, -0.25, 1.0]], dtype=F64)
Y = torch.tensor([[0.5, 4.0, -2.0], [1.5, 0.75, 8.0]], dtype=F64)


@pytest.fixture(autouse=True)
def _references_are_here(monkeypatch):
    monkeypatch.setattr(operations, "FOLDER", str(Path(__file__).parent))


def plainly(reference, operands, count=1):
    contract = SimpleNamespace(outputs=[str(number) for number in range(count)])
    run = Run()
    outputs = outputs_of(contract, reference, operands, SimpleNamespace(param={}), run)
    return contract, run, outputs


def tried(reference, operands):
    """What is tried, in words without the place, with the output then (None: it fails); and the output without."""
    contract, plain, outputs = plainly(reference, operands)
    assert outputs is not None
    found = {}
    for alteration in of_operations(plain):
        words, _, place = alteration.text.partition(" (judging/test_alterations.py:")
        assert place.removesuffix(")").isdecimal() or words.startswith(("all exponentials", "the softmax were"))
        changed = outputs_of(contract, reference, operands, SimpleNamespace(param={}), Run(alteration))
        found.setdefault(words, None if changed is None else changed["0"])
    return found, outputs["0"]


def same(one, other):
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-12, atol=0, equal_nan=True)


def first(x, *axes):
    """The first slice in the place of each."""
    for axis in axes:
        x = x.narrow(axis, 0, 1).expand(x.shape)
    return x


def part(x, *index):
    return x[..., list(index)]


def rounded(x):
    return {f"rounded to {str(dtype)[6:]}": x.to(dtype).double() for dtype in (torch.bfloat16, torch.float16)}


def numbered(number, of, at=""):
    """A number in a sum or product that is off by a size of the (2, 3) result, or by two."""
    scales = {2.0: "twice", 0.5: "half of", 3.0: "3 times", 1 / 3: "1/3 of"}
    return {
        f"with {by * number:.4g}, {words} {number:.4g}, in its place": of(by * number) for by, words in scales.items()
    }


def slices(text, x, of):
    return {f"with `{text}` of index 0 along axis {axis} for all": of(first(x, axis)) for axis in range(x.ndim)}


def two(of):
    """Of an operation on `x` and `y`, one of them of one slice, or in the other's place."""
    return slices("x", X, lambda x: of(x, Y)) | slices("y", Y, lambda y: of(X, y)) | rounded(of(X, Y))


# a reference of one operation, its expression, and by what is said of it what the reference gives then
ONE = [
    (
        lambda x: x * 3.0,
        "x * 3.0",
        {"without the factor 3": X, "with the factor 3 twice": 9 * X, "divided by 3": X / 3}
        | numbered(3.0, lambda number: number * X)
        | slices("x", X, lambda x: 3 * x)
        | rounded(3 * X),
    ),
    (
        lambda x: x / 4.0,
        "x / 4.0",
        {"without the quotient 4": X, "multiplied by 4": 4 * X}
        | numbered(4.0, lambda number: X / number)
        | slices("x", X, lambda x: x / 4)
        | rounded(X / 4),
    ),
    (
        lambda x: x + 0.7,
        "x + 0.7",
        {"without the term 0.7": X, "with the other sign before 0.7": X - 0.7}
        | numbered(0.7, lambda number: X + number)
        | slices("x", X, lambda x: x + 0.7)
        | rounded(X + 0.7),
    ),
    (
        lambda x: x - 0.7,
        "x - 0.7",
        {"without the term 0.7": X, "with the other sign before 0.7": X + 0.7}
        | numbered(0.7, lambda number: X - number)
        | slices("x", X, lambda x: x - 0.7)
        | rounded(X - 0.7),
    ),
    (
        lambda x: 1.0 - x,
        "1.0 - x",
        {"without the term 1": X, "with the other sign before 1": X + 1}
        | numbered(1.0, lambda number: number - X)
        | rounded(1 - X),
    ),
    (
        lambda x, y: x * y,
        "x * y",
        {"`x` alone": X, "`y` alone": Y, "`x / y`": X / Y, "multiplied by `y` twice": X * Y * Y}
        | two(lambda x, y: x * y),
    ),
    (
        lambda x, y: x / y,
        "x / y",
        {"`x` alone": X, "`x * y`": X * Y, "divided by `y` twice": X / Y / Y} | two(lambda x, y: x / y),
    ),
    (
        lambda x, y: x + y,
        "x + y",
        {"`x` alone": X, "`y` alone": Y, "`x - y`": X - Y, "with `x` twice": 2 * X + Y, "with `y` twice": X + 2 * Y}
        | two(lambda x, y: x + y),
    ),
    (
        lambda x, y: x - y,
        "x - y",
        {"`x` alone": X, "`-y` alone": -Y, "`x + y`": X + Y, "with `x` twice": 2 * X - Y, "with `y` twice": X - 2 * Y}
        | two(lambda x, y: x - y),
    ),
    (lambda x: x.exp(), "x.exp()", {"exp2": X.exp2(), "its argument alone": X} | rounded(X.exp())),
    (lambda x: x.square(), "x.square()", {"its argument alone": X} | rounded(X.square())),
    (
        lambda x: x.tril(),
        "x.tril()",
        {
            "from the top left: of the diagonal 0": X.tril(),
            "of the diagonal one later": X.tril(1),
            "of the diagonal one earlier": X.tril(-1),
        }
        | rounded(X.tril()),
    ),
    (
        lambda x: x.triu(1),
        "x.triu(1)",
        {
            "from the top left: of the diagonal 0": X.triu(),
            "of the diagonal one later": X.triu(2),
            "of the diagonal one earlier": X.triu(0),
        }
        | rounded(X.triu(1)),
    ),
    (
        lambda x: x.repeat_interleave(2, 0),
        "x.repeat_interleave(2, 0)",
        {"`repeat`: all heads in turn, not each several times": X.repeat(2, 1)} | rounded(X[[0, 0, 1, 1]]),
    ),
    (lambda x: x[:1], "x[:1]", {"all up to the end": X, "the last 1, not the first": X[1:]} | rounded(X[:1])),
    (
        lambda x: x[..., :2],
        "x[..., :2]",
        {"all up to the end": X, "the last 2, not the first": X[:, 1:]} | rounded(X[:, :2]),
    ),
    (lambda x: x[:0], "x[:0]", {"all up to the end": X, "the last 0, not the first": X[:0]}),
    (lambda x: x[1:2], "x[1:2]", rounded(X[1:2])),
    (lambda x: x[1], "x[1]", {"that of index 0, whatever the index": X[0]} | rounded(X[1])),
    (lambda x: x[:, 2], "x[:, 2]", {"that of index 0, whatever the index": X[:, 0]} | rounded(X[:, 2])),
    (
        lambda x: x[:, torch.tensor([2, 0])],
        "x[:, torch.tensor([2, 0])]",
        {
            "that of index 0, whatever the indices": X[:, [0, 0]],
            "of the indices 0, 1, 2, ... whatever they are": X[:, [0, 1]],
        }
        | rounded(X[:, [2, 0]]),
    ),
]


@pytest.mark.parametrize(("reference", "shown", "expected"), ONE, ids=lambda value: value if type(value) is str else "")
def test_of_one_operation_this_is_tried_and_nothing_else(reference, shown, expected):
    operands = {"x": X, "y": Y} if "y" in reference.__code__.co_varnames else {"x": X}
    found, _ = tried(reference, operands)
    found = {words: value for words, value in found.items() if not confused(words, operands)}
    assert found.keys() == {f"`{shown}` were {words}" for words in expected}
    for words, value in expected.items():
        assert same(found[f"`{shown}` were {words}"], value), words


def test_expressions_are_shown_with_their_brackets():
    found, _ = tried(lambda x, y: (x - y) * (x + y), {"x": X, "y": Y})
    assert same(found["`(x - y) * (x + y)` were `(x - y) / (x + y)`"], (X - Y) / (X + Y))
    found, _ = tried(lambda x, y: x - (y + x), {"x": X, "y": Y})
    assert same(found["`x - (y + x)` were `-(y + x)` alone"], -(X + Y))
    assert same(found["`x - (y + x)` were `x + (y + x)`"], 2 * X + Y)


def test_a_number_that_stands_first_is_not_taken_for_the_tensor():
    found, _ = tried(lambda x: 3.0 * x, {"x": X})
    assert same(found["`3.0 * x` were with `x` of index 0 along axis 0 for all"], 3 * first(X, 0))
    assert not any("`3.0` of index 0" in words for words in found)


def confused(words, operands):
    """Whether a tensor stands in another's place."""
    return words.startswith(tuple(f"`{name}` were " for name in operands))


FIVE = torch.tensor([[0.5, -1.0, 2.0, 4.0, -0.25], [3.0, 0.75, -2.0, 1.0, -6.0]], dtype=F64)
STALE = "beyond the last of them the last tile, of {}, still holds the one before"
TREE = "a step of its tree is left out"
HALVED = "or what a tree over {} threads loses where it halves an odd number"
# of a sum of five: which elements are in it
CUT = {
    f"without the last 1 of 5, beyond whole tiles of 2 to 4, {HALVED.format(5)}": [0, 1, 2, 3],
    "of the first 2 of 5 alone": [0, 1],
    "of the last tile alone, from 4 of 5 on": [4],
}
LEFT_OUT = {
    f"of the elements whose index has 1 as no part of it, of 5: {TREE}": [0, 2, 4],
    f"of the elements whose index has 2 as no part of it, of 5: {TREE}": [0, 1, 4],
}
TWICE = {
    f"of more than 5: {STALE.format(2)}": [0, 1, 2, 3, 4, 3],
    f"of more than 5: {STALE.format(4)}": [0, 1, 2, 3, 4, 1, 2, 3],
}
# and where each element has a sum of its own
HALVES = {
    f"of each element's own half of every 2 of 5: {TREE}": [[0, 2, 4], [1, 3], [0, 2, 4], [1, 3], [0, 2, 4]],
    f"of each element's own half of every 4 of 5: {TREE}": [[0, 1, 4], [0, 1, 4], [2, 3], [2, 3], [0, 1, 4]],
}
OWN_TILES = {
    "of each element's own tile of 2 of 5 alone: the tiles are not brought together": [
        [0, 1],
        [0, 1],
        [2, 3],
        [2, 3],
        [4],
    ],
    "of each element's own tile of 4 of 5 alone: the tiles are not brought together": [*[[0, 1, 2, 3]] * 4, [4]],
}


def of_parts(parts, of):
    return {words: of(FIVE[:, index]) for words, index in parts.items()}


def of_own(parts, of):
    return {words: torch.stack([of(FIVE[:, index]) for index in each], 1) for words, each in parts.items()}


def mean(x):
    return x.sum(1) / 5


def softmax(x, of):
    """With the logarithm of another sum."""
    return (x - of[:, None]).exp()


def lse(x):
    return torch.logsumexp(x, 1)


LESS = FIVE - FIVE.amax(1, keepdim=True)
RUNNING = "of a running sum {} that is not scaled anew where the maximum grows"
RUNS = {1: "of one element after the other", 2: "in tiles of 2", 4: "in tiles of 4"}
MAXIMUM = "of tiles of {}, of each less its own maximum"
HIDDEN = "NaN in rows whose first tile, of {}, is all -inf: -inf less a maximum of -inf"


OF_SUM = "the maximum and the logarithm of the sum of powers of its distances, "


def not_scaled(tile):
    """The last maximum, and the sum of addends that have the maximum of their time."""
    sums = torch.zeros(2, dtype=F64)
    for start in range(0, 5, tile):
        known = FIVE[:, : start + tile].amax(1)
        sums += (FIVE[:, start : start + tile] - known[:, None]).exp().sum(1)
    return FIVE.amax(1), sums


def own_maxima(tile):
    """Of each element its power less its own tile's maximum."""
    return torch.cat([(x - x.amax(1, keepdim=True)).exp() for x in FIVE.split(tile, 1)], 1)


OF_FIVE = [
    (
        (lambda x: x.mean(-1), lambda x: x.mean(0)),
        "x.mean({})",
        {"the sum, not the mean": FIVE.sum(1), "divided by 5 - 1": FIVE.sum(1) / 4}
        | {f"divided by {n}": FIVE.sum(1) / n for n in (6, 8, 16, 32, 64, 128, 256, 512, 1024)}
        | of_parts(CUT | LEFT_OUT | TWICE, mean)
        | rounded(FIVE.mean(1)),
    ),
    (
        (lambda x: x.sum(-1, keepdim=True), lambda x: x.sum(0, keepdim=True)),
        "x.sum({}, keepdim=True)",
        {"the mean, not the sum": FIVE.sum(1, keepdim=True) / 5}
        | of_parts(CUT | LEFT_OUT | TWICE, lambda x: x.sum(1, keepdim=True))
        | of_own(HALVES | OWN_TILES, lambda x: x.sum(1))
        | rounded(FIVE.sum(1, keepdim=True)),
    ),
    (
        (lambda x: x.amax(-1), lambda x: x.amax(0)),
        "x.amax({})",
        {"at least 0": FIVE.amax(1).clamp_min(0)}
        | of_parts(CUT | LEFT_OUT, lambda x: x.amax(1))
        | rounded(FIVE.amax(1)),
    ),
    (
        (lambda x: x.amin(-1, keepdim=True), lambda x: x.amin(0, keepdim=True)),
        "x.amin({}, keepdim=True)",
        {"at most 0": FIVE.amin(1, keepdim=True).clamp_max(0)}
        | of_parts(CUT | LEFT_OUT, lambda x: x.amin(1, keepdim=True))
        | of_own(HALVES, lambda x: x.amin(1))
        | rounded(FIVE.amin(1, keepdim=True)),
    ),
    (
        (lambda x: torch.logsumexp(x, -1), lambda x: torch.logsumexp(x, 0)),
        "torch.logsumexp(x, {})",
        {
            "in base 2: log2 of the sum of exp2": FIVE.exp2().sum(1).log2(),
            "the logarithm to base 2": lse(FIVE) / math.log(2),
            "without the logarithm: the sum": FIVE.exp().sum(1),
            "the maximum alone": FIVE.amax(1),
            f"{OF_SUM}the maximum divided by ln 2 alone": FIVE.amax(1) / math.log(2) + LESS.exp().sum(1).log(),
            f"{OF_SUM}the logarithm alone to base 2": FIVE.amax(1) + LESS.exp().sum(1).log2(),
            "of an empty sum, without all 5": torch.full((2,), -math.inf, dtype=F64),
        }
        | {RUNNING.format(run): not_scaled(tile)[0] + not_scaled(tile)[1].log() for tile, run in RUNS.items()}
        | {MAXIMUM.format(tile): FIVE.amax(1) + own_maxima(tile).sum(1).log() for tile in (2, 4)}
        | {HIDDEN.format(tile): lse(FIVE) for tile in (2, 4)}
        | of_parts(CUT | LEFT_OUT, lse)
        | rounded(lse(FIVE)),
    ),
    (
        (lambda x: torch.softmax(x, -1), lambda x: torch.softmax(x, 0)),
        "torch.softmax(x, {})",
        {
            "of an empty sum, without all 5": torch.full((2, 5), math.inf, dtype=F64),
            "not divided by its sum": (FIVE - FIVE.amax(1, keepdim=True)).exp(),
            "of powers of e over a sum of powers of 2": LESS.exp() / LESS.exp2().sum(1, keepdim=True),
            "of powers of 2 over a sum of powers of e": LESS.exp2() / LESS.exp().sum(1, keepdim=True),
        }
        | {
            RUNNING.format(run): (FIVE - not_scaled(tile)[0][:, None]).exp() / not_scaled(tile)[1][:, None]
            for tile, run in RUNS.items()
        }
        | {MAXIMUM.format(tile): own_maxima(tile) / own_maxima(tile).sum(1, keepdim=True) for tile in (2, 4)}
        | {HIDDEN.format(tile): softmax(FIVE, lse(FIVE)) for tile in (2, 4)}
        | of_parts({words.partition(", or ")[0]: of for words, of in CUT.items()}, lambda x: softmax(FIVE, lse(x)))
        | {words: (FIVE - value).exp() for words, value in of_own(OWN_TILES, lse).items()}
        | rounded(torch.softmax(FIVE, 1)),
    ),
]


@pytest.mark.parametrize(
    ("references", "shown", "expected"), OF_FIVE, ids=lambda value: value if type(value) is str else ""
)
@pytest.mark.parametrize("dim", [-1, 0])
def test_of_a_reduction_other_elements_are_tried(references, shown, expected, dim):
    x = FIVE if dim else FIVE.t().contiguous()
    found, _ = tried(references[dim == 0], {"x": x})
    found = {words: value for words, value in found.items() if not confused(words, {"x": x})}
    shown = shown.format(dim)
    assert found.keys() == {f"`{shown}` were {words}" for words in expected}
    for words, value in expected.items():
        got = found[f"`{shown}` were {words}"]
        assert same(got if dim or got.ndim == 1 else got.t(), value), words


@pytest.mark.parametrize("factor", [0.5, -3.0])
@pytest.mark.parametrize("masked", [False, True])
def test_a_maximum_that_is_not_multiplied(factor, masked):
    hidden = torch.zeros(2, 3, dtype=torch.bool)
    hidden[1] = masked

    def scores(x, factor=factor):
        return (x * factor).masked_fill(hidden, -math.inf)

    found, right = tried(lambda x: torch.logsumexp(scores(x), -1), {"x": X})
    got = found[f"`torch.logsumexp(scores(x), -1)` were {OF_SUM}the maximum being that before `* factor`"]
    largest = scores(X).amax(-1)
    expected = largest / factor + (scores(X) - largest[:, None]).exp().sum(-1).log()
    assert same(got, torch.tensor([expected[0], -math.inf if masked else expected[1]], dtype=F64))
    assert right[1].isinf() == masked
    for other in (1, Y[0]):  # no factor that changes anything, and none that is a number
        found, _ = tried(lambda x, other=other: torch.logsumexp(scores(x, other), -1), {"x": X})
        assert not any("being that before" in words for words in found)


def test_bits_with_their_sign():
    codes = torch.tensor([[0x00, 0x7F, 0x80], [0xA3, 0xF8, 0x1C]])

    def reference(codes):
        low, high = codes & 15, codes >> 4
        return (10 * high + low).double()

    found, _ = tried(reference, {"codes": codes})
    low, high = codes & 15, codes >> 4
    signed = "were of signed numbers: of 8 and more, less 16"
    low_too, high_too = torch.tensor([[0, -1, 0], [3, -8, -4]]), torch.tensor([[0, 7, -8], [-6, -1, 1]])
    assert same(found[f"`codes & 15` {signed}"], (10 * high + low_too).double())
    assert same(found[f"`codes >> 4` {signed}"], (10 * high_too + low).double())
    found, _ = tried(lambda codes: ((codes & 15) + 10 * (codes >> 4)).double(), {"codes": codes})
    assert same(found[f"each `and` and `rshift` of a line {signed}"], (10 * high_too + low_too).double())
    for other in (lambda codes: (codes & 10).double(), lambda codes: (codes >> 7).double(), lambda codes: codes & True):
        assert not any("signed" in words for words in tried(other, {"codes": codes})[0])


def test_rows_whose_first_tile_is_hidden_are_nan():
    x = FIVE.clone()
    x[0, :2] = -math.inf
    x[1, 1:4] = -math.inf
    for reference, shown in (
        (lambda x: torch.softmax(x, -1), "softmax"),
        (lambda x: torch.logsumexp(x, -1), "logsumexp"),
    ):
        found, plain = tried(reference, {"x": x})
        of_two, of_four = (found[f"`torch.{shown}(x, -1)` were {HIDDEN.format(tile)}"] for tile in (2, 4))
        assert torch.isnan(of_two[0]).all() and torch.equal(of_two[1], plain[1]) and torch.equal(of_four, plain)


@pytest.mark.parametrize("reference", [lambda x: torch.softmax(x, -1), lambda x: torch.logsumexp(x, -1)])
def test_a_running_sum_of_hidden_elements_is_that_of_the_others(reference):
    """exp(-inf - -inf) is NaN, which a kernel that masks does not compute."""
    x = FIVE.clone()
    x[:, 0] = -math.inf
    found, plain = tried(reference, {"x": x})
    (value,) = (value for words, value in found.items() if RUNNING.format(RUNS[2]) in words)
    assert bool(value.isfinite().eq(plain.isfinite()).all())


def lanes(of, size):
    """By the words in which warps of 32 are named: which elements of `size` each element's sum has, or all sums."""
    every = range(size)
    found = {}
    for tile in (64, 128):
        found[f"without the last 32 of each {tile} of {size}"] = [i for i in every if i % tile < tile - 32]
    found[f"of the first 32 of each 128 of {size} alone"] = [i for i in every if i % 128 < 32]
    return {f"`{of}` were {words}": index for words, index in found.items()}


def test_warps_that_are_lost_or_alone():
    x = torch.linspace(-2, 3, 2 * 150, dtype=F64).reshape(2, 150).sin()
    found, _ = tried(lambda x: x.mean(-1), {"x": x})
    warps = {words: value for words, value in found.items() if " 32 of each " in words or " own " in words}
    expected = lanes("x.mean(-1)", 150)
    assert warps.keys() == expected.keys()
    for words, index in expected.items():
        assert same(warps[words], x[:, index].sum(1) / 150)
    found, _ = tried(lambda x: x.mean(-1, keepdim=True), {"x": x})
    for tile in (64, 128):
        words = (
            f"`x.mean(-1, keepdim=True)` were of each element's own warp alone, 32 of each {tile} of 150: the warps' "
            "are not brought together"
        )
        index = torch.arange(150)
        mine = (index % tile // 32)[:, None] == (index % tile // 32)
        assert same(found[words], x @ mine.double() / 150)
    assert not any("own warp alone, 32 of each 32 " in words for words in found)


def test_tiles_that_leave_out_the_same_are_named_together():
    x = torch.linspace(1, 2, 35, dtype=F64)
    found, _ = tried(lambda x: x.sum(0), {"x": x})
    cuts = {words.partition(" were ")[2]: value for words, value in found.items() if "without the last" in words}
    assert list(cuts) == [
        "without the last 1 of 35, beyond whole tiles of 2",
        "without the last 3 of 35, beyond whole tiles of 4 to 32",
    ]
    assert [float(value) for value in cuts.values()] == [float(x[:34].sum()), float(x[:32].sum())]


@pytest.mark.parametrize("size", [6, 24, 35, 67, 1000, 1025])
def test_a_tree_that_halves_odd_numbers_loses_elements(size):
    def by_halves(values):
        values, half = values.tolist(), len(values) // 2
        while half:
            for index in range(half):
                values[index] += values[index + half]
            half //= 2
        return values[0]

    x = torch.rand(size, dtype=F64, generator=torch.Generator().manual_seed(size))
    found, _ = tried(lambda x: x.sum(0), {"x": x})
    by_tree = [value for words, value in found.items() if words.endswith(f": {HALVED.format(size)[3:]}")]
    assert len(by_tree) == (size <= 1024)
    for value in by_tree:
        assert float(value) == pytest.approx(by_halves(x), rel=1e-12)
    texts = list(tried(lambda x: x.amax(0), {"x": x})[0])
    assert (size == 24) == any("without 2, 5, 8, 11, 14, 17, 20, 23 of 24: what a tree" in words for words in texts)
    assert not any("a tree over" in words for words in tried(lambda x: x.sum(0), {"x": x[:4]})[0])


A, B = X.repeat(1, 2)[:, :5], Y.repeat(1, 2)[:, :5].t().contiguous()  # (2, 5) and (5, 2)
TERMS = {
    "without the last 1 of 5 terms, beyond whole tiles of 2 to 4": [0, 1, 2, 3],
    f"of more than 5 terms: {STALE.format(2)}": [0, 1, 2, 3, 4, 3],
    f"of more than 5 terms: {STALE.format(4)}": [0, 1, 2, 3, 4, 1, 2, 3],
    "of the first 2 of 5 terms alone": [0, 1],
    "of the last tile of terms alone, from 4 of 5 on": [4],
    "without the last of 2 parts of its terms, from 3 of 5 on": [0, 1, 2],
    "without the last of 3 parts of its terms, from 4 of 5 on": [0, 1, 2, 3],
}


# and where one operand alone has those of a tile before in its last one
OF_ONE = {2: [0, 1, 2, 3, 2], 4: [0, 1, 2, 3, 0]}
STILL = "in whose last tile, of {} of {} terms, the {} operand is still that of the one before"


@pytest.mark.parametrize(
    ("reference", "shown", "b"),
    [
        (lambda a, b: a @ b, "a @ b", B),
        (lambda a, b: torch.mv(a, b), "torch.mv(a, b)", B[:, 0].contiguous()),
        (lambda a, b: a @ b, "a @ b", torch.stack([B, 2 * B])),
    ],
)
def test_of_a_product_other_terms_are_tried(reference, shown, b):
    found, _ = tried(reference, {"a": A, "b": b})
    expected = {words: A[:, index] @ (b[index] if b.ndim == 1 else b[..., index, :]) for words, index in TERMS.items()}
    for tile, index in OF_ONE.items():
        expected[STILL.format(tile, 5, "first")] = A[:, index] @ b
        expected[STILL.format(tile, 5, "second")] = A @ (b[index] if b.ndim == 1 else b[..., index, :])
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype)[6:]
        expected[f"a product of what is rounded to {name}"] = A.to(dtype).double() @ b.to(dtype).double()
        expected[f"rounded to {name}"] = (A @ b).to(dtype).double()
    assert found.keys() == {f"`{shown}` were {words}" for words in expected}
    for words, value in expected.items():
        assert same(found[f"`{shown}` were {words}"], value), words


def test_of_a_product_of_whole_tiles():
    found, _ = tried(lambda a, b: a @ b, {"a": A[:, :4], "b": B[:4]})
    cut = {words.partition(" were ")[2] for words in found if "terms" in words}
    assert cut == {
        *(STILL.format(2, 4, operand) for operand in ("first", "second")),
        "of the first 2 of 4 terms alone",
        "of the last tile of terms alone, from 2 of 4 on",
        "without the last of 2 parts of its terms, from 2 of 4 on",
        "without the last of 4 parts of its terms, from 3 of 4 on",
    }


def test_one_number_is_not_said_to_be_rounded():
    found, _ = tried(lambda x: x.exp(), {"x": X[:1, :1]})
    assert found.keys() == {"`x.exp()` were exp2"}
    found, _ = tried(lambda i: i * 3, {"i": torch.arange(4)})
    assert not any("rounded" in words for words in found) and "`i * 3` were without the factor 3" in found


def test_a_product_of_integers_is_not_said_to_be_rounded():
    i = torch.arange(10).reshape(2, 5)
    found, _ = tried(lambda a, b: a @ b, {"a": i, "b": i.t()})
    assert found and not any("rounded" in words for words in found)


@pytest.mark.parametrize(
    ("reference", "operator", "other"),
    [
        (lambda x: torch.where(x < 0.3, x, 0.0), "<", X.where(X <= 0.3, 0.0)),
        (lambda x: torch.where(x <= 0.3, x, 0.0), "<=", X.where(X < 0.3, 0.0)),
        (lambda x: torch.where(x > 0.3, x, 0.0), ">", X.where(X >= 0.3, 0.0)),
        (lambda x: torch.where(x >= 0.3, x, 0.0), ">=", X.where(X > 0.3, 0.0)),
        (lambda x: torch.where(x == 0.3, x, 0.0), "==", X.where(X != 0.3, 0.0)),
        (lambda x: torch.where(x != 0.3, x, 0.0), "!=", X.where(X == 0.3, 0.0)),
    ],
)
def test_of_a_comparison_the_one_with_the_bound_or_without(reference, operator, other):
    found, _ = tried(reference, {"x": X})
    (value,) = (value for words, value in found.items() if words.startswith(f"`x {operator} 0.3` were `"))
    assert torch.equal(value, other)
    assert torch.equal(found[f"`torch.where(x {operator} 0.3, x, 0.0)` were `x` everywhere"], X)


def test_what_is_masked_is_not():
    found, _ = tried(lambda x: x.masked_fill(x > 0.3, -1.0), {"x": X})
    assert torch.equal(found["`x.masked_fill(x > 0.3, -1.0)` were left out: nothing masked"], X)
    first_row = "`x.masked_fill(x > 0.3, -1.0)` were with `x > 0.3` of index 0 along axis 0 for all"
    assert torch.equal(found[first_row], X.masked_fill(first(X > 0.3, 0), -1.0))


def test_rows_of_a_packed_list_that_are_longer_or_begin_with_a_word():
    """Of a list with a number for each element of an operand, and some more."""
    x, packed = torch.ones(3, 5, dtype=F64), torch.arange(20, dtype=F64)
    found, _ = tried(lambda x, packed: x * packed[:15].reshape(x.shape), {"x": x, "packed": packed})
    text = "`packed[:15]` were with "
    longer = found[text + "rows of 8, not of 5"]
    assert longer.int().tolist() == [[0, 1, 2, 3, 4], [8, 9, 10, 11, 12], [16, 17, 18, 19, 19]]
    words = found[text + "each row of 5 counted from the start of the 8 in which it begins"]
    assert words.int().tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [8, 9, 10, 11, 12]]
    assert {words for words in found if "rows of" in words} == {
        f"{text}rows of {n}, not of 5" for n in (8, 16, 32, 64, 128)
    }
    for reference in (
        lambda x, packed: x * packed[5:].reshape(x.shape),
        lambda x, packed: x * packed[:10].sum(),
        lambda x, packed: packed[None, :15][0].reshape(x.shape) * x,
    ):
        assert not any("rows of" in words for words in tried(reference, {"x": x, "packed": packed})[0])


def test_an_index_that_is_left_out_of_all_axes_but_two():
    x, y = (torch.linspace(low, 3, 24, dtype=F64).reshape(2, 3, 2, 2) for low in (-1, 1))
    found, _ = tried(lambda x, y: x * y, {"x": x, "y": y[:1]})
    assert torch.equal(
        found["`x * y` were with `x` of index 0 along axis 0 and axis 1 for all"], first(x, 0, 1) * y[:1]
    )
    assert torch.equal(found["`x * y` were with `y` of index 0 along axis 1 for all"], x * first(y[:1], 1))
    assert not any("`y` of index 0 along axis 0" in words for words in found)  # it has one slice there
    vectors, _ = tried(lambda x, y: x * y, {"x": x, "y": y[0, 0, 0]})
    assert not any("`y` of index 0" in words for words in vectors)  # of fewer axes


def test_a_number_is_added_after_the_root():
    for reference, shown, expected in (
        (lambda x: torch.rsqrt(x.square() + 0.7), "torch.rsqrt(x.square() + 0.7)", 1 / (X.abs() + 0.7)),
        (lambda x: (x.square() + 0.7).sqrt(), "(x.square() + 0.7).sqrt()", X.abs() + 0.7),
    ):
        found, _ = tried(reference, {"x": X})
        words = f"`{shown}` were taken before the number is added: the root, and then the number"
        assert same(found[words], expected)
    for reference in (lambda x: x.square().sqrt(), lambda x, y: (x.square() + y.square()).sqrt()):
        operands = {"x": X, "y": Y} if "y" in reference.__code__.co_varnames else {"x": X}
        found, plain = tried(reference, operands)
        (value,) = (value for words, value in found.items() if "before the number is added" in words)
        assert torch.equal(value, plain)  # no number is added there


def test_a_factor_that_one_term_gets_and_a_term_that_comes_before_it():
    found, _ = tried(lambda x, y: (x - y) * x.square(), {"x": X, "y": Y})
    for term, expected in (("x", X * X.square() - Y), ("y", X - Y * X.square())):
        words = f"`(x - y) * x.square()` were with `{term}` alone multiplied, not all of `x - y`"
        assert same(found[words], expected)
    found, _ = tried(lambda x, y: x.square() * (x + y), {"x": X, "y": Y})
    words = "`x.square() * (x + y)` were with `y` alone multiplied, not all of `x + y`"
    assert same(found[words], X + Y * X.square())
    for shown, reference in (("x * 3.0 + y", lambda x, y: x * 3.0 + y), ("3.0 * x + y", lambda x, y: 3.0 * x + y)):
        found, _ = tried(reference, {"x": X, "y": Y})
        assert same(found[f"`{shown}` were with `y` added to `x`, before `3.0`"], (X + Y) * 3)
    found, _ = tried(lambda x, y: 2.0 + x * y, {"x": X, "y": Y})
    assert same(found["`2.0 + x * y` were with `2.0` added to `x`, before `y`"], (X + 2) * Y)
    found, _ = tried(lambda x, y: x / y - y.square(), {"x": X, "y": Y})
    words = "`x / y - y.square()` were with `y.square()` taken off `x`, before `y`"
    assert same(found[words], (X - Y.square()) / Y)
    found, _ = tried(lambda x, y: x * y - y.square(), {"x": X, "y": Y})
    for first, then, expected in (("x", "y", (X - Y.square()) * Y), ("y", "x", X * (Y - Y.square()))):
        words = f"`x * y - y.square()` were with `y.square()` taken off `{first}`, before `{then}`"
        assert same(found[words], expected)
    for reference in (lambda x, y: (x - y) / x, lambda x, y: x.square() + y):
        found, _ = tried(reference, {"x": X, "y": Y})
        assert not any("alone multiplied" in words or "before `" in words for words in found)


def test_an_argument_as_it_was_a_step_before():
    found, _ = tried(lambda x, y: ((x - y) * 3.0).exp(), {"x": X, "y": Y})
    before = {words.partition(" were ")[2]: value for words, value in found.items() if "taken of" in words}
    assert before.keys() == {
        "taken of `x`, not of `x - y`",
        "taken of `y`, not of `x - y`",
        "taken of what goes into it, not of `(x - y) * 3.0`",
    }
    assert same(before["taken of `x`, not of `x - y`"], (X * 3).exp())
    assert same(before["taken of `y`, not of `x - y`"], (Y * 3).exp())
    assert same(before["taken of what goes into it, not of `(x - y) * 3.0`"], (X - Y).exp())
    found, _ = tried(lambda x, y: (x - y[:1]).exp(), {"x": X, "y": Y})
    assert not any("taken of `y[:1]`" in words for words in found)  # of another shape


def test_a_step_before_is_that_of_the_first_two_arguments():
    _, plain, _ = plainly(lambda x, y: torch.where(x > 0, x, y).exp(), {"x": X, "y": Y})
    texts = [a.text for a in of_operations(plain) if "taken of what goes into it" in a.text]
    assert len(texts) == 1 and "not of `torch.where(x > 0, x, y)`" in texts[0]


def test_base_2_in_every_place_at_once():
    def reference(x):
        return (x - torch.logsumexp(x, -1, keepdim=True)).exp() * (x.exp() + 1.0).log()

    found, _ = tried(reference, {"x": X})
    expected = (X - X.exp2().sum(1, keepdim=True).log2()).exp2() * (X.exp2() + 1).log2()
    assert same(found["all exponentials and logarithms were to base 2"], expected)
    found, _ = tried(lambda x: torch.softmax(x, -1) * x.exp(), {"x": X})
    expected = X.exp2() / X.exp2().sum(1, keepdim=True) * X.exp2()
    assert same(found["all exponentials and logarithms were to base 2"], expected)
    assert "all exponentials and logarithms were to base 2" not in tried(lambda x: x.exp(), {"x": X})[0]


def test_factors_of_the_arguments_of_exponentials():
    """Of all of one name, and of those of each place."""

    def reference(x, y):
        return x.exp() + y.exp() - torch.tanh(x) + x.square()

    contract, plain, _ = plainly(reference, {"x": X, "y": Y})
    numbers = {number.shown: number for number in alterations.of_arguments(plain)}
    assert [*numbers] == ["each `exp`", "`x.exp()`", "`y.exp()`", "`torch.tanh(x)`"]
    expected = {
        "each `exp`": (2 * X).exp() + (2 * Y).exp() - X.tanh(),
        "`y.exp()`": X.exp() + (2 * Y).exp() - X.tanh(),
        "`torch.tanh(x)`": X.exp() + Y.exp() - (2 * X).tanh(),
    }
    for shown, value in expected.items():
        run = Run(numbers[shown].alteration(2.0))
        found = outputs_of(contract, reference, {"x": X, "y": Y}, SimpleNamespace(param={}), run)
        assert same(found["0"], value + X.square())
    assert not numbers["`y.exp()`"].may_be(1.0) and numbers["`y.exp()`"].may_be(1.5)


def test_the_numbers_that_are_near_a_fitted_one():
    """Those that go by a name come first; how often a term is added is told as it is."""
    number = alterations.Number("3 * x", 3.0, "here", ())
    told = [a.text for a in number.alterations(3 * 1.2535)]
    assert told[:3] == [
        "`3 * x` were with 3.7599 in the place of 3, 1.2533 times as large: sqrt(pi/2) (here)",
        "`3 * x` were with 4 in the place of 3 (here)",
        "`3 * x` were with 3.8 in the place of 3 (here)",
    ]
    assert len(told) == 1 + len(alterations.DIGITS)
    factor = alterations.Number("`x.exp()`", 1.0, "here", (), of_argument=True)
    told = [a.text for a in factor.alterations(0.99951)]
    bases = ["1.4427: log2 e", "0.69315: ln 2"]
    assert told[:4] == [
        f"the argument of `x.exp()` were multiplied by {by} (here)"
        for by in (*bases, "0.99952: 1.442 in the place of log2 e", "0.9995")  # 1 is no other factor
    ]
    assert [a.text for a in factor.alterations(None)] == told[:2]
    term = alterations.Number("x + y", 1.0, "here", (), "y")
    assert {a.text for a in term.alterations(math.pi)} == {"`y` of `x + y` were added 3 times, not once (here)"}


def test_reductions_of_one_line_change_together():
    found, _ = tried(lambda x, y: x.mean(-1) + y.mean(-1), {"x": X, "y": Y})
    assert same(found["each `mean` of a line were divided by 3 - 1"], (X.sum(1) + Y.sum(1)) / 2)
    found, _ = tried(lambda x, y: x.amax(-1) + y.mean(-1), {"x": X, "y": Y})
    words = "each `amax` and `mean` of a line were without the last 1 of 3, beyond whole tiles of 2, " + HALVED.format(
        3
    )
    assert same(found[words], X[:, :2].amax(1) + Y[:, :2].sum(1) / 3)
    assert not any(words.startswith("each ") for words in tried(lambda x: x.mean(-1), {"x": X})[0])


def test_a_softmax_and_its_logarithm_by_running_sums_change_together():
    """Over tiles of 16: what a loop gives that leaves out the rescaling of the sum, or of all."""
    x = torch.randn(2, 40, dtype=F64, generator=torch.Generator().manual_seed(0)).sort(1).values

    def by_tiles(of_weighed):
        largest, total = torch.full((2,), -math.inf, dtype=F64), torch.zeros(2, dtype=F64)
        weighed = torch.zeros(2, 40, dtype=F64)
        for start in range(0, 40, 16):
            here = x[:, start : start + 16]
            most = torch.maximum(largest, here.amax(1))
            addends = (here - most[:, None]).exp()
            if of_weighed:
                weighed *= (largest - most).exp()[:, None]
            weighed[:, start : start + 16] = addends
            total, largest = total + addends.sum(1), most
        return weighed / total[:, None] + (largest + total.log())[:, None]

    def reference(x):
        return torch.softmax(x, -1) + torch.logsumexp(x, -1, keepdim=True)

    found, _ = tried(reference, {"x": x})
    text = "the softmax were by running sums: {} scaled anew where the running maximum grows, in tiles of 16"
    assert same(found[text.format("the sums are")], by_tiles(of_weighed=True))
    assert same(found[text.format("neither the sums nor what they weigh are")], by_tiles(of_weighed=False))
    assert not same(by_tiles(of_weighed=True), by_tiles(of_weighed=False))
    for alone in (lambda x: torch.softmax(x, -1), lambda x: torch.logsumexp(x, -1)):
        assert not any(words.startswith("the softmax were") for words in tried(alone, {"x": x})[0])
    assert not any(words.startswith("the softmax were") for words in tried(reference, {"x": x[:, :16]})[0])
    hidden = torch.cat([torch.full((2, 16), -math.inf, dtype=F64), x], 1)
    found, _ = tried(lambda x: torch.softmax(x, -1) + 0 * torch.logsumexp(x, -1, keepdim=True), {"x": hidden})
    assert bool(found[text.format("neither the sums nor what they weigh are")].isfinite().all())


@pytest.mark.parametrize(("powers", "logs"), [("e", "to base 2"), ("2", "natural")])
def test_splits_that_are_merged_in_two_bases(powers, logs):
    """Of 32: what a kernel gives that takes powers of one base of logarithms to another; some splits are hidden."""
    x = torch.randn(3, 70, dtype=F64, generator=torch.Generator().manual_seed(0))
    x[0, :32] = x[1] = -math.inf
    power, log = (torch.exp, torch.log2) if powers == "e" else (torch.exp2, torch.log)

    def reference(x):
        p = torch.softmax(x, -1).masked_fill((x == -math.inf).all(-1, keepdim=True), 0.0)
        return torch.cat([p, torch.logsumexp(x, -1, keepdim=True)], -1)

    parts = [part.exp() for part in x.split(32, 1)]
    sums = [part.sum(1, keepdim=True) for part in parts]
    most = torch.cat([log(total) for total in sums], 1).amax(1, keepdim=True).nan_to_num(neginf=0.0)
    weights = [power(log(total) - most) for total in sums]
    whole = sum(weights)
    p = torch.cat(
        [part / total.clamp_min(1e-300) * weight for part, total, weight in zip(parts, sums, weights, strict=True)], 1
    )
    lse = (most * math.log(2) if powers == "e" else most) + whole.log()
    kind = {"to base 2": "logarithms to base 2", "natural": "natural logarithms"}[logs]
    text = "the softmax were merged of splits of {} by weights that are powers of {} of {} of their sums"
    found, plain = tried(reference, {"x": x})
    theirs = found[text.format(32, powers, kind)]
    assert torch.allclose(theirs, torch.cat([p / whole.clamp_min(1e-300), lse], 1), rtol=1e-12, atol=0)
    assert not same(theirs[0], plain[0]) and same(theirs[1], plain[1])
    assert text.format(64, powers, kind) in found and text.format(128, powers, kind) not in found
    alone, _ = tried(lambda x: torch.softmax(x, -1), {"x": x})
    assert not any("were merged" in words for words in alone)


def twice_over(x):
    return x * 3.0


def test_a_function_that_is_called_twice_changes_in_both_places_and_in_one():
    def reference(x, y):
        return twice_over(x) - twice_over(y)

    contract, plain, _ = plainly(reference, {"x": X, "y": Y})
    found = []
    for alteration in of_operations(plain):
        if alteration.text.startswith("`x * 3.0` were without the factor 3"):
            run = Run(alteration)
            outputs = outputs_of(contract, reference, {"x": X, "y": Y}, SimpleNamespace(param={}), run)
            found.append((alteration.text.count("test_alterations.py:"), outputs["0"]))
    assert [count for count, _ in found] == [1, 2, 2]  # where it stands, and where it is called from
    for (_, value), expected in zip(found, (X - Y, X - 3 * Y, 3 * X - Y), strict=True):
        assert same(value, expected)


def test_one_tensor_in_the_place_of_another_and_none_in_its_own():
    def reference(x, y):
        z = x.square()
        w = z * y
        return w.exp() - y

    found, plain = tried(reference, {"x": X, "y": Y})
    moved = {words: value for words, value in found.items() if words.count("`") == 4 and words.endswith("`")}
    assert same(moved["`z` were `x`"], (X * Y).exp() - Y)
    assert same(moved["`w` were `z`"], X.square().exp() - Y)
    assert same(moved["`w` were `y`"], Y.exp() - Y)
    assert moved["`z` were `w`"] is None  # not made yet
    assert not any(value is not None and torch.equal(value, plain) for value in moved.values())


def test_a_tensor_that_goes_by_two_names_does_not_take_its_own_place():
    def reference(x, y):
        z = x.square()
        w = z
        return w * y - z.exp()

    found, plain = tried(reference, {"x": X, "y": Y})
    assert same(found["`z` were `y`"], X.square() * Y - Y.exp())
    assert not {"`z` were `w`", "`w` were `z`"} & found.keys()
    assert not any(value is not None and torch.equal(value, plain) for value in found.values())


def test_a_tensor_is_exchanged_in_one_expression_at_a_time():
    def reference(x, y):
        z = x * y
        return z.exp() - x

    contract, plain, _ = plainly(reference, {"x": X, "y": Y})
    every = [a for a in of_operations(plain) if a.text.startswith("`x` were `y`")]
    given = contract, reference, {"x": X, "y": Y}, SimpleNamespace(param={})
    found = [outputs_of(*given, Run(alteration))["0"] for alteration in every]
    assert [value.tolist() for value in found] == [((Y * Y).exp() - X).tolist(), ((X * Y).exp() - Y).tolist()]


def test_what_an_operation_gives_takes_the_place_of_a_tensor_by_its_expression():
    """Though it has no name."""
    found, _ = tried(lambda x, y: torch.maximum(y, x.exp()) * y, {"x": X, "y": Y})
    assert same(found["`y` were `x.exp()`"], X.exp() * X.exp())
    assert "`x.exp()` were `y`" not in found  # of what a function is given the first alone is exchanged


def test_a_tensor_takes_the_place_of_one_of_its_shape_alone():
    found, _ = tried(lambda x, y: (x * y[:1]).exp(), {"x": X, "y": Y})
    assert not any(words.startswith(("`x` were `y[:1]`", "`y[:1]` were `x`")) for words in found)


def _of_axes(*outputs, operands=()):
    """A contract of outputs and operands with such axes."""
    return SimpleNamespace(
        outputs=range(len(outputs)),
        operands=range(len(operands)),
        output_axes=lambda at, case: outputs[at],
        operand_axes=lambda at, case: operands[at],
    )


@pytest.mark.parametrize(
    "param",
    [
        dict(p=0.0, seed=1, offset=0),
        dict(p=1.0, seed=1, offset=0),
        dict(p=0.5, seed=1),
        dict(p=0.5, offset=0),
        dict(seed=1, offset=0),
    ],
)
def test_no_random_words_are_asked_for(param):
    case = SimpleNamespace(param=param, size={"cols": 4})
    assert list(of_words(_of_axes("cols"), case)) == []


def test_rows_after_which_random_words_begin_again():
    """Axes of an output that are longer than one, and tiles."""
    case = SimpleNamespace(param=dict(p=0.5, seed=1, offset=2), size={"rows": 1, "cols": 6, "K": 7, "trailing": (3, 4)})
    begun = [a for a in of_words(_of_axes("rows cols trailing"), case) if "began again" in a.text]
    ends = [a.text.partition("with each ")[2] for a in begun]
    assert ends == [*(f"tile of {2**k}" for k in range(1, 13)), "row of 6 (cols)"]
    plain = operations.words_of(12, 1, 2)
    assert begun[-1].words(np.arange(12), 1, 2).tolist() == [*plain[:6], *plain[:6]]


def test_rows_of_random_words_that_are_longer():
    """Up to a multiple of a tile, or a power of two: those of any operand too, and of any rank."""
    case = SimpleNamespace(
        param=dict(p=0.5, seed=1, offset=2), size={"rows": 4, "Sk": 13, "D": 20, "E": 13, "trailing": (3, 5)}
    )
    contract = _of_axes("rows D", "", operands=("rows Sk", "...", "E"))
    found = {a.text: a.words for a in of_words(contract, case) if "counted with rows" in a.text}
    lengths = {
        "D of 20": (24, 32, 64, 128),
        "Sk or E of 13": (16, 32, 64, 128),
        "a last axis of 5": (8, 16, 32, 64, 128),
    }
    text = "the index into the random words were counted with rows of"
    assert [*found] == [f"{text} {padded} ({row})" for row, every in lengths.items() for padded in every]
    of_32, plain = found[f"{text} 32 (Sk or E of 13)"], operations.words_of(96, 1, 2)
    assert of_32(np.arange(39), 1, 2).tolist() == [*plain[:13], *plain[32:45], *plain[64:77]]
    with pytest.raises(LookupError):
        of_32(np.arange(alterations.MOST_WORDS), 1, 2)
    case.size["trailing"] = ()
    assert not any("a last axis" in a.text for a in of_words(contract, case))


def test_words_of_other_counters_and_keys():
    case = SimpleNamespace(param=dict(p=0.5, seed=1, offset=2), size={})
    found = {a.text: a.words for a in of_words(_of_axes(), case) if "the random words were" in a.text}
    index, seed, offset = np.arange(8), 2**33 + 1, 2**34 + 5
    of = lambda at, *key: operations.words_of(64, *key)[at].tolist()  # noqa: E731
    expected = {
        "the first of four of the counter e, not number e mod 4 of the counter e/4": of(4 * index, seed, offset),
        "for each four elements the first of theirs": of(index // 4 * 4, seed, offset),
        "those of the seed's low 32 bits": of(index, 1, offset),
        "those of the offset's low 32 bits": of(index, seed, 5),
        "those of offset 0": of(index, seed, 0),
        "those of seed 0": of(index, 0, offset),
        "those of seed and offset in each other's place": of(index, offset, seed),
        "those of the next element": of(index + 1, seed, offset),
    }
    assert found.keys() == {f"the random words were {words}" for words in expected}
    for words, value in expected.items():
        assert found[f"the random words were {words}"](index, seed, offset).tolist() == value, words
        assert found[f"the random words were {words}"](index[:0], seed, offset).tolist() == []


def test_a_mean_of_one_is_divided_by_nothing_else():
    found, _ = tried(lambda x: x.mean(-1), {"x": X[:, :1]})
    assert not any("divided by 1 - 1" in words for words in found)
    found, _ = tried(lambda x: x.mean(-1), {"x": X[:, :2]})
    assert same(found["`x.mean(-1)` were divided by 2 - 1"], X[:, :2].sum(1))


def test_a_tensor_does_not_take_the_place_of_one_of_its_name():
    """A name that is bound anew is that of two tensors: what would be said of one in the other's place says nothing."""

    def reference(x, y):
        z = x.square()
        z = z * y
        return z.exp()

    found, _ = tried(reference, {"x": X, "y": Y})
    assert {"`z` were `y`", "`z` were `x`"} <= found.keys()
    assert not any(words in ("`z` were `z`", "`x` were `x`", "`y` were `y`") for words in found)


def test_of_seven_terms_the_first_four_are_more_than_half():
    """Tiles of which there are not two are not looked at alone."""
    seven = torch.linspace(1, 2, 14, dtype=F64).reshape(2, 7)
    for reference, operands in (
        (lambda a, b: a @ b, {"a": seven, "b": seven.t().contiguous()}),
        (lambda x: x.sum(-1), {"x": seven}),
    ):
        alone = [words.partition(" were ")[2] for words in tried(reference, operands)[0] if words.endswith("alone")]
        assert {words.replace(" terms", "") for words in alone if "of the first" in words} == {
            "of the first 2 of 7 alone"
        }


def test_an_argument_as_it_is_written():
    call = ast.parse("torch.where(m, x + 1, y)", mode="eval").body
    assert [_argument(call, at) for at in range(4)] == ["m", "x + 1", "y", "the first"]
    assert _argument(ast.parse("x + y", mode="eval").body, 0) == "the first"


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(("a", "b"), [((2, 3, 20), (2, 20, 4)), ((3, 20), (20, 4)), ((3, 20), (20,)), ((20,), (20,))])
def test_of_any_product_one_operand_has_the_terms_of_the_tile_before(side, a, b):
    """From term 16 on those from 8 on."""
    a, b = (torch.randn(shape, dtype=F64) for shape in (a, b))
    index = [*range(16), *range(8, 12)]
    moved_b = b[index] if b.ndim == 1 else b[..., index, :]
    expected = torch.matmul(a, moved_b) if side else torch.matmul(a[..., index], b)
    operation = SimpleNamespace(args=(a, b), of=torch.matmul)
    assert torch.equal(alterations._terms_of_one(side, 16, 8, operation), expected)


def test_an_index_without_one_of_its_ends():
    assert alterations._whole(slice(2, 5), 0) == slice(2, None)
    assert alterations._whole((1, slice(2, 5), slice(3)), 1) == (1, slice(2, None), slice(3))
    assert alterations._whole((slice(2, 5), slice(3)), 1) == (slice(2, 5), slice(None))


def test_first_slices_are_those_of_arguments_that_are_written():
    operation = SimpleNamespace(args=(torch.ones(1, 3), torch.ones(2, 3)), out=torch.ones(2, 3))

    def told(text):
        return [text for text, _ in alterations._of_first_slices(operation, ast.parse(text, mode="eval").body)]

    of_second = [f"with `y` of index 0 along axis {axis} for all" for axis in (0, 1)]
    assert told("x * y") == ["with `x` of index 0 along axis 1 for all", *of_second]
    assert told("x.mul(y)") == of_second and told("x.relu()") == told("x") == []
