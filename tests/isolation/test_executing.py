"""The process of a kernel: what it says at first, how operands and outputs lie in memory that is told to the judge."""

import os
import py_compile
from multiprocessing import Pipe
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.processes import in_a_fork
from touchstone.conformance.discovery import launching
from touchstone.conformance.discovery.importing import FileFunction
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import executing, wire
from touchstone.conformance.isolation.executing import _Memory, _Mirror, _Place
from touchstone.conformance.isolation.shared import WINDOW, Shared
from touchstone.conformance.judging.executor import PLAIN


@pytest.fixture
def shared():
    made = Shared()
    yield made
    made.close()


def over(buffer, begin, size):
    """A tensor whose storage is a part of somebody's memory."""
    return torch.from_numpy(np.frombuffer(buffer, np.uint8, size, begin))


def test_the_memory_of_a_tensor():
    whole = torch.arange(100, dtype=torch.int16)
    memory = _Memory.of(whole[10:20])
    assert (memory.begin, memory.end) == (whole.data_ptr(), whole.data_ptr() + 200)  # a small storage counts whole
    assert memory.bytes().tolist() == whole.view(torch.uint8).tolist()
    large = torch.zeros(2**20 + 512, dtype=torch.uint8)
    some = large[5:15:3]
    memory = _Memory.of(some)
    assert (memory.begin - large.data_ptr(), memory.end - large.data_ptr()) == (5, 15)
    large[5:15] = torch.arange(10)
    assert memory.bytes().tolist() == list(range(10))
    assert _Memory.of(large[: 2**20 // 2]).end - large.data_ptr() == 2**20 + 512  # it is not much larger
    just = torch.zeros(2**20, dtype=torch.uint8)
    assert _Memory.of(just[:1]).end - just.data_ptr() == 2**20


def test_stretches_of_memory_meet_and_cover():
    a, b, c = (_Memory(begin, end, [begin]) for begin, end in ((10, 20), (20, 30), (15, 25)))
    assert not a.meets(b) and not b.meets(a) and a.meets(c) and c.meets(b) and a.meets(a)
    assert a.covers(a) and not a.covers(c) and _Memory(0, 40, []).covers(b) and not b.covers(_Memory(20, 31, []))
    joined = a.joined(c)
    assert (joined.begin, joined.end, joined.tensors) == (10, 25, [10, 15])


def test_storages_that_overlap_are_told_as_one_memory():
    """Made over memory of another library; what no storage has is 0."""
    buffer = bytearray(range(1, 41))
    first, second = over(buffer, 0, 20), over(buffer, 10, 20)
    memory = _Memory.of(first).joined(_Memory.of(second))
    assert memory.end - memory.begin == 30
    assert memory.bytes().tolist() == list(range(1, 31))
    apart = _Memory(memory.begin, memory.begin + 40, [over(buffer, 0, 5), over(buffer, 30, 5)])
    assert apart.bytes().tolist() == [*range(1, 6), *[0] * 25, *range(31, 36), *[0] * 5]
    inner = _Memory(memory.begin + 3, memory.begin + 12, [over(buffer, 0, 5), over(buffer, 10, 20)])
    assert inner.bytes().tolist() == [4, 5, 0, 0, 0, 0, 0, 11, 12]


def calls(shared):
    made = executing._Calls(shared, Subject("softmax", lambda x: x, "fn", "user@cpu", "cpu"))
    return made


def test_in_which_memory_outputs_lie(shared):
    made = calls(shared)
    operand, kept = torch.zeros(64), torch.zeros(32)
    place = _Place(operand.view(torch.uint8))
    tensors = {"in": operand[3:5], "a": kept[4:8], "b": kept[16:], "empty": torch.zeros(0), "c": torch.zeros(5)}
    where = made._memory_of(tensors, [_Place(torch.zeros(8, dtype=torch.uint8)), place])
    assert where["in"] == (("slot", 1), 12) and "empty" not in where
    assert where["a"] == (("held", 1), 16) and where["b"] == (("held", 1), 64)  # of one storage
    assert where["c"] == (("held", 2), 0)
    again = made._memory_of({"a": kept[:2]}, [])
    assert again["a"] == (("held", 1), 0) and sorted(made.held) == [1, 2] and len(made.held[1].tensors) >= 3
    kept.fill_(7)
    told = made._written({1, 2})
    assert [each["token"] for each in told] == [1, 2] and [each["size"] for each in told] == [128, 20]
    assert [each["at"] for each in told] == [0, 512]
    assert shared.bytes(executing.OUTPUTS, 128).view(torch.float32).tolist() == [7.0] * 32
    assert made._written(set()) == []


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_an_output_is_told_as_what_it_is():
    made = executing._Calls.__new__(executing._Calls)
    assert made._told(None, None) is None
    assert "list" in made._told([1], None)["other"]
    long = type("L" * 2 * wire.SAID, (), {})
    assert len(made._told(long(), None)["other"]) == wire.SAID  # whatever it calls itself
    packed = torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.quint8)
    assert made._told(packed, None) == {"other": "a tensor of dtype torch.quint8"}
    assert made._told(torch.zeros(0, 3), None)["memory"] is None
    assert made._told(torch.zeros(2), (("held", 4), 8))["at"] == 8
    assert "no multiple of its elements' size" in made._told(torch.zeros(2), (("held", 4), 6))["other"]


def test_an_argument_is_the_same_tensor_as_long_as_it_has_its_name(shared):
    made = calls(shared)
    bytes_of = torch.arange(64, dtype=torch.uint8)
    place = _Place(bytes_of)
    told = wire.TensorAt(5, 0, "int16", (2, 3), (4, 1), 8)
    assert made._argument(3.5, [place], False) == 3.5
    first = made._argument(told, [place], False)
    assert first is made._argument(told, [place], False)
    assert first.storage_offset() == 4 and first.untyped_storage().nbytes() == 64
    assert first.tolist() == bytes_of.view(torch.int16)[4:12].view(2, 4)[:, :3].tolist()
    made.given.clear()
    usual = made._argument(told, [place], True)
    assert torch.equal(usual, first) and usual.storage_offset() == 0 and usual.untyped_storage().nbytes() == 14


def test_an_argument_lies_where_its_part_of_a_mirror_does(shared):
    there = shared.bytes(0, 1100)
    there[:] = torch.arange(1100) % 251
    mirror = _Mirror(there, wire.Part("uint8", (2, 3), (10, 1), 1030), "cpu")
    mirror.fetch()
    told = wire.TensorAt(5, 0, "uint8", (2, 3), (10, 1), 1030)
    assert calls(shared)._argument(told, [mirror], False).tolist() == there[1030:].as_strided((2, 3), (10, 1)).tolist()


def test_what_is_hidden_is_fetched_for_a_call_and_told_after_it(shared):
    """Of the judge's memory nothing is left meanwhile; one who cannot read it finds other numbers."""
    made = calls(shared)
    made.window = executing.Window()
    slot, there = wire.Slot(512, 24), shared.bytes(512, 24)
    for numbers in (torch.arange(6.0), torch.arange(6.0) + 10):
        there.view(torch.float32).copy_(numbers)
        place = made._place(slot, torch.float32)
        assert not there.any() and place.bytes.view(torch.float32).tolist() != numbers.tolist()
        place.bytes.view(torch.float32)[2] = 99.0
        place.tell()
        numbers[2] = 99.0
        assert there.view(torch.float32).tolist() == numbers.tolist()


def test_of_which_numbers_a_slot_is():
    def dtype(*told, number=0):
        arguments = {str(n): value for n, value in enumerate(told)}
        return executing._dtype(SimpleNamespace(arguments=arguments), number)

    at = lambda name, slot=0, shape=(4,): wire.TensorAt(1, slot, name, shape, (1,) * len(shape), 0)  # noqa: E731
    assert dtype(at("float16"), 3.0) is torch.float16 and dtype(at("float16"), at("float16")) is torch.float16
    assert dtype(at("float16"), at("float32")) is None and dtype(at("int32")) is None and dtype() is None
    assert dtype(at("float16", 1)) is None and dtype(at("float16", 1), number=1) is torch.float16
    assert dtype(at("float32", shape=(1, 1))) is None and dtype(at("float32", shape=())) is None
    assert dtype(at("float16"), at("int32", shape=(1,))) is torch.float16


def test_a_mirror_has_a_copy_of_what_is_shared(shared):
    there = shared.bytes(0, 1100)
    there[:] = torch.arange(1100) % 251
    mirror = _Mirror(there, None, "cpu")
    mirror.fetch()
    assert torch.equal(mirror.bytes, there) and mirror.begin == 0 and mirror.bytes.data_ptr() != there.data_ptr()
    mirror.bytes[7] = 99
    assert there[7] != 99
    mirror.tell()
    assert there[7] == 99
    part = _Mirror(there, wire.Part("uint8", (2, 3), (10, 1), 1030), "cpu")
    assert part.begin == 1024 and part.bytes.numel() == 1100 - 1024
    part.fetch()
    assert (
        part.bytes[6:9].tolist() == there[1030:1033].tolist()
        and part.bytes[16:19].tolist() == there[1040:1043].tolist()
    )
    part.bytes[:] = 5
    part.tell()
    assert there[1030:1033].tolist() == [5, 5, 5] and there[1033] == 1033 % 251 and there[1029] == 1029 % 251


def introduced(shared, open_subject):
    sent = []
    found = executing.introduced(SimpleNamespace(send_bytes=sent.append), shared, open_subject)
    return found, wire.received(shared, 0, *sent)


def raising(error):
    def raises():
        raise error

    return raises


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (launching.MissingPackage("needs cupy"), {"missing": "needs cupy"}),
        (ValueError("fn: no such name"), {"refused": "fn: no such name"}),
        (KeyError("x"), {"failed": "KeyError: 'x'"}),
    ],
)
def test_why_there_is_no_function(shared, error, told):
    assert introduced(shared, raising(error)) == (None, told)


