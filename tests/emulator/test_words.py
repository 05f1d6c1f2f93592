"""The emulator's sentences: a report of the engine as a message, arguments as memory and numbers, what is refused."""

import ctypes
import dataclasses
import json
import re
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from touchstone.backends import NotRun
from touchstone.backends.emulator import (
    arguments,
    binary,
    command,
    compiler,
    errors,
    findings,
    instruments,
    library,
    source,
    tensormaps,
)
from touchstone.backends.emulator.arguments import Argument
from touchstone.backends.emulator.binary import Variable
from touchstone.backends.emulator.library import Field, Loaded, Parameter, Place, Report
from touchstone.backends.emulator.program import geometry
from touchstone.backends.emulator.tensormaps import TensorMap

LOADED = Loaded("k.so", None, None, 0, [Variable("table", 0, 40, False)], (0, 0))
REGIONS = [Argument("y", 0, 96, 4, (4, 6), (6, 1))]


def place(line, block=(1, 0, 0), thread=(2, 0, 0), access=0, state=0):
    return Place(0, b"/users/soft.cu", line, block, thread, access, state)


def said(kind, here=None, there=None, **fields):
    """The error of a report, without what every message begins with."""
    report = Report(kind=kind, size=4, here=here or place(3), there=there or place(7, thread=(5, 0, 0)))
    for name, value in fields.items():
        setattr(report, name, value)
    error = findings.error("k", LOADED, report, REGIONS)
    kernel, _, text = str(error).partition(": ")
    assert kernel == "k (soft.cu:3)"
    return type(error), text.replace("block (1, 0, 0), thread (2, 0, 0)", "T")


Y = dict(region_kind=1, region_index=0, extent=96, item=4)
SHARED = dict(region_kind=2, extent=64, item=4, name=b"tile", dims=(4, 4, 0, 0))
T5 = "thread (5, 0, 0)"
OTHER = place(7, block=(9, 0, 0), thread=(5, 0, 0))
REPORTS = [
    (dict(kind=1, offset=40, **Y), errors.OutOfBounds, "T reads 4 bytes of y[1, 4]"),
    (dict(kind=1, offset=0, here=place(3, access=1), **Y), errors.OutOfBounds, "T writes 4 bytes of y[0, 0]"),
    (
        dict(kind=1, offset=0, here=place(3, access=2), **Y),
        errors.OutOfBounds,
        "T atomically updates 4 bytes of y[0, 0]",
    ),
    (dict(kind=1, offset=0, **Y, size=1), errors.OutOfBounds, "T reads 1 byte of y[0, 0]"),
    (
        dict(kind=1, offset=-8, **Y),
        errors.OutOfBounds,
        "T reads 4 bytes 8 bytes before the start of y (96 bytes, shape (4, 6)), at element offset -2",
    ),
    (dict(kind=1, offset=94, **Y), errors.OutOfBounds, "T reads 4 bytes across the end of y (96 bytes, shape (4, 6))"),
    (
        dict(kind=1, offset=96, **Y),
        errors.OutOfBounds,
        "T reads 4 bytes just past the end of y (96 bytes, shape (4, 6)), at element offset 24",
    ),
    (
        dict(kind=1, offset=104, **Y),
        errors.OutOfBounds,
        "T reads 4 bytes 8 bytes past the end of y (96 bytes, shape (4, 6)), at element offset 26",
    ),
    (
        dict(kind=1, address=0xBAD0, offset=96 + 4100, **Y),
        errors.OutOfBounds,
        "T reads 4 bytes at 0xbad0, which lies in no argument: 4100 bytes from y (96 bytes, shape (4, 6)), the nearest",
    ),
    (
        dict(kind=1, region_kind=0, address=0xBAD0),
        errors.OutOfBounds,
        "T reads 4 bytes at 0xbad0, which lies in no argument",
    ),
    (
        dict(kind=1, region_kind=3, region_index=0, extent=40, offset=40, item=4),
        errors.OutOfBounds,
        "T reads 4 bytes just past the end of the variable table (40 bytes), at element offset 10",
    ),
    (
        dict(kind=1, region_kind=2, extent=64, offset=64),
        errors.OutOfBounds,
        "T reads 4 bytes just past the end of the dynamic shared memory (64 bytes), at element offset 64",
    ),
    (
        dict(kind=1, region_kind=-1, offset=12, text=b"float[4]"),
        errors.OutOfBounds,
        "T uses index 12 of an array of type float[4]",
    ),
    (
        dict(kind=2, offset=4, mask=16, text=b"float4", **Y),
        errors.Misaligned,
        "T reads float4 at an address that is no multiple of 16: y[0, 1]",
    ),
    (dict(kind=2, offset=2, mask=4, **Y), errors.Misaligned, "T reads at an address that is no multiple of 4: y[0, 0]"),
    (
        dict(kind=3, offset=20, **SHARED),
        errors.UninitialisedShared,
        "T reads 4 bytes of the shared array tile[1, 1], which no thread of its block has written",
    ),
    (
        dict(kind=3, offset=20, region_kind=2, extent=64, item=0),
        errors.UninitialisedShared,
        "T reads 4 bytes of the dynamic shared memory at byte offset 20, which no thread of its block has written",
    ),
    (
        dict(kind=3, offset=20, text=b"later", **SHARED),
        errors.UninitialisedShared,
        f"T reads 4 bytes of the shared array tile[1, 1], which {T5} writes later, at soft.cu:7: no barrier lies "
        "between",
    ),
    (dict(kind=4), errors.DivergentBarrier, f"T waits at the block's barrier, but {T5} has run to its end"),
    (
        dict(kind=4, there=place(7, thread=(5, 0, 0), state=1)),
        errors.DivergentBarrier,
        f"T waits at the block's barrier, but {T5} waits at a barrier (soft.cu:7)",
    ),
    (
        dict(kind=4, there=place(7, thread=(5, 0, 0), state=2), name=b"__syncwarp"),
        errors.DivergentBarrier,
        f"T waits at the block's barrier, but {T5} waits at __syncwarp (soft.cu:7)",
    ),
    (
        dict(kind=4, there=place(7, thread=(5, 0, 0), state=2)),
        errors.DivergentBarrier,
        f"T waits at the block's barrier, but {T5} waits at a warp operation (soft.cu:7)",
    ),
    (dict(kind=5, text=b"spins"), errors.Deadlock, "T waits in a loop for memory that no thread changes"),
    (
        dict(kind=5, there=OTHER),
        errors.Deadlock,
        f"T waits at the grid's barrier, but {T5} of block (9, 0, 0) has run to its end",
    ),
    (
        dict(kind=6, there=place(7), text=b"__shfl_sync", mask=1, lane=2),
        errors.InactiveLanes,
        "T: __shfl_sync with mask 0x00000001, which leaves out its own lane 2",
    ),
    (
        dict(kind=6, there=place(7, state=4), text=b"__shfl_sync", mask=1, lane=2),
        errors.InactiveLanes,
        "T: __shfl_sync reads lane 2, which takes no part (mask 0x00000001)",
    ),
    (
        dict(kind=6, text=b"__shfl_sync", mask=255, lane=5),
        errors.InactiveLanes,
        f"T: __shfl_sync with mask 0x000000ff waits for lane 5, but {T5} has run to its end",
    ),
    (
        dict(kind=6, text=b"__shfl_sync", mask=255, lane=5, there=place(7, thread=(5, 0, 0), state=3)),
        errors.InactiveLanes,
        f"T: __shfl_sync with mask 0x000000ff waits for lane 5, but {T5} waits at the grid's barrier (soft.cu:7)",
    ),
    (
        dict(kind=7, offset=4, here=place(3, access=1), **Y),
        errors.RaceCondition,
        f"y[0, 1]: T writes it, {T5} reads it at soft.cu:7, and nothing orders the two",
    ),
    (
        dict(kind=7, offset=4, there=OTHER, **Y),
        errors.RaceCondition,
        f"y[0, 1]: T reads it, block (9, 0, 0), {T5} reads it at soft.cu:7, and nothing orders the two",
    ),
    (dict(kind=8, text=b"assertion failed"), errors.KernelError, "T: assertion failed"),
    (dict(kind=8, text=b"spins"), errors.KernelError, "T: spins"),  # its own word, and no deadlock
]


