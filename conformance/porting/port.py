"""`port`: begin a variant's port from one backend's language to another's, and say what is left to write.

`write` makes a file for the target from a ladder of the source: its docstring, signatures and launches, and a body that
raises NotImplementedError and names the variant. `check` on that file says so (`UNPORTED`), and `advice` what comes
next. conformance/porting/trace.py runs source and port side by side.

`backends/<name>/runtime/porting.py` makes a backend one that takes part: backends/protocol.py, `Porting`;
backends/porting.py has the types.
"""

import ast
import builtins
import copy
import functools
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from touchstone.backends.porting import Kernel, Launch
from touchstone.conformance.discovery import registry, selection
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.judging.judgement import FAILED, UNPORTED
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.reporting.console import bullet_list
from touchstone.conformance.reporting.report import Report
from touchstone.conformance.spec.words import did_you_mean, not_one_of

REQUIRED = ("index order", "masks", "barriers", "accumulator type", "literals", "launch order", "shared memory")
DEPTH = 3  # helpers of a launcher that are looked into, one calling the next
_MARK = re.compile(r"^ +# (port \S+ --from .*)$", re.MULTILINE)
LINE = 120
WIDTH = LINE - 2


@dataclass
class Variant:
    """A variant of the source as text."""

    name: str
    file: Path
    node: ast.FunctionDef
    launches: list[tuple[Launch, ast.Call, Path]] = field(default_factory=list)  # with the file of each
    kernels: list[Kernel] = field(default_factory=list)

    @property
    def place(self) -> str:
        return f"{shown(self.file)}, line {self.node.lineno}"


@dataclass
class Port:
    """What is to be ported, and where to."""

    op: str
    source: str
    target: str
    variants: list[Variant]
    path: Path
    given: str  # the path as it was typed
    names: dict[str, str]  # of a variant in the source -> in the target
    kernel: str | None = None  # the user's "FILE.py:FUNCTION" that is ported in place of a variant

    def command(self, variant: str) -> str:
        what = f"--variant {variant}" if self.kernel is None else f"--kernel {self.kernel}"
        renamed = f" --as {self.names[variant]}" if self.names[variant] != variant else ""
        return f"port {self.op} --from {self.source} --to {self.target} {what}{renamed}"


def plan(
    op: str,
    source: str,
    target: str,
    variant: str | None,
    output: str | None,
    name: str | None,
    kernel: str | None = None,
) -> Port:
    """Check what was asked for. Raises UsageError naming the argument."""
    if op not in registry.ops():
        raise UsageError(f"op: {not_one_of(op, registry.ops())}")
    able = [backend for backend in registry.backends() if _able(backend)]
    for option, backend in (("--from", source), ("--to", target)):
        if backend not in registry.backends():
            raise UsageError(f"{option}: {not_one_of(backend, able)}")
        if backend not in able:
            raise UsageError(
                f"{option}: {backend!r} has no backends/{backend}/runtime/porting.py; ports are between "
                f"{', '.join(able)}"
            )
    if source == target:
        raise UsageError(f"--to: {target!r} is what --from is; expected another of {', '.join(able)}")
    if kernel is not None:
        if variant is not None:
            raise UsageError("--variant and --kernel: give one of the two")
        variants = [_users(kernel, source, op)]
    else:
        variants = _variants(source, op, _chosen(source, op, variant))
    if name is not None and len(variants) != 1:
        raise UsageError(f"--as: names one variant, but {len(variants)} are ported; choose one by --variant")
    if name is not None and (not name.isidentifier() or name.startswith("_")):
        raise UsageError(f"--as: expected a function's name that does not start with _, got {name!r}")
    package = registry.ROOT / "backends" / target / op / "__init__.py"
    given = output or f"backends/{target}/{op}{'/__init__' if package.is_file() else ''}.py"
    path = Path(given) if output else registry.ROOT / given
    if path.suffix != ".py":
        raise UsageError(f"-o: expected a file name ending in .py, got {given!r}")
    if not path.parent.is_dir():
        raise UsageError(f"-o: there is no folder {path.parent}")
    names = {each.name: name or each.name for each in variants}
    return Port(op, source, target, variants, path, given, names, kernel)


