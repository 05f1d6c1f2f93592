"""What a diagnosis says of wrong answers whose cause is known, heat maps, and who wrote an element."""

import contextlib
import itertools
import math
import sys
import time
import types
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.faults import Planted
from touchstone.conformance.judging import diagnosis, heatmap
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.executor import InProcess, _address, _index, _writer
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.cases import plain_case

SOFTMAX = registry.contract("softmax")


def case_of(rows=3, cols=65, dtype="float32", values="normal", op="softmax"):
    return plain_case(registry.contract(op), dtype, values, size=dict(rows=rows, cols=cols))


def diagnose(fn, case, **options):
    """The diagnosis of a function of softmax's signature on one case, of all its outputs."""
    contract = registry.contract(case.op)
    got = contract.by_name(contract.call(fn, contract.build(case).arguments))
    expected = contract.expected(contract.build(case))
    verdicts = {
        name: compare.compare(tensor, expected[name], case.torch_dtype, diagnosis.exact(contract, case, name))
        for name, tensor in got.items()
    }
    texts = diagnosis.diagnose(contract, case, got, expected, verdicts, **options)
    return "\n".join(texts.values())


def softmax(x):
    return torch.softmax(x.double(), -1).to(x.dtype)


def marked(shape, *index):
    bad = torch.zeros(shape, dtype=torch.bool)
    for where in index:
        bad[where] = True
    return bad


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (torch.ones(3, 5, dtype=torch.bool), "everything"),
        (marked((37, 20), slice(32, 37)), "rows from 32 on, the last 5 of 37 (the overhang of tiles of 32), all cols"),
        (marked((37, 20), slice(3, 7)), "rows 3..6 of 37, all cols"),
        (marked((4, 5003), (..., slice(1024, None))), "cols from 1024 on, the last 3979 of 5003, all rows"),
        (marked((4, 65), (..., 64)), "cols 64 of 65, the last (the overhang of tiles of 64), all rows"),
        (marked((4, 65), (0, ...)), "rows 0 of 4, the first, all cols"),
        (marked((4, 65), (..., slice(1, None, 2))), "every second of 65 cols, from 1, all rows"),
        (marked((2, 64), (..., slice(0, 8)), (..., slice(32, 40))), "cols 0..7, 32..39 (16 of 64), all rows"),
        (
            marked((2, 150), *((..., slice(i, i + 13)) for i in (0, 64, 128))),
            "cols 0..12 of every 64 (39 of 150), all rows",
        ),
        (
            marked((5, 6555), (4, slice(6547, None))),  # 32767 in front
            "rows 4 of 5, the last, cols from 6547 on, the last 8 of 6555",
        ),
        (
            marked((5, 6555), (4, slice(6548, None))),
            "rows 4 of 5, the last, cols from 6548 on, the last 7 of 6555: the last 7 in memory order (the overhang of "
            "tiles of 4096)",
        ),
        (marked((9, 9), (2, 3)), "one element of 81, at [2, 3]"),
        (~marked((40, 50), (slice(0, 32), slice(0, 32))), "everything but rows 0..31 of 40, cols 0..31 of 50"),
        (marked((1, 64), (0, slice(0, 64, 3))), "every third of 64 cols, from 0"),
        (marked((9, 7), *((i // 7, i % 7) for i in range(0, 63, 4))), "every fourth element in memory order, from 0"),
        (marked((50, 50), *((i, i) for i in range(50))), "50 of 2500 elements, scattered over all rows, all cols"),
        (~marked((6, 8), (1, 1), (2, 5)), "most of all rows, all cols (46 of 48)"),
    ],
)
def test_regions(bad, text):
    if text.startswith("50 of"):
        bad[0, 7] = bad[7, 0] = True
        text = text.replace("50 of 2500", "52 of 2500")
    assert diagnosis.region(bad, ("rows", "cols")) == text


def relation(change, shape=(6, 8), case=None, axes=("rows", "cols")):
    """What is said of the answer 1..n after `change`."""
    case = case or case_of(*shape)
    answer = torch.arange(1.0, math.prod(shape) + 1, dtype=torch.float64).reshape(shape) ** 1.5
    expected, got = Expected(answer), change(answer).float()
    bad = compare.compare(got, expected, torch.float32).bad
    assert bad is not None
    return diagnosis.related(got, expected, case, bad, axes)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda y: y * math.log(2), "0.6931 x the answer (ln 2)"),
        (lambda y: y / math.log(2), "1.443 x the answer (1/ln 2)"),
        (lambda y: -y, "-1 x the answer (-1)"),
        (lambda y: y * 2, "2 x the answer (2)"),
        (lambda y: y * 8, "8 x the answer (cols)"),
        (lambda y: y / math.sqrt(6), "0.4082 x the answer (1/sqrt(rows))"),
        (lambda y: y * 1.23, "1.23 x the answer"),
        (lambda y: y + math.log(2), "the answer +0.6931 (ln 2)"),
        (lambda y: y - 7.25, "the answer -7.25"),
        (lambda y: y * torch.arange(2.0, 8.0)[:, None], "each row is a factor of its own times the answer, 2 to 7"),
        (lambda y: y + torch.arange(5.0, 11.0)[:, None], "each row is the answer plus a number of its own, 5 to 10"),
        (lambda y: y.mT.reshape(y.shape), "the answer with rows and cols swapped in memory"),
        (lambda y: y.roll(1, 1), "the answer moved by +1 along cols"),
        (lambda y: y.roll(-1, 0), "the answer moved by -1 along rows"),
        (lambda y: y.flip(0), "the answer reversed along rows"),
        (lambda y: y[:, [1, 0, 3, 2, 5, 4, 7, 6]], "the answer with each two neighbours along cols swapped"),
        (lambda y: y.roll(4, 1), "the answer with both halves along cols swapped"),
        (lambda y: y[:, [1, 0, 3, 2, 5, 4, 6, 7]], "the answer's values in another order"),
        (lambda y: y * (1 - 3e-4), "(1 -0.0003) x the answer"),
        (lambda y: y.reshape(-1).roll(13).reshape(y.shape), "the answer's values in another order"),
        (torch.zeros_like, "all 0 there"),
        (lambda y: y * math.nan, diagnosis.NAN),
        (lambda y: y * math.inf, "infinite there: an overflow, or a division by 0"),
        (lambda y: y.sin(), None),
        (lambda y: y * (1 + 3e-7), None),
        (lambda y: y * (1 + 7e-7), None),
    ],
)
def test_relations(change, text):
    assert relation(change) == text