@pytest.mark.parametrize(("report", "kind", "text"), REPORTS, ids=[text[:60] for _, _, text in REPORTS])
def test_a_report_in_words(report, kind, text):
    assert said(**report) == (kind, text)


def test_an_address_that_an_entry_of_a_table_leads_to():
    x, table, y = torch.zeros(4, 6), torch.tensor([[3, 0], [1, 900001]], dtype=torch.int32), torch.zeros(5)
    regions = [arguments.extent(array, name) for name, array in (("y", y), ("x", x), ("table", table))]

    def where(row, among=regions):
        report = Report(kind=1, size=4, region_kind=0, address=x.data_ptr() + 24 * row + 8, here=place(3))
        return str(findings.error("k", LOADED, report, among)).partition("lies in no argument")[2]

    assert where(900001) == "; x[900001] would be there, and 900001 is table[1, 1]"
    assert where(900002) == where(900001, regions[:2]) == where(900001, [regions[0], regions[2]]) == ""
    turned, wide = arguments.extent(table.t(), "turned"), arguments.extent(table.long(), "wide")
    assert where(900001, [regions[1], turned]) == "; x[900001] would be there, and 900001 is turned[1, 1]"
    assert wide.integers and not regions[0].integers
    negative = torch.tensor([-700000])
    assert where(-700000, [regions[1], arguments.extent(negative, "index")]).endswith("-700000 is index[0]")
    flat = arguments.extent(torch.zeros(1), "flat")._replace(start=x.data_ptr() + 8, bytes=4)
    assert where(149999, [flat, arguments.extent(index := torch.tensor([6 * 149999]), "index")]).endswith(
        f"flat[{index.item()}] would be there, and {index.item()} is index[0]"
    )
    gaps = arguments.extent(table[:, 1:], "gaps")
    assert where(900001, [regions[1], gaps]) == ""
    array = arguments.extent(table.numpy(), "array")
    assert where(900001, [regions[1], array]).endswith("900001 is array[1, 1]")


def test_an_offset_that_32_bits_do_not_hold():
    wide = Argument("wide", 2**34, 2 * (2**31 + 100), 2, (2**31 + 100,), (1,))

    def told(offset, region=wide, region_kind=1, rest=0):
        address = region.start + offset * region.item + rest
        fields = dict(region_kind=region_kind, region_index=0, extent=region.bytes, item=region.item)
        report = Report(kind=1, size=2, address=address, offset=address - region.start, here=place(3), **fields)
        return str(findings.error("k", LOADED, report, [region])).partition("; ")[2]

    first = f"offset {2**31} of wide is {-(2**31)} in an int of 32 bits, which overflows: it has to be computed in 64"
    assert told(-(2**31)) == told(-(2**31), region_kind=0) == first
    assert told(99 - 2**31).startswith(f"offset {2**31 + 99} of wide is {99 - 2**31} in an int of 32 bits")
    assert told(100 - 2**31) == told(-1) == told(-(2**31) - 1) == told(2**31 + 100) == told(-(2**31), rest=1) == ""
    assert told(-(2**31), wide._replace(bytes=2 * (2**31 - 1))) == ""


def test_a_line_is_the_innermost_of_the_users(monkeypatch):
    found = {
        16: [("f", "touchstone", 4), ("f", "??", 5), ("g", f"{compiler.OWN_HEADERS}/touchstone.h", 6),
             ("g", f"{compiler.CUDA_HEADERS}/cuda_fp16.h", 7), ("h", "/users/k.cuh", 0), ("k", "/users/k.cu", 9),
             ("k", "/users/l.cu", 10)],
        32: [("f", "touchstone", 4), ("k", "/users/k.cu", 0)],
        48: [],
    }  # fmt: skip
    monkeypatch.setattr(binary, "lines", lambda path, addresses: [found[each] for each in addresses])
    loaded = Loaded("lines.so", None, None, 1000, [], (0, 0))
    for address, line in ((16, "k.cu:9"), (32, "line unknown"), (48, "line unknown")):
        for _ in range(2):
            assert findings.line_name(loaded, Place(1000 + address + 1)) == line
        found[address] = [("k", "/users/later.cu", 1)]  # what was found stays
    monkeypatch.setitem(findings.front_ends, "a front end's", lambda pc: f"k.py:{pc}")
    assert findings.line_name(loaded._replace(path="a front end's"), Place(1017)) == "k.py:17"
    assert findings.line_name(loaded, Place(0, b"/users/m.cu", 12)) == "m.cu:12"


def test_an_element_is_named_by_its_index_where_it_has_one():
    strided = [Argument("x", 0, 400, 4, (3, 1, 4), (20, 4, 2))]

    def element(offset):
        report = Report(region_kind=1, region_index=0, offset=offset, item=4)
        return findings._element(LOADED, report, strided)

    assert element(4 * (2 * 20 + 3 * 2)) == "x[2, 0, 3]"
    assert element(4) == "x at element offset 1"  # in a gap
    assert element(4 * 60) == "x at element offset 60"


def test_the_memory_of_an_argument():
    x = torch.zeros(4, 6)
    assert arguments.extent(x[1:, ::2], "x") == Argument("x", x.data_ptr() + 24, 68, 4, (3, 3), (6, 2))
    assert arguments.extent(x[:0], "x").bytes == 0
    y = np.zeros((4, 6), np.float64)
    assert arguments.extent(y, "y") == Argument("y", y.ctypes.data, 192, 8, (4, 6), (6, 1))
    turned = arguments.extent(y[::-1, 1:3], "y")
    assert (turned.start, turned.bytes, turned.strides) == (y.ctypes.data + 8, 8 * 20, (-6, 1))
    assert arguments.extent(3, "n") is None
    with pytest.raises(ValueError, match="^x: is on meta; the emulator takes CPU tensors$"):
        arguments.extent(x.to("meta"), "x")


def packed(argument, kind, size):
    made = arguments.Packing("k", (argument,), [Parameter(size, kind.encode(), 0, b"0")], ("n",), {})
    return made, ctypes.string_at(made.pointers[0], size)


@pytest.mark.parametrize(
    ("argument", "kind", "size", "data"),
    [
        (-(2**31), "i", 4, struct.pack("<i", -(2**31))),
        (2**31 - 1, "i", 4, struct.pack("<i", 2**31 - 1)),
        (2**32 - 1, "u", 4, struct.pack("<I", 2**32 - 1)),
        (0, "u", 1, b"\0"),
        (-128, "i", 1, b"\x80"),
        (np.int64(-5), "i", 8, struct.pack("<q", -5)),
        (1.5, "f", 4, struct.pack("<f", 1.5)),
        (2, "f", 8, struct.pack("<d", 2)),
        (np.float16(1.5), "x", 2, np.float16(1.5).tobytes()),
        (b"abc", "x", 3, b"abc"),
        (None, "p", 8, bytes(8)),
    ],
    ids=str,
)
def test_a_number_is_packed_as_its_parameter_is(argument, kind, size, data):
    made, found = packed(argument, kind, size)
    assert (made.regions, found) == ([], data)