def _chosen(source: str, op: str, variant: str | None) -> list[str]:
    """The variants of a ladder that are ported."""
    ladder = registry.ladder(source, op)
    if not ladder:
        have = ", ".join(registry.kernel_ops(source)) or "none"
        raise UsageError(f"--from: {source} has no kernels for {op}; it has {have}")
    chosen = [part.strip() for part in variant.split(",")] if variant is not None else ladder
    for wanted in chosen:
        if wanted not in ladder:
            raise UsageError(
                f"--variant: {wanted!r} is no variant of {op} in {source}; there are {', '.join(ladder)}"
                f"{did_you_mean(wanted, ladder)}"
            )
    return chosen


def _users(kernel: str, source: str, op: str) -> Variant:
    """A user's function as a variant of the source."""
    path, name = selection.kernel_of(kernel)
    try:
        functions = _functions(path)
    except SyntaxError as error:
        raise UsageError(f"--kernel: {path} is no Python: {error}") from None
    if name not in functions:
        known = [each for each in functions if not each.startswith("_")]
        raise UsageError(
            f"--kernel: {path} defines no function {name!r}; it has {', '.join(known) or 'none'}"
            f"{did_you_mean(name, known)}"
        )
    made = Variant(name.rpartition(".")[2], path, functions[name])
    _find_launches(made, source, [path])
    if not made.launches:
        raise UsageError(f"--kernel: {name} of {path} launches no kernel of {source} that can be read off its text")
    return made


def _able(backend: str) -> bool:
    return registry.offers(backend, "porting")


def language(backend: str) -> ModuleType:
    """The `porting` module of a backend."""
    return registry.backend_part(backend, "porting")


def shown(path: Path) -> str:
    """A path as messages have it: within the clone relative to it."""
    inside = registry.ROOT in path.resolve().parents
    return str(path.resolve().relative_to(registry.ROOT)) if inside else str(path)


def _files(backend: str, op: str) -> list[Path]:
    folder = registry.ROOT / "backends" / backend
    module = folder / f"{op}.py"
    return [module] if module.is_file() else sorted((folder / op).glob("*.py"))


@functools.cache
def _source_functions(file: Path) -> dict[str, ast.FunctionDef]:
    return _functions(file)


def _functions(file: Path) -> dict[str, ast.FunctionDef]:
    """The functions of a file by name, and the methods of its classes as "Class.method"."""
    found = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}": each for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def _variants(backend: str, op: str, names: Sequence[str]) -> list[Variant]:
    found = {}
    for file in _files(backend, op):
        for name, node in _source_functions(file).items():
            if name in names:
                found[name] = Variant(name, file, node)
    for variant in found.values():
        _find_launches(variant, backend, _files(backend, op))
    return [found[name] for name in names if name in found]


def _find_launches(variant: Variant, backend: str, files: Sequence[Path]) -> None:
    """Read a variant's launches off its text, and where their kernels stand: there, or in one of `files`."""
    made = language(backend)
    variant.launches = list(_launches(made, backend, variant.file, variant.node, {}, DEPTH))
    every = list(dict.fromkeys([variant.file, *(file for *_, file in variant.launches), *files]))
    names = dict.fromkeys(launch.kernel for launch, *_ in variant.launches)
    variant.kernels = [kernel for name in names if (kernel := made.find_kernel(every, name)) is not None]


