"""What `--json` writes: valid JSON of one documented format from every command, however the command ends."""

import argparse
import hashlib
import json
import math
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from tests import processes, targets
from touchstone import check
from touchstone.conformance.cli import main, parser
from touchstone.conformance.discovery import registry
from touchstone.conformance.findings import kept
from touchstone.conformance.judging.judgement import Finding
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.reporting import record as records
from touchstone.conformance.reporting import source
from touchstone.conformance.reporting.groups import Group
from touchstone.conformance.reporting.status import EXPLAINED, Status
from touchstone.conformance.spec.cases import plan
from touchstone.conformance.spec.checks import Requirement

SCHEMA = json.loads(records.SCHEMA.read_text())
JUDGES_NOTHING = ("schema", "report", "describe", "emulate")  # commands without --json
KERNELS = (
    targets.PLAIN
    + """
import functools
import os
import signal
import time


def zeros(x):
    return torch.zeros_like(x)


def blank(x):
    return plain(x) * float("nan")


def talks(x):
    os.write(1, b"printed by the kernel")
    print("said by the kernel", flush=True)
    return plain(x)


def shy(x):
    raise NotImplementedError("not today")


def few(x):
    if x.shape[0] > 3:
        raise NotImplementedError("up to three rows")
    return plain(x)


def verbose(x):
    raise ValueError("long " * 10_000)


calls = []


def interrupts(x, at=8):
    calls.append(x)
    if len(calls) == at:
        time.sleep(0.5)  # until the judge has heard of the trials before
        os.kill(os.getppid(), signal.SIGINT)
        signal.pause()
    return plain(x)


def strays(x):
    return interrupts(x, at=30) + 1  # after the calls by which the judge explains the first failure


def stops(x):
    if x.shape[0] == 8:
        signal.raise_signal(signal.SIGINT)
    return plain(x)


def lacks(x):
    if x.shape[0] > 3:
        import a_package_that_nobody_has
    return plain(x)


part = functools.partial(plain)
"""
)
LACKING = "import a_package_that_nobody_has\n\n\ndef fn(x):\n    return x\n"


def strict(text: str):
    """Parse JSON as a parser does that knows no NaN and no Infinity."""

    def refuse(constant: str):
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def validated(text: str):
    """A record that satisfies the schema, where jsonschema is there to say so."""
    found = strict(text)
    if find_spec("jsonschema"):
        import jsonschema

        jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


@pytest.fixture
def world(tmp_path, monkeypatch):
    with targets.pretend(tmp_path, monkeypatch, {**targets.WORLD, **targets.FAULTY}):
        (tmp_path / "mine.py").write_text(KERNELS)
        (tmp_path / "lacking.py").write_text(LACKING)
        (tmp_path / "shapes.json").write_text('[{"rows": 16, "cols": 64}]')
        monkeypatch.chdir(tmp_path)
        yield tmp_path


