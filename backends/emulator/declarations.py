"""What a preprocessed text declares, and the part of it that kernels need: host code is left out.

The text is cut into declarations at file and namespace scope. Kept are the kernels, and what they name: device
functions, types, constants, variables. Names are compared as words, so that a little more is kept than is needed; a
function for the host alone never is, nor is such a member of a class.
"""

import bisect
import re
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

_TOKEN = re.compile(
    r"(?P<line>^[ \t]*\#[^\n]*)"
    r'|(?P<text>(?:u8|[uUL])?R"(?P<d>[^()\\\s]{0,16})\(.*?\)(?P=d)"|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")'
    r"|(?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')"
    r"|(?P<number>\.?\d(?:[eEpP][+-]|[\w.']|')*)"
    r"|(?P<word>[A-Za-z_$][\w$]*)"
    r"|(?P<sign><<<|>>>|::|->|\S)",
    re.M | re.S,
)
_MARKER = re.compile(r'[ \t]*#[ \t]*(?:line[ \t]+)?(\d+)[ \t]+"((?:\\.|[^"\\])*)"([ \d]*)')
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_FUNCTIONS = {"__device__", "__global__", "C10_DEVICE", "C10_HOST_DEVICE"}
_DEVICE = {"__constant__", "__shared__", "__managed__", *_FUNCTIONS}
_WITH_BRACKETS = {
    "__launch_bounds__", "__maxnreg__", "__cluster_dims__", "__align__", "alignas", "__attribute__", "__declspec__",
    "decltype", "noexcept", "__block_size__", "explicit", "requires",
    "C10_LAUNCH_BOUNDS_1", "C10_LAUNCH_BOUNDS_2",
}  # fmt: skip
_TAGS = ("struct", "class", "union", "enum")
_QUALIFIERS = {
    "static", "inline", "extern", "const", "constexpr", "volatile", "typedef", "friend", "virtual", "mutable",
    "__forceinline__", "__inline__", "__noinline__", "__host__", "__restrict__", "__inline", "thread_local", "register",
    *_DEVICE,
}  # fmt: skip
_BUILT_IN = {"void", "bool", "char", "short", "int", "long", "signed", "unsigned", "float", "double", "auto"}
# Attributes that have code run by itself, or lie where the emulator does not see it: of a processor's compiler alone.
_OF_THE_HOST = {
    "constructor", "destructor", "init_priority", "ifunc", "alias", "weakref", "section", "naked", "cleanup", "target",
    "target_clones", "disable_sanitizer_instrumentation",
}  # fmt: skip
# Namespaces that a using-directive may name without the text declaring them.
_NAMESPACES = {
    "std",
    "nvcuda",
    "wmma",
    "cooperative_groups",
    "cub",
    "cuda",
    "thrust",
    "experimental",
    "precision",
    "device",
}


class Token(NamedTuple):
    kind: str  # "line" is a directive
    text: str
    start: int
    end: int


class Parameter(NamedTuple):
    name: str
    type: str


class Kernel(NamedTuple):
    """A `__global__` function with a body."""

    name: str  # with its namespaces
    template: bool
    parameters: tuple[str, ...]  # their names
    types: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()  # the namespaces it stands in, unnamed ones as "", inline ones as "inline name"
    file: str = ""
    line: int = 0
    cluster: str = ""  # what __cluster_dims__ says
    given: tuple[str, ...] = ()  # the names of a template's parameters


class Launch(NamedTuple):
    """`name<arguments><<<...>>>` in host code."""

    name: str
    arguments: str
    words: frozenset[str]
    file: str
    line: int


class Declaration(NamedTuple):
    first: int  # tokens
    last: int
    names: frozenset[str]
    kind: str  # "function", "type", "variable", "using", "always"
    device: bool
    scopes: tuple[str, ...]
    kernel: Kernel | None = None
    template: bool = False


