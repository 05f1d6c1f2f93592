"""The bench: samples to numbers, inputs and answers, what contracts declare, records and their comparison, the
command."""

import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import touchstone
from tests.processes import run_touchstone
from touchstone.conformance.bench import cases, ceilings, cli, inputs, records, run, tables, timing
from touchstone.conformance.bench.baselines import declared, runnable
from touchstone.conformance.bench.group import FAILED, MEASURED, NOT_RUN, REFUSED, Group, Result
from touchstone.conformance.cli import main, parser
from touchstone.conformance.discovery import registry, selection
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.reporting import provenance
from touchstone.conformance.reporting.record import Record
from touchstone.conformance.reporting.status import Status
from touchstone.conformance.spec import outputs
from touchstone.conformance.spec.baselines import Baseline, Bench, autograd, eager
from touchstone.conformance.spec.cases import plain_case

RUN = dict(seconds=0.02)


@pytest.fixture(scope="module")
def watch():
    return run.guard()


def group_of(op, fn, size, dtype="float32", bench=None, baselines=(), **params):
    contract = registry.contract(op)
    case = plain_case(contract, dtype, next(iter(contract.values)), 0, size)
    case = replace(case, params=tuple({**case.param, **params}.items()))
    subjects = [("", Subject(op, fn, "mine", "user@cpu", "cpu"))] if fn else []
    return Group(contract, bench or declared(op), case, subjects, baselines)


def test_median_and_quartiles():
    taken = timing.stats([0.004, 0.001, 0.002, 0.003, 0.1])
    assert (taken.median, taken.least, taken.count) == (pytest.approx(3.0), pytest.approx(1.0), 5)
    assert taken.iqr == pytest.approx(2.0)
    assert timing.stats([0.002]).iqr == 0


def test_a_group_that_takes_too_much_memory_is_not_run_and_the_next_is(watch, monkeypatch):
    group = group_of(
        "softmax", lambda x: torch.softmax(x, -1), {"rows": 3, "cols": 5}, baselines=declared("softmax").baselines[:1]
    )
    drawn = inputs.Bank._draw

    def draw(self, *arguments):
        if self.case.size["cols"] == 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.18 GiB")
        return drawn(self, *arguments)

    monkeypatch.setattr(inputs.Bank, "_draw", draw)
    timer = timing.timer("cpu", "cold")
    mine, baseline = run.measure(group, timer, watch, **RUN)
    assert (mine.name, mine.status, baseline.status) == ("mine", NOT_RUN, NOT_RUN)
    assert "more than the memory of the GPU: CUDA out of memory" in mine.problems[0] and mine.ms is None
    (after,) = run.measure(
        group_of("softmax", lambda x: torch.softmax(x, -1), {"rows": 3, "cols": 7}), timer, watch, **RUN
    )
    assert after.status == MEASURED, after.problems


def test_a_guard_sees_and_puts_back():
    class Owner:
        def method(self):
            return 1

    method = Owner.method
    guard = timing.Guard([Owner], {torch.Tensor: ("data_ptr",)})
    assert guard.changed() == []
    Owner.method = lambda self: 2
    torch.Tensor.data_ptr = lambda self: 0
    assert [name.rpartition(".")[2] for name in guard.changed()] == ["method", "data_ptr"]
    assert Owner.method is method and "data_ptr" not in vars(torch.Tensor)
    assert guard.changed() == []


