"""What is rewritten in a kernel's preprocessed text before a C++ compiler sees it: `__shared__` arrays.

A `__shared__` declaration becomes a reference into the shared memory of the block that runs. Line numbers stay.
"""

import re
from collections.abc import Iterator

_SKIP = re.compile(r"^[ \t]*#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.M)
_WORD = re.compile(r"[A-Za-z_]\w*")
_ALIGNED = re.compile(r"(?:__align__|alignas)\s*\(")


def blank(text: str) -> str:
    """`text` with directives and literals overwritten by spaces, so that positions stay."""
    return _SKIP.sub(lambda found: " " * len(found.group()), text)


def rewrite(text: str) -> str:
    """`text` with its `__shared__` declarations replaced; raises ValueError for one that it cannot read."""
    pieces: list[str] = []
    names: dict[str, str] = {}  # declared outside any function -> what stands for them
    done = 0
    for start, end, at_file_scope in _declarations(blank(text)):
        pieces += [text[done:start], _replacement(text[start:end], at_file_scope, names)]
        done = end
    whole = "".join([*pieces, text[done:]])
    for name, stands in names.items():
        whole = _replaced(whole, name, stands)
    return whole


def _replaced(text: str, name: str, stands: str) -> str:
    """`text` with `stands` for a variable, but for what else has its name: members, parameters."""
    bare = blank(text)
    hidden = _hidden(bare, name)
    pieces, done = [], 0
    for found in re.finditer(rf"(?<![\w.])(?<!->){name}\b", bare):
        if not any(found.start() in within for within in hidden):
            pieces += [text[done : found.start()], stands]
            done = found.end()
    return "".join([*pieces, text[done:]])


def _hidden(bare: str, name: str) -> list[range]:
    """Where a parameter of that name stands for it: the functions that have one."""
    found = []
    for at in re.finditer(rf"\b{name}\b(?=\s*(?:\[\s*\])?\s*[,)])", bare):
        depth, begin = 1, at.start()
        while depth and bare[begin] not in ";{}":
            begin -= 1
            depth += (bare[begin] == ")") - (bare[begin] == "(")
        if depth or re.search(r"\b(?:if|for|while|switch)\s*$", bare[:begin]):
            continue
        after = _closing(bare, begin)
        if re.match(r"\s*\{", bare[after:]):
            found.append(range(begin, _closing(bare, bare.index("{", after))))
    return found


def _declarations(bare: str) -> Iterator[tuple[int, int, bool]]:
    """Start and end of every statement with `__shared__`, and whether it stands outside all functions."""
    scopes: list[bool] = []  # of every open brace: is it a namespace's?
    start = done = 0  # of the statement; up to where brackets and declarations have been read
    for found in re.finditer(r"[({};]|\w+", bare):
        at, text = found.start(), found.group()
        if at < done:
            continue
        if text == "(":
            done = _closing(bare, at)
        elif text == "__shared__":
            done = bare.find(";", at)
            if "{" in bare[at:done]:  # of a type that is defined on the spot
                done = bare.find(";", _closing(bare, bare.index("{", at)))
            if done == -1:
                raise ValueError("a __shared__ declaration without end")
            yield done - len(bare[start:done].lstrip()), done + 1, all(scopes)
        elif text in "{};":
            if text == "{":
                scopes.append(bool(re.search(r"\bnamespace\b", bare[start:at])))
            elif text == "}":
                del scopes[-1:]
            start = at + 1


def _replacement(text: str, at_file_scope: bool, names: dict[str, str]) -> str:
    """Of one declaration, with as many lines."""
    body = re.sub(r"\b(?:__shared__|extern|static)\b|\[\[.*?\]\]", "", " ".join(text.removesuffix(";").split()))
    aligned: list[str] = []  # the specifiers, as they stand: of several the strictest holds, and one may name a type
    while found := _ALIGNED.search(body):
        end = _closing(body, found.end() - 1)
        aligned.append(body[found.start() : end])
        body = body[: found.start()] + body[end:]
    out: list[str] = []
    kind = ""
    for declarator in split(body):
        found_name = _declarator(declarator)
        if found_name is None:
            raise ValueError(f"cannot read the shared declaration {text!r}: write `__shared__ type name[size];`")
        begin, end = found_name
        kind = kind or declarator[:begin].strip()
        name, dims = declarator[begin:end], declarator[end:].strip()
        if re.search(r"\bextern\b", text):
            many = dims.startswith("[")
            whole = f"typedef {kind} {name}_ts{dims[dims.index(']') + 1 :] if many else ''};"
            by, value = "* const" if many else "&", f"touchstone::dynamic_shared<{name}_ts>()"
            value = value if many else f"*{value}"
        else:
            whole = f"typedef {kind} {name}_ts{dims}; "
            align = f"alignof({name}_ts)"  # as the declaration says: a template's argument has no attributes
            if aligned:
                members = " ".join(f"{each} char m{i};" for i, each in enumerate(aligned))
                whole += f"struct {name}_aligned {{ {members} {name}_ts m; }}; "
                align = f"alignof({name}_aligned)"
            whole += f'static ts_site {name}_site = touchstone::site<{name}_ts>("{name}", {align});'
            by, value = "&", f"touchstone::shared<{name}_ts>({name}_site)"
        if at_file_scope:
            out.append(whole)
            names[name] = f"({value})"
        else:
            out.append(f"{whole} {name}_ts{by} {name} = {value};")
    return " ".join(out) + "\n" * text.count("\n")


def _declarator(text: str) -> tuple[int, int] | None:
    """Where the declared name lies in "float tile[32][33]"."""
    position = depth = 0
    while position < len(text):
        char = text[position]
        if char in "[=" and depth == 0:
            break
        depth += (char == "<") - (char == ">")
        position = _closing(text, position)  # within other brackets > is none
    words = list(_WORD.finditer(text[:position]))
    return words[-1].span() if words else None


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
    """Just after the bracket that closes the one at `position`; after what is there if it is none."""
    depth = 0
    for at in range(position, len(text)):
        depth += (text[at] in "({") - (text[at] in ")}")
        if depth == 0:
            return at + 1
    return len(text)
