"""Compiled libraries as Python sees them: the engine, a source's kernels, and the structures that both exchange."""

import ctypes
import functools
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from touchstone.backends import NotRun
from touchstone.backends.emulator import binary


class Place(ctypes.Structure):
    _fields_ = [
        ("pc", ctypes.c_uint64),
        ("file", ctypes.c_char * 200),
        ("line", ctypes.c_int32),
        ("block", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32 * 3),
        ("access", ctypes.c_int32),
        ("state", ctypes.c_int32),
    ]


class Report(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("region_kind", ctypes.c_int32),
        ("region_index", ctypes.c_int32),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("extent", ctypes.c_uint64),
        ("item", ctypes.c_uint64),
        ("name", ctypes.c_char * 128),
        ("dims", ctypes.c_uint32 * 4),
        ("here", Place),
        ("there", Place),
        ("lane", ctypes.c_int32),
        ("mask", ctypes.c_uint32),
        ("text", ctypes.c_char * 400),
        ("atomics", ctypes.c_uint64),
    ]


class Range(ctypes.Structure):
    _fields_ = [
        ("start", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("kind", ctypes.c_int32),
        ("index", ctypes.c_int32),
        ("writable", ctypes.c_int32),
        ("item", ctypes.c_int32),
        ("row", ctypes.c_uint64),
        ("pitch", ctypes.c_uint64),
    ]


def ranges(regions: Sequence[Any], variables: Iterable[tuple[int, int, int]]) -> tuple[Any, int]:
    """The memory that a kernel may use, for the engine, and how many ranges that is: arrays handed over, and variables
    of the program (start, bytes, whether they may be written)."""
    found = [Range(region.start, region.bytes, 1, i, 1, region.item, *region.rows) for i, region in enumerate(regions)]
    found += [Range(start, size, 3, i, writable, 1) for i, (start, size, writable) in enumerate(variables)]
    return (Range * (len(found) + 1))(*found), len(found)


class Options(ctypes.Structure):
    _fields_ = [
        ("order", ctypes.c_int32),
        ("workers", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("checks", ctypes.c_int32),
        ("races", ctypes.c_int32),
        ("cooperative", ctypes.c_int32),
        ("strict", ctypes.c_int32),
        ("stack_bytes", ctypes.c_uint64),
        ("step_limit", ctypes.c_uint64),
        ("module", ctypes.c_uint64),
        ("readable_low", ctypes.c_uint64),
        ("readable_high", ctypes.c_uint64),
        ("cluster", ctypes.c_uint32 * 3),
    ]


class Parameter(ctypes.Structure):
    _fields_ = [
        ("bytes", ctypes.c_uint32),
        ("kind", ctypes.c_char),
        ("item", ctypes.c_uint32),
        ("constant", ctypes.c_char),
        ("scalar", ctypes.c_char),
        ("scalar_bytes", ctypes.c_uint32),
        ("inner", ctypes.c_char),
        ("inner_bytes", ctypes.c_uint32),
    ]


class Field(ctypes.Structure):
    """Of a structure that is a parameter."""

    _fields_ = [
        ("name", ctypes.c_char * 80),
        ("offset", ctypes.c_uint64),
        ("count", ctypes.c_uint32),  # of an array; 0 for one value
        ("type", Parameter),
    ]


def opened(path: str) -> ctypes.CDLL:
    """The library at `path`, which takes the engine's functions from the engine that it was linked with: `engine`
    has loaded it.

    Two engines may be in one process, and Numba's code makes the names of its own visible to every library. Raises
    NotRun where the machine does not let it be loaded.
    """
    try:
        return ctypes.CDLL(path, mode=ctypes.DEFAULT_MODE | getattr(os, "RTLD_DEEPBIND", 0))
    except OSError as error:
        if "undefined symbol" in str(error):
            raise
        raise NotRun(f"a compiled kernel cannot be loaded: {error}") from None


_engines: dict[str, ctypes.CDLL] = {}  # by the names under which kernels ask for them


def engine(path: str) -> ctypes.CDLL:
    """The engine at `path`, or the same one if it was loaded from elsewhere: kernels use the one that came first."""
    name = os.path.basename(path)
    if name not in _engines:
        _engines[name] = _engine(path)
    return _engines[name]


def _engine(path: str) -> ctypes.CDLL:
    library = opened(path)
    library.ts_report_bytes.restype = ctypes.c_uint64
    assert library.ts_report_bytes() == ctypes.sizeof(Report)
    library.ts_writers_new.restype = ctypes.c_void_p
    library.ts_writers_delete.argtypes = [ctypes.c_void_p]
    library.ts_writers_of.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
    library.ts_launch.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    return library


class Loaded(NamedTuple):
    path: str
    library: ctypes.CDLL
    engine: ctypes.CDLL
    base: int
    variables: list[binary.Variable]
    constants: tuple[int, int]


def parameters(loaded: Loaded, number: int) -> list[Parameter]:
    out = (Parameter * 64)()
    count = getattr(loaded.library, f"ts_parameters_{number}")(out, 64)
    return list(out[:count])


def cluster(loaded: Loaded, number: int) -> tuple[int, int, int]:
    """Blocks of a cluster that the kernel itself asks for; zeros where it does not."""
    out = (ctypes.c_uint32 * 3)()
    if describe := getattr(loaded.library, f"ts_cluster_{number}", None):
        describe(out)
    return out[0], out[1], out[2]


def fields(loaded: Loaded, number: int, position: int) -> list[Field]:
    """Of a parameter that is a structure; none where they are not known."""
    describe = getattr(loaded.library, f"ts_fields_{number}_{position}", None)
    if describe is None:
        return []
    out = (Field * 64)()
    return list(out[: max(describe(out), 0)])


def _maps(path: str) -> list[tuple[int, int, str]]:
    real = os.path.realpath(path)
    out = []
    with open("/proc/self/maps") as file:
        for line in file:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].strip() == real:
                low, high = (int(part, 16) for part in fields[0].split("-"))
                out.append((low, high, fields[1]))
    return out


@functools.cache
def base(path: str) -> int:
    return min((low for low, _, _ in _maps(path)), default=0)
