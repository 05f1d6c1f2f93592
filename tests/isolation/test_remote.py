"""The judge and the process of a kernel: what crosses between them, and what a reply that is none does."""

import gc
import os
import sys
import time
import weakref
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.processes import fork_touchstone, run_touchstone
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import child, executing, remote, wire
from touchstone.conformance.isolation.limits import Limits
from touchstone.conformance.isolation.processes import Death
from touchstone.conformance.isolation.remote import Died, Remote
from touchstone.conformance.isolation.runner import Runner
from touchstone.conformance.isolation.shared import OUTPUTS, REPLY, WINDOW, Shared
from touchstone.conformance.judging.executor import PLAIN, InProcess, Manner, Observed, Raised
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.checks import Check


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


@pytest.mark.parametrize(
    ("fn", "outputs", "told"),
    [
        (lambda x: (x + 1, x[:, 0] + 2), None, {"y": 1.0, "lse": 2.0}),
        (lambda x: (x + 1, x[:, 0] + 2), ("lse",), {"y": 1.0, "lse": 2.0}),
        (lambda x: x[:, 0] + 2, ("lse",), {"lse": 2.0}),
    ],
)
def test_all_outputs_are_told_or_those_that_are_judged(fn, outputs, told):
    made = child.forked(Subject("online_softmax", fn, "fn", "user@cpu", "cpu", outputs=outputs), [])
    try:
        made.remote.begin(Limits(seconds=20))
        seen = made.remote.call({"x": torch.zeros(2, 3)})
    finally:
        made.close()
    assert {name: value.unique().item() for name, value in seen.values.items()} == told


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


def test_an_output_that_is_dropped_is_told_once(start):
    there = start(lambda x: x + 1)
    for _ in range(2):
        there.call({"x": x_of(2, 2)})
        gc.collect()
    assert len(there._released) == 1  # that of the latest call


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
    assert len(told["library"]) == 256 and len(told["library"][0]) == 4096
    back = wire.observed_from_json(told)
    assert len(back.raised.said) == 4096 and len(back.raised.types) == 256


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


def judges_end(**about):
    """The judge's side alone, at the beginning of a trial."""
    there = Remote.__new__(Remote)
    there.shared = SimpleNamespace(forget=lambda clear: None)
    there._released, there._kept, there._held = [], [], weakref.WeakValueDictionary()
    there.begin(Limits(seconds=20))
    for name, value in about.items():
        setattr(there, name, value)
    return there


def test_a_memory_of_the_judges_has_one_place_in_a_trial():
    there = judges_end()

    def slot(address, size):
        found = there._slot(SimpleNamespace(address=address, size=size, part=None))
        return found.offset, found.size

    assert slot(1000, 100) == (0, 100) and slot(2000, 513) == (512, 513) and slot(3000, 4) == (1536, 4)
    assert slot(1000, 100) == (0, 100)
    assert slot(1000, 200) == (2048, 200)  # other memory at that address
    assert slot(4000, 0) != slot(4000, 0) or slot(4000, 0)[1] == 0
    assert slot(5000, WINDOW) == (WINDOW, WINDOW)  # no room in the window any more
    assert slot(6000, WINDOW + 1)[0] == 2 * WINDOW == 1 << 27
    assert slot(6500, WINDOW)[0] == 3 * WINDOW + (1 << 16)  # where any page begins
    assert slot(7000, 8) == (2560, 8)
    fresh = judges_end()
    assert fresh._slot(SimpleNamespace(address=1, size=WINDOW, part=None)).offset == 0


def test_operands_that_no_trial_has_room_for():
    there = judges_end()
    most = OUTPUTS - WINDOW
    assert there._slot(SimpleNamespace(address=1, size=most, part=None)).offset == WINDOW
    with pytest.raises(MemoryError, match=f"operands of more than {OUTPUTS} bytes in one trial"):
        there._slot(SimpleNamespace(address=2, size=WINDOW + 1, part=None))


