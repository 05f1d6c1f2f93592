"""Judging in child processes: deaths become findings, and no correct kernel is rejected because of where it runs."""

import concurrent.futures
import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import psutil
import pytest
import torch

from tests import processes
from tests.night import NIGHT
from touchstone import check
from touchstone.conformance.cli import main
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import executing, fork, limits, travel, wire
from touchstone.conformance.isolation import runner as runner_module
from touchstone.conformance.isolation.limits import Limits
from touchstone.conformance.isolation.processes import waited
from touchstone.conformance.isolation.runner import Runner
from touchstone.conformance.judging import executor, judge
from touchstone.conformance.judging.judgement import FAILED, PASSED
from touchstone.conformance.judging.trials import InvalidCall, ManyCalls, PropertyTrial, Trial, trials_of
from touchstone.conformance.spec.checks import Check


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()


def user(fn, device: str = "cpu", own: bool = False) -> Subject:
    return Subject("softmax", fn, "fn", f"user@{device}", device, own=own)


def cases(count: int) -> list[Trial]:
    found, _ = trials_of(user(softmax), "quick")
    return [trial for trial in found if 1 < trial.case.size["cols"] < 100 and not isinstance(trial, ManyCalls)][:count]


def few(fn, **options):
    """`check` on the float32 cases of fewer than 100 columns."""
    options = {"where": lambda case: case.size["cols"] < 100, "dtypes": ["float32"], **options}
    return check("softmax", fn, device="cpu", level="quick", **options)


def gone(pid: int, seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def usual_is_wrong(x):
    """Where neither the storage nor gradients show an instrument."""
    whole = x.storage_offset() == 0 and x.untyped_storage().nbytes() == x.numel() * x.element_size()
    return x.clone() if whole and not torch.is_grad_enabled() else softmax(x)


def unusual_is_wrong(x):
    """Where something lies around the operand in its storage, and gradients are on."""
    within = x.untyped_storage().nbytes() > x.numel() * x.element_size()
    return x.clone() if within and torch.is_grad_enabled() else softmax(x)


@pytest.mark.parametrize("untrusted", [False, True], ids=["plain", "untrusted"])
def test_a_kernel_cannot_tell_an_instrument_by_storage_or_gradients(untrusted):
    for fn in (usual_is_wrong, unusual_is_wrong):
        report = check(
            "softmax",
            fn,
            device="cpu",
            level="quick",
            dtypes=["float32"],
            sizes={"cols": 33},
            untrusted=untrusted,
            **({"allow_library": True} if untrusted else {}),
        )
        assert report.verdict == FAILED and {finding.check for finding in report.failures} <= {"values", "repeat"}
        assert any("of 50" in finding.message for finding in report.failures)


def by_autograd(y, dy):
    leaf = y.detach().float().log().requires_grad_()
    (made,) = torch.autograd.grad(torch.softmax(leaf, -1), leaf, dy.float())
    return made.to(y.dtype)


def test_a_gradient_may_be_asked_of_autograd():
    report = check(
        "softmax_backward",
        by_autograd,
        device="cpu",
        level="quick",
        dtypes=["float32"],
        where=lambda case: case.values == "normal" and case.size["rows"] > 1 and case.size["cols"] > 1,
    )
    assert not any("does not require grad" in finding.message for finding in report.findings), report


def spin():
    while True:
        pass


def fill():
    kept = []
    while True:
        kept.append(torch.ones(8 << 20))


DEATHS = {
    "a segmentation fault": (
        lambda: ctypes.string_at(0),
        "crash",
        r"segmentation fault at test_isolation\.py:\d+, in <lambda>",
    ),
    "an abort": (os.abort, "crash", r"abort at test_isolation\.py:\d+, in dies"),
    "a process that ends": (lambda: os._exit(0), "crash", "the process ended with status 0"),
    "an exit": (lambda: sys.exit(3), "crash", r"sys\.exit\(3\) would have ended the process"),
    "an endless loop": (spin, "hang", r"no answer after \d+ s at test_isolation\.py:\d+, in spin"),
    "an endless wait": (
        lambda: threading.Event().wait(),
        "hang",
        r"no answer after \d+ s at test_isolation\.py:\d+, in <lambda>",
    ),
    "memory without end": (fill, "memory", r"resident memory grew by \d\.\d\d GiB; the limit is 0\.50 GiB"),
}
DOUBTED = (os.abort, spin)  # by day


@pytest.mark.slow
@pytest.mark.parametrize(("death", "found", "message"), DEATHS.values(), ids=list(DEATHS))
def test_a_death_is_a_finding_and_the_run_goes_on(death, found, message):
    """Also where the fork is first suspected: a fresh process dies as well."""
    trials = cases(5)

    def dies(x):
        if x.shape == deadly:
            death()
        return softmax(x)

    deadly = tuple(trials[1].case.size.values())
    affected = [tuple(trial.case.size.values()) == deadly for trial in trials]
    assert 0 < sum(affected) < 5
    confirm = NIGHT or death in DOUBTED  # each fresh process takes seconds to start
    with Runner(user(dies), trials, limits=Limits(seconds=2, bytes=512 << 20), confirm=confirm) as runner:
        outcomes = [runner.outcome(index) for index in range(5)]
        assert runner.notes == []
        assert runner.how == "isolation: forked child"
    assert [outcome.status for outcome in outcomes] == [FAILED if one else PASSED for one in affected]
    for outcome, trial, dead in zip(outcomes, trials, affected, strict=True):
        assert [finding.check for finding in outcome.findings] == [found] * dead
        if dead:
            (finding,) = outcome.findings
            assert re.fullmatch(message, finding.message), finding.message
            assert trial.id in finding.case
            assert finding.severity == "failure"


@pytest.mark.slow
def test_after_three_hangs_the_rest_is_not_run():
    def hangs(x):
        time.sleep(60) if x.numel() else None
        return softmax(x)

    started = time.monotonic()
    report = few(hangs, timeout=0.5, isolate="fork")
    assert time.monotonic() - started < 45
    assert not report.passed
    assert Counter(finding.check for finding in report.findings) == {Check.HANG: 3}
    assert (
        report.not_run["after 3 hangs"]
        == report.planned
        - len(report.outcomes)
        - report.not_run["left out by dtypes"]
        - (report.not_run["left out by where"])
    )
    assert f"{report.not_run['after 3 hangs']} after 3 hangs" in report.summary()


KERNELS = """
import ctypes, time
import torch


def softmax(x):
    if x.shape == {crash} and x.dtype == torch.float32:
        ctypes.string_at(0)
    if x.shape == {hang} and x.dtype == torch.bfloat16:
        time.sleep(100)
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()
"""


@pytest.fixture
def kernels(tmp_path):
    shape = {trial.case.dtype: tuple(trial.case.size.values()) for trial in cases(99)}
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS.format(crash=shape["float32"], hang=shape["bfloat16"]))
    return path