def _launches(
    made: ModuleType, backend: str, file: Path, node: ast.FunctionDef, given: dict[str, str], depth: int
) -> Iterator[tuple[Launch, ast.Call, Path]]:
    """The launches of a launcher and of the helpers it calls; `given` are names of kernels that a helper's parameters
    stand for."""
    here, imported = _source_functions(file), _imported(backend, file)
    for call in [child for child in ast.walk(node) if isinstance(child, ast.Call)]:
        launch = made.launch_of(call)
        if launch is not None:
            yield launch._replace(kernel=given.get(launch.kernel) or launch.kernel), call, file
        elif (called := _called(call)) and depth and called != node.name:
            where = file if called in here else imported.get(called.partition(".")[0])
            helper = _source_functions(where).get(called) if where is not None else None
            if where is not None and helper is not None:
                parameters = [argument.arg for argument in helper.args.args]["." in called :]  # but self, or ctx
                values = {p: _passed(a, given) for p, a in zip(parameters, call.args, strict=False)}
                yield from _launches(made, backend, where, helper, values, depth - 1)


def _called(call: ast.Call) -> str | None:
    """The function that a call names, or the method of a class; of an autograd function the one that runs forward."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{'forward' if function.attr == 'apply' else function.attr}"
    return None


def _passed(argument: ast.expr, given: dict[str, str]) -> str:
    """The kernel that an argument of a helper may name: a function, its name as a string, or a parameter that is
    `given`."""
    if isinstance(argument, ast.Constant):
        return str(argument.value)
    return given.get(argument.id, argument.id) if isinstance(argument, ast.Name) else ""


@functools.cache
def _imported(backend: str, file: Path) -> dict[str, Path]:
    """The files of the backend, or beside the file, that a file's names are imported from."""
    found: dict[str, Path] = {}
    for node in ast.parse(file.read_text()).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        ours = (node.module or "").startswith(f"touchstone.backends.{backend}.")
        folder = registry.IMPORT_PATH if ours else [file.parent, *file.resolve().parents][max(0, node.level - 1)]
        where = folder.joinpath(*(node.module or "").split(".")).with_suffix(".py")
        if where.is_file():
            found |= {alias.asname or alias.name: where for alias in node.names}
    return found


def texts(port: Port) -> dict[Path, str]:
    """The target's file, and what stands beside it, as `write` would write them."""
    made, from_ = language(port.target), language(port.source)
    stems = [_stem(from_, launch.kernel, port, variant) for variant in port.variants for launch, *_ in variant.launches]
    return {port.path: text(port), **made.beside(port.path, port.op, list(dict.fromkeys(stems)))}


def write(port: Port) -> list[Path]:
    """Write the target's file, and what stands beside it; the paths. Raises UsageError where one exists already."""
    written = texts(port)
    for path in written:
        if path.exists():
            raise UsageError(f"-o: {shown(path)} exists; name another file, or compare it with its source by --trace")
    for path, content in written.items():
        with path.open("x") as file:
            file.write(content)
    return list(written)


def _stem(from_: ModuleType, kernel: str, port: Port, variant: Variant) -> str:
    found = from_.stem(kernel, port.op)
    return port.names[variant.name] if found == variant.name else found


def text(port: Port) -> str:
    """The target's file of launchers: it imports, and every variant raises NotImplementedError."""
    parts = [f'"""{_docstring(port)}\n"""\n\n{language(port.target).imports(port.path)}']
    parts += [_variant_text(port, variant) for variant in port.variants]
    return "\n\n".join(parts)


def _docstring(port: Port) -> str:
    """The ladder's, with the lines of the chosen variants; of a user's function that of its own file."""
    if port.kernel is not None:
        (variant,) = port.variants
        about = (ast.get_docstring(variant.node) or "as its source has it").splitlines()[0]
        head = ast.get_docstring(ast.parse(variant.file.read_text())) or f"{port.op} in {port.target}"
        return f"{head.splitlines()[0]}\n\n{port.names[variant.name]}: {about}"
    folder = registry.ROOT / "backends" / port.source
    top = folder / f"{port.op}.py"
    written = (
        ast.get_docstring(ast.parse((top if top.is_file() else folder / port.op / "__init__.py").read_text())) or ""
    )
    others = [name for name in registry.ladder(port.source, port.op) if name not in port.names]
    kept = []
    for line in written.splitlines():
        name = re.match(r"[-*\s]*`{0,2}(\w+)`{0,2}: ", line)
        if name is None or name[1] not in others:
            new = port.names.get(name[1]) if name else None
            kept.append(line.replace(name[1], new, 1) if name and new else line)
    return "\n".join(kept)