def test_a_process_without_a_function_ends(shared):
    here, there = Pipe()
    here.send("not looked at")
    executing._execute(there, shared, raising(ValueError("fn: no such name")))
    assert wire.received(shared, 0, here.recv_bytes()) == {"refused": "fn: no such name"}
    assert there.poll() and not here.poll()  # no request was taken


def test_a_function_that_is_there_and_one_that_does_not_fit(shared):
    plain = Subject("softmax", lambda x: x, "fn", "user@cpu", "cpu")
    assert introduced(shared, lambda: plain) == (plain, {"ready": True})
    two = Subject("softmax", lambda x, y: x, "fn", "user@cpu", "cpu")
    found, told = introduced(shared, lambda: two)
    assert found is None and told["refused"].startswith("fn: ") and "softmax is called as fn(x)" in told["refused"]
    own = Subject("softmax", lambda x, y: x, "fn", "triton@cpu", "cpu", own=True)
    assert introduced(shared, lambda: own)[1] == {"ready": True}


def test_what_an_untrusted_author_s_file_imports_is_read_from_its_source(tmp_path):
    """Bytecode of another text lies beside it, which Python would take for this one's: size and time are the same."""
    beside, mine = tmp_path / "beside_of_untrusted.py", tmp_path / "mine.py"
    mine.write_text(f"import {beside.stem}\n\ndef fn():\n    return {beside.stem}.VALUE\n")

    def value(untrusted):
        subject = Subject("softmax", FileFunction(mine, "fn"), "fn", "user@cpu", "cpu", untrusted=untrusted)
        return executing.opened(subject).fn()

    for text in ("VALUE = 1\n", "VALUE = 2\n"):
        beside.write_text(text)
        os.utime(beside, (1e9, 1e9))
        if text.endswith("1\n"):
            py_compile.compile(str(beside))
    assert in_a_fork(lambda: value(False), tmp_path) == 1 and in_a_fork(lambda: value(True), tmp_path) == 2


