"""Findings kept by id, replayed alone, made smaller, and turned into scripts that show the bug without the judge."""

import ast
import json
import os
import re
import shutil

import pytest
import torch

from tests import processes, targets
from tests.night import some
from touchstone import check
from touchstone.conformance.cli import main
from touchstone.conformance.discovery import importing as worker
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject, not_called
from touchstone.conformance.findings import kept, minimise, replay, script
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import FAILED, Finding, Outcome
from touchstone.conformance.judging.trials import AsGraph, Int64Index, Kind, ManyCalls, OnStream, in_turn, trials_of
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import DTYPES, Contract
from touchstone.conformance.spec.narrowing import Narrowing

KERNELS = """
import math
import torch


def right(x):
    return torch.softmax(x.double(), -1).to(x.dtype).contiguous()


def tail(x):
    y = right(x)
    y[:, x.shape[1] // 32 * 32 :] = 0
    return y


def strides(x):
    inside = x.numel() == 0 or x.storage_offset() + x.numel() <= x.untyped_storage().nbytes() // x.element_size()
    return right(x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset())) if inside else right(x)


def bfloat16_only(x):
    return right(x) * (0.5 if x.dtype is torch.bfloat16 else 1)


def infinities(x):
    return right(x.nan_to_num(neginf=-1e4))


def raises(x):
    if x.shape[1] > 100:
        raise RuntimeError("too wide: no more than 100 columns")
    return right(x)


def writes(x):
    y = right(x)
    if x.shape[0] > 2 and x.numel():
        x[0, 0] = 1
    return y


def shape(x):
    return right(x)[None]


def strided(x):
    return right(x.t()[:0].t()) if x.numel() == 0 else torch.softmax(x.float(), -1).to(x.dtype).t().contiguous().t()


def crash(x):
    if x.shape[1] > 1000:
        import ctypes

        ctypes.string_at(0)
    return right(x)


counter = [0]


def fortieth_call(x):
    counter[0] += 1
    return right(x) * (2 if counter[0] % 40 == 0 else 1)


def shift_variant(x):
    return right(x) if x.numel() == 0 or x.max() > -3 else right(x + 0.1 * torch.arange(x.shape[1]))


anonymous = lambda x: x * 0
"""
USUAL = kept.FILE
REPAIR = "\n\ndef {name}(x):\n    return right(x)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kept, "FILE", USUAL)
    (tmp_path / "my_kernels.py").write_text(KERNELS)
    return tmp_path


def failing(name, found=Check.VALUES, level="quick", op="softmax", trial="", **options):
    """Check a function of my_kernels.py; the id of a finding of the check `found`."""
    from touchstone.conformance.discovery import importing as worker

    fn = worker.load("my_kernels.py", name)
    report = check(op, fn, device="cpu", level=level, **options)
    return next(
        f.id for f in report.findings if f.check == found and f.severity == "failure" and f.case.startswith(trial)
    )


def run(capsys, *arguments):
    status = main(["replay", *arguments])
    return (status, *capsys.readouterr())


def repair(folder, name):
    (folder / "my_kernels.py").write_text(KERNELS + REPAIR.format(name=name))


def execute(folder, text):
    (folder / "script.py").write_text(text)
    return processes.run_python(["script.py"], folder, environment={"OMP_NUM_THREADS": "1"})


