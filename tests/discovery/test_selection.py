"""Which targets, ops and variants a run judges; and that a run that judged nothing fails. On made-up backends
(tests/targets.py)."""

import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import processes, targets
from touchstone.backends.devices import cuda_unavailable
from touchstone.conformance.discovery import selection
from touchstone.conformance.discovery.selection import UsageError, select


@pytest.fixture
def world(tmp_path, monkeypatch):
    with targets.pretend(tmp_path, monkeypatch):
        yield tmp_path


@pytest.fixture
def gpu(world, monkeypatch):
    monkeypatch.setattr(selection, "cuda_unavailable", lambda: None)


def chosen(backend=None, device="auto", environ=(), **options) -> selection.Selection:
    return select(backend, device, environ=dict(environ), **options)


def refused(*match: str, **options) -> str:
    with pytest.raises(UsageError) as caught:
        chosen(**options)
    for text in match:
        assert text in str(caught.value)
    return str(caught.value)


def test_by_default_every_backend_that_runs_on_the_cpu(world):
    made = chosen()
    assert made.device == "cpu"
    assert made.backends == ["chalk", "paper"]
    assert made.ops == ["matmul", "softmax"]
    assert made.variants is None
    assert made.skipped == {"quill": "quill is not installed: pip install quill", "slate": "slate wants a GPU"}
    assert made.target("paper") == "paper@cpu"


def test_by_default_a_gpu_is_used_where_one_works(gpu):
    made = chosen()
    assert made.device == "cuda"
    assert made.backends == ["paper", "slate"]
    assert set(made.skipped) == {"chalk", "quill"}
    assert chosen(device="cpu").backends == ["chalk", "paper"]


def test_a_list_of_backends(world):
    made = chosen("paper, chalk")
    assert made.backends == ["paper", "chalk"]
    assert made.skipped == {}
    assert chosen("chalk,chalksim,chalk").backends == ["chalk"]


def test_an_unknown_backend(world):
    refused("--backend: 'papper' is not one of blank, chalk, paper, quill, slate, chalksim", backend="papper")
    refused("'papper'", backend="paper,papper")


def test_an_alias_means_its_device(gpu):
    made = chosen("chalksim")
    assert (made.backends, made.device) == (["chalk"], "cpu")
    assert chosen("chalksim", "cpu").device == "cpu"
    assert chosen("chalksim,paper").device == "cpu"
    refused("--backend=chalksim means --device=cpu, but --device=cuda was given", backend="chalksim", device="cuda")


def test_a_backend_by_its_name_follows_the_device(gpu):
    refused(
        "--backend=chalk: cannot run on cuda here: there is no GPU in this story; --device=cpu would work",
        backend="chalk",
    )
    assert chosen("chalk", "cpu").backends == ["chalk"]
    assert chosen("paper").device == "cuda"


@pytest.mark.parametrize("value", ["1", "true", "ON", "yes"])
def test_a_variable_of_the_environment_means_the_cpu(gpu, value):
    environ = {"CHALK_SIM": value}
    assert chosen(environ=environ).device == "cpu"
    assert chosen("chalk", environ=environ).device == "cpu"
    assert chosen(device="cpu", environ=environ).device == "cpu"
    refused(f"CHALK_SIM={value} means --device=cpu, but --device=cuda was given", device="cuda", environ=environ)
    refused("CHALK_SIM", backend="chalk,paper", device="cuda", environ=environ)


@pytest.mark.parametrize("value", ["0", "", "false"])
def test_a_variable_that_is_off(gpu, value):
    assert chosen(environ={"CHALK_SIM": value}).device == "cuda"
    assert chosen(device="cuda", environ={"CHALK_SIM": value}).device == "cuda"


def test_a_variable_counts_for_the_whole_process(gpu):
    """One process runs one device, whichever backends are asked for."""
    assert chosen("paper", environ={"CHALK_SIM": "1"}).device == "cpu"


def test_a_gpu_asked_for_and_not_there(world):
    told = refused("--device=cuda: no GPU in this story; use --device=cpu", device="cuda")
    assert "chalk, paper" in told
    refused("--device=cuda: no GPU in this story; use --device=cpu", backend="paper", device="cuda")


