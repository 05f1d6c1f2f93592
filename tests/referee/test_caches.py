"""Caches and records under attack: no honest run takes what it did not make, and none says that a kernel is wrong.

Eight processes at a time use one cache and one file of findings, and half of them are killed. The same with the lock or
the rename broken on purpose shows that this would be noticed.
"""

import ast
import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import processes
from tests.night import NIGHT, some
from touchstone import check
from touchstone.backends.emulator import compiler
from touchstone.backends.storage import artefacts, files
from touchstone.conformance.cli import main
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.importing import FileFunction
from touchstone.conformance.findings import kept

WORKERS, KILLED = 8, 4
SECONDS = 4.0
NAMES = [f"kernel{number}.so" for number in range(12)]
PIECES = 8


def content(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest() * 512


class Storm:
    """Processes that fill a cache and a file of findings until they are told to end, or are killed."""

    def __init__(self, folder: Path):
        self.cache, self.logs, self.findings = folder / "cache", folder / "logs", folder / "kept" / "findings.json"
        self.logs.mkdir()
        self.problems: set[str] = set()

    def run(self) -> set[str]:
        """What went wrong, in words."""
        end = time.monotonic() + SECONDS
        children = {self._fork(number, end) for number in range(WORKERS)}
        chosen = random.Random(0)
        kills = sorted(chosen.uniform(0.2, 0.9) * SECONDS for _ in range(KILLED))
        killed: set[int] = set()
        while children:
            self._look()
            while kills and time.monotonic() > end - SECONDS + kills[0]:
                kills.pop(0)
                victim = chosen.choice(sorted(children - killed))
                killed.add(victim)
                os.kill(victim, signal.SIGKILL)
            for child in list(children):
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    children.remove(child)
                    if status and child not in killed:
                        self.problems.add("a process failed")
        self._look()
        self._count_findings()
        return self.problems

    def _fork(self, number: int, end: float) -> int:
        child = os.fork()
        if child:
            return child
        status = 1
        try:
            self._work(number, end)
            status = 0
        finally:
            os._exit(status)

    def _work(self, number: int, end: float) -> None:
        chosen = random.Random(number)
        with open(self.logs / f"{number}.log", "a") as log:
            for count in itertools.count():
                if time.monotonic() > end:
                    return
                name = chosen.choice(NAMES)
                store = artefacts.Store(lambda: self.cache)  # as another process would see it
                path = store.file(name, self._made)
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile, below
                    if path.parent != self.cache or path.read_bytes() != content(name):
                        print("a wrong artefact was used", file=log, flush=True)
                if chosen.random() < 0.2:  # so that there is always something to be made
                    with contextlib.suppress(OSError):
                        path.unlink()
                identifier = f"{number:02x}{count:06x}"
                assert kept.keep([{"id": identifier, "op": "softmax"}], self.findings)
                print(f"kept {identifier}", file=log, flush=True)

    def _made(self, path: Path) -> None:
        """An artefact in pieces, with a note about who is at it."""
        note = self.logs / f"{path.name}.{os.getpid()}.making"
        note.touch()
        others = [other for other in self.logs.glob(f"{path.name}.*.making") if other != note and _alive(other)]
        if others:
            (self.logs / "two at once").touch()
        whole = content(path.name)
        with open(path, "wb") as file:
            for start in range(0, len(whole), len(whole) // PIECES):
                file.write(whole[start : start + len(whole) // PIECES])
                file.flush()
                time.sleep(0.002)
        note.unlink()

    def _look(self) -> None:
        """What is under its name is whole at all times, whoever is killed."""
        for name in NAMES:
            with contextlib.suppress(FileNotFoundError):
                if (self.cache / name).read_bytes() != content(name):
                    self.problems.add("part of an artefact was under its name")
        try:
            json.loads(self.findings.read_text())
        except FileNotFoundError:
            pass
        except ValueError:
            self.problems.add("part of a record was under its name")

    def _count_findings(self) -> None:
        told = " ".join(log.read_text() for log in self.logs.glob("*.log"))
        if "wrong artefact" in told:
            self.problems.add("a wrong artefact was used")
        if (self.logs / "two at once").exists():
            self.problems.add("two made the same artefact at once")
        try:
            found = {record["id"] for record in json.loads(self.findings.read_text())}
        except ValueError:
            return
        promised = {line.split()[1] for line in told.splitlines() if line.startswith("kept")}
        assert len(promised) < kept.KEPT, "so many that the first are dropped"
        if promised - found:
            self.problems.add("findings were lost")


def _alive(note: Path) -> bool:
    """Whether the process that wrote a note is still at it."""
    with contextlib.suppress(OSError, IndexError):
        state = Path("/proc", note.name.split(".")[-2], "stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" and note.exists()
    return False


class NoLock:
    """A lock that everybody has."""

    def __init__(self, path):
        pass

    def acquire(self, timeout):
        pass

    def release(self):
        pass


def copied(source, target):
    """A rename that is seen half done."""
    data = Path(source).read_bytes()
    with open(target, "wb") as file:
        for start in range(0, len(data), len(data) // 4 + 1):
            file.write(data[start : start + len(data) // 4 + 1])
            file.flush()
            time.sleep(0.002)
    os.unlink(source)


def no_sabotage(monkeypatch):
    pass


def without_locks(monkeypatch):
    monkeypatch.setattr(files, "FileLock", NoLock)


def without_renames(monkeypatch):
    monkeypatch.setattr(os, "replace", copied)


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("sabotage", "noticed"),
    [
        (no_sabotage, set()),
        (without_locks, {"two made the same artefact at once", "findings were lost"}),
        (without_renames, {"part of an artefact was under its name", "part of a record was under its name"}),
    ],
)
def test_eight_processes_on_one_cache_half_of_them_killed(tmp_path, monkeypatch, sabotage, noticed):
    sabotage(monkeypatch)
    problems = Storm(tmp_path).run()
    if noticed:
        assert noticed <= problems
    else:
        assert problems == set()
        store = artefacts.Store(lambda: tmp_path / "cache")
        for name in NAMES:
            assert store.file(name, lambda path: path.write_bytes(content(path.name))).read_bytes() == content(name)


PROGRAM = str(registry.ROOT / "tests" / "programs" / "cached_kernels.py")
needs_compilers = pytest.mark.needs("g++", "numba", "cuda.bindings")
PASSED = {"verdict": "passed", "reasons": [], "findings": []}


def judged(cache: Path | None = None, shell: str = "", **environment: str) -> tuple[list[dict], str]:
    """What became of right kernels in CUDA C and Numba, judged by a process of its own; its stderr, progress apart."""
    if cache is not None:
        environment["TOUCHSTONE_CACHE"] = str(cache)
    command = ["bash", "-c", f'{shell} exec "$@"', "bash", sys.executable, "-W", "ignore", PROGRAM, "cupy", "numba"]
    variables = processes.with_touchstone(**environment)
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    progress = re.compile(r"^\w+ \w+: \d+ of \d+\n", re.MULTILINE)  # where the machine is busy
    return [json.loads(line) for line in done.stdout.splitlines()], progress.sub("", done.stderr)


def kept_in(cache: Path) -> list[Path]:
    """The artefacts in a cache folder."""
    return [path.with_suffix("") for path in sorted(cache.glob(f"*{artefacts.DIGEST}"))]


def intact(cache: Path) -> bool:
    store = artefacts.Store(lambda: cache)
    return all(store.load(path.name) is not None for path in kept_in(cache))


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache folder that an honest run has filled."""
    cache = tmp_path_factory.mktemp("filled") / "cache"
    assert judged(cache)[0] == [PASSED, PASSED]
    assert {path.suffix for path in kept_in(cache)} >= {".so", ".h", ".json"}
    return cache


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)


def swapped(path: Path) -> None:
    """With another of the same kind, with its digest."""
    others = [other for other in kept_in(path.parent) if other != path and other.suffix == path.suffix]
    for other in others[:1]:
        for suffix in ("", artefacts.DIGEST):
            one, two, aside = Path(f"{path}{suffix}"), Path(f"{other}{suffix}"), path.with_name("aside")
            one.rename(aside)
            two.rename(one)
            aside.rename(two)


DAMAGE = {"each another": (cut, emptied, flipped), "swapped": (swapped,)}
if NIGHT:
    DAMAGE |= {harm.__name__: (harm,) for harm in (cut, emptied, flipped)}


@pytest.mark.level("default")
@pytest.mark.slow
@needs_compilers
@pytest.mark.parametrize("damage", some([pytest.param(damage, id=name) for name, damage in DAMAGE.items()], 2))
def test_a_damaged_cache_is_made_again_and_says_nothing_about_a_kernel(filled, tmp_path, damage):
    cache = tmp_path / "cache"
    shutil.copytree(filled, cache)
    for path, harm in zip(kept_in(cache), itertools.cycle(damage), strict=False):
        harm(path)
    found, error = judged(cache)
    assert (found, error) == ([PASSED, PASSED], "")
    assert intact(cache)


@pytest.mark.slow
@needs_compilers
def test_a_planted_library_is_not_loaded(filled, tmp_path):
    """With a SHA-256 beside it, as anybody would make it."""
    cache, ran = tmp_path / "cache", tmp_path / "ran"
    shutil.copytree(filled, cache)
    source = tmp_path / "planted.c"
    source.write_text(
        f'#include <fcntl.h>\n__attribute__((constructor)) static void run(void) {{ creat("{ran}", 0600); }}\n'
    )
    subprocess.run(["g++", "-x", "c++", "-shared", "-fPIC", "-o", tmp_path / "planted.so", source], check=True)
    for path in cache.glob("*.so"):
        shutil.copy(tmp_path / "planted.so", path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        path.with_name(path.name + artefacts.DIGEST).write_text(f"{digest}  {path.name}\n")
    assert ctypes_runs(cache, ran), "loaded, it would run"
    assert judged(cache)[0] == [PASSED, PASSED]
    assert not ran.exists()


def ctypes_runs(cache: Path, ran: Path) -> bool:
    library = next(iter(cache.glob("*.so")))
    subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(library)!r})"], check=True)
    there = ran.exists()
    ran.unlink(missing_ok=True)
    return there


def somebody_elses(cache: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root, to give a folder to somebody else")
    os.chown(cache, 12345, 12345)


def linked(cache: Path) -> None:
    cache.rename(cache.with_name("real"))
    cache.symlink_to("real")


@pytest.mark.level("default")
@pytest.mark.slow
@needs_compilers
@pytest.mark.parametrize(
    ("prepare", "said"),
    some(
        [
            pytest.param(lambda cache: cache.chmod(0o777), "others may write to", id="0777"),
            pytest.param(linked, "is a symbolic link", id="link"),
            pytest.param(somebody_elses, "belongs to user 12345", id="owner"),
        ],
        3,
    ),
)
def test_nothing_is_taken_from_a_folder_that_others_may_have_filled(filled, tmp_path, prepare, said):
    cache = tmp_path / "cache"
    shutil.copytree(filled, cache)
    for path in cache.glob("*.so"):  # kept by somebody who knows how
        artefacts.Store(lambda: cache).keep(path.name, b"planted")
    prepare(cache)
    found, error = judged(cache)
    assert found == [PASSED, PASSED]
    assert error.count(said) == 1 and error.count("\n") == 1


@pytest.mark.level("default")
@pytest.mark.slow
@needs_compilers
@pytest.mark.parametrize("home", some(["read-only", "a file", "missing"], 3))
def test_a_home_in_which_nothing_can_be_kept(tmp_path, home):
    (tmp_path / "file").write_text("")
    places = {"a file": tmp_path / "file", "missing": tmp_path / "file" / "below", "read-only": Path("/proc/self")}
    found, error = judged(HOME=str(places[home]), TOUCHSTONE_CACHE="", XDG_CACHE_HOME="")
    assert found == [PASSED, PASSED]
    assert error.count("compiled kernels are not kept") == 1


@pytest.mark.slow
@needs_compilers
@pytest.mark.parametrize(
    ("shell", "said"),
    [
        ("ulimit -f 20;", "no memory can be shared with another process here: .*File too large"),
        ("export CXX=$STOPPED;", "the compiler .* was ended by signal 9"),
    ],
)
def test_where_nothing_can_be_compiled_nothing_is_judged(tmp_path, shell, said):
    stopped = tmp_path / "stopped"
    stopped.write_text('#!/bin/sh\ncase "$*" in *--version*) exec g++ "$@";; esac\nkill -9 $$\n')
    stopped.chmod(0o755)
    found, _ = judged(tmp_path / "cache", shell, STOPPED=str(stopped))
    for one in found:
        assert (one["verdict"], one["findings"]) == ("not run", [])
        assert re.fullmatch(said, one["reasons"][0].partition("; ")[0]), one


@pytest.mark.level("default")
@pytest.mark.slow
@needs_compilers
def test_runs_on_one_cache_half_of_them_killed(tmp_path):
    number = WORKERS if NIGHT else WORKERS // 2
    cache = tmp_path / "cache"
    command = [sys.executable, "-W", "ignore", PROGRAM, "cupy", "numba"]
    variables = processes.with_touchstone(TOUCHSTONE_CACHE=str(cache))
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    runs = [subprocess.Popen(command, env=variables, process_group=0, **pipes) for _ in range(number)]
    compiled = time.monotonic() + 120
    for victim in runs[: number // 2]:  # one after the other, from when the first begins to compile
        while not list(cache.glob(f"{artefacts.SCRATCH}*")) and time.monotonic() < compiled:
            time.sleep(0.05)
        os.killpg(victim.pid, signal.SIGKILL)
        time.sleep(0.7)
    for run in runs[: number // 2]:
        run.communicate()
    for run in runs[number // 2 :]:
        out, error = run.communicate(timeout=300)
        assert [json.loads(line) for line in out.splitlines()] == [PASSED, PASSED], error
    assert intact(cache)
    assert judged(cache)[0] == [PASSED, PASSED]


READERS = {"load", "Unpickler", "loads"}
WORDS = re.compile(r"pickle|dill|shelve|marshal|joblib|torch\.load|Unpickler")
PICKLES = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib", "torch"}


def test_no_pickle_is_read_from_a_file():
    """Between a process and its child, in memory, is all there is: the rooms of `isolation`."""
    found = set()
    for path in itertools.chain(*((registry.ROOT / name).rglob("*.py") for name in ("backends", "conformance"))):
        if not WORDS.search(text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Attribute(value=ast.Name(id=module), attr=reader) if module in PICKLES and reader in READERS:
                    found.add((path.parent.name, f"{module}.{reader}"))
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                found.add((path.parent.name, "allow_pickle"))
    assert {(room, call) for room, call in found if room != "isolation" or not call.endswith(".loads")} == set()


MALFORMED = {
    "no JSON": "{",
    "nested": "[" * 200_000,
    "an empty row": '{"format": 2, "kind": "bench", "results": [{}], "ceilings": null, "machine": {}, "versions": {}}',
    "rows of numbers": '{"format": 1, "results": [1, 2], "ceilings": null}',
    "no outcomes": '{"format": 2, "kind": "check", "reports": [{"name": "x"}]}',
    "nothing": '{"format": 2}',
    "an op of nothing": '{"ops": [{}], "known-good checks": 1}',
    "variants of another form": '{"report": "judged", "variants": 3}',
    "a pipe": None,
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("command", ["report", "bench --compare", "selftest --page"])
def test_a_malformed_record_is_wrong_usage(tmp_path, capsys, command, text):
    path = tmp_path / "record.json"
    if text is None:
        os.mkfifo(path)
    else:
        path.write_text(text)
    files_read = [str(path)] * (2 if "compare" in command else 1)
    assert main([*command.split(), *files_read]) == 2
    error = capsys.readouterr().err
    assert "record.json" in error and "Traceback" not in error


GIVEN = """
import os

import torch
from touchstone.backends.cupy.runtime.module import Module

module = Module(__file__, "copied.cu")


def softmax(x):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    module.launch("copied", 1, 1, x, y)
    try:
        open(os.path.join(os.environ["TOUCHSTONE_GIVEN"], "planted.so"), "w")
        said = "written"
    except OSError:
        said = "refused"
    raise ValueError(" ".join([said, *sorted(os.listdir(os.environ["TOUCHSTONE_CACHE"]))]))
"""


@pytest.mark.slow
@needs_compilers
@pytest.mark.skipif(sys.platform != "linux", reason="confining a process takes Linux")
def test_a_confined_kernel_reads_the_emulator_that_the_judge_compiled_and_writes_it_not(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    artefacts.give(compiler.beginnings(), cache)  # what the other tests have compiled
    monkeypatch.setenv("TOUCHSTONE_CACHE", str(cache))
    (tmp_path / "copied.cu").write_text(
        'extern "C" __global__ void copied(const float* x, float* y) { y[0] = x[0]; }\n'
    )
    (tmp_path / "copied.py").write_text(GIVEN)
    fn = FileFunction(tmp_path / "copied.py", "softmax")
    case = {"dtypes": ["float32"], "sizes": {"rows": [3], "cols": [33]}}
    report = check("softmax", fn, device="cpu", level="quick", untrusted=True, **case)
    said = next((finding.message for finding in report.findings if "ValueError: " in finding.message), str(report))
    assert "copied_" in said and "refused " in said  # its own library is in its own cache
    assert "libtouchstone" not in said and ".gch" not in said
    kept = {path.name for path in cache.iterdir() if path.suffix in (".so", ".gch")}
    assert any(name.startswith("libtouchstone_") for name in kept)
    assert not any(name.startswith(("copied_", "planted")) for name in kept)  # and nothing of it in the judge's