def only(**wanted):
    """Cases with these layouts, dtypes or families."""
    return lambda case: all(
        getattr(case, name) == value if name != "layout" else value in case.layout.values()
        for name, value in wanted.items()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "found", "where", "inside"),
    some(
        [
            ("tail", Check.VALUES, only(values="normal"), ["allowed"]),
            ("strides", Check.VALUES, only(layout="sliced"), ["strided(", "value"]),
            ("bfloat16_only", Check.VALUES, only(dtype="bfloat16"), [".to(torch.bfloat16)"]),
            ("infinities", Check.VALUES, only(values="row_of_neg_inf"), ["value != value"]),
            ("raises", Check.RAISED, None, []),
            ("writes", Check.INPUTS, None, ["torch.equal, before, after"]),
            ("shape", Check.SHAPE, None, ["tuple(got.shape) =="]),
            ("strided", Check.STRIDES, None, ["got.is_contiguous()"]),
            ("crash", Check.CRASH, None, []),
            ("fortieth_call", Check.VALUES, lambda case: case.id == "float32-3x33-normal", ["assert_right("]),
            (
                "shift_variant",
                Check.PROPERTY.of("shift invariance"),
                lambda case: case.values == "normal",
                ["assert_right("],
            ),
        ],
        6,
    ),
)
def test_a_script_fails_until_the_kernel_is_repaired(folder, capsys, name, found, where, inside):
    identifier = failing(name, found, where=where, trial="calls-" if name == "fortieth_call" else "")
    status, out, _ = run(capsys, identifier, "--minimise", "--seconds", "6")
    assert status == 1
    assert f"[{identifier}] {found}:" in out
    script = out[out.index('"""softmax, user@cpu') :]
    assert len(script.splitlines()) <= 30
    assert all(text in script for text in inside), script
    assert ("touchstone" in script) == ("assert_right(" in inside)
    done = execute(folder, script)
    assert done.returncode != 0
    assert done.returncode < 0 or done.stderr.strip().splitlines()[-1].strip() != ""
    repair(folder, name)
    done = execute(folder, script)
    assert done.returncode == 0, done.stderr
    status, out, _ = run(capsys, identifier)
    assert status == 0
    assert "passes now" in out


@pytest.mark.slow
def test_a_case_is_made_small(folder, capsys):
    identifier = failing("tail", where=lambda case: case.size["cols"] == 10007)
    _, out, _ = run(capsys, identifier, "--minimise", "--json", "out.json")
    record = json.loads((folder / "out.json").read_text())["replay"]
    assert record["case"] == "float32-1x1-normal"
    assert record["tried"] < 40
    assert f"found in {record['tried']} tries: float32-1x1-normal" in out
    assert record["finding"]["id"] == identifier
    assert "torch.zeros(1, 1)" in record["script"]


@pytest.mark.level("default")
@pytest.mark.slow
def test_coupled_sizes_shrink_together(folder):
    (folder / "my_kernels.py").write_text(
        "from touchstone.reference.attention import torch_attention\n\n\ndef halved(q, k, v, *, causal=False, "
        "scale=None):\n"
        "    scale = q.shape[-1] ** -0.5 if scale is None else scale\n"
        "    o, lse = torch_attention(q.double(), k.double(), v.double(), causal=causal, scale=scale)\n"
        "    return (o * (1 if q.shape[1] < 2 else 0.5)).to(q.dtype), lse.float()\n"
    )
    identifier = failing("halved", op="attention", where=lambda case: dict(case.sizes)["Hq"] == 4)
    result = replay.replay(identifier, minimise=True, seconds=30)
    assert re.fullmatch(r"float32-1x2x[12]x1x[12]x1-normal-causal=False-scale=None", result["case"]), result["case"]
    assert "got[0][" in result["script"]
    assert execute_in(folder, result["script"]).returncode == 1


def execute_in(folder, text):
    (folder / "script.py").write_text(text)
    return processes.run_python(["script.py"], folder, environment={"PYTHONPATH": str(registry.ROOT)})


def test_replay_prints_diagnosis_and_map(folder, capsys):
    identifier = failing(
        "tail", level="default", where=lambda case: case.size == dict(rows=7, cols=127) and case.values == "normal"
    )
    status, out, _ = run(capsys, identifier, "--json", "out.json")
    assert status == 1
    assert "y: wrong: cols " in out
    assert "cols 0..126 to the right, rows down" in out
    record = json.loads((folder / "out.json").read_text())["replay"]
    assert record["failed"] is True
    assert record["diagnosis"] in out
    assert [found["check"] for found in record["findings"]] == [Check.VALUES]


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.needs("matplotlib")
def test_a_picture_is_drawn(folder):
    command = ["-m", "touchstone", "replay", failing("tail"), "--picture", "map.png"]
    done = processes.run_touchstone(command, folder)
    assert (done.returncode, "picture of y in map.png" in done.stdout) == (1, True), done.stdout + done.stderr
    assert (folder / "map.png").stat().st_size > 1000


