"""The mutation runner: what it changes, which tests it chooses, and a few mutants from beginning to end."""

import hashlib
import json
import re
import shutil

import psutil
import pytest

from tests.mutation import coverage, page
from tests.mutation.__main__ import SOURCES, main, parsed, source_files
from tests.mutation.coverage import Coverage, Known, own_rooms
from tests.mutation.operators import mutants, sample, statements
from tests.mutation.running import HANGS, KILLED, SURVIVED, TIMED_OUT, Result
from tests.mutation.trees import ROOT, Tree

CHANGES = {
    "if a < b: f()": {"if a <= b: f()", "if a >= b: f()", "if True: f()", "if False: f()", "if a < b: pass"},
    "x = a + 2": {"x = a - 2", "x = a + 3", "x = a + 1"},
    "x = not a": {"x = bool(a)"},
    "x = a and b": {"x = (a or b)", "x = (b)", "x = (a)"},
    "x = -a": {"x = +a"},
    "x = True": {"x = False"},
    "x = 0.5": {"x = 1.0"},
    "raise Error": {"pass"},
    "a.b = c": {"pass"},
    "n += m": {"pass", "n -= m"},
    "def f(): return a": {"def f(): return None"},
    "with lock: f()": {"if True: f()", "with lock: pass"},
    "with lock, opened() as file: file": {"with opened() as file: file"},
    "x = f(a, b, c=d)": {"x = f(b, a, c=d)", "x = (f(a, b))"},
    "x = (a, b)": {"x = ((b,))", "x = ((a,))"},
    "x = {a: b, c: d}": {"x = ({c: d})", "x = ({a: b})"},
    "x = a[b:c]": {"x = a[:c]", "x = a[b:]"},
    "x = [a for a in b if c]": {"x = [a for a in b if True]", "x = [a for a in b if False]"},
    "x = a if b else c": {"x = a if True else c", "x = a if False else c"},
    "for a in b: continue": {"for a in b: pass"},
    # what decides nothing at run time, or only what a message says
    '"""What it is."""': set(),
    "assert a is not None": set(),
    "assert_never(a)": set(),
    "import a": set(),
    "x: Literal[1] = a": set(),
    "x = f'{a + 1}'": set(),
    "x = zip(a, b, strict=True)": {"x = zip(b, a, strict=True)"},
    "@lru_cache(maxsize=8)\ndef f(): return a": {"@lru_cache(maxsize=8)\ndef f(): return None"},
    "p.add_argument('--a', help='b', metavar='C', default=3)": {
        "pass",
        *(f"p.add_argument('--a', help='b', metavar='C', default={n})" for n in (2, 4)),
        "(p.add_argument('--a', help='b', metavar='C'))",
    },
    "Index = tuple[int, str]": set(),
    "Maker = Callable[[int, str], dict[int, str]]": set(),
    "x = table[int, str]": {"x = table[((str,))]", "x = table[((int,))]"},
    "x = f(maxsize=8)": {"x = f(maxsize=9)", "x = f(maxsize=7)", "x = (f())"},
    "x = torch.equal(a, b)": set(),
    "x = max(len(a), b)": set(),
    "x = time.monotonic() > end": {"x = time.monotonic() <= end"},
    "x = end >= time.monotonic()": {"x = end < time.monotonic()"},
    "x = max(a, b)": {"x = max(b, a)"},
    "x = min(len(a), b, key=c)": {"x = min(b, len(a), key=c)", "x = (min(len(a), b))"},
    "x = min(int(a), b)": set(),
    "with contextlib.suppress(a, b): f()": {"if True: f()", "with contextlib.suppress(a, b): pass"},
    "__all__ = ['a', 'b']": set(),
    "Names = dict[str, int]": set(),
    "Where = tuple[int, str] | None": set(),
    "x = f[a, b]": {"x = f[((a,))]", "x = f[((b,))]"},
    "x = a | b": {"x = a & b"},
    "def f(): return False": {"def f(): return True"},
    "x = 'a' + b": set(),
    "if TYPE_CHECKING: f()": set(),
    "@triton.jit\ndef kernel(): f(1)": set(),
}


@pytest.mark.parametrize("text", CHANGES)
def test_each_operator_makes_its_changes(text):
    assert {one.applied(text) for one in mutants("file.py", text)} == CHANGES[text]


def test_a_mutant_says_where_it_is():
    text = "class Ä:\n    def f(self):\n        return 'ä', 1\n"
    one = next(one for one in mutants("a.py", text) if one.operator == "constant")
    assert (one.line, one.statement, one.scope, one.change) == (3, 3, "Ä.f", "1 -> 0")
    assert one.applied(text) == text.replace("1", "0")
    with pytest.raises(ValueError, match="a.py: expected '1' in line 3; the file has changed"):
        one.applied(text.replace("1", "4"))


