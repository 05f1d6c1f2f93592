"""Pinned configurations: which entry a call takes, and that tuning pins the fastest configuration that is right."""

import json
import re

import pytest
import torch

from touchstone.backends import Unsupported
from touchstone.backends.triton.runtime import tuning
from touchstone.backends.variants import variant

PROVENANCE = tuning._provenance
DEFAULT = {"BLOCK": 64, "num_warps": 4}
WIDE = {"BLOCK": 256, "num_warps": 8}
NARROW = {"BLOCK": 16, "num_warps": 1}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "FOLDER", tmp_path / "tuned")
    monkeypatch.setattr(tuning, "_provenance", lambda: {"gpu": "none", "date": "2001-02-03"})
    yield tmp_path / "tuned"
    tuning._table.cache_clear()
    tuning._nearest.cache_clear()


def ask(sizes, dtype=torch.float16, key="op.variant", default=DEFAULT):
    return tuning.pinned(key, dtype, sizes, default)


def pin(sizes, config, dtype="float16"):
    tuning.pin("sm_90", "op.variant", dtype, sizes, config, {"ms": 1.0})


def test_without_a_gpu_the_default_is_used_whatever_is_pinned(monkeypatch):
    monkeypatch.setattr(tuning, "_arch", lambda: None)
    pin((64, 64), WIDE)
    assert ask((64, 64)) is DEFAULT


def test_a_call_takes_its_own_bucket_and_others_of_its_dtype_and_key_only():
    pin((1000, 64), WIDE)
    pin((32, 64), NARROW)
    with tuning.assuming("sm_90"):
        assert ask((513, 33)) == ask((1024, 64)) == WIDE
        assert ask((17, 64)) == NARROW
        assert ask((1000, 64), dtype=torch.bfloat16) is DEFAULT
        assert ask((1000, 64), key="op.other") is DEFAULT
    with tuning.assuming("sm_80"):
        assert ask((1000, 64)) is DEFAULT


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((64, 16), WIDE),  # one doubling from it, three from the other
        ((128, 16), WIDE),  # two from both: the bucket of smaller sizes
        ((256, 16), NARROW),
        ((32 << 4, 16 << 4), NARROW),
        ((32 << 9, 16), DEFAULT),  # five from the nearest
        ((32, 16, 1), DEFAULT),
    ],
)
def test_the_nearest_bucket_answers_within_four_doublings(sizes, expected):
    pin((512, 16), NARROW)
    pin((32, 16), WIDE)
    with tuning.assuming("sm_90"):
        assert ask(sizes) == expected


def test_an_entry_with_other_names_than_the_default_is_not_used():
    pin((64,), {"BLOCK": 64, "STAGES": 3})
    with tuning.assuming("sm_90"):
        assert ask((64,)) is DEFAULT


def test_what_a_launcher_does_to_its_configuration_does_not_reach_the_table():
    pin((64,), WIDE)
    with tuning.assuming("sm_90"):
        ask((64,)).clear()
        assert ask((64,)) == WIDE


def test_trying_answers_every_key_or_one():
    with tuning.trying(NARROW):
        assert ask((8,)) == ask((8,), key="op.other") == NARROW
        with tuning.trying(WIDE, "op.other"):
            assert ask((8,)) is DEFAULT
            assert ask((8,), key="op.other") == WIDE
    pin((8,), WIDE)
    with tuning.assuming("sm_90"), tuning.trying(None):
        assert ask((8,)) is DEFAULT


class Kernel:
    """A launcher that notes the configuration of each call; `times` gives milliseconds by BLOCK."""

    __name__ = "variant"

    def __init__(self, times, wrong=(), failing=(), sizes=((100, 7),)):
        self.times, self.wrong, self.failing, self.sizes = times, wrong, failing, sizes
        variant(space=[WIDE, NARROW, WIDE, DEFAULT])(self)
        self.asked, self.timed = [], []

    def __call__(self, x):
        for sizes in self.sizes:
            self.block = tuning.pinned("op.variant", x.dtype, sizes, DEFAULT)["BLOCK"]
        tuning.pinned("op.inner", x.dtype, (1,), {"LANES": 1})
        if self.block in self.failing:
            raise RuntimeError("out of resource: shared memory\nand more")

    def timer(self, call):
        call()
        self.timed.append(self.block)
        return self.times[self.block]

    def verified(self):
        self(torch.zeros(1))
        self.asked.append(self.block)
        return self.block not in self.wrong

    def tune(self, **options):
        with tuning.assuming("sm_90"):
            arguments = {"x": torch.zeros(3, dtype=torch.float16)}
            return tuning.tune(self, arguments, self.verified, timer=self.timer, **options)