def test_the_roofline_is_the_slower_of_moving_and_computing():
    machine = ceilings.Ceilings(
        "cuda", copy=4e12, read=4.5e12, write=4e12, products={"bfloat16": 7e14, "tf32": 4e14}, cache=10**7
    )
    moving = machine.roof(flops=1e9, bytes_=4e9, written=2e9, dtype="bfloat16", compute=None, cold=True)
    assert (moving.bound, moving.ms) == ("memory", pytest.approx(1.0))
    assert moving.limit == pytest.approx(1e3 * (4e9 - 1e7) / (1.1 * 4.5e12))
    computing = machine.roof(7e11, 1e6, 5e5, "bfloat16", None, cold=True)
    assert (computing.bound, computing.ms) == ("compute", pytest.approx(1.0)) and computing.limit < computing.ms
    tripled = machine.roof(4e11, 1e6, 5e5, "float32", "tf32x3", cold=True)
    assert machine.roof(7e11, 1e6, 5e5, "bfloat16", "tf32x3", cold=True) == computing
    assert tripled.ms == pytest.approx(3.0) and tripled.limit == pytest.approx(3.0 / ceilings.COMPUTE_MARGIN)
    warm = machine.roof(1.0, 8e6, 4e6, "bfloat16", None, cold=False)
    assert warm.limit < 1e-9 < warm.ms, "what stays in the cache says nothing about memory"
    machine.peak = {"bfloat16": 5e14}
    assert machine.roof(7e11, 1e6, 5e5, "bfloat16", None, cold=True).limit == pytest.approx(1e3 * 7e11 / (1.02 * 5e14))


def test_ceilings_of_this_machine():
    found = ceilings.measure(timing.CpuTimer(), ("float32",), rounds=3)
    assert all(1e8 < rate < 1e13 for rate in (found.copy, found.read, found.write))
    assert 1e8 < found.products["float32"] < 1e13 and not found.peak
    assert [what for what, _ in found.rows()] == ["copy", "read", "write", "matrix product float32"]


def test_answers_on_slices_are_those_of_the_whole(monkeypatch):
    """Too large to be answered at once: some heads; the answer at a place is that of the whole problem."""
    contract = registry.contract("attention_backward")
    size = dict(B=2, Hq=4, Hkv=2, Sq=9, Sk=7, D=8)
    case = replace(plain_case(contract, "float32", "normal", 0, size), params=(("causal", True), ("scale", None)))
    whole = inputs.Bank(contract, declared("attention_backward"), case, "cpu", seed=3)
    monkeypatch.setitem(inputs.FLOPS, "cpu", 1.0)
    parts = inputs.Bank(contract, declared("attention_backward"), case, "cpu", seed=3)
    for name, tensor in whole.values[1].items():
        torch.testing.assert_close(parts.values[1][name], tensor, rtol=1e-6, atol=1e-6)
    full, some = whole.answers(1, None), parts.answers(1, None)
    for name, shape in (("dq", (2, 4, 9, 8)), ("dk", (2, 2, 7, 8))):
        assert full[name].places.tolist() == list(range(math.prod(shape)))
        assert len(some[name].places) == math.prod(shape) // 4 and int(some[name].places.max()) == math.prod(shape) - 1
        torch.testing.assert_close(
            some[name].expected.answer, full[name].expected.answer[some[name].places], rtol=1e-5, atol=1e-6
        )


def test_outputs_that_are_sums_over_rows_are_answered_whole(monkeypatch):
    monkeypatch.setitem(inputs.ELEMENTS, "cpu", 1)
    contract = registry.contract("rms_norm_backward")
    case = plain_case(contract, "float32", "normal", 0, {"rows": 12, "cols": 6})
    bank = inputs.Bank(contract, Bench(independent_axes=(("rows",),)), case, "cpu")
    assert len(bank.answers(0, None)["dweight"].places) == 6


def test_operands_that_follow_from_a_seed_are_those_of_the_call():
    """A backward's o and lse are of the mask that it is called with."""
    contract = registry.contract("masked_attention_backward")
    plain = plain_case(contract, "float32", "normal", 0, contract.sizes[0])
    case = replace(plain, params=tuple((plain.param | {"p": 0.5}).items()))
    values = inputs.Values(contract, declared("masked_attention_backward"), case, "cpu")
    drawn = [values._draw(1, case.param | {"seed": seed}) for seed in (case.param["seed"], 77)]
    default = values._draw(1)
    assert torch.equal(default["o"], drawn[0]["o"]) and not torch.equal(default["o"], drawn[1]["o"])
    assert torch.equal(default["q"], drawn[1]["q"])
    bank = inputs.Bank(contract, declared("masked_attention_backward"), case, "cpu")
    assert not bank.seeded  # its values are drawn beforehand, for one seed