def test_what_cannot_be_drawn(folder, capsys):
    status, _, error = run(capsys, failing("raises", Check.RAISED), "--picture", "map.png")
    assert status == 2
    assert "nothing to draw" in error


def test_an_unknown_id_lists_the_latest(folder, capsys):
    status, _, error = run(capsys, "00000000")
    assert status == 2
    assert "it is empty or missing" in error
    known = failing("tail")
    status, _, error = run(capsys, "00000000")
    assert status == 2
    assert "no finding '00000000' in .touchstone/findings.json" in error
    assert len(error.splitlines()) <= 1 + kept.LISTED
    assert "softmax user@cpu tail: values in " in error
    assert known not in error or known in error.split("latest")[1]


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda x: x * 0, "is a lambda or is defined inside a function"),
        (torch.nn.Identity(), "is a Identity; another process can import only a function at the top level of a file"),
    ],
)
def test_a_function_that_cannot_be_imported_again(folder, capsys, fn, said):
    report = check("softmax", fn, device="cpu", level="quick")
    status, _, error = run(capsys, report.findings[0].id)
    assert status == 2
    assert said in error


def test_a_function_at_a_prompt():
    namespace = {}
    exec("def typed(x):\n    return x", namespace)
    with pytest.raises(ValueError, match="typed is defined in a notebook cell or at a prompt; another process cannot"):
        worker.source_of(namespace["typed"])


def test_a_file_or_function_that_is_gone(folder, capsys):
    identifier = failing("tail")
    (folder / "my_kernels.py").write_text("def other(x): pass\n")
    status, _, error = run(capsys, identifier)
    assert (status, "defines no function 'tail'" in error) == (2, True)
    (folder / "my_kernels.py").write_text("1 / 0\n")
    status, _, error = run(capsys, identifier)
    assert (status, "does not import: ZeroDivisionError" in error) == (2, True)
    (folder / "my_kernels.py").unlink()
    status, _, error = run(capsys, identifier)
    assert (status, "there is no file" in error) == (2, True)


def test_seconds_are_positive(folder, capsys):
    status, _, error = run(capsys, failing("tail"), "--minimise", "--seconds", "0")
    assert (status, "--seconds" in error) == (2, True)


def test_a_file_outside_the_current_folder_runs_only_when_told(folder, capsys, monkeypatch):
    from touchstone.conformance.discovery import importing as worker

    ran = folder / "ran"
    (folder / "my_kernels.py").write_text(KERNELS + f"\n\nopen({str(ran)!r}, 'w').close()\n")
    below = folder / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    report = check("softmax", worker.load("../my_kernels.py", "tail"), device="cpu", level="quick")
    identifier = report.findings[0].id
    assert f"replay {identifier} --anywhere" in str(report)
    ran.unlink()
    (below / "link.py").symlink_to("../my_kernels.py")
    for named in (folder / "my_kernels.py", below / "link.py", below / ".." / "my_kernels.py"):
        records = json.loads(kept.FILE.read_text())
        records[-1]["source"]["file"] = str(named)
        kept.FILE.write_text(json.dumps(records))
        status, _, error = run(capsys, records[-1]["id"])
        assert (status, "which is not under the current folder" in error, "--anywhere" in error) == (2, True, True)
        assert not ran.exists()
    assert run(capsys, records[-1]["id"], "--anywhere")[0] == 1
    assert ran.exists()


def test_an_op_file_outside_the_current_folder_runs_only_when_told(folder, capsys):
    identifier = failing("tail")
    elsewhere = folder.parent / "op_of_another.py"
    elsewhere.write_text("raise SystemExit('it ran')")
    (records,) = ([r for r in json.loads(kept.FILE.read_text()) if r["id"] == identifier],)
    records[0]["op_file"] = str(elsewhere)
    kept.FILE.write_text(json.dumps(records))
    status, _, error = run(capsys, identifier)
    assert (status, f"would run {elsewhere}" in error) == (2, True)