def test_an_array_is_packed_by_its_address():
    """Where that is no multiple of 256 bytes, by that of a copy which is."""
    y = np.arange(24.0).reshape(4, 6)[::-1]
    made, data = packed(y, "p", 8)
    (at,), (region,) = struct.unpack("<Q", data), made.regions
    assert at == region.start + 8 * 18 and region.start % 256 == 0
    assert ctypes.string_at(at, 8) == y[0, :1].tobytes()
    assert packed(torch.zeros(0), "p", 8)[0].regions == []


@pytest.mark.parametrize(
    ("argument", "kind", "size", "error", "text"),
    [
        (2**31, "i", 4, ValueError, "k: n: 2147483648 does not fit in the 32-bit parameter"),
        (-(2**31) - 1, "i", 4, ValueError, "k: n: -2147483649 does not fit in the 32-bit parameter"),
        (-1, "u", 8, ValueError, "k: n: -1 does not fit in the 64-bit parameter"),
        (2**16, "u", 2, ValueError, "k: n: 65536 does not fit in the 16-bit parameter"),
        (torch.zeros(3), "i", 4, TypeError, "k: n: expected a number, got an array"),
        (None, "f", 4, TypeError, "k: n: expected a number, got None"),
        (3, "p", 8, TypeError, "k: n: expected a tensor, an array or None, got int"),
        (1.5, "i", 4, TypeError, "k: n: expected an integer, got float"),
        ("a", "f", 4, TypeError, "k: n: expected a number, got str"),
        (b"ab", "x", 3, TypeError, "k: n: expected 3 bytes, got bytes"),
    ],
    ids=str,
)
def test_an_argument_that_does_not_fit_is_named(argument, kind, size, error, text):
    with pytest.raises(error) as raised:
        packed(argument, kind, size)
    assert str(raised.value) == text


def test_an_argument_without_a_name_has_its_position():
    with pytest.raises(TypeError, match="^k: argument 2: expected an integer"):
        arguments.Packing("k", (1, "a"), [Parameter(4, b"i", 0, b"0")] * 2, ("n", ""), {})


FLOAT, INT, ADDRESS = Parameter(4, b"f", 0, b"0"), Parameter(4, b"i", 0, b"0"), Parameter(8, b"p", 4, b"0", b"f", 4)
FIELDS = (Field(b"n", 0, 0, INT), Field(b"x", 8, 0, ADDRESS), Field(b"w", 16, 3, FLOAT))
BOX = Parameter(32, b"x", 0, b"0")


def structure(argument):
    made = arguments.Packing("k", (argument,), [BOX], ("box",), {0: FIELDS})
    return made, ctypes.string_at(made.pointers[0], 32)


def test_a_structure_is_packed_field_by_field():
    x = torch.arange(6.0)
    for given in ({"x": x, "w": (1.5, 2), "n": 7}, (7, x, [1.5, 2.0]), [7, x, np.array([1.5, 2])]):
        made, data = structure(given)
        (region,) = made.regions
        assert region.name == "box.x" and made.pointers[0] % 64 == 0
        assert data == struct.pack("<i4xQfff4x", 7, region.start, 1.5, 2, 0)
    assert structure((0, None, []))[0].regions == []
    for given, says in (
        ((7, x), "k: box: expected the fields n, x, w, got 2 values"),
        ({"n": 7, "x": x, "v": 1}, "k: box: expected the fields n, x, w, got n, x, v"),
        ((7, x, [1, 2, 3, 4]), "k: box.w: expected up to 3 values"),
        ((7, x, 1.5), "k: box.w: expected up to 3 values"),
        ((7, x, [1, "a"]), r"k: box.w\[1\]: expected a number, got str"),
        ((7.5, x, []), "k: box.n: expected an integer, got float"),
        ((7, x.int(), []), "k: box.x: expected an array of float, got int32"),
        (3, "k: box: expected 32 bytes, or the fields n, x, w, got int"),
    ):
        with pytest.raises(TypeError, match=f"^{says}$"):
            structure(given)


def test_addresses_of_arrays_in_a_list():
    inner = Parameter(8, b"p", 8, b"0", b"p", 8, b"f", 4)
    x, y = torch.arange(64.0), torch.zeros(64)
    made = arguments.Packing("k", ([x, None, y],), [inner], ("rows",), {})
    assert [table.ctypes.data for table in made._tables] == [made.regions[-1].start]  # and so stays
    (table,) = struct.unpack("<Q", ctypes.string_at(made.pointers[0], 8))
    named = {region.name: region for region in made.regions}
    assert set(named) == {"rows", "rows[0]", "rows[2]"} and named["rows"].bytes == 24
    assert struct.unpack("<QQQ", ctypes.string_at(table, 24)) == (named["rows[0]"].start, 0, named["rows[2]"].start)
    untyped = arguments.Packing("k", ([x],), [Parameter(8, b"p", 8, b"0", b"x", 8)], ("rows",), {})  # void**, as one
    assert [region.name for region in untyped.regions] == ["rows[0]", "rows"]
    for argument, parameter, says in (
        ([x], ADDRESS, "k: rows: expected an array, got a list; pointers to pointers take lists"),
        ([x, 3], inner, r"k: rows\[1\]: expected an array or None, got int"),
    ):
        with pytest.raises(TypeError, match=f"^{says}$"):
            arguments.Packing("k", (argument,), [parameter], ("rows",), {})


@pytest.mark.parametrize(
    ("scalar", "size", "fits", "others"),
    [
        (b"f", 4, "float32 int8 uint8", "float64 int32 bfloat16"),
        (b"f", 8, "float64", "float32 int64"),
        (b"i", 4, "int32 uint32", "int64 float32 int16"),
        (b"u", 8, "int64 uint64", "int32 float64"),
        (b"u", 1, "uint8 int8 bool", "int16"),
        (b"e", 2, "float16 int16 uint16 uint8", "bfloat16 float32"),
        (b"b", 2, "bfloat16 int16", "float16 float32"),
        (b"x", 16, "float32 int8 float64", ""),
    ],
)
def test_which_arrays_a_pointer_takes(scalar, size, fits, others):
    words = {(b"f", 4): "float", (b"f", 8): "double", (b"e", 2): "__half", (b"b", 2): "__nv_bfloat16"}
    words |= {(b"i", 4): "32-bit integers", (b"u", 8): "unsigned 64-bit integers", (b"u", 1): "unsigned 8-bit integers"}
    for name in (*fits.split(), *others.split()):
        x = torch.zeros(4, dtype=getattr(torch, name))
        wrong = arguments._mismatch(x, Parameter(8, b"p", size, b"0", scalar, size))
        raw = size == 1 or name in ("int8", "uint8")
        if name in fits.split():
            assert wrong is None or (raw and scalar in (b"f",)), name
        else:
            assert wrong == words[scalar, size], name


def test_textures_and_maps_have_their_own_parameters():
    image, mapped = arguments.Texture(np.zeros((4, 4), np.float32)), TensorMap(torch.zeros(8, 16), (4, 8))
    for argument, parameter, says in (
        (image, ADDRESS, "k: n: expected no texture"),
        (image, INT, "k: n: expected no texture"),
        (mapped, INT, "k: n: expected no tensor map"),
        (mapped, BOX, "k: n: expected no tensor map"),
    ):
        with pytest.raises(TypeError, match=f"^{says}$"):
            arguments.Packing("k", (argument,), [parameter], ("n",), {})
    handle = Parameter(8, b"u", 0, b"0")
    made = arguments.Packing("k", (image, mapped, mapped), [handle, Parameter(128, b"x", 0, b"0"), ADDRESS], "abc", {})
    assert [region.name for region in made.regions] == ["a", "b", "c", "c"]
    assert made.regions[3].bytes == 128  # the map itself, behind a pointer
    with pytest.raises(TypeError, match="^k: memory: expected arrays, got int$"):
        arguments.Packing("k", (), [], (), {}, [3])