def test_values_come_without_a_trace():
    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", "normal", 0, {"rows": 4, "cols": 8})
    bank = inputs.Bank(contract, Bench(), case, "cpu")
    memory = bank.places[0]["x"]
    before, version = memory.clone(), memory._version
    bank.load(0, 2)
    assert not torch.equal(memory, before) and memory._version == version
    assert bank.altered(0) == [] and bank.another(0) != 2
    memory[0, 0] += 1
    assert bank.altered(0) == ["x"]
    _, wrong = bank.judge(bank.gather({"y": torch.softmax(bank.values[2]["x"], -1)}), 2, None)
    assert not wrong
    assert bank.judge(bank.gather({"y": torch.softmax(bank.values[1]["x"], -1)}), 2, None)[1]


@pytest.mark.parametrize("op", registry.ops())
def test_what_a_contract_declares(op, watch):
    """Large shapes a kernel accepts, baselines that are right, and a cost model that is positive."""
    contract, bench = registry.contract(op), declared(op)
    assert bench.baselines and contract.large, f"{op}: declares no baselines or no large sizes"
    assert set(bench.dtypes) <= set(contract.dtypes) and set(bench.params) <= set(contract.params)
    for size in contract.large:
        assert list(size) == list(contract.sizes[0]), f"{op}: {size}"
        for case in cases._with_params(bench, plain_case(contract, bench.dtypes[0], "normal", 0, size)):
            assert contract.flops(size, case.param) > 0 and contract.bytes(size, case.param, 2) > 0
            assert contract.valid(case), case
    (case,) = cases._cases(
        contract, bench, op, "float32", "small", None, selection.select(device="cpu", backend="cupy"), []
    )
    baselines, _ = runnable(bench.baselines, "cpu", "float32", compiling=False)
    assert baselines, f"{op}: no baseline runs on the CPU"
    for result in run.measure(Group(contract, bench, case, [], baselines), timing.CpuTimer(), watch, **RUN):
        assert result.status == MEASURED and not result.notes, result.notes


def test_baselines_that_cannot_run_are_named():
    make = eager("a", dict).make
    baselines = [
        Baseline("a", make),
        Baseline("b", make, needs="no_such_package"),
        Baseline("c", make, devices=("cuda",)),
        Baseline("d", make, dtypes=("float16",)),
        Baseline("e", make, compiles=True),
    ]
    found, left = runnable(baselines, "cpu", "float32", compiling=False)
    assert [baseline.name for baseline in found] == ["a"] and list(left) == ["b", "c", "d", "e"]
    assert "no_such_package is not installed" in left["b"]
    assert [baseline.name for baseline in runnable(baselines, "cuda", "float16", compiling=True)[0]] == [
        "a",
        "c",
        "d",
        "e",
    ]


def test_a_baseline_outside_the_budget_keeps_its_time_and_says_so(watch):
    wrong = eager("wrong", lambda x: {"y": torch.softmax(x, 0)})
    group = group_of("softmax", lambda x: torch.softmax(x, -1), {"rows": 8, "cols": 32}, baselines=[wrong])
    mine, baseline = run.measure(group, timing.CpuTimer(), watch, **RUN)
    assert mine.status == baseline.status == MEASURED and "outside the budget" in baseline.notes[0]
    assert mine.ratios["wrong"] == pytest.approx(baseline.ms / mine.ms)


def test_a_variant_against_itself(watch):
    group = group_of("softmax", lambda x: torch.softmax(x, -1), {"rows": 512, "cols": 512})
    first, again = run.measure(group, timing.CpuTimer(), watch, noise_floor=True, seconds=0.1)
    assert again.name == "mine (again)" and first.ratios["itself"] == pytest.approx(again.ms / first.ms)