WRONG_FIELDS = [
    ("op", "os.path", "field op: expected a name"),
    ("op", None, "field op: expected a name"),
    ("target", "user", "field target: expected a backend, @ and a device"),
    ("device", "tpu", "field device: expected one of cpu, cuda, got 'tpu'"),
    ("device", ["cpu"], "field device"),
    ("level", "all", "field level: expected one of quick, default, thorough"),
    ("seed", "0", "field seed: expected a whole number, got '0'"),
    ("seed", True, "field seed"),
    ("trial", "a\nb", "field trial: expected a line of printable text"),
    ("trial", "\x1b[2J", "field trial"),
    ("kind", "cases", "field kind: expected one of"),
    ("check", 7, "field check"),
    ("message", None, "field message: expected a text"),
    ("compute", "fp4", "field compute: expected null or one of"),
    ("deterministic", "yes", "field deterministic: expected true or false"),
    ("outputs", "y", "field outputs: expected null or a list of names"),
    ("outputs", ["y", "__import__('os')"], "field outputs"),
    ("arrays", "os;x", "field arrays"),
    ("arrays", "jax", "field arrays: expected one of torch, numpy"),
    ("strict", 1, "field strict"),
    ("arch", "sm_1", "field arch"),
    ("again", "float32", "field again: expected null or an object of texts"),
    ("again", {"size rows": 3}, "field again: expected null or an object of texts"),
    ("op_file", 3, "field op_file: expected null or a path"),
    ("op_file", "a\0b", "field op_file"),
    ("source", "my_kernels.py", "field source: expected an object"),
    ("source", {"file": "my_kernels.py"}, "field source.function is missing"),
    ("source", {"function": "tail"}, "field source.file is missing"),
    ("source", {}, "field source.file is missing"),
    ("source", {"file": "my_kernels.py", "function": "tail;import os"}, "field source.function: expected the name"),
    ("source", {"file": ["my_kernels.py"], "function": "tail"}, "field source.file: expected a path"),
    ("source", {"backend": "../triton", "variant": "onerow"}, "field source.backend: expected a name"),
    ("source", {"backend": "triton", "variant": "__import__('os')"}, "field source.variant"),
    ("source", {"reason": "\x1b]0;title\x07"}, "field source.reason"),
    ("source", {"file": "a.py", "function": "f", "reason": "\x1b[2J"}, "field source: it names more than one"),
    ("source", {"file": "a.py", "function": "f", "backend": ["triton"]}, "field source: it names more than one"),
]


def test_a_field_of_a_record_that_cannot_be_is_named(folder, capsys):
    identifier = failing("tail")
    (good,) = [record for record in json.loads(kept.FILE.read_text()) if record["id"] == identifier]
    cases = [({**good, name: value}, said) for name, value, said in WRONG_FIELDS]
    cases += [
        ({n: v for n, v in good.items() if n != name}, f"field {name} is missing") for name in good.keys() - OPTIONAL
    ]
    for record, said in cases:
        kept.FILE.write_text(json.dumps([record]))
        status, out, error = run(capsys, identifier)
        wrong = f"the record of {identifier} in .touchstone/findings.json is not one of Touchstone's: {said}"
        assert (status, wrong in error) == (2, True), (said, error)
        assert "\x1b" not in out + error


@pytest.mark.parametrize(
    ("change", "expected", "said"),
    [
        ({"outputs": ["z"]}, 2, "is about outputs that softmax does not have: z"),
        ({"device": "cuda", "target": "user@cuda"}, 3, "was found on a GPU: there is none"),
    ],
    ids=str,
)
def test_what_a_record_asks_for_is_there(folder, capsys, monkeypatch, change, expected, said):
    """Or the kernel would pass, or raise, for what is no fault of its own."""
    identifier = failing("tail")
    monkeypatch.setattr(kept, "cuda_unavailable", lambda: "there is none")
    records = [{**record, **change} for record in json.loads(kept.FILE.read_text())]
    kept.FILE.write_text(json.dumps(records))
    status, _, error = run(capsys, identifier)
    assert (status, said in error) == (expected, True), error


