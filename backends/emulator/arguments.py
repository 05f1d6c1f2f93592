"""A launch's arguments: checked against the kernel's parameters, packed, aligned as cudaMalloc aligns, and bounded."""

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from touchstone.backends.emulator.library import Field, Parameter
from touchstone.backends.emulator.tensormaps import BYTES, TensorMap, aligned

ALIGNMENT = 256  # bytes, of what cudaMalloc returns
COPIED = 64 << 20  # bytes that a view with gaps may span and still be moved to such an address


class Argument(NamedTuple):
    name: str  # "argument 2"
    start: int
    bytes: int
    item: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    integers: bool = False

    @property
    def rows(self) -> tuple[int, int]:
        """Bytes of a row without gaps, and from one row to the next; zeros where there are no gaps or no such rows."""
        axes = sorted((abs(s), n) for s, n in zip(self.strides, self.shape, strict=True) if n > 1 and s)
        row = 1
        while axes and axes[0][0] == row:
            row *= axes.pop(0)[1]
        if not axes or axes[0][0] < row or any(stride % axes[0][0] for stride, _ in axes):
            return 0, 0
        return row * self.item, axes[0][0] * self.item


class _Texture(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64),
        ("sizes", ctypes.c_int64 * 3),
        ("strides", ctypes.c_int64 * 3),
        *(
            (name, ctypes.c_int32)
            for name in ("channels", "bytes", "kind", "linear", "address", "normalised", "fractions")
        ),
    ]


class Address(NamedTuple):
    """A pointer to where an array begins, whatever the types of the array and of the parameter are."""

    array: Any


class Bytes(NamedTuple):
    """A number, or None, of which the parameter takes the first bytes, whatever its type is."""

    data: bytes


class Move(NamedTuple):
    """Memory that a kernel is given at another address than it has."""

    start: int
    bytes: int
    at: int
    buffer: np.ndarray  # what lies there
    writable: bool


class Texture:
    """An array as a kernel's cudaTextureObject_t or cudaSurfaceObject_t."""

    def __init__(
        self,
        array: Any,
        dims: int | None = None,
        filter: str = "point",
        address: str = "clamp",
        normalised: bool = False,
        fractions: bool = False,
    ) -> None:
        """`array`: (width), (height, width) or (depth, height, width), with one more axis for up to four channels where
        `dims` is less than its axes; 8-, 16- or 32-bit numbers. `filter` is point or linear; `address` wrap, clamp,
        mirror or border; `normalised`: coordinates from 0 to 1; `fractions`: integers are read as 0 to 1."""
        self.array = np.asarray(array)
        self.dims = self.array.ndim if dims is None else dims
        modes = ("wrap", "clamp", "mirror", "border")
        if filter not in ("point", "linear"):
            raise ValueError(f"filter: expected point or linear, got {filter!r}")
        if address not in modes:
            raise ValueError(f"address: expected one of {', '.join(modes)}, got {address!r}")
        if not 1 <= self.dims <= 3 or self.array.ndim - self.dims not in (0, 1) or 0 in self.array.shape:
            raise ValueError(f"array: expected one to three axes and one for channels, got shape {self.array.shape}")
        if self.array.dtype.kind not in "fiu" or self.array.dtype.itemsize > 4:
            raise TypeError(f"array: expected numbers of 8, 16 or 32 bits, got {self.array.dtype}")
        self._options = (filter == "linear", modes.index(address), normalised, fractions)

    def described(self, start: int) -> _Texture:
        """For the engine, with the array at `start`."""
        sizes = [*self.array.shape[: self.dims][::-1], 1, 1][:3]
        strides = [*self.array.strides[: self.dims][::-1], 0, 0][:3]
        channels = self.array.shape[self.dims] if self.array.ndim > self.dims else 1
        linear, address, normalised, fractions = self._options
        return _Texture(
            start,
            (ctypes.c_int64 * 3)(*sizes),
            (ctypes.c_int64 * 3)(*strides),
            channels,
            self.array.dtype.itemsize,
            ord(self.array.dtype.kind),
            linear,
            address,
            normalised,
            fractions,
        )