def test_an_unknown_device(world):
    refused("--device: expected auto, cpu or cuda, got 'gpu'", device="gpu")


def test_a_backend_asked_for_that_cannot_run(world):
    told = refused(
        "--backend=quill: cannot run on cpu here: quill is not installed: pip install quill", backend="quill"
    )
    assert "would work" not in told
    refused("--backend=slate: cannot run on cpu here: slate wants a GPU", backend="paper,slate")


def test_a_backend_without_kernels(world):
    assert "blank" not in {**chosen().skipped, **dict.fromkeys(chosen().backends)}
    refused("--backend=blank: has no kernels in this clone yet", "use chalk, paper, quill, slate", backend="blank")


def test_ops(world):
    assert chosen(op="softmax").ops == ["softmax"]
    assert chosen(op="softmax, matmul").ops == ["softmax", "matmul"]
    refused("--op: 'softmaks' is not one of matmul, softmax", op="softmaks")
    refused("--op: expected one or more of matmul, softmax", op=" , ")
    refused("--backend=chalk: has no kernels for matmul; it has softmax", backend="chalk", op="matmul")
    assert chosen(op="matmul").backends == ["chalk", "paper"]  # not asked for by name: it has nothing to add


def test_levels(world):
    assert chosen(level="thorough").level == "thorough"
    refused("--level: expected one of quick, default, thorough, got 'slow'", level="slow")
    assert chosen(level="thorough").ceiling("paper") == 20 * chosen(level="quick").ceiling("paper") == 10e9


def test_subjects_are_the_variants_in_ladder_order(world):
    found = chosen(op="softmax").subjects()
    assert [(backend, s.target, s.name) for backend, s in found] == [
        ("chalk", "chalk@cpu", "plain"),
        ("paper", "paper@cpu", "plain"),
        ("paper", "paper@cpu", "folded"),
        ("paper", "paper@cpu", "gilded"),
    ]
    assert all(s.own and s.device == "cpu" and s.op == "softmax" for _, s in found)
    assert [s.compute for _, s in found] == [None, None, "tf32", None]
    assert [selection.not_run_reason(b, s) for b, s in found] == [None, None, None, "needs sm_999; this is plain"]


def test_variants(world):
    found = chosen(op="softmax", variant="folded,plain").subjects()
    assert [(b, s.name) for b, s in found] == [("chalk", "plain"), ("paper", "plain"), ("paper", "folded")]
    with pytest.raises(
        UsageError, match="--variant: 'onlin' is no variant of softmax; there are plain, folded, gilded, best"
    ):
        chosen(op="softmax", variant="plain,onlin").subjects()


def test_prepare_sets_up_what_runs_and_nothing_else(world):
    chosen().prepare()
    prepared = {name: importlib.import_module(f"touchstone.backends.{name}").PREPARED for name in targets.WORLD}
    assert prepared == {"paper": ["cpu"], "chalk": ["cpu"], "slate": [], "quill": [], "blank": []}


def test_a_kernel_file_that_does_not_import_is_named(world):
    assert selection.import_check(chosen()) == []
    (world / "backends" / "chalk" / "matmul.py").write_text("import parchment_and_nothing_else\n")
    assert selection.import_check(chosen(op="softmax")) == []
    (told,) = selection.import_check(chosen())
    assert told == "backends/chalk/matmul: ModuleNotFoundError: No module named 'parchment_and_nothing_else'"


OWN = """
import torch


def fn(x):
    return x


NUMBER = 3


class Box:
    @staticmethod
    def fn(x):
        return x
"""


