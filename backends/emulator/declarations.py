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
    kind: str  # "text", "char", "number", "word", "sign"
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
    types: tuple[str, ...]
    scopes: tuple[str, ...]  # the namespaces it stands in, unnamed ones as "", inline ones as "inline name"
    file: str
    line: int
    cluster: str  # what __cluster_dims__ says
    given: tuple[str, ...]  # the names of a template's parameters
    extern_c: bool  # of C linkage


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
    tag: int = 0  # a type's `struct`, `class`, `union` or `enum`, and the brace of its body: 0 where there is none
    body: int = 0


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
        self.code: list[Token] = []
        outside = False
        for match in _TOKEN.finditer(text):
            if marker := _MARKER.match(match.group()):
                line, file, flags = int(marker.group(1)), marker.group(2), marker.group(3).split()
                outside = "3" in flags or file.startswith(("<", *foreign))
                self._marks.append((match.end() + 1, file, line))
            elif match.lastgroup != "line" and not outside:
                self.code.append(Token(str(match.lastgroup), match.group(), match.start(), match.end()))
        self._offsets = [offset for offset, _, _ in self._marks]
        self._size = len(self.code)
        self.code += [Token("sign", ";", len(text), len(text))] * 3  # what follows a token is there to be looked at
        self._ends = self._brackets()
        self._begins = {end: begin for begin, end in self._ends.items()}
        self._of_c: set[tuple[str, tuple[str, ...]]] = set()  # names and types of the kernels declared extern "C"
        self.declarations = list(self._scope(0, self._size, ()))

    def place(self, offset: int) -> tuple[str, int]:
        """File and line."""
        mark, file, line = self._marks[bisect.bisect_right(self._offsets, offset) - 1]
        return file, line + self.text.count("\n", mark, offset)

    def _brackets(self) -> dict[int, int]:
        """Of each opening bracket the token that closes it; the one after the last where none does."""
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
        return ends | dict.fromkeys(open_, self._size)

    def _angles(self, at: int) -> int:
        """The token that closes `<` at `at`; the last of the statement where none does."""
        depth = 0
        while (text := self.code[at].text) != ";":
            if text in ("<", "<<<"):
                depth += len(text)
            elif text in (">", ">>>"):
                depth -= len(text)
                if depth <= 0:
                    return at
            at = self._ends.get(at, at) + 1
        return at - 1

    def _scope(self, at: int, end: int, scopes: tuple[str, ...], of_c: bool = False) -> Iterator[Declaration]:
        code = self.code
        while at < end:
            text = code[at].text
            if text in (";", "}", ")"):
                at += 1
                continue
            if text == "[":  # an attribute
                at = self._ends[at] + 1
                continue
            if code[at + 1].kind == "text" and code[at + 2].text == "{":  # extern "C"
                yield from self._scope(at + 3, self._ends[at + 2], scopes, code[at + 1].text == '"C"')
                at = self._ends[at + 2]
                continue
            head = at + (text == "inline")
            if code[head].text == "namespace":
                last = head + 1
                names: list[str] = []
                while code[last].text not in ("{", ";", "="):
                    if code[last].kind == "word" and code[last].text not in ("inline", *_WITH_BRACKETS):
                        names.append(code[last].text)
                    last = self._ends.get(last, last) + 1
                if code[last].text == "{":
                    if text == "inline":
                        names = [f"inline {name}" for name in names]
                    yield from self._scope(last + 1, self._ends[last], (*scopes, *(names or [""])), of_c)
                    at = self._ends[last]
                    continue
                last = next(i for i in self._top(last, len(code)) if code[i].text == ";")
                yield Declaration(at, last, frozenset(names), "using", True, scopes)
                at = last
                continue
            declaration = self._declaration(at, scopes, of_c)
            yield declaration
            at = declaration.last + 1

    def _declaration(self, at: int, scopes: tuple[str, ...], of_c: bool = False) -> Declaration:
        code = self.code
        first = at
        while code[at].text == "template" and code[at + 1].text == "<":
            at = self._angles(at) + 1
            if code[at].text == "requires":
                begins = {*_QUALIFIERS, *_TAGS, "void", "auto"}
                at = next((i for i in self._top(at, self._size) if code[i].text in begins), self._size)
        if code[at].text == "template":  # an explicit instantiation
            last = next(i for i in self._top(at, len(code)) if code[i].text == ";")
            return Declaration(first, last, frozenset(), "instance", False, scopes)
        begin = at
        words: set[str] = set()  # at depth 0
        # the word before the first of `(` and `=` outside other brackets, which of them it is, and where
        name, opens, head = "", "", at
        tag: int | None = None
        body = 0
        while code[at].text != ";":
            text = code[at].text
            if text in _WITH_BRACKETS and code[at + 1].text == "(":
                at += 1
            elif code[at].kind == "word":
                if text in _TAGS and all(code[i].text in _QUALIFIERS for i in range(begin, at)):
                    tag = at
                words.add(text)
                name = name if opens else text
                if text == "operator":
                    while code[at].text not in ("(", ";"):  # the sign, or the type converted to
                        at += 1
                    continue
            elif text in ("(", "=") and not opens:
                opens, head = text, at
            elif text == "<":
                at = self._angles(at)
            elif text == "{":
                if opens == "(" and not self._initialises(head, at):  # a function, whatever it gives
                    tag, body, at = None, at, self._ends[at]
                    break
                body = body or at
            at = self._ends.get(at, at) + 1
        if tag is not None and (body or opens != "("):
            return self._type(first, at, tag, body, scopes)
        if code[begin].text == "using":
            return self._using(first, begin, at, scopes)
        if code[begin].text == "concept":
            return Declaration(first, at, frozenset({code[begin + 1].text}), "type", True, scopes)
        if code[begin].text == "static_assert":
            return Declaration(first, at, frozenset(), "assertion", False, scopes)
        if code[begin].text == "typedef":
            return Declaration(first, at, self._declared(begin, at), "type", True, scopes)
        if opens == "(":
            names, name_at = {name}, head - 1
            while code[name_at - 1].text == "::" and code[name_at - 2].kind == "word":
                name_at -= 2
                names.add(code[name_at].text)
            if code[first + 1].kind == "text":
                of_c = code[first + 1].text == '"C"'
            kernel = self._kernel(name, head, first, scopes, of_c) if "__global__" in words else None
            kernel = kernel if body else None  # without one it says of what linkage that is which follows
            device = bool(words & {"constexpr", "consteval", *_FUNCTIONS})
            return Declaration(first, at, frozenset(names), "function", device, scopes, kernel)
        device = bool(words & {"constexpr", *_DEVICE})
        device |= "const" in words and not words & {"char", "string", "vector", "map"}
        return Declaration(first, at, self._declared(begin, at), "variable", device, scopes)

    def _declared(self, begin: int, last: int) -> frozenset[str]:
        """The words of a declaration that may be the names it gives."""
        words = {t.text for i, t in enumerate(self.code[begin:last], begin) if t.kind == "word" and self._declares(i)}
        return frozenset(words - _QUALIFIERS - _BUILT_IN)

    def _top(self, at: int, end: int) -> Iterator[int]:
        """The tokens from `at` to `end` but those within brackets."""
        while at < end:
            yield at
            at = self._ends.get(at, at) + 1

    def _declares(self, at: int) -> bool:
        return self.code[at + 1].text in (";", "=", "[", ",", "{", "(", ")")

    def _initialises(self, parameters: int, at: int) -> bool:
        """Whether `{` at `at` belongs to a constructor's `: member{...}`."""
        colon = any(self.code[i].text == ":" for i in self._top(parameters, at))
        return colon and (self.code[at - 1].kind == "word" or self.code[at - 1].text == ">")

    def _type(self, first: int, last: int, tag: int, body: int, scopes: tuple[str, ...]) -> Declaration:
        code = self.code
        names: set[str] = set()
        head = tag + 1
        while code[head].text not in ("{", ":", ";"):
            if code[head].text == "<":
                head = self._angles(head)
            elif code[head].kind == "word" and code[head].text not in ("class", "struct", "final", *_WITH_BRACKETS):
                names.add(code[head].text)
            head = self._ends.get(head, head) + 1
        if body:
            names |= {t.text for t in code[self._ends[body] : last] if t.kind == "word"}
            if code[tag].text == "enum":
                names |= {t.text for t in code[body : self._ends[body]] if t.kind == "word"}
        return Declaration(first, last, frozenset(names), "type", True, scopes, None, tag, body)

    def _using(self, first: int, begin: int, last: int, scopes: tuple[str, ...]) -> Declaration:
        words = [t.text for t in self.code[begin + 1 : last] if t.kind == "word"]
        if words[:1] == ["namespace"]:
            return Declaration(first, last, frozenset(words[1:]), "using", True, scopes)
        if any(t.text == "=" for t in self.code[begin:last]):
            return Declaration(first, last, frozenset(words[:1]), "type", True, scopes)
        known = not _NAMESPACES.isdisjoint(words[:1])
        return Declaration(first, last, frozenset(words[-1:]), "type" if known else "using", True, scopes)

    def _kernel(self, name: str, parameters: int, first: int, scopes: tuple[str, ...], of_c: bool) -> Kernel:
        names, types = [], []
        for start, end in self.split(parameters + 1, self._ends[parameters]):
            stop = next((i for i in self._top(start, end) if self.code[i].text == "="), end)
            part = self.code[start:stop]
            at = next((i for i, t in enumerate(part) if t.text == "["), len(part)) - 1
            named = at > 0 and part[at].kind == "word"
            names.append(part[at].text if named else "")
            types.append(" ".join(t.text for i, t in enumerate(part) if not (named and i == at)))
        file, line = self.place(self.code[first].start)
        whole = "::".join([*(s for s in scopes if s and not s.startswith("inline ")), name])
        dims = [i for i in range(first, parameters) if self.code[i].text == "__cluster_dims__"]
        cluster = " ".join(t.text for t in self.code[dims[0] + 2 : self._ends[dims[0] + 1]]) if dims else ""
        given, template = self._template_parameters(first), self.code[first].text == "template"
        if of_c and not template:
            self._of_c.add((whole, tuple(types)))
        extern_c = not template and (whole, tuple(types)) in self._of_c
        return Kernel(whole, template, tuple(names), tuple(types), scopes, file, line, cluster, given, extern_c)

    def _template_parameters(self, first: int) -> tuple[str, ...]:
        """Their names, of a declaration that begins at `first`; "" for one without."""
        if self.code[first].text != "template":
            return ()
        out = []
        for start, end in self.split(first + 2, self._angles(first)):
            stop = next((i for i in range(start, end) if self.code[i].text == "="), end)
            words = [token.text for token in self.code[start:stop] if token.kind == "word"]
            out.append(words[-1] if len(words) > 1 else "")
        return tuple(out)

    def split(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a list at its commas; none of an empty one."""
        parts, begin = [], start
        for at, text in self._outside(start, end):
            if text == ",":
                parts.append((begin, at))
                begin = at + 1
        return [*parts, (begin, end)] if begin < end else parts

    def launches(self) -> list[Launch]:
        """Every `<<<` in the text."""
        found = []
        for at, token in enumerate(self.code):
            if token.text != "<<<":
                continue
            begin, last = self._launched(at)
            if begin > last:
                continue
            name = "".join(t.text for t in self.code[begin : last + 1])
            arguments = self._resolved(self.code[last + 2 : at - 1], at)
            arguments += ">>" if self.code[at - 1].text == ">>>" else ""  # of an argument's own, written together
            words = frozenset(re.findall(r"[A-Za-z_]\w*", arguments))
            found.append(Launch(name, arguments, words, *self.place(token.start)))
        return found

    def _launched(self, at: int) -> tuple[int, int]:
        """The first and the last token of the kernel's name before the `<<<` at `at`; no token where there is none."""
        last = at - 1
        if self.code[last].text in (">", ">>>"):
            depth = 0
            while True:
                last = self._begins.get(last, last)
                text = self.code[last].text
                depth += {">": 1, ">>>": 3, "<": -1}.get(text, 0)
                last -= 1
                if depth <= 0:
                    break
                if text == ";":
                    return at, last
        if self.code[last].kind != "word":
            return at, last
        begin = last
        while self.code[begin - 1].text == "::" and self.code[begin - 2].kind == "word":
            begin -= 2
        return begin, last

    def _resolved(self, inside: Sequence[Token], at: int) -> str:
        """The text of tokens, with what the function around token `at` calls its constants and types in their place."""
        out, before = "", None
        for token in inside:
            known = self._constant(token.text, at) if token.kind == "word" else None
            if before and before.end < token.start:
                out += " "
            if known is None:
                out += token.text
            else:
                out += self._resolved(self.code[known[0] : known[1]], known[0] - 2)
            before = token
        return " ".join(out.split())

    def _constant(self, word: str, at: int) -> tuple[int, int] | None:
        """The tokens of the value that `const int word = ...;` or `using word = ...;` gives, before token `at` in the
        same function."""
        first = max((each.first for each in self.declarations if each.first <= at), default=0)
        for here in range(at - 1, first, -1):
            following = self.code[here + 1].text
            if self.code[here].text != word or following not in ("=", "{") or self.code[here + 2].text == "=":
                continue
            begin = here
            while self.code[begin - 1].text not in (";", "{", "}"):
                begin -= 1
            if self.code[begin].text not in ("const", "constexpr", "static", "using"):
                return None
            if following == "{":
                return here + 2, self._ends[here + 1]
            return here + 2, next((i for i, text in self._outside(here, at) if text in (";", ",")), at)
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
            if not declaration.device or declaration.kind == "using":
                continue
            for name in declaration.names:
                by_name.setdefault(name, []).append(number)
            kernel = declaration.kernel
            chosen = roots is None or (kernel and (kernel.name in roots or kernel.name.split("::")[-1] in roots))
            if (kernel and chosen) or "operator" in declaration.names:
                take(number)
        for name in also:
            for number in by_name.get(name, ()):
                take(number)
        while waiting:
            for word in self.words(self.declarations[waiting.pop()]):
                for number in by_name.get(word, ()):
                    take(number)
        inside = {scope for number in keep for scope in self.declarations[number].scopes}
        namespaces = _NAMESPACES | {scope.removeprefix("inline ") for scope in inside}
        for number, declaration in enumerate(self.declarations):
            if declaration.kind == "using":
                words = [t.text for t in self.code[declaration.first : declaration.last] if t.kind == "word"]
                alias = words[:1] == ["namespace"]
                known = words[2:] if alias else words[1 + (words[:2] == ["using", "namespace"]) :]
                if namespaces.issuperset(known):
                    keep.add(number)
                    namespaces.update(words)
        return [self.declarations[number] for number in sorted(keep)]

    def words(self, declaration: Declaration) -> set[str]:
        return {t.text for t in self.code[declaration.first : declaration.last] if t.kind == "word"}

    def host_members(self, declaration: Declaration) -> list[tuple[int, int]]:
        """The tokens, first and last, of a class's member functions that are for the host alone."""
        out: list[tuple[int, int]] = []
        if not declaration.body:
            return out
        for member in self._inside(declaration.body):
            if member.kind == "type":
                out += self.host_members(member)
            elif member.kind == "function" and not member.device and not self._pointer_to_function(member):
                words, last = self.words(member), self.code[member.last]
                defaulted = self.code[member.last - 1].text in ("default", "delete")
                asks = "static" in words and last.text == ";"  # only for what type it would return
                if not defaulted and not asks and "friend" not in words:
                    out.append((member.first, member.last))
        return out

    def fields(self, name: str, types: dict[str, Declaration]) -> list[str]:
        """The data members of the structure `name`, its bases' first, those of a structure within it as "inner.x"; of a
        union that has no name the first of its members. Empty where not all are known."""
        return self._fields(name, types) or []

    def _fields(self, name: str, types: dict[str, Declaration]) -> list[str] | None:
        """None where not all are known, as those of a structure within itself are not."""
        if name not in types or not types[name].body or self.code[types[name].tag].text in ("enum", "union"):
            return None
        tag, body = types[name].tag, types[name].body
        types = {other: declaration for other, declaration in types.items() if other != name}
        out: list[str] = []
        for base in self._bases(tag, body):
            if (inner := self._fields(base, types)) is None:
                return None
            out += inner
        return out + self._fields_in(body, types)

    def _bases(self, tag: int, body: int) -> Iterator[str]:
        """The names of the classes between the colon after a tag and its body."""
        colon = next((i for i in range(tag, body) if self.code[i].text == ":"), body)
        for begin, end in self.split(colon, body):
            words = [word for _, word in self._outside(begin, end)]
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

    def _fields_in(self, body: int, types: dict[str, Declaration]) -> list[str]:
        out: list[str] = []
        for member in self._inside(body):
            if member.kind == "type":
                out += self._fields_of_own_type(member, types)
            elif member.kind == "variable":
                words = [text for _, text in self._outside(member.first, member.last)]
                kind = "" if {"*", "&"} & set(words) else next((word for word in words if word in types), "")
                if "static" not in words:
                    out += self._with(self._fields(kind, types), member.first, member.last)
            elif member.kind == "function":
                out += self._pointer_to_function(member)
        return out

    def _fields_of_own_type(self, member: Declaration, types: dict[str, Declaration]) -> list[str]:
        """Of a member whose type stands in its declaration: `struct { float x; } inner;`."""
        tag, body = member.tag, member.body
        if not body or self.code[member.first].text == "typedef":
            return []
        end, kind = self._ends[body], self.code[tag].text
        inner = None if kind == "enum" else self._fields_in(body, types)
        if self.code[end + 1].text != ";":
            return list(self._with(None if kind == "union" else inner, end, member.last))
        if inner is None or body > tag + 1:  # a type of its own, and no member
            return []
        return inner[:1] if kind == "union" else inner

    def _with(self, inner: Sequence[str] | None, start: int, end: int) -> Iterator[str]:
        """The fields of a declaration's variables, whose type has the fields `inner`; None: those are not known. An
        array of classes is one."""
        for place in self._named(start, end):
            name = self.code[place].text
            if inner is None or self.code[place + 1].text == "[":
                yield name
            else:
                yield from (f"{name}.{one}" for one in inner)

    def _named(self, start: int, end: int) -> Iterator[int]:
        """Where the names are that a variable's declaration gives: the last word of each part, before its value."""
        for begin, last in self.split(start, end):
            word = 0
            for place, text in self._outside(begin, last):
                if text in ("=", ":"):
                    break
                word = place
            if word:
                yield word

    def _pointer_to_function(self, member: Declaration) -> list[str]:
        """The name of `float (*f)(float);`, which reads as a function's declaration."""
        texts = [token.text for token in self.code[member.first : member.last + 1]]
        opening = texts.index("(")
        if texts[opening + 1 : opening + 2] == ["*"] and texts[opening + 3 : opening + 5] == [")", "("]:
            return [texts[opening + 2]]
        return []

    def _inside(self, body: int) -> Iterator[Declaration]:
        """The members of a structure, whose brace is at `body`."""
        at = body + 1
        while at < self._ends[body]:
            if self.code[at + 1].text == ":":  # `public:`
                at += 2
            else:
                member = self._declaration(at, ())
                at = member.last + 1
                yield member

    def assembly(self, declaration: Declaration) -> Iterator[tuple[int, int, list[list[tuple[int, int]]]]]:
        """Every `asm(...)`: its first and last token, and the tokens of each part of its lists: the template, outputs,
        inputs."""
        for begin in range(declaration.first, declaration.last):
            if self.code[begin].text in ("asm", "__asm__", "__asm"):
                at = next(i for i in range(begin, len(self.code)) if self.code[i].text in ("(", ";"))
                end, start = self._ends.get(at, at), at + 1
                sections = []
                for inner in self._top(start, end):
                    for _ in range({":": 1, "::": 2}.get(self.code[inner].text, 0)):  # where a list ends, or two
                        sections.append(self.split(start, inner))
                        start = inner + 1
                yield begin, end, [*sections, self.split(start, end)]

    def device_launches(self, declaration: Declaration) -> Iterator[tuple[int, int]]:
        """Launches in device code, `name<...><<<...>>>(...)`: the first and last token of each."""
        for at in range(declaration.first, declaration.last):
            if self.code[at].text == "<<<":
                end = next(i for i in self._top(at, len(self.code)) if self.code[i].text in (">>>", ";"))
                yield self._launched(at)[0], self._ends.get(end + 1, end)

    def calls(self, declaration: Declaration, names: Container[str]) -> Iterator[tuple[int, str]]:
        """Every plain call of a function in `names`, by its token."""
        for at in range(declaration.first, declaration.last):
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
                    if name in _OF_THE_HOST or name.startswith("no_sanitize"):
                        yield name

    def places(self, declaration: Declaration, word: str) -> Iterator[int]:
        """The tokens that are `word`, but in brackets, as attributes are."""
        for at in range(declaration.first, declaration.last):
            if self.code[at].text == word and self.code[at - 1].text != "(":
                yield at

    def source_of(self, part: tuple[int, int]) -> str:
        """The text of tokens, from the first up to the one before the last."""
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
