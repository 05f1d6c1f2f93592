"""The judge and the process of a kernel: what crosses between them, and what a reply that is none does."""

import gc
import os
import sys
from dataclasses import asdict
from functools import partial

import pytest
import torch

from tests.processes import fork_touchstone, run_touchstone
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import child, executing, remote, wire
from touchstone.conformance.isolation.limits import Limits
from touchstone.conformance.isolation.remote import Died, Remote
from touchstone.conformance.isolation.runner import Runner
from touchstone.conformance.isolation.shared import OUTPUTS, REPLY, WINDOW, Shared
from touchstone.conformance.judging.executor import PLAIN, InProcess, Manner, Observed, Raised
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.cases import plain_case


@pytest.fixture(params=[False, True], ids=["shared", "mirrored"])
def start(request, monkeypatch):
    """Starts the process of a function of softmax's signature; its executor in this process. `mirrored`: as on a GPU,
    where the kernel has copies of the operands."""
    started = []
    if request.param:
        monkeypatch.setattr(executing._Calls, "_place", _mirrored)

    def of(fn) -> Remote:
        made = child.forked(Subject("softmax", fn, "fn", "user@cpu", "cpu"), [])
        started.append(made)
        made.remote.begin(Limits(seconds=20))
        return made.remote

    yield of
    for made in started:
        made.close()


def _mirrored(self, slot: wire.Slot, dtype: torch.dtype | None) -> executing._Mirror:
    if slot not in self.places:
        self.places[slot] = executing._Mirror(self.shared.bytes(slot.offset, slot.size), slot.part, "cpu")
    self.places[slot].fetch()
    return self.places[slot]


def x_of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