@pytest.mark.slow
def test_deaths_from_the_command_line(kernels):
    arguments = ["check", "softmax", "--kernel", "kernels.py:softmax", "--device=cpu", "--quick"]
    done = processes.fork_touchstone([*arguments, "--timeout=1", "--where=cols < 100"], kernels.parent)
    assert done.wait() == 1, done.err.read_text()
    said = done.out.read_text()
    assert "crash: segmentation fault at kernels.py:8, in softmax" in said
    assert "hang: no answer after" in said
    assert "isolation: forked child" in said
    assert said.splitlines()[-1].startswith("FAILED: ")


@pytest.mark.parametrize("option", ["--timeout=0", "--isolate=thread"])
def test_wrong_options_are_named(option, kernels, capsys):
    assert main(["check", "softmax", "--kernel", f"{kernels}:softmax", "--device=cpu", option]) == 2
    assert f"{option[2:].partition('=')[0]}: expected" in capsys.readouterr().err


@pytest.mark.slow
def test_a_crash_under_pytest(kernels):
    kernels.write_text(kernels.read_text().replace("time.sleep(100)", "ctypes.string_at(0)"))
    run = f"-q -p no:cacheprovider --op=softmax --device=cpu --quick --dtypes=float32 --kernel={kernels}:softmax"
    arguments = [
        "-m",
        "pytest",
        str(registry.ROOT / "touchstone" / "conformance" / "suite" / "test_kernels.py"),
        *run.split(),
    ]
    done = processes.run_python(arguments, kernels.parent, environment={"PYTHONPATH": str(registry.ROOT)})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "crash: segmentation fault at kernels.py:" in done.stdout
    assert " passed" in done.stdout.splitlines()[-1]