def test_nan_that_a_conversion_makes_is_no_memory_that_nothing_wrote():
    """torch's vectorised conversion to bfloat16 makes the NaN of all ones of every other, as fresh memory holds it."""
    answer, got = torch.ones(3, 80, dtype=torch.float64), (torch.zeros(3, 80) / 0).bfloat16()
    case, bad = replace(case_of(3, 80), dtype="bfloat16"), torch.ones(3, 80, dtype=torch.bool)
    assert diagnosis.related(got, Expected(answer), case, bad, ["rows", "cols"]) == diagnosis.NAN


def test_zeros_at_other_places():
    answer = torch.tensor([[1.5, 0.0, 2.5, 0.0], [0.0, 3.5, 0.0, 4.5]], dtype=torch.float64).repeat(1, 4)
    got, expected = answer.roll(1, 1).float(), Expected(answer)
    bad = compare.compare(got, expected, torch.float32).bad
    said = diagnosis.related(got, expected, case_of(2, 4), bad, ["rows", "cols"])
    few = diagnosis.related(got[:, :4], Expected(answer[:, :4]), case_of(2, 4), bad[:, :4], ["rows", "cols"])
    assert "mask" not in (few or "")
    assert said == "0 where the answer is not, and not 0 where it is: another mask, or another index into it"


@pytest.mark.parametrize("byte", probe.PATTERNS)
def test_what_was_never_written(byte):
    def tail_left(y):
        y = y.float()
        y[:, 4:].view(torch.uint8).fill_(byte)
        return y

    assert relation(tail_left) == "they were never written, or added to: the allocator's fill is still there"