def test_of_a_memory_that_is_mapped_only_what_was_written_is_copied(monkeypatch):
    buffer = torch.arange(64, dtype=torch.float32)
    written = buffer[8:].as_strided((2, 3), (16, 1), 8)
    storage = buffer.untyped_storage()
    monkeypatch.setattr(remote, "SPARSE", storage.nbytes())
    memory = remote._Memory(storage, written)
    assert memory.part == wire.Part("float32", (2, 3), (16, 1), 32)
    shared = torch.zeros(256, dtype=torch.uint8)
    memory.copy(shared, memory.part, back=False)
    there = shared.view(torch.float32)
    assert there[8:11].tolist() == [8, 9, 10] and there[24:27].tolist() == [24, 25, 26] and there.count_nonzero() == 6
    there[25] = 99
    there[0] = 99
    memory.copy(shared, memory.part, back=True)
    assert buffer[25] == 99 and buffer[0] == 0
    monkeypatch.setattr(remote, "SPARSE", storage.nbytes() + 1)
    whole = remote._Memory(storage, written)
    assert whole.part is None and remote._Memory(storage, None).part is None
    whole.copy(shared, None, back=False)
    assert torch.equal(there, buffer)
    remote._Memory(torch.empty(0).untyped_storage(), None).copy(torch.zeros(0, dtype=torch.uint8), None, back=False)


def test_each_storage_is_sent_once():
    memories = remote._Memories()
    x, empty = torch.zeros(8), torch.empty(0)
    for tensor in (x, x[2:], torch.zeros(3), empty, torch.empty(0)):
        memories.add(tensor)
    assert len(memories.every) == 4 and memories.number(x[5:]) == 0 and memories.number(empty) == 2


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_of_an_argument_is_told():
    there, memories = judges_end(), remote._Memories()
    x = torch.arange(12.0).reshape(3, 4)
    packed = torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.quint8)
    for value in (3.5, "mean", None, packed, torch.zeros(2, device="meta")):
        assert there._told(value, memories) is value
    first = there._told(x[1:, 1:], memories)
    assert first == wire.TensorAt(1, 0, "float32", (2, 3), (4, 1), 20)
    assert there._told(x, memories) == wire.TensorAt(2, 0, "float32", (3, 4), (4, 1), 0)
    assert there._told(x, memories).name == 2 and there._told(x.t(), memories).name == 3


def test_memories_of_outputs_are_read_as_far_as_they_may_be():
    room = torch.arange(64, dtype=torch.uint8)
    there = judges_end(shared=SimpleNamespace(bytes=lambda offset, size: room[:size]), _most=64)
    there._read([{"token": 1, "at": 0, "size": 20}, {"token": 2, "at": 40, "size": 24}])
    first, second = there._kept
    assert len(first) == len(second) == 32 and first[:20].tolist() == list(range(20)) and not first[20:].any()
    assert second[:24].tolist() == list(range(40, 64))
    room += 100
    there._read([{"token": 1, "at": 0, "size": 20}])
    assert first[:20].tolist() == list(range(100, 120)) and len(there._kept) == 2  # the same copy
    there._read([])
    there._read([{"token": 1, "at": 0, "size": 40}])
    assert there._held[1] is not first and len(there._held[1]) == 48  # another one where the size is another
    with pytest.raises(wire.Malformed, match="outputs of 65 bytes, where 64 are more than enough"):
        there._read([{"token": 3, "at": 40, "size": 25}])
    for told in (None, {}, [3], [{"token": 1, "at": 0}], [{"token": 1, "at": -1, "size": 4}], [{**HELD, "size": True}]):
        with pytest.raises(wire.Malformed):
            there._read(told)


