"""Which variant `best` takes for a call: by the table, past those that decline, remembered without confusing calls."""

import inspect
import json
import pickle
import shutil
import timeit

import pytest
import torch

from tests import targets
from touchstone.backends import Unsupported
from touchstone.backends.variants import Attributes
from touchstone.conformance.discovery import best, measured, registry, selection
from touchstone.conformance.discovery.measured import Point, Table
from touchstone.conformance.findings import kept

VARIANT = """

{decorator}
def {name}(x):
    shapes("rows cols", x=x)
    {declines}
    CALLS.append("{name}")
    with running():
        return torch.softmax(x.float(), -1).to(x.dtype).contiguous()
"""
LADDER = {
    "naive": ("", ""),
    "narrow": ("", "if x.shape[1] > 64: raise Unsupported('too wide')"),
    "aligned": ("", "if x.data_ptr() % 16: raise Unsupported('off 16 bytes')"),
    "half": ('@variant(dtypes=("float16", "bfloat16"))', ""),
    "unequal": ("@variant(deterministic=False, captures=False)", ""),
    "folded": ('@variant(compute="tf32")', ""),
    "gilded": ('@variant(needs="sm_999")', ""),
}
SOFTMAX = targets._op_file(
    "\n\nCALLS = []\n"
    + "".join(
        VARIANT.format(name=name, decorator=decorator, declines=declines)
        for name, (decorator, declines) in LADDER.items()
    ),
    *LADDER,
)
ATTENTION = targets._op_file(
    "\n\nCALLS = []\n"
    + "".join(
        f"\n\ndef {name}(q, k, v, *, causal=False, scale=None):\n"
        f"    if {name == 'picky'} and scale == 0.5: raise Unsupported('that scale')\n"
        f'    CALLS.append("{name}")\n'
        for name in ("naive", "picky", "flash")
    ),
    "naive",
    "picky",
    "flash",
)
SHY = {"softmax": targets.SHY}
WORLD = {"paper": ({}, (), {}, {"softmax": SOFTMAX, "attention": ATTENTION}), "shy": ({}, (), {}, SHY)}
ABOUT = {"gpu": "a GPU", "date": "2001-02-03", "command": "bench", "commit": None, "versions": {}}


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    with targets.pretend(tmp_path, monkeypatch, WORLD):
        for package in ("conformance/contracts", "conformance/faults", "reference"):
            shutil.copy(tmp_path / package / "softmax.py", tmp_path / package / "attention.py")
        yield tmp_path


def point(ms, rows=8, cols=32, dtype="float32", layouts=None):
    return Point(dtype, {"rows": rows, "cols": cols}, {}, layouts or {}, ms, 0)


def pin(*points, op="softmax", arch="sm_90"):
    Table(op, "paper", arch, [ABOUT], points).write()


def softmax(**options):
    return best.best("softmax", "paper", arch="sm_90", **options)


def calls(op="softmax"):
    return registry.variants("paper", op)["naive"].__globals__["CALLS"]


def took(fn, *args, **kwargs):
    """The variants that ran in one call."""
    fn(*args, **kwargs)
    found = list(calls(fn.op))
    calls(fn.op).clear()
    return " ".join(found)