@pytest.fixture
def kernel(tmp_path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


def test_a_kernel_of_ones_own(world, kernel):
    made = chosen(kernel=f"{kernel}:fn", op="softmax")
    ((backend, subject),) = made.subjects()
    assert backend == ""
    assert (subject.op, subject.name, subject.target, subject.own) == ("softmax", "fn", "user@cpu", False)
    assert subject.fn(3) == 3
    assert made.skipped == {}
    assert chosen(kernel=f"{kernel}:Box.fn", op="softmax").subjects()[0][1].fn(4) == 4
    (world / "backends" / "chalk" / "softmax.py").write_text("import parchment_and_nothing_else\n")
    assert selection.import_check(made) == []  # our kernels are none of its business


def test_a_kernel_of_ones_own_typed_wrong(world, kernel):
    refused("--kernel: expected file.py:function, got 'mine.py'", kernel="mine.py", op="softmax")
    refused("--kernel: expected file.py:function", kernel="mine:fn", op="softmax")
    refused("--kernel: there is no file", "nowhere.py", kernel="nowhere.py:fn", op="softmax")
    for op in (None, "softmax,matmul"):
        refused("--kernel: needs --op with the one op", kernel=f"{kernel}:fn", op=op)
    refused(
        "--kernel: a function of your own goes with neither --backend nor --variant",
        kernel=f"{kernel}:fn",
        op="softmax",
        backend="paper",
    )
    refused("--kernel: a function of your own", kernel=f"{kernel}:fn", op="softmax", variant="plain")
    os.truncate(kernel, 1 << 40)
    refused("has 1099511627776 bytes; 16777216 are read at most", kernel=f"{kernel}:fn", op="softmax")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("gn", "defines no function 'gn'; it has fn"),
        ("NUMBER", "'NUMBER' in .* is a int, not a function"),
        ("Box.gn", "no function 'Box.gn'"),
    ],
)
def test_a_kernel_of_ones_own_that_is_not_in_its_file(world, kernel, name, match):
    with pytest.raises(UsageError, match=f"^--kernel: .*{match}"):
        chosen(kernel=f"{kernel}:{name}", op="softmax").subjects()


@pytest.mark.parametrize("body", ["import parchment_and_nothing_else", "def fn(:", "raise SystemExit(3)", "1 / 0"])
def test_a_kernel_of_ones_own_whose_file_does_not_import(world, kernel, body):
    kernel.write_text(body + "\n")
    with pytest.raises(
        UsageError, match=r"--kernel: .*mine.py does not import: (No module named|Syntax|ZeroDivision|SystemExit)"
    ):
        chosen(kernel=f"{kernel}:fn", op="softmax").subjects()