OPTIONAL = {"id", "strict", "arch", "kind", "again"}  # without its id it is not found; the kind is that of the trial


HOSTILE = {
    "no JSON": b"{",
    "not text": b"\xff\xfe\x00",
    "nested": b"[" * 200_000,
    "a number of 10,000 digits": b"[" + b"9" * 10_000 + b"]",
    "lists inside lists": b'[{"id": "x", "op": ' + b"[" * 900 + b"]" * 900 + b"}]",
    "objects inside objects": b'[{"id": "x", "op": ' + b'{"a":' * 400 + b"1" + b"}" * 401 + b"]",
    "no list": b'{"a": {"b": 1}}',
    "no records": b'[null, 1, "x", [], {}, {"id": null}, {"id": ["x"]}]',
    "odd words": b'[{"id": "x", "op": 1, "source": {"variant": 3}, "trial": "-", "ceilings": {"a": 1}}]',
    "a pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_of_findings_is_no_traceback(folder, capsys, content):
    kept.FILE.parent.mkdir()
    kept.FILE.write_bytes(content)
    status, _, error = run(capsys, "12345678")
    assert (status, "there is no finding '12345678'" in error) == (2, True)
    kept.keep(findings(1))
    assert kept._read(kept.FILE).keys() >= {"00000000"}


def test_listed_findings_do_not_steer_the_terminal(folder, capsys):
    kept.FILE.parent.mkdir()
    kept.FILE.write_text(json.dumps([{"id": "\x1b[2J", "op": "\x1b[31m", "trial": "a\nb", "name": "n" * 10_000}]))
    _, _, error = run(capsys, "12345678")
    assert "\x1b" not in error and "\\x1b[2J  \\x1b[31m" in error and len(error) < 1000


def test_a_message_is_printed_without_what_steers_the_terminal(folder):
    identifier = failing("tail")
    records = [{**r, "message": "\x1b[2Jtwo\nlines"} for r in json.loads(kept.FILE.read_text())]
    kept.FILE.write_text(json.dumps(records))
    assert kept.find(identifier)["message"] == "\\x1b[2Jtwo\nlines"


def test_links_are_neither_read_nor_written_through(folder, capsys):
    """As a repository of somebody else's may hold them."""
    precious = folder / "precious"
    precious.write_text("mine")
    kept.FILE.parent.mkdir()
    kept.FILE.symlink_to(precious)
    assert not kept.keep(findings(1))
    assert precious.read_text() == "mine"
    assert "findings cannot be kept" in capsys.readouterr().err
    assert run(capsys, "12345678")[0] == 2
    shutil.rmtree(kept.FILE.parent)
    (folder / "elsewhere").mkdir()
    kept.FILE.parent.symlink_to("elsewhere")
    assert not kept.keep(findings(1))
    assert list((folder / "elsewhere").iterdir()) == []
    assert ".touchstone is a symbolic link" in capsys.readouterr().err


def test_the_folder_of_findings_is_the_users_alone(folder, capsys):
    assert kept.keep(findings(1))
    assert [path.stat().st_mode & 0o777 for path in (kept.FILE.parent, kept.FILE)] == [0o700, 0o600]
    kept.FILE.parent.chmod(0o777)
    assert not kept.keep(findings(2))
    assert "others may write to .touchstone (mode 0777)" in capsys.readouterr().err


def test_a_script_is_made_of_a_records_names_and_nothing_else(folder):
    """A title is a comment whatever the kernel is called, a module's name is a text."""
    record = kept.find(failing("tail"))
    record["name"] = '"""\nimport os\n\\'
    subject = kept.load(record)
    trial = kept.trial_of(record, subject)
    (finding,) = judge.run(subject, trial).findings
    least = minimise.minimise(subject, trial, finding, seconds=0.0)
    for text in script._scripts(least, record):
        title, first, *_ = ast.parse(text).body
        assert isinstance(title, ast.Expr) and isinstance(first, ast.Import) and first.lineno > title.end_lineno


def test_notes_are_kept_too_and_nothing_of_a_kernel_without_findings(folder):
    def right(x):
        return torch.softmax(x.double(), -1).to(x.dtype).contiguous()

    def draws(x):
        torch.rand(1)
        return right(x)

    assert check("softmax", right, device="cpu", level="quick").findings == []
    assert not (folder / ".touchstone").exists()
    report = check("softmax", draws, device="cpu", level="quick")
    assert report.passed
    assert kept.find(report.findings[0].id)["severity"] == "note"


def test_what_is_kept_of_a_finding(folder):
    identifier = failing("tail", dtypes=["float16"], seed=7)
    record = kept.find(identifier)
    assert record["source"] == {"file": str(folder / "my_kernels.py"), "function": "tail"}
    assert (record["op"], record["target"], record["name"], record["device"]) == ("softmax", "user@cpu", "tail", "cpu")
    assert (record["level"], record["seed"], record["check"], record["severity"]) == ("quick", 7, "values", "failure")
    assert record["kind"] == "case"
    subject = kept.load(record)
    assert kept.trial_of(record, subject).case.seed == 7


def test_compute_and_outputs_are_kept(folder):
    subject = Subject(
        "matmul", test_compute_and_outputs_are_kept, "f", "user@cpu", "cpu", compute="tf32", outputs=("c",)
    )
    outcome = Outcome("a-trial", Kind.CASE, "float32", FAILED)
    outcome.findings.append(Finding("12345678", "failure", Check.VALUES, "a-trial", "c: wrong"))
    (record,) = kept.records(subject, [outcome], "quick", 0)
    assert (record["compute"], record["outputs"], record["source"]["file"]) == ("tf32", ["c"], __file__)
    assert record["source"]["function"] == "test_compute_and_outputs_are_kept"


def findings(count, start=0):
    return [{"id": f"{i:08x}", "op": "softmax", "message": "x"} for i in range(start, start + count)]


def test_the_last_findings_are_kept(tmp_path):
    file = tmp_path / "deep" / "findings.json"
    kept.keep(findings(kept.KEPT - 100), file)
    kept.keep(findings(200, start=kept.KEPT - 200), file)
    assert len(json.loads(file.read_text())) == kept.KEPT
    kept.keep(findings(1), file)  # again: now the latest
    kept.keep(findings(1, start=kept.KEPT + 400), file)
    identifiers = [record["id"] for record in json.loads(file.read_text())]
    assert len(identifiers) == kept.KEPT
    assert identifiers[-2:] == ["00000000", f"{kept.KEPT + 400:08x}"]
    assert sorted(os.listdir(file.parent)) == ["findings.json", "findings.json.lock"]


def test_a_file_that_is_not_ours_is_replaced(tmp_path):
    file = tmp_path / "findings.json"
    for text in ("{not json", "[1, 2]", '{"a": 1}', "[{}]"):
        file.write_text(text)
        kept.keep(findings(2), file)
        assert len(json.loads(file.read_text())) == 2


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, capsys):
    (tmp_path / "taken").write_text("a file")
    kept.keep(findings(1), tmp_path / "taken" / "findings.json")
    assert "findings cannot be kept for replay" in capsys.readouterr().err