def test_every_change_to_the_judge_is_python():
    """One in a hundred, of which a sample is drawn; a change that does not compile would be killed by any test."""
    every = [one for path in source_files(list(SOURCES)) for one in mutants(path, (ROOT / path).read_text())]
    assert len({one.id for one in every}) == len(every) > 10_000
    for one in sample(every, len(every) // 100, 0):
        compile(one.applied((ROOT / one.path).read_text()), one.path, "exec")


def test_a_sample_is_the_same_for_a_seed_and_takes_statements_alike():
    text = f"x = [{', '.join(map(str, range(50)))}]\n" + "".join(f"y{n} = a < {n}\n" for n in range(20))
    every = mutants("a.py", text)
    assert sample(every, 10, 1) == sample(every, 10, 1) != sample(every, 10, 2)
    assert len({one.statement for one in sample(every, 21, 1)}) == 21
    assert set(sample(every, len(every) + 1, 1)) == set(every)


def test_statements_are_found_where_another_can_stand_before_them():
    text = "X = 1\ndef f():\n    '''It.'''\n    if a:\n        g()\n    elif b:\n        h()\n    return 1\n"
    assert sorted(statements(text), key=lambda place: place[2]) == [
        (4, 4, 4),
        (5, 8, 5),
        (6, None, 6),
        (7, 8, 7),
        (8, 4, 8),
    ]


TESTS = {"spec/own": (2, 3), "judging/quick": (1, 3), "judging/slow": (3, 3), "spec/other": (0.1, 9)}


def test_the_cheapest_tests_of_a_statement_come_first_those_of_its_room_before_others():
    file = "conformance/spec/a.py"
    known = Coverage(Known(f"tests/{id}", seconds, {file: [line]}) for id, (seconds, line) in TESTS.items())

    def chosen(text, seconds=60.0):
        tests = known.tests_for(mutants(file, text)[0], seconds)
        return [test.id.removeprefix("tests/") for test in tests]

    third = "\n\nx = a + b\n"
    assert chosen(third) == ["spec/own", "judging/quick", "judging/slow"]
    assert chosen(third, 3.5) == ["spec/own", "judging/quick"]
    assert set(chosen("x = a + b\n")) == set(TESTS)
    assert own_rooms("backends/emulator/numba/ptx.py") == ("tests/numba/",)
    assert own_rooms("backends/triton/runtime/driver.py") == ("tests/triton/",)


def test_the_quick_tests_of_a_file_follow_the_one_that_computes_for_them():
    file = "backends/triton/runtime/interpreter/libdevice.py"
    tests = [
        Known("tests/triton/test_interpreter.py::test[a]", 12.0, {file: [1]}),
        Known("tests/triton/test_interpreter.py::test[b]", 0.003, {}),
        Known("tests/triton/test_interpreter.py::test_alone", 5.0, {}),
        Known("tests/triton/test_waiting.py::test", 0.003, {}),
        Known("tests/triton/test_libdevice.py::test", 30.0, {file: [1]}),
    ]
    one = mutants(file, "x = a + b\n")[0]
    chosen = [test.id.removeprefix("tests/triton/test_") for test in Coverage(tests).tests_for(one, 60)]
    assert chosen == ["libdevice.py::test", "interpreter.py::test[a]", "interpreter.py::test[b]"]


SMALL = ["--sources", "conformance/spec/outputs.py", "--tests", "tests/spec/test_outputs.py", "--level", "quick"]


@pytest.mark.slow
@pytest.mark.level("default")
def test_mutants_are_killed_and_the_code_as_it_is_is_not(tmp_path, capsys):
    before = {path: (ROOT / path).read_text() for path in source_files(["conformance/spec"])}
    assert main([*SMALL, "--sample", "1", "--jobs", "2", "--out", str(tmp_path)]) == 0
    made = json.loads((tmp_path / "mutation.json").read_text())
    assert [row["verdict"] for row in made["mutants"]] == [KILLED]
    assert all("tests/spec/test_outputs.py::" in row["by"] for row in made["mutants"])
    assert [control["verdict"] for control in made["controls"]] == [SURVIVED]
    assert before == {path: (ROOT / path).read_text() for path in before}
    capsys.readouterr()
    assert main([*SMALL, "--sample", "1", "--out", str(tmp_path)]) == 0
    assert "1 of them known; 0 controls" in capsys.readouterr().out


def test_results_of_other_code_are_not_continued(tmp_path):
    (tmp_path / "digest").write_text("of another state")
    (tmp_path / "results.jsonl").touch()
    with pytest.raises(SystemExit, match="has results of other code or tests; name another folder"):
        main([*SMALL, "--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sample", "0"], "--sample: expected a number above 0, got '0'"),
        (["--sources", "conformance/nowhere"], "--sources: expected files and folders of the clone; there is no conf"),
        (["--survivors", "nowhere.json"], "--survivors: expected a file that an earlier run wrote; there is no"),
    ],
)
def test_wrong_arguments_are_named(arguments, said, capsys):
    with pytest.raises(SystemExit):
        parsed([*arguments, "--out", "folder"])
    assert said in capsys.readouterr().err