DRIVER = """
import contextlib, io, json, os, sys
import pytest

results = {}
clone = os.getcwd()
for name, (arguments, environment, *folder) in json.loads(sys.argv[1]).items():
    os.environ.update(environment)
    os.chdir(os.path.join(clone, *folder))
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = int(pytest.main(["-p", "no:cacheprovider", *arguments]))
    for variable in environment:
        os.environ.pop(variable, None)
    results[name] = [status, out.getvalue()]
print("RESULTS" + json.dumps(results))
"""
KERNELS = "touchstone/conformance/suite/test_kernels.py"
JUDGE = [KERNELS, "--device=cpu", "--quick", "--op=softmax"]
ID = "softmax-paper@cpu-plain-property-rows_sum_to_one-float16"  # one of several that begin alike
QUICK_ID = "softmax-paper@cpu-plain-bfloat16-24x24-large-x:step"  # a case of no other level
USERS_ID = "softmax-user@cpu-fn-property-rows_sum_to_one-float16"
DEFAULT_ID = "softmax-paper@cpu-plain-bfloat16-0x5-normal"
RUNS = {
    "right": ([*JUDGE, "--backend=paper,chalk", "-v", "--json=right.json"], {}),
    "default": ([KERNELS, "--device=cpu", "--quick", "--op=softmax", "-rs"], {}),
    "wrong": ([*JUDGE, "--backend=wrong"], {}),
    "shy": ([*JUDGE, "--backend=shy", "-q"], {}),
    "shy, divided": ([*JUDGE, "--backend=shy", "--divide"], {}),
    "needy": ([*JUDGE, "--backend=needy"], {}),
    "a size of single cases": ([*JUDGE, "--backend=paper", "--sizes=rows=3 cols=4096"], {}),
    "shy and needy, a worker": ([*JUDGE, "--backend=shy,needy", "-n1"], {}),
    "right, two workers": ([*JUDGE, "--backend=paper,chalk", "-n2", "--json=two.json"], {}),
    "divided": ([*JUDGE, "--backend=paper,chalk", "--divide", "--json=divided.json"], {}),
    "turns": ([*JUDGE, "--backend=paper", "--turns=2", "--json=turns.json"], {}),
    "broken": ([*JUDGE, "--backend=broken"], {}),
    "own tests only": (["tests", "--device=cpu", "--co", "-q"], {}),
    "kernel": ([KERNELS, "--device=cpu", "--quick", "--op=softmax", "--kernel=mine.py:fn", "-v"], {}),
    "wrong kernel": ([KERNELS, "--device=cpu", "--quick", "--op=softmax", "--kernel=mine.py:zeros"], {}),
    "alias": ([KERNELS, "--backend=chalksim", "--quick", "--op=softmax", "-q"], {}),
    "variable": ([KERNELS, "--quick", "--backend=chalk", "--level=quick", "-q"], {"CHALK_SIM": "1"}),
    "one variant": ([*JUDGE, "--backend=paper", "--variant=folded", "-v"], {}),
    "one case": ([*JUDGE, "--backend=paper", "-v", "-k", "float16 and ascending"], {}),
    "collected": ([*JUDGE, "--backend=needy", "--collect-only", "-q"], {}),
    "asked, no paths": (["--backend=paper", "--device=cpu", "--quick", "--op=softmax"], {}),
    "asked, no paths, no workers": (["--backend=paper", "--device=cpu", "--quick", "-n0", "--variant=folded"], {}),
    "nothing asked, no paths": (["--device=cpu", "--co", "-q"], {}),
    "some cases": (
        [*JUDGE, "--backend=paper", "--variant=plain", "--dtypes=float16", "--where=cols < 50", "--sizes=rows=3,17"],
        {},
    ),
    "an id": ([f"{KERNELS}::test_kernel[{ID}]", "-v"], {}),
    "an id of level quick": ([f"{KERNELS}::test_kernel[{QUICK_ID}]", "-v"], {}),
    "an id and its options": ([f"{KERNELS}::test_kernel[{ID}]", *JUDGE[1:], "--backend=paper", "-v"], {}),
    "an id from another folder": ([f"../{KERNELS}::test_kernel[{ID}]", "-v"], {}, "docs"),
    "an id of the clone from another folder": ([f"{KERNELS}::test_kernel[{ID}]", "-v"], {}, "docs"),
    "an id after -k": (["-v", "-k", ID], {}),
    "a word after -k": (["words", "--device=cpu", "-v", "-k", "softmax"], {}),
    "a user's id": ([f"{KERNELS}::test_kernel[{USERS_ID}]", "--kernel=mine.py:fn", "-v"], {}),
    "parts of ids after -k": ([*JUDGE, "--backend=paper", "-v", "-k", "paper@cpu-folded and (x:step or x:sliced)"], {}),
    "thorough": (
        [KERNELS, "--device=cpu", "--op=softmax", "--thorough", "--backend=chalk", "-q", "-k", "float32-3x33-normal-"],
        {},
    ),
}
IDS = {"an id of level quick": QUICK_ID, "a user's id": USERS_ID}
USAGE = {
    "backend": (["--backend=papper"], {}, "--backend: 'papper' is not one of"),
    "device": (["--device=gpu"], {}, "--device: expected auto, cpu or cuda"),
    "op": (["--op=softmaks"], {}, "--op: 'softmaks' is not one of"),
    "variant": (
        ["--device=cpu", "--op=softmax", "--backend=paper", "--variant=onlin"],
        {},
        "--variant: 'onlin' is no variant of softmax",
    ),
    "level": (["--level=slow"], {}, "--level: expected one of"),
    "alias": (["--backend=chalksim", "--device=cuda"], {}, "--backend=chalksim means --device=cpu"),
    "variable": (["--backend=chalk", "--device=cuda"], {"CHALK_SIM": "1"}, "CHALK_SIM=1 means --device=cpu"),
    "quill": (["--backend=quill", "--device=cpu"], {}, "pip install quill"),
    "no file": (["--device=cpu", "--op=softmax", "--kernel=nowhere.py:fn"], {}, "--kernel: there is no file"),
    "divided": (
        ["--device=cpu", "--op=softmax", "--kernel=mine.py:fn", "--divide"],
        {},
        "--divide goes without --kernel",
    ),
    "no function": (["--device=cpu", "--op=softmax", "--kernel=mine.py:gn"], {}, "--kernel: "),
}
USAGE |= {
    "a user's id": ([f"{KERNELS}::test_kernel[{USERS_ID}]"], {}, "an id of a kernel of your own needs --kernel"),
    "ids of two levels": (
        [f"{KERNELS}::test_kernel[{each}]" for each in (QUICK_ID, DEFAULT_ID)],
        {},
        "no level has all of these ids",
    ),
    "two levels": (["--quick", "--thorough"], {}, "--quick and --thorough: give one of the two"),
    "a level twice": (["--quick", "--level", "default"], {}, "--quick and --level=default: give one of the two"),
    "two devices": (["--device=cpu", "--device=cuda"], {}, "--device=cpu and --device=cuda: give one of the two"),
    "two seeds": (["--seed", "1", "--seed=2"], {}, "--seed=1 and --seed=2: give one of the two"),
    "two ops": (["--op=softmax", "--op=matmul"], {}, "give them together: --op=softmax,matmul"),
    "meant": (["--backend=chalks"], {}, "; did you mean 'chalk"),
    "dtypes": (["--device=cpu", "--op=softmax", "--dtypes=float8"], {}, "--dtypes: 'float8' is not one of float32"),
    "sizes": (["--device=cpu", "--op=softmax", "--sizes=col=3"], {}, "--sizes: 'col' is not one of rows, cols"),
    "where": (["--device=cpu", "--op=softmax", "--where=colz > 3"], {}, "--where: 'colz' is no name of a case"),
    "turns": (["--device=cpu", "--op=softmax", "--turns=0"], {}, "--turns: expected a positive number, got 0"),
    "turns of one": (
        ["--device=cpu", "--backend=paper", "--variant=plain", "--turns=2"],
        {},
        "--turns goes with neither",
    ),
    "nothing left": (["--device=cpu", "--op=softmax", "--where=cols < 0"], {}, "--where='cols < 0' leaves none of"),
}
if cuda_unavailable():
    USAGE["no GPU"] = (["--backend=paper", "--device=cuda"], {}, "; use --device=cpu, which runs paper")


