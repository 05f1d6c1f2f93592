"""The engine's report as an exception with a sentence."""

import ctypes
import functools
import itertools
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from touchstone.backends import overflow
from touchstone.backends.emulator import binary, compiler, errors
from touchstone.backends.emulator.arguments import Argument
from touchstone.backends.emulator.library import Loaded, Place, Report

_KINDS = {
    1: errors.OutOfBounds,
    2: errors.Misaligned,
    3: errors.UninitialisedShared,
    4: errors.DivergentBarrier,
    5: errors.Deadlock,
    6: errors.InactiveLanes,
    7: errors.RaceCondition,
    8: errors.KernelError,
    9: errors.StaleShared,
}
FAR = 4096  # bytes from an argument, and more than it has: its index is not what is wrong
# Of front ends whose code is no library: from what stands for its path to what gives "file:line" of a pc.
front_ends: dict[str, Callable[[int], str]] = {}
_FOREIGN = (compiler.OWN_HEADERS, compiler.CUDA_HEADERS)


def error(kernel: str, loaded: Loaded, report: Report, regions: list[Argument]) -> errors.KernelError:
    """The finding as an exception."""
    here, there = line_name(loaded, report.here), line_name(loaded, report.there)
    who = thread_name(report.here)
    text = report.text.decode()
    kind = report.kind
    verbs = ("reads", "writes", "atomically updates")
    verb = verbs[report.here.access]
    what = f"{report.size} byte{'s' if report.size != 1 else ''}"
    if kind == 1 and report.region_kind == -1:
        message = f"{who} uses index {report.offset} of an array of type {text}"
    elif kind == 1 and text == "gap":
        row = regions[report.region_index].rows[0]
        message = (
            f"{who} {verb} {what} in a gap of {region_name(loaded, report, regions)} (shape "
            f"{regions[report.region_index].shape}), whose rows are {row} bytes, at byte offset {report.offset}"
        )
    elif kind == 1:
        message = f"{who} {verb} {what} {_region(loaded, report, regions)}"
    elif kind == 2:
        whose = f"{text} " if text else ""
        where = _region(loaded, report, regions).removeprefix("of ")
        message = f"{who} {verb} {whose}at an address that is no multiple of {report.mask}: {where}"
    elif kind == 3:
        message = f"{who} {verb} {what} {_region(loaded, report, regions)}, " + (
            f"which {_other(report)} writes later, at {there}: no barrier lies between"
            if text == "later"
            else "which an asynchronous copy has yet to fill"
            if text
            else "which no thread of its block has written"
        )
    elif kind == 4:
        message = f"{who} waits at the block's barrier, but {_missing(report, there)}"
    elif kind == 5 and text == "spins":
        message = f"{who} waits in a loop for memory that no thread changes"
    elif kind == 5 and report.region_kind:
        message = f"{who} waits at an mbarrier, {_element(loaded, report, regions)}, {text}"
    elif kind == 5 and text:
        message = f"{who} {text}"
    elif kind == 5:
        message = f"{who} waits at the grid's barrier, but {_missing(report, there)}"
    elif kind == 6:
        if bytes(report.here.thread) == bytes(report.there.thread) and report.there.state != 4:
            message = f"{who}: {text} with mask {report.mask:#010x}, which leaves out its own lane {report.lane}"
        elif report.there.state == 4:
            message = f"{who}: {text} reads lane {report.lane}, which takes no part (mask {report.mask:#010x})"
        else:
            message = (
                f"{who}: {text} with mask {report.mask:#010x} waits for lane {report.lane}, but "
                f"{_missing(report, there)}"
            )
    elif kind == 7:
        lacks = f"and no {text} lies between" if text else "and nothing orders the two"
        other = f"{_other(report)} {verbs[report.there.access]} it at {there}"
        message = f"{_element(loaded, report, regions)}: {who} {verb} it, {other}, {lacks}"
    elif kind == 9:
        over = f"stores over {what} {report.mask} times before any thread has read what it stored there"
        message = (
            f"{region_name(loaded, report, regions)}: block {_tuple(report.here.block)} "
            f"{over if report.mask else f'leaves {what} that it has stored last and no thread reads'}, while thread "
            f"{_tuple(report.there.thread)} reads at {there} what was read before a barrier"
        )
    else:
        message = f"{who}: {text}"
    return _KINDS[kind](f"{kernel} ({here}): {message}")


def _other(report: Report) -> str:
    """The second thread of a finding, by its block too where that is another."""
    same = bytes(report.here.block) == bytes(report.there.block)
    return f"thread {_tuple(report.there.thread)}" if same else thread_name(report.there)


def _missing(report: Report, there: str) -> str:
    who = f"thread {_tuple(report.there.thread)}"
    if bytes(report.here.block) != bytes(report.there.block):
        who += f" of block {_tuple(report.there.block)}"
    state = report.there.state
    if state == 0:
        return f"{who} has run to its end"
    at = ("", "a barrier", report.name.decode() or "a warp operation", "the grid's barrier")[state]
    return f"{who} waits at {at} ({there})"


