"""What is rewritten in a kernel's text before a C++ compiler sees it: `__shared__` arrays.

A `__shared__` declaration becomes a reference into the shared memory of the block that runs. Line numbers stay.
"""

import re
from collections.abc import Iterator

_SKIP = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
_WORD = re.compile(r"[A-Za-z_]\w*")
_ALIGNED = re.compile(r"(?:__align__|alignas)\s*\(")


def blank(text: str) -> str:
    """`text` with comments and literals overwritten by spaces, so that positions stay."""
    return _SKIP.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


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
        hidden = _hidden(whole, name)

        def replaced(found: re.Match[str], hidden: list[tuple[int, int]] = hidden, stands: str = stands) -> str:
            return found.group() if any(low < found.start() < high for low, high in hidden) else stands

        whole = re.sub(rf"(?<![\w.@])(?<!->){name}\b(?!_ts)", replaced, whole)
        whole = whole.replace(f"@{name}@", name)
    return whole


def _hidden(text: str, name: str) -> list[tuple[int, int]]:
    """From where to where a parameter of that name stands for it: the functions that have one."""
    bare = blank(text)
    found = []
    for at in re.finditer(rf"\b{name}\b(?=\s*(?:\[\s*\])?\s*[,)])", bare):
        depth, begin = 1, at.start()
        while begin and depth and bare[begin - 1] not in ";{}":
            begin -= 1
            depth += (bare[begin] == ")") - (bare[begin] == "(")
        word = re.search(r"(\w+)\s*$", bare[:begin])
        if depth or not word or word.group(1) in ("if", "for", "while", "switch", "catch"):
            continue
        body = re.match(r"\s*(?:#[^\n]*\n\s*)*\{", bare[_closing(bare, begin) :])
        if body:
            found.append((begin, _closing(bare, _closing(bare, begin) + body.end() - 1)))
    return found


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
    body = re.sub(r"\[\[.*?\]\]", "", body)
    aligned: list[str] = []  # the specifiers, as they stand: of several the strictest holds, and one may name a type
    while found := _ALIGNED.search(body):
        end = _closing(body, found.end() - 1)
        aligned.append(body[found.start() : end])
        body = body[: found.start()] + body[end:]
    body = body.strip()
    declarators = split(body)
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
            whole = f"typedef {kind} {name}_ts{dims}; "
            align = f"alignof({name}_ts)"  # as the declaration says: a template's argument has no attributes
            if aligned:
                members = " ".join(f"{each} char m{i};" for i, each in enumerate(aligned))
                whole += f"struct {name}_aligned {{ {members} {name}_ts m; }}; "
                align = f"alignof({name}_aligned)"
            whole += f'static ts_site {name}_site = touchstone::site<{name}_ts>("{name}", {align});'
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
    position = depth = 0
    while position < len(text):
        char = text[position]
        if char in "[=" and depth == 0:
            break
        depth += (char == "<") - (char == ">")
        position = _closing(text, position) if char in "({" else position + 1  # where > is no bracket
    words = list(_WORD.finditer(text, 0, position))
    return words[-1].span() if len(words) > 0 else None


def split(text: str) -> list[str]:
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