MINE = """
import torch


def fn(x):
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()


def zeros(x):
    return torch.zeros_like(x).contiguous()
"""


WORDS = """
import pytest


@pytest.mark.parametrize("op", ["softmax", "matmul"])
def test_of_an_op(op):
    pass


def test_softmax():
    pass
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A clone with right and faulty backends in which every run of RUNS and USAGE was made, in one process.

    Under xdist one worker makes it and the others wait.
    """
    shared = tmp_path_factory.getbasetemp()
    root = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "selection-clone"
    results = root / "results.json"
    try:
        root.mkdir()
    except FileExistsError:
        until = time.monotonic() + 300
        while not results.exists() and time.monotonic() < until:
            time.sleep(0.1)
        return root
    targets.write_clone(root, {**targets.WORLD, **targets.FAULTY})
    (root / "mine.py").write_text(MINE)
    (root / "tests" / "test_own.py").write_text("def test_own():\n    pass\n")
    (root / "words").mkdir()
    (root / "words" / "test_words.py").write_text(WORDS)
    (root / "docs").mkdir()
    for message in ("all", "nothing"):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "init", "-q"], cwd=root, check=True)
        subprocess.run(["git", "add", "-A"], cwd=root, check=True)
        subprocess.run(["git", *identity, "commit", "-qm", message, "--allow-empty"], cwd=root, check=True)
    asked = {
        **RUNS,
        **{f"usage: {name}": (arguments, environment) for name, (arguments, environment, _) in USAGE.items()},
    }
    done = processes.run_python(["-c", DRIVER, json.dumps(asked)], root, timeout=300)
    (root / "unfinished.json").write_text(
        done.stdout.partition("RESULTS")[2] or json.dumps({"driver": [-1, done.stdout + done.stderr]})
    )
    (root / "unfinished.json").rename(results)
    return root