@pytest.mark.slow
def test_pytest_keeps_findings_too(folder, capsys):
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(registry.ROOT / "tox.ini"), "--quick"]
    arguments += ["--rootdir", str(registry.ROOT), "--op", "softmax", "--device", "cpu", "-x", "-k", "float16"]
    arguments += [
        "--kernel",
        "my_kernels.py:tail",
        str(registry.ROOT / "touchstone" / "conformance" / "suite" / "test_kernels.py"),
    ]
    done = processes.run_python(arguments, folder)
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    (identifier,) = set(re.findall(r"\[([0-9a-f]{8})\] values", done.stdout))
    status, out, _ = run(capsys, identifier)
    assert (status, f"[{identifier}] values" in out) == (1, True)


def test_variants_are_replayed_by_name(tmp_path, monkeypatch, capsys):
    with targets.pretend(tmp_path, monkeypatch, {**targets.WORLD, **targets.FAULTY}):
        monkeypatch.chdir(tmp_path)
        assert main(["check", "softmax", "--backend", "wrong", "--device", "cpu", "--quick"]) == 1
        identifier = re.findall(r"\[([0-9a-f]{8})\] values", capsys.readouterr().out)[0]
        assert kept.find(identifier)["source"] == {"backend": "wrong", "variant": "plain"}
        status, out, _ = run(capsys, identifier)
        assert status == 1
        assert f"[{identifier}] values" in out
        assert "softmax wrong@cpu plain" in out