def test_a_constant_of_the_parameters():
    contract = registry.contract("rms_norm")
    case = plain_case(contract, "float32", "normal", size=dict(rows=6, cols=8))
    case = type(case)(**{**vars(case), "params": (("eps", 0.1),)})
    assert relation(lambda y: y * 10, case=case) == "10 x the answer (1/eps)"


def test_too_few_elements_tell_no_factor():
    assert relation(lambda y: torch.where(y > y.max() - 1, 3 * y, y)) is None


def test_axes_of_any_number():
    assert diagnosis.axis_names("N C ...", 5) == ["N", "C", "axis 2", "axis 3", "axis 4"]
    assert diagnosis.axis_names("N C ...", 2) == ["N", "C"]
    assert diagnosis.axis_names("rows", 1) == ["rows"]


def test_a_mutant_is_named():
    def no_maximum(x):
        e = x.float().exp()
        return (e / e.sum(-1, keepdim=True)).to(x.dtype)

    text = diagnose(no_maximum, case_of(values="large"))
    assert text.startswith("equals the reference, but ")
    assert "(mutant no_maximum)" in text.splitlines()[0]
    assert text.splitlines()[1] == "y: wrong: everything"


def test_the_ops_own_faults_are_named_before_generic_ones():
    def half_too_much(x):
        return softmax(x) * 1.005

    (line,) = [line for line in diagnose(half_too_much, case_of()).splitlines() if "(mutant " in line]
    assert line == "equals the reference, but the result is 0.5 % too large (mutant half_percent)"
    own, general = (
        Planted("softmax", name, "x", "scale", lambda: half_too_much, generic=name == "half_percent")
        for name in ("my_own", "half_percent")
    )
    found = matches(half_too_much, [general, own])
    assert [mutant.name for mutant in found] == ["my_own", "half_percent"]


def matches(fn, mutants, case=None, seconds=diagnosis.SECONDS):
    case = case or case_of()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "planted", lambda op: mutants)
        got = {"y": fn(SOFTMAX.build(case).arguments["x"])}
        expected = SOFTMAX.expected(SOFTMAX.build(case))
        verdicts = {"y": compare.compare(got["y"], expected["y"], case.torch_dtype)}
        return diagnosis.matching_mutants(SOFTMAX, case, got, expected, verdicts, seconds).get("y", [])


def planted(name, fn, kind="scale", **options):
    return Planted("softmax", name, name, kind, lambda: fn, **options)


def test_which_faults_match():
    def wrong(x):
        return softmax(x) * 1.5

    mutants = [
        planted("right", softmax),
        planted("other", lambda x: softmax(x) * 1.4),
        planted("same", lambda x: softmax(x) * 1.5),
        planted("a_control", wrong, kind="known-good"),
        planted("writes", wrong, kind="mutation"),
        planted("in_half", wrong, dtypes=("float16",)),
        planted("a_kernel", wrong, backend="somewhere"),
        planted("raises", lambda x: 1 / 0),
        planted("another_shape", lambda x: wrong(x)[0]),
        planted("nothing", lambda x: None),
        planted("more", lambda x: (wrong(x), wrong(x))),
    ]
    assert [mutant.name for mutant in matches(wrong, mutants)] == ["same"]
    assert matches(lambda x: softmax(x) * 1.6, mutants) == []


def test_at_most_three_are_named_and_the_closest_first():
    near = [planted(f"near{i}", lambda x, i=i: softmax(x) * (1.5 + 2e-8 * i)) for i in (4, 1, 3, 2)]
    found = matches(lambda x: (torch.softmax(x.double(), -1) * 1.5).float(), near)
    assert len(found) == 3
    assert found[0].name == "near1"


def test_comparing_stops_when_time_is_up():
    def slow(x):
        time.sleep(0.05)
        return softmax(x)

    start = time.monotonic()
    assert matches(lambda x: softmax(x) * 2, [planted("slow", slow)] * 100, seconds=0.1) == []
    assert time.monotonic() - start < 3


def test_a_large_case_is_not_compared(monkeypatch):
    monkeypatch.setattr(diagnosis, "WORK_LIMIT", 10)
    assert "(mutant " not in diagnose(lambda x: softmax(x) * 1.005, case_of())


