"""What judge and kernel's process say to each other.

The judge's requests are pickled: it made them itself. The replies are JSON of one shape, at a fixed place of the shared
memory, announced by a message of fixed size that repeats the request's nonce; the bytes of outputs lie beside them.
Nothing that comes from the kernel's process is unpickled, and each figure is checked before it is used.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from touchstone.backends.storage import files
from touchstone.conformance.isolation.shared import REPLY, REPLY_BYTES, Shared
from touchstone.conformance.judging.executor import CANNOT, DECLINES, RAISES, Manner, Observed, Raised
from touchstone.conformance.spec.returned import SAID, visible

ANNOUNCED = struct.Struct("<QQ")  # nonce, and the length of the reply in bytes
LISTED = 256  # entries of a list or mapping that a reply holds
AXES = 64
# those whose elements can be compared, by name
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if hasattr(torch, name)
}


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype: "float16"."""
    return str(dtype).removeprefix("torch.")


def extent(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> int:
    """The bytes from the first element of a tensor to the end of its last."""
    if 0 in shape:
        return 0
    return (sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 1) * dtype.itemsize


class Malformed(ValueError):
    """A reply that is not one of the shape agreed on."""


@dataclass(frozen=True)
class Part:
    """What is copied of a buffer that is far larger: some rows of elements, far from one another."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    at: int  # bytes from the buffer's beginning

    def of(self, buffer: torch.Tensor, begin: int = 0) -> torch.Tensor:
        """The part of `buffer`, bytes of which the first is the one numbered `begin`."""
        dtype = DTYPES[self.dtype]
        typed = buffer[: buffer.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        return typed.as_strided(self.shape, self.strides, (self.at - begin) // dtype.itemsize)


@dataclass(frozen=True)
class Slot:
    """Where a buffer of the judge's is in the shared memory, and which part of it is there if not all is."""

    offset: int
    size: int
    part: Part | None = None


@dataclass(frozen=True)
class TensorAt:
    """A tensor argument: which slot of the request it is in. One `name` stands for one tensor during a trial."""

    name: int
    slot: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    at: int  # bytes from the slot's beginning

    @property
    def extent(self) -> int:
        """The bytes from its first element to the end of its last."""
        return extent(self.shape, self.strides, DTYPES[self.dtype])

    def over(self, buffer: torch.Tensor) -> torch.Tensor:
        """The tensor, over the bytes of its slot."""
        dtype = DTYPES[self.dtype]
        view = torch.empty(0, dtype=dtype, device="cpu")
        return view.set_(buffer.untyped_storage(), self.at // dtype.itemsize, self.shape, self.strides)


@dataclass(frozen=True)
class Call:
    """A request to call the kernel."""

    nonce: int
    most: int  # bytes of outputs that are taken
    begins: bool  # a trial: what was kept of the last one is forgotten
    manner: Manner
    arguments: Mapping[str, Any]  # with TensorAt in the place of tensors
    placed: Mapping[str, int]  # the slots of the operands' buffers
    slots: tuple[Slot, ...]
    names: tuple[int, ...]  # of arguments that the judge still holds
    released: tuple[int, ...]  # outputs that it no longer holds


@dataclass(frozen=True)
class Reread:
    """A request for what the memory of earlier outputs holds now."""

    nonce: int
    tokens: tuple[int, ...]


def reply(shared: Shared, nonce: int, content: Mapping[str, Any]) -> bytes:
    """Write a reply; the message that announces it."""
    text = json.dumps(content).encode()
    if len(text) > REPLY_BYTES:
        text = json.dumps({"failed": f"a reply of {len(text)} bytes; at most {REPLY_BYTES} are taken"}).encode()
    shared.bytes(REPLY, REPLY_BYTES)[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return ANNOUNCED.pack(nonce, len(text))


def received(shared: Shared, nonce: int, message: bytes) -> dict[str, Any]:
    """The reply to the request with this nonce. Malformed where it is none."""
    if len(message) != ANNOUNCED.size:
        raise Malformed(f"a message of {len(message)} bytes")
    given, size = ANNOUNCED.unpack(message)
    if given != nonce or size > REPLY_BYTES:
        raise Malformed("a reply to no request")
    text = shared.bytes(REPLY, REPLY_BYTES)[:size].numpy().tobytes()
    try:
        content = _visible(files.parsed(text))
    except ValueError as error:
        raise Malformed(f"a reply that is not JSON: {type(error).__name__}") from None
    if not isinstance(content, dict):
        raise Malformed("a reply that is no object")
    return content


def _visible(value: Any) -> Any:
    """`value` with every text in it as it may be printed."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_visible(each) for each in value]
    return {visible(name): _visible(each) for name, each in value.items()} if isinstance(value, dict) else value


def observed_to_json(seen: Observed) -> dict[str, Any]:
    """All but the values."""
    found = {field.name: getattr(seen, field.name) for field in fields(seen) if field.name != "values"}
    found["raised"] = None if seen.raised is None else asdict(seen.raised)
    return {name: _cut(value) for name, value in found.items()}


def _cut(value: Any) -> Any:
    """`value` with no more than what a reply may hold."""
    if isinstance(value, str):
        return value[:SAID]
    if isinstance(value, list | tuple):
        return [_cut(entry) for entry in value[:LISTED]]
    if isinstance(value, dict):
        return {_cut(key): _cut(entry) for key, entry in list(value.items())[:LISTED]}
    return value


def observed_from_json(content: Any) -> Observed:
    """What a reply says of a call, but the values. Malformed where it says something else."""
    known = {field.name for field in fields(Observed)} - {"values"}
    if not isinstance(content, dict) or set(content) != known:
        raise Malformed("a call that is not told as agreed on")
    raised = content["raised"]
    told = {name: _cut(value) for name, value in content.items() if name != "raised"}
    for name, value in told.items():
        plain = getattr(Observed(), name)
        right = isinstance(value, str | None) if plain is None else type(value) is type(plain)
        entries = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
        if not right or not all(isinstance(entry, str) for entry in entries):
            raise Malformed(f"{name} of a call")
    return Observed(**told, raised=None if raised is None else _raised_from_json(raised))


def _raised_from_json(content: Any) -> Raised:
    try:
        kind, types = content["kind"], tuple(content["types"])
        texts = [content["said"], content["text"]]
    except (KeyError, TypeError):
        raise Malformed("an error that is not told as agreed on") from None
    if kind not in (DECLINES, CANNOT, RAISES) or not types or not all(isinstance(t, str) for t in (*types, *texts)):
        raise Malformed("an error that is not told as agreed on")
    return Raised(kind, tuple(name[:SAID] for name in types[:LISTED]), *(text[:SAID] for text in texts))


@dataclass(frozen=True)
class TensorBack:
    """An output as a reply describes it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    memory: tuple[str, int] | None  # ("slot", its number), ("held", a token), None without elements
    at: int  # bytes from the memory's beginning

    @property
    def extent(self) -> int:
        """The bytes from its first element to the end of its last."""
        return extent(self.shape, self.strides, self.dtype)


def tensor_to_json(tensor: torch.Tensor, memory: tuple[str, int] | None, at: int) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(tensor.shape), "strides": list(tensor.stride()), "memory": memory, "at": at}


def tensor_from_json(content: Any) -> TensorBack:
    """Malformed where it describes no tensor."""
    try:
        dtype, shape, strides = DTYPES[content["dtype"]], tuple(content["shape"]), tuple(content["strides"])
        memory, at = content["memory"], content["at"]
        where = None if memory is None else (memory[0], memory[1])
    except (KeyError, TypeError, IndexError):
        raise Malformed("an output that is not told as agreed on") from None
    numbers = [*shape, *strides, at, *(() if where is None else where[1:])]
    whole = all(type(number) is int and 0 <= number < 2**62 for number in numbers)
    if not whole or len(shape) != len(strides) or len(shape) > AXES or at % dtype.itemsize:
        raise Malformed("an output with impossible numbers")
    if where is not None and where[0] not in ("slot", "held"):
        raise Malformed("an output in unknown memory")
    return TensorBack(dtype, shape, strides, where, at)