def test_forward_and_backward_in_one_call(watch):
    """The gradient starts from the kernel's own outputs; wrong ones are found in either half."""
    chosen = selection.select(device="cpu", backend="cupy", op="rms_norm,softmax,matmul")
    plan = cases.plan(chosen, "small", ["float32"], "fwd_bwd", baselines=True)
    assert "no op is its gradient" in plan.left_out["matmul --mode fwd_bwd"]
    (group,) = [g for g in plan.groups if g.case.op == "softmax"]
    assert list(group.contract.operands) == ["x", "dy"] and list(group.contract.outputs) == ["y", "dx"]
    assert group.contract.flops(group.case.size, {}) == 9 * math.prod(group.case.size.values())

    def right(x, dy):
        y = torch.softmax(x, -1)
        return y, y * (dy - (y * dy).sum(-1, keepdim=True))

    def halved(x, dy):
        y, dx = right(x, dy)
        return y, dx * 1.001

    for fn, status in ((right, MEASURED), (halved, FAILED)):
        subject = Subject("softmax", fn, "mine", "user@cpu", "cpu", own=True)
        mine, *baselines = run.measure(
            replace(group, subjects=[("", subject)], baselines=group.baselines[:1]), timing.CpuTimer(), watch, **RUN
        )
        assert mine.status == status and mine.mode == "fwd_bwd"
        assert baselines and baselines[0].status == MEASURED and not baselines[0].notes
    assert cases.plan(chosen, "small", ["float32"], "bwd", baselines=True).groups[0].case.op == "rms_norm_backward"


def test_a_gradient_as_baseline():
    baseline = autograd(
        "g", lambda x, weight, **_: x * weight, {"dx": "x", "dweight": "weight"}, more=lambda a: {"weight": a["w"] + 1}
    )
    x, w, dy = torch.ones(3), torch.ones(3), torch.arange(3.0)
    with torch.no_grad():
        made = baseline.make({"x": x, "w": w, "dy": dy})
        assert torch.equal(made()["dx"], 2 * dy) and torch.equal(made()["dweight"], dy)
        dy += 1
        assert torch.equal(made()["dx"], 2 * dy)
    assert not x.requires_grad


def test_a_file_of_shapes(tmp_path):
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps([{"op": "matmul", "M": 8, "K": 4, "N": 2}, {"rows": 3, "cols": 5, "dtype": "float16"}]))
    chosen = selection.select(device="cpu", backend="cupy", op="matmul")
    with pytest.raises(selection.UsageError, match="has no M, K, N"):
        cases.plan(chosen, str(path), ["float16"], baselines=True)
    (group,) = cases.plan(chosen, str(path), ["float32"], baselines=True).groups
    assert group.case.size == {"M": 8, "K": 4, "N": 2}
    for content, message in (
        ("{", "is no JSON"),
        ("{}", "expected a list"),
        ('[{"M":1,"K":1,"N":1,"Q":2}]', "has Q"),
        ('[{"M":1e999,"K":1,"N":1}]', "M of matmul: expected a whole number .*, got inf"),
        ('[{"M":1,"K":[2, -1],"N":1}]', "K of matmul: expected a whole number .*, got .2, -1."),
        ('[{"M":1,"K":1,"N":true}]', "N of matmul: expected a whole number .*, got True"),
        (f'[{{"M":1,"K":1,"N":{2**63}}}]', "N of matmul: expected a whole number .*, got 9223372036854775808"),
        (
            '[{"M":1000000,"K":1,"N":1000000000}]',
            "M = 1000000, K = 1, N = 1000000000: expected .* at most .* GiB, .* got",
        ),
    ):
        path.write_text(content)
        with pytest.raises(selection.UsageError, match=f"--shapes.*{message}"):
            cases.plan(chosen, str(path), ["float32"], baselines=True)
    with pytest.raises(selection.UsageError, match="--shapes: expected small, large or a file"):
        cases.plan(chosen, "tiny", None)


def test_the_dtype_of_an_entry_needs_no_option(tmp_path):
    path = tmp_path / "shapes.json"
    size = {"op": "softmax", "rows": 2, "cols": 8}
    chosen = selection.select(device="cpu", backend="triton", op="softmax")

    def dtypes(entries, asked=None):
        path.write_text(json.dumps(entries))
        return [group.case.dtype for group in cases.plan(chosen, str(path), asked).groups]

    assert dtypes([size | {"dtype": "bfloat16"}]) == ["bfloat16"]
    assert dtypes([size, size | {"dtype": "bfloat16"}]) == ["float32", "bfloat16"]
    assert dtypes([size, size | {"dtype": "bfloat16"}], ["float16"]) == ["float16"]
    with pytest.raises(selection.UsageError, match="--shapes: dtype: 'bf16' is not one of float32, float16"):
        dtypes([size | {"dtype": "bf16"}])