def leaning(by):
    """Softmax in bfloat16, moved by one unit wherever that stays within the budget of 0.75 units."""

    def fn(x):
        exact = torch.softmax(x.double(), -1)
        moved = (exact * (1 + by * 2**-9)).bfloat16()
        unit = torch.exp2(exact.log2().floor()) * 2**-7
        return torch.where((moved - exact).abs() < 0.7 * unit, moved, exact.bfloat16())

    return fn


def test_errors_that_lean_one_way():
    """Each is within its budget: there is no region, and a mutant that leans alike is named."""
    case = case_of(1031, 7, "bfloat16")
    mutants = [planted("right", softmax), planted("up", leaning(0.7)), planted("down", leaning(-0.7))]
    assert [mutant.name for mutant in matches(leaning(-0.7), mutants, case)] == ["down"]
    text = diagnose(leaning(-0.7), case)
    assert "wrong:" not in text


def test_nothing_to_say_of_what_is_right():
    assert diagnose(softmax, case_of()) == ""


def test_an_unknown_bug_is_described():
    def wrong(x):
        y = softmax(x)
        y[:, 32:] = y[:, 32:].sqrt()
        return y

    text = diagnose(wrong, case_of(3, 37))
    assert "(mutant " not in text
    lines = text.splitlines()
    assert lines[0] == "y: wrong: cols from 32 on, the last 5 of 37 (the overhang of tiles of 32), all rows"
    assert lines[1] == "cols 0..36 to the right, rows down"
    assert [set(line[35:-1]) for line in lines[2:5]] == [set("5")] * 3 or all("." * 32 in line for line in lines[2:5])


def test_two_outputs():
    case = case_of(4, 9, op="online_softmax")

    def wrong(x):
        return softmax(x), torch.logsumexp(x.double(), -1).float() + math.log(2)

    assert "lse: wrong: everything; the answer +0.6931 (ln 2)" in diagnose(wrong, case, mutants=False)
    assert "y:" not in diagnose(wrong, case, mutants=False)


def test_each_wrong_output_is_named_by_itself(monkeypatch):
    """y and lse are wrong for reasons of their own; a mutant that is wrong in both ways would be named for both."""

    def online(change_y, change_lse):
        return lambda x: (change_y(softmax(x)), change_lse(torch.logsumexp(x.double(), -1).float()))

    def double(t):
        return 2 * t

    def planted_as(name, fn):
        return Planted("online_softmax", name, name, "scale", lambda: fn)

    case, same = case_of(4, 9, op="online_softmax"), torch.clone
    apart = [planted_as("y_doubled", online(double, same)), planted_as("lse_doubled", online(same, double))]
    monkeypatch.setattr(registry, "planted", lambda op: apart)
    contract = registry.contract("online_softmax")
    got = contract.by_name(contract.call(online(double, double), contract.build(case).arguments))
    expected = contract.expected(contract.build(case))
    verdicts = {name: compare.compare(got[name], expected[name], torch.float32) for name in got}
    texts = diagnosis.diagnose(contract, case, got, expected, verdicts)
    assert "y_doubled" in texts["y"] and "lse_doubled" not in texts["y"]
    assert "lse_doubled" in texts["lse"] and "y_doubled" not in texts["lse"]
    apart.append(planted_as("both", online(double, double)))
    texts = diagnosis.diagnose(contract, case, got, expected, verdicts)
    assert all(text.splitlines()[0].endswith("but both (mutant both)") for text in texts.values())


def test_shares_of_an_answer_with_alternatives():
    answers = [torch.full((4,), float(v), dtype=torch.float64) for v in (1, 2)]
    expected = Expected(answers[0], alternatives=[Expected(answers[1])])
    got = torch.tensor([2.0, 2.0, 2.5, math.nan])
    shares = diagnosis.shares(got, expected, torch.float32)
    assert shares[:2].tolist() == [0, 0]
    assert 1e5 < shares[2] < math.inf
    assert shares[3] == math.inf


def test_a_map():
    fractions = torch.zeros(3, 5)
    fractions[0, 0], fractions[1, 2], fractions[2, 4], fractions[2, 0] = 5.0, 50.0, math.nan, 1e30
    assert heatmap.text(fractions, axes=("rows", "cols")).splitlines() == [
        "cols 0..4 to the right, rows down",
        "0 |1....|",
        "1 |..2..|",
        "2 |9...#|",
        heatmap.LEGEND,
    ]