def test_what_overlaps_memory_that_is_reached_by_addresses_stays():
    buffer = np.zeros(1600 + 256, np.uint8)
    begin = -buffer.ctypes.data % 256 + 64  # so that it would be moved
    base = torch.from_numpy(buffer[begin : begin + 1600].view(np.float32))
    x = base[1:101]
    for memory, stays in ((base, True), (base[:2], True), (base[100:], True), (base[101:], False), (base[:1], False)):
        made = arguments.Packing("k", (x,), [ADDRESS], "x", {}, [memory])
        assert len(made.moves) == (not stays) and (made.regions[0].start == x.data_ptr()) == stays


def test_what_shares_memory_is_moved_together_and_comes_back():
    base = torch.zeros(400)
    odd = base[1:101]  # as of memory that begins at a multiple of 256 bytes, wherever torch has it
    views = (odd, odd[10:20], base[300:])
    pointer = [ADDRESS] * 3
    made = arguments.Packing("k", views, pointer, "xyz", {})
    starts = [region.start for region in made.regions]
    assert starts[1] - starts[0] == 40
    for start, view in zip(starts, views, strict=True):
        assert start % 256 == 4 * view.storage_offset() % 256
        ctypes.c_float.from_address(start).value = 5.0
    made.back()
    assert [float(view[0]) for view in views] == [5.0] * 3
    fixed = arguments.Packing("k", (odd,), pointer[:1], "x", {}, [base])
    assert fixed.regions[0].start == odd.data_ptr() and fixed.moves == []
    elsewhere = arguments.Packing("k", (odd.numpy(),), pointer[:1], "x", {}, [torch.zeros(9), torch.zeros(9)])
    assert elsewhere.moves or odd.numpy().base.ctypes.data % 256 == 0
    readable = np.zeros(100, np.float32)[1:]
    readable.flags.writeable = False
    read = arguments.Packing("k", (readable,), pointer[:1], "x", {})
    for move in read.moves:
        ctypes.memset(move.at, 1, move.bytes)
    read.back()
    assert not readable.any()


def lying(offset, count=800):
    """float32 whose memory begins `offset` bytes after a multiple of 256."""
    raw = (ctypes.c_uint8 * (4 * count + 512))()
    return np.frombuffer(raw, np.float32, count, -ctypes.addressof(raw) % 256 + offset)


def launched(*views):
    return arguments.Packing("k", views, [ADDRESS] * len(views), "", {})


def test_what_is_moved_is_what_arrays_span():
    base = lying(64)
    base[:] = range(len(base))
    for spans, joined in (
        ([(0, 100), (200, 300)], [(0, 100), (200, 300)]),
        ([(0, 100), (50, 150)], [(0, 150)]),
        ([(50, 150), (0, 100)], [(0, 150)]),
        ([(0, 100), (10, 20)], [(0, 100)]),
        ([(0, 100), (100, 200)], [(0, 100), (100, 200)]),
    ):
        made = launched(*(base[low:high] for low, high in spans))
        assert [(m.start, m.bytes) for m in made.moves] == [
            (base.ctypes.data + 4 * low, 4 * (high - low)) for low, high in joined
        ]
        assert [m.at % 256 for m in made.moves] == [4 * low % 256 for low, _ in joined]
        for region, (low, high) in zip(made.regions, spans, strict=True):
            there = (ctypes.c_float * (high - low)).from_address(region.start)
            assert list(there) == list(range(low, high)) and region.start != base.ctypes.data + 4 * low
    assert [region.bytes for region in launched(base[7:7], base[:3]).regions] == [12]
    assert launched(lying(0)).moves == launched(lying(0)[3:]).moves == []


def test_views_with_wide_gaps_stay_where_they_are(monkeypatch):
    monkeypatch.setattr(arguments, "COPIED", 1000)
    base = lying(64)
    for view, moved in ((base, 1), (base[:300:2], 0), (base[:251:2], 0), (base[:250:3], 1), (base[:249:2], 1)):
        assert len(launched(view).moves) == moved
    assert len(launched(base, base[::2]).moves) == len(launched(base[::2], base).moves) == 0


def test_what_is_written_comes_back_unless_nobody_may_write_there():
    base = lying(64)
    whole, part = base[:100], base[50:100]
    for read_only, back in (([part], 5.0), ([whole], 5.0), ([whole, part], 0.0)):
        base[:] = 0
        for view in (whole, part):
            view.flags.writeable = not any(view is one for one in read_only)
        for views in ((whole, part), (part, whole)):
            made = launched(*views)
            (move,) = made.moves
            ctypes.c_float.from_address(move.at + 4 * 60).value = 5.0
            made.back()
            assert base[60] == back


@pytest.mark.parametrize(
    ("grid", "block", "shared", "found"),
    [
        (3, 32, 0, ((3, 1, 1), (32, 1, 1))),
        ((2**31 - 1, 65535, 65535), (16, 1, 64), 0, ((2**31 - 1, 65535, 65535), (16, 1, 64))),
        ((1, 2), (32, 32), 1000, ((1, 2, 1), (32, 32, 1))),
    ],
)
def test_grid_and_block(grid, block, shared, found):
    assert geometry(grid, block, shared) == found


@pytest.mark.parametrize(
    ("grid", "block", "shared", "named"),
    [
        (2**31, 1, 0, "grid: at most"),
        ((1, 65536), 1, 0, "grid: at most"),
        (1, 1025, 0, "block: at most 1024 threads, 64 along z"),
        (1, (32, 33), 0, "block: at most 1024"),
        (1, (1, 16, 65), 0, "block: at most 1024"),
        (1, (16, 2, 33), 0, "block: at most 1024"),
        (0, 1, 0, "grid: expected one to three positive integers, got 0"),
        (1, (1, 1, 1, 1), 0, "block: expected one to three"),
        (1, 1.5, 0, ""),
        (1, 1, -1, "shared: expected 0 to"),
    ],
)
def test_what_no_gpu_launches(grid, block, shared, named):
    with pytest.raises((ValueError, TypeError), match=f"^{named}"):
        geometry(grid, block, shared)


@pytest.mark.parametrize(
    ("shape", "dims", "sizes", "strides", "channels"),
    [
        ((5,), None, [5, 1, 1], [4, 0, 0], 1),
        ((5, 4), 1, [5, 1, 1], [16, 0, 0], 4),
        ((3, 5), None, [5, 3, 1], [4, 20, 0], 1),
        ((3, 5, 2), 2, [5, 3, 1], [8, 40, 0], 2),
        ((2, 3, 5), None, [5, 3, 2], [4, 20, 60], 1),
        ((2, 3, 5, 4), 3, [5, 3, 2], [16, 80, 240], 4),
    ],
)
def test_a_texture_is_described_from_its_width_on(shape, dims, sizes, strides, channels):
    found = arguments.Texture(np.zeros(shape, np.float32), dims, "linear", "mirror", True, False).described(64)
    assert (found.data, list(found.sizes), list(found.strides), found.channels) == (64, sizes, strides, channels)
    assert (found.bytes, found.kind, found.linear, found.address) == (4, ord("f"), 1, 2)
    assert (found.normalised, found.fractions) == (1, 0)