def test_an_output_is_a_tensor_over_its_own_memory_or_its_operands():
    there, memories = judges_end(), remote._Memories()
    x = torch.arange(8.0)
    memories.add(x)
    kept = np.zeros(32, np.uint8)
    there._held[5] = kept
    told = {"dtype": "float32", "shape": [2, 2], "strides": [2, 1], "memory": ["held", 5], "at": 16}
    held = there._value(told, memories)
    held.fill_(1)
    assert held.shape == (2, 2) and kept[:16].sum() == 0 and kept[16:].any()
    assert there._value({**told, "memory": ["slot", 0]}, memories).tolist() == [[4, 5], [6, 7]]
    empty = there._value({**told, "shape": [0, 2], "memory": None, "at": 0}, memories)
    assert empty.shape == (0, 2) and empty.stride() == (2, 1)
    assert there._value(None, memories) is None
    assert isinstance(there._value({"other": "a list"}, memories), remote.Unreadable)
    for change, said in (
        ({"at": 20}, "larger than its memory"),
        ({"memory": ["slot", 1]}, "an operand that there is not"),
        ({"memory": ["held", 6]}, "memory that was not told"),
        ({"memory": None}, "without memory"),
    ):
        with pytest.raises(wire.Malformed, match=said):
            there._value({**told, **change}, memories)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_process_that_could_not_make_a_call(trusted):
    """An error of ours where the kernel is trusted; else its own doing."""
    ended = []
    made = SimpleNamespace(connection=SimpleNamespace(send_bytes=lambda message: None), kill=lambda: ended.append(1))
    watch = SimpleNamespace(wait=lambda *given: None)
    there = judges_end(child=made, watch=watch, trusted=trusted, _received=lambda nonce: {"failed": "KeyError"})
    with pytest.raises(RuntimeError if trusted else Died, match="the kernel's process could not make a call: KeyError"):
        there._answer(wire.Reread(1, ()))
    assert ended == ([] if trusted else [1])
    there._received = lambda nonce: {"no room": "2 GiB"}
    with pytest.raises(remote.NoRoom, match="2 GiB"):
        there._answer(wire.Reread(1, ()))
    there._received = lambda nonce: {"no room": "long" * wire.SAID}
    with pytest.raises(remote.NoRoom, match=f"^.{{{wire.SAID}}}$"):
        there._answer(wire.Reread(1, ()))
    death = Death(Check.HANG, "no answer")
    watch.wait = lambda *given: death
    with pytest.raises(Died, match="no answer"):
        there._answer(wire.Reread(1, ()))


def test_the_time_that_a_trials_calls_have_taken_counts_together():
    waited = []
    made = SimpleNamespace(connection=SimpleNamespace(send_bytes=lambda message: None))
    watch = SimpleNamespace(wait=lambda limits, idle, taken: waited.append(taken) or time.sleep(0.02))
    there = judges_end(child=made, watch=watch, trusted=True, _received=lambda nonce: {})
    for _ in range(3):
        there._answer(wire.Reread(1, ()))
    assert waited[0] == 0 and waited[1] >= 0.02 and waited[2] >= waited[1] + 0.02
    there.begin(Limits(seconds=20))
    there._answer(wire.Reread(1, ()))
    assert waited[3] == 0


def test_outputs_of_a_call_may_be_larger_than_they_should_and_no_more(start, monkeypatch):
    there, asked = start(lambda x: x + 1), []
    monkeypatch.setattr(there, "_answer", lambda request: asked.append(request) or {"ended": "sys.exit(3)"})
    for blocks in ((), (1000, 24)):
        with pytest.raises(remote.Ended, match=r"sys\.exit\(3\)"):
            there.call({"x": x_of(2, 2)}, Manner(blocks=blocks))
    assert [request.most for request in asked] == [1 << 30, (1 << 26) + 16 * 1024]
    assert [request.begins for request in asked] == [True, False]


def test_no_call_is_made_of_a_process_that_cuda_answers_no_more():
    remote = Remote.__new__(Remote)  # with no process at all
    remote.spent, remote._last = True, Observed(lost="CUDA error: misaligned address")
    assert remote.call({}).lost == "CUDA error: misaligned address" and remote.call({}) is not remote._last
    remote._held, remote._kept = {7: None}, []
    remote.reread([torch.zeros(3)])
