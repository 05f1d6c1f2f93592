"""Calls of the engine before every load, store and atomic of a module that LLVM has simplified.

llvmlite offers no pass of a sanitizer, so the module's text is read: LLVM prints one instruction a line, and gives a
number to each result that has no name.
"""

import re

from touchstone.backends.emulator.numba.errors import UnsupportedCode
from touchstone.backends.emulator.numba.irtext import DECLARED, NAME, size_of, type_at_start
from touchstone.backends.emulator.numba.lines import BLOCK, DBG, SITE, Lines, Merged

_NESTED = r"[^()]*"
for _ in range(4):
    _NESTED = rf"(?:[^()]|\({_NESTED}\))*"
_POINTER = rf"{NAME}|(?:getelementptr|inttoptr)\b[^()]*\({_NESTED}\)|null|undef|poison"
# An instruction that reads or writes memory; one of the patterns below must take it apart.
_ACCESS = re.compile(
    rf"^  (?:(?:{NAME}) = )?(?:(?:load|store|atomicrmw|cmpxchg) |(?:\w+ )?call .*@llvm\.mem(?:cpy|move|set)\b)"
)
_LOAD = re.compile(
    rf"^  (?:{NAME}) = load (atomic )?(volatile )?(.+?), ptr ({_POINTER})(?: [^,]+)?, (?:.*?)align (\d+)(.*)$"
)
_STORE = re.compile(rf"^  store (atomic )?(volatile )?(.+), ptr ({_POINTER})(?: [^,]+)?, (?:.*?)align (\d+)(.*)$")
_RMW = re.compile(rf"^  ({NAME}) = atomicrmw (?:volatile )?(\w+) ptr ({_POINTER}), (\w+) (\S+) .*$")
_CAS = re.compile(rf"^  ({NAME}) = cmpxchg (?:weak )?(?:volatile )?ptr ({_POINTER}), (\w+) (\S+), \w+ (\S+) .*$")
_OPERAND = rf"ptr (?:[^%@(,]|\([^()%@]*\))*?({_POINTER})"  # with its attributes
_COPY = re.compile(
    rf"^  (?:\w+ )?call void @llvm\.mem(cpy|move|set)\S*\({_OPERAND}, (?:{_OPERAND}|i8 \S+), i64 (\S+), i1 .*$"
)
# Pointers that stay within the thread's own variables.
_LOCAL = re.compile(
    rf"^  ({NAME}) = (?:alloca|getelementptr (?:inbounds |nuw |nusw )*.+?, ptr ({NAME})|bitcast ptr ({NAME}))\b.*$"
)
_CELL = re.compile(r"%(?:a|[pq]\d+)")  # where tsn_entry takes a kernel's arguments from (build._entry)
_REAL = {"fadd": "add", "fsub": "sub", "fmax": "max", "fmin": "min"}


def instrument(text: str, first: str) -> tuple[str, list[tuple[str, int]], bool]:
    """The module with its calls of the engine, the places that these name, and whether it meets the whole grid.

    A place is named by its position in the list, added to the address of the symbol `first`. Raises UnsupportedCode for
    an access that is not understood, which would go unchecked.
    """
    module = _Instrumented(text, first)
    for line in text.splitlines():
        module.add(line)
    return module.text(), module.places, "call void @tsn_syncgrid(" in text