def test_a_page_tells_the_score_and_why_what_survives():
    reasons = page.reasons()
    every = [one for path in source_files(["conformance/spec"]) for one in mutants(path, (ROOT / path).read_text())]
    drawn = sample([one for one in every if page.reason_for(one, reasons) is None], 4, 3)
    verdicts = [KILLED, TIMED_OUT, SURVIVED, KILLED]
    results = {one.id: Result(one.id, verdict, "test", 5, 1.0) for one, verdict in zip(drawn, verdicts, strict=True)}
    made = page.record("command", len(every), drawn, results, [Result("control: x", KILLED, "test", 5, 1.0)], 60, 2)
    text = page.page(made)
    words = re.sub(r"\s+", " ", text)
    assert "noticed 3 (75.0 %), 1 of them because a test did not end, and 1 not." in words
    assert f"{drawn[2].path}:{drawn[2].line}" in words and "No reason yet." in words
    assert "## Controls that failed" in text and max(map(len, text.splitlines())) <= 120


def test_every_reason_belongs_to_a_change_that_is_possible():
    known = page.reasons()
    possible = {
        (one.path, one.scope, one.code, one.change)
        for path in {reason.file for reason in known.values()}
        for one in mutants(path, (ROOT / path).read_text())
    }
    assert set(known) <= possible


@pytest.fixture
def small(tmp_path):
    """A tree of a clone with nothing but the runner, in which pytest starts at once."""
    clone = tmp_path / "small"
    shutil.copytree(ROOT / "tests" / "mutation", clone / "tests" / "mutation")
    (clone / "tests" / "__init__.py").touch()
    options = "".join(f'    parser.addoption("{name}")\n' for name in ("--device", "--level"))
    (clone / "conftest.py").write_text(f"def pytest_addoption(parser):\n{options}")
    return Tree(tmp_path / "tree", clone)


def test_a_test_that_hangs_is_ended(small, tmp_path):
    (small.root / "tests" / "test_hanging.py").write_text("import time\n\n\ndef test_it():\n    time.sleep(100)\n")
    (tmp_path / "limits").write_text(json.dumps({"tests/test_hanging.py::test_it": 0.2}))
    arguments = ["-p", "tests.mutation.hanging", "tests/test_hanging.py"]
    status, said = small.pytest(arguments, 60, {"TOUCHSTONE_LIMITS": str(tmp_path / "limits")})
    assert status == 1 and HANGS.search(said)
    assert small.pytest(["tests/test_hanging.py"], 2)[0] is None


def test_a_recording_that_was_cut_goes_on_with_the_tests_it_lacks(small, tmp_path, monkeypatch):
    monkeypatch.setattr(coverage, "ROOT", small.root)
    name, said = "tests/test_two.py", []
    (small.root / "touchstone").mkdir()
    (small.root / "touchstone" / "one.py").write_text("def one():\n    return 1\n")
    text = "from touchstone.one import one\n\n\ndef test_one():\n    assert 0\n\n\ndef test_two():\n    given()\n\n\n"
    text += "def given(): ...\n\n\ngiven.__code__ = one.__code__\n"  # as some code of the judge's is
    (small.root / name).write_text(text)

    def record():
        given = {"jobs": 1, "level": "quick", "seconds": 60, "say": said.append}
        sources = ["touchstone/one.py"]
        return coverage.recorded(tmp_path / "map.json", sources, [name], lambda which: small, **given).tests

    digest = hashlib.sha256(b"quick" + (small.root / name).read_bytes()).hexdigest()
    cut = {name: {"digest": digest, "whole": False, "tests": [[f"{name}::test_one", 7.0, {}]]}}
    (tmp_path / "map.json").write_text(json.dumps(cut))
    found = [(test.id, test.executed) for test in record()]
    assert found == [(f"{name}::test_one", {}), (f"{name}::test_two", {"touchstone/one.py": [2]})]
    assert "recorded 1 tests" in said[-1]
    assert record() and "recorded" in said.pop() and len(said) == 1  # whole: nothing is run


def test_what_a_run_leaves_behind_ends_with_it(small):
    text = "import subprocess\n\n\ndef test_it():\n    subprocess.Popen(['sleep', '1234.5'])\n"
    (small.root / "tests" / "test_leaving.py").write_text(text)
    assert small.pytest(["-q", "tests/test_leaving.py"], 60)[0] == 0
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert ["sleep", "1234.5"] not in lines


@pytest.mark.level("default")
def test_a_change_is_taken_back_and_never_read_from_old_bytecode(small):
    (small.root / "tests" / "number.py").write_text("N = 1\n")
    (small.root / "tests" / "test_number.py").write_text(
        "from tests.number import N\n\n\ndef test_it():\n    assert N == 1\n"
    )
    for text, status in [("N = 1\n", 0), ("N = 2\n", 1), ("N = 1\n", 0)]:
        with small.changed("tests/number.py", text):
            assert small.pytest(["-q", "tests/test_number.py"], 60)[0] == status
    assert (small.root / "tests" / "number.py").read_text() == "N = 1\n"