def test_a_texture_of_something_else():
    x = np.zeros((4, 4), np.float32)
    for options, named in (
        (dict(filter="cubic"), "filter: expected point or linear, got 'cubic'"),
        (dict(address="none"), "address: expected one of wrap, clamp, mirror, border, got 'none'"),
        (dict(dims=0), r"array: expected one to three axes and one for channels, got shape \(4, 4\)"),
        (dict(dims=4), "array: expected one to three axes"),
    ):
        with pytest.raises(ValueError, match=f"^{named}"):
            arguments.Texture(x, **options)
    for array in (np.zeros((2, 2, 2, 2), np.float32), np.zeros((0, 2), np.float32), np.zeros((), np.float32)):
        with pytest.raises(ValueError, match="^array: expected one to three axes"):
            arguments.Texture(array)
    for dtype in (np.float64, np.int64, np.complex64, bool):
        with pytest.raises(TypeError, match="^array: expected numbers of 8, 16 or 32 bits"):
            arguments.Texture(x.astype(dtype))
    for dtype in (np.float16, np.uint8, np.int16):
        assert arguments.Texture(x.astype(dtype)).described(0).bytes == np.dtype(dtype).itemsize


@pytest.mark.parametrize(
    ("shape", "strides", "rows"),
    [
        ((4, 6), (8, 1), (24, 32)),
        ((4, 6), (6, 1), (0, 0)),  # no gaps
        ((2, 4, 6), (32, 8, 1), (24, 32)),
        ((2, 4, 6), (48, 6, 1), (96, 192)),
        ((2, 4, 6), (35, 8, 1), (0, 0)),  # no rows at one distance
        ((6,), (1,), (0, 0)),
        ((6,), (2,), (4, 8)),
        ((4, 6), (1, 4), (0, 0)),
        ((4, 1, 6), (8, 99, 1), (24, 32)),
        ((4, 6), (0, 1), (0, 0)),
        ((4, 6), (-8, 1), (24, 32)),
        ((4, 6), (3, 1), (0, 0)),  # that overlap
        ((1, 1), (7, 7), (0, 0)),
    ],
)
def test_rows_of_an_argument_with_gaps(shape, strides, rows):
    assert Argument("x", 0, 4096, 4, shape, strides).rows == rows


def test_the_memory_that_a_message_names():
    for kind, name, found in (
        (1, b"", "y"),
        (2, b"tile", "the shared array tile"),
        (2, b"", "the dynamic shared memory"),
        (3, b"", "the variable table"),
        (5, b"", "what the kernel allocated"),
        (6, b"tile", "the shared array tile"),
    ):
        assert findings.region_name(LOADED, Report(region_kind=kind, region_index=0, name=name), REGIONS) == found


@pytest.mark.parametrize(
    ("shape", "box", "steps", "accepted"),
    [
        ((256, 16), (256, 16), (8, 1), True),
        ((256, 16), (257, 16), (1, 1), False),
        ((256, 16), (0, 16), (1, 1), False),
        ((256, 16), (256, 16), (9, 1), False),
        ((256, 16), (256, 16), (0, 1), False),
        ((256, 16), (16,), (1, 1), False),
        ((256, 16), (16, 16), (1,), False),
    ],
)
def test_the_boxes_that_a_driver_takes(shape, box, steps, accepted):
    array = np.zeros(shape, np.float32)
    if accepted:
        assert (TensorMap(array, box, 0, steps).box, len(TensorMap(array, box, 0, steps).encoded(64))) == (box, 128)
    else:
        with pytest.raises(ValueError, match="^box, steps: expected "):
            TensorMap(array, box, 0, steps)


def test_a_map_as_the_engine_reads_it():
    """Axes from the innermost to the outermost, whose strides are told of all but the first."""
    array = np.zeros((3, 5, 16), np.float16)[:, ::-1][:, ::-1]
    made = TensorMap(array, (2, 4, 8), 32, (1, 2, 1), "nan").encoded(4096)
    assert made.ctypes.data % 64 == 0 and len(made) == tensormaps.BYTES
    found = tensormaps._Encoded.from_buffer_copy(made)
    assert (found.magic, found.address) == (tensormaps._MAGIC, 4096)
    assert (found.rank, found.type, found.item, found.swizzle, found.fill) == (3, 0, 2, 32, 1)
    assert list(found.sizes) == [16, 5, 3, 0, 0] and list(found.box) == [8, 4, 2, 0, 0]
    assert list(found.steps) == [1, 2, 1, 0, 0] and list(found.strides) == [32, 160, 0, 0]
    other = TensorMap(torch.zeros(2, 6, 8)[:, ::2].int(), (2, 3, 4))
    found = tensormaps._Encoded.from_buffer_copy(other.encoded(16))
    assert (found.rank, found.type, found.item, found.swizzle, found.fill) == (3, 9, 4, 0, 0)
    assert list(found.strides) == [32, 96, 0, 0] and list(found.steps) == [1, 1, 1, 0, 0]
    found = tensormaps._Encoded.from_buffer_copy(TensorMap(np.zeros((1, 16), np.int8)[::-1], (1, 16)).encoded(0))
    assert list(found.strides) == [0, 0, 0, 0]  # of an axis of one element any stride is right
    for start in (8, 4097):
        with pytest.raises(ValueError, match=f"a multiple of 16 bytes, got {start % 16} bytes off"):
            other.encoded(start)


def test_copies_that_begin_where_a_parameter_does():
    kept = [tensormaps.aligned(bytes([n]) * size) for n, size in enumerate((128, 1, 63, 65))]
    assert all(each.ctypes.data % 64 == 0 for each in kept)
    assert [each.tolist() for each in kept] == [[n] * size for n, size in enumerate((128, 1, 63, 65))]


@pytest.mark.parametrize(
    ("array", "box", "more", "error", "text"),
    [
        (
            np.zeros((4, 16), bool),
            (4, 16),
            {},
            TypeError,
            "array: expected numbers that the copy engine knows, got bool",
        ),
        (np.zeros((4, 6), np.float32), (4, 6), {}, ValueError, "box: expected rows of a multiple of 16 bytes, at most"),
        (np.zeros((4, 16), np.float32), (4, 16), {"swizzle": 32}, ValueError, "box: expected .* 32, got 64 bytes"),
        (np.zeros((4, 8), np.float32), (4, 8), {"steps": (1, 3)}, ValueError, "box: expected rows of a multiple of 16"),
        (np.zeros((4, 8), np.float32), (4, 8), {"fill": "ones"}, ValueError, "fill: expected zeros or nan, got 'ones'"),
        (np.zeros((4, 8), np.float32), (4, 8), {"swizzle": 16}, ValueError, "swizzle: expected 0, 32, 64 or 128 bytes"),
        (np.zeros((4, 0), np.float32), (4, 8), {}, ValueError, "array: expected one to five axes of at least one elem"),
        (np.zeros((1,) * 6, np.float32), (1,) * 6, {}, ValueError, "array: expected one to five axes"),
        (np.zeros((4, 6), np.float32)[:, :4], (4, 4), {}, ValueError, "array: expected strides of whole 16 bytes"),
        (np.zeros((4, 8), np.float32)[::-1], (4, 4), {}, ValueError, "array: expected strides of whole 16 bytes"),
        (np.zeros((4, 8), np.float32).T, (8, 4), {}, ValueError, "array: expected its last axis contiguous"),
    ],
)
def test_maps_that_a_driver_declines(array, box, more, error, text):
    with pytest.raises(error, match=f"^{text}"):
        TensorMap(array, box, **more)


