"""A kernel in a process of its own, baselines in another: what is measured, and that neither reaches the other."""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
import zlib

import pytest
import torch

from touchstone.conformance.bench import apart, calls, ceilings, hooks, inputs, stopwatch
from touchstone.conformance.bench.group import DECLINED, FAILED, MEASURED, NOT_RUN, REFUSED, Group
from touchstone.conformance.cli import main
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation.limits import Limits
from touchstone.conformance.isolation.sandbox import kernel as linux
from touchstone.conformance.spec.baselines import Bench, eager
from touchstone.conformance.spec.cases import plain_case
from touchstone.reference.dropout import torch_dropout

OWED = 0.004  # seconds of processor time of a call
BASELINE = 0.002
LIMITS = Limits(seconds=20)
SIZE = {"rows": 8, "cols": 64}
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="processes are stopped and read on Linux alone")


def work(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def honest(x):
    work(OWED)
    return torch.softmax(x, -1)


def library(x):
    work(BASELINE)
    return {"y": torch.softmax(x, -1)}


def group_of(fn, *baselines, op="softmax", size=SIZE, bench=None, **about):
    contract = registry.contract(op)
    case = plain_case(contract, "float32", next(iter(contract.values)), 0, size)
    subject = Subject(op, fn, "mine", "user@cpu", "cpu", **about)
    return Group(contract, bench or Bench(), case, [("", subject)], baselines)


def measured(fn, *baselines, seconds=0.03, limits=LIMITS, ceiling=None, max_call_seconds=1e9, **about):
    return apart.measure(
        group_of(fn, *baselines, **about), ceiling, seconds, limits=limits, max_call_seconds=max_call_seconds
    )


class Kernel:
    """A callable with a state."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return torch.softmax(x, -1)


def closure():
    axis = -1
    return lambda x: torch.softmax(x, axis)


@pytest.mark.parametrize("fn", [honest, Kernel(), closure()], ids=["function", "object", "closure"])
def test_an_honest_kernel_is_timed_without_a_word(fn):
    (result,) = measured(fn)
    assert (result.status, result.problems, result.notes) == (MEASURED, [], [])
    assert result.stats.count >= 5 and 0 < result.worst < 1
    if fn is honest:
        assert result.ms > 0.9e3 * OWED


def test_a_mask_is_owed_by_each_call():
    """It follows from the seed alone, which is another one each time."""
    masks = {}

    def dropout(x, p, seed, offset):
        return torch_dropout(x.double(), p=p, seed=seed, offset=offset).to(x.dtype)

    def from_memory(x, p, seed, offset):
        if (p, offset) not in masks:
            ones = torch.ones(x.shape, dtype=torch.float64)
            masks[p, offset] = torch_dropout(ones, p=p, seed=seed, offset=offset)
        return (x.double() * masks[p, offset]).to(x.dtype)

    about = {"op": "dropout", "size": {"trailing": (64, 64)}}
    (result,) = measured(dropout, **about)
    assert (result.status, result.problems) == (MEASURED, [])
    (result,) = measured(from_memory, **about)
    assert result.status in (REFUSED, FAILED) and "elements wrong" in result.problems[0]


def test_a_seed_is_told_when_the_clock_starts():
    """A process that looks at the arguments of calls which are made ready finds no seed there to begin with."""
    found = {}

    def mask(seed, x, p, offset):
        if seed not in found:
            work(OWED)
            found[seed] = torch_dropout(torch.ones(x.shape, dtype=torch.float64), p=p, seed=seed, offset=offset)
        return found[seed]

    def ahead(contract, subject, arguments):
        if "seed" in arguments:
            with contextlib.suppress(Exception):
                mask(arguments["seed"], arguments["x"], arguments["p"], arguments["offset"])
        return bound(contract, subject, arguments)

    def dropout(x, p, seed, offset):
        calls.bound = ahead
        return (x.double() * mask(seed, x, p, offset)).to(x.dtype)

    def unsigned(*args, **kwargs):
        return dropout(*args, **kwargs)

    unsigned.__signature__ = "none that can be bound"
    bound = calls.bound
    for fn in (dropout, unsigned):
        (result,) = measured(fn, op="dropout", size={"trailing": (8, 8)})
        assert (result.status, result.problems) == (MEASURED, []) and result.ms > 0.9e3 * OWED


@pytest.mark.slow
@pytest.mark.needs("interpreter")
def test_an_honest_kernel_in_the_interpreter(tmp_path, capsys):
    source = (registry.ROOT / "tests" / "referee" / "candidates" / "honest.py").read_text()
    (tmp_path / "mine.py").write_text(source)
    for words in ([], ["--untrusted"]):
        assert main(["bench", "softmax", f"--kernel={tmp_path}/mine.py:softmax", "--device=cpu", *words]) == 0
        said = capsys.readouterr().out
        assert "mine.py" not in said and "refused" not in said and "ceilings" not in said


def test_what_is_the_same_takes_the_same_time():
    """Of calls that are short beside what it takes to ask for them; within a factor, and of three measurements in one,
    on a busy machine."""
    found = []
    for _ in range(3):
        mine, theirs = measured(
            lambda x: torch.softmax(x, -1),
            eager("the same", lambda x: {"y": torch.softmax(x, -1)}),
            size={"rows": 64, "cols": 512},
            seconds=0.2,
        )
        found.append((mine.ms, theirs.ms))
        if mine.ms < 5 and 1 / 3 < mine.ratios["the same"] < 3:
            return
    raise AssertionError(found)


def test_several_outputs_parameters_and_operands_that_are_none():
    def rms_norm(x, weight, eps=1e-6):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight

    (result,) = measured(rms_norm, op="rms_norm", size={"rows": 4, "cols": 32})
    assert (result.status, result.problems) == (MEASURED, [])

    def online(x):
        return torch.softmax(x, -1), torch.logsumexp(x, -1)

    (result,) = measured(online, op="online_softmax", size=SIZE)
    assert (result.status, result.problems) == (MEASURED, [])


def test_a_baseline_is_timed_in_the_same_way():
    mine, theirs = measured(honest, eager("library", library))
    assert (mine.kind, theirs.kind) == ("variant", "baseline") and theirs.ms > 0.9e3 * BASELINE
    assert mine.ratios["library"] == theirs.ms / mine.ms and theirs.notes == []
    _, wrong = measured(honest, eager("wrong", lambda x: {"y": torch.zeros_like(x)}))
    assert wrong.status == MEASURED and len(wrong.notes) == 1 and "outside the budget" in wrong.notes[0]


def patches_torch(x):
    softmax = torch._C._VariableFunctions.softmax
    torch.softmax = lambda *given: time.sleep(0.02) or softmax(*given)
    y = softmax(x, -1)
    work(OWED)
    return y


def one_thread(x):
    torch.set_num_threads(1)
    return honest(x)


def burns_in_a_thread(x):
    """Takes processor time from whatever runs beside it, were it not stopped."""
    if threading.active_count() == 1:
        for _ in range(4):
            threading.Thread(target=lambda: [torch.ones(300, 300).sum() for _ in iter(int, 1)], daemon=True).start()
    return honest(x)


def burns_in_a_process(x):
    if not (children := globals().setdefault("_children", [])):
        for _ in range(2):
            children.append(os.fork())
            if not children[-1]:
                os.setsid()
                for _ in iter(int, 1):
                    pass
    return honest(x)


def stops_others(x):
    """Stops and wakes every process of its user again and again, but for itself and the judge."""
    if not (children := globals().setdefault("_stopping", [])):
        mine, judge = os.getpid(), os.getppid()
        children.append(os.fork())
        if not children[-1]:
            os.setsid()
            for _ in iter(int, 1):
                for other in stopwatch.below(judge):
                    if other not in (mine, os.getpid()):
                        os.kill(other, signal.SIGSTOP)
                        time.sleep(0.01)
                        os.kill(other, signal.SIGCONT)
    return honest(x)


def rounds_to_less(x):
    torch.set_float32_matmul_precision("medium")
    torch.backends.cuda.matmul.allow_tf32 = True
    return honest(x)


@pytest.mark.parametrize(
    "fn", [patches_torch, one_thread, burns_in_a_thread, burns_in_a_process, stops_others, rounds_to_less]
)
def test_a_kernel_cannot_slow_a_baseline_down(fn):
    known = set(stopwatch.below(os.getpid()))
    threads = torch.get_num_threads()
    mine, theirs = measured(fn, eager("library", library))
    assert mine.status in (REFUSED, FAILED) or mine.ms > 0.8e3 * OWED
    assert mine.status in (REFUSED, FAILED) or mine.ratios["library"] < 3 * BASELINE / OWED, (mine.ms, theirs.ms)
    assert torch.get_num_threads() == threads and torch.get_float32_matmul_precision() == "highest"
    assert set(stopwatch.below(os.getpid())) <= known


@pytest.mark.parametrize("fn", [burns_in_a_process, stops_others])
def test_processes_that_are_left_are_held_against_it(fn):
    (mine,) = measured(fn)
    assert mine.status == REFUSED and any("processes outlived its own" in problem for problem in mine.problems)


def test_threads_do_not_make_it_faster():
    """Work that two threads do at the same time counts as if one had done it."""

    def both(x):
        data = bytearray(1 << 22)
        parts = [threading.Thread(target=lambda: zlib.crc32(data * 2)) for _ in range(2)]
        for each in parts:
            each.start()
        for each in parts:
            each.join()
        return torch.softmax(x, -1)

    def one_after_the_other(x):
        data = bytearray(1 << 22)
        for _ in range(2):
            zlib.crc32(data * 2)
        return torch.softmax(x, -1)

    (fast,), (slow,) = measured(both), measured(one_after_the_other)
    assert (fast.status, fast.problems) == (MEASURED, [])
    assert fast.ms > 0.6 * slow.ms, (fast.ms, slow.ms)


def test_a_thread_that_stays_is_held_against_it():
    kept = []

    def starts_one(x):
        kept.append(x)
        if len(kept) == 5:
            threading.Thread(target=lambda: time.sleep(60), daemon=True).start()
        return honest(x)

    (result,) = measured(starts_one)
    assert (result.status, result.problems) == (REFUSED, ["a timed call left a thread running"])


def test_a_process_that_works_while_it_is_stopped_is_held_against_it(monkeypatch):
    """As a timer of its own, which lets it go on, could have it do."""
    put, spinning = stopwatch.Stopwatch.put, []

    def put_and_woken(self, values):
        put(self, values)
        os.kill(self.pid, signal.SIGCONT)
        time.sleep(0.02)
        os.kill(self.pid, signal.SIGSTOP)

    def spins(x):
        if not spinning:
            spinning.append(threading.Thread(target=lambda: work(60), daemon=True))
            spinning[0].start()
        return torch.softmax(x, -1)

    monkeypatch.setattr(stopwatch.Stopwatch, "put", put_and_woken)
    (result,) = measured(spins)
    assert (result.status, result.problems) == (REFUSED, ["its process went on while it was stopped"])


@pytest.mark.skipif(not linux.can_stay_alone(), reason="this machine has no filters of system calls")
@pytest.mark.parametrize("started", [os.fork, lambda: subprocess.run(["true"])], ids=["fork", "command"])
def test_a_process_that_a_timed_call_starts_ends_it(started):
    """Before, it may start some: compilers are."""

    def starts(x):
        child = started()
        if child == 0:
            os._exit(0)
        if isinstance(child, int):
            os.waitpid(child, 0)
        return torch.softmax(x, -1)

    (result,) = measured(starts)
    assert (result.status, result.problems) == (REFUSED, ["a timed call started a process"])


def test_a_process_that_does_not_give_up_starting_others(monkeypatch):
    def honest_or_so(x):
        linux.stay_alone = lambda: None
        return torch.softmax(x, -1)

    (result,) = measured(honest_or_so)
    assert linux.can_stay_alone() is (result.status == REFUSED), result.problems


@pytest.mark.parametrize(
    ("fn", "limits", "reason"),
    [
        (lambda x: time.sleep(30), Limits(seconds=0.5), "not timed: no answer after"),
        (lambda x: [torch.ones(1 << 20) for _ in range(64)], Limits(bytes=1 << 27), "not timed: .*memory grew by"),
        (lambda x: os.kill(os.getpid(), signal.SIGSEGV), Limits(), "not timed: segmentation fault"),
        (lambda x: 1 / 0, Limits(), "ZeroDivisionError"),
    ],
    ids=["hang", "memory", "crash", "raise"],
)
def test_what_ends_its_process_is_a_result(fn, limits, reason):
    kept = []

    def kernel(x):
        kept.append(fn(x))
        return torch.softmax(x, -1)

    mine, theirs = measured(kernel, eager("library", library), limits=limits)
    assert mine.status == FAILED and mine.ms is None
    assert any(re.search(reason, problem) for problem in mine.problems), mine.problems
    assert theirs.status == MEASURED and theirs.ms > 0.9e3 * BASELINE


def test_who_declines_or_takes_too_long():
    def declines(x):
        raise NotImplementedError("64 columns")

    (result,) = measured(declines)
    assert (result.status, result.problems) == (DECLINED, ["64 columns"])
    (result,) = measured(honest, max_call_seconds=OWED / 2)
    assert result.status == NOT_RUN and "--max-call-seconds" in result.problems[0]


def test_faster_than_the_machine():
    slow = ceilings.Ceilings("cpu", copy=1e3, read=1e3, write=1e3, products={"float32": 1e9})
    (result,) = measured(lambda x: torch.softmax(x, -1), ceiling=slow)
    assert result.status == REFUSED and "above the roofline" in result.problems[0]


def test_places_that_are_judged_are_drawn_anew(monkeypatch):
    """Of outputs that are too large to be judged whole."""
    monkeypatch.setitem(inputs.PICKS, "cpu", 4)
    group = group_of(honest)
    values = inputs.Values(group.contract, group.bench, group.case, "cpu")
    drawn = values.draw()
    right, seen = {"y": torch.softmax(drawn["x"], -1)}, set()
    for _ in range(40):
        values.choose()
        assert values.judged(right, drawn, None)[1] == []
        seen |= set(values._picked()["y"][0].tolist())
    assert len(seen) > 100
    assert values.judged({}, drawn, None, ["y"])[1] == ["y: nothing came back"]


@pytest.mark.parametrize("busy", [1, apart.AGAIN_IF_LOST + 1])
def test_what_took_no_longer_than_nothing_is_measured_again(busy, monkeypatch):
    """Other work came between while calls of nothing were timed."""
    asked, middle = [], apart._middle

    def slow(taken):
        asked.append(len(taken))
        return apart.Taken(60.0, 60.0, {}) if len(asked) <= busy else middle(taken)

    monkeypatch.setattr(apart, "_middle", slow)
    (result,) = measured(honest)
    assert result.ms > 0.9e3 * OWED if busy == 1 else result.ms == 1e3 * apart.SHORTEST
    assert len(asked) == min(busy, apart.AGAIN_IF_LOST) + 1 and result.stats.count == asked[-1]


def test_the_judge_never_imports_the_file(tmp_path, capsys):
    told = tmp_path / "told"
    (tmp_path / "mine.py").write_text(
        f"import os, torch\nopen({str(told)!r}, 'a').write(f'{{os.getpid()}} ')\n\ndef mine(x):\n"
        "    return torch.softmax(x, -1)\n"
    )
    words = ["bench", "softmax", "--device=cpu", "--seconds=0.02", f"--kernel={tmp_path}/mine.py:mine"]
    assert main(words) == 0
    assert str(os.getpid()) not in told.read_text().split() and len(told.read_text().split()) == 2
    told.unlink()
    assert main([*words, "--isolate=none"]) == 0
    assert told.read_text().split() == [str(os.getpid())]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        ("def mine(x, y):\n    return x\n", 2, "--kernel: mine(x, y): softmax is called as fn(x)"),
        ("raise RuntimeError('no')\n", 2, "does not import: RuntimeError: no"),
        ("import a_package_that_nobody_has\n", 3, "does not import: No module named"),
        ("import os\nos._exit(0)\n", 2, "--kernel: "),
        ("def yours(x):\n    return x\n", 2, "defines no function 'mine'"),
    ],
)
def test_a_file_that_does_not_import(source, status, said, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(source)
    assert main(["bench", "softmax", "--device=cpu", f"--kernel={tmp_path}/mine.py:mine"]) == status
    told = capsys.readouterr()
    assert said in told.err + told.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--timeout=0"], "--timeout: expected a positive number"),
        (["--isolate=fork"], "--isolate: expected auto or none, got 'fork'"),
        (["--isolate=none", "--untrusted"], "--untrusted: does not go with --isolate=none"),
    ],
)
def test_usage_errors_name_the_option(words, message, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def mine(x):\n    return x\n")
    assert main(["bench", "softmax", "--device=cpu", f"--kernel={tmp_path}/mine.py:mine", *words]) == 2
    assert message in capsys.readouterr().err


def test_options_of_a_kernel_go_with_one(capsys):
    for words in (["--untrusted"], ["--isolate=none"]):
        assert main(["bench", "softmax", "--device=cpu", *words]) == 2
        assert "goes with --kernel" in capsys.readouterr().err


def test_code_and_defaults_are_looked_at():
    def watched(a, b=1, *, c=2):
        return a

    was = watched.__code__, watched.__defaults__, watched.__kwdefaults__
    code = hooks.Code(watched)
    assert not code.changed()
    for name, value in (("__code__", (lambda a: 0).__code__), ("__defaults__", (3,)), ("__kwdefaults__", {"c": 4})):
        setattr(watched, name, value)
        assert code.changed(), name
        code.restore()
        assert not code.changed() and (watched.__code__, watched.__defaults__, watched.__kwdefaults__) == was