def test_a_process_is_set_up_for_what_a_user_s_function_imports_later(monkeypatch):
    """And not for a variant, which is imported as the target wants it."""
    asked = []
    monkeypatch.setattr(launching, "expect", asked.append)
    for own in (True, False):
        subject = Subject("softmax", lambda x: x, "fn", "user@cpu", "cpu", own=own)
        assert executing.opened(subject) is subject
        assert asked == ([] if own else ["cpu"])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("there is no fn"), "^fn: there is no fn$"),
        (launching.MissingPackage("needs cupy"), "^needs cupy$"),
        (LookupError("its own"), "^'?its own"),
    ],
)
def test_why_a_file_gives_no_function(monkeypatch, tmp_path, error, message):
    monkeypatch.setattr(launching, "opened", lambda *given: raising(error)())
    subject = Subject("softmax", FileFunction(tmp_path / "mine.py", "fn"), "fn", "user@cpu", "cpu")
    with pytest.raises(type(error), match=message):
        executing.opened(subject)


@pytest.mark.parametrize(
    ("device", "used", "refused"), [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)]
)
def test_where_cuda_was_used_a_fork_of_the_process_cannot(monkeypatch, device, used, refused):
    prepared = []
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: used)
    monkeypatch.setattr(executing.serve, "prepare", prepared.append)
    subject = Subject("softmax", lambda x: x, "fn", f"user@{device}", device)
    if refused:
        with pytest.raises(ValueError, match="^untrusted: CUDA was used in this process before"):
            executing._on_device(subject)
    else:
        assert executing._on_device(subject) is subject
    assert prepared == (["cuda"] if device == "cuda" and not refused else [])