def test_of_ops_that_a_file_of_shapes_does_not_name_nothing_is_said(tmp_path):
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps([{"op": "matmul", "M": 8, "K": 4, "N": 2}]))
    plan = cases.plan(
        selection.select(device="cpu", backend="cupy", op="matmul,softmax"), str(path), ["float32"], baselines=True
    )
    assert [group.case.size for group in plan.groups] == [{"M": 8, "K": 4, "N": 2}]
    assert any(what.startswith("matmul: ") for what in plan.left_out)
    assert not any("softmax" in what for what in plan.left_out)


def test_operands_lie_as_a_file_of_shapes_says(tmp_path):
    path = tmp_path / "shapes.json"
    entry = {"op": "matmul", "M": 8, "K": 4, "N": 2}
    path.write_text(json.dumps([entry, {**entry, "layouts": {"b": "transposed"}}]))
    chosen = selection.select(device="cpu", op="matmul", variant="naive", backend="cupy")
    plain, placed = cases.plan(chosen, str(path), ["float32"]).groups
    assert (plain.params, placed.params) == ({}, {"b": "transposed"})
    assert placed.title == plain.title + ", b=transposed"
    bank = inputs.Bank(placed.contract, placed.bench, placed.case, "cpu")
    for place in bank.places:
        assert (place["a"].stride(), place["b"].stride()) == ((4, 1), (1, 4))
    bank.load(0, 2)
    assert torch.equal(bank.places[0]["b"], bank.values[2]["b"]) and bank.altered(0) == []
    bank.places[0]["b"][0, 1] += 1
    assert bank.altered(0) == ["b"]
    for layouts, message in (
        ({"c": "sliced"}, "matmul has no operand 'c'; its operands are a, b"),
        ({"b": "broadcast"}, "expected one of contiguous, transposed, .* for matmul's b, got 'broadcast'"),
        ("transposed", "expected an object of operands and layouts, got 'transposed'"),
    ):
        path.write_text(json.dumps([{**entry, "layouts": layouts}]))
        with pytest.raises(selection.UsageError, match=f"--shapes: layouts: {message}"):
            cases.plan(chosen, str(path), ["float32"])


def test_memory_between_the_elements_of_an_operand_is_its_own():
    rows = torch.zeros(4, 8)
    assert outputs.overlap(rows[:, :2], rows[3, 1:2])
    assert not outputs.overlap(rows[:2, :2], rows[3])


@pytest.mark.parametrize("name", cases.experiments())
def test_an_experiment_names_cases_of_its_ops(name, monkeypatch):
    path, options = cases.experiment(name)
    about = cases.experiments()[name]
    assert about["about"] and about["source"]
    shapes = cases.shapes_of_file(path)
    assert {shape["op"] for shape in shapes} == set(options["op"])
    chosen = selection.select(device="cpu", op=",".join(options["op"]), variant=options.get("variant"))
    monkeypatch.setattr(selection.Selection, "ceiling", lambda self, backend: math.inf)
    dtypes = options["dtype"].split(",")
    planned = cases.plan(chosen, str(path), dtypes, "fwd")
    assert len(planned.groups) == len(shapes) * len(dtypes)
    assert all(group.subjects for group in planned.groups)