class _Instrumented:
    """A module, line by line as it comes to be."""

    def __init__(self, text: str, first: str) -> None:
        self.places: list[tuple[str, int]] = []
        self._first = first
        self._lines = Lines(text)
        self._merged = Merged(text, self._lines)
        self._function, self._block, self._begun = 0, "", False  # where it is; whether the block has had a line
        self._declared = set(DECLARED.findall(text))
        self._out: list[str] = []
        self._local: set[str] = set()  # of the function
        self._used: set[str] = set()  # declarations
        self._exchanges = 0

    def text(self) -> str:
        new = [line for line in sorted(self._used) if line.split("@")[1].split("(")[0] not in self._declared]
        return "\n".join([*self._out, *new, f"@{self._first} = external global i8"])

    def add(self, line: str) -> None:
        """A line of the module, and before it the calls that it needs."""
        if line.startswith("define"):
            self._local.clear()
            self._function, self._block, self._begun = self._function + 1, "", False
        elif block := BLOCK.match(line):
            self._block, self._begun = block[1], False
        elif line.startswith("  "):
            for pattern, method in _INSTRUCTIONS:
                if found := pattern.match(line):
                    if method(self, line, found):
                        return
                    break
            else:
                if _ACCESS.match(line):
                    raise UnsupportedCode(f"an access to memory that the emulator cannot check: {line.strip()}")
            if str(SITE) in line:
                line = line.replace(str(SITE), self._site(line))
            self._begun = self._begun or self._has_line(line)
        self._out.append(line)

    def _has_line(self, line: str) -> bool:
        found = DBG.search(line)
        return found is not None and self._lines.of(found[1])[1] > 0

    def _site(self, line: str) -> str:
        """The number of the place that a line comes from, as an operand."""
        found = DBG.search(line)
        place = self._lines.of(found[1]) if found else ("line unknown", 0)
        if found and not place[1] and not self._begun and _STORE.match(line):
            place = self._merged.of(self._function, self._block, place)
        self.places.append(place)
        return f"ptrtoint (ptr getelementptr (i8, ptr @{self._first}, i64 {len(self.places) - 1}) to i64)"

    def _needs_no_check(self, pointer: str) -> bool:
        """Whether a pointer is to the thread's own variables, or to a constant."""
        if pointer.startswith("getelementptr"):
            base = re.search(rf"ptr ({NAME})", pointer)
            return base is not None and self._needs_no_check(base[1])
        return pointer in self._local or pointer.startswith("@")

    def _call(self, result: str, name: str, types: str, operands: str) -> str:
        self._used.add(f"declare {result} @{name}({types}) nounwind")
        return f"call {result} @{name}({operands})"

    # What a method returns: whether the calls stand in the place of the instruction.

    def _pointer(self, line: str, found: re.Match[str]) -> bool:
        base = found[2] or found[3]
        if base is None or self._needs_no_check(base):
            self._local.add(found[1])
        return False

    def _load(self, line: str, found: re.Match[str]) -> bool:
        return self._access(line, found, "read", found[3])

    def _store(self, line: str, found: re.Match[str]) -> bool:
        return self._access(line, found, "write", type_at_start(found[3]))

    def _access(self, line: str, found: re.Match[str], verb: str, kind: str) -> bool:
        pointer, align, flag = found[4], int(found[5]), bool(found[1] or found[2])  # atomic or volatile
        if self._needs_no_check(pointer) or (_CELL.fullmatch(pointer) and not DBG.search(line)):
            return False
        size, site = size_of(kind), self._site(line)
        if flag:
            operands = f"ptr {pointer}, i64 {size}, i32 {int(verb == 'write')}, i64 {site}"
            self._out.append("  " + self._call("void", "ts_volatile", "ptr, i64, i32, i64", operands))
        elif size in (1, 2, 4, 8, 16) and align >= size:
            self._out.append("  " + self._call("void", f"ts_{verb}{size}", "ptr, i64", f"ptr {pointer}, i64 {site}"))
        else:
            self._range(verb, pointer, str(size), site)
        return False

    def _range(self, verb: str, pointer: str, size: str, site: str) -> None:
        operands = f"ptr {pointer}, i64 {size}, i64 {site}"
        self._out.append("  " + self._call("void", f"tsn_{verb}_range", "ptr, i64, i64", operands))

    def _copy(self, line: str, found: re.Match[str]) -> bool:
        for pointer, verb in ((found[2], "write"), (found[3], "read")):
            if pointer and not self._needs_no_check(pointer):
                self._range(verb, pointer, found[4], self._site(line))
        return False

    def _atomic(self, line: str, found: re.Match[str]) -> bool:
        result, what, pointer, kind, value = found.groups()
        operands = f"ptr {pointer}, {kind} {value.rstrip(',')}, i64 {self._site(line)}"
        call = self._call(kind, f"tsn_{_REAL.get(what, what)}_{kind}", f"ptr, {kind}, i64", operands)
        self._out.append(f"  {result} = {call}")
        return True

    def _exchange(self, line: str, found: re.Match[str]) -> bool:
        result, pointer, kind, compare, value = found.groups()
        self._exchanges += 1
        n = self._exchanges
        operands = f"ptr {pointer}, {kind} {compare}, {kind} {value.rstrip(',')}, i64 {self._site(line)}"
        call = self._call(kind, f"tsn_cas_{kind}", f"ptr, {kind}, {kind}, i64", operands)
        self._out.append(f"  %tsn.old.{n} = {call}")
        self._out.append(f"  %tsn.same.{n} = icmp eq {kind} %tsn.old.{n}, {compare}")
        self._out.append(f"  %tsn.part.{n} = insertvalue {{ {kind}, i1 }} undef, {kind} %tsn.old.{n}, 0")
        self._out.append(f"  {result} = insertvalue {{ {kind}, i1 }} %tsn.part.{n}, i1 %tsn.same.{n}, 1")
        return True


_INSTRUCTIONS = (
    (_LOCAL, _Instrumented._pointer),
    (_LOAD, _Instrumented._load),
    (_STORE, _Instrumented._store),
    (_RMW, _Instrumented._atomic),
    (_CAS, _Instrumented._exchange),
    (_COPY, _Instrumented._copy),
)