@pytest.fixture(scope="module")
def runs(clone) -> dict[str, tuple[int, str]]:
    """Exit status and output of every run."""
    made = json.loads((clone / "results.json").read_text())
    assert "driver" not in made, made["driver"]
    return made


@pytest.mark.slow
def test_right_kernels_pass(runs):
    status, text = runs["right"]
    assert status == 0, text
    assert "touchstone: targets paper@cpu, chalk@cpu; level quick; seed 0" in text
    assert "::test_kernel[softmax-paper@cpu-plain-float32-" in text
    assert "::test_kernel[softmax-chalk@cpu-plain-property-rows_sum_to_one-bfloat16] PASSED" in text
    assert "::test_kernel[softmax-paper@cpu-plain-invalid-" in text
    rows = {tuple(line.split()[:3]): line for line in text.splitlines() if line.startswith("softmax  ")}
    assert set(rows) == {
        ("softmax", f"{b}@cpu", v)
        for b, v in [("paper", "plain"), ("paper", "folded"), ("paper", "gilded"), ("chalk", "plain")]
    }
    assert rows["softmax", "paper@cpu", "folded"].endswith("tf32")
    assert rows["softmax", "paper@cpu", "gilded"].split()[3:5] == ["not", "run"]


@pytest.mark.slow
def test_every_conformance_id_names_the_target(runs):
    _, text = runs["right"]
    ids = [line.partition("test_kernel[")[2] for line in text.splitlines() if "::test_kernel[" in line]
    assert len(ids) > 50
    assert all(name.startswith(("softmax-paper@cpu-", "softmax-chalk@cpu-")) for name in ids)


@pytest.mark.slow
def test_the_json_file_has_every_outcome(runs, clone):
    record = json.loads((clone / "right.json").read_text())
    assert {(r["target"], r["name"]) for r in record["reports"]} == {
        ("paper@cpu", "plain"),
        ("paper@cpu", "folded"),
        ("paper@cpu", "gilded"),
        ("chalk@cpu", "plain"),
    }
    assert (record["level"], record["seed"], record["machine"]["device"]) == ("quick", 0, "cpu")
    assert (record["kind"], record["verdict"], record["status"]) == ("pytest", "passed", 0)
    for report in record["reports"]:
        if report["name"] == "gilded":
            assert report["verdict"] == "not run" and "needs sm_999" in report["reason"]
        else:
            assert report["verdict"] == "passed" and len(report["outcomes"]) > 15
            assert {o["status"] for o in report["outcomes"]} == {"passed"}
            assert report["coverage"]["trials"] == report["coverage"]["passed"] == len(report["outcomes"])


@pytest.mark.slow
def test_two_workers_give_the_same_verdict(runs, clone):
    status, text = runs["right, two workers"]
    assert status == 0, text
    one, two = (json.loads((clone / f"{name}.json").read_text()) for name in ("right", "two"))

    def outcomes(record):
        return {(r["target"], r["name"], o["trial"]): o for r in record["reports"] for o in r["outcomes"]}

    assert outcomes(one) == outcomes(two)


@pytest.mark.slow
def test_divided_cases_are_each_judged_and_what_a_variant_leaves_is_counted(runs, clone):
    status, text = runs["divided"]
    assert status == 0, text
    whole, divided = (json.loads((clone / f"{name}.json").read_text())["reports"] for name in ("right", "divided"))

    def judged(reports, kind):
        found = {}
        for report in reports:
            trials = {o["trial"] for o in report["outcomes"] if o["status"] == "passed" and o["kind"] == kind}
            found[report["target"], report["name"]] = trials
        return found

    every, parts = judged(whole, "case"), judged(divided, "case")
    folded, plain = parts["paper@cpu", "folded"], parts["paper@cpu", "plain"]
    assert folded | plain == every["paper@cpu", "plain"] and folded < folded | plain and plain < folded | plain
    assert parts["chalk@cpu", "plain"] == every["chalk@cpu", "plain"]  # a ladder of one
    assert parts["paper@cpu", "gilded"] == set()  # that cannot run, and has no share
    assert judged(divided, "invalid") == judged(whole, "invalid")
    left = sum(len(every["paper@cpu", "plain"]) - len(part) for part in (folded, plain))
    assert f"{left} trials not run: divided among the variants of the op" in text