def test_the_fastest_is_pinned_with_how_it_was_measured(folder):
    kernel = Kernel({64: 3.0, 256: 2.0, 16: 4.0})
    record = kernel.tune()
    assert kernel.timed == [64, 256, 16]  # the default first, none twice
    assert kernel.asked == [256]
    assert (record["config"], record["ms"], record["default_ms"], record["tried"]) == (WIDE, 2.0, 3.0, 3)
    assert record["pinned"] == ["sm_90 op.variant float16 128x8"]
    table = json.loads((folder / "sm_90.json").read_text())
    entry = {"config": WIDE, "ms": 2.0, "default_ms": 3.0, "gpu": "none", "date": "2001-02-03"}
    assert table == {"op.variant": {"float16": {"128x8": entry}}}
    with tuning.assuming("sm_90"):
        assert ask((100, 7)) == WIDE


def test_a_wrong_configuration_is_never_pinned():
    kernel = Kernel({64: 3.0, 256: 2.0, 16: 2.5}, wrong=(256,))
    record = kernel.tune()
    assert kernel.asked == [256, 16]
    assert (record["config"], record["ms"]) == (NARROW, 2.5)
    assert record["skipped"] == [f"{WIDE}: wrong answer"]


def test_a_configuration_that_raises_is_skipped():
    record = Kernel({64: 3.0, 256: 2.0, 16: 2.5}, failing=(256,)).tune()
    assert (record["config"], record["tried"]) == (NARROW, 2)
    assert record["skipped"] == [f"{WIDE}: RuntimeError: out of resource: shared memory"]


def test_the_default_is_pinned_where_nothing_is_faster_whatever_was_pinned_before():
    pin((100, 7), NARROW)
    record = Kernel({64: 1.0, 256: 2.0, 16: 2.5}).tune()
    assert (record["config"], record["ms"]) == (DEFAULT, 1.0)
    with tuning.assuming("sm_90"):
        assert ask((100, 7)) == DEFAULT


def test_nothing_is_pinned_where_nothing_is_right(folder):
    record = Kernel({64: 1.0, 256: 2.0, 16: 2.5}, wrong=(64, 256, 16)).tune()
    assert record["config"] is None
    assert len(record["skipped"]) == 3
    assert not folder.exists()


def test_a_dry_run_writes_nothing(folder):
    record = Kernel({64: 3.0, 256: 2.0, 16: 4.0}).tune(write=False)
    assert record["config"] == WIDE
    assert record["pinned"] == []
    assert not folder.exists()


def test_every_size_that_a_call_asks_for_is_pinned():
    record = Kernel({64: 3.0, 256: 2.0, 16: 4.0}, sizes=((100, 7), (7, 100), (99, 8))).tune()
    assert record["pinned"] == ["sm_90 op.variant float16 128x8", "sm_90 op.variant float16 8x128"]


def test_a_launcher_that_asks_nothing_or_declines_is_not_tuned():
    def silent(x):
        pass

    def declining(x):
        raise Unsupported("3 columns; this kernel takes 4")

    for launcher in (silent, declining):
        declared = variant(space=[WIDE])(launcher)
        assert tuning.tune(declared, {"x": None}, lambda: True, timer=lambda call: 1.0) is None


@pytest.mark.parametrize("path", sorted(tuning.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_tables_say_how_they_were_measured(path):
    for dtypes in json.loads(path.read_text()).values():
        for entries in dtypes.values():
            for name, entry in entries.items():
                assert tuning.bucket(tuning._numbers(name)) == name
                assert {"config", "ms", "default_ms", "gpu", "triton", "torch", "date"} <= entry.keys()


def test_the_median_of_several_runs_is_timed(monkeypatch):
    testing = pytest.importorskip("triton.testing")
    asked = []
    monkeypatch.setattr(testing, "do_bench", lambda call, **options: asked.append(options) or call())
    assert tuning._median_ms(lambda: 2.5) == 2.5
    assert asked == [{"warmup": 25, "rep": 100, "return_mode": "median"}]


@pytest.mark.parametrize(
    ("interprets", "available", "arch"),
    [("", True, "sm_90"), ("0", True, "sm_90"), ("", False, None)]
    + [(word, True, None) for word in ("1", "true", "on", "yes", "y", "True")],
)
def test_whose_table_is_read(monkeypatch, interprets, available, arch):
    monkeypatch.setenv("TRITON_INTERPRET", interprets)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert tuning._arch.__wrapped__() == arch


def test_where_a_configuration_was_measured(monkeypatch):
    triton = pytest.importorskip("triton")
    versions = {"triton": triton.__version__, "torch": torch.__version__, "cuda": str(torch.version.cuda)}
    for available, gpu in ((True, "H200"), (False, "none")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=available: found)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")
        found = PROVENANCE()
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", found.pop("date")) and found == {"gpu": gpu, **versions}


def test_what_calls_ask_is_heard_while_one_is_asked_about():
    def softmax(x):
        return ask((len(x), 4), key="softmax")

    assert [question.sizes for question in tuning._questions(softmax, {"x": [1, 2]})] == [(2, 4)]

    def fused(x):
        ask((len(x), 8), key="op.softmax")
        ask((len(x), 4), key="op.fused")

    assert [question.key for question in tuning._questions(fused, {"x": [1, 2]})] == ["op.fused"]  # not who asked first
    assert tuning._asked.get() is None