def opened(scopes: Sequence[str]) -> str:
    """What opens the namespaces `scopes`, one brace each."""
    return "".join(
        f"inline namespace {scope[7:]} {{" if scope.startswith("inline ") else f"namespace {scope} {{"
        for scope in scopes
    )


class Text:
    """A preprocessed text: its tokens, the places they come from, and what it declares."""

    def __init__(self, text: str, foreign: Sequence[str] = ()) -> None:
        """`foreign`: folders whose files are no part of the text."""
        self.text = text
        self._marks: list[tuple[int, str, int]] = [(0, "", 1)]  # offset, file, line
        self.tokens: list[Token] = []
        outside = False
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup or ""
            if kind == "line":
                marker = _MARKER.match(match.group())
                if marker:
                    line, file, flags = int(marker.group(1)), marker.group(2), marker.group(3).split()
                    outside = "3" in flags or file.startswith(("<", *foreign))
                    self._marks.append((match.end() + 1, file, line))
                elif outside or "pch_preprocess" in match.group():
                    continue
            if not outside:
                self.tokens.append(Token(kind, match.group(), match.start(), match.end()))
        self._offsets = [offset for offset, _, _ in self._marks]
        self.code = [t for t in self.tokens if t.kind != "line"]
        self._ends = self._brackets()
        self._begins = {end: begin for begin, end in self._ends.items()}
        self.declarations = list(self._scope(0, len(self.code), ()))

    def place(self, offset: int) -> tuple[str, int]:
        """File and line."""
        mark, file, line = self._marks[bisect.bisect_right(self._offsets, offset) - 1]
        return file, line + self.text.count("\n", mark, offset)

    def _brackets(self) -> dict[int, int]:
        """Of each opening bracket the token that closes it."""
        ends: dict[int, int] = {}
        open_: list[int] = []
        for at, token in enumerate(self.code):
            if token.text in _PAIRS:
                open_.append(at)
            elif token.text in ")]}":
                while open_ and _PAIRS[self.code[open_[-1]].text] != token.text:
                    open_.pop()
                if open_:
                    ends[open_.pop()] = at
        for at in open_:
            ends[at] = len(self.code) - 1
        return ends

    def _angles(self, at: int) -> int:
        """The token that closes `<` at `at`; the last of the statement where none does."""
        depth = 0
        while at < len(self.code):
            text = self.code[at].text
            if text in _PAIRS:
                at = self._ends[at]
            elif text == "<":
                depth += 1
            elif text == "<<<":
                depth += 3
            elif text in (">", ">>>"):
                depth -= len(text)
                if depth <= 0:
                    return at
            elif text == ";":
                return at - 1
            at += 1
        return len(self.code) - 1

    def _scope(self, at: int, end: int, scopes: tuple[str, ...]) -> Iterator[Declaration]:
        code = self.code
        while at < end:
            text = code[at].text
            if text in (";", "}", ")"):
                at += 1
                continue
            if text == "[" and at + 1 < end and code[at + 1].text == "[":
                at = self._ends[at] + 1
                continue
            if at + 2 < end and code[at + 1].kind == "text" and code[at + 2].text == "{":  # extern "C"
                yield from self._scope(at + 3, self._ends[at + 2], scopes)
                at = self._ends[at + 2] + 1
                continue
            head = at + (text == "inline")
            if code[head].text == "namespace":
                last = head + 1
                names: list[str] = []
                while code[last].text not in ("{", ";", "="):
                    if code[last].text == "[" or code[last].text in _WITH_BRACKETS:
                        last += code[last].text != "["
                        last = self._ends.get(last, last)
                    elif code[last].kind == "word" and code[last].text != "inline":
                        names.append(code[last].text)
                    last += 1
                if code[last].text == "{":
                    if text == "inline":
                        names = [f"inline {name}" for name in names]
                    yield from self._scope(last + 1, self._ends[last], (*scopes, *(names or [""])))
                    at = self._ends[last] + 1
                    continue
                while code[last].text != ";":
                    last += 1
                yield Declaration(at, last, frozenset(names), "using", True, scopes)
                at = last + 1
                continue
            declaration = self._declaration(at, end, scopes)
            yield declaration
            at = declaration.last + 1

    def _declaration(self, at: int, end: int, scopes: tuple[str, ...]) -> Declaration:
        code = self.code
        first, template = at, False
        while at + 1 < end and code[at].text == "template" and code[at + 1].text == "<":
            template = True
            at = self._angles(at + 1) + 1
            if at < end and code[at].text == "requires":
                while at < end and code[at].text not in (*_QUALIFIERS, *_TAGS, "void", "auto"):
                    at = self._ends.get(at, at) + 1
        if at < end and code[at].text == "template":  # an explicit instantiation
            while at < end and code[at].text != ";":
                at = self._ends.get(at, at) + 1
            return Declaration(first, min(at, end - 1), frozenset(), "instance", False, scopes)
        begin = min(at, end - 1)
        words: set[str] = set()  # at depth 0
        last_word, parameters, equals, tag, body = "", -1, False, -1, -1
        while at < end:
            token = code[at]
            text = token.text
            if text == ";":
                break
            if token.kind == "word":
                if text in _WITH_BRACKETS and at + 1 < end and code[at + 1].text == "(":
                    at = self._ends[at + 1] + 1
                    continue
                if text in _TAGS and all(code[i].text in _QUALIFIERS for i in range(begin, at)):
                    tag = at
                words.add(text)
                if text == "operator":
                    last_word = text
                    while at < end and code[at].text != "(":  # the sign, or the type converted to
                        at += 1
                    continue
                if parameters < 0:
                    last_word = text
            elif text == "=" and parameters < 0:
                equals = True
            elif text == "(":
                if parameters < 0 and not equals:
                    parameters = at
                at = self._ends[at]
            elif text == "[":
                at = self._ends[at]
            elif text == "<" and parameters < 0 and not equals and at > begin and code[at - 1].kind == "word":
                at = self._angles(at)
            elif text == "{":
                close = self._ends[at]
                if tag >= 0 and parameters < 0:
                    body = body if body >= 0 else at
                    at = close
                elif parameters >= 0 and not equals:
                    if self._initialises(parameters, at):
                        at = close
                    else:
                        tag, body, at = -1, at, close  # a function, whatever it gives
                        break
                else:
                    at = close
            at += 1
        last = min(at, end - 1)
        device = bool(words & _DEVICE) or bool(words & {"constexpr", "consteval"})
        if tag >= 0 and (body >= 0 or parameters < 0):
            return self._type(first, last, tag, body, scopes, template)
        if code[begin].text == "using":
            return self._using(first, begin, last, scopes)
        if code[begin].text == "concept":
            return Declaration(first, last, frozenset({code[begin + 1].text}), "type", True, scopes, None, True)
        if code[begin].text == "static_assert":
            return Declaration(first, last, frozenset(), "assertion", False, scopes)
        if code[begin].text == "typedef":
            names = {t.text for i, t in enumerate(code[begin:last]) if t.kind == "word" and self._declares(begin + i)}
            names -= _BUILT_IN
            return Declaration(first, last, frozenset(names), "type", True, scopes)
        if parameters >= 0 and not equals:
            names = {last_word}
            name_at = parameters - 1
            while name_at - 2 > begin and code[name_at - 1].text == "::" and code[name_at - 2].kind == "word":
                name_at -= 2
                names.add(code[name_at].text)
            kernel = None
            if "__global__" in words and body >= 0:
                kernel = self._kernel(last_word, parameters, first, scopes, template)
            is_device = bool(words & {"constexpr", "consteval", *_FUNCTIONS})
            return Declaration(first, last, frozenset(names), "function", is_device, scopes, kernel, template)
        names = {
            t.text
            for i, t in enumerate(code[begin:last])
            if t.kind == "word" and t.text not in _QUALIFIERS and self._declares(begin + i)
        }
        const = "const" in words and not words & {"string", "vector", "map"} and "char" not in words
        return Declaration(first, last, frozenset(names), "variable", device or const, scopes, None, template)

    def _declares(self, at: int) -> bool:
        following = self.code[at + 1].text if at + 1 < len(self.code) else ";"
        return following in (";", "=", "[", ",", "{", "(", ")")

    def _initialises(self, parameters: int, at: int) -> bool:
        """Whether `{` at `at` belongs to a constructor's `: member{...}`."""
        before = self._ends[parameters] + 1
        while before < at and self.code[before].text != ":":
            before = self._ends.get(before, before) + 1
        if before >= at:
            return False
        previous = self.code[at - 1]
        return previous.kind == "word" or previous.text == ">"

    def _type(self, first: int, last: int, tag: int, body: int, scopes: tuple[str, ...], template: bool) -> Declaration:
        code = self.code
        names: set[str] = set()
        head = tag + 1
        while head < last and code[head].text not in ("{", ":", ";"):
            if code[head].kind == "word" and code[head].text in _WITH_BRACKETS and code[head + 1].text == "(":
                head = self._ends[head + 1] + 1
                continue
            if code[head].text == "<":
                head = self._angles(head)
            elif code[head].kind == "word" and code[head].text not in ("class", "struct", "final"):
                names.add(code[head].text)
            head = self._ends.get(head, head) + 1
        if body >= 0:
            tail = self._ends[body] + 1
            names |= {t.text for t in code[tail:last] if t.kind == "word"}
            if code[tag].text == "enum":
                names |= {t.text for t in code[body + 1 : self._ends[body]] if t.kind == "word"}
        return Declaration(first, last, frozenset(names), "type", True, scopes, None, template)

    def _using(self, first: int, begin: int, last: int, scopes: tuple[str, ...]) -> Declaration:
        words = [t.text for t in self.code[begin + 1 : last] if t.kind == "word"]
        if words and words[0] == "namespace":
            return Declaration(first, last, frozenset(words[1:]), "using", True, scopes)
        if any(t.text == "=" for t in self.code[begin:last]):
            return Declaration(first, last, frozenset(words[:1]), "type", True, scopes)
        known = bool(words) and words[0] in _NAMESPACES
        return Declaration(first, last, frozenset(words[-1:]), "type" if known else "using", True, scopes)

    def _kernel(self, name: str, parameters: int, first: int, scopes: tuple[str, ...], template: bool) -> Kernel:
        names, types = [], []
        for start, end in self.split(parameters + 1, self._ends[parameters]):
            stop = start
            while stop < end and self.code[stop].text != "=":
                stop = self._ends.get(stop, stop) + 1
            part = self.code[start : min(stop, end)]
            at = next((i for i, t in enumerate(part) if t.text == "["), len(part)) - 1
            named = at > 0 and part[at].kind == "word"
            names.append(part[at].text if named else "")
            types.append(" ".join(t.text for i, t in enumerate(part) if not (named and i == at)))
        file, line = self.place(self.code[first].start)
        whole = "::".join([*(s for s in scopes if s and not s.startswith("inline ")), name])
        dims = [i for i in range(first, parameters) if self.code[i].text == "__cluster_dims__"]
        cluster = " ".join(t.text for t in self.code[dims[0] + 2 : self._ends[dims[0] + 1]]) if dims else ""
        given = self._template_parameters(first)
        return Kernel(whole, template, tuple(names), tuple(types), scopes, file, line, cluster, given)

    def _template_parameters(self, first: int) -> tuple[str, ...]:
        """Their names, of a declaration that begins at `first`; "" for one without."""
        if self.code[first].text != "template":
            return ()
        out = []
        for start, end in self.split(first + 2, self._angles(first + 1)):
            stop = next((i for i in range(start, end) if self.code[i].text == "="), end)
            words = [token.text for token in self.code[start:stop] if token.kind == "word"]
            out.append(words[-1] if len(words) > 1 else "")
        return tuple(out)

    def split(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a list at its commas; none of an empty one."""
        parts, begin, at = [], start, start
        while at < end:
            text = self.code[at].text
            if text == "<" and self.code[at - 1].kind == "word":
                at = self._angles(at)
            elif text in _PAIRS:
                at = self._ends[at]
            elif text == ",":
                parts.append((begin, at))
                begin = at + 1
            at += 1
        return [*parts, (begin, end)] if begin < end else parts

    def launches(self) -> list[Launch]:
        """Every `<<<` in the text."""
        found = []
        for at, token in enumerate(self.code):
            if token.text != "<<<" or not at:
                continue
            begin, last = self._launched(at, 0)
            if begin > last:
                continue
            name = "".join(t.text for t in self.code[begin : last + 1])
            arguments = self._resolved(self.code[last + 2 : at - 1], at)
            arguments += ">>" if self.code[at - 1].text == ">>>" else ""  # of an argument's own, written together
            words = frozenset(re.findall(r"[A-Za-z_]\w*", arguments))
            found.append(Launch(name, arguments, words, *self.place(token.start)))
        return found

    def _launched(self, at: int, first: int) -> tuple[int, int]:
        """The first and the last token of the kernel's name before the `<<<` at `at`, none before token `first`; no
        token where there is no name."""
        last = at - 1
        if self.code[last].text in (">", ">>>"):
            depth = 0
            while last >= first:
                last = self._begins.get(last, last)
                text = self.code[last].text
                depth += {">": 1, ">>>": 3, "<": -1, "<<<": -3}.get(text, 0)
                last -= 1
                if depth <= 0:
                    break
                if text in (";", "{"):
                    return at, last
        if last < first or self.code[last].kind != "word":
            return at, last
        begin = last
        while begin - 2 >= first and self.code[begin - 1].text == "::" and self.code[begin - 2].kind == "word":
            begin -= 2
        return begin, last

    def _resolved(self, inside: Sequence[Token], at: int, depth: int = 0) -> str:
        """The text of tokens, with what the function around token `at` calls its constants and types in their place."""
        out, before = "", None
        for token in inside:
            known = self._constant(token.text, at) if token.kind == "word" and depth < 8 else None
            if before and before.end < token.start:
                out += " "
            if known is None:
                out += token.text
            else:
                out += self._resolved(self.code[known[0] : known[1]], known[0] - 2, depth + 1)
            before = token
        return " ".join(out.split())

    def _constant(self, word: str, at: int) -> tuple[int, int] | None:
        """The tokens of the value that `const int word = ...;` or `using word = ...;` gives, before token `at` in the
        same function."""
        number = bisect.bisect_right([d.first for d in self.declarations], at) - 1
        first = self.declarations[number].first if number >= 0 else 0
        for here in range(at - 1, first, -1):
            following = self.code[here + 1].text
            if self.code[here].text != word or following not in ("=", "{") or self.code[here + 2].text == "=":
                continue
            begin = here
            while begin > first and self.code[begin - 1].text not in (";", "{", "}"):
                begin -= 1
            if self.code[begin].text not in ("const", "constexpr", "static", "using"):
                return None
            if following == "{":
                return here + 2, self._ends[here + 1]
            end = here + 2
            while end < at and self.code[end].text not in (";", ","):
                end = self._angles(end) if self.code[end].text == "<" else self._ends.get(end, end)
                end += 1
            return here + 2, end
        return None

    def needed(self, roots: Sequence[str] | None = None, also: frozenset[str] = frozenset()) -> list[Declaration]:
        """What the kernels named in `roots` (None: all) and the words `also` need, in the order of the text."""
        by_name: dict[str, list[int]] = {}
        keep: set[int] = set()
        waiting: list[int] = []

        def take(number: int) -> None:
            if number not in keep:
                keep.add(number)
                waiting.append(number)

        for number, declaration in enumerate(self.declarations):
            if declaration.kind == "function" and not declaration.device:
                continue
            if declaration.kind in ("instance", "assertion") or not declaration.device:
                continue
            if declaration.kind == "using":
                continue
            for name in declaration.names:
                by_name.setdefault(name, []).append(number)
            kernel = declaration.kernel
            chosen = roots is None or (kernel and (kernel.name in roots or kernel.name.split("::")[-1] in roots))
            if (kernel and chosen) or (declaration.kind == "function" and "operator" in declaration.names):
                take(number)
        for name in also:
            for number in by_name.get(name, ()):
                take(number)
        seen: set[str] = set()
        while waiting:
            declaration = self.declarations[waiting.pop()]
            for word in self.words(declaration) - seen:
                seen.add(word)
                for number in by_name.get(word, ()):
                    take(number)
        inside = {scope for number in keep for scope in self.declarations[number].scopes}
        namespaces = _NAMESPACES | {scope.removeprefix("inline ") for scope in inside}
        for number, declaration in enumerate(self.declarations):
            if declaration.kind == "using":
                words = [t.text for t in self.code[declaration.first : declaration.last] if t.kind == "word"]
                alias = words[:1] == ["namespace"] and "=" in (
                    t.text for t in self.code[declaration.first : declaration.last]
                )
                known = words[2:] if alias else words[1 + (words[:2] == ["using", "namespace"]) :]
                if known and set(known) <= namespaces:
                    keep.add(number)
                    namespaces |= set(words[1:2]) if alias else set()
        return [self.declarations[number] for number in sorted(keep)]

    def words(self, declaration: Declaration) -> set[str]:
        return {t.text for t in self.code[declaration.first : declaration.last + 1] if t.kind == "word"}

    def host_members(self, declaration: Declaration) -> list[tuple[int, int]]:
        """The tokens, first and last, of a class's member functions that are for the host alone."""
        out: list[tuple[int, int]] = []
        if declaration.kind != "type":
            return out
        at = declaration.first
        while at < declaration.last:
            if self.code[at].text in ("struct", "class", "union"):
                body = at
                while body < declaration.last and self.code[body].text not in ("{", ";", "=", ">", ","):
                    body = self._angles(body) if self.code[body].text == "<" else self._ends.get(body, body)
                    body += 1
                if self.code[body].text == "{":
                    self._members(body + 1, self._ends[body], out)
                    at = self._ends[body]
            at += 1
        return out

    def fields(self, name: str, types: dict[str, Declaration]) -> list[str]:
        """The data members of the structure `name`, its bases' first, those of a structure within it as "inner.x"; of a
        union that has no name the first of its members. Empty where not all are known."""
        return self._fields(name, types, 0) or []

    def _fields(self, name: str, types: dict[str, Declaration], depth: int) -> list[str] | None:
        """None where not all are known."""
        declaration = types.get(name)
        tag, body = self._body(declaration) if declaration else (-1, -1)
        if body < 0 or depth > 4 or self.code[tag].text in ("enum", "union"):
            return None
        out: list[str] = []
        for base in self._bases(tag, body):
            if (inner := self._fields(base, types, depth + 1)) is None:
                return None
            out += inner
        return out + self._fields_in(body, types, depth)

    def _body(self, declaration: Declaration) -> tuple[int, int]:
        """Where a type's tag is, and the brace of its body; -1 for what is not there."""
        places = range(declaration.first, declaration.last)
        tag = next((i for i in places if self.code[i].text in _TAGS), -1)
        return tag, next((i for i in places if tag >= 0 and i > tag and self.code[i].text == "{"), -1)

    def _bases(self, tag: int, body: int) -> Iterator[str]:
        """The names of the classes between the colon after a tag and its body."""
        colon = next((i for i in range(tag, body) if self.code[i].text == ":"), body)
        for begin, end in self.split(colon + 1, body):
            words = [word for i, word in self._outside(begin, end) if self.code[i].kind == "word"]
            yield words[-1] if words else ""

    def _outside(self, at: int, end: int) -> Iterator[tuple[int, str]]:
        """The tokens that are in no brackets of any kind."""
        while at < end:
            text = self.code[at].text
            if text == "<" and self.code[at - 1].kind == "word":
                at = self._angles(at)
            elif at in self._ends:
                at = self._ends[at]
            else:
                yield at, text
            at += 1

    def _fields_in(self, body: int, types: dict[str, Declaration], depth: int) -> list[str]:
        out: list[str] = []
        for member in self._inside(body + 1, self._ends[body]):
            if member.kind == "type":
                out += self._fields_of_own_type(member, types, depth)
            elif member.kind == "variable" and "static" not in self._uninitialised(member.first, member.last):
                words = [text for _, text in self._outside(member.first, member.last)]
                kind = "" if {"*", "&"} & set(words) else next((word for word in words if word in types), "")
                out += self._with(self._fields(kind, types, depth + 1), member.first, member.last)
            elif member.kind == "function":
                out += self._pointer_to_function(member)
        return out

    def _fields_of_own_type(self, member: Declaration, types: dict[str, Declaration], depth: int) -> list[str]:
        """Of a member whose type stands in its declaration: `struct { float x; } inner;`."""
        tag, body = self._body(member)
        if body < 0 or self.code[member.first].text == "typedef" or depth > 4:
            return []
        end, kind = self._ends[body], self.code[tag].text
        inner = None if kind == "enum" else self._fields_in(body, types, depth + 1)
        if end + 1 < member.last:
            return list(self._with(None if kind == "union" else inner, end + 1, member.last))
        if inner is None or body > tag + 1:  # a type of its own, and no member
            return []
        return inner[:1] if kind == "union" else inner

    def _with(self, inner: Sequence[str] | None, start: int, end: int) -> Iterator[str]:
        """The fields of a declaration's variables, whose type has the fields `inner`; None: those are not known. An
        array of classes is one."""
        for place in self._named(start, end):
            name = self.code[place].text
            whole = inner is None or self.code[place + 1].text == "["
            yield from [name] if whole else (f"{name}.{one}" for one in inner or ())

    def _named(self, start: int, end: int) -> Iterator[int]:
        """Where the names are that a variable's declaration gives: the last word of each part, before its value."""
        for begin, last in self.split(start, end):
            word = -1
            for place, text in self._outside(begin, last):
                if text in ("=", ":"):
                    break
                word = place if self.code[place].kind == "word" else word
            if word >= 0:
                yield word

    def _pointer_to_function(self, member: Declaration) -> list[str]:
        """The name of `float (*f)(float);`, which reads as a function's declaration."""
        texts = [token.text for token in self.code[member.first : member.last]]
        opening = texts.index("(") if "(" in texts else 0
        if opening and texts[opening + 1 : opening + 2] == ["*"] and texts[opening + 3 : opening + 5] == [")", "("]:
            return [texts[opening + 2]]
        return []

    def _uninitialised(self, start: int, end: int) -> Iterator[str]:
        """The words of a variable's declaration, but those of the values that it is given."""
        for begin, last in self.split(start, end):
            for token in self.code[begin:last]:
                if token.text in ("=", "{"):
                    break
                if token.kind == "word":
                    yield token.text

    def _inside(self, at: int, end: int) -> Iterator[Declaration]:
        """The members of a structure, whose braces are at `at` - 1 and at `end`."""
        while at < end:
            if self.code[at].text in ("public", "private", "protected") and self.code[at + 1].text == ":":
                at += 2
            else:
                member = self._declaration(at, end, ())
                at = member.last + 1
                yield member

    def _members(self, at: int, end: int, out: list[tuple[int, int]]) -> None:
        for member in self._inside(at, end):
            words = {t.text for t in self.code[member.first : member.last + 1] if t.kind == "word"}
            if member.kind == "type":
                out += self.host_members(member)
            elif member.kind == "function" and not member.device and not self._pointer_to_function(member):
                defaulted = self.code[member.last - 1].text in ("default", "delete")
                asks = "static" in words and self.code[member.last].text == ";"  # only for what type it would return
                if not defaulted and not asks and "friend" not in words:
                    out.append((member.first, member.last))

    def assembly(self, declaration: Declaration) -> Iterator[tuple[int, int, list[list[tuple[int, int]]]]]:
        """Every `asm(...)`: its first and last token, and the tokens of each part of its lists: the template, outputs,
        inputs."""
        at = declaration.first
        while at < declaration.last:
            if self.code[at].text in ("asm", "__asm__", "__asm"):
                begin = at
                while self.code[at].text != "(":
                    at += 1
                end, sections, start = self._ends[at], [], at + 1
                for inner in self._colons(at + 1, end):
                    sections.append(self.split(start, inner))
                    start = inner + 1
                yield begin, end, [*sections, self.split(start, end)]
                at = end
            at += 1

    def _colons(self, at: int, end: int) -> Iterator[int]:
        """Where a list ends; `::` ends two."""
        while at < end:
            text = self.code[at].text
            if text in _PAIRS:
                at = self._ends[at]
            elif text == ":":
                yield at
            elif text == "::":
                yield from (at, at)
            at += 1

    def device_launches(self, declaration: Declaration) -> Iterator[tuple[int, int]]:
        """Launches in device code, `name<...><<<...>>>(...)`: the first and last token of each."""
        at = declaration.first
        while at < declaration.last:
            if self.code[at].text == "<<<":
                begin, _ = self._launched(at, declaration.first)
                while self.code[at].text != ">>>":
                    at = self._ends.get(at, at) + 1
                end = self._ends.get(at + 1, at)
                yield begin, end
                at = end
            at += 1

    def calls(self, declaration: Declaration, names: Container[str]) -> Iterator[tuple[int, str]]:
        """Every plain call of a function in `names`, by its token."""
        for at in range(declaration.first + 1, declaration.last):
            token = self.code[at]
            if token.kind == "word" and token.text in names and self.code[at + 1].text == "(":
                before = self.code[at - 1]
                if before.text not in (".", "->", "::", "*", "&", "~") and (
                    before.kind != "word" or before.text in ("return", "else", "do")
                ):
                    yield at, token.text

    def host_attributes(self, declaration: Declaration) -> Iterator[str]:
        """The attributes in it that no GPU's compiler knows."""
        for at in range(declaration.first, declaration.last):
            word, opens = self.code[at].text, self.code[at + 1].text
            if (word in ("__attribute__", "__attribute") and opens == "(") or (word == opens == "["):
                for token in self.code[at + 1 : self._ends.get(at + 1, at + 1)]:
                    name = token.text.strip("_")
                    if token.kind == "word" and (name in _OF_THE_HOST or name.startswith("no_sanitize")):
                        yield name

    def places(self, declaration: Declaration, word: str) -> Iterator[int]:
        """The tokens that are `word`, but in brackets, as attributes are."""
        for at in range(declaration.first, declaration.last + 1):
            if self.code[at].text == word and (at == 0 or self.code[at - 1].text != "("):
                yield at

    def source_of(self, part: tuple[int, int]) -> str:
        """The text of tokens, from the first up to the one before the last."""
        if part[0] >= part[1]:
            return ""
        return self.text[self.code[part[0]].start : self.code[part[1] - 1].end]

    def piece(self, declaration: Declaration, edits: Sequence[tuple[int, int, str]] = ()) -> str:
        """The text of a declaration, with `edits` (first and last token, what stands for them), its lines kept."""
        start, end = self.code[declaration.first].start, self.code[declaration.last].end
        out, done = [self._mark(start)], start
        for first, last, new in sorted(edits):
            begin, stop = self.code[first].start, self.code[last].end
            out += [self.text[done:begin], new]
            if "\n" in self.text[begin:stop]:
                out.append("\n" + self._mark(stop))
            done = stop
        out.append(self.text[done:end])
        return "".join(out)

    def _mark(self, offset: int) -> str:
        file, line = self.place(offset)
        return f'#line {line} "{file}"\n'