@pytest.mark.slow
def test_what_is_absent_is_skipped_with_the_reason(runs):
    """Also the faulty backends are found; they fail, so only the skips are looked at."""
    _, text = runs["default"]
    assert "touchstone: quill@cpu skipped: quill is not installed: pip install quill" in text
    assert "touchstone: slate@cpu skipped: slate wants a GPU" in text


@pytest.mark.slow
def test_a_wrong_kernel_fails_with_what_is_wrong(runs):
    status, text = runs["wrong"]
    assert status == 1
    assert "values: y: " in text
    assert "elements wrong" in text
    assert "of the budget" in text


@pytest.mark.slow
def test_a_variant_whose_turn_it_is_not_is_named(runs, clone):
    status, text = runs["turns"]
    assert status == 0, text
    record = json.loads((clone / "turns.json").read_text())
    why = {report["name"]: report["reason"] for report in record["reports"]}
    waiting = [name for name in ("plain", "folded") if why[name]]
    assert len(waiting) == 1 and why[waiting[0]] == "not its turn at this commit (--turns 2)"
    assert f"not run on paper@cpu: softmax {waiting[0]}: not its turn at this commit (--turns 2)" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shy", "shy, divided"])  # a ladder of one has nobody to divide with
def test_declining_everything_fails(runs, name):
    status, text = runs[name]
    assert status == 1
    assert "FAILED: softmax-shy@cpu-plain declined every case" in text
    assert " failed" not in text.splitlines()[-1]  # no item failed: the run did


@pytest.mark.slow
@pytest.mark.parametrize("name", ["needy", "a size of single cases"])  # which our own kernels get above level quick
def test_selected_and_none_ran_fails(runs, name):
    status, text = runs[name]
    assert status == 1
    assert "conformance tests were selected and none ran" in text


@pytest.mark.slow
def test_workers_do_not_hide_that_nothing_ran(runs):
    status, text = runs["shy and needy, a worker"]
    assert status == 1
    assert "FAILED: softmax-shy@cpu-plain declined every case" in text
    assert text.count("declined every case") == 1


@pytest.mark.slow
def test_collecting_is_no_run(runs):
    status, text = runs["collected"]
    assert status == 0, text
    assert "none ran" not in text


@pytest.mark.slow
def test_a_kernel_file_that_does_not_import_is_an_error(runs):
    status, text = runs["broken"]
    assert status in (1, 2)
    assert "backends/broken/softmax: ModuleNotFoundError: No module named 'parchment_and_nothing_else'" in text
    assert "skipped" not in text.splitlines()[-1]


@pytest.mark.slow
def test_no_conformance_test_selected_is_no_failure_of_theirs(runs):
    status, text = runs["own tests only"]
    assert status == 0
    assert "1 test collected" in text
    assert "none ran" not in text


@pytest.mark.slow
def test_who_asks_for_kernels_and_names_no_tests_means_the_suite(runs):
    status, text = runs["asked, no paths"]
    assert status == 0, text
    assert "paper@cpu" in text
    assert "test_own" not in text
    if len(os.sched_getaffinity(0)) > 1:
        assert re.search(r"created: \d+/\d+ workers", text)
    status, text = runs["asked, no paths, no workers"]
    assert status == 0, text
    assert "workers" not in text
    assert "test_own" not in text
    status, text = runs["nothing asked, no paths"]
    assert "tests/test_own.py::test_own" in text
    assert "ERROR touchstone/conformance/suite/test_kernels.py" in text  # among them are backends that do not import


