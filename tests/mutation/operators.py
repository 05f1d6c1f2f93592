"""Small changes to Python source, each of which a test should notice: a `Mutant` is one of them.

A change replaces one piece of the text, so that the rest of the file stays as it is. Left alone are what decides
nothing at run time (annotations, names of types, docstrings, `__all__`, `if TYPE_CHECKING`), what is for the reader of
a message (strings, `help` and `metavar` of a command's options), what says what is known anyway (`assert`,
`assert_never`, `zip(strict=True)`), how many answers stay computed (`maxsize` of `lru_cache`), which decides nothing
but time and memory, and device code (`@triton.jit`), which Python does not run. The arguments of a function that means
the same in either order (`EITHER_WAY`) are not exchanged: nobody could tell.
"""

import ast
import copy
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

COMPARED: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "|"),
}
EITHER_WAY = {"torch.equal", "np.array_equal", "contextlib.suppress"}
UNTOLD = {  # arguments, by function
    *(("zip", "strict"), ("lru_cache", "maxsize"), ("add_argument", "help"), ("add_argument", "metavar"))
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
UNCHANGED = (ast.Import, ast.ImportFrom, ast.Assert, ast.Global, ast.Nonlocal, ast.Pass)
CLOCK = "time.monotonic()"  # which never reads the very instant: whether that counts nobody could tell
GENERIC = {
    *("Callable", "Iterable", "Mapping", "Sequence", "dict", "frozenset", "list", "np.ndarray", "set", "tuple", "type")
}
NOT_RUN = ("annotation", "returns", "targets", "target", "type_params")  # fields of statements


@dataclass(frozen=True)
class Mutant:
    """One change to a file: the text from `start` to `end` (offsets in characters) becomes `after`."""

    path: str
    line: int
    scope: str  # the function or class it is in: "Watch.broken"; "" at the top of a module
    statement: int  # the first line of the statement it is in
    operator: str
    change: str  # in one line
    code: str  # the line of the file
    before: str = field(repr=False)
    after: str = field(repr=False)
    start: int = field(repr=False)
    end: int = field(repr=False)

    @property
    def id(self) -> str:
        digest = zlib.crc32(f"{self.start} {self.after}".encode())
        return f"{self.path}:{self.line}: {self.operator}: {self.change} ({digest:08x})"

    def applied(self, text: str) -> str:
        """The file's text with this change."""
        if text[self.start : self.end] != self.before:
            raise ValueError(f"{self.path}: expected {self.before!r} in line {self.line}; the file has changed")
        return text[: self.start] + self.after + text[self.end :]


def mutants(path: str, text: str) -> list[Mutant]:
    """All changes to a file that the operators know, in the order of the text."""
    found = {(one.start, one.end, one.after): one for one in _Finder(path, text).found}
    return [found[key] for key in sorted(found)]


def sample(every: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """`count` of them: statements drawn by chance, of each one of its changes, so that a long table does not count for
    more than a short condition."""
    draw = random.Random(seed)
    by_statement: dict[tuple[str, int], list[Mutant]] = {}
    for one in every:
        by_statement.setdefault((one.path, one.statement), []).append(one)
    chosen: list[Mutant] = []
    while len(chosen) < min(count, len(every)):
        places = [by_statement[key] for key in sorted(by_statement) if by_statement[key]]
        for changes in draw.sample(places, min(count - len(chosen), len(places))):
            chosen.append(changes.pop(draw.randrange(len(changes))))
    return chosen


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else f"{line[:60]} ... {line[-25:]}"


class _Finder:
    """Walks through a file once and gathers its mutants."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.found: list[Mutant] = []
        self._scope: list[str] = []
        self._statement_line = 0
        lines = text.splitlines(keepends=True)
        self._lines = [line.encode() for line in lines]
        self._offsets = [0]
        for line in lines:
            self._offsets.append(self._offsets[-1] + len(line))
        self._body(ast.parse(text).body)

    def _span(self, node: Any) -> tuple[int, int]:
        """From where to where a node goes, in characters; `ast` counts the bytes of a line."""
        places = ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        start, end = (self._offsets[line - 1] + len(self._lines[line - 1][:at].decode()) for line, at in places)
        return start, end

    def _source(self, node: ast.AST) -> str:
        return self.text[slice(*self._span(node))]

    def _add(self, operator: str, start: int, end: int, after: str, change: str = "") -> None:
        before = self.text[start:end]
        if before == after:
            return
        line = self.text.count("\n", 0, start) + 1
        change = change or f"{_short(before)} -> {_short(after)}"
        scope = ".".join(self._scope)
        code = self._lines[line - 1].decode().strip()
        about = (self.path, line, scope, self._statement_line, operator, change, code)
        self.found.append(Mutant(*about, before, after, start, end))

    def _replace(self, operator: str, node: ast.AST, after: str, change: str = "") -> None:
        self._add(operator, *self._span(node), after, change)

    def _between(self, operator: str, left: ast.AST, right: ast.AST, token: str, others: Sequence[str]) -> None:
        """Exchange an operator between two operands, where nothing but brackets stands beside it."""
        start, end = self._span(left)[1], self._span(right)[0]
        at = self.text.find(token, start, end)
        if at >= 0 and "#" not in self.text[start:end]:
            for other in others:
                change = f"{_short(self._source(left))} {token} {_short(self._source(right))}: {token} -> {other}"
                self._add(operator, at, at + len(token), other, change)

    def _without(self, operator: str, node: ast.expr, field: str, number: int) -> None:
        """Leave out one part of a node that has several."""
        smaller = copy.copy(node)
        left_out = getattr(node, field)[number]
        for name in ("keys", "values") if isinstance(node, ast.Dict) else (field,):
            parts = getattr(node, name)
            setattr(smaller, name, parts[:number] + parts[number + 1 :])
        if isinstance(node, ast.BoolOp) and len(smaller.values) == 1:  # type: ignore[attr-defined]
            smaller = smaller.values[0]  # type: ignore[attr-defined]
        if isinstance(node, ast.Dict) and node.keys[number] is not None:
            left_out = node.keys[number]
        change = f"{_short(self._source(node))}: without {_short(ast.unparse(left_out))}"
        self._replace(operator, node, f"({ast.unparse(smaller)})", change)

    def _body(self, body: Sequence[ast.stmt]) -> None:
        for number, node in enumerate(body):
            if not _is_docstring(number, node):
                self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        outer, self._statement_line = self._statement_line, node.lineno
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            self._definition(node)
        elif not isinstance(node, UNCHANGED) and not _is_for_readers(node):
            self._removed(node)
            self._parts(node)
        self._statement_line = outer

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if _is_device_code(node):
            return
        self._scope.append(node.name)
        for decorator in node.decorator_list:
            self._expression(decorator)
        if isinstance(node, FUNCTIONS):
            for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                self._expression(default)
        self._body(node.body)
        self._scope.pop()

    def _removed(self, node: ast.stmt) -> None:
        """A statement that is left out, a value that is not returned, a `with` that is not entered."""
        if isinstance(node, ast.With):
            self._without_context(node)
            return
        called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        kept = isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        stored = kept and isinstance(target, (ast.Attribute, ast.Subscript))
        if called or stored or isinstance(node, (ast.Raise, ast.Continue, ast.Break, ast.AugAssign, ast.Delete)):
            self._replace("remove statement", node, "pass")
        elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "False":
            self._replace("return None", node.value, "None")

    def _without_context(self, node: ast.With) -> None:
        start = self._span(node)[0]
        colon = self.text.index(":", self._span(node.items[-1].optional_vars or node.items[-1].context_expr)[1])
        for number, item in enumerate(node.items):
            if item.optional_vars is None:
                rest = ", ".join(ast.unparse(each) for each in node.items[:number] + node.items[number + 1 :])
                change = f"without {_short(ast.unparse(item))}"
                self._add("remove with", start, colon, f"with {rest}" if rest else "if True", change)

    def _parts(self, node: ast.stmt) -> None:
        """The expressions of a statement, then the statements in it."""
        if isinstance(node, (ast.If, ast.While)):
            self._condition(node.test)
        if isinstance(node, ast.AugAssign):
            token, other = ARITHMETIC[type(node.op)]
            self._between("arithmetic", node.target, node.value, f"{token}=", [f"{other}="])
        for name, value in ast.iter_fields(node):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.expr) and name not in NOT_RUN:
                    self._expression(part)
                elif isinstance(part, ast.withitem):
                    self._expression(part.context_expr)
                elif isinstance(part, (ast.ExceptHandler, ast.match_case)):
                    self._body(part.body)
        for name in ("body", "orelse", "finalbody"):
            self._body(getattr(node, name, []))

    def _condition(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Constant):
            self._replace("condition", test, "True")
            self._replace("condition", test, "False")

    def _expression(self, node: ast.expr) -> None:
        if isinstance(node, ast.JoinedStr):
            return
        for change in (self._compared, self._boolean, self._arithmetic, self._constant, self._called, self._elements):
            change(node)
        if isinstance(node, ast.IfExp):
            self._condition(node.test)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._expression(child)
            elif isinstance(child, ast.keyword) and child.arg != "strict" and not _is_untold(node, child):
                self._expression(child.value)
            elif isinstance(child, ast.arguments):
                for default in [*child.defaults, *filter(None, child.kw_defaults)]:
                    self._expression(default)
            elif isinstance(child, ast.comprehension):
                self._expression(child.iter)
                for test in child.ifs:
                    self._condition(test)
                    self._expression(test)

    def _compared(self, node: ast.expr) -> None:
        if isinstance(node, ast.Compare):
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                token, others = COMPARED[type(operator)]
                if CLOCK in map(ast.unparse, (left, right)) and len(others) == 2:
                    others = others[1:]
                self._between("comparison", left, right, token, others)

    def _boolean(self, node: ast.expr) -> None:
        if isinstance(node, ast.BoolOp):
            token, other = ("and", ast.Or()) if isinstance(node.op, ast.And) else ("or", ast.And())
            exchanged = ast.unparse(ast.BoolOp(other, node.values))
            change = f"{_short(self._source(node))}: {token} -> {'or' if token == 'and' else 'and'}"
            self._replace("boolean", node, f"({exchanged})", change)
            for number in range(len(node.values)):
                self._without("drop operand", node, "values", number)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._replace("boolean", node, f"bool({self._source(node.operand)})")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            start = self._span(node)[0]
            self._add("arithmetic", start, start + 1, "+", f"{_short(self._source(node))}: - -> +")

    def _arithmetic(self, node: ast.expr) -> None:
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not any(map(_is_text, ast.walk(node))):
            token, other = ARITHMETIC[type(node.op)]
            self._between("arithmetic", node.left, node.right, token, [other])

    def _constant(self, node: ast.expr) -> None:
        value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        if isinstance(value, bool):
            self._replace("constant", node, str(not value))
        elif isinstance(value, int):
            for other in (value + 1, value - 1) if value > 0 else (1,):
                self._replace("constant", node, str(other))
        elif isinstance(value, float):
            self._replace("constant", node, repr(value * 2 if value else 1.0))

    def _called(self, node: ast.expr) -> None:
        if not isinstance(node, ast.Call):
            return
        for number, keyword in enumerate(node.keywords):
            if keyword.arg is not None and not _is_untold(node, keyword):
                self._without("drop argument", node, "keywords", number)
        ordered = len(node.args) >= 2 and not _is_either_way(node)
        if ordered and not any(isinstance(each, ast.Starred) for each in node.args[:2]):
            (start, middle), (other, end) = map(self._span, node.args[:2])
            swapped = self.text[other:end] + self.text[middle:other] + self.text[start:middle]
            self._add("swap arguments", start, end, swapped)

    def _elements(self, node: ast.expr) -> None:
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)) and len(node.elts) > 1:
            stored = isinstance(getattr(node, "ctx", None), ast.Store)
            if not stored and not any(isinstance(each, ast.Slice) for each in node.elts):
                for number in range(len(node.elts)):
                    self._without("drop element", node, "elts", number)
        elif isinstance(node, ast.Dict) and len(node.keys) > 1:
            for number in range(len(node.keys)):
                self._without("drop element", node, "values", number)
        elif isinstance(node, ast.Slice):
            for bound in filter(None, (node.lower, node.upper)):
                self._replace("drop bound", bound, "", f"[{_short(self._source(node))}]: without {ast.unparse(bound)}")


def _is_docstring(number: int, node: ast.stmt) -> bool:
    return number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_for_readers(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func) == "assert_never"
    return isinstance(node, ast.Assign) and (ast.unparse(node.targets[0]) == "__all__" or _is_type(node.value))


def _is_type(node: ast.expr) -> bool:
    """Whether an expression is a type with parameters, `dict[str, int]`, or a union with one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _is_type(node.left) or _is_type(node.right)
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) in GENERIC


def _is_either_way(call: ast.Call) -> bool:
    """Whether a function means the same with its arguments exchanged: the larger of a whole number and another is."""
    function = ast.unparse(call.func)
    whole = any(isinstance(getattr(arg, "value", None), int) or _is_whole(arg) for arg in call.args)
    larger = function in ("min", "max") and len(call.args) == 2 and not call.keywords and whole
    return function in EITHER_WAY or larger


def _is_whole(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("len", "int")


def _is_untold(call: ast.expr, keyword: ast.keyword) -> bool:
    return isinstance(call, ast.Call) and (ast.unparse(call.func).split(".")[-1], keyword.arg) in UNTOLD


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def _is_device_code(node: ast.stmt) -> bool:
    decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
    return any(text.split("(")[0].split(".")[-1] == "jit" for text in decorators)


def statements(text: str) -> Iterator[tuple[int, int | None, int]]:
    """Of each statement in a function: the line and column before which another can stand, and the line that its
    mutants name. The column of an `elif` is None."""
    lines = text.splitlines()

    def within(body: Sequence[ast.stmt], inside: bool) -> Iterator[tuple[int, int | None, int]]:
        for number, node in enumerate(body):
            if _is_docstring(number, node) or _is_device_code(node):
                continue
            if inside and not isinstance(node, (ast.Global, ast.Nonlocal)):
                first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
                chained = lines[node.lineno - 1].lstrip().startswith("elif")
                yield first, None if chained else node.col_offset, node.lineno
            deeper = not isinstance(node, ast.ClassDef) and (inside or isinstance(node, FUNCTIONS))
            for name in ("body", "orelse", "finalbody"):
                yield from within(getattr(node, name, []), deeper)
            for part in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
                yield from within(part.body, deeper)

    yield from within(ast.parse(text).body, False)
