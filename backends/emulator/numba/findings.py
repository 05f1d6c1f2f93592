"""The engine's report on a kernel of Numba as an exception with a sentence."""

import ctypes
import os
from collections.abc import Mapping
from typing import Any

from touchstone.backends.emulator import errors, findings
from touchstone.backends.emulator.arguments import Argument
from touchstone.backends.emulator.library import Loaded, Report
from touchstone.backends.emulator.numba import lines

PATH = "numba"  # stands for the library in a Loaded


def place_of(pc: int) -> tuple[str, int]:
    """The name of the file and the line that a number in a report stands for."""
    file, line = lines.sites.places[pc] if pc < len(lines.sites.places) else ("linked code", 0)
    return os.path.basename(file), line


def name_of(pc: int) -> str:
    """ "file:line" of a number in a report; "file:7 or 9" of one of two, and the file alone where no line is known."""
    file, line = place_of(pc)
    return f"{file}:{line}" if line else file


findings.front_ends[PATH] = name_of


def error(
    name: str,
    exceptions: Mapping[int, tuple[str, str, int]],
    loaded: Loaded,
    report: Report,
    regions: list[Argument],
    classes: Mapping[int, Any] | None = None,
) -> errors.KernelError:
    for place in (report.here, report.there):
        if place.pc:
            file, line = place_of(place.pc)
            if not line:  # `name_of` is asked
                continue
            place.pc, place.file, place.line = 0, file.encode()[-199:], line
    if report.kind == 8 and report.text.startswith(b"exception "):
        code = int(report.text.split()[1])
        raised = _raised(name, exceptions, report)
        return raised if not classes or code not in classes else _of_class(raised, classes[code], report)
    if report.kind == 1 and report.text == b"index":
        index = ctypes.c_int64(report.address).value
        if report.region_kind == 4:
            whose = "a local array"
        elif report.region_kind == 3:
            whose = "a constant array"
        else:
            whose = findings.region_name(loaded, report, regions) if report.region_kind else "an array"
        negative = " (Numba would count it from the end)" if index < 0 else ""
        message = (
            f"{findings.thread_name(report.here)} uses index {index} in axis {report.item} of {whose}, which has "
            f"{report.size}{negative}"
        )
        return errors.OutOfBounds(f"{name} ({findings.line_name(loaded, report.here)}): {message}")
    return findings.error(name, loaded, report, regions)


def _raised(name: str, exceptions: Mapping[int, tuple[str, str, int]], report: Report) -> errors.KernelError:
    """An exception or failed assertion; a GPU tells of it only if the kernel is compiled with debug=True."""
    text, file, line = exceptions.get(int(report.text.split()[1]), ("Exception: in a device function", "", 0))
    where = f"{os.path.basename(file)}:{line}" if file else "line unknown"
    return errors.KernelError(f"{name} ({where}): {findings.thread_name(report.here)} raises {text}")


def _of_class(raised: errors.KernelError, kept: Any, report: Report) -> errors.KernelError:
    """What a kernel with debug=True raises on a GPU: the class of the exception and its arguments, the first with the
    place before it. It is a KernelError as well."""
    kind, arguments, place = kept
    where = f"tid={list(report.here.thread)[::-1]} ctaid={list(report.here.block)[::-1]}"  # z, y, x
    if place is not None:
        where = f"In function {place[0]!r}, file {os.path.abspath(place[1])}, line {place[2]}, {where}"
    first, *rest = arguments or ("",)
    text = f"{where}: {first}" if arguments else where
    try:
        made = type(kind.__name__, (kind, errors.KernelError), {"__module__": kind.__module__})
        told: errors.KernelError = made(text, *rest)
    except TypeError:  # a class that cannot be made or called so
        return raised
    return told