@pytest.mark.slow
def test_some_cases_alone_and_the_count_of_the_others(runs):
    status, text = runs["some cases"]
    assert status == 0, text
    (row,) = [line.split() for line in text.splitlines() if line.startswith("softmax  ")]
    assert row[1:3] == ["paper@cpu", "plain"]
    assert 0 < int(row[3]) < 10
    for option in ("dtypes", "where", "sizes"):
        assert re.search(rf"^\d+ trials not run: left out by {option}$", text, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("an id") or name in IDS])
def test_an_id_selects_its_item_alone(runs, name):
    status, text = runs[name]
    assert status == 0, text
    assert re.findall(r"test_kernel\[(.*)\] PASSED", text) == [IDS.get(name, ID)]


@pytest.mark.slow
def test_a_word_that_is_the_id_of_a_test_selects_whatever_has_it(runs):
    status, text = runs["a word after -k"]
    assert status == 0, text
    assert set(re.findall(r"::(test_\w+)\S* PASSED", text)) == {"test_of_an_op", "test_softmax"}


@pytest.mark.slow
def test_parts_of_ids_select_what_has_them(runs):
    status, text = runs["parts of ids after -k"]
    assert status == 0, text
    found = re.findall(r"test_kernel\[(.*)\] PASSED", text)
    assert len(found) >= 2
    assert all("paper@cpu-folded" in each and ("x:step" in each or "x:sliced" in each) for each in found)


@pytest.mark.slow
def test_what_does_not_run_is_told_with_the_reason(runs):
    assert "not run on paper@cpu: softmax gilded: needs sm_999; this is plain" in runs["right"][1]
    assert "quill@cpu skipped: quill is not installed: pip install quill" in runs["default"][1]


@pytest.mark.slow
def test_a_kernel_of_ones_own_under_pytest(runs):
    status, text = runs["kernel"]
    assert status == 0, text
    assert "targets user@cpu" in text
    assert "test_kernel[softmax-user@cpu-fn-float32-" in text
    assert "SKIPPED" not in text
    assert runs["wrong kernel"][0] == 1


@pytest.mark.slow
def test_an_alias_and_a_variable_choose_the_cpu(runs):
    for name in ("alias", "variable"):
        status, text = runs[name]
        assert status == 0, text
        assert "chalk@cpu" in text


@pytest.mark.slow
def test_a_variant_and_a_case_alone(runs):
    status, text = runs["one variant"]
    assert status == 0
    assert "paper@cpu-folded-" in text
    assert "paper@cpu-plain-" not in text
    status, text = runs["one case"]
    assert status == 0, text
    assert "declined every case" not in text


@pytest.mark.slow
def test_short_names_of_levels(runs):
    status, text = runs["thorough"]
    assert status == 0, text
    assert "level thorough" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", USAGE)
def test_what_is_asked_for_and_impossible_is_a_usage_error(runs, name):
    status, text = runs[f"usage: {name}"]
    assert status == pytest.ExitCode.USAGE_ERROR, text
    assert "ERROR: " in text
    assert USAGE[name][2] in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_the_debugger_gets_the_kernels_exception(clone):
    arguments = [
        "-m",
        "pytest",
        *JUDGE,
        "--backend=raising",
        "--pdb",
        "-x",
        "-k",
        "float32 and not property and not invalid",
    ]
    done = processes.run_python(arguments, clone, input="p 'inside ' + 'the kernel', x.shape\nq\n")
    assert "raise ZeroDivisionError" in done.stdout
    assert "('inside the kernel', torch.Size([" in done.stdout


def test_a_kernel_of_ones_own_inside_a_package(world, tmp_path):
    package = tmp_path / "stationery" / "inks"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "shades.py").write_text("NAME = 'blue'\n")
    (package / "mine.py").write_text(
        "from .. import inks\nfrom .shades import NAME\n\n\ndef fn(x=None):\n    import beside\n\n    return NAME, "
        "beside.NAME\n"
    )
    (package / "beside.py").write_text("NAME = 'black'\n")
    before = list(sys.path)
    fn = chosen(kernel=f"{package / 'mine.py'}:fn", op="softmax").subjects()[0][1].fn
    assert fn() == ("blue", "black")
    assert sys.path[: len(before)] == before  # nothing comes before what was there
