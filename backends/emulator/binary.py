"""What a compiled library says of itself: its variables, by its ELF tables, and its lines, by its debug information."""

import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple


class Variable(NamedTuple):
    """A `__device__` or `__constant__` variable, or a table of constants."""

    name: str
    start: int  # relative to where the library lies
    bytes: int
    writable: bool


def variables(library: Path) -> tuple[list[Variable], tuple[int, int]]:
    """The variables of a compiled library, and where its nameless constants lie, from its ELF tables."""
    data, sections, names = _tables(library)

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
                (".", "_ZTI", "_ZTS", "_ZTV", "_ZStL", "ts_", "__", "completed")
            ):
                found.append(Variable(_demangled(label), value, size, writable))
    return found, constants


def undefined(library: Path) -> set[str]:
    """The functions and variables that a compiled library wants from others."""
    data, sections, _ = _tables(library)
    found: set[str] = set()
    for section in sections:
        if section[1] != 11:  # SHT_DYNSYM
            continue
        for at in range(section[4], section[4] + section[5], 24):
            name, _, _, home = struct.unpack_from("<IBBH", data, at)
            if home == 0 and name:
                found.add(_text(data, sections[section[6]], name))
    return found


def _tables(library: Path) -> tuple[bytes, list[tuple[int, ...]], int]:
    """A file, the headers of its sections, and which of them has their names; none where it is no ELF of 64 bits."""
    data = library.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return data, [], 0
    table, entry, count, names = struct.unpack_from("<Q10xHHH", data, 40)
    return data, [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry) for i in range(count)], names


def _text(data: bytes, section: tuple[int, ...], offset: int) -> str:
    start = section[4] + offset
    return data[start : data.index(b"\0", start)].decode()


def _demangled(label: str) -> str:
    """ "table" of "_ZL5table"; others as they are."""
    found = re.fullmatch(r"_ZL?(?:N\w*?)?(\d+)(\w+?)E?", label)
    return found.group(2)[: int(found.group(1))] if found else label


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