KERNEL = ["check", "softmax", "--quick", "--device=cpu", "--dtypes=float32", "--kernel"]
BENCH = ["bench", "softmax", "--device=cpu", "--dtype=float32", "--seconds=0.01", "--shapes=shapes.json"]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ([*KERNEL, "mine.py:plain"], Status.PASSED),
        ([*KERNEL, "mine.py:zeros"], Status.FAILED),
        ([*KERNEL, "mine.py:blank"], Status.FAILED),
        ([*KERNEL, "mine.py:shy"], Status.FAILED),
        ([*KERNEL, "mine.py:verbose"], Status.FAILED),
        ([*KERNEL, "mine.py:few", "--coverage=0.9"], Status.PARTIAL),
        ([*KERNEL, "mine.py:few", "--coverage=0.1"], Status.PASSED),
        ([*KERNEL, "mine.py:talks", "--require=values"], Status.PASSED),
        ([*KERNEL, "lacking.py:fn"], Status.NOT_RUN),
        ([*KERNEL, "mine.py:interrupts"], Status.INTERRUPTED),
        (["check", "softmax", "--quick", "--backend=paper", "--dtypes=float32"], Status.PASSED),
        (["check", "softmax", "--quick", "--backend=needy"], Status.NOT_RUN),
        ([*BENCH, "--kernel=mine.py:plain"], Status.PASSED),
        ([*BENCH, "--kernel=mine.py:zeros"], Status.FAILED),
        ([*BENCH, "--kernel=mine.py:shy"], Status.FAILED),
        (["bench", "--experiment=list"], Status.PASSED),
        (["list"], Status.PASSED),
        (["list", "softmax", "--for", "rows=3,cols=5", "--arch=sm_90"], Status.PASSED),
        (["doctor"], Status.PASSED),
        (["tune", "softmax"], Status.NOT_RUN),
        (["tune", "softmax", "--best"], Status.NOT_RUN),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(int(value)),
)
def test_every_command_writes_a_record_of_the_schema(world, capfd, arguments, status):
    assert main([*arguments, "--json", "out.json"]) == status
    told = capfd.readouterr().out
    assert "PASSED" not in told or status is Status.PASSED
    found = validated((world / "out.json").read_text())
    assert (found["kind"], found["status"], found["verdict"]) == (arguments[0], status, status.verdict)
    assert found["passed"] == (status == 0) and found["interrupted"] == (status == 130)
    assert main([*arguments, "--json", "-"]) == status
    again = validated(capfd.readouterr().out)
    assert again["command"] == "python -m touchstone " + " ".join([*arguments, "--json", "-"])
    assert [set(each) for each in again["reports"]] == [set(each) for each in found["reports"]]
    assert sorted(path.name for path in world.glob("out.json*")) == ["out.json"]


def test_every_command_of_records_is_tried_above():
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    kinds = set(SCHEMA["properties"]["kind"]["enum"])
    assert kinds == set(commands.choices) - set(JUDGES_NOTHING) | {"pytest", "judge"}
    for name, command in commands.choices.items():
        takes = any("--json" in action.option_strings for action in command._actions)
        assert takes == (name not in (*JUDGES_NOTHING, "judge")), name  # whose records are lines: tests/batch


def test_replay_port_and_bench_compare(world, capsys):
    assert main([*KERNEL, "mine.py:blank", "--json", "first.json"]) == 1
    found = validated((world / "first.json").read_text())["reports"][0]["findings"][0]
    for arguments, status in ((["replay", found["id"]], 1), (["bench", "--compare", "timed.json", "timed.json"], 0)):
        if arguments[0] == "bench":
            assert main([*BENCH, "--kernel=mine.py:plain", "--json", "timed.json"]) == 0
        capsys.readouterr()
        assert main([*arguments, "--json", "-"]) == status
        validated(capsys.readouterr().out)
    assert kept.FILE.exists()


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.needs("triton")
def test_port_and_selftest(tmp_path, capfd):
    for arguments in (
        ["port", "softmax", "--from=triton", "--to=numba", "--variant=onerow"],
        ["selftest", "online_softmax"],
    ):
        assert main([*arguments, "--json", "-"]) == 0
        validated(capfd.readouterr().out)


