"""A kernel timed in a fresh process, as on a GPU; here on the CPU, where nothing of it differs but the timer."""

import json

import pytest

from touchstone.conformance.bench import fresh, timing
from touchstone.conformance.bench.group import FAILED, MEASURED, REFUSED, Group, Result
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.importing import FileFunction
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation.limits import Limits
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.cases import plain_case

KERNELS = """
import itertools
import os
import time
import torch
from touchstone.conformance.bench import timing


def right(x):
    return torch.softmax(x, -1)


def wrong(x):
    return torch.softmax(x, 0)


def crashes(x):
    os.abort()


def hangs(x):
    time.sleep(60)


ticks = itertools.count()


def claims(x):
    # every clock of this process hardly moves
    timing.CpuTimer.time.__defaults__ = (None, lambda: 1e-6 * next(ticks))
    timing.CpuTimer.bulk.__defaults__ = (lambda: 1e-6 * next(ticks),)
    timing.Guard.changed = lambda *_, **__: []
    time.sleep(0.1)
    return torch.softmax(x, -1)
"""


def group_of(name, folder):
    (folder / "kernels.py").write_text(KERNELS)
    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", "normal", 0, {"rows": 8, "cols": 64})
    subject = Subject("softmax", FileFunction(folder / "kernels.py", name), name, "user@cpu", "cpu")
    return Group(contract, Bench(), case, [("", subject)])


def measured(name, folder, seconds=20.0):
    group = group_of(name, folder)
    return fresh.measure(group, timing.CpuTimer(), None, 0.02, limits=Limits(seconds=seconds))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("right", MEASURED, ""),
        ("wrong", FAILED, "wrong before it was timed"),
        ("crashes", FAILED, "not timed: abort at kernels.py"),
        ("hangs", FAILED, "not timed: no answer after"),
        pytest.param("claims", REFUSED, "by the judge's clock, and", marks=pytest.mark.level("default")),
        ("absent", FAILED, "defines no function 'absent'"),
    ],
)
def test_a_kernel_in_a_fresh_process(name, status, reason, tmp_path):
    (result,) = measured(name, tmp_path, 2.5 if name == "hangs" else 20.0)
    assert result.status == status, result.problems
    assert (result.ms is None) == (status != MEASURED)
    assert reason in "; ".join(result.problems)


def whole():
    made = Result("softmax", "n", "t", "variant", "float32", {}, {}, "fwd", "warm", MEASURED)
    made.stats, made.seconds = timing.stats([1e-3]), [1e-3]
    return json.loads(json.dumps(fresh.asdict(made)))


def test_what_a_process_tells_is_checked(tmp_path):
    group = group_of("right", tmp_path)
    assert fresh._result_from(whole(), group, timing.CpuTimer()).ms == 1.0
    for name, value in (("seconds", ["x"]), ("ratios", []), ("worst", {}), ("problems", None), ("roof", 1)):
        with pytest.raises(fresh._NotTimed, match="broke the protocol"):
            fresh._result_from(whole() | {name: value}, group, timing.CpuTimer())
    with pytest.raises(fresh._NotTimed):
        fresh._result_from([], group, timing.CpuTimer())
    told = whole() | {"status": "excellent"}
    assert fresh._result_from(told, group, timing.CpuTimer()).status == FAILED


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("claimed", [1e-3, 1e-6])
def test_a_claim_is_held_against_the_judges_clock(claimed, device, tmp_path, monkeypatch):
    """What one more call takes by it, whatever all rows of calls take besides; up to the ratio and the slack."""
    most = fresh.BULK_RATIO * claimed + fresh.BULK_SLACK[device]
    for each, refused in ((0.0, False), (claimed, False), (0.9 * most, False), (1.1 * most, True), (100 * most, True)):
        clock, asked = [5.0], []

        def send(_, message, asked=asked):
            asked.append(json.loads(message)["calls"])

        def answer(*_, each=each, clock=clock, asked=asked):
            clock[0] += 3.0 + each * asked[-1]  # three seconds of what is no call's
            return {}

        monkeypatch.setattr(fresh, "_send", send)
        monkeypatch.setattr(fresh, "_answer", answer)
        monkeypatch.setattr(fresh, "_now", lambda clock=clock: clock[0])
        result = fresh._result_from(whole(), group_of("right", tmp_path), timing.CpuTimer())
        result.seconds, result.stats = [claimed], timing.stats([claimed])
        fresh._check_claim([result], None, None, Limits(), device)
        assert (result.status == REFUSED) == refused
        assert len(asked) == 2 and 2 <= asked[0] <= 20 and asked[1] == 2 * asked[0]
        told = f"{each * 1e3:.3g} ms each by the judge's clock, and {claimed * 1e3:.3g} ms are claimed"
        assert any(told in problem for problem in result.problems) == refused