@pytest.mark.parametrize("untrusted", [False, True])
def test_an_untrusted_author_s_file_is_imported_once_all_is_watched(monkeypatch, tmp_path, untrusted):
    """By what notes what it does, then by what guards what is there, from its source."""
    done, fn = [], lambda x: x

    def step(name, value=None):
        return lambda *given, **named: done.append((name, *given)) or value

    monkeypatch.setattr(executing.tripwires, "set_up", step("watched"))
    monkeypatch.setattr(executing.guarded, "begin", step("guarded"))
    monkeypatch.setattr(executing.importing, "without_bytecode", step("source"))
    monkeypatch.setattr(launching, "opened", step("imported", fn))
    backend = SimpleNamespace(adopt=step("adopted"))
    monkeypatch.setattr(executing.registry, "backends", lambda: ("one", "other"))
    monkeypatch.setattr(executing.registry, "backend", lambda name: backend)
    path = tmp_path / "mine.py"
    subject = Subject("softmax", FileFunction(path, "fn"), "fn", "user@cpu", "cpu", own=True, untrusted=untrusted)
    assert executing.opened(subject).fn is fn
    imported = ("imported", path, "fn", launching.NONE, None)
    watched = [("watched", "softmax", tmp_path), ("guarded",), ("source", tmp_path)]
    assert done == [*(watched if untrusted else []), imported, *[("adopted", fn, "cpu")] * 2]


def request(**about):
    operand = wire.TensorAt(1, 0, "float32", (2, 3), (3, 1), 0)
    given = dict(
        nonce=1, most=1 << 20, begins=True, manner=PLAIN, arguments={"x": operand}, placed={}, slots=(wire.Slot(0, 24),)
    )
    return wire.Call(**{**given, "names": (1,), "released": (), **about})