def _variant_text(port: Port, variant: Variant) -> str:
    made, from_ = language(port.target), language(port.source)
    node, name = variant.node, port.names[variant.name]
    lines = variant.file.read_text().splitlines()
    head = "\n".join(lines[node.lineno - 1 : node.body[0].lineno - 1]).replace(
        f"def {variant.name}(", f"def {name}(", 1
    )
    documented = ast.get_docstring(node) is not None
    first = node.body[0]
    docstring = lines[first.lineno - 1 : first.end_lineno] if documented else []
    if port.kernel is not None:
        head, docstring = _plain_head(node, name), _indented(docstring, first.col_offset)
    body = node.body[1:] if documented else node.body
    comments = [port.command(variant.name)]
    comments += [f"Kernel: {shown(k.file)}, lines {k.first} to {k.last}: {k.signature}" for k in variant.kernels]
    begun = dict.fromkeys(_stem(from_, launch.kernel, port, variant) for launch, *_ in variant.launches)
    if begun:
        comments.append(f"In {port.target}:")
        comments += [f"    {line}" for stem in begun for line in made.declaration(stem, port.op).splitlines()]
    comments.append(f"Launcher: {variant.place}. With its launches in {port.target}:")
    comments += [f"    {line}" for line in _launcher(port, variant, body, lines)]
    wrapped = [part for comment in comments for part in _wrapped(comment)]
    reason = f"{name}{UNPORTED}its source is {variant.name} of {shown(variant.file)}, line {node.lineno}"
    refusal = f'    raise NotImplementedError("{reason}")'
    if len(refusal) > LINE:
        refusal = f'    raise NotImplementedError(\n        "{reason}"\n    )'
    return "\n".join([head, *docstring, *(f"    # {line}".rstrip() for line in wrapped), refusal, ""])


def _plain_head(node: ast.FunctionDef, name: str) -> str:
    """`def name(...):` with the parameters of a user's function, less what only its own file can evaluate."""
    args = copy.deepcopy(node.args)
    for each in [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]:
        each.annotation = each.annotation if _stands_alone(each.annotation) else None
    unknown = ast.Constant(None)
    args.defaults = [value if _stands_alone(value) else unknown for value in args.defaults]
    args.kw_defaults = [value if _stands_alone(value) else unknown for value in args.kw_defaults]
    returned = f" -> {ast.unparse(node.returns)}" if node.returns and _stands_alone(node.returns) else ""
    return f"def {name}({ast.unparse(args)}){returned}:"


def _stands_alone(expression: ast.expr | None) -> bool:
    """Whether an expression can be evaluated in a file that imports torch alone."""
    names = [node.id for node in ast.walk(expression) if isinstance(node, ast.Name)] if expression is not None else []
    return all(name == "torch" or hasattr(builtins, name) for name in names)


def _indented(lines: Sequence[str], column: int) -> list[str]:
    """Lines that stand at `column`, or deeper, as those of a function's body."""
    return [f"    {line[column:]}".rstrip() if not line[:column].strip() else line for line in lines]


