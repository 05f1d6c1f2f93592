"""What crosses between judge and kernel's process, as text: each field there and back, and what is refused."""

import re
from dataclasses import fields

import pytest
import torch

from tests.fixed import changeable
from touchstone.conformance.isolation import wire
from touchstone.conformance.isolation.shared import REPLY, REPLY_BYTES, WINDOW, Shared, rounded
from touchstone.conformance.judging.executor import CANNOT, DECLINES, RAISES, Observed, Raised

TOLD = Observed(
    raised=Raised(DECLINES, ("NotImplementedError", "Exception"), "not today", "NotImplementedError: not today"),
    displaced=True,
    lost="an error",
    launched=["interpreter"],
    on_host=["y"],
    settings=["the default dtype"],
    consumed=["a generator"],
    asked=["device_count"],
    undefined={"file.py:3": "other="},
    watched=True,
    broken=["8 bytes"],
    library=["add"],
    guarded=True,
    writer="program 3",
    unexplained={"y": "was changed"},
    cheats=["imports gc"],
)


def test_every_dtype_whose_elements_can_be_compared_has_a_name():
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    packed = re.compile(r"torch\.(qu?int.+|bits.+|u?int[1-7]|float4.+|complex32)")
    simple = {dtype for dtype in every if not packed.fullmatch(str(dtype))}
    assert set(wire.DTYPES.values()) == simple
    assert all(wire.name_of(dtype) == name for name, dtype in wire.DTYPES.items())


def test_every_field_of_a_call_crosses():
    assert all(getattr(TOLD, field.name) != getattr(Observed(), field.name) for field in fields(Observed)[1:])
    assert wire.observed_from_json(wire.observed_to_json(TOLD)) == TOLD
    assert wire.observed_from_json(wire.observed_to_json(Observed())) == Observed()
    assert "values" not in wire.observed_to_json(Observed(values={"y": 1}))


def test_equal_slots_are_one_key():
    """The process of a kernel finds by it what it has of a slot already."""

    def slot(at=8):
        return wire.Slot(512, 1 << 31, wire.Part("float16", (2, 3), (1 << 20, 1), at))

    known = {wire.Slot(512, 24): "whole", slot(): "part"}
    assert known[slot()] == "part" and slot(16) not in known and known[wire.Slot(512, 24, None)] == "whole"


WRONG = {str: 3, bool: 1, list: "text", dict: ["text"], type(None): 3}


@pytest.mark.parametrize("field", [field.name for field in fields(Observed)[1:] if field.name != "raised"])
def test_a_field_of_another_type_is_refused(field):
    told = wire.observed_to_json(Observed())
    for wrong in {
        repr(each): each for each in (WRONG[type(told[field])], {"a": 1}, [1], [None], {"a": ["b"]})
    }.values():
        with pytest.raises(wire.Malformed, match=f"^{field} of a call$"):
            wire.observed_from_json({**told, field: wrong})


def test_a_field_more_or_less_is_refused():
    told = wire.observed_to_json(Observed())
    less = {name: value for name, value in told.items() if name != "cheats"}
    for content in ({**told, "passed": True}, less, list(told), None, 3):
        with pytest.raises(wire.Malformed, match="not told as agreed on"):
            wire.observed_from_json(content)


RAISED = {"kind": RAISES, "types": ["ValueError"], "said": "no", "text": "ValueError: no"}


@pytest.mark.parametrize("kind", [DECLINES, CANNOT, RAISES])
def test_errors_of_every_kind(kind):
    told = {**wire.observed_to_json(Observed()), "raised": {**RAISED, "kind": kind}}
    assert wire.observed_from_json(told).raised == Raised(kind, ("ValueError",), "no", "ValueError: no")


@pytest.mark.parametrize(
    "change",
    [{"kind": "wins"}, {"types": []}, {"types": [3]}, {"types": None}, {"said": 3}, {"said": None}, {"text": ["no"]}],
    ids=str,
)
def test_an_error_of_another_shape_is_refused(change):
    told = {**wire.observed_to_json(Observed()), "raised": {**RAISED, **change}}
    with pytest.raises(wire.Malformed, match="^an error that is not told as agreed on$"):
        wire.observed_from_json(told)


def test_what_is_long_is_cut():
    seen = Observed(undefined={"x" * 9000 + str(n): "y" * 9000 for n in range(300)}, writer="z" * 9000)
    told = wire.observed_to_json(seen)
    assert {len(key) for key in told["undefined"]} == {4096} and {len(each) for each in told["undefined"].values()} == {
        4096
    }
    assert len(told["writer"]) == 4096
    many = wire.observed_to_json(Observed(library=[str(n) for n in range(300)]))["library"]
    assert many == [str(n) for n in range(256)]


Y = {"dtype": "float16", "shape": [2, 3], "strides": [4, 1], "memory": ["held", 7], "at": 6}


def test_a_tensor_is_told_as_it_lies():
    view = torch.zeros(40, dtype=torch.float16)[3:].as_strided((2, 3), (4, 1))
    assert wire.tensor_to_json(view, ("held", 7), 6) == {**Y, "memory": ("held", 7)}
    back = wire.tensor_from_json(Y)
    assert back == wire.TensorBack(torch.float16, (2, 3), (4, 1), ("held", 7), 6)
    assert back.extent == 2 * (4 + 2 + 1)
    assert wire.tensor_from_json({**Y, "memory": None}).memory is None
    assert wire.tensor_from_json({**Y, "shape": [0, 3]}).extent == 0
    assert wire.tensor_from_json({**Y, "shape": [], "strides": []}).extent == 2
    assert wire.tensor_from_json({**Y, "shape": [1] * 64, "strides": [1] * 64}).extent == 2