def rows(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def test_without_a_table_the_ladders_last_that_takes_the_call_is_taken():
    """Neither one that computes with less precision nor one that cannot run here."""
    fn = best.best("softmax", "paper")
    assert took(fn, rows(8, 32)) == "unequal"
    assert took(fn, rows(8, 32)) == "unequal", "the second call is answered from what was remembered"
    fn = best.best("softmax", "paper", deterministic=True)
    assert took(fn, rows(8, 32)) == "aligned"
    assert took(fn, rows(8, 32, dtype=torch.float16)) == "half"
    assert fn.taken(rows(8, 32)) == "aligned" and fn.taken(rows(9, 32)) is None


def test_the_table_decides_and_another_table_decides_otherwise():
    pin(point({"narrow": 1.0, "naive": 2.0}))
    assert took(softmax(), rows(8, 32)) == "narrow"
    pin(point({"naive": 1.0, "narrow": 2.0}))
    assert took(softmax(), rows(8, 32)) == "naive"
    pin(point({"folded": 0.5, "gilded": 0.6, "gone": 0.7, "narrow": 3.0, "naive": 4.0}))
    assert took(softmax(), rows(8, 32)) == "narrow"
    assert took(best.best("softmax", "paper", arch="sm_80"), rows(8, 32)) == "unequal", "it has no table"
    assert took(best.best("softmax", "paper"), rows(8, 32)) == "unequal", "nor has the CPU"


def test_the_nearest_point_decides():
    wide, deep = point({"naive": 1.0, "aligned": 2.0}, 8, 1024), point({"aligned": 1.0, "naive": 2.0}, 1024, 8)
    pin(wide, deep)
    fn = softmax()
    assert took(fn, rows(16, 700)) == "naive"
    assert took(fn, rows(700, 16)) == "aligned"
    assert took(fn, rows(0, 700)) == "naive", "a size of 0 counts as 1"


def test_the_dtype_comes_first_then_its_width():
    pin(point({"naive": 1.0, "half": 2.0}, dtype="bfloat16"), point({"half": 1.0, "naive": 2.0}, 999, dtype="float16"))
    fn = softmax()
    assert took(fn, rows(8, 32, dtype=torch.float16)) == "half", "its own dtype comes before the size"
    assert took(fn, rows(8, 32, dtype=torch.bfloat16)) == "naive"
    pin(point({"naive": 1.0, "half": 2.0}, 999, dtype="bfloat16"), point({"aligned": 1.0, "naive": 2.0}))
    assert took(softmax(), rows(8, 32, dtype=torch.float16)) == "naive", "one of its width before the size"
    pin(point({"half": 1.0, "aligned": 2.0, "naive": 3.0}, dtype="bfloat16"))
    assert took(softmax(), rows(8, 32)) == "aligned", "of another width, of what takes the dtype"
    pin(point({"half": 1.0}, dtype="bfloat16"))
    assert took(softmax(), rows(8, 32)) == "unequal", "nothing that takes it was measured"


def test_how_operands_lie_is_worth_a_size_eight_times_as_large():
    pin(point({"naive": 1.0, "aligned": 2.0}, 8, 8, layouts={"x": "transposed"}), point({"aligned": 1.0, "naive": 2.0}))
    fn = softmax()
    assert took(fn, rows(8, 8)) == took(fn, rows(8, 16)[:, :8]) == "aligned"
    assert took(fn, rows(32, 8).t()) == "naive", "the same shape and another stride"
    assert took(fn, rows(8, 32)) == "aligned"
    other = {"naive": 1.0, "aligned": 2.0}
    pin(point(other, 8, 8, layouts={"x": "transposed"}), point({"aligned": 1.0, "naive": 2.0}, 8, 128))
    assert took(softmax(), rows(8, 8)) == "naive", "sixteen times as large"
    assert took(softmax(), rows(8, 16)) == "aligned"


def attend(fn, **params):
    q = torch.zeros(1, 2, 4, 8)
    return took(fn, q, q, q, **params)


def test_parameters_by_which_points_differ_decide():
    sizes = {"B": 1, "Hq": 2, "Hkv": 2, "Sq": 4, "Sk": 4, "D": 8}
    points = [
        Point("float32", sizes, {"causal": False, "scale": None}, {}, {"flash": 1.0, "picky": 2.0}, 0),
        Point("float32", sizes, {"causal": True, "scale": None}, {}, {"picky": 1.0, "flash": 2.0}, 0),
    ]
    pin(*points, op="attention")
    fn = best.best("attention", "paper", arch="sm_90")
    assert attend(fn) == attend(fn, causal=False) == "flash"
    assert attend(fn, causal=True) == attend(fn, causal=True, scale=0.25) == "picky"
    assert attend(fn, causal=True, scale=0.5) == "flash", "what declines is passed over though it was remembered"
    assert attend(fn, causal=True, scale=0.75) == "picky", "and is taken again"


def test_one_that_declines_is_passed_over():
    pin(point({"narrow": 1.0, "aligned": 2.0, "naive": 3.0}))
    fn = softmax()
    assert took(fn, rows(8, 64)) == "narrow"
    assert took(fn, rows(8, 65)) == "aligned"
    off = torch.zeros(8 * 65 + 1)[1:].view(8, 65)
    assert took(fn, off) == "naive", "the same shape and strides, at another address"
    assert took(fn, rows(8, 65)) == "aligned"
    fn = softmax()
    assert (took(fn, off), took(fn, rows(8, 65))) == ("naive", "aligned"), "in whatever order"


def test_a_repeated_call_chooses_nothing(monkeypatch):
    chosen = []
    order = best.Ranking.order
    monkeypatch.setattr(best.Ranking, "order", lambda self, call: chosen.append(call) or order(self, call))
    fn = softmax()
    x, half = rows(8, 32), rows(8, 32, dtype=torch.float16)
    for value in (x, x, half, half, rows(8, 32), rows(32, 8).t(), rows(8, 33)):
        took(fn, value)
    assert [(call.dtype, call.sizes["cols"]) for call in chosen] == [
        ("float32", 32), ("float16", 32), ("float32", 32), ("float32", 33)
    ]  # fmt: skip
    chosen.clear()
    attention = best.best("attention", "paper")
    for scale in (0.1, 0.2, 0.3):
        attend(attention, scale=scale)
    assert len(chosen) == 1, "a number by which no points differ is another in each call"
    for causal in (True, False, True):
        attend(attention, causal=causal, scale=0.4)
    assert len(chosen) == 2, "False is the default, as before"


def test_a_repeated_call_costs_microseconds():
    """What the choice adds to the call of a variant that does nothing, at best: a tenth of what a launch takes."""
    q = torch.zeros(1, 2, 4, 8)
    fn = best.best("attention", "paper")
    attend(fn, causal=True, scale=0.1)
    key = fn._key((q, q, q), {"causal": True, "scale": 0.1})
    fn._taken[key] = lambda *args, **kwargs: None
    assert min(timeit.repeat(lambda: fn(q, q, q, causal=True, scale=0.1), number=200, repeat=20)) / 200 < 50e-6


def test_what_is_remembered_has_an_end(monkeypatch):
    monkeypatch.setattr(best, "MOST", 3)
    fn = softmax()
    for cols in range(1, 9):
        assert took(fn, rows(2, cols)) == "unequal"
        assert len(fn._taken) <= 3


def test_what_does_not_exist_is_named():
    with pytest.raises(ValueError, match="op: 'softmaks' is not one of attention, matmul, softmax; did you mean"):
        best.best("softmaks", "paper")
    with pytest.raises(ValueError, match="backend: 'papre' is not one of paper, shy; did you mean 'paper'"):
        best.best("softmax", "papre")
    with pytest.raises(ValueError, match="op: matmul has no kernels in paper; it has those of none"):
        best.best("matmul", "paper")
    with pytest.raises(ValueError, match="arch: 'sm90' is not one of sm_80"):
        best.best("softmax", "paper", arch="sm90")


def test_bad_input_gets_the_error_of_a_variant():
    fn = softmax()
    with pytest.raises(ValueError, match=r"x: expected shape \(rows, cols\)"):
        fn(torch.zeros(3))
    with pytest.raises(TypeError, match="x: expected dtype float32"):
        fn(rows(3, 3, dtype=torch.float64))
    with pytest.raises(TypeError, match="x: expected a torch.Tensor, got list"):
        fn([1.0])
    with pytest.raises(TypeError, match="positional argument"):
        fn(rows(3, 3), 1)


def test_where_each_declines_all_reasons_are_told():
    with pytest.raises(Unsupported, match="no variant of softmax in shy takes this call: plain: not in this weather"):
        best.best("softmax", "shy")(rows(3, 3))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda text: text[:-30], "is no table of what was measured: "),
        (lambda text: text.replace('"op": "softmax"', '"op": "matmul"'), "op: expected 'softmax', got 'matmul'"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "format: expected 1, got 2"),
        (lambda text: text.replace('"ms": {"narrow": 1.0', '"ms": {"narrow": -1.0'), "ms: expected milliseconds"),
        (lambda text: text.replace('"record": 0', '"record": 1'), "record: there is no number 1"),
        (lambda text: text.replace('"rows": 8', '"rows": "eight"'), "sizes: expected whole numbers, got 'eight'"),
        (lambda text: text.replace('"dtype"', '"type"'), "field 'dtype' is missing"),
        (lambda text: text.replace('"gpu"', '"chip"'), "records: one lacks gpu"),
        (lambda text: text.replace('"points"', '"spots"'), "field 'points' is missing"),
        (lambda text: "[]", "is no table"),
    ],
)
def test_a_broken_table_is_an_error_that_names_it(world, spoil, told):
    pin(point({"narrow": 1.0, "naive": 2.0}))
    path = world / "backends/paper/best/sm_90/softmax.json"
    path.write_text(spoil(path.read_text()))
    with pytest.raises(ValueError, match="backends/paper/best/sm_90/softmax.json is no table") as raised:
        softmax()(rows(8, 32))
    assert told in str(raised.value) and str(raised.value).endswith("`touchstone tune --best` writes it")


