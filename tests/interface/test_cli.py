"""`python -m touchstone`: what each command prints, its exit status, and what it says to wrong arguments."""

import argparse
import io
import json
import re
import subprocess
import sys

import pytest

from tests import processes, targets
from touchstone.conformance.cli import main, parser
from touchstone.conformance.discovery import options, registry, selection
from touchstone.conformance.reporting import console
from touchstone.conformance.reporting.console import Table, fraction_text, progress, show
from touchstone.conformance.suite import plugin

ESCAPE = "\x1b["


@pytest.fixture
def world(tmp_path, monkeypatch):
    with targets.pretend(tmp_path, monkeypatch, {**targets.WORLD, **targets.FAULTY}):
        yield tmp_path


@pytest.fixture
def run(world, capsys):
    """Run a command on the made-up backends: exit status, output, errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        return (status, *capsys.readouterr())

    return call


def test_list(run, tmp_path):
    status, out, _ = run("list", "--json", str(tmp_path / "list.json"))
    assert status == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert "plain folded gilded" in rows["softmax"]
    assert rows["matmul"].split().count("-") > 3
    assert ESCAPE not in out
    record = json.loads((tmp_path / "list.json").read_text())
    assert record["ladders"]["softmax"]["paper"] == ["plain", "folded", "gilded"]
    assert "blank" not in record["ladders"]["softmax"]


def test_doctor(run, tmp_path):
    status, out, _ = run("doctor", "--json", str(tmp_path / "doctor.json"))
    assert status == 0
    lines = {line.split()[0]: line for line in out.splitlines() if "@" in line}
    assert lines["paper@cpu"].split() == ["paper@cpu", "yes"]
    assert lines["quill@cpu"].endswith("quill is not installed: pip install quill")
    assert "no kernels" in lines["blank@cpu"]
    assert re.search(r"^paper +ink +blue +refill on Mondays$", out, re.MULTILINE)
    assert re.search(r"^torch +\d", out, re.MULTILINE)
    record = json.loads((tmp_path / "doctor.json").read_text())
    assert record["targets"]["paper@cuda"] is None
    assert record["targets"]["slate@cpu"] == "slate wants a GPU"
    _, containment = out.split("containment of untrusted kernels")
    assert record["containment"] and all(words[:40] in containment for words in record["containment"])


def test_check_of_right_variants(run, tmp_path):
    status, out, err = run(
        "check", "softmax", "--backend=paper,chalk", "--quick", "--json", str(tmp_path / "check.json")
    )
    assert status == 0, err
    rows = {tuple(line.split()[1:3]): line.split() for line in out.splitlines() if line.startswith("softmax  ")}
    assert rows["paper@cpu", "plain"][3] == "passed"
    assert rows["chalk@cpu", "plain"][3] == "passed"
    assert rows["paper@cpu", "gilded"][3:5] == ["not", "run"]
    assert "softmax gilded not run: needs sm_999; this is plain" in out
    assert "softmax folded: computes in tf32" in out
    assert "level quick, seed 0" in out
    assert ESCAPE not in out
    reports = json.loads((tmp_path / "check.json").read_text())["reports"]
    assert {(r["target"], r["name"], r["verdict"]) for r in reports} == {
        ("paper@cpu", "plain", "passed"),
        ("paper@cpu", "folded", "passed"),
        ("paper@cpu", "gilded", "not run"),
        ("chalk@cpu", "plain", "passed"),
    }


@pytest.mark.slow
def test_check_says_what_is_skipped(run, world):
    for name in targets.FAULTY:
        (world / "backends" / name / "softmax.py").write_text(targets.PLAIN)
    status, out, _ = run("check", "softmax", "--quick")
    assert status == 0
    assert "quill@cpu skipped: quill is not installed: pip install quill" in out
    assert "slate@cpu skipped: slate wants a GPU" in out


@pytest.mark.slow
def test_check_of_a_wrong_variant(run):
    status, out, _ = run("check", "softmax", "--backend=paper,wrong", "--quick")
    assert status == 1
    assert "softmax: plain on wrong@cpu" in out
    assert "values: y: " in out
    assert re.search(r"^softmax +wrong@cpu +plain +failed", out, re.MULTILINE)
    assert re.search(r"^softmax +paper@cpu +plain +passed", out, re.MULTILINE)


@pytest.mark.parametrize(("backend", "status"), [("needy", 3), ("shy", 1)])
def test_check_that_judged_nothing_does_not_pass(run, backend, status):
    """For want of hardware it is not run; a kernel that declines everything fails."""
    assert run("check", "softmax", f"--backend={backend}", "--quick")[0] == status


def test_check_counts_what_is_over_the_ceiling(run, monkeypatch):
    monkeypatch.setitem(selection.CEILING_SECONDS, "quick", 1e-6)
    status, out, _ = run("check", "softmax", "--backend=paper", "--variant=plain", "--quick")
    assert status == 0
    assert re.search(r"^\d+ cases not run: over the target's limit of work$", out, re.MULTILINE)


def test_check_takes_several_ops_and_a_seed(run):
    status, out, _ = run("check", "softmax", "--backend=paper", "--variant=plain", "--quick", "--seed", "7")
    assert status == 0
    assert "seed 7" in out


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(targets.PLAIN + "\n\ndef zeros(x):\n    return torch.zeros_like(x)\n")
    return path


def test_check_of_a_kernel_of_ones_own(run, kernel, tmp_path):
    status, out, _ = run(
        "check", "softmax", f"--kernel={kernel}:plain", "--quick", "--json", str(tmp_path / "report.json")
    )
    assert status == 0
    assert "softmax: plain on user@cpu" in out
    assert out.splitlines()[-1].startswith("PASSED; judged on ")
    assert json.loads((tmp_path / "report.json").read_text())["passed"] is True
    status, out, _ = run("check", "softmax", f"--kernel={kernel}:zeros", "--quick")
    assert status == 1
    assert out.splitlines()[-1].startswith("FAILED")


def test_what_is_required_of_a_kernel_of_ones_own(run, kernel):
    kernel.write_text(kernel.read_text() + "\n\ndef dense(x):\n    assert x.is_contiguous()\n    return plain(x)\n")
    status, out, _ = run("check", "softmax", f"--kernel={kernel}:dense", "--quick")
    assert status == 1
    assert re.search(r"^layouts +fails ", out, re.MULTILINE)
    status, out, _ = run("check", "softmax", f"--kernel={kernel}:dense", "--quick", "--require", "values,empty")
    assert status == 0
    assert out.splitlines()[-1].startswith("PASSED (required: values, empty; ")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("def fn(x):\n    import a_missing_package", "No module named 'a_missing_package'"),
        ("import a_missing_package\n\ndef fn(x):\n    pass", "does not import: No module named 'a_missing_package'"),
        ("from touchstone.backends import NotRun\n\ndef fn(x):\n    raise NotRun('no j0')", "no j0"),
    ],
)
def test_a_kernel_that_cannot_run_here_has_a_status_of_its_own(run, kernel, body, why):
    kernel.write_text(body + "\n")
    status, out, _ = run("check", "softmax", f"--kernel={kernel}:fn", "--quick")
    assert status == 3
    assert "NOT RUN: " in out.splitlines()[-1]
    assert why in out.splitlines()[-1]


def test_check_of_a_kernel_with_a_declared_precision(run, kernel):
    status, out, _ = run("check", "softmax", f"--kernel={kernel}:plain", "--quick", "--compute=tf32", "--outputs=y")
    assert status == 0
    assert "computes in tf32" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["check", "softmaks"], "op: 'softmaks' is not one of matmul, softmax; did you mean 'softmax'?"),
        (["check", "--backend=papper"], "--backend: 'papper' is not one of blank, "),
        (["check", "--backend=papper"], "; did you mean 'paper'?"),
        (["list", "softmaks"], "op: 'softmaks' is not one of matmul, softmax; did you mean 'softmax'?"),
        (["check", "softmax", "--quick", "--thorough"], "--quick and --thorough: give one of the two"),
        (["check", "softmax", "--quick", "--level=default"], "--quick and --level=default: give one of the two"),
        (["check", "--device=cpu", "--device", "cuda"], "--device=cpu and --device=cuda: give one of the two"),
        (["check", "--backend=paper", "--backend=chalk"], "give them together: --backend=paper,chalk"),
        (["check", "softmax", "--dtypes=float61"], "--dtypes: 'float61' is not one of float32, float16, bfloat16"),
        (["check", "softmax", "--sizes=col=3"], "--sizes: 'col' is not one of rows, cols; did you mean 'cols'?"),
        (["check", "softmax", "--sizes=cols=31"], "--sizes: no case of softmax at level default has cols=31"),
        (["check", "softmax", "--where=colz > 3"], "--where: 'colz' is no name of a case of softmax"),
        (["check", "softmax", "--where=cols < dtype"], "--where: 'cols < dtype' has no value for"),
        (["check", "softmax", "--where=cols < 0"], "--where='cols < 0' leaves none of the "),
        (["check", "softmax", "--where=cols > 1000", "--sizes=rows=0"], "leave none of the "),
        (["check", "softmax", "--backend=paper", "--variant=onlin"], "--variant: 'onlin' is no variant of softmax"),
        (["check", "softmax", "--backend=paper", "--variant=plan"], "; did you mean 'plain'?"),
        (["check", "--level=slow"], "--level: expected one of quick, default, thorough, got 'slow'"),
        (["check", "--level=quik"], "; did you mean 'quick'?"),
        (["check", "--device=gpu"], "--device: expected auto, cpu or cuda, got 'gpu'"),
        (["check", "--backend=chalksim", "--device=cuda"], "--backend=chalksim means --device=cpu"),
        (["check", "softmax", "--kernel=mine.txt:fn"], "--kernel: expected file.py:function"),
        (["check", "softmax", "--kernel=nowhere.py:fn"], "--kernel: there is no file nowhere.py"),
        (["check", "--kernel=KERNEL:plain"], "--kernel: needs op with the one op"),
        (["check", "softmax", "--kernel=KERNEL:gone"], "--kernel: "),
        (["check", "softmax", "--kernel=KERNEL:plain", "--compute=fp8"], "--compute: expected one of"),
        (["check", "softmax", "--kernel=KERNEL:plain", "--outputs=z"], "--outputs: 'z' is not one of y"),
        (["check", "softmax", "--kernel=KERNEL:plain", "--require=speed"], "--require: 'speed' is not one of values, "),
        (["check", "softmax", "--kernel=KERNEL:plain", "--require="], "--require: expected one or more of values, "),
        (["check", "softmax", "--kernel=KERNEL:plain", "--allow-library"], "--allow-library: goes with --untrusted; "),
        (
            ["check", "softmax", "--backend=paper", "--allow-library"],
            "--untrusted and --allow-library go with --kernel",
        ),
        (["check", "softmax", "--kernel=KERNEL:plain", "--untrusted", "--isolate=spawn"], "got --isolate spawn"),
        (["check", "softmax", "--backend=paper", "--strict"], "--require and --strict go with --kernel"),
        (["check", "matmul", "--kernel=KERNEL:plain"], "--kernel: plain(x): matmul is called as fn(a, b); too many"),
        (["check", "softmax", "--backend=paper", "--compute=tf32"], "--compute and --outputs go with --kernel"),
        (["check", "softmax", "--backend=broken"], "backends/broken/softmax: ModuleNotFoundError"),
        (["check", "softmax", "--backend=paper", "--isolate=box"], "--isolate: expected one of"),
        (["check", "softmax", "--timeout=0"], "--timeout: expected a positive number"),
        (["check", "softmax", "--json=nowhere/check.json"], "--json: there is no folder nowhere"),
        (["tune", "softmax", "--backend=chalksim"], "=chalksim means the CPU, but tuning needs a GPU; drop it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_named(run, kernel, arguments, told):
    status, out, err = run(*(argument.replace("KERNEL", str(kernel)) for argument in arguments))
    assert status == 2
    assert told in err
    assert err.startswith(f"python -m touchstone {arguments[0]}: ")
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["check", "--backend=quill"], "pip install quill"),
        (["check", "--device=cuda"], "--device=cuda: no GPU in this story; use --device=cpu"),
        (["tune", "softmax"], "tuning needs a GPU: no GPU in this story"),
        (["bench", "softmax", "--device=cuda"], "--device=cuda: no GPU in this story; use --device=cpu"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_machine_lacks_is_not_the_arguments_fault(run, world, arguments, told):
    status, out, err = run(*arguments, "--json", str(world / "out.json"))
    assert (status, out) == (3, "")
    assert told in err and err.startswith(f"python -m touchstone {arguments[0]}: ") and "Traceback" not in err
    record = json.loads((world / "out.json").read_text())
    assert (record["verdict"], record["status"], record["reports"]) == ("not run", 3, [])
    assert told in record["reason"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "required: COMMAND"),
        (["chek"], "COMMAND: 'chek' is not one of list, doctor, check"),
        (["chek", "softmax"], "; did you mean 'check'?"),
        (["check", "--seed=x"], "--seed: invalid int value"),
        (["check", "--nonsense"], "check: error: unrecognized arguments: --nonsense"),
        (["check", "--bakend=triton"], "unrecognized arguments: --bakend=triton; did you mean '--backend'?"),
        (["check", "--op", "softmax"], "unrecognized arguments: --op; ops come without an option: check OP"),
    ],
)
def test_what_the_parser_refuses(run, arguments, told, capsys):
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "usage: python -m touchstone" in err
    assert told in err


def test_equal_options_do_not_contradict(run):
    arguments = ("--backend=paper", "--variant=plain", "--device=cpu", "--device", "cpu", "--quick", "--level=quick")
    assert run("check", "softmax", *arguments, "--dtypes=float16")[0] == 0


def test_list_takes_ops(run):
    status, out, _ = run("list", "softmax", "--markdown")
    assert status == 0
    assert [line.split()[1] for line in out.splitlines()[2:]] == ["softmax"]


def test_check_of_some_cases(run, kernel):
    for which in (["--backend=paper", "--variant=plain"], [f"--kernel={kernel}:plain"]):
        status, out, _ = run("check", "softmax", *which, "--quick", "--dtypes=float16", "--where=cols < 100")
        assert status == 0, out
        assert "left out by dtypes" in out
        assert "left out by where" in out
        assert "float32" not in out
    status, out, _ = run("check", "softmax", "--backend=paper", "--variant=plain", "--quick", "--sizes", "rows=3,17")
    assert status == 0
    (line,) = re.findall(r"^\d+ cases not run: .*$", out, re.MULTILINE)
    assert line.endswith("left out by sizes")


def test_every_command_and_every_option_explains_itself():
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert {action.dest for action in commands._choices_actions if action.help} == set(commands.choices)
    for name, command in commands.choices.items():
        assert command.description and command.description.endswith("."), name
        for action in command._actions:
            assert action.help, f"{name} {action.option_strings or action.dest}"
            value = action.nargs != 0 and action.choices is None
            assert action.metavar or not value, f"{name} {action.dest}: no word for its value"


def test_a_shared_option_is_the_same_in_pytest_and_in_commands():
    told = {}

    class Group:
        addoption = staticmethod(lambda name, **about: told.update({name: about}))
        getgroup = staticmethod(lambda *names: Group)

    plugin.pytest_addoption(Group)
    assert set(told) <= set(options.SHARED)
    same = ("--backend", "--variant", "--device", "--kernel", "--arrays", "--op-file", "--quick", "--seed")
    for name in (*same, "--dtypes", "--sizes", "--where"):
        assert told[name] == options.SHARED[name], name


def test_tune_without_a_space(run, monkeypatch):
    monkeypatch.setattr(selection, "cuda_unavailable", lambda: None)
    status, _, err = run("tune", "softmax", "--backend=paper")
    assert status == 2
    assert "nothing to tune: no selected variant of softmax declares a space" in err


@pytest.mark.slow
def test_the_real_thing_from_another_folder(tmp_path):
    done = processes.run_python(["-m", "touchstone", "list"], tmp_path, environment={"PYTHONPATH": str(registry.ROOT)})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    rows = {line.split()[0] for line in done.stdout.splitlines()[3:] if line and line[0] != " "}
    assert rows == set(registry.ops())
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert ESCAPE not in done.stdout


@pytest.mark.slow
def test_the_real_doctor(tmp_path):
    """Without a device asked for: it must not fail where libraries are missing, and it names every target."""
    arguments = ["-m", "touchstone", "doctor", "--json", "doctor.json"]
    done = processes.run_python(arguments, tmp_path, environment={"PYTHONPATH": str(registry.ROOT)})
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "doctor.json").read_text())
    assert set(record["targets"]) == {f"{name}@{device}" for name in registry.backends() for device in ("cpu", "cuda")}
    assert all(check["what"] and check["value"] for check in record["checks"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_is_plain_unless_in_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    table = Table("verdicts", ["op", "verdict"], [["softmax", "passed"], ["mlp", "failed"]])
    plain, rich = io.StringIO(), Terminal()
    show(table, plain)
    show(table, rich)
    assert plain.getvalue() == "verdicts\nop       verdict\n-------  -------\nsoftmax  passed\nmlp      failed\n\n"
    assert ESCAPE in rich.getvalue()
    assert "softmax" in rich.getvalue()


def test_a_table_fits_into_a_width():
    table = Table("ladders", ["op", "variants"], [["softmax", "naive warp block vectorised"], ["mlp", "unfused"]])
    assert max(map(len, table.plain(24).splitlines())) <= 24
    assert table.plain(24).splitlines()[3:] == [
        "softmax  naive warp",
        "         block",
        "         vectorised",
        "mlp      unfused",
    ]
    assert table.plain(200) == table.plain()
    broken = Table("t", ["x"], [["antidisestablishmentarianism"]]).plain(12).splitlines()
    assert max(map(len, broken)) == 12
    assert "".join(broken[3:]) == "antidisestablishmentarianism"


def test_columns_says_how_wide_a_table_is(monkeypatch):
    table = Table("t", ["x", "y"], [["a", "many words in one cell"]])
    for columns, lines in (("20", 5), ("", 4)):
        monkeypatch.setenv("COLUMNS", columns)
        out = io.StringIO()
        show(table, out)
        assert len(out.getvalue().strip().splitlines()) == lines


@pytest.mark.slow
def test_a_closed_pipe_ends_a_command_quietly():
    command = f'"{sys.executable}" -m touchstone list | true; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], env=processes.with_touchstone(), capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode in (0, 141)


def test_brackets_are_no_markup():
    rich = Terminal()
    show(Table("t", ["x"], [["[bold]3[/bold]"]]), rich)
    assert "[bold]3[/bold]" in rich.getvalue()


def test_progress_has_a_plain_form(monkeypatch, capsys):
    assert list(progress([1, 2, 3], "judging")) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")  # quick work is silent
    monkeypatch.setattr(console, "QUIET_SECONDS", -1.0)
    assert list(progress([1, 2], "judging")) == [1, 2]
    assert capsys.readouterr().err == "judging: 0 of 2\njudging: 1 of 2\n"
    assert list(progress(iter([1, 2]), "judging", 3)) == [1, 2]
    assert capsys.readouterr().err == "judging: 0 of 3\njudging: 1 of 3\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.314, "0.31"), (99.9, "99.90"), (1234.5, "1.2e+03"), (float("nan"), "nan"), (float("inf"), "inf")],
)
def test_fractions_as_text(value, text):
    assert fraction_text(value) == text


def test_a_message_does_not_steer_the_terminal(tmp_path, capsys):
    """Names of files, and what records and candidates hold, are in messages of every command."""
    assert main(["judge", str(tmp_path / "none\x1b[2J"), "--device=cpu"]) == 2
    assert main(["bench", "--compare", str(tmp_path / "a\x1b[2J"), str(tmp_path / "b")]) == 2
    error = capsys.readouterr().err
    assert "\x1b" not in error and error.count("\\x1b[2J") == 2