AGREED = "^an output that is not told as agreed on$"
NUMBERS = "^an output with impossible numbers$"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "float33"}, AGREED),
        ({"dtype": None}, AGREED),
        ({"shape": 3}, AGREED),
        ({"strides": None}, AGREED),
        ({"memory": ["held"]}, AGREED),
        ({"memory": 3}, AGREED),
        ({"shape": [2, -3]}, NUMBERS),
        ({"shape": [2, 3.0]}, NUMBERS),
        ({"shape": [2, 2**62]}, NUMBERS),
        ({"strides": [4, "1"]}, NUMBERS),
        ({"strides": [4]}, NUMBERS),
        ({"shape": [1] * 65, "strides": [1] * 65}, NUMBERS),
        ({"at": -2}, NUMBERS),
        ({"at": True}, NUMBERS),
        ({"at": 7}, NUMBERS),
        ({"memory": ["held", -1]}, NUMBERS),
        ({"memory": ["held", None]}, NUMBERS),
        ({"memory": ["file", 7]}, "^an output in unknown memory$"),
    ],
    ids=str,
)
def test_a_tensor_that_cannot_be_is_refused(change, said):
    with pytest.raises(wire.Malformed, match=said):
        wire.tensor_from_json({**Y, **change})
    without = {name: value for name, value in Y.items() if name not in change}
    with pytest.raises(wire.Malformed, match=AGREED):
        wire.tensor_from_json(without)


@pytest.fixture
def shared():
    made = Shared()
    yield made
    made.close()


def test_a_reply_is_read_by_its_nonce_and_length(shared):
    message = wire.reply(shared, 2**63 + 5, {"observed": "ä"})
    assert len(message) == 16
    assert wire.received(shared, 2**63 + 5, message) == {"observed": "ä"}
    for nonce, given in ((5, message), (2**63 + 5, message[:-1]), (2**63 + 5, message + b"\0"), (2**63 + 5, b"")):
        with pytest.raises(wire.Malformed):
            wire.received(shared, nonce, given)
    with pytest.raises(wire.Malformed, match="a reply to no request"):
        wire.received(shared, 5, wire.ANNOUNCED.pack(5, REPLY_BYTES + 1))
    short = wire.reply(shared, 6, {})
    assert wire.received(shared, 6, short) == {}  # of what stood there before, nothing is read


@pytest.mark.parametrize("depth", [200, 450, 480, 900, 100_000])
def test_a_reply_that_is_nested_deeply_is_none(shared, depth):
    """Each part of the judge that goes through it would have to come as deep."""
    text = b'{"observed": ' + b"[" * depth + b"]" * depth + b"}"
    shared.bytes(wire.REPLY, len(text)).copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    with pytest.raises(wire.Malformed, match="a reply that is not JSON"):
        wire.received(shared, 5, wire.ANNOUNCED.pack(5, len(text)))


def test_texts_of_a_reply_show_what_is_in_them(shared):
    """They are printed: what moves a terminal's cursor, or hides, is shown as Python writes it."""
    told = {"a\x07": ["\x1b[2K", {"b": "one\n\ttwo\r\u202ethree"}], "c": [1, None, True]}
    seen = wire.received(shared, 5, wire.reply(shared, 5, told))
    assert seen == {"a\\x07": ["\\x1b[2K", {"b": "one\n\ttwo\\r\\u202ethree"}], "c": [1, None, True]}


def test_a_reply_that_is_too_long_says_so(shared):
    message = wire.reply(shared, 5, {"values": "x" * REPLY_BYTES})
    size = REPLY_BYTES + len('{"values": ""}')
    assert wire.received(shared, 5, message) == {"failed": f"a reply of {size} bytes; at most {REPLY_BYTES} are taken"}
    whole = {"values": "x" * (REPLY_BYTES - len('{"values": ""}'))}
    assert wire.received(shared, 6, wire.reply(shared, 6, whole)) == whole


def test_parts_and_tensors_lie_where_they_are_told():
    buffer = torch.arange(64, dtype=torch.uint8)
    part = wire.Part("int16", (2, 2), (8, 1), 20)
    words = buffer.view(torch.int16)
    assert part.of(buffer).tolist() == [[int(words[10]), int(words[11])], [int(words[18]), int(words[19])]]
    assert part.of(buffer[4:].clone(), begin=4).tolist() == part.of(buffer).tolist()
    assert part.of(buffer[:63]).shape == (2, 2)  # an odd byte at the end is left alone
    told = wire.TensorAt(0, 0, "int32", (2, 3), (4, 1), 8).over(buffer)
    whole = buffer.view(torch.int32)
    assert told.tolist() == [whole[2:5].tolist(), whole[6:9].tolist()]
    assert told.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


def test_shared_memory_is_one_file_seen_from_two_places(shared):
    other = Shared(shared.descriptor)
    for offset, size in ((0, 5), (WINDOW - 8, 8), (WINDOW, 3), (WINDOW + (1 << 20), 4096), (REPLY, 16)):
        shared.bytes(offset, size).fill_(7)
        assert other.bytes(offset, size).tolist() == [7] * size
    assert other.bytes(WINDOW, 6).tolist() == [7, 7, 7, 0, 0, 0]  # more of what is mapped already
    assert shared.bytes(3, 0).numel() == 0
    other.forget(clear=True)
    assert shared.bytes(WINDOW, 3).tolist() == [0, 0, 0] and shared.bytes(0, 5).tolist() == [7] * 5


def test_sizes_are_rounded_up():
    assert [rounded(size) for size in (0, 1, 512, 513)] == [0, 512, 512, 1024]
    assert [rounded(size, 16) for size in (1, 16, 17)] == [16, 16, 32]


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(wire.Part, wire.Slot, wire.TensorAt, wire.Call, wire.Reread, wire.TensorBack) == []