def test_it_has_the_ops_signature_and_what_all_variants_declare():
    fn = softmax()
    assert str(inspect.signature(fn)) == "(x)" and fn.__name__ == "best"
    assert fn.variant_attributes == Attributes(deterministic=False, captures=False)
    assert softmax(deterministic=True).variant_attributes == Attributes()
    pin(point({"narrow": 1.0, "naive": 2.0}))
    assert took(pickle.loads(pickle.dumps(fn)), rows(8, 32)) == "narrow"


def test_it_is_a_variant_where_it_is_named_and_only_there(capsys):
    every = selection.select("paper", "cpu", op="softmax")
    assert [subject.name for _, subject in every.subjects()] == list(LADDER)
    named = selection.select("paper", "cpu", op="softmax", variant="naive,best")
    assert [subject.name for _, subject in named.subjects()] == ["naive", "best"]
    ((_, subject),) = selection.select("paper", "cpu", op="softmax", variant="best").subjects()
    assert subject.own and not subject.deterministic and not subject.captures and subject.compute is None
    assert torch.equal(subject.call({"x": rows(2, 2)}), torch.full((2, 2), 0.5))
    source = {"backend": "paper", "variant": "best"}
    finding = {"id": "0", "op": "softmax", "target": "paper@cpu", "device": "cpu", "source": source, "op_file": None}
    finding["outputs"] = None
    assert isinstance(kept.load(finding).fn, best.Best), "its findings are replayed"
    for backend in registry.backends():
        for op in registry.kernel_ops(backend):
            assert best.NAME not in registry.ladder(backend, op)