@pytest.mark.level("default")
@pytest.mark.slow
def test_pytest_writes_the_same(tmp_path):
    (tmp_path / "mine.py").write_text("import torch\n" + KERNELS)
    words = ["-m", "pytest", "-p", "touchstone.pytest", "-q", "-n0", "--rootdir=.", "--op=softmax", "--device=cpu"]
    words += ["--quick", "--dtypes=float32"]
    for name, status in (("plain", Status.PASSED), ("blank", Status.FAILED)):
        done = processes.run_touchstone([*words, f"--kernel=mine.py:{name}", "--json=-"], tmp_path)
        found = validated(done.stdout)
        assert (found["kind"], found["status"], done.returncode) == ("pytest", status, status), done.stderr
        (report,) = found["reports"]
        assert report["source"]["sha256"] == hashlib.sha256((tmp_path / "mine.py").read_bytes()).hexdigest()
        counts = report["coverage"]
        assert counts["trials"] == len(report["outcomes"]) + counts["not_run"] and counts["judged"] > 5
        assert "worst error / budget" in done.stderr
    done = processes.run_touchstone([*words, "--kernel=mine.py:plain", "--json=-", "-s"], tmp_path)
    assert done.returncode == 4 and done.stdout == "" and "--json -: goes with no -s" in done.stderr
    done = processes.run_touchstone([*words, "--kernel=mine.py:plain", "--json=nowhere/a.json"], tmp_path)
    assert done.returncode == 4 and "--json: there is no folder nowhere" in done.stderr
    done = processes.run_touchstone([*words, "--kernel=mine.py:plain", "--json=/dev/full"], tmp_path)
    assert done.returncode == 3 and "FAILED: --json: /dev/full: No space left on device" in done.stdout
    (tmp_path / "interrupting.py").write_text(
        "def pytest_runtest_logreport(report):\n"
        "    if report.when == 'call' and 'property' in report.nodeid:\n        raise KeyboardInterrupt\n"
    )
    done = processes.run_touchstone([*words, "--kernel=mine.py:plain", "--json=-", "-p", "interrupting"], tmp_path)
    found = validated(done.stdout)
    assert (found["verdict"], found["interrupted"]) == ("interrupted", True)
    (report,) = found["reports"]
    assert report["interrupted"] and report["verdict"] == "interrupted"
    assert report["coverage"]["reasons"]["not_run"]["interrupted"] > 0


def test_two_that_write_one_file_at_once_leave_a_whole_record(tmp_path, monkeypatch):
    path, synced = tmp_path / "out.json", []
    monkeypatch.setattr(os, "fsync", synced.append)
    made = [records.Record("check", str(path), reason=letter * 4000) for letter in "ab"]
    with ThreadPoolExecutor() as pool:
        writing = [pool.submit(record.write) for record in made * 40]
        for each in writing:
            each.result()
            assert json.loads(path.read_text())["reason"] in ("a" * 4000, "b" * 4000)
    assert len(synced) == len(writing) and os.listdir(tmp_path) == ["out.json"]


def test_an_interrupted_run_keeps_what_was_known(world, capfd):
    assert main([*KERNEL, "mine.py:interrupts", "--json", "out.json"]) == 130
    out, err = capfd.readouterr()
    assert (
        re.search(r"^INTERRUPTED; judged on \d+ of \d+ trials, ", out, re.MULTILINE)
        and "PASSED" not in out
        and err.endswith("interrupted\n")
    )
    (report,) = validated((world / "out.json").read_text())["reports"]
    assert (report["verdict"], report["interrupted"], report["passed"]) == ("interrupted", True, False)
    counts = report["coverage"]
    assert counts["judged"] == len(report["outcomes"]) >= 1
    reasons = counts["reasons"]["not_run"]
    assert reasons["interrupted"] == counts["trials"] - reasons["left out by dtypes"] - counts["judged"] > 0
    assert sum(reasons.values()) == counts["not_run"] == counts["trials"] - counts["judged"]


def test_an_interrupted_bench_keeps_the_groups_that_were_timed(world, capsys):
    (world / "shapes.json").write_text('[{"rows": 16, "cols": 64}, {"rows": 8, "cols": 64}]')
    here = ["--isolate=none", "--no-baselines"]  # where the kernel can stand for Ctrl-C
    assert main([*BENCH, "--kernel=mine.py:stops", *here, "--json", "out.json"]) == 130
    found = validated((world / "out.json").read_text())
    assert (found["verdict"], found["interrupted"]) == ("interrupted", True)
    assert [(row["sizes"]["rows"], row["status"]) for row in found["results"]] == [(16, "measured")]
    assert [report["coverage"]["passed"] for report in found["reports"]] == [1]