def test_how_far_two_answers_are_apart():
    one = torch.tensor([1.0, 2.0, 0.0, torch.nan, torch.inf])
    two = torch.tensor([1.0, 2.0 + 3 * 2.0**-22, 0.0, torch.nan, torch.inf])
    assert command._spread(one, two) == ", by up to 3 ulp"
    assert command._spread(one.half(), (one + torch.tensor([2**-10, 0, 0, 0, 0])).half()) == ", by up to 1 ulp"
    assert command._spread(torch.tensor([torch.nan]), torch.tensor([1.0])) == ""
    assert command._spread(torch.zeros(0), torch.zeros(0)) == ""
    assert command._spread(torch.tensor([1, 2, 3]), torch.tensor([1, 3, 2])) == ", 2 elements"
    assert command._spread(torch.tensor([1.5]), torch.tensor([-1.5])) == ", by up to 2.52e+07 ulp"


def test_orders():
    for order in ("forward", "reverse", "shuffled"):
        with instruments.schedule(order, seed=4):
            assert (instruments.settings.order, instruments.settings.seed) == (order, 4)
    usual = instruments.Settings("forward", 0, False, False, False, 2_000_000, False)
    with instruments.schedule("forward"):
        assert instruments.settings == instruments.Settings() == usual
    with pytest.raises(dataclasses.FrozenInstanceError):
        instruments.settings.seed = 1
    with pytest.raises(ValueError, match="^order: expected one of 'forward', 'reverse', 'shuffled', got 'sideways'$"):
        instruments.schedule("sideways")
    for within, name in (
        (instruments.races, "races"),
        (instruments.strict, "strict"),
        (instruments.zeroed_locals, "zeroed"),
    ):
        assert not getattr(instruments.settings, name)
        with within():
            assert getattr(instruments.settings, name)


def test_what_an_argument_of_the_command_stands_for():
    def made(text):
        return command.argument(text, torch.Generator().manual_seed(0))

    assert made("null") is None and made("3") == 3 and made("0x10") == 16 and made("2.5") == 2.5
    assert made("int[2,3]=arange").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert made("half[4]=1.5").tolist() == [1.5] * 4 and made("half[4]=1.5").dtype is torch.float16
    assert made("float[64, 64]").shape == (64, 64) and 0.9 < float(made("float[64x64]").std()) < 1.1
    numbers = made("uint8[1000]")
    assert numbers.dtype is torch.uint8 and 90 < int(numbers.max()) < 100 and int(numbers.min()) < 10
    mapped = made("half[64,128]@64x32/64")
    assert (tuple(mapped.array.shape), mapped.box, mapped.swizzle) == ((64, 128), (64, 32), 64)
    with pytest.raises(ValueError, match="^--arg word\\[3\\]: expected one of float, .* got 'word'$"):
        made("word[3]")
    assert command._sizes("4") == (4,) and command._sizes("4,5x6") == (4, 5, 6)


DECLARATIONS = {
    "float a[3]": "a",
    "float a[n = 3], b": "a",
    "Type<x = 1> a[3]": "a",
    "Type{x[1]} a = b": "a",
    "decltype(x[1]) a[2]": "a",
    "float4 a": "a",
    "Pair<int, (2 > 1)> a[3]": "a",
    "Pair<a, Pair<b, c>> d[3][4]": "d",
    "unsigned long long count": "count",
    "int b = 3": "b",
    "int b = c": "b",
    "float a[N]": "a",
    "Pair<int[N], (N > M)> a[N]": "a",
    "decltype(b[N]) a[N]": "a",
}


@pytest.mark.parametrize("text", DECLARATIONS)
def test_the_name_that_is_declared(text):
    begin, end = source._declarator(text)
    assert text[begin:end] == DECLARATIONS[text]


def shared(name, kind, dims="", *aligned):
    """The declaration of one, inside a function."""
    size = f"typedef {kind} {name}_ts{dims};"
    if aligned:
        members = " ".join(f"{each} char m{i};" for i, each in enumerate(aligned))
        size += f" struct {name}_aligned {{ {members} {name}_ts m; }};"
    align = f"{name}_aligned" if aligned else f"{name}_ts"
    site = f'static ts_site {name}_site = touchstone::site<{name}_ts>("{name}", alignof({align}));'
    return f"{size} {site} {name}_ts& {name} = touchstone::shared<{name}_ts>({name}_site);"


REWRITTEN = {
    "__shared__ float x[N], y;": f"{shared('x', 'float', '[N]')} {shared('y', 'float')}",
    "static volatile __shared__ int x;": shared("x", "volatile int"),
    "volatile __shared__ __align__(8) int x;": shared("x", "volatile int", "", "__align__(8)"),
    "__shared__ int *p, *q;": f"{shared('p', 'int *')} {shared('q', 'int *')}",
    "__shared__ __align__(16) float x[3];": shared("x", "float", "[3]", "__align__(16)"),
    "alignas(sizeof(int)) __shared__ [[maybe_unused]] float x[3];":
        shared("x", "float", "[3]", "alignas(sizeof(int))"),
    "__shared__ alignas(f(1, 2)) __align__(8) float x;": shared("x", "float", "", "alignas(f(1, 2))", "__align__(8)"),
    "__shared__ struct { int a; } x[2];": shared("x", "struct { int a; }", "[2]"),
    "extern __shared__ float r[];": "typedef float r_ts; r_ts* const r = touchstone::dynamic_shared<r_ts>();",
    "extern __shared__ float r[][4];": "typedef float r_ts[4]; r_ts* const r = touchstone::dynamic_shared<r_ts>();",
    "extern __shared__ S s;": "typedef S s_ts; s_ts& s = *touchstone::dynamic_shared<s_ts>();",
}  # fmt: skip


@pytest.mark.parametrize("text", REWRITTEN)
def test_shared_memory_in_a_function(text):
    def plain(made):
        return re.sub(r"\s+", " ", made)

    for around in ("void k() {{ {0} x = 1; }}", "void k() {{{0}x = 1; {0}}}\nnamespace n {{ int a; }}"):
        assert plain(source.rewrite(around.format(text))) == plain(around.format(REWRITTEN[text]))


def test_shared_memory_outside_of_functions():
    """It stands where its name does, except where that is another's; messages have the name as it was written."""
    stands = "(touchstone::shared<t_ts>(t_site))"
    site = 'typedef int t_ts[4]; static ts_site t_site = touchstone::site<t_ts>("t", alignof(t_ts));'
    for used in (
        "void k() { T[0] = s.t + p->t + t2 + (1>T[1]); }",
        'void k() { say("t = %d", T); if (T) g(T, 1); h(T); }',
        "void m(int t) { t = t + 1; }\nvoid k() { T[0] = 1; }",
        'void m(int a, float (*f)(int), int t[])\n# 7 "t"\n{ t[0] = 1; }\nint a = T[0];',
        "void k() { switch (n + T) { case 1: T[1] = 1; } }",
        "void k() { for (int v : T) { T[v] = 1; } while (g(1, T)) { T[0] = 2; } if (T) { T[0] = 3; } }",
        "void k() { { int a = T, b; } { T[0] = T[1]; } auto f = [](int t) { return t + t; }; T[1] = 2; }",
        "void k() { form(T); modify(T); } void m(int t ) { }",
    ):
        text = f"__shared__ int t[4];\n{used.replace('T', 't')}\n"
        assert source.rewrite(text) == f"{site}\n{used.replace('T', stands)}\n"
    assert source.rewrite("namespace n { __shared__ int t; }").startswith("namespace n { typedef int t_ts; static ts_")