def test_a_call_that_is_asked_for(shared):
    made = calls(shared)
    shared.bytes(0, 24).view(torch.float32).copy_(torch.arange(6.0))
    kept = []
    object.__setattr__(made.subject, "fn", lambda x: kept.append(x + 1) or kept[-1])
    answer = made.call(request())
    assert answer["values"]["y"]["memory"] == ("held", 1) and [each["token"] for each in answer["memories"]] == [1]
    made.call(request(begins=False))
    assert sorted(made.held) == [1, 2] and len(made.given) == 1
    made.call(request(begins=False, released=(1,), arguments={"x": torch.zeros(1)}, names=()))
    assert 1 not in made.held and made.given == {}
    answer = made.call(request(begins=True))
    assert list(made.held) == [made.tokens]  # a new trial holds nothing of the last
    assert "values" in answer


def test_an_output_that_spans_more_than_is_taken_is_not_told(shared):
    made = calls(shared)
    object.__setattr__(made.subject, "fn", lambda x: torch.zeros(6000)[::1000])
    spans = made.call(request(most=8000))["values"]["y"]
    assert spans == {"other": "a tensor that spans 20004 bytes"}
    assert made.call(request(most=50_000))["values"]["y"]["memory"] is not None


def test_of_outputs_that_span_more_than_is_taken_the_largest_is_not_told(shared):
    subject = Subject("online_softmax", lambda x: (torch.zeros(100), torch.zeros(5000)), "fn", "user@cpu", "cpu")
    values = executing._Calls(shared, subject).call(request(most=20_000))["values"]
    assert values["lse"] == {"other": "a tensor that spans 20000 bytes"} and values["y"]["memory"] is not None


def test_what_ends_the_process_is_told(shared):
    made = calls(shared)

    def ends(x):
        raise SystemExit(3)

    object.__setattr__(made.subject, "fn", ends)
    assert made.call(request()) == {"ended": "sys.exit(3)"}
    object.__setattr__(made.subject, "fn", lambda x: (x, x))
    assert made.call(request())["values"] == "returned 2 values; expected 1"


def test_what_earlier_outputs_hold_is_told_of_those_that_are_asked_for(shared):
    made = calls(shared)
    one, other = torch.full((3,), 1.0), torch.full((3,), 2.0)
    made._memory_of({"a": one, "b": other}, [])
    assert sorted(made.held) == [1, 2]
    (told,) = made.reread(wire.Reread(1, (2, 99)))["memories"]  # one that was released meanwhile is not there
    assert told == {"token": 2, "at": 0, "size": 12}
    assert shared.bytes(executing.OUTPUTS, 12).view(torch.float32).tolist() == [2.0] * 3


def test_what_is_beyond_the_window_is_not_hidden(shared):
    made = calls(shared)
    assert type(made._place(wire.Slot(0, 24), torch.float32)) is _Place  # who is trusted finds the judge's own
    made.window = executing.Window()
    assert type(made._place(wire.Slot(0, 24), torch.float32)) is executing._Hidden
    assert type(made._place(wire.Slot(WINDOW, 24), torch.float32)) is _Place
    assert type(made._place(wire.Slot(WINDOW - 24, 24), torch.float32)) is executing._Hidden
    assert type(made._place(wire.Slot(0, 0), None)) is _Place


def test_of_a_gpus_operand_there_is_one_copy_in_a_trial(monkeypatch):
    """Beside what is in the shared memory, or the part of it that is copied; looked up anew for each call."""
    made, fetched = [], []

    class Copied:
        def __init__(self, *given):
            made.append(given)

        def fetch(self):
            fetched.append(1)

    monkeypatch.setattr(executing, "_Mirror", Copied)
    calls = executing._Calls.__new__(executing._Calls)
    room = {(0, 8): "all of it", (512, 4): "some of it"}
    calls.shared = SimpleNamespace(bytes=lambda *where: room[where])
    calls.executor, calls.window, calls.places = SimpleNamespace(device="cuda"), None, {}
    whole, part = wire.Slot(0, 8), wire.Slot(512, 4, wire.Part("float32", (1,), (1,), 0))
    first = calls._place(whole, None)
    assert calls._place(whole, torch.float32) is first and calls._place(part, None) is not first
    assert made == [("all of it", None, "cuda"), ("some of it", part.part, "cuda")] and len(fetched) == 3