def test_a_map_shows_the_worst_of_each_cell():
    bad = torch.zeros(1000, 1000, dtype=torch.bool)
    bad[999, 999] = True
    lines = heatmap.text(bad, width=40, height=10).splitlines()
    assert lines[0] == "axis 1 0..999 to the right, axis 0 down; 100 x 25 elements per character"
    assert [line.count("#") for line in lines[1:-1]] == [0] * 9 + [1]
    assert lines[10] == "900 |" + "." * 39 + "#|"


def test_a_map_of_many_axes():
    fractions = torch.zeros(2, 3, 7, 70)
    fractions[1, 2, 6] = 3
    lines = heatmap.text(fractions, axes="BHSD").splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines[1:-1])) <= 64 + 10
    assert lines[0].startswith("D 0..69 to the right, B,H,S down; 3 x 2 elements")
    assert "1" * 35 in lines[-2]
    assert lines[2].startswith("0,0,3 |")


def test_maps_of_little():
    assert heatmap.text(torch.zeros(0, 4)) == "no elements: shape (0, 4)"
    assert "|#|" in heatmap.text(torch.tensor(math.inf))
    assert " |.1.|" in heatmap.text(torch.tensor([0.5, 2.0, 1.0]))


@pytest.mark.parametrize("options", [dict(width=0), dict(height=0), dict(axes=("rows",))])
def test_a_map_of_wrong_size(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        heatmap.text(torch.zeros(2, 2), **options)


def test_a_picture_needs_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match="pip install matplotlib"):
        heatmap.picture(torch.ones(2, 2), tmp_path / "map.png")


def test_a_matplotlib_that_does_not_import_is_said(monkeypatch, tmp_path):
    class Broken(types.ModuleType):
        def __getattr__(self, name):
            raise SystemError("returned NULL without setting an exception")

    monkeypatch.setitem(sys.modules, "matplotlib.figure", Broken("matplotlib.figure"))
    with pytest.raises(ValueError, match="does not import in this process.* returned NULL"):
        heatmap.picture(torch.ones(2, 2), tmp_path / "map.png")


def test_a_picture_has_an_ending(tmp_path):
    with pytest.raises(ValueError, match=r"\.png or \.svg, got 'map\.jpg'"):
        heatmap.picture(torch.ones(2, 2), tmp_path / "map.jpg")


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize(("name", "magic"), [("map.png", b"\x89PNG"), ("map.svg", b"<?xml")])
def test_pictures(tmp_path, name, magic):
    fractions = torch.rand(3, 2000, 5) * 10
    fractions[0, 0, 0] = math.inf
    heatmap.picture(fractions, tmp_path / name, "a title")
    assert (tmp_path / name).read_bytes().startswith(magic)
    with pytest.raises(ValueError, match="no elements"):
        heatmap.picture(torch.ones(0), tmp_path / name)


class Writers:
    """Says for each address how far it is into the tensor that the kernel returned last."""

    def __init__(self, returned):
        self.returned = returned

    def of(self, address):
        return f"element {(address - self.returned[-1].data_ptr()) // 4}"


def owner(subject, case, *element):
    return diagnosis.owner(InProcess(subject), subject.contract, case, *element)


def test_who_wrote_an_element(monkeypatch):
    returned = []

    def fn(x):
        returned.append(softmax(x))
        return returned[-1]

    backend = SimpleNamespace(writers=lambda device: contextlib.nullcontext(Writers(returned)))
    monkeypatch.setattr(registry, "behind", lambda target: ("paper",))
    monkeypatch.setattr(registry, "backend", lambda name: {"paper": backend}[name])
    subject = Subject("softmax", fn, "fn", "paper@cpu", "cpu", own=True)
    assert owner(subject, case_of(3, 65), "y", (1, 2)) == "element 67"