def test_what_cannot_be_run_here_is_not_covered(world, capsys):
    assert main([*KERNEL, "mine.py:lacks", "--coverage=0.9", "--json", "out.json"]) == Status.PARTIAL
    (report,) = validated((world / "out.json").read_text())["reports"]
    assert report["coverage"]["fraction"] < 0.9 and report["coverage"]["declined"] == 0
    assert "No module named 'a_package_that_nobody_has'" in report["coverage"]["reasons"]["not_run"]


def test_a_kernel_that_declines_much_is_partial(world, capsys):
    assert main([*KERNEL, "mine.py:few", "--coverage=0.9", "--json", "out.json"]) == Status.PARTIAL
    assert re.search(r"^PARTIAL: coverage \d+\.\d%, less than the 90\.0% asked", capsys.readouterr().out, re.MULTILINE)
    (report,) = validated((world / "out.json").read_text())["reports"]
    counts = report["coverage"]
    assert report["verdict"] == "partial" and not report["passed"] and not report["findings"]
    assert counts["reasons"]["declined"] == {"up to three rows": counts["declined"]}
    single = plan(registry.contract("softmax"), "quick").also  # which do not count, nor do calls of other lengths
    counted = counts["declined"] - 1 - sum(case.size["rows"] > 3 and case.dtype == "float32" for case in single)
    judged = counts["judged"] - counts["again"]
    assert counts["fraction"] == judged / (judged + counted) < counts["least"] == 0.9
    for share in ("1.5", "-0.1", "nan"):
        assert main([*KERNEL, "mine.py:few", f"--coverage={share}"]) == Status.USAGE
        assert "--coverage: expected a share from 0 to 1" in capsys.readouterr().err
    assert main(["check", "softmax", "--backend=paper", "--coverage=0.5"]) == Status.USAGE


def test_a_kernel_that_failed_before_the_interruption_has_failed(world, capfd):
    assert main([*KERNEL, "mine.py:strays", "--json", "out.json"]) == 130
    found = validated((world / "out.json").read_text())
    assert (found["verdict"], found["reports"][0]["verdict"]) == ("interrupted", "failed")
    assert found["reports"][0]["interrupted"]


def test_what_a_finding_says(world, capsys):
    assert main([*KERNEL, "mine.py:blank", "--json", "out.json"]) == 1
    (report,) = validated((world / "out.json").read_text())["reports"]
    assert report["worst"] == report["outputs"]["y"] == "Infinity"
    trials = {outcome["trial"] for outcome in report["outcomes"]}
    groups = {group["id"]: group for group in report["groups"]}
    ids = [finding["id"] for finding in report["findings"]]
    assert ids and {finding["trial"] for finding in report["findings"]} <= trials
    for finding in report["findings"]:
        assert finding["check"] and finding["message"] and finding["severity"] in ("failure", "note")
        group = groups[finding["group"]]
        assert (group["check"], group["requirement"]) == (finding["check"], finding["requirement"])
    assert sum(group["count"] for group in groups.values()) == len(ids)
    assert {group["example"] for group in groups.values()} <= set(ids)
    assert {finding["about"] for finding in report["findings"]} == {"y"}


def test_texts_of_a_kernel_are_capped(world, capsys):
    assert main([*KERNEL, "mine.py:verbose", "--json", "out.json"]) == 1
    (report,) = validated((world / "out.json").read_text())["reports"]
    lengths = [len(finding["message"]) for finding in report["findings"]]
    assert max(lengths) <= records.LONGEST
    assert records.capped("x" * 4096) == "x" * 4096 and len(records.capped("x" * 4097) or "") == 4096
    assert records.capped(None) is None


def test_a_root_cause_has_one_id_in_every_run():
    def finding(message, identifier="0" * 8):
        return Finding(identifier, "failure", "raised", "float32-3x33-normal (seed 0)", message, raised="ValueError")

    first, second = Group([finding("x.py:7: 12 is odd")]), Group([finding("x.py:7: 14 is odd", "1" * 8)])
    assert first.id == second.id and re.fullmatch("[0-9a-f]{8}", first.id)
    assert Group([finding("x.py:8: 12 is odd")]).id != first.id


