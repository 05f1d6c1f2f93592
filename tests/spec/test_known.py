"""Files of what is known of a kernel: what is skipped, and what is expected to fail."""

import json
import re

import pytest
import torch

from tests import processes
from tests.fixed import changeable
from touchstone import check
from touchstone.conformance.cli import main
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec import known

FILE = """
[[skip]]
op = "softmax"
where = "cols > 100"
reason = "slow"

[[expected]]
op = "softmax"
where = "dtype == 'float16'"
{check}
reason = "ticket 12"

[[expected]]
op = "matmul"
where = "M > 100"
reason = "another op"
"""
QUICK = {"device": "cpu", "level": "quick", "isolate": "none"}


def softmax(x):
    return torch.softmax(x.double(), -1).to(x.dtype).contiguous()


def wrong_in_half(x):
    y = softmax(x)
    return y * 1.01 if x.dtype == torch.float16 else y


def strided(x):
    return softmax(x).t().contiguous().t() if x.dtype == torch.float16 else softmax(x)


@pytest.fixture
def file(tmp_path):
    def written(text):
        path = tmp_path / "known.toml"
        path.write_text(text)
        return path

    return written


def test_expected_failures_are_told_and_do_not_decide(file):
    report = check("softmax", wrong_in_half, known=file(FILE.format(check='check = "values"')), **QUICK)
    assert report.passed and report.not_run["left out by known: slow"] > 0, str(report)
    noted = [finding for finding in report.findings if finding.severity == "note" and finding.check == "values"]
    assert noted and all(finding.message.startswith("expected (ticket 12): ") for finding in noted)
    assert not check("softmax", wrong_in_half, **QUICK).passed


def test_another_failure_than_the_expected_one_fails(file):
    report = check("softmax", strided, known=file(FILE.format(check='check = "values"')), **QUICK)
    assert not report.passed and {finding.check for finding in report.failures} >= {"strides"}
    assert check("softmax", strided, known=file(FILE.format(check="")), **QUICK).passed


def test_an_expected_failure_that_does_not_come_fails(file):
    report = check("softmax", softmax, known=file(FILE.format(check="")), **QUICK)
    assert not report.passed and not report.failures
    assert "FAILED: expected to fail (ticket 12), and passed in all " in report.summary()
    assert report.to_dict()["surprises"] == report.surprises and len(report.surprises) == 1


def test_an_expectation_about_cases_that_are_not_judged_says_nothing(file):
    report = check("softmax", softmax, known=file(FILE.format(check="")), dtypes=["float32"], **QUICK)
    assert report.passed and report.surprises == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[skip", "cannot be read: "),
        (f"a = {'[' * 10_000}{']' * 10_000}", "cannot be read: its lists and tables are nested too deeply"),
        (f"a = {'1' * 5000}", "cannot be read: Exceeds the limit"),
        (
            '[[skip]]\nop = "softmax"\nwhere = "cols > 1"\nreason = "\\u001b[2JPASSED"',
            r"skip 1: reason: expected printable text, got '\x1b[2JPASSED'",
        ),
        ("skips = 1", "'skips' is not one of skip, expected; did you mean 'skip'?"),
        ("skip = 1", "expected tables [[skip]], got skip = 1"),
        ('[[skip]]\nop = "softmax"\nwhere = "cols > 1"', "skip 1: reason: expected a text, got None"),
        ('[[skip]]\nop = "softmax"\nreason = "r"\nwhen = "x"', "skip 1: 'when' is not one of op, where, reason"),
        ('[[skip]]\nop = "softmax"\nreason = "r"\nwhere = "colls > 1"', "skip 1: where: 'colls' is no name of a case"),
        (
            '[[expected]]\nop = "softmax"\nreason = "r"\nwhere = "cols > 1"\ncheck = "value"',
            "expected 1: check: 'value' is not one of ",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named(file, text, said):
    with pytest.raises(ValueError, match=f"known.toml.*{re.escape(said)}"):
        known.read(file(text), registry.contract("softmax"))


def test_a_reason_of_several_lines_is_told_in_one(file):
    text = '[[skip]]\nop = "softmax"\nwhere = "cols > 1"\nreason = """slow:\n  minutes"""'
    assert [rule.reason for rule in known.read(file(text), registry.contract("softmax")).skip] == ["slow: minutes"]


def test_the_command_takes_a_file(file, tmp_path, capsys):
    (tmp_path / "kernel.py").write_text(
        "import torch\n\ndef softmax(x):\n    return torch.softmax(x, -1).contiguous()\n"
    )
    command = ["check", "softmax", "--kernel", f"{tmp_path}/kernel.py:softmax", "--device", "cpu", "--quick"]
    assert main([*command, "--dtypes", "float32", "--known", str(file(FILE.format(check="")))]) == 0
    assert "left out by known: slow" in capsys.readouterr().out
    assert main([*command, "--known", str(tmp_path / "nothing.toml")]) == 2
    assert "--known: " in capsys.readouterr().err
    assert main(["check", "softmax", "--known", "known.toml"]) == 2


KERNELS = """
import torch

def right(x):
    return torch.softmax(x.double(), -1).to(x.dtype).contiguous()

def wrong(x):
    return right(x) * (1.01 if x.dtype == torch.float16 else 1)
"""


@pytest.mark.level("default")
@pytest.mark.slow
def test_pytest_takes_a_file_as_check_does(file, tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    known = ["--known", str(file(FILE.format(check='check = "values"')))]
    command = ["-m", "pytest", "-p", "touchstone.pytest", "-p", "no:cacheprovider", "--op=softmax", "--device=cpu"]
    command += ["--quick", "--dtypes=float16,float32", "--json=out.json"]

    def judged(function, *more):
        done = processes.run_touchstone([*command, f"--kernel=kernels.py:{function}", "-n0", *more], tmp_path)
        (report,) = json.loads((tmp_path / "out.json").read_text())["reports"]
        return done, report

    done, report = judged("wrong", *known, "-n2")  # what workers saw is summed up
    assert done.returncode == 0 and re.search(r"\d+ passed, \d+ xfailed", done.stdout), done.stdout + done.stderr
    assert report["verdict"] == "passed" and report["coverage"]["reasons"]["not_run"]["left out by known: slow"] > 0
    noted = [finding["message"] for finding in report["findings"] if finding["check"] == "values"]
    assert noted and all(message.startswith("expected (ticket 12): ") for message in noted)
    assert judged("wrong")[0].returncode == 1
    done, report = judged("right", *known)
    assert done.returncode == 1 and "expected to fail (ticket 12), and passed in all " in done.stdout
    assert report["verdict"] == "failed" and len(report["surprises"]) == 1
    done = processes.run_touchstone([*command, *known], tmp_path)
    assert done.returncode == 4 and "--known goes with --kernel" in done.stderr
    done = processes.run_touchstone([*command, "--kernel=kernels.py:right", "--known=no.toml"], tmp_path)
    assert done.returncode == 4 and "--known: no.toml cannot be read: " in done.stderr


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(known.Rule, known.Known) == []