LAYOUTS = {
    "contiguous": lambda: x_of(3, 5),
    "transposed": lambda: x_of(5, 3).t(),
    "a part": lambda: x_of(9, 10)[2:5, 1:9:2],
    "expanded": lambda: x_of(1, 4).expand(3, 4),
    "half": lambda: x_of(3, 5, dtype=torch.float16),
    "empty": lambda: x_of(0, 5),
    "larger than the window": lambda: x_of(1, (WINDOW >> 2) + 5),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_operands_and_outputs_cross_as_they_are(start, make):
    x = make()
    seen = start(lambda x: x * 2).call({"x": x})
    assert seen.returned and torch.equal(seen.values["y"], x * 2)
    strided = start(lambda x: (x * 2).t().contiguous().t()).call({"x": x})
    assert (
        torch.equal(strided.values["y"], x * 2)
        and strided.values["y"].stride() == (x * 2).t().contiguous().t().stride()
    )


def test_a_call_runs_elsewhere_and_is_told_as_one_made_here(start):
    def fn(x):
        torch.set_default_dtype(torch.float64)
        return torch.full_like(x, os.getpid())

    manner = Manner(poison=0xFF, blocks=(24,), watched=True, state=True)
    there = start(fn).call({"x": x_of(2, 3)}, manner)
    here = InProcess(Subject("softmax", fn, "fn", "user@cpu", "cpu")).call({"x": x_of(2, 3)}, manner)
    assert there.values["y"].eq(os.getpid()).sum() == 0 and here.values["y"].eq(os.getpid()).all()
    told, known = ({k: v for k, v in asdict(seen).items() if k != "values"} for seen in (there, here))
    assert told == known and known["settings"] == ["the default dtype from torch.float32 to torch.float64"]


def test_what_a_kernel_writes_into_its_operand_is_seen_here(start):
    x = x_of(4, 4)
    seen = start(lambda x: x.mul_(3)).call({"x": x})
    assert torch.equal(x, 3 * x_of(4, 4))
    assert seen.values["y"].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_memory_that_outputs_share_is_shared_here(start):
    kept = torch.zeros(4)

    def static(x):
        kept.copy_(x[0])
        return kept

    there = start(static)
    first = there.call({"x": x_of(2, 4)}).values["y"]
    assert first.tolist() == [0, 1, 2, 3]
    second = there.call({"x": x_of(2, 4) + 10}).values["y"]
    assert first.data_ptr() == second.data_ptr() and first.tolist() == [10, 11, 12, 13]


def test_a_later_change_is_seen_when_it_is_asked_for_and_not_before(start):
    kept = []

    def changes(x):
        for tensor in kept:
            tensor.add_(100)
        kept.append(x + 0)
        return kept[-1]

    there = start(changes)
    first = there.call({"x": x_of(2, 2)}).values["y"]
    second = there.call({"x": x_of(2, 2)}).values["y"]
    assert first.max() == 3 and first.data_ptr() != second.data_ptr()
    there.reread([first])
    assert first.max() == 103 and second.max() == 3


def test_outputs_that_are_dropped_here_are_released_there(start):
    alive = []

    def counts(x):
        gc.collect()
        alive.append(sum(type(o) is torch.Tensor and o.shape == (7, 11) for o in gc.get_objects()))
        made = torch.empty(7, 11)
        return made.fill_(alive[-1])

    there = start(counts)
    found = [int(there.call({"x": x_of(7, 11)}).values["y"][0, 0]) for _ in range(6)]
    assert max(found[2:]) <= found[1] + 1


@pytest.mark.parametrize(
    ("fn", "kind", "text"),
    [
        (lambda x: 1 / 0, "raises", r"ZeroDivisionError: division by zero (test_remote.py"),
        (lambda x: (_ for _ in ()).throw(NotImplementedError("no")), "declines", "NotImplementedError: no"),
        (lambda x: __import__("nothing_of_this_name"), "cannot be run here", "ModuleNotFoundError: No module"),
    ],
)
def test_what_a_kernel_raises(start, fn, kind, text):
    raised = start(fn).call({"x": x_of(2, 2)}).raised
    assert (raised.kind, raised.text[: len(text)]) == (kind, text)


# what a process that is not the judge's own may reply: (content, what the judge says of it)
TOLD = wire.observed_to_json(Observed())
Y = {"dtype": "float32", "shape": [2, 2], "strides": [2, 1], "memory": ["held", 1], "at": 0}
HELD = {"token": 1, "at": 0, "size": 16}
FORGED = {
    "nothing": {},
    "another shape": {"observed": {"passed": True}, "memories": [], "values": {}},
    "a text for a list": {"observed": {**TOLD, "cheats": "none"}, "memories": [], "values": {}},
    "numbers in a list": {"observed": {**TOLD, "cheats": [1]}, "memories": [], "values": {}},
    "an error of no kind": {"observed": {**TOLD, "raised": {"kind": "wins"}}, "memories": [], "values": {}},
    "values that are a number": {"observed": TOLD, "memories": [], "values": 3},
    "memory that was not told": {"observed": TOLD, "memories": [], "values": {"y": Y}},
    "more than its memory": {"observed": TOLD, "memories": [{**HELD, "size": 12}], "values": {"y": {**Y, "at": 12}}},
    "a negative stride": {"observed": TOLD, "memories": [HELD], "values": {"y": {**Y, "strides": [-2, 1]}}},
    "a huge shape": {"observed": TOLD, "memories": [HELD], "values": {"y": {**Y, "shape": [2**61, 2**61]}}},
    "truth for a number": {"observed": TOLD, "memories": [HELD], "values": {"y": {**Y, "at": True}}},
    "no dtype": {"observed": TOLD, "memories": [HELD], "values": {"y": {**Y, "dtype": "float33"}}},
    "an odd address": {"observed": TOLD, "memories": [HELD], "values": {"y": {**Y, "at": 1, "shape": [1, 1]}}},
    "memory of 2^50 bytes": {"observed": TOLD, "memories": [{**HELD, "size": 2**50}], "values": {"y": Y}},
    "an operand that there is not": {"observed": TOLD, "memories": [], "values": {"y": {**Y, "memory": ["slot", 7]}}},
    "no memory": {"observed": TOLD, "memories": [], "values": {"y": {**Y, "memory": None}}},
}


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
def test_a_reply_of_another_shape_is_the_end_of_that_process(start, monkeypatch, content):
    there = start(lambda x: x + 1)
    monkeypatch.setattr(there, "_answer", lambda request: content)
    with pytest.raises(Died, match="the kernel's process broke the protocol of the judge: "):
        there.call({"x": x_of(2, 2)})
    assert there.child.exited() is not None


def test_a_right_reply_passes_the_same_way(start, monkeypatch):
    there = start(lambda x: x + 1)
    monkeypatch.setattr(there, "_answer", lambda request: {"observed": TOLD, "memories": [HELD], "values": {"y": Y}})
    there.shared.bytes(OUTPUTS, 16).view(torch.float32).copy_(torch.arange(4.0))
    assert there.call({"x": x_of(2, 2)}).values["y"].tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff\xfe", b"[" * 60_000, b"Infinity"])
def test_a_reply_that_is_no_object_of_json(text):
    shared = Shared()
    shared.bytes(REPLY, len(text)).copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    for message in (wire.ANNOUNCED.pack(5, len(text)), wire.ANNOUNCED.pack(6, 2), wire.ANNOUNCED.pack(5, 2**40), b""):
        with pytest.raises(wire.Malformed):
            wire.received(shared, 5, message)
    shared.close()


def test_long_texts_are_cut():
    seen = Observed(library=["x" * 9000] * 9000, raised=Raised("raises", ("E",) * 999, "y" * 9000, "z" * 9000))
    told = wire.observed_to_json(seen)
    assert len(told["library"]) == wire.LISTED and len(told["library"][0]) == 4096
    back = wire.observed_from_json(told)
    assert len(back.raised.said) == 4096 and len(back.raised.types) == wire.LISTED


def _connection() -> int:
    """The descriptor on which this process answers the judge."""
    return max(int(name) for name in os.listdir("/proc/self/fd") if _is_socket(int(name)))


def _is_socket(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except OSError:
        return False


def replies_itself(x):
    os.write(_connection(), b"\x00\x00\x00\x10" + wire.ANNOUNCED.pack(1, 2))
    return x


def replies_in_part(x):
    os.write(_connection(), b"\x00\x00\x00\x10\x00")
    while True:
        pass


def floods(x):
    os.write(_connection(), b"\xff" * 65536)
    return x


@pytest.mark.slow
@pytest.mark.parametrize("fn", [replies_itself, replies_in_part, floods])
def test_a_kernel_that_writes_on_the_connection_is_a_finding(fn, monkeypatch):
    monkeypatch.setattr(remote, "wait_no_longer_than", partial(remote.wait_no_longer_than, seconds=1))
    subject = Subject("softmax", fn, "fn", "user@cpu", "cpu")
    case = plain_case(subject.contract, "float32", "normal")
    with Runner(subject, [CaseTrial(case)], limits=Limits(seconds=2), confirm=False) as runner:
        (finding,) = runner.outcome(0).findings
    assert finding.check in ("crash", "hang")


def test_nobody_can_make_the_shared_memory_smaller():
    shared = Shared()
    assert os.fstat(shared.descriptor).st_size > OUTPUTS
    for size in (0, 2**50):
        with pytest.raises(PermissionError):
            os.ftruncate(shared.descriptor, size)
    shared.close()


FILE = """
import os, pathlib, torch

def _tell(what):
    with open(os.environ["TOLD"], "a") as file:
        file.write(f"{what} {os.getpid()}\\n")

_tell("imported")

def fn(x):
    _tell("called")
    return torch.softmax(x.float(), -1).to(x.dtype)
"""


NARROWED = ["--kernel", "mine.py:fn", "--device=cpu", "--quick", "--sizes", "cols=64", "--dtypes", "float16"]


def told_by(folder) -> set[int]:
    """The processes that imported or called it."""
    return {int(line.split()[1]) for line in (folder / "told").read_text().splitlines()}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_the_judge_never_imports_the_file_of_a_kernel(tmp_path, monkeypatch, way):
    (tmp_path / "mine.py").write_text(FILE)
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    done = fork_touchstone(["check", "softmax", "--isolate", way, *NARROWED], tmp_path)
    assert done.wait() == 0, done.out.read_text() + done.err.read_text()
    assert told_by(tmp_path) and not told_by(tmp_path) & {os.getpid(), done.pid}


@pytest.mark.slow
def test_pytest_never_imports_the_file_of_a_kernel(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "judge.py").write_text(
        "import os, sys\nimport pytest\nprint('judge', os.getpid())\n"
        "suite = ['-q', '-p', 'touchstone.pytest', '--pyargs', 'touchstone.conformance.suite', '--op', 'softmax']\n"
        "sys.exit(pytest.main([*suite, *sys.argv[1:]]))\n"
    )
    done = run_touchstone(["judge.py", *NARROWED], tmp_path, environment={"TOLD": str(tmp_path / "told")})
    assert done.returncode == 0, done.stdout + done.stderr
    judge = int(done.stdout.splitlines()[0].split()[1])
    assert told_by(tmp_path) and judge not in told_by(tmp_path)


def test_the_python_that_runs_the_tests_is_that_of_the_child(start):
    """A forked child: what stands in the closure of a function is there."""
    marker = object()
    seen = start(lambda x: x + (len(sys.argv) if marker is not None else 0)).call({"x": x_of(2, 2)}, PLAIN)
    assert torch.equal(seen.values["y"], x_of(2, 2) + len(sys.argv))