def test_shared_memory_that_is_none_or_cannot_be_read():
    for text in (
        "# pragma __shared__ int x;\nint y;",
        'auto s = "__shared__ int \\"x;";',
        "auto c = '\\'__shared__ x;';",
    ):
        assert source.rewrite(text) == text
    for text in ("void k() { __shared__ int x }", "__shared__ int x", "__shared__ struct { int x; } y"):
        with pytest.raises(ValueError, match="^a __shared__ declaration without end$"):
            source.rewrite(text)
    assert source.rewrite("void k(int a = f(") == "void k(int a = f("
    with pytest.raises(
        ValueError, match=r"^cannot read the shared declaration '__shared__ \[3\];': write `__shared__ type"
    ):
        source.rewrite("__shared__ [3];")


def test_parts_between_commas_outside_of_brackets():
    assert source.split("float a[2], b[f(1, 2)], c") == ["float a[2]", " b[f(1, 2)]", " c"]
    assert source.split("Pair<int, int> a, b{1, 2}") == ["Pair<int, int> a", " b{1, 2}"]
    assert source._closing("f((1), 2) + (3)", 1) == 9
    assert source._declarator("") is None


def test_which_shared_declarations_stand_outside_of_functions():
    text = """extern __shared__ float room[];
namespace a { inline namespace { __shared__ int one; } }
} __shared__ int two;
void k(int n = f({1; 2})) { if (n) { __shared__ struct { int x; } three; } g(); __shared__ int four; }
__shared__ int five; struct S { int x; };
"""
    found = [(text[start:end].rstrip(";").split()[-1], outside) for start, end, outside in source._declarations(text)]
    assert found == [("room[]", True), ("one", True), ("two", True), ("three", False), ("four", False), ("five", True)]
    whole = "for (int i = 0; i < 2; i++) __shared__ int four"
    ((start, end, _),) = source._declarations(f"void k() {{ {whole}; }}")
    assert f"void k() {{ {whole}; }}"[start:end].strip(" ;") == whole


def test_names_in_a_library():
    assert binary._demangled("_ZL5table") == "table" and binary._demangled("table") == "table"
    assert binary._demangled("touchstone_x") == "touchstone_x"


def test_a_file_that_is_no_library_has_no_variables(tmp_path):
    (tmp_path / "k.so").write_bytes(b"not ELF at all")
    assert binary.variables(tmp_path / "k.so") == ([], (0, 0))


def test_lines_are_unknown_without_a_tool(monkeypatch):
    monkeypatch.setattr(binary.shutil, "which", lambda name: None)
    assert binary.lines("k.so", [1, 2]) == [[], []]


def test_lines_as_addr2line_tells_them(monkeypatch, tmp_path):
    tool = tmp_path / "addr2line"
    answer = "0x1\\ninner\\n/a/b.cu:12 (discriminator 3)\\nouter\\n/a/c.cu:?\\n0x2\\n??\\n??:0\\n"
    tool.write_text(f"#!/bin/sh\nprintf '{answer}'\n")
    tool.chmod(0o755)
    monkeypatch.setattr(binary.shutil, "which", lambda name: str(tool) if name == "addr2line" else None)
    inner = [("inner", "/a/b.cu", 12), ("outer", "/a/c.cu", 0)]
    assert binary.lines("k.so", [1, 2]) == [inner, [("??", "??", 0)]]


def test_flags_of_this_processor(monkeypatch):
    known = compiler.processor_flags.__wrapped__

    class Cpu:
        def __init__(self, text):
            self.text = text

        def read_text(self):
            return self.text

    monkeypatch.setattr(compiler, "Path", lambda path: Cpu("model\t: avx2\nflags\t\t: fpu fma avx2 sse\nflags: f16c\n"))
    assert known() == ("-mfma", "-mavx2")
    monkeypatch.setattr(compiler, "Path", lambda path: Cpu("model\t: one without flags\n"))
    assert known() == ()


def test_structures_are_as_large_as_their_fields():
    assert json.dumps([ctypes.sizeof(each) for each in (Place, Parameter)]) == "[248, 28]"


def test_a_file_that_is_not_there_is_named(tmp_path, capsys):
    assert command.main([str(tmp_path / "gone.cu"), "--block", "32"]) == 2
    assert capsys.readouterr().err.startswith("FILE.cu: expected a file of CUDA C++; there is none at ")
    assert command.main([]) == 2
    assert capsys.readouterr().err.startswith("FILE.cu: expected a file of CUDA C++, or --numba SCRIPT.py")
    assert command.main(["--numba"]) == 2
    assert capsys.readouterr().err.startswith("--numba: expected a Python file and its arguments")


def test_what_no_argument_is_by_its_name():
    names = {1: "y", 3: "the variable table", 5: "what the kernel allocated", 2: "the shared array tile"}
    for kind, name in names.items():
        report = Report(region_kind=kind, region_index=0, name=b"tile")
        assert findings.region_name(LOADED, report, REGIONS) == name
    for kind in (2, 4, 6):
        assert findings.region_name(LOADED, Report(region_kind=kind), REGIONS) == "the dynamic shared memory"


@pytest.mark.parametrize(
    ("box", "steps", "right"),
    [
        ((4, 8), None, True),
        ((4, 8), (8, 1), True),
        ((4, 8), (9, 1), False),
        ((4, 8), (0, 1), False),
        ((256, 8), None, True),
        ((257, 8), None, False),
        ((0, 8), None, False),
        ((8,), (1, 1), False),
        ((4, 8), (1,), False),
        ((1, 4, 8), (1, 1), False),
    ],
)
def test_what_box_a_tensor_map_has(box, steps, right):
    array = np.zeros((300, 64), np.float32)
    if right:
        encoded = TensorMap(array, box, steps=steps).encoded(0)
        assert encoded.nbytes == 128 and encoded.ctypes.data % 64 == 0
        return
    with pytest.raises(ValueError, match="^box, steps: expected"):
        TensorMap(array, box, steps=steps)


def test_who_wrote_is_asked_of_one_engine(monkeypatch):
    told, gone = {64: (1, 5, 33, 8), 60: (2, 0, 0, 4), 67: (2, 1, 0, 4), 59: (1, 0, 0, 4), 68: (1, 0, 0, 4)}, []

    def of(handle, place, found):
        if handle == 7 and place in told:
            found[:] = told[place]
        return handle == 7 and place in told

    engine = SimpleNamespace(ts_writers_new=lambda: 7, ts_writers_of=of, ts_writers_delete=gone.append)
    loaded, other = LOADED._replace(engine=engine), LOADED._replace(engine=SimpleNamespace())
    monkeypatch.setattr(instruments, "line_of", lambda path, pc: f"a.cu:{pc}")
    assert instruments.record(loaded, (1, 1, 1), (1, 1, 1)) is None
    moved = [arguments.Move(1000, 8, 60, np.zeros(1), True)]
    with instruments.writers() as writers:
        assert writers.of(64) is None
        assert instruments.record(loaded, (2, 3, 4), (8, 4, 2), moved) == 7
        assert instruments.record(other, (1, 1, 1), (1, 1, 1)) == 0
        who = "block (1, 2, 0), thread (1, 0, 1), line 7 of a.cu"
        assert writers.of(64) == who and writers.of(1004) == who
        assert [writers.of(place) for place in (63, 1003, 999, 1008)] == [None] * 4
        with instruments.writers():
            assert instruments.record(loaded, (1, 1, 1), (1, 1, 1)) == 7
        assert instruments.record(loaded, (1, 2, 1), (1, 1, 1)) == 7
        for place, block in ((1000, 0), (1007, 1)):
            assert writers.of(place) == f"block (0, {block}, 0), thread (0, 0, 0), line 3 of a.cu"
    assert instruments.record(loaded, (1, 1, 1), (1, 1, 1)) is None and gone == [7]
    monkeypatch.setattr(instruments, "line_of", lambda path, pc: "k.so")
    assert writers.of(64).endswith(", k.so")
    del writers
    assert gone == [7, 7]