def test_smaller_sizes():
    assert list(minimise.smaller({"M": 1})) == []
    assert [size["M"] for size in minimise.smaller({"M": 9})] == [1, 5, 7, 8]
    found = list(minimise.smaller({"N": 1, "trailing": (3, 4)}))
    assert [size["trailing"] for size in found] == [(1, 4), (2, 4), (3, 1), (3, 3)]
    assert {"M": 4, "N": 2} in list(minimise.smaller({"M": 8, "N": 4}))
    assert {"M": 7, "N": 3} in list(minimise.smaller({"M": 8, "N": 4}))


@pytest.mark.parametrize("op", registry.ops())
def test_the_plain_case_is_as_simple_as_can_be(op):
    contract = registry.contract(op)
    ones = {name: tuple(1 for _ in n) if isinstance(n, tuple) else 1 for name, n in contract.sizes[0].items()}
    case = plain_case(contract, "float32", next(iter(contract.values)), size=ones)
    assert list(minimise.simpler(contract, case)) == []
    other = plain_case(contract, "bfloat16", list(contract.values)[1], size=contract.sizes[0])
    found = list(minimise.simpler(contract, other))
    assert {case.dtype for case in found} == {"bfloat16", "float32"}
    assert found[-1].values == next(iter(contract.values))


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_literals_are_read_back_to_the_bit(dtype):
    value = torch.tensor([[1.0, -0.1, 3e-5], [float("inf"), -float("inf"), 60000.0]]).to(dtype)
    assert torch.equal(minimise.evaluate(minimise.literal(value)).to(dtype), value)
    assert minimise.literal(torch.tensor([1.0, 2.5])) == "torch.tensor([1., 2.5])"
    assert torch.isnan(minimise.evaluate(minimise.literal(torch.tensor([float("nan")])))).all()


@pytest.mark.parametrize("shape", [(3,), (2, 5), (9, 100)])
def test_formulas_have_the_shape(shape):
    value = torch.randn(shape, dtype=torch.float64) * 9
    made = [minimise.evaluate(code) for code in minimise.formulas(value)]
    assert {tuple(tensor.shape) for tensor in made} == {shape}
    assert torch.equal(made[0], torch.zeros(shape))


def test_progress_is_shown(folder, monkeypatch):
    monkeypatch.setattr(minimise, "QUIET_SECONDS", 0.0)
    lines = []
    record = kept.find(failing("tail"))
    subject = kept.load(record)
    trial = kept.trial_of(record, subject)
    (finding,) = judge.run(subject, trial).findings
    least = minimise.minimise(subject, trial, finding, seconds=30, tell=lines.append)
    assert len(lines) == least.tried
    assert re.match(r"minimise: 1 tried, \d+ s left, now b?float(16|32)-", lines[0])


def test_no_time_no_change(folder):
    record = kept.find(failing("tail"))
    subject = kept.load(record)
    trial = kept.trial_of(record, subject)
    (finding,) = judge.run(subject, trial).findings
    least = minimise.minimise(subject, trial, finding, seconds=0.0)
    assert (least.trial, least.made, least.tried) == (trial, {}, 0)


@pytest.mark.parametrize("op", registry.ops())
def test_a_script_spells_out_every_kind_of_trial(op):
    contract = registry.contract(op)
    found, _ = trials_of(Subject(op, not_called, "f", "user@cpu", "cpu", own=True), "quick")
    case = found[0].case
    turned = in_turn(contract, plain_case(contract, "float32", next(iter(contract.values))))
    for trial in [*found, OnStream(case), AsGraph(case), Int64Index(case), turned]:
        assert script.trial_of(ast.literal_eval(repr(script.spelled(trial))), contract) == trial