def _launcher(port: Port, variant: Variant, body: Sequence[ast.stmt], lines: list[str]) -> list[str]:
    """The statements of the source's launcher, launches in the target's language; then those of its helpers."""
    if not body:
        return []
    found = []
    own = {call.lineno: (launch, call) for launch, call, file in variant.launches if _within(call, variant, file)}
    line, end = body[0].lineno, body[-1].end_lineno or body[-1].lineno
    indent = body[0].col_offset
    while line <= end:
        launch, call = own.get(line, (None, None))
        if launch is not None and call is not None and not lines[line - 1][: call.col_offset].strip():
            space = " " * (call.col_offset - indent)
            found += [space + part for part in _launch_lines(port, variant, launch)]
            line = (call.end_lineno or line) + 1
        else:
            found.append(lines[line - 1][indent:])
            line += 1
    for launch, call, file in variant.launches:
        if not _within(call, variant, file):
            found += ["", f"{shown(file)}, line {call.lineno}, which it calls:", *_launch_lines(port, variant, launch)]
    return found


def _within(call: ast.Call, variant: Variant, file: Path) -> bool:
    return file == variant.file and variant.node.lineno <= call.lineno <= (variant.node.end_lineno or 0)


def _launch_lines(port: Port, variant: Variant, launch: Launch) -> list[str]:
    """A launch in the target's language, and what of the source's has no place in it."""
    stem = _stem(language(port.source), launch.kernel, port, variant)
    made = language(port.target).launch_text(launch._replace(kernel=stem), port.op)
    left = [f"{name}={value}" for name, value in (*launch.constants, *launch.rest) if f"{name}={value}" not in made]
    left = [item for item in left if item.replace("**=", "**") not in made]
    return [made, *([f"    not translated: {', '.join(left)}"] if left else [])]


def _wrapped(comment: str) -> list[str]:
    if len(comment) <= WIDTH - 6:
        return [comment]
    space = " " * (len(comment) - len(comment.lstrip()) + 4)
    return textwrap.wrap(comment, WIDTH - 6, subsequent_indent=space, break_long_words=False, drop_whitespace=True)


def checklist(port: Port) -> str:
    """What differs between the two languages, topic by topic, with the lines of the source's kernels it concerns."""
    sides = {name: (language(name).TOPICS, registry.backend(name).NOTES) for name in (port.source, port.target)}
    topics = list(dict.fromkeys([*REQUIRED, *(topic for found, _ in sides.values() for topic in found)]))
    kernels = list(dict.fromkeys(kernel for variant in port.variants for kernel in variant.kernels))
    width = max(map(len, sides)) + 1
    parts = []
    for topic in topics:
        notes = {name: _notes(found, written, topic) for name, (found, written) in sides.items()}
        if not any(notes.values()):
            continue
        asked = sides[port.source][0].get(topic)
        where = _lines_of(kernels, asked.pattern) if asked is not None and asked.pattern else ""
        lines = [f"[ ] {topic}{f': {where}' if where else ''}"]
        for name, said in notes.items():
            for note in said or ["nothing of its own"]:
                label = f"{name}:".ljust(width + 1)
                lines += textwrap.wrap(
                    f"    {label}{note}", WIDTH, subsequent_indent=" " * (len(label) + 4), break_long_words=False
                )
        parts.append("\n".join(lines))
    return "\n".join(parts)


def _notes(topics: dict, notes: Sequence[str], topic: str) -> list[str]:
    """The notes of a topic; those of a backend without it: none."""
    return [note for note in notes if topic in topics and note.startswith(topics[topic].notes)]


def _lines_of(kernels: Sequence[Kernel], pattern: str) -> str:
    """The lines of kernels in which a pattern is found: "softmax.py lines 21, 25"."""
    found: dict[str, list[int]] = {}
    for kernel in kernels:
        lines = kernel.file.read_text().splitlines()
        for number in range(kernel.first + 1, kernel.last + 1):
            if re.search(pattern, lines[number - 1]):
                found.setdefault(shown(kernel.file), []).append(number)
    parts = []
    for file, numbers in found.items():
        some = [str(number) for number in dict.fromkeys(numbers)]
        told = ", ".join(some[:12]) + (", ..." if len(some) > 12 else "")
        parts.append(f"{file} line{'s' if len(some) > 1 else ''} {told}")
    return "; ".join(parts)