def extent(argument: Any, name: str) -> Argument | None:
    """Of a tensor or array: from its first to its last element."""
    if hasattr(argument, "data_ptr"):
        if argument.device.type != "cpu":
            raise ValueError(f"{name}: is on {argument.device}; the emulator takes CPU tensors")
        start, item = argument.data_ptr(), argument.element_size()
        shape, strides = tuple(argument.shape), tuple(argument.stride())
        integers = not (argument.is_floating_point() or argument.is_complex())
    elif isinstance(argument, np.ndarray):
        start, item = argument.ctypes.data, argument.itemsize
        shape, strides = argument.shape, tuple(s // item for s in argument.strides)
        integers = argument.dtype.kind in "iu"
    else:
        return None
    if 0 in shape:
        return Argument(name, start, 0, item, shape, strides, integers)
    low = sum(min(0, s * (n - 1)) for n, s in zip(shape, strides, strict=True))
    high = sum(max(0, s * (n - 1)) for n, s in zip(shape, strides, strict=True))
    return Argument(name, start + low * item, (high - low + 1) * item, item, shape, strides, integers)


def _address(argument: Any) -> int:
    """Of the first element, which a negative stride makes not the lowest."""
    return argument.data_ptr() if hasattr(argument, "data_ptr") else argument.ctypes.data


def _storage(argument: Any) -> int:
    """Where the memory begins that an array is a view of."""
    if hasattr(argument, "untyped_storage"):
        return argument.untyped_storage().data_ptr()
    while isinstance(argument.base, np.ndarray):
        argument = argument.base
    return argument.ctypes.data


def _dtype(argument: Any) -> str:
    """Of an array: "float32", "bfloat16"."""
    return str(argument.dtype).removeprefix("torch.")


_KINDS = {"f": ("float",), "i": ("int", "uint", "bool"), "u": ("int", "uint", "bool")}
_SIXTEEN = {"e": ("float16", "half"), "b": ("bfloat16",)}
_WORDS = {("f", 4): "float", ("f", 8): "double", ("e", 2): "__half", ("b", 2): "__nv_bfloat16"}


def _mismatch(argument: Any, parameter: Parameter) -> str | None:
    """What an array of another type was given for, or None if it fits."""
    kind, size, dtype = parameter.scalar.decode(), parameter.scalar_bytes, _dtype(argument)
    item = argument.element_size() if hasattr(argument, "element_size") else argument.itemsize
    if kind in _SIXTEEN:
        fits = dtype in _SIXTEEN[kind] or (dtype in ("int16", "uint16", "uint8", "int8"))
    elif kind in _KINDS:
        bytes_ = size == 1 and item == 1  # raw memory
        fits = bytes_ or (dtype.rstrip("0123456789") in _KINDS[kind] and item == size and dtype != "bfloat16")
    else:
        fits = True
    return None if fits else _WORDS.get((kind, size), f"{'unsigned ' if kind == 'u' else ''}{size * 8}-bit integers")


class Packing:
    """The arguments of one launch: `pointers` to hand to the kernel, the memory that it may use, and what was moved."""

    def __init__(
        self,
        kernel: str,
        arguments: Sequence[Any],
        known: Sequence[Parameter],
        names: Sequence[str],
        fields: Mapping[int, Sequence[Field]],
        memory: Sequence[Any] = (),
    ) -> None:
        """`fields`: of the parameters that are structures; `memory`: arrays that the kernel reaches by addresses in
        other memory, which stay where they are."""
        self.kernel = kernel
        self.regions: list[Argument] = []
        self.moves: list[Move] = []
        self._fixed: list[Argument] = []
        for number, array in enumerate(memory):
            region = extent(array, f"memory {number + 1}")
            if region is None:
                raise TypeError(f"{kernel}: memory: expected arrays, got {type(array).__name__}")
            self._fixed.append(region)
        self._tables: list[Any] = []  # of addresses, and what describes textures
        self._align(list(arrays(arguments)))
        self._cells: list[Any] = []
        for position, (argument, parameter) in enumerate(zip(arguments, known, strict=True)):
            name = names[position] if position < len(names) and names[position] else f"argument {position + 1}"
            self._cells.append(self._cell(argument, parameter, name, fields.get(position)))
        self.regions += [region for region in self._fixed if region.bytes]
        self.pointers = (ctypes.c_void_p * max(1, len(self._cells)))(
            *(cell.ctypes.data if isinstance(cell, np.ndarray) else ctypes.addressof(cell) for cell in self._cells)
        )

    def _cell(self, argument: Any, parameter: Parameter, name: str, fields: Sequence[Field] | None) -> Any:
        """One argument, in memory that the kernel's parameter is read from."""
        kind, size = parameter.kind.decode(), parameter.bytes
        if isinstance(argument, Texture):
            if kind != "u" or size != 8:
                raise TypeError(f"{self.kernel}: {name}: expected no texture")
            described = argument.described(self._region(argument.array, name))
            self._tables.append(described)
            return ctypes.c_uint64(ctypes.addressof(described))
        if isinstance(argument, TensorMap):
            if size != (8 if kind == "p" else BYTES):
                raise TypeError(f"{self.kernel}: {name}: expected no tensor map")
            encoded = argument.encoded(self._region(argument.array, name))
            if kind != "p":
                return encoded
            self._tables.append(encoded)
            return ctypes.c_uint64(self._region(encoded, name))
        if isinstance(argument, Address):
            if size != 8:
                raise TypeError(f"{self.kernel}: {name}: expected {size} bytes, got an address")
            return ctypes.c_uint64(self._region(argument.array, name))
        if isinstance(argument, Bytes):
            if len(argument.data) < size:
                raise TypeError(f"{self.kernel}: {name}: expected {size} bytes, got {len(argument.data)}")
            return aligned(argument.data[:size])
        numbers = parameter.scalar.decode() if kind == "x" else "x"
        if numbers in "fiu" and isinstance(argument, (list, tuple)) and len(argument) * parameter.scalar_bytes == size:
            return aligned(np.array(argument, f"{numbers}{parameter.scalar_bytes}").tobytes())
        if kind == "x" and isinstance(argument, np.ndarray) and argument.nbytes == size:
            return aligned(argument.tobytes())
        if (
            extent(argument, name) is not None
            or argument is None
            or (kind == "p" and isinstance(argument, (list, tuple)))
        ):
            if kind != "p":
                raise TypeError(
                    f"{self.kernel}: {name}: expected a number, got {'None' if argument is None else 'an array'}"
                )
            return ctypes.c_uint64(self._pointer(argument, parameter, name))
        if kind in "iu" and isinstance(argument, (int, np.integer)):
            value = int(argument)
            low, high = (-(1 << 8 * size - 1), (1 << 8 * size - 1) - 1) if kind == "i" else (0, (1 << 8 * size) - 1)
            if not low <= value <= high:
                raise ValueError(f"{self.kernel}: {name}: {value} does not fit in the {size * 8}-bit parameter")
            return np.array(value, dtype=f"{kind}{size}")
        if kind == "f" and isinstance(argument, (int, float, np.integer, np.floating)):
            return np.array(argument, dtype=f"f{size}")
        if isinstance(argument, np.generic) and argument.dtype.itemsize == size:
            return np.array(argument)
        if kind == "x" and isinstance(argument, (bytes, bytearray)) and len(argument) == size:
            return aligned(bytes(argument))
        if kind == "x" and fields and isinstance(argument, (Mapping, list, tuple)):
            return self._structure(argument, fields, size, name)
        expected = {"p": "a tensor, an array or None", "i": "an integer", "u": "an integer", "f": "a number"}
        what = f"{size} bytes" + (f", or {_listed(fields)}" if fields else "")
        raise TypeError(f"{self.kernel}: {name}: expected {expected.get(kind, what)}, got {type(argument).__name__}")

    def _structure(self, argument: Any, fields: Sequence[Field], size: int, name: str) -> np.ndarray:
        """A structure from its fields, by name or in order; an array field takes a list."""
        labels = [field.name.decode() for field in fields]
        if isinstance(argument, Mapping):
            if set(argument) != set(labels):
                raise TypeError(
                    f"{self.kernel}: {name}: expected {_listed(fields)}, got {', '.join(map(str, argument))}"
                )
            values = [argument[label] for label in labels]
        else:
            values = list(argument)
            if len(values) != len(labels):
                raise TypeError(f"{self.kernel}: {name}: expected {_listed(fields)}, got {len(values)} values")
        cell = aligned(bytes(size))
        for field, label, value in zip(fields, labels, values, strict=True):
            if field.count and isinstance(value, np.ndarray) and value.nbytes == field.count * field.type.bytes:
                value = value.reshape(-1) if field.type.kind != b"x" else [one.tobytes() for one in value]
            several = value if field.count else [value]
            if field.count and (not isinstance(value, (list, tuple, np.ndarray)) or len(value) > field.count):
                raise TypeError(f"{self.kernel}: {name}.{label}: expected up to {field.count} values")
            for number, one in enumerate(several):
                whole = f"{name}.{label}" + (f"[{number}]" if field.count else "")
                part = self._cell(one, field.type, whole, None)
                data = part.tobytes() if isinstance(part, np.ndarray) else bytes(part)
                start = field.offset + number * field.type.bytes
                cell[start : start + len(data)] = np.frombuffer(data, np.uint8)
        return cell

    def _pointer(self, argument: Any, parameter: Parameter, name: str) -> int:
        """The address that the kernel is given for an array, or for a list of arrays: of their addresses."""
        if argument is None:
            return 0
        if isinstance(argument, (list, tuple)):
            if parameter.scalar not in (b"p", b"x"):
                raise TypeError(
                    f"{self.kernel}: {name}: expected an array, got a list; pointers to pointers take lists"
                )
            table = np.zeros(max(1, len(argument)), np.uint64)
            inner = Parameter(8, b"p", 1, b"\0", parameter.inner, parameter.inner_bytes, b"x", 1)
            for number, one in enumerate(argument):
                if one is not None and extent(one, name) is None:
                    raise TypeError(
                        f"{self.kernel}: {name}[{number}]: expected an array or None, got {type(one).__name__}"
                    )
                table[number] = self._pointer(one, inner, f"{name}[{number}]")
            self._tables.append(table)
            return self._region(table, name)
        wrong = _mismatch(argument, parameter)
        if wrong:
            raise TypeError(f"{self.kernel}: {name}: expected an array of {wrong}, got {_dtype(argument)}")
        return self._region(argument, name)

    def _region(self, argument: Any, name: str) -> int:
        """Makes an array known to the launch; the address of its first element there."""
        region = extent(argument, name)
        assert region is not None
        address = _address(argument)
        if not region.bytes:
            return address
        inside = (m for m in self.moves if m.start <= region.start < m.start + m.bytes)
        delta = next((m.at - m.start for m in inside), 0)
        self.regions.append(region._replace(start=region.start + delta))
        return address + delta

    def _align(self, arrays: Sequence[Any]) -> None:
        """Move every array, with those that share its memory, to where cudaMalloc's alignment holds for what it is a
        view of."""
        spans: list[tuple[int, int, int, bool, bool]] = []  # start, end, storage, without gaps, writable
        for array in arrays:
            region = extent(array, "")
            assert region is not None
            full = region.bytes == math.prod(region.shape) * region.item
            writable = not isinstance(array, np.ndarray) or array.flags.writeable
            spans.append((region.start, region.start + region.bytes, _storage(array), full, writable))
        joined: list[tuple[int, int, int, bool, bool]] = []
        for start, end, storage, full, writable in sorted(spans):
            if joined and start < joined[-1][1]:
                before = joined.pop()
                start, end, storage = before[0], max(before[1], end), before[2]
                full, writable = full and before[3], writable or before[4]
            joined.append((start, end, storage, full, writable))
        for start, end, storage, full, writable in joined:
            fixed = any(f.start < end and start < f.start + f.bytes for f in self._fixed)
            if storage % ALIGNMENT == 0 or fixed or (end - start > COPIED and not full):
                continue
            buffer = np.empty(end - start + 2 * ALIGNMENT, np.uint8)
            at = -(-buffer.ctypes.data // ALIGNMENT) * ALIGNMENT + (start - storage) % ALIGNMENT
            ctypes.memmove(at, start, end - start)
            self.moves.append(Move(start, end - start, at, buffer, writable))

    def back(self) -> None:
        """Copy what was moved to where it came from."""
        for move in self.moves:
            if move.writable:
                ctypes.memmove(move.start, move.at, move.bytes)


def arrays(arguments: Any) -> Iterator[Any]:
    """Every array in arguments, in lists and structures too."""
    for argument in arguments.values() if isinstance(arguments, Mapping) else arguments:
        if isinstance(argument, (Texture, TensorMap, Address)):
            argument = argument.array
        if isinstance(argument, Bytes):
            continue
        if isinstance(argument, (list, tuple, Mapping)):
            yield from arrays(argument)
        elif isinstance(argument, np.ndarray) or hasattr(argument, "data_ptr"):
            yield argument


def _listed(fields: Sequence[Field]) -> str:
    return "the fields " + ", ".join(field.name.decode() for field in fields)