class Written:
    """Knows who wrote the elements of one tensor, by their number in memory."""

    def __init__(self, tensor):
        self.start, self.item, self.count = tensor.data_ptr(), tensor.element_size(), tensor.numel()

    def of(self, address):
        number, rest = divmod(address - self.start, self.item)
        return f"element {number}" if 0 <= number < self.count and not rest else None


def test_what_was_copied_is_written_by_who_wrote_the_source():
    written = torch.arange(12.0).reshape(3, 4)
    who = [Written(written)]
    turned = torch.empty(4, 3).t().copy_(written)  # a copy in another layout, of which every second column is copied on
    out = torch.empty(3, 2).copy_(turned[:, ::2])
    copies = [(turned, written), (out, turned[:, ::2])]
    assert [_writer(who, copies, {"y": out}, "y", (i, j)) for i in range(3) for j in range(2)] == [
        f"element {4 * i + 2 * j}" for i in range(3) for j in range(2)
    ]
    assert _writer(who, copies, {"y": written}, "y", (2, 3)) == "element 11"
    assert _writer(who, copies[1:], {"y": out}, "y", (0, 0)) is None  # nobody knows the first copy's source
    wide = torch.empty(5, 3, 4).copy_(written)
    assert _writer(who, [(wide, written)], {"y": wide}, "y", (4, 1, 2)) == "element 6"
    elsewhere = torch.zeros(3, 2)
    assert _writer(who, copies, {"y": elsewhere}, "y", (0, 0)) is None


@pytest.mark.parametrize(
    ("values", "index"),
    [({}, (0, 0)), ({"y": 3}, (0, 0)), ({"y": torch.ones(2, 2)}, (0,)), ({"y": torch.ones(2, 2)}, (0, 2))],
)
def test_an_element_that_is_not_there_has_no_writer(values, index):
    assert _writer([SimpleNamespace(of=lambda address: "somebody")], [], values, "y", index) is None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3, 4),
        torch.zeros(4, 3).t(),
        torch.zeros(3, 9)[:, 1::2],
        torch.zeros(2, 3, 4).permute(1, 2, 0),
        torch.zeros(3, 1).expand(3, 4)[:, :1],
    ],
)
def test_the_index_of_an_address(tensor):
    every = list(itertools.product(*map(range, tensor.shape)))
    assert [_index(tensor, _address(tensor, index)) for index in every] == every
    end = _address(tensor, [size - 1 for size in tensor.shape])
    assert _index(tensor, end + 400) is None
    assert _index(tensor, tensor.data_ptr() - tensor.element_size()) is None
    assert _index(tensor, tensor.data_ptr() + 1) is None


def test_a_gap_between_elements_has_no_index():
    tensor = torch.zeros(3, 9)[:, :7:2]
    assert _index(tensor, tensor.data_ptr() + 4) is None  # between two columns
    assert _index(tensor, tensor.data_ptr() + 8 * 4) is None  # behind the last one of a row


@pytest.mark.parametrize(
    "backend",
    [
        SimpleNamespace(),
        SimpleNamespace(writers=lambda device: None),
        SimpleNamespace(writers=lambda device: contextlib.nullcontext(SimpleNamespace(of=lambda address: None))),
    ],
)
def test_a_target_that_knows_no_owner(monkeypatch, backend):
    monkeypatch.setattr(registry, "backend", lambda name: backend)
    subject = Subject("softmax", softmax, "fn", "paper@cpu", "cpu", own=True)
    assert owner(subject, case_of(), "y", (0, 0)) is None


def test_a_kernel_that_fails_has_no_owner(monkeypatch):
    backend = SimpleNamespace(writers=lambda device: contextlib.nullcontext(Writers([])))
    monkeypatch.setattr(registry, "backend", lambda name: backend)
    subject = Subject("softmax", lambda x: 1 / 0, "fn", "paper@cpu", "cpu", own=True)
    assert owner(subject, case_of(), "y", (0, 0)) is None


@pytest.mark.parametrize(("rows", "said"), [(5, True), (2, False)])
def test_slices_in_no_order_are_not_told_by_a_few_elements(rows, said):
    told = relation(lambda y: y[:, [3, 1, 2, 7, 4, 3, 6, 5]], shape=(rows, 8))
    assert ("the answer of another cols" in (told or "")) == said
