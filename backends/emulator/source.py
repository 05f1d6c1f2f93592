"""What is rewritten in a kernel's text before a C++ compiler sees it: `__shared__` arrays, and which kernels there are.

A `__shared__` declaration becomes a reference into the shared memory of the block that runs. Line numbers stay.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_SKIP = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
_WORD = re.compile(r"[A-Za-z_]\w*")
_KERNEL = re.compile(r"\b__global__\b")
_ALIGNED = re.compile(r"(?:__align__|alignas)\s*\(")


_QUOTED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.M)


class Kernel(NamedTuple):
    name: str
    template: bool
    parameters: tuple[str, ...]


def blank(text: str) -> str:
    """`text` with comments and literals overwritten by spaces, so that positions stay."""
    return _SKIP.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def kernels(text: str) -> list[Kernel]:
    """The `__global__` functions defined in `text`, in order; those that a macro defines are not seen."""
    bare = re.sub(
        r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda found: re.sub(r"[^\n]", " ", found.group()), blank(text), flags=re.M
    )
    found: dict[str, Kernel] = {}
    for match in _KERNEL.finditer(bare):
        position = match.end()
        name, parameters = "", ""
        while position < len(bare) and bare[position] not in ";{":
            word = _WORD.match(bare, position)
            if word:
                name, position = word.group(), word.end()
            elif bare[position] == "(":
                end = _closing(bare, position)
                if name not in ("__launch_bounds__", "__maxnreg__", "__attribute__", "__cluster_dims__", "alignas"):
                    parameters = bare[position + 1 : end - 1]
                    break
                position = end
            else:
                position += 1
        else:
            continue
        head = _without_qualifiers(bare[: match.start()])
        template = head.endswith(">") and "template" in head[max(head.rfind(";"), head.rfind("}")) + 1 :]
        words = [_WORD.findall(part.split("=")[0].split("[")[0]) for part in _split(parameters)]
        found[name] = Kernel(name, template, tuple(word[-1] if word else "" for word in words))
    return list(found.values())


def _without_qualifiers(head: str) -> str:
    """`head` without `static`, `inline` and `extern` at its end. No regular expression: one that may begin with a space
    takes quadratic time in a text whose comments were overwritten by spaces."""
    head = head.rstrip()
    while head[-6:] in ("static", "inline", "extern") and not _WORD.match(head[-7:-6]):
        head = head[:-6].rstrip()
    return head


def inline(text: str, name: str, folders: Sequence[Path], seen: set[Path] | None = None) -> str:
    """`text` with every `#include "..."` that is found in `folders` put in its place, since headers are rewritten
    too."""
    seen = set() if seen is None else seen
    pieces: list[str] = []
    done = 0
    for match in _QUOTED.finditer(text):
        found = next((folder / match.group(1) for folder in folders if (folder / match.group(1)).is_file()), None)
        if found is None:
            continue
        path = found.resolve()
        body = "" if path in seen else path.read_text()
        if re.search(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", body, re.M):
            seen.add(path)
            body = re.sub(r"^[ \t]*#[ \t]*pragma[ \t]+once\b[^\n]*$", "", body, flags=re.M)
        line = text.count("\n", 0, match.start()) + 1
        body = inline(body, match.group(1), [path.parent, *folders], seen)
        pieces += [text[done : match.start()], f'#line 1 "{match.group(1)}"\n{body}\n#line {line + 1} "{name}"']
        done = match.end()
    return "".join([*pieces, text[done:]])


def rewrite(text: str) -> str:
    """`text` with its `__shared__` declarations replaced; raises ValueError for one that it cannot read."""
    bare = blank(text)
    pieces: list[str] = []
    names: dict[str, str] = {}  # declared outside any function -> what stands for them
    done = 0
    for start, end, at_file_scope in _declarations(bare):
        pieces.append(text[done:start])
        pieces.append(_replacement(text[start:end], bare[start:end], at_file_scope, names))
        done = end
    pieces.append(text[done:])
    whole = "".join(pieces)
    for name, stands in names.items():
        whole = re.sub(rf"(?<![\w.>]){name}\b(?!_ts)", stands.replace("\\", r"\\"), whole)
        whole = whole.replace(f"@{name}@", name)
    return whole


def _declarations(bare: str) -> Iterator[tuple[int, int, bool]]:
    """Start and end of every statement with `__shared__`, and whether it stands outside all functions."""
    scopes: list[bool] = []  # of every open brace: is it a namespace's?
    start = position = 0  # of the statement
    while position < len(bare):
        char = bare[position]
        if (
            char == "#"
            and bare[start:position].strip() == ""
            and not bare[bare.rfind("\n", 0, position) + 1 : position].strip()
        ):
            while True:  # a directive, with its continuation lines
                end = bare.find("\n", position)
                end = len(bare) if end < 0 else end
                if not bare[:end].endswith("\\"):
                    break
                position = end + 1
            position = start = end
            continue
        if char == "(":
            position = _closing(bare, position)
            continue
        if char in "{};":
            if char == "{":
                head = bare[start:position]
                scopes.append(bool(re.search(r"\bnamespace\b", head)) or head.strip() == "extern")
            elif char == "}" and scopes:
                scopes.pop()
            start = position = position + 1
            continue
        word = _WORD.match(bare, position)
        if not word:
            position += 1
            continue
        if word.group() == "__shared__":
            end = bare.find(";", position)
            brace = bare.find("{", position)
            if 0 <= brace < end:  # of a type that is defined on the spot
                end = bare.find(";", _closing(bare, brace))
            if end < 0:
                raise ValueError("a __shared__ declaration without end")
            first = start + len(bare[start:]) - len(bare[start:].lstrip())
            yield first, end + 1, all(scopes)
            start = position = end + 1
            continue
        position = word.end()


def _replacement(text: str, bare: str, at_file_scope: bool, names: dict[str, str]) -> str:
    """Of one declaration, with as many lines."""
    lines = "\n" * text.count("\n")
    body = " ".join(text.rstrip().removesuffix(";").split())
    dynamic = bool(re.search(r"\bextern\b", bare))
    body = re.sub(
        r"\b(?:__shared__|extern|static|volatile)\b", lambda m: m.group() if m.group() == "volatile" else "", body
    )
    align = ""
    while found := _ALIGNED.search(body):
        end = _closing(body, found.end() - 1)
        align = body[found.end() : end - 1]
        body = body[: found.start()] + body[end:]
    body = body.strip()
    declarators = _split(body)
    head = _declarator(declarators[0])
    if head is None:
        raise ValueError(f"cannot read the shared declaration {text.strip()!r}: write `__shared__ type name[size];`")
    kind = declarators[0][: head[0]].strip()
    out: list[str] = []
    for declarator in declarators:
        found_name = _declarator(declarator)
        if found_name is None:
            raise ValueError(
                f"cannot read the shared declaration {text.strip()!r}: write `__shared__ type name[size];`"
            )
        begin, end = found_name
        name, dims = declarator[begin:end], declarator[end:].strip()
        if dynamic and not dims.startswith("["):
            whole = f"typedef {kind} {name}_ts;"
            stands = f"(*touchstone::dynamic_shared<{name}_ts>())"
            out.append(
                whole if at_file_scope else f"{whole} {name}_ts& {name} = *touchstone::dynamic_shared<{name}_ts>();"
            )
        elif dynamic:
            inner = dims[dims.index("]") + 1 :]
            whole = f"typedef {kind} {name}_ts{inner};"
            stands = f"(touchstone::dynamic_shared<{name}_ts>())"
            out.append(
                whole
                if at_file_scope
                else f"{whole} {name}_ts* const {name} = touchstone::dynamic_shared<{name}_ts>();"
            )
        else:
            aligned = f", {align}" if align else ""
            whole = (
                f"typedef {kind} {name}_ts{dims}; "
                f'static ts_site {name}_site = touchstone::site<{name}_ts>("{name}"{aligned});'
            )
            stands = f"(touchstone::shared<{name}_ts>({name}_site))"
            out.append(
                whole if at_file_scope else f"{whole} {name}_ts& {name} = touchstone::shared<{name}_ts>({name}_site);"
            )
        if at_file_scope:
            out[-1] = out[-1].replace(f'"{name}"', f'"@{name}@"')
            names[name] = stands
    return " ".join(out) + lines


def _declarator(text: str) -> tuple[int, int] | None:
    """Where the declared name lies in "float tile[32][33]"."""
    stop = len(text)
    depth = 0
    for position, char in enumerate(text):
        if char in "<({":
            depth += 1
        elif char in ">)}":
            depth -= 1
        elif char in "[=" and depth == 0:
            stop = position
            break
    words = list(_WORD.finditer(text, 0, stop))
    return words[-1].span() if len(words) > 0 else None


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        if char in "([{<":
            depth += 1
        elif char in ")]}>":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _closing(text: str, position: int) -> int:
    """Just after the bracket that closes the one at `position`."""
    depth = 0
    for at in range(position, len(text)):
        depth += (text[at] in "({") - (text[at] in ")}")
        if depth == 0:
            return at + 1
    return len(text)
