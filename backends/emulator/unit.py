"""From the text of a `.cu` file to the C++ that is compiled: preprocessed, without host code, shared arrays rewritten.

Kept in the cache of compiled code, by all the texts that it was made of.
"""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from touchstone.backends.emulator import compiler, declarations, preprocess, ptx, source
from touchstone.backends.emulator.declarations import Kernel, Launch
from touchstone.backends.storage.artefacts import store

_HERE = Path(__file__).parent
_MADE_BY = ("preprocess.py", "declarations.py", "source.py", "unit.py", "ptx.py")
_NO_LAUNCH = 'touchstone::not_covered("a launch by device code")'

# Functions of the C library that mean something else on the device.
_OWN = {"malloc": "touchstone::heap_new", "free": "touchstone::heap_free", "clock": "clock_ticks_"}


class Unit(NamedTuple):
    """What is compiled of a file."""

    text: str  # with `#line` before every declaration
    headers: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...]
    missing: tuple[tuple[str, str, int], ...]  # headers that were not found: name, file, line
    nearby: tuple[tuple[str, str], ...]  # headers that no folder given has, and the file that was taken
    structures: dict[str, list[str]]  # the data members of every class, by its name
    words: frozenset[str]  # of the text


def unit(
    text: str,
    name: str,
    definitions: dict[str, str],
    include: Sequence[str],
    arch: str | int,
    roots: Sequence[str] | None = None,
    also: frozenset[str] = frozenset(),
) -> Unit:
    """What `text` comes to. `roots`: the kernels that are wanted, None for all; `also`: further words that an instance
    of a template names. Raises CompileError for what the preprocessor rejects or a declaration that cannot be read."""
    preprocess.architecture(arch)
    files = preprocess.sources(text, name, [*map(Path, include)]).files
    said = json.dumps([files, definitions, list(include), str(arch), roots and sorted(roots), sorted(also)])
    key = compiler.digest(said, _own(), compiler.own_text(), *compiler.made_by())
    kept = f"{compiler.plain_name(Path(name).stem)}_{key}.json"
    data = store().load(kept)
    found = None if data is None else _read(data)
    if found is None:
        found = _made(text, name, definitions, include, arch, roots, also)
        store().keep(kept, json.dumps([*found[:7], sorted(found.words)], default=sorted).encode())
    return found


def _read(data: bytes) -> Unit | None:
    """What was kept; None where it is of another form, as a process keeps it whose files were changed meanwhile."""
    try:
        body, headers, kernels, launches, missing, nearby, structures, words = json.loads(data)
        return Unit(
            body,
            tuple(headers),
            tuple(Kernel(*map(_frozen, k)) for k in kernels),
            tuple(Launch(la[0], la[1], frozenset(la[2]), *la[3:]) for la in launches),
            tuple((m[0], m[1], m[2]) for m in missing),
            tuple((n[0], n[1]) for n in nearby),
            structures,
            frozenset(words),
        )
    except (IndexError, TypeError, ValueError):
        return None


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_class(read: declarations.Text, declaration: declarations.Declaration) -> bool:
    words = [t.text for t in read.code[declaration.first : declaration.last + 1]]
    return "{" in words and bool({"struct", "class"} & set(words[: words.index("{")]))


def _assembly(read: declarations.Text, parts: list[list[tuple[int, int]]], number: int) -> str:
    """What stands for an `asm` statement, but for its semicolon."""
    lists: list[list[tuple[str, str]]] = []
    for part in parts[1:3]:
        operands = []
        for first, last in part:
            if read.code[first].text == "[":  # a name for the operand, which PTX has no use for
                first = next(i for i in range(first, last) if read.code[i].text == "]") + 1
            expression = read.source_of((first + 1, last)).strip()
            operands.append((ptx.literal(read.code[first].text), expression))
        lists.append(operands)
    template = ptx.literal(" ".join(read.source_of(part) for part in parts[0]))
    outputs, inputs = [*lists, [], []][:2]
    return ptx.translate(template, outputs, inputs, number)


@functools.cache
def _own() -> str:
    return "\0".join((_HERE / name).read_text() for name in _MADE_BY)


def _made(
    text: str,
    name: str,
    definitions: dict[str, str],
    include: Sequence[str],
    arch: str | int,
    roots: Sequence[str] | None,
    also: frozenset[str],
) -> Unit:
    seen = preprocess.preprocess(text, name, definitions, include, arch)
    cuda = compiler.cuda_headers()
    read = declarations.Text(seen.text, (str(compiler.INCLUDE), str(compiler.ENGINE), str(cuda)))
    launches = tuple(read.launches())
    chosen = read.needed(roots, also.union(*(launch.words for launch in launches)))
    pieces: list[str] = []
    scopes: tuple[str, ...] = ()
    words: set[str] = set()
    for declaration in chosen:
        if attribute := next(read.host_attributes(declaration), None):
            raise compiler.CompileError(f"{name}: device code with the attribute {attribute!r}, which no GPU has")
        if declaration.scopes != scopes:
            pieces.append("}" * len(scopes) + declarations.opened(declaration.scopes) + "\n")
            scopes = declaration.scopes
        edits = [(first, last, "") for first, last in read.host_members(declaration)]
        gone = edits[:]
        for first, last, parts in read.assembly(declaration):
            if not any(begin <= first <= end for begin, end, _ in gone):
                edits.append((first, last, _assembly(read, parts, len(pieces) * 1000 + len(edits))))
        edits += [
            (at, at, _OWN[word])
            for at, word in read.calls(declaration, _OWN)
            if not any(begin <= at <= end for begin, end, _ in gone)
        ]
        edits += [(*span, _NO_LAUNCH) for span in read.device_launches(declaration)]
        edits += [
            (at, at, "__attribute__((noinline))")
            for at in read.places(declaration, "__noinline__")
            if not any(begin <= at <= end for begin, end, _ in gone)
        ]
        pieces.append(read.piece(declaration, edits) + "\n")
        words |= read.words(declaration)
    pieces.append("}" * len(scopes) + "\n")
    try:
        body = source.rewrite("".join(pieces))
    except ValueError as error:
        raise compiler.CompileError(f"{name}: {error}") from None
    types = {name: d for d in chosen if d.kind == "type" for name in d.names if _is_class(read, d)}
    structures = {name: found for name in types if (found := read.fields(name, types))}
    kernels = {(d.kernel.name, d.kernel.template or d.kernel.types): d.kernel for d in chosen if d.kernel}
    return Unit(
        body,
        tuple(preprocess.headers_for(words, seen.headers)),
        tuple(kernels.values()),
        launches,
        seen.missing,
        seen.nearby,
        structures,
        frozenset(words),
    )