def test_tables_are_merged_by_case():
    first = {**ABOUT, "date": "2001-01-01"}
    a, b = point({"naive": 1.0, "narrow": 2.0}), point({"narrow": 4.0, "naive": 5.0}, 16)
    old = Table("softmax", "paper", "sm_90", [first], [a, b])
    partial, newer = point({"narrow": 3.0}), point({"narrow": 6.0}, 16)
    new = Table("softmax", "paper", "sm_90", [ABOUT], [partial, newer])
    made = old.merged(new)
    assert [dict(each.ms) for each in made.points] == [a.ms, newer.ms], "the newer, if it has what was the fastest"
    assert new.merged(old) == made
    assert [made.records[each.record]["date"] for each in made.points] == ["2001-01-01", "2001-02-03"]
    assert made.merged(made) == made
    faster = point({"narrow": 0.9})
    assert dict(made.merged(Table("softmax", "paper", "sm_90", [ABOUT], [faster])).points[0].ms) == faster.ms
    again = made.merged(Table("softmax", "paper", "sm_90", [{**ABOUT, "date": "2002-01-01"}], [a, newer]))
    assert [about["date"] for about in again.records] == ["2002-01-01"], "a record of which nothing is left goes"


def test_a_table_is_read_as_it_was_written():
    made = Table("softmax", "paper", "sm_90", [ABOUT], [point({"naive": 1.0}, layouts={"x": "transposed"})])
    made.write()
    assert measured.table("softmax", "paper", "sm_90") == made
    assert json.loads(made.text())["points"][0]["layouts"] == {"x": "transposed"}
    assert measured.table("softmax", "paper", "sm_80") is None
    assert str(made.points[0]) == "float32 rows=8 cols=32 x=transposed"