def test_lambdas_closures_and_objects_keep_their_state_for_one_check(tmp_path):
    class Kernel:
        def __init__(self):
            self.calls = 0

        def __call__(self, x):
            self.calls += 1
            with open(tmp_path / "calls", "a") as file:
                print(os.getpid(), self.calls, file=file)
            return softmax(x)

    kernel = Kernel()
    assert few(lambda x: kernel(x)).passed
    pids, counts = zip(*(map(int, line.split()) for line in (tmp_path / "calls").read_text().splitlines()), strict=True)
    assert len(set(pids)) == 1
    assert os.getpid() not in pids
    assert list(counts) == list(range(1, len(counts) + 1))
    assert kernel.calls == 0


forked = False  # True in this process and its forks only


def dies_in_a_fork(x):
    if forked and x.shape[1] > 1:
        os.abort()
    return softmax(x)


def raises_in_a_fork(x):
    if forked and x.shape[1] > 1:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
    return softmax(x)


def waits_in_a_fork(x):
    if forked and x.shape[1] > 1:
        threading.Event().wait()
    return softmax(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (dies_in_a_fork, "abort at"),
        (raises_in_a_fork, "RuntimeError: Cannot"),
        (waits_in_a_fork, "no processor time for 1 s"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_only_a_fork_does_is_a_note(fn, said, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "forked", True)
    monkeypatch.setattr(runner_module, "IDLE_SECONDS", 1.0)
    report = few(fn)
    assert report.passed, str(report)
    assert report.findings == []
    assert report.cases > 3
    (note,) = report.notes
    assert said in note
    assert "not in a fresh process" in note
    assert "isolation: forked child, then fresh process" in report.instruments


@pytest.mark.slow
def test_a_death_that_takes_several_calls_is_no_doing_of_the_fork():
    """The fresh process is put through all that the forked one went through."""
    calls = []

    def wears_out(x):
        calls.append(1)
        if len(calls) == fatal:
            os.abort()
        return softmax(x)

    trials = cases(3)
    with Runner(user(wears_out), trials, "none") as here:
        fatal = 0
        here.outcome(0)
        here.outcome(1)
        fatal = len(calls) + 1
    calls.clear()
    with Runner(user(wears_out), trials) as runner:
        outcomes = [runner.outcome(index) for index in range(3)]
        assert runner.notes == []
    assert [outcome.status for outcome in outcomes] == [PASSED, PASSED, FAILED]


@pytest.mark.slow
def test_a_hang_that_no_fresh_process_can_repeat_says_so(monkeypatch):
    monkeypatch.setattr(runner_module, "IDLE_SECONDS", 0.2)
    lock = threading.RLock()

    def stuck(x):
        with lock:
            threading.Event().wait()

    with Runner(user(stuck), cases(1), limits=Limits(seconds=1)) as runner:
        (finding,) = runner.outcome(0).findings
    assert finding.check == Check.HANG
    assert "no answer after 1 s" in finding.message
    assert "isolate='none' tells" in finding.message


@pytest.mark.slow
def test_a_wait_that_no_fresh_process_can_repeat_gets_its_whole_time(monkeypatch):
    """Slow, without using the processor, and held by a lock: it cannot be sent anywhere."""
    monkeypatch.setattr(runner_module, "IDLE_SECONDS", 0.2)
    lock = threading.RLock()

    def slow(x):
        with lock:
            time.sleep(1)
        return softmax(x)

    with Runner(user(slow), cases(1)) as runner:
        assert runner.outcome(0).status == PASSED
        assert runner.notes == []


PREAMBLE = """
import ctypes, sys, threading, torch
from touchstone import check


def softmax(x):
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()
"""
ASK = """
if __name__ == "__main__":
    {before}
    report = check("softmax", {fn}, device="cpu", level="quick", dtypes=["float32"], where={where})
    print(report.passed, [str(finding) for finding in report.findings], report.cases > 3)
    print([one for one in report.instruments if "isolation" in one], report.notes)
"""
TORCH = """
def parallel(x):
    torch.ones(300_000).exp().sum()
    torch.mm(torch.ones(300, 300), torch.ones(300, 300))
    return softmax(x)


def use():
    torch.set_num_threads(3)
    x = torch.randn(1000, 1000)
    torch.mm(x, x).exp().sum()
"""
OPENMP = """
library = ctypes.CDLL({library!r})


def parallel(x):
    assert library.work(1000) == 1000
    return softmax(x)


def use():
    assert library.threads(3) == 3
    assert library.work(1000) == 1000
"""
OPENMP_SOURCE = """
#include <omp.h>
extern "C" int threads(int n) {
    omp_set_num_threads(n);
    int used = 0;
    #pragma omp parallel
    { if (omp_get_thread_num() == 0) used = omp_get_num_threads(); }
    return used;
}
extern "C" int work(int n) {
    int done = 0;
    #pragma omp parallel for reduction(+ : done)
    for (int i = 0; i < n; i++) done += 1;
    return done;
}
"""
NUMBA = """
import numba, numpy

numba.config.THREADING_LAYER = {layer!r}


@numba.njit(parallel=True)
def total(x):
    found = 0.0
    for i in numba.prange(x.size):
        found += x[i]
    return found


def parallel(x):
    assert total(numpy.ones(1000)) == 1000
    return softmax(x)


def use():
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    assert total(numpy.ones(1000)) == 1000
"""
EXECUTOR = """
from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor(1)
pool.submit(int).result()  # a thread that a call starts and leaves is noted


def parallel(x):
    return pool.submit(softmax, x).result()


def use():
    pool.submit(int).result()
"""


def ask(folder, source: str, before: str = "use()", fn: str = "parallel", where: str = "None") -> list[str]:
    (folder / "script.py").write_text(PREAMBLE + source + ASK.format(before=before, fn=fn, where=where))
    environment = {"PYTHONPATH": str(registry.ROOT), "OMP_NUM_THREADS": "3"}
    # as many as torch takes of the three: Numba's OpenMP may be torch's own, whose number it would change
    environment["NUMBA_NUM_THREADS"] = str(min(3, len(os.sched_getaffinity(0))))
    environment["CUDA_VISIBLE_DEVICES"] = ""  # torch.compile would start CUDA, which no fork survives
    done = processes.run_python(["script.py"], folder, environment=environment)
    assert done.returncode == 0, done.stderr
    verdict, how = done.stdout.splitlines()
    assert verdict == "True [] True", done.stdout
    return how


@pytest.mark.slow
def test_after_torch_has_used_its_threads(tmp_path):
    assert ask(tmp_path, TORCH) == "['isolation: forked child'] []"


@pytest.mark.slow
@pytest.mark.needs("g++")
def test_after_an_openmp_library_has_used_its_threads(tmp_path):
    (tmp_path / "work.cpp").write_text(OPENMP_SOURCE)
    library = str(tmp_path / "libwork.so")
    subprocess.run(["g++", "-fopenmp", "-shared", "-fPIC", "work.cpp", "-o", library], cwd=tmp_path, check=True)
    assert ask(tmp_path, OPENMP.format(library=library)) == "['isolation: forked child'] []"


def test_openmp_runtimes_are_told_to_use_one_thread():
    """torch asks its own how many it would use."""
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        fork.one_thread_each()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)


@pytest.mark.level("default")
@pytest.mark.needs("numba")
@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_after_numba_has_used_its_threads(layer, tmp_path):
    """Numba starts its own threads anew in a fork, and ends a process that was forked after it used OpenMP's."""
    told = ask(tmp_path, NUMBA.format(layer=layer))
    assert ("forked child, then fresh process" in told) == ("not in a fresh process" in told) == (layer == "omp")


COMPILED = """
def plain(x):
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()


parallel = torch.compile(plain, dynamic=True)


def use():
    parallel(torch.randn(8, 300))
"""


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.needs("g++")
def test_after_torch_compile_was_used(tmp_path, monkeypatch):
    """Its compile workers answer to a thread of the process that started them."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    # it compiles one graph for all
    few = "lambda case: min(case.size.values()) > 1 and case.layouts[0][1] == 'contiguous'"
    told = ask(tmp_path, COMPILED, where=few)
    # torch before 2.13 compiles again in the child, which waits for workers that are not there
    anew = "forked child, then fresh process" in told and "not in a fresh process" in told
    assert told == "['isolation: forked child'] []" or (anew and torch.__version__ < "2.13"), told


def test_a_compiled_function_is_found_by_the_name_it_has_in_its_file(monkeypatch):
    made = functools.wraps(softmax)(lambda x: x)
    assert travel.file_and_name(made) is None
    monkeypatch.setattr(sys.modules[__name__], "wrapped", made, raising=False)
    assert travel.file_and_name(made) == (__file__, "wrapped")
    assert travel.file_and_name(softmax) == (__file__, "softmax")


def test_a_pickled_function_knows_its_file():
    """And functions within it: a death is told by it, and Triton and Numba read the source."""
    width = 3

    def closure(x):
        return [lambda y: y + width for _ in x]

    (way,) = travel.ways(closure, False)
    assert way[0] == "pickle"
    found = travel.arrived(way)
    assert found is not closure and found([0])[0](1) == 4
    assert {found.__code__.co_filename, found([0])[0].__code__.co_filename} == {__file__}


@pytest.mark.level("default")
@pytest.mark.slow
def test_after_a_thread_pool_of_python_was_used(tmp_path):
    told = ask(tmp_path, EXECUTOR)
    assert "forked child, then fresh process" in told


def test_a_kernel_that_uses_threads_of_its_own():
    def threaded(x):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return torch.cat([*pool.map(softmax, x.tensor_split(2))]) if x.numel() else softmax(x)

    report = few(threaded)
    assert report.passed, str(report)
    assert report.notes == []


@pytest.mark.slow
def test_a_spawned_process_is_used_again_and_replaced_when_it_dies(tmp_path):
    def dies(x):
        (tmp_path / str(os.getpid())).touch()
        if x.shape == deadly:
            print("last words", flush=True)
            ctypes.string_at(0)
        return softmax(x)

    trials = cases(4)
    deadly = tuple(trials[0].case.size.values())
    trials = [trials[0], *(trial for trial in trials if tuple(trial.case.size.values()) != deadly)]
    with Runner(user(dies), trials, "spawn") as runner:
        outcomes = [runner.outcome(index) for index in range(len(trials))]
    assert [outcome.status for outcome in outcomes] == [FAILED, *[PASSED] * (len(trials) - 1)]
    assert "segmentation fault at test_isolation.py:" in outcomes[0].findings[0].message
    assert len(list(tmp_path.iterdir())) == 2
    assert runner.how == "isolation: fresh process"


@pytest.mark.slow
def test_properties_and_invalid_calls_reach_a_fresh_process():
    subject = user(softmax, own=True)
    found, _ = trials_of(subject, "quick")
    kept = [trial for trial in found if isinstance(trial, PropertyTrial | InvalidCall)]
    with Runner(subject, kept, "spawn") as runner, Runner(subject, kept, "none") as here:
        for index in range(len(kept)):
            assert runner.outcome(index) == here.outcome(index)


def test_what_cannot_be_sent_is_judged_here_and_said_so():
    lock = threading.RLock()

    def held(x):
        with lock:
            return softmax(x)

    with Runner(user(held, device="cuda"), cases(1)) as runner:
        assert runner.mode == "none"
        assert "not isolated" in runner.notes[0]
        assert "held cannot be sent to another process" in runner.notes[0]
    with pytest.raises(ValueError, match=r"(?s)fn: .*held cannot be sent.*isolate='none'"):
        Runner(user(held), cases(1), "spawn")


@pytest.mark.slow
def test_a_function_whose_import_ends_the_process_is_a_usage_error(tmp_path):
    (tmp_path / "deadly.py").write_text(
        "import os, sys\nif 'pytest' not in sys.modules: os._exit(9)\n\ndef fn(x):\n    return x\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        fn = __import__("deadly").fn
        with pytest.raises(
            ValueError,
            match=r"fn: .*cannot be imported in a fresh process: the process ended with status 9.*isolate='none'",
        ):
            few(fn, isolate="spawn")
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["deadly"]


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["fork", "spawn"])
def test_what_a_kernel_prints_stays_visible(isolate, capfd):
    def prints(x):
        print("seen from python")
        os.write(2, b"seen from below\n")
        return softmax(x)

    few(prints, isolate=isolate)
    out, err = capfd.readouterr()
    assert "seen from python" in out
    assert "seen from below" in err


def test_a_breakpoint_says_what_to_do():
    def stops(x):
        breakpoint()
        return softmax(x)

    report = few(stops)
    assert all("isolate='none'" in finding.message for finding in report.findings)
    assert len(report.findings) > 3


def test_errors_of_the_judge_are_no_findings(monkeypatch):
    def broken(subject, trial, **options):
        raise KeyError("of the judge")

    monkeypatch.setattr(judge, "run", broken)
    with Runner(user(softmax), cases(1)) as runner, pytest.raises(KeyError, match="of the judge"):
        runner.outcome(0)


def test_errors_of_an_instrument_in_the_kernels_process_are_no_findings(monkeypatch):
    def broken(seen):
        raise KeyError("of an instrument")

    monkeypatch.setattr(wire, "observed_to_json", broken)
    with Runner(user(softmax), cases(1)) as runner, pytest.raises(RuntimeError, match="of an instrument") as caught:
        runner.outcome(0)
    assert "in broken" in str(caught.value)


@pytest.mark.slow
def test_a_death_between_two_trials_is_not_lost():
    def later(x):
        if x.shape == deadly:
            threading.Timer(0.2, os._exit, [5]).start()
        return softmax(x)

    trials = cases(3)
    deadly = tuple(trials[0].case.size.values())
    with Runner(user(later), [trials[0], trials[-1]]) as runner:
        assert runner.outcome(0).status == PASSED
        time.sleep(1)
        outcome = runner.outcome(1)
    assert tuple(trials[-1].case.size.values()) != deadly
    assert [finding.message for finding in outcome.findings] == [
        f"the process ended with status 5, after {trials[0].id} had been judged"
    ]
    assert outcome.fractions


@pytest.mark.slow
def test_a_child_that_waits_for_a_compiler_is_not_idle(tmp_path, monkeypatch):
    monkeypatch.setattr(runner_module, "IDLE_SECONDS", 0.3)

    def compiles(x):
        (tmp_path / str(os.getpid())).touch()
        if not (tmp_path / "compiled").exists():
            busy = "import time; end = time.process_time() + 1\nwhile time.process_time() < end: pass"
            subprocess.run([sys.executable, "-c", busy], check=True)
            (tmp_path / "compiled").touch()
        return softmax(x)

    with Runner(user(compiles), cases(1)) as runner:
        assert runner.outcome(0).status == PASSED
    assert len(list(tmp_path.iterdir())) == 2  # one process, and its mark


def test_a_child_that_lost_its_context_is_not_used_again(monkeypatch):
    def loses(x):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(executor, "_lost", lambda device: "CUDA error: an illegal memory access was encountered")
    trials = cases(2)
    with Runner(user(loses), trials) as runner:
        assert [runner.outcome(0).status, runner._child] == [FAILED, None]
        assert [finding.check for finding in runner.outcome(1).findings] == [Check.RAISED]


def test_after_a_lost_context_the_kernel_is_called_no_more_and_what_was_found_stands(monkeypatch, tmp_path):
    """A copy to the device would fail then, in the middle of a search for the plainest case that fails, too."""
    calls = tmp_path / "calls"

    def loses(x):
        with calls.open("a") as file:
            file.write("called\n")
        raise RuntimeError("CUDA error: misaligned address")

    def refuse(*_):
        raise RuntimeError("CUDA error: misaligned address")

    monkeypatch.setattr(executor, "_lost", lambda device: "CUDA error: misaligned address")
    place = executing._Calls._place
    monkeypatch.setattr(executing._Calls, "_place", lambda *given: (refuse if calls.exists() else place)(*given))
    (trial,) = cases(1)
    sliced = dataclasses.replace(trial, case=dataclasses.replace(trial.case, layouts=(("x", "sliced"),)))
    with Runner(user(loses), [sliced]) as runner:
        outcome = runner.outcome(0)
    assert outcome.status == FAILED and calls.read_text() == "called\n"
    assert [(found.check, found.requirement) for found in outcome.findings] == [(Check.RAISED, "layouts")]


@pytest.mark.level("default")
@pytest.mark.slow
def test_many_runners_leave_nothing_behind():
    trials = cases(1)
    with Runner(user(softmax), trials) as runner:
        runner.outcome(0)
    before = len(os.listdir("/proc/self/fd"))
    for index in range(100):
        runner = Runner(user(softmax), trials)
        if index % 20 == 0:
            assert runner.outcome(0).status == PASSED
        runner.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert psutil.Process().children() == []


ORPHAN = """
import os, sys, time
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation.runner import Runner
from touchstone.conformance.judging.trials import trials_of


def fn(x):
    print(os.getpid(), flush=True)
    time.sleep(100)


if __name__ == "__main__":
    subject = Subject("softmax", fn, "fn", "user@cpu", "cpu")
    Runner(subject, trials_of(subject, "quick")[0], "spawn").outcome(0)
"""


def tells_and_sleeps(x):
    print(os.getpid(), flush=True)
    time.sleep(100)


@pytest.mark.slow
def test_forked_children_do_not_outlive_a_killed_parent(tmp_path):
    parent = processes.Fork(lambda: Runner(user(tells_and_sleeps), cases(1), "fork").outcome(0), tmp_path)
    child = int(parent.line())
    assert psutil.pid_exists(child)
    os.kill(parent.pid, signal.SIGKILL)
    assert gone(child) and parent.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_fresh_children_do_not_outlive_a_killed_parent(tmp_path):
    (tmp_path / "orphan.py").write_text(ORPHAN)
    environment = processes.clean_environment(PYTHONPATH=str(registry.ROOT))
    with subprocess.Popen(
        [sys.executable, "orphan.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as parent:
        child = int(parent.stdout.readline())
        assert psutil.pid_exists(child)
        parent.kill()
        assert gone(child)


@pytest.mark.slow
def test_an_idle_child_notices_that_its_parent_is_gone(tmp_path):
    """Also one that was started from a thread, and that has a younger brother."""

    def tells(x):
        print(os.getpid(), flush=True)
        return x

    def starts():
        kept = []

        def start():
            kept.append(Runner(user(tells), cases(1), "fork"))
            kept[0].outcome(0)

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        kept.append(Runner(user(tells), cases(1), "fork"))
        time.sleep(100)

    parent = processes.Fork(starts, tmp_path)
    child = int(parent.line())
    until = time.monotonic() + 30
    while len(psutil.Process(parent.pid).children()) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(parent.pid, signal.SIGKILL)
    assert gone(child) and parent.wait() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl_c", "sigterm"])
def test_an_interruption_ends_the_child_and_reports(tmp_path, number):
    (tmp_path / "kernels.py").write_text(
        "import os, time\n\ndef fn(x):\n    print('child', os.getpid(), flush=True)\n    time.sleep(100)\n"
    )
    arguments = ["check", "softmax", "--kernel=kernels.py:fn", "--device=cpu", "--json=out.json"]
    judge = processes.fork_touchstone(arguments, tmp_path)
    child = int(judge.line().split()[1])
    os.kill(judge.pid, number)
    status, out, err = judge.wait(30), judge.out.read_text(), judge.err.read_text()
    assert gone(child)
    assert status == 130, err
    assert "INTERRUPTED; judged on 0 of " in out
    assert "PASSED" not in out and " interrupted" in out
    assert err.endswith("interrupted\n")
    record = json.loads((tmp_path / "out.json").read_text())
    assert (record["verdict"], record["interrupted"], record["status"]) == ("interrupted", True, 130)
    assert record["reports"][0]["interrupted"]


def test_a_kernel_that_sigterm_ends_interrupts_nothing(tmp_path):
    (tmp_path / "kernels.py").write_text(
        "import os, signal\n\ndef fn(x):\n    os.kill(os.getpid(), signal.SIGTERM)\n    signal.pause()\n"
    )
    narrowed = ["--quick", "--dtypes=float32", "--where=rows == 3"]
    done = processes.fork_touchstone(
        ["check", "softmax", "--kernel=kernels.py:fn", "--device=cpu", *narrowed], tmp_path
    )
    assert done.wait() == 1 and "SIGTERM" in done.out.read_text(), done.out.read_text() + done.err.read_text()


@pytest.mark.slow
def test_a_new_child_goes_on_where_one_died():
    def dies(x):
        if x.shape == deadly:
            os._exit(4)
        return softmax(x)

    trials = cases(6)
    deadly = tuple(trials[2].case.size.values())
    affected = [tuple(trial.case.size.values()) == deadly for trial in trials]
    assert not affected[0]
    with Runner(user(dies), trials) as runner:
        outcomes = [runner.outcome(index) for index in range(6)]
    assert [outcome.trial for outcome in outcomes] == [trial.id for trial in trials]
    assert [outcome.status for outcome in outcomes] == [FAILED if one else PASSED for one in affected]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (
            lambda: Runner(user(softmax), [], "thread"),
            "mode: expected one of 'auto', 'fork', 'spawn', 'none', got 'thread'",
        ),
        (lambda: Runner(user(softmax, device="cuda"), [], "fork"), "isolate: 'fork' does not work with device 'cuda'"),
        (lambda: Limits(seconds=0), "seconds: expected a positive number, got 0"),
        (lambda: Limits(bytes="4G"), "bytes: expected a positive number, got '4G'"),
        (lambda: Limits(seconds=float("nan")), "seconds: expected a positive number, got nan"),
        (lambda: few(softmax, timeout=-1), "timeout: expected a positive number of seconds, got -1"),
    ],
)
def test_a_wrong_argument_is_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def test_a_busy_machine_gets_more_time_on_the_clock():
    """At most four times the limit, as long as the process gets some processor time."""
    assert not limits.too_long(elapsed=59, processor=59, limit=60, waited=0)
    assert limits.too_long(elapsed=60, processor=60, limit=60, waited=0)
    assert not limits.too_long(elapsed=100, processor=20, limit=60, waited=0)
    assert limits.too_long(elapsed=240, processor=20, limit=60, waited=0)
    assert limits.too_long(elapsed=60, processor=0.1, limit=60, waited=0)
    assert not limits.too_long(elapsed=60, processor=0.1, limit=60, waited=50)
    assert limits.too_long(elapsed=240, processor=0.1, limit=60, waited=50)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found by what Linux tells of them")
@pytest.mark.parametrize("stays", [True, False])
def test_a_process_that_a_kernel_leaves_is_ended_and_noted(tmp_path, stays):
    """And one that ends by itself as its parent does is none of anybody's business."""
    told = tmp_path / "told"

    def leaves(x):
        if not told.exists() and os.fork() == 0:
            if stays:
                os.setsid()
            told.write_text(str(os.getpid()))
            time.sleep(30)
            os._exit(0)
        while not told.exists() or not told.read_text():
            time.sleep(0.001)
        return softmax(x)

    report = check("softmax", leaves, device="cpu", level="quick", sizes={"cols": 33}, dtypes=["float32"])
    noted = [note for note in report.notes if "had started" in note]
    assert noted == (["processes that the kernel's had started, that were there after it, and were ended: 1"] * stays)
    with contextlib.suppress(psutil.NoSuchProcess):  # its new parent may have yet to learn of its end
        assert psutil.Process(int(told.read_text())).status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells how long a process waited for a processor")
def test_a_child_that_other_processes_keep_from_work_has_waited():
    """Two at work on one processor wait for each other."""
    one = min(os.sched_getaffinity(0))
    program = (
        f"import os, time\nos.sched_setaffinity(0, [{one}])\nend = time.monotonic() + 1\n"
        "while time.monotonic() < end: pass"
    )
    children = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    seen = [0.0, 0.0]
    while any(child.poll() is None for child in children):
        seen = [max(before, waited([child.pid])) for before, child in zip(seen, children, strict=True)]
        time.sleep(0.01)
    assert min(seen) > 0.1 and [child.returncode for child in children] == [0, 0]
    assert waited([children[0].pid]) == 0.0  # it is gone


FOUR = """
import ctypes
import torch


def softmax(x):
    y = torch.empty(x.shape, dtype=x.dtype)
    y.copy_(torch.softmax(x.float(), -1))
    if x.shape == (3, 33):  # the allocator rounds up, so that nothing else lies there
        ctypes.memset(y.data_ptr() + y.numel() * y.element_size(), 0, y.element_size())
    if x.shape == (17, 64):
        beyond = x.as_strided((1,), (1,), x.storage_offset() + (x.shape[0] - 1) * x.stride(0) + 63 * x.stride(1) + 1)
        y += 0 * beyond
    while x.shape == (7, 127):
        pass
    if x.shape == (5, 1025):
        ctypes.string_at(0)
    return y
"""


@pytest.mark.level("default")
@pytest.mark.slow
def test_four_misdeeds_are_four_findings_of_one_run(tmp_path):
    """Writes past its output, reads past its input, never returns, segmentation fault: each found, and status 1."""
    (tmp_path / "four.py").write_text(FOUR)
    arguments = ["check", "softmax", "--kernel=four.py:softmax", "--device=cpu", "--quick", "--dtypes=float32,float16"]
    arguments += ["--sizes=cols=33,64,127,1025", "--timeout=2", "--json=four.json"]
    done = processes.fork_touchstone(arguments, tmp_path)
    assert done.wait() == 1, done.out.read_text() + done.err.read_text()
    found = {}
    (report,) = json.loads((tmp_path / "four.json").read_text())["reports"]
    for finding in report["findings"]:
        size = next((s for s in ("3x33", "17x64", "7x127", "5x1025") if f"-{s}-" in finding["trial"]), None)
        found.setdefault(size, set()).add(finding["check"])
    assert Check.BOUNDS in found["3x33"]
    assert Check.VALUES in found["17x64"]
    assert found["7x127"] == {Check.HANG}
    assert found["5x1025"] == {Check.CRASH}
