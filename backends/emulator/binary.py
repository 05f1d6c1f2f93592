"""What a compiled library says of itself: its variables and what it wants of others, by its ELF tables, and its lines,
by its debug information."""

import functools
import re
import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_SYMTAB, _DYNSYM = 2, 11  # kinds of sections
_REAL = (
    "acos|acosh|asin|asinh|atan|atan2|atanh|cbrt|ceil|copysign|cos|cosh|erf|erfc|exp|exp10|exp2|expm1|fabs|fdim|floor"
    "|fma|fmax|fmin|fmod|frexp|hypot|ilogb|j0|j1|jn|ldexp|lgamma|llrint|llround|log|log10|log1p|log2|logb|lrint|lround"
    "|modf|nan|nearbyint|nextafter|pow|remainder|remquo|rint|round|roundeven|scalbln|scalbn|sin|sincos|sinh|sqrt|tan"
    "|tanh|tgamma|trunc|y0|y1|yn"
)
# What a compiler puts into code by itself, and what stands for the device's own functions: of the processor's
# libraries, all that a kernel may call.
_OF_A_GPU = re.compile(
    rf"(?:{_REAL})[fl]?|_?_?(?:isnan|isinf|finite|signbit|fpclassify)[fl]?|fe[gs]etround"
    r"|__(?:gmon_start__|tls_get_addr|stack_chk_fail|getauxval)|_ITM_(?:de)?registerTMCloneTable"
    r"|__cxa_(?:finalize|atexit|guard_acquire|guard_release|guard_abort|pure_virtual|throw_bad_array_new_length"
    r"|begin_catch)|__gxx_personality_v0|_Unwind_Resume|_ZSt9terminatev|_ZSt\d+__throw_\w+|_ZTVN10__cxxabiv1\w+"
    r"|_ZNSt8ios_base4Init[CD][12]Ev|mem(?:cpy|move|set|cmp|chr)|str(?:len|cmp|ncmp)"
    r"|stdout|snprintf|v?f?printf|fflush|puts|f?putc|putchar|fputs|fwrite"
)
_OF_THE_HOST = re.compile(r"ts_(?:launch|report_bytes|writers_\w+)")  # what the engine offers to Python


class Variable(NamedTuple):
    """A `__device__` or `__constant__` variable, or a table of constants."""

    name: str
    start: int  # relative to where the library lies
    bytes: int
    writable: bool


def variables(library: Path) -> tuple[list[Variable], tuple[int, int]]:
    """The variables of a compiled library, and where its nameless constants lie, from its ELF tables."""
    data = library.read_bytes()
    sections, names = _tables(data)

    def text(section: int, offset: int) -> str:
        return _text(data, sections[section], offset)

    constants = next(((s[3], s[3] + s[5]) for s in sections if text(names, s[0]) == ".rodata"), (0, 0))
    found: list[Variable] = []
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        for at in range(section[4], section[4] + section[5], 24):
            name, info, _, home, value, size = struct.unpack_from("<IBBHQQ", data, at)
            if info & 15 != 1 or not size or home >= len(sections):  # STT_OBJECT
                continue
            label = text(section[6], name)
            writable = bool(sections[home][2] & 1)
            if not label.endswith("_site") and not label.startswith(
                (".", "_ZTI", "_ZTS", "_ZStL", "ts_", "__", "DW.ref.", "completed")
            ):
                # A table of virtual functions is written while it is loaded, and by nobody after.
                virtual = label.startswith("_ZTV")
                found.append(Variable(_demangled(label), value, size, writable and not virtual))
    return found, constants


def undefined(library: Path) -> set[str]:
    """The functions and variables that a compiled library wants from others."""
    return {name for name, home in _symbols(library.read_bytes(), _DYNSYM) if home == 0}


@functools.cache
def exported(library: Path) -> frozenset[str]:
    """Those that it offers to others."""
    return frozenset(name for name, home in _symbols(library.read_bytes(), _DYNSYM) if home)


def foreign(code: bytes, given: Iterable[str]) -> list[str]:
    """What a compiled kernel, a library or an object file, wants and no GPU has; `given`: what is there to be called.

    Whatever is in a process would be found at its name otherwise: the processor's own libraries, and Python.
    """
    tables = (*_symbols(code, _DYNSYM), *_symbols(code, _SYMTAB))
    wanted = {name.partition("@")[0] for name, home in tables if home == 0}
    theirs = {name for name in given if not _OF_THE_HOST.fullmatch(name)}
    return sorted(name for name in wanted - theirs if not _OF_A_GPU.fullmatch(name))


def _symbols(data: bytes, kind: int) -> Iterator[tuple[str, int]]:
    """The names in a table of symbols, each with the section that it is in, 0 for one that is wanted."""
    sections, _ = _tables(data)
    for section in sections:
        if section[1] == kind:
            for at in range(section[4], section[4] + section[5], 24):
                name, _, _, home = struct.unpack_from("<IBBH", data, at)
                if name:
                    yield _text(data, sections[section[6]], name), home


def _tables(data: bytes) -> tuple[list[tuple[int, ...]], int]:
    """The headers of a file's sections, and which of them has their names; none where it is no ELF of 64 bits."""
    if data[:6] != b"\x7fELF\x02\x01":
        return [], 0
    table, entry, count, names = struct.unpack_from("<Q10xHHH", data, 40)
    return [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry) for i in range(count)], names


def _text(data: bytes, section: tuple[int, ...], offset: int) -> str:
    start = section[4] + offset
    return data[start : data.index(b"\0", start)].decode()


def _demangled(label: str) -> str:
    """ "table" of "_ZL5table", "deep" of "_ZN5inner4deepE"; others as they are."""
    name, rest = label, re.sub(r"^_ZL?N?(?=\d)", "", label)
    while rest != label and (length := re.match(r"L?(\d+)", rest)):
        end = length.end() + int(length.group(1))
        name, rest = rest[length.end() : end], rest[end:]
    return name


def lines(library: str, addresses: list[int]) -> list[list[tuple[str, str, int]]]:
    """Of each address in `library`: function, file and line, from the innermost inlined function outwards."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None:
        return [[] for _ in addresses]
    asked = [tool, "-a", "-i", "-f", "-C", "-e", library, *(hex(address) for address in addresses)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    out: list[list[tuple[str, str, int]]] = []
    text = done.stdout.splitlines()
    position = 0
    while position < len(text):
        if text[position].startswith("0x"):
            out.append([])
            position += 1
            continue
        function, place = text[position], text[position + 1] if position + 1 < len(text) else "??:0"
        file, _, line = place.rpartition(":")
        digits = line.split()[0] if line.split() else "0"
        out[-1].append((function, file, int(digits) if digits.isdigit() else 0))
        position += 2
    return out