def test_an_experiment_is_asked_for_by_name(capsys):
    assert main(["bench", "--experiment", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in cases.experiments())
    for words, message in (
        (["--experiment", "none"], "--experiment: expected one of attention-"),
        (["--experiment", "softmax-ladder", "--shapes", "small"], "--shapes and --experiment"),
    ):
        assert main(["bench", *words]) == 2
        assert message in capsys.readouterr().err
    options = _bench_options(["softmax", "--experiment", "softmax-ladder"])
    cli.use_experiment(options)
    assert (options.op, options.dtype, options.max_call_seconds) == (["softmax"], "float32", 0.2)
    assert options.shapes.endswith("softmax-ladder.json")


def _bench_options(words):
    return parser().parse_args(["bench", *words])


def entry(ms, q1, q3, name="r", **about):
    return {
        "op": "softmax",
        "mode": "fwd",
        "target": "a@cuda",
        "name": name,
        "dtype": "bfloat16",
        "sizes": {"rows": 1},
        "params": {},
        "cache": "cold",
        "status": "measured",
        "ms": ms,
        "q1": q1,
        "q3": q3,
        **about,
    }


def test_changes_beyond_noise():
    about = {"format": 2, "machine": {"gpu": "A"}, "versions": {}}
    old = {
        **about,
        "results": [
            entry(1.0, 0.99, 1.01),
            entry(1.0, 0.8, 1.2, "wide"),
            entry(1.0, 1, 1, "same"),
            entry(1, 1, 1, "gone"),
        ],
    }
    new = {
        **about,
        "machine": {"gpu": "B"},
        "results": [
            entry(1.1, 1.09, 1.11),
            entry(1.3, 1.1, 1.5, "wide"),
            entry(1.015, 1, 1.02, "same"),
            entry(None, None, None, "gone", status="refused"),
            entry(1, 1, 1, "more"),
        ],
    }
    table, remarks = records.compare(old, new)
    assert [(row[0].split()[2], row[3]) for row in table.rows] == [("r", "+10.0 %")]
    text = "\n".join(remarks)
    assert "1 changed beyond noise, 2 did not" in text and "was measured, is refused" in text
    assert "only in NEW: 1" in text and "machine, gpu: A -> B" in text


def test_records_and_csv(tmp_path, watch):
    group = group_of("softmax", lambda x: torch.softmax(x, -1), {"rows": 8, "cols": 32})
    results = run.measure(group, timing.CpuTimer(), watch, **RUN)
    (subject,) = (subject for _, subject in group.subjects)
    begun = records.begun([subject], None)
    whole = Record("bench", str(tmp_path / "a.json"), ["me"], entries=records.entries(None, results, {"x": "y"}))
    whole.reports = records.reports(begun, results)
    whole.end(Status.PASSED)
    found = records.read(tmp_path / "a.json")
    assert (
        found["command"] == "me"
        and found["machine"]["cpus"]
        and "torch" in found["versions"]
        and len(found["commit"] or "x" * 40) == 40
    )
    (report,) = found["reports"]
    assert report["verdict"] == "passed" and report["worst"] == results[0].worst and report["source"]["sha256"]
    (row,) = found["results"]
    assert row["ms"] == results[0].ms and len(row["samples_ms"]) == row["count"] >= 5
    records.write_csv(tmp_path / "a.csv", results)
    head, line = (tmp_path / "a.csv").read_text().splitlines()
    assert head.startswith("op,mode,target") and "rows=8 cols=32" in line
    with pytest.raises(ValueError, match="--compare"):
        records.read(tmp_path / "a.csv")


def test_a_refused_variant_shows_no_number():
    result = Result("o", "r", "l", "variant", "float32", {"n": 1}, {}, "fwd", "cold", REFUSED, ["reason"])
    result.stats, result.roof = timing.stats([1.0]), ceilings.Roof(1.0, 1.0, "memory")
    (table,) = tables.tables([result])
    assert table.rows[0][2:] == ["refused", *["-"] * 5, ""]
    result.roof = None
    assert tables.tables([result])[0].rows[0][2:] == ["refused", "-", "-", ""]
    assert records.row(result)["ms"] is None and records.row(result)["fraction"] is None


KERNEL = (
    "import torch\n\n\ndef right(x):\n    return torch.softmax(x, -1)\n\n\ndef wrong(x):\n    return "
    "torch.softmax(x, 0)\n"
)


def test_the_command(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(KERNEL)
    out = tmp_path / "out.json"
    words = ["bench", "softmax", "--device", "cpu", "--dtype", "float32", "--seconds", "0.02", "--baselines"]
    kernel = ["--kernel", f"{tmp_path}/mine.py"]
    shapes = tmp_path / "shapes.json"
    shapes.write_text('[{"rows": 16, "cols": 64}]')
    words += ["--shapes", str(shapes)]
    registry.contract("softmax")
    assert (
        main([*words[:-3], "--shapes", str(shapes), "--kernel", f"{tmp_path}/mine.py:right", "--json", str(out)]) == 0
    )
    shown = capsys.readouterr().out
    assert "ceilings of this run" in shown and "softmax float32 rows=16 cols=64, warm" in shown
    assert "They say nothing about a GPU" in shown
    assert records.read(out)["results"][0]["status"] == "measured"
    assert main([*words[:-3], "--shapes", str(shapes), "--kernel", f"{kernel[1]}:wrong"]) == 1
    assert "failed: wrong before it was timed" in capsys.readouterr().out
    assert main(["bench", "--compare", str(out), str(out)]) == 0
    assert "0 changed beyond noise, 1 did not" in capsys.readouterr().out


EMULATED = """
import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, cols, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * stride + at, mask=at < cols, other=float("-inf")).to(tl.float32)
    e = tl.exp(row - tl.max(row))
    tl.store(y + tl.program_id(0) * cols + at, e / tl.sum(e), mask=at < cols)


def softmax(x):
    y = torch.empty_like(x)
    _kernel[(x.shape[0],)](x, y, x.shape[1], x.stride(0), BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
"""


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.needs("triton")
def test_an_emulated_kernel_has_no_roofline(tmp_path):
    """Neither one of ours nor a user's: the machine it would be a share of is not this one."""
    (tmp_path / "mine.py").write_text(EMULATED)
    words = ["-m", "touchstone", "bench", "softmax", "--device=cpu", "--seconds=0.02"]
    for which in (["--backend=triton", "--variant=onerow"], ["--kernel=mine.py:softmax"]):
        done = run_touchstone([*words, *which, "--json=out.json"], tmp_path)
        assert done.returncode == 0, done.stderr
        assert re.search(r"softmax +[\d.]+ +[\d.]+ +\d+$|onerow +[\d.]+ +[\d.]+ +\d+$", done.stdout, re.MULTILINE)
        assert "  roofline" not in done.stdout and "ceilings" not in done.stdout and "FLOP" not in done.stdout
        assert "there is no roofline to compare with" in done.stdout
        found = json.loads((tmp_path / "out.json").read_text())
        assert found["ceilings"] is None
        assert [row["fraction"] for row in found["results"]] == [None]


@pytest.mark.needs("interpreter")
def test_why_there_is_nothing_to_time(capsys, monkeypatch):
    words = ["bench", "matmul", "--device=cpu", "--backend=cupy"]
    assert main([*words, "--shapes=large"]) == 2
    told = capsys.readouterr().err
    assert "nothing to time with --shapes=large: " in told and "more work than the target's limit" in told
    assert "an emulator or interpreter runs the kernels" in told and "--shapes=small has sizes for it" in told
    monkeypatch.setattr(registry.backend("triton"), "INTERPRETED", ("sm_80",))
    assert main(["bench", "matmul", "--device=cpu", "--backend=triton", "--variant=gluon"]) == 2
    told = capsys.readouterr().err
    assert "triton@cpu matmul gluon: " in told and "--shapes=small has" not in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mode", "both"], "--mode: expected one of fwd, bwd, fwd_bwd"),
        (["--dtype", "int8"], "--dtype: 'int8' is not one of"),
        (["--seconds", "0"], "--seconds: expected a positive number"),
        (["--variant", "pakced"], "--variant: 'pakced' is no variant of softmax; there are "),
        (["--baselines", "--no-baselines"], "--baselines and --no-baselines"),
        (["--shapes", "huge"], "--shapes: expected small, large or a file"),
        (["--compare", "a", "b"], "--compare: a: No such file"),
    ],
)
def test_usage_errors_name_the_option(words, message, capsys):
    assert main(["bench", "softmax", "--device", "cpu", "--backend", "cupy", *words]) == 2
    assert message in capsys.readouterr().err


