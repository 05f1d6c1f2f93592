"""LLVM IR as text: the names, types and declarations in it."""

import re

from touchstone.backends.emulator.numba.errors import UnsupportedCode

NAME = r'%(?:"[^"]*"|[\w.$-]+)|@(?:"[^"]*"|[\w.$-]+)'
DECLARED = re.compile(r'^declare [^@\n]*@"?([^"(\n]+)"?\(', re.M)  # the names that a module declares
_SIMPLE = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}


def split(text: str) -> list[str]:
    """At the commas outside brackets; what is blank is left out."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(text + ","):
        depth += (c in "([{<") - (c in ")]}>")
        if c == "," and depth == 0:
            if part := text[start:i].strip():
                out.append(part)
            start = i + 1
    return out


def closing(text: str, start: int) -> int:
    """Where the bracket closes that opens at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "([{<") - (text[i] in ")]}>")
        if depth == 0:
            return i
    raise ValueError("unbalanced")


def type_at_start(text: str) -> str:
    """The type in "<4 x float> %x", "{ i32, i64 } zeroinitializer" or "i32 7"."""
    return text[: closing(text, 0) + 1] if text[0] in "<[{" else text.partition(" ")[0]


def types_of(arguments: str) -> list[str]:
    """The types in "i8* %\".1\", {i32, float} %x"."""
    found = []
    for word in split(arguments):
        kind = re.match(r'(.+?)\s+(?:[%@"].*|-?[\w.+]+|undef|null)$', word)
        found.append((kind[1] if kind else word).strip())
    return found


def size_of(kind: str) -> int:
    """Bytes of a type; of a struct without its padding at the end. Raises UnsupportedCode for one that is not known."""
    kind = kind.strip()
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if vector := re.fullmatch(r"[<\[](\d+) x (.+)[>\]]", kind):
        return int(vector[1]) * size_of(vector[2])
    if kind.startswith("{"):
        at = 0
        for part in split(kind[1:-1]):
            size = size_of(part)
            natural = min(size & -size, 8) if size else 1
            at = (at + natural - 1) // natural * natural + size
        return at
    if integer := re.fullmatch(r"i(\d+)", kind):
        return (int(integer[1]) + 7) // 8
    raise UnsupportedCode(f"a type of LLVM's whose size is not known: {kind}")


def declared_once(text: str) -> str:
    """Two functions of libdevice may have become one."""
    seen: set[str] = set()

    def keep(found: re.Match[str]) -> str:
        first = found[1] not in seen
        seen.add(found[1])
        return found[0] if first else ""

    return re.sub(r'^declare [^@\n]*@"?([^"(\n]+)"?\(.*$', keep, text, flags=re.M)