def test_numbers_that_json_does_not_have():
    given = {"a": [math.inf, -math.inf, math.nan, 1.5], "b": np.float32(2), "c": np.int64(3), "d": np.float64("inf")}
    assert strict(records.dumps(given)) == {
        "a": ["Infinity", "-Infinity", "NaN", 1.5],
        "b": 2.0,
        "c": 3,
        "d": "Infinity",
    }
    assert "\n" not in records.dumps({"text": "two\nlines", "more": [1, 2]})
    assert strict(records.dumps({"text": "\udc80"})) == {"text": "\\udc80"}  # a file name that is no UTF-8
    assert strict(records.dumps({1: True, None: torch.float32})) == {"1": True, "None": "torch.float32"}


def test_a_record_is_read_as_it_was(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(records.dumps({"format": records.FORMAT, "worst": [math.inf, 0.5], "note": "law of numbers"}))
    assert records.read(path) == {"format": records.FORMAT, "worst": [math.inf, 0.5], "note": "law of numbers"}
    path.write_text('{"lane": "triton@cpu", "worst": Infinity}')  # as records were before they had a format
    assert records.read(path) == {"target": "triton@cpu", "worst": math.inf}


def test_the_report_of_check_gives_the_same_record():
    found = validated(check("softmax", torch.relu, device="cpu", level="quick", dtypes=["float32"]).to_json())
    assert (found["kind"], found["verdict"], len(found["reports"])) == ("check", "failed", 1)
    assert found["machine"]["device"] == "cpu" and found["seed"] == 0


def test_which_source_was_judged(world, tmp_path, capsys):
    text = (world / "mine.py").read_bytes()
    for name in ("plain", "part"):
        assert main([*KERNEL, f"mine.py:{name}", "--json", "out.json"]) == 0
        (report,) = validated((world / "out.json").read_text())["reports"]
        assert report["source"] == {"file": "mine.py", "function": name, "sha256": hashlib.sha256(text).hexdigest()}
    folder = tmp_path / "kernel"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "a.cu").write_text("a")
    first = source.digest(folder)
    (folder / "__pycache__" / "a.pyc").write_text("compiled")
    assert source.digest(folder) == first
    (folder / "a.cu").rename(folder / "b.cu")
    assert source.digest(folder) != first
    assert source.digest(tmp_path / "absent") is None


def test_enumerations_of_the_schema_are_those_of_the_code():
    defs = SCHEMA["$defs"]
    verdicts = {status.verdict: int(status) for status in Status if status.verdict}
    assert defs["verdict"]["enum"] == list(verdicts)
    assert SCHEMA["properties"]["status"]["enum"] == list(verdicts.values())
    assert {
        each["properties"]["verdict"]["const"]: each["properties"]["status"]["const"] for each in SCHEMA["oneOf"]
    } == (verdicts)
    assert defs["requirement"]["enum"] == [str(each) for each in Requirement]
    assert defs["outcome"]["properties"]["kind"]["enum"] == [str(kind) for kind in Kind]
    assert defs["text"]["maxLength"] == records.LONGEST
    assert SCHEMA["properties"]["format"]["const"] == records.FORMAT


@pytest.mark.needs("jsonschema")
def test_the_schema_is_one_and_closed(capsys):
    import jsonschema

    assert main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == SCHEMA
    jsonschema.Draft202012Validator.check_schema(printed)
    whole = records.Record("list", status=Status.PASSED, entries={"ladders": {}}).to_dict()
    validator = jsonschema.Draft202012Validator(printed)
    assert validator.is_valid(strict(records.dumps(whole)))
    for change in ({"extra": 1}, {"status": 1}, {"interrupted": True}, {"format": 1}, {"verdict": "fine"}):
        assert not validator.is_valid(strict(records.dumps(whole | change))), change
    for name in whole:
        assert not validator.is_valid({k: v for k, v in strict(records.dumps(whole)).items() if k != name}), name