def test_who_takes_too_long_is_not_run(watch):
    def slow(x):
        time.sleep(0.05)
        return torch.softmax(x, -1)

    group = group_of("softmax", slow, {"rows": 8, "cols": 32})
    (result,) = run.measure(group, timing.CpuTimer(), watch, max_call_seconds=0.02, **RUN)
    assert result.status == NOT_RUN and "--max-call-seconds is 0.02" in result.problems[0] and result.ms is None


def test_the_last_variants_of_every_ladder():
    """Of those that run here."""
    chosen = selection.select(device="cpu", backend="cupy", op="softmax")
    chosen.prepare()
    (group,) = cases.plan(chosen, "small", ["float32"], top=2).groups
    run_here = [s.name for backend, s in chosen.subjects() if not selection.not_run_reason(backend, s)]
    assert [subject.name for _, subject in group.subjects] == run_here[-2:]
    assert not group.baselines


def test_the_last_variants_are_those_that_take_the_dtype():
    """The last of dot's ladder take float16 alone."""
    chosen = selection.select(device="cpu", backend="cupy", op="dot")
    chosen.prepare()
    (group,) = cases.plan(chosen, "small", ["float32"], top=2).groups
    assert [subject.name for _, subject in group.subjects] == ["shuffle", "vectorised"]