def region_name(loaded: Loaded, report: Report, regions: list[Argument]) -> str:
    if report.region_kind == 1:
        return regions[report.region_index].name
    if report.region_kind == 3:
        return f"the variable {loaded.variables[report.region_index].name}"
    if report.region_kind == 5:
        return "what the kernel allocated"
    return f"the shared array {report.name.decode()}" if report.name else "the dynamic shared memory"


def _element(loaded: Loaded, report: Report, regions: list[Argument]) -> str:
    """An element by its index ("y[3, 5]"), else by its offset."""
    name, item = region_name(loaded, report, regions), max(1, report.item)
    number, shape, strides = report.offset // item, tuple(d for d in report.dims if d), None
    if report.region_kind == 1:
        region = regions[report.region_index]
        shape, strides = region.shape, region.strides
    if strides is None:
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    rest, index = number, [0] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]):
        if strides[axis] > 0 and shape[axis] > 1:
            index[axis], rest = divmod(rest, strides[axis])
    if shape and rest == 0 and all(0 <= i < n for i, n in zip(index, shape, strict=True)):
        return f"{name}[{', '.join(map(str, index))}]"
    return f"{name} at {'element' if report.item else 'byte'} offset {number}"


def _region(loaded: Loaded, report: Report, regions: list[Argument]) -> str:
    """Where an access lies: "of y[3, 5]", or how far outside the nearest argument, array or variable."""
    if report.region_kind == 0:
        return (
            f"at {report.address:#x}, which lies in no argument{_by_an_entry(report.address, regions)}"
            f"{_wrapped(report.address, regions)}"
        )
    offset, extent, item = report.offset, report.extent, max(1, report.item)
    if offset >= 0 and offset + report.size <= extent:
        return f"of {_element(loaded, report, regions)}"
    name = region_name(loaded, report, regions)
    size = f"{name} ({extent} bytes" + (
        f", shape {regions[report.region_index].shape})" if report.region_kind == 1 else ")"
    )
    apart, wrapped = max(-offset, offset - extent), _wrapped(report.address, regions)
    if report.region_kind == 1 and apart > max(extent, FAR) and not wrapped:
        return f"at {report.address:#x}, which lies in no argument: {apart} bytes from {size}, the nearest"
    if offset < 0:
        where = f"{-offset} bytes before the start of {size}"
    elif offset < extent:
        where = f"across the end of {size}"
    elif offset == extent:
        where = f"just past the end of {size}"
    else:
        where = f"{offset - extent} bytes past the end of {size}"
    at = "" if offset % item else f", at element offset {offset // item}"
    return f"{where}{at}{wrapped}"


def _wrapped(address: int, regions: list[Argument]) -> str:
    """That an address would lie in an argument whose offset has more bits than a signed integer of 32, if it had."""
    for region in regions:
        offset, rest = divmod(address - region.start, max(1, region.item))
        if not rest and -(2**31) <= offset < 0 <= offset + 2**32 < region.bytes // max(1, region.item):
            said = f"offset {offset + 2**32} of {region.name} is {offset} {overflow.OF_ACCESS}"
            return f"; {said}: it has to be computed in 64"
    return ""


def _by_an_entry(address: int, regions: list[Argument]) -> str:
    """Which row of an argument would lie at an address, where an element of an argument of integers has its number."""
    for region in regions:
        row = max((abs(stride) for stride in region.strides), default=0) * region.item
        for numbers in (other for other in regions if row and other.integers):
            number = (address - region.start) // row
            if (index := _index_of(number, numbers)) is not None:
                place = f"{numbers.name}[{', '.join(map(str, index))}]"
                return f"; {region.name}[{number}] would be there, and {number} is {place}"
    return ""


def _index_of(number: int, region: Argument) -> tuple[int, ...] | None:
    """Where an argument of integers without gaps holds a number; None: nowhere, or it has gaps."""
    count = math.prod(region.shape)
    if region.bytes != count * region.item or any(stride < 0 for stride in region.strides):
        return None
    memory = np.frombuffer(memoryview((ctypes.c_ubyte * region.bytes).from_address(region.start)), f"i{region.item}")
    steps = [stride * region.item for stride in region.strides]
    places = np.argwhere(np.lib.stride_tricks.as_strided(memory, region.shape, steps) == number)
    return tuple(places[0].tolist()) if len(places) else None


def _tuple(values: Any) -> str:
    return f"({', '.join(str(v) for v in values)})"


def thread_name(place: Place) -> str:
    return f"block {_tuple(place.block)}, thread {_tuple(place.thread)}"


def line_name(loaded: Loaded, place: Place) -> str:
    """ "softmax.cu:57", of the innermost function that is the user's."""
    if not place.pc:
        return f"{os.path.basename(place.file.decode())}:{place.line}"
    return line_of(loaded.path, place.pc - loaded.base - 1)


@functools.cache
def line_of(path: str, address: int) -> str:
    if path in front_ends:
        return front_ends[path](address + 1)
    frames = list(itertools.chain(*binary.lines(path, [address])))
    for _, file, line in frames:
        if line and file not in ("touchstone", "??") and not os.path.abspath(file).startswith(_FOREIGN):
            return f"{os.path.basename(file)}:{line}"
    return "line unknown"