def test_the_table_of_exit_statuses():
    page = (registry.ROOT / "docs" / "records.md").read_text()
    rows = {int(number): verdict for number, verdict in re.findall(r"^\| (\d+) \| ([^|]*?) \|", page, re.MULTILINE)}
    assert rows == {int(status): status.verdict or "-" for status in Status}
    for status in Status:
        assert f"{int(status)} {status.about}" in EXPLAINED
    told = " ".join(parser().format_help().split())
    assert " ".join(EXPLAINED.split()) in told


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        (["passed", "passed"], Status.PASSED),
        (["passed", "not run"], Status.PASSED),
        (["not run"], Status.NOT_RUN),
        (["passed", "partial", "not run"], Status.PARTIAL),
        (["partial", "failed"], Status.FAILED),
        (["failed", "interrupted"], Status.INTERRUPTED),
        ([], Status.FAILED),
    ],
)
def test_the_status_of_several_kernels(verdicts, status):
    assert Status.combined(verdicts) is status


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_the_machines_fault(world, capsys):
    assert main(["list", "--json", "/dev/full"]) == Status.NOT_RUN
    assert "--json: /dev/full: No space left on device" in capsys.readouterr().err
    assert main([*BENCH, "--kernel=mine.py:plain", "--csv=/dev/full", "--json=out.json"]) == Status.NOT_RUN
    assert "No space left on device" in capsys.readouterr().err
    found = validated((world / "out.json").read_text())
    assert found["verdict"] == "not run" and "No space left on device" in found["reason"]
    assert main([*BENCH, "--kernel=mine.py:plain", "--json=out.json"]) == Status.PASSED
    assert main(["report", "out.json", "-o", "/dev/full"]) == Status.NOT_RUN


def test_a_record_goes_into_a_pipe_and_through_a_link(world, capsys):
    (world / "real.json").write_text("old")
    (world / "link.json").symlink_to("real.json")
    assert main(["list", "--json", "link.json"]) == 0
    assert (world / "link.json").is_symlink()
    validated((world / "real.json").read_text())
    assert main(["list", "--json", os.devnull]) == 0
    assert not os.path.isfile(os.devnull)


@pytest.mark.parametrize("path", ["", "."])
def test_what_is_no_file_is_wrong_usage(world, capsys, path):
    assert main(["list", f"--json={path}"]) == Status.USAGE
    assert "--json: expected the name of a file" in capsys.readouterr().err


@pytest.mark.level("default")
@pytest.mark.slow
def test_standard_output_is_the_records_alone(tmp_path):
    """Neither a kernel nor a child process writes there, and no forked child has a descriptor of it."""
    code = """
import os, subprocess, sys
from touchstone.conformance.reporting.record import standard_output_kept

def same(descriptor):
    try:
        return os.fstat(descriptor).st_ino == real
    except OSError:
        return False

real = os.fstat(1).st_ino
with standard_output_kept() as stream:
    print("printed"); os.write(1, b"written"); subprocess.run(["echo", "echoed"], check=True)
    child = os.fork()
    if not child:
        os._exit(sum(map(same, range(64))))
    stream.write(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
print(" after")
"""
    done = processes.run_touchstone(["-c", code], tmp_path)
    assert (done.stdout, done.returncode) == ("0 after\n", 0), done.stderr
    assert all(word in done.stderr for word in ("printed", "written", "echoed"))
    (tmp_path / "mine.py").write_text("import torch\n" + KERNELS)
    done = processes.run_touchstone(["-m", "touchstone", *KERNEL, "mine.py:talks", "--json", "-"], tmp_path)
    found = validated(done.stdout)
    assert found["verdict"] == "passed" and "said by the kernel" in done.stderr and "PASSED" in done.stderr


@pytest.mark.slow
def test_a_reader_that_leaves_early(tmp_path):
    command = f'"{sys.executable}" -m touchstone list --json - | true; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], env=processes.with_touchstone(), capture_output=True, text=True)
    assert "Traceback" not in done.stderr and done.returncode in (0, 141)