@pytest.mark.slow
@pytest.mark.needs("triton", "pytest_benchmark")
def test_through_pytest(tmp_path):
    """The same samples, by a clock that only they advance; the machine is named; nothing else is collected."""
    path = tmp_path / "b.json"
    command = [
        "-m",
        "pytest",
        "touchstone/conformance/suite",
        "--benchmark-only",
        "--backend=interpreter",
        "--op=softmax",
        "-q",
        "--variant=onerow",
        "--benchmark-max-time=0.02",
        f"--benchmark-json={path}",
        "-p",
        "no:cacheprovider",
    ]
    done = run_touchstone(command)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())
    assert found["machine_info"]["touchstone"]["device"] == "cpu"
    (one,) = found["benchmarks"]
    assert one["stats"]["median"] == pytest.approx(1e-3 * one["extra_info"]["ms"]) and one["stats"]["rounds"] >= 5
    assert one["extra_info"]["name"] == "onerow" and one["group"].startswith("softmax float32")


def test_an_installed_package_has_no_commit(monkeypatch):
    """It may lie in a folder of somebody else's repository."""
    monkeypatch.setattr(registry, "ROOT", Path(touchstone.__file__).resolve().parent)
    assert not registry.is_clone()
    about = provenance.provenance("cpu", ["me"])
    assert (about["commit"], about["changed"]) == (None, False)


def test_gradients_name_the_op_they_belong_to():
    found = {op: of for op in registry.ops() if (of := registry.contract(op).gradient_of)}
    assert found == {op: op.removesuffix("_backward") for op in registry.ops() if op.endswith("_backward")}
    assert set(found.values()) <= set(registry.ops())


def test_a_record_names_files_without_their_folders():
    words = ["pytest", "--json", "/some/where/a.json", "--junitxml=/else/b.xml", "tests/c.py", "--shapes", "d/e.json"]
    told = provenance.provenance("cpu", words)["command"]
    assert told == "pytest --json a.json --junitxml=b.xml tests/c.py --shapes d/e.json"


@pytest.mark.needs("GPU")
@pytest.mark.parametrize("backend", registry.backends())
def test_registers_are_those_of_the_kernels_that_a_call_launches(backend):
    module = registry.backend(backend)
    if reason := module.why_not("cuda"):
        pytest.skip(reason)
    module.prepare("cuda")
    fn = registry.variants(backend, "layer_norm_backward")["partials"]
    x, dy = torch.randn(2, 64, 256, device="cuda")
    kernels = module.launched(lambda: fn(x, torch.ones(256, device="cuda"), dy))
    assert 1 <= len(kernels) <= 3
    for kernel in kernels:
        found = module.resources(kernel)
        assert 8 <= found["registers"] <= 255 and found["spills"] < 256
    assert module.launched(lambda: None) == []