def summary(port: Port, written: Sequence[Path]) -> str:
    """What to print after `write`: files, launches, the checklist and the next step.

    Where nothing was written, what would be instead of the next step.
    """
    lines = [f"wrote {', '.join(port.given if path == port.path else shown(path) for path in written)}", ""]
    if not written:
        lines = ["nothing is written: -o FILE.py says where to", ""]
    for variant in port.variants:
        lines.append(f"{variant.name}, {variant.place}:")
        for launch, call, file in variant.launches:
            stem = _stem(language(port.source), launch.kernel, port, variant)
            width = max(len(port.source), len(port.target)) + 1
            lines += [
                f"  {port.source + ':':<{width}} {_one_line(ast.get_source_segment(file.read_text(), call) or '')}"
            ]
            lines += [
                (
                    f"  {port.target + ':':<{width}} "
                    f"{language(port.target).launch_text(launch._replace(kernel=stem), port.op)}"
                )
            ]
        if not variant.launches:
            lines.append("  launches nothing that can be read off its text")
    lines += ["", f"What differs between {port.source} and {port.target}:", "", checklist(port), ""]
    if not written:
        return "\n".join([*lines, *(f"{path.name} would be:\n\n{content}" for path, content in texts(port).items())])
    first = port.names[port.variants[0].name]
    lines += ["Write the kernel and its launcher in place of the raise, and ask what is missing:"]
    lines += [bullet_list([f"python -m touchstone check {port.op} --kernel {port.given}:{first} --device cpu --quick"])]
    return "\n".join(lines)


def _one_line(call: str) -> str:
    """A call that may stand on several lines, on one."""
    return re.sub(r",? \)$", ")", re.sub(r"\( ", "(", " ".join(call.split())))


def missing(path: Path) -> dict[str, str]:
    """The variants of a file that are not ported yet, in its order, by what they raise."""
    found = {}
    for name, node in _functions(path).items():
        for child in ast.walk(node):
            if isinstance(child, ast.Constant) and isinstance(child.value, str) and f"{name}{UNPORTED}" in child.value:
                found[name] = child.value
    return found


def advice(path: Path, name: str, report: Report) -> list[str]:
    """What comes next after `check` of a function of a file that `port` began; nothing for any other file."""
    command = next((mark for mark in _MARK.findall(_source_of(path, name)) if mark.split()[1] == report.op), None)
    left = missing(path)
    if command is None and not left:
        return []
    if report.unported:
        return [f"also not ported yet: {', '.join(n for n in left if n != name)}"] if len(left) > 1 else []
    lines = []
    if command is not None:
        cases = [o.trial for o in report.outcomes if o.status == FAILED and o.kind is Kind.CASE]
        case = f" --case {cases[0]}" if cases else ""
        why = "compare it with its source, races included" if report.passed else "see where it leaves its source"
        lines.append(f"next: {why}: python -m touchstone {command} -o {path} --trace{case}")
    if report.passed and left:
        lines.append(f"then: {next(iter(left.values()))}")
    return lines


def _source_of(path: Path, name: str) -> str:
    """The text of one function of a file."""
    node = _functions(path).get(name)
    lines = path.read_text().splitlines()
    return "\n".join(lines[node.lineno - 1 : node.end_lineno]) if node is not None else ""


def record(port: Port, written: Sequence[Path]) -> dict:
    """What `write` did, as JSON has it."""
    return {
        "op": port.op,
        "from": port.source,
        "to": port.target,
        "files": [str(path) for path in written],
        "variants": [
            {
                "name": port.names[variant.name],
                "source": variant.name,
                "file": shown(variant.file),
                "line": variant.node.lineno,
                "launches": [launch._asdict() for launch, *_ in variant.launches],
            }
            for variant in port.variants
        ],
        "checklist": checklist(port).splitlines(),
    }