@pytest.mark.parametrize("narrowing", [Narrowing(["bfloat16"]), Narrowing(["float16"], sizes={"cols": [127]})])
def test_the_many_calls_of_a_narrowed_check_are_found_again(narrowing):
    subject = Subject("softmax", not_called, "f", "user@cpu", "cpu")
    calls = next(t for t in trials_of(subject, "quick", narrowing=narrowing)[0] if isinstance(t, ManyCalls))
    assert not narrowing.leaves_out(calls.case)
    record = {"level": "quick", "seed": 0, "kind": calls.kind.value, "trial": calls.id}
    assert kept.trial_of(record, subject) == calls
    assert script.trial_of(ast.literal_eval(repr(script.spelled(calls))), subject.contract) == calls


def test_calls_of_other_lengths_are_those_of_the_smaller_case(folder):
    """A plan that is kept by the number of rows, of whether they are whole parts of 32."""
    (folder / "my_kernels.py").write_text(
        "import torch\n\nplans = {}\n\n\ndef wrong(x):\n"
        "    whole = plans.setdefault(x.shape[0], x.shape[1] % 32 == 0)\n"
        "    kept = x[:, : x.shape[1] // 32 * 32] if whole else x\n"
        "    y = torch.softmax(kept.float(), -1)\n"
        "    return torch.nn.functional.pad(y, (0, x.shape[1] - y.shape[1])).to(x.dtype)\n"
    )
    record = kept.find(failing("wrong", trial="calls-of_other_lengths"))
    subject = kept.load(record)
    trial = kept.trial_of(record, subject)
    finding, *_ = judge.run(subject, trial).findings
    least = minimise.minimise(subject, trial, finding, seconds=30, tell=lambda line: None)
    assert least.trial.case.sizes != trial.case.sizes
    spelled = script.trial_of(script.spelled(least.trial), subject.contract)
    assert spelled == least.trial and judge.run(kept.load(record), spelled).status == FAILED


def test_a_trial_beyond_2_to_the_31_elements_is_not_made_smaller(folder, monkeypatch):
    """A smaller case would be another trial, and the memory for its answers is not there."""
    record = kept.find(failing("tail"))
    subject = kept.load(record)
    beyond = subject.contract.int64_index
    trial = Int64Index(plain_case(subject.contract, beyond.dtype, "normal", 0, beyond.size))

    def build(self, case, device="cpu"):
        raise AssertionError(f"{case.id} is made")

    monkeypatch.setattr(Contract, "build", build)
    told = []
    finding = Finding("12345678", "failure", Check.VALUES, trial.id, "y: wrong", about="y")
    least = minimise.minimise(subject, trial, finding, seconds=30, tell=told.append)
    assert (least.trial, least.made, least.tried) == (trial, {}, 0)
    assert told == [f"minimise: {trial.id} is left as it is: it takes an output of more than 2^31 elements"]
    text = script.script(least, record)
    spelled = ast.literal_eval(re.search(r"^trial = (.*)$", text, re.MULTILINE)[1])
    assert script.trial_of(spelled, subject.contract) == trial
    assert "assert_right(record, trial)" in text


@pytest.mark.level("default")
@pytest.mark.slow
def test_a_smaller_failure_is_about_the_same_output(folder):
    """A case where only the other output is wrong shows something else."""
    (folder / "my_kernels.py").write_text(
        "import torch\n\n\ndef wrong(x):\n"
        "    y, lse = torch.softmax(x.double(), -1), torch.logsumexp(x.double(), -1)\n"
        "    if x.shape[1] > 100:\n        y = y * 2\n    else:\n        lse = lse + 1\n"
        "    return y.to(x.dtype).contiguous(), lse.float()\n"
    )
    identifier = failing("wrong", op="online_softmax", where=lambda case: case.size["cols"] == 127)
    result = replay.replay(identifier, minimise=True, seconds=120)
    assert re.match(r"float32-1x101-", result["case"]), result["case"]
    assert result["findings"][0]["about"] == "y"