def test_what_a_launch_is_told():
    with instruments.using(order="reverse", seed=5, races=True, step_limit=99):
        made = instruments.options(True, cluster=(1, 2, 3))
        assert (made.order, made.seed, made.races, made.step_limit) == (instruments.ORDERS.index("reverse"), 5, 1, 99)
        assert (made.cooperative, made.strict, made.checks, list(made.cluster)) == (1, 0, 1, [1, 2, 3])
        plain = instruments.options(False)
        assert (plain.cooperative, list(plain.cluster), plain.stack_bytes) == (0, [0, 0, 0], instruments.STACK_BYTES)
        assert instruments.options(False, strict=True).strict == 1
        with instruments.strict():
            assert instruments.options(False).strict == 1


@pytest.mark.parametrize(
    ("chosen", "cores", "workers"),
    [("", 6, 6), ("3", 6, 3), ("9", 6, 6), ("0", 6, 1), ("2,4", 6, 2), ("many", 6, 6), (None, 6, 6)],
)
def test_how_many_cores_a_launch_has(monkeypatch, chosen, cores, workers):
    monkeypatch.setattr("os.sched_getaffinity", lambda which: set(range(cores if which == 0 else 99)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    assert instruments.workers() == instruments.options(False).workers == workers


def test_a_name_for_a_file():
    assert compiler.plain_name("") == "_" and compiler.plain_name("a.b/c ü+") == "a_b_c__+"
    assert compiler.plain_name("x" * 81) == "x" * 80


def test_the_state_of_cuda_s_headers(tmp_path):
    """It is another when a file there has another name or size, or CCCL is of another release."""
    (tmp_path / "crt").mkdir()
    (tmp_path / "cccl/cuda/std/__cccl").mkdir(parents=True)
    states = {compiler._state_of(None)}
    for name, text in (
        ("a.h", "1"),
        ("a.h", "12"),
        ("b.hpp", "1"),
        ("crt/c", "1"),
        ("cccl/cuda/std/__cccl/version.h", "1"),
        ("cccl/cuda/std/__cccl/version.h", "2"),
    ):
        (tmp_path / name).write_text(text)
        states.add(compiler._state_of.__wrapped__(tmp_path))
    assert len(states) == 7
    (tmp_path / "d.txt").write_text("1")
    assert compiler._state_of.__wrapped__(tmp_path) in states


def test_without_a_compiler_there_is_no_command(monkeypatch):
    monkeypatch.setattr(compiler, "why_not", lambda: "no g++")
    with pytest.raises(RuntimeError, match="^no g\\+\\+$"):
        compiler.command()


def test_a_library_that_cannot_be_loaded(tmp_path, monkeypatch):
    """The machine's fault, unless a symbol is missing."""
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    with pytest.raises(NotRun, match="^a compiled kernel cannot be loaded: "):
        library.opened(str(broken))

    def fails(*given, **options):
        raise OSError("k.so: undefined symbol: f")

    monkeypatch.setattr(library.ctypes, "CDLL", fails)
    with pytest.raises(OSError, match="undefined symbol"):
        library.opened("k.so")


ENGINE_NUMBERS = {  # ts_number in engine.h
    "float16": 0, "bfloat16": 1, "float32": 3, "float64": 4, "uint8": 8, "int8": 8, "float8_e4m3fn": 8,
    "float8_e5m2": 8, "int32": 9, "uint32": 10, "int64": 11, "uint64": 12, "int16": 14, "uint16": 14,
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINE_NUMBERS)
def test_the_numbers_of_a_tensor_map(name):
    array = torch.zeros(64, 32, dtype=getattr(torch, name))
    made = TensorMap(array, (4, 16), swizzle=128, steps=(2, 1), fill="nan").encoded(1 << 20)
    assert bytes(made[:8]) == b"ensorMap" and len(made) == 128
    read = tensormaps._Encoded.from_buffer_copy(made)
    item = array.element_size()
    assert (read.address, read.type, read.item, read.rank) == (1 << 20, ENGINE_NUMBERS[name], item, 2)
    assert (read.swizzle, read.fill, list(read.strides)) == (128, 1, [32 * item, 0, 0, 0])
    assert (list(read.sizes), list(read.box), list(read.steps)) == (
        [32, 64, 0, 0, 0],
        [16, 4, 0, 0, 0],
        [1, 2, 0, 0, 0],
    )


@pytest.mark.parametrize("swizzle", [16, 31, 33, 48, 65, 127, 129, 256])
def test_a_swizzle_is_one_of_four(swizzle):
    array = np.zeros((64, 8), np.float32)
    for right in (0, 32, 64, 128):
        assert TensorMap(array, (4, 8), swizzle=right).swizzle == right
    with pytest.raises(ValueError, match=f"^swizzle: expected 0, 32, 64 or 128 bytes, got {swizzle}$"):
        TensorMap(array, (4, 8), swizzle=swizzle)


@pytest.mark.parametrize(("inner", "step"), [(10, 3), (6, 1), (8, 3), (4, 2)])
def test_rows_of_a_box_are_whole_16_bytes_as_they_lie_and_as_they_are_taken(inner, step):
    array = np.zeros((64, 64), np.float32)
    assert TensorMap(array, (4, 8), steps=(1, 2)).box == (4, 8)
    with pytest.raises(ValueError, match="^box: expected rows of a multiple of 16 bytes"):
        TensorMap(array, (4, inner), steps=(1, step))


@pytest.mark.parametrize(
    ("shape", "strides", "says"),
    [
        ((8,), (4,), None),
        ((2, 1, 1, 1, 8), (32, 32, 32, 32, 4), None),
        ((2**32 - 1, 8), (32, 4), None),
        ((4, 1), (16, 8), None),  # of a last axis of one element the stride says nothing
        ((4, 2), (16, 8), "expected its last axis contiguous, got strides of"),
        ((1, 8), (0, 4), None),
        ((2, 8), (0, 4), "expected strides of whole 16 bytes"),
        ((2, 8), (8, 4), "expected strides of whole 16 bytes"),
        ((2, 8), (-32, 4), "expected strides of whole 16 bytes"),
        ((2, 2, 8), (32, 40, 4), "expected strides of whole 16 bytes"),
        ((2**32, 8), (32, 4), "expected one to five axes of at least one element"),
        ((2, 1, 1, 1, 1, 8), (32,) * 5 + (4,), "expected one to five axes of at least one element"),
        ((), (), "expected one to five axes of at least one element"),
        ((0, 8), (32, 4), "expected one to five axes of at least one element"),
    ],
)
def test_which_arrays_the_copy_engine_takes(shape, strides, says):
    array = np.lib.stride_tricks.as_strided(np.zeros(64, np.float32), shape, strides)
    box = (*(1 for _ in shape[:-1]), 8)[: len(shape)]
    if says is None:
        made = TensorMap(array, box)
        assert list(tensormaps._Encoded.from_buffer_copy(made.encoded(64)).strides)[: len(shape) - 1] == [
            *strides[-2::-1]
        ]
        return
    with pytest.raises(ValueError, match=f"^array: {says}"):
        TensorMap(array, box)
