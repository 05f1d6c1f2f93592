"""A failing trial made smaller while the same check still fails, and a stand-alone script that shows the bug.

Sizes shrink first, then layouts become contiguous, parameters their first values, the dtype float32 and the value
family the simplest; at last the values themselves. Every attempt is judged as the trial was, in a child where one can
be forked.
"""

import base64
import itertools
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.findings import replay
from touchstone.conformance.judging import diagnosis
from touchstone.conformance.judging.judgement import Finding
from touchstone.conformance.judging.trials import Trial
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.cases import variants
from touchstone.conformance.spec.contract import Case, Contract

LITERAL = 64  # elements of an operand that a script spells out
PACKED = 1 << 18  # bytes of an operand that a script carries compressed where no formula gives a failing one
QUIET_SECONDS = 5.0  # between lines of progress
SCRIPT_SECONDS = 120.0
LINES = 30  # of a script
NAMED = (
    "values",
    "raised",
    "shape",
    "dtype",
    "returns",
    "device",
    "strides",
)  # checks whose messages begin with a name


@dataclass(frozen=True)
class SubjectWithContract(Subject):
    """A subject judged against a contract of its own: one whose values were replaced."""

    given: Contract | None = None

    @property
    def contract(self) -> Contract:
        return self.given if self.given is not None else registry.contract(self.op)


@dataclass
class Minimal:
    """The smallest failing trial found. `made` says how operands are made, as an expression of torch; others are
    drawn."""

    subject: SubjectWithContract
    trial: Trial
    finding: Finding
    made: dict[str, str] = field(default_factory=dict)
    tried: int = 0


def minimise(
    subject: Subject,
    trial: Trial,
    finding: Finding,
    *,
    seconds: float = 60.0,
    tell: Callable[[str], None] | None = None,
) -> Minimal:
    """Shrink `trial` for about `seconds` while it gives a failure like `finding`: the same check, the same error
    raised.

    `tell` is given lines of progress (None: they go to stderr).
    """
    fields = {name: getattr(subject, name) for name in subject.__dataclass_fields__}
    search = _Search(
        finding, time.monotonic() + seconds, tell or (lambda line: print(line, file=sys.stderr, flush=True))
    )
    least = Minimal(SubjectWithContract(**fields), trial, finding)
    if trial.invalid is None:
        _shrink_trial(least, search)
        if _is_case(least.trial):
            _shrink_values(least, search)
    least.tried = search.tried
    return least


def _is_case(trial: Trial) -> bool:
    return trial.prop is None and trial.invalid is None and not trial.calls and not trial.stream


class _Search:
    """Judges attempts until time is up, and says how it goes."""

    def __init__(self, finding: Finding, end: float, tell: Callable[[str], None]):
        self.check, self.about = finding.check, _subject_of(finding)
        self.end, self.tell, self.tried, self.told = end, tell, 0, time.monotonic()

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end

    def fails(self, subject: Subject, trial: Trial) -> Finding | None:
        """The failure like the first one that `trial` gives, or None."""
        self.tried += 1
        if time.monotonic() - self.told > QUIET_SECONDS:
            self.told = time.monotonic()
            self.tell(f"minimise: {self.tried} tried, {max(0, self.end - self.told):.0f} s left, now {trial.id}")
        try:
            subject.contract.expected(subject.contract.build(trial.case), subject.compute)
        except Exception:  # sizes that do not go together
            return None
        outcome = replay.rerun(subject, trial, self.check)
        found = [f for f in outcome.findings if f.check == self.check and self._alike(f)]
        return found[0] if found else None

    def _alike(self, finding: Finding) -> bool:
        return self.check not in NAMED or _subject_of(finding) == self.about


def _subject_of(finding: Finding) -> str:
    """What a finding's message begins with: the output it is about, or the type of error that was raised."""
    said = re.sub(r"^call \d+ of \d+[^:]*: ", "", finding.message)
    return said.partition(":")[0] if ":" in said else ""


def _shrink_trial(least: Minimal, search: _Search) -> None:
    seen = {least.trial.case.id}
    if not _is_case(least.trial):
        plain = Trial(least.trial.case, watched=True)
        found = search.fails(least.subject, plain)
        if found:
            least.trial, least.finding = plain, found
    moved = True
    while moved and not search.over:
        moved = False
        for case in simpler(least.subject.contract, least.trial.case):
            if search.over:
                return
            if case.id in seen or not least.subject.contract.valid(case):
                continue
            seen.add(case.id)
            trial = replace(least.trial, case=case)
            found = search.fails(least.subject, trial)
            if found:
                least.trial, least.finding, moved = trial, found, True
                break


def simpler(contract: Contract, case: Case) -> Iterator[Case]:
    """Cases one step simpler than `case`, the boldest first. Not all of them are valid."""
    for sizes in smaller(case.size):
        yield replace(case, sizes=tuple(sizes.items()))
    for name, layout in case.layouts:
        plain = contract.operands[name].layouts[0]
        if layout != plain:
            yield replace(case, layouts=tuple((n, plain if n == name else old) for n, old in case.layouts))
    for name, option in case.params:
        first = contract.params[name][0]
        if option != first:
            yield replace(case, params=tuple((n, first if n == name else old) for n, old in case.params))
    if case.dtype != "float32" and "float32" in contract.dtypes:
        yield replace(case, dtype="float32")
    families = list(contract.values)
    for family in families[: families.index(case.values)]:
        yield replace(case, values=family)


def smaller(size: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each letter smaller, down to 1, by much before by little; then two letters together, which can be coupled."""
    for name, value in size.items():
        if isinstance(value, tuple):
            for position, n in enumerate(value):
                for m in _less(n):
                    yield {**size, name: (*value[:position], m, *value[position + 1 :])}
        else:
            for m in _less(value):
                yield {**size, name: m}
    letters = [name for name, value in size.items() if isinstance(value, int) and value > 1]
    for one, other in itertools.combinations(letters, 2):
        yield {**size, one: max(1, size[one] // 2), other: max(1, size[other] // 2)}
        yield {**size, one: size[one] - 1, other: size[other] - 1}


def _less(n: int) -> Iterator[int]:
    step = n - 1
    while step >= 1:
        yield n - step
        step //= 2


def _shrink_values(least: Minimal, search: _Search) -> None:
    """Replace operands one by one by formulas; accepted where the kernel still fails and a right one does not."""
    contract, case = registry.contract(least.subject.op), least.trial.case
    inputs = contract.build(case)
    drawn = {n: inputs.exact[n] for n, operand in contract.operands.items() if not operand.derived}
    right = next(
        (
            p
            for p in registry.planted(contract.name)
            if p.is_known_good and p.backend is None and case.dtype in p.dtypes
        ),
        None,
    )
    for name, value in list(drawn.items()):
        if value is None or not value.numel():
            continue
        for code in formulas(value):
            if search.over:
                return
            attempt = {**drawn, name: evaluate(code).to(torch.float64)}
            given = replace(least.subject, given=with_values(contract, case, attempt))
            found = search.fails(given, least.trial)
            if found is None or (
                right is not None and search.fails(replace(given, fn=right.make(), own=False), least.trial)
            ):
                continue
            drawn, least.subject, least.finding = attempt, given, found
            least.made[name] = code
            break


def with_values(contract: Contract, case: Case, drawn: Mapping[str, torch.Tensor | None]) -> Contract:
    """The contract with `drawn` as the case's family; nothing has to be bit-equal, since the family no longer sees to
    it."""
    return replace(contract, values={**contract.values, case.values: lambda draw: dict(drawn)}, exact={})


def formulas(value: torch.Tensor) -> Iterator[str]:
    """Expressions of torch that give simpler values of the same shape, the simplest first."""
    shape = ", ".join(map(str, value.shape))
    whole = f"({shape})" if value.ndim != 1 else f"({shape},)"
    yield f"torch.zeros{whole}"
    yield f"torch.ones{whole}"
    few = value.numel() <= LITERAL
    integers = f"(torch.arange({value.numel()}) % 7 - 3.0).reshape{whole}"
    yield literal(evaluate(integers)) if few else integers
    seeded = f"torch.randn({whole}, generator=torch.Generator().manual_seed(0))"
    if few:
        yield literal(value.round())
        yield literal((value * 16).round() / 16)
        return
    yield seeded
    usable = value[torch.isfinite(value)]
    if usable.numel() > 1:
        yield f"{usable.std().item():.2g} * {seeded} + {usable.mean().item():.3g}"
        yield f"torch.linspace({usable.min().item():.3g}, {usable.max().item():.3g}, {value.numel()}).reshape{whole}"


def evaluate(code: str) -> torch.Tensor:
    return eval(code, {"torch": torch, "inf": math.inf, "nan": math.nan})


def literal(value: torch.Tensor) -> str:
    """The values spelled out; integers without their point."""

    def spell(part: Any) -> str:
        if isinstance(part, list):
            return f"[{', '.join(map(spell, part))}]"
        return str(int(part)) + "." if math.isfinite(part) and part == int(part) and abs(part) < 1e6 else repr(part)

    return f"torch.tensor({spell(value.to(torch.float64).tolist())})"


def script(least: Minimal, kept: Mapping[str, Any]) -> str:
    """A script of at most 30 lines that ends with an error while the bug is there; `kept` is the finding's record.

    It needs torch and the kernel's file, and for our own variants this clone. Several ways of writing it are tried, the
    plainest first; where none shows the bug outside the judge, the script has the judge repeat the trial.
    """
    written = [text for text in _scripts(least, kept) if len(text.splitlines()) <= LINES]
    for text in written[:-1]:
        if _shows(text, least.finding):
            return text
    return written[-1]


def _scripts(least: Minimal, kept: Mapping[str, Any]) -> Iterator[str]:
    writer = _Writer(least, kept)
    if _is_case(least.trial) or least.trial.invalid is not None:
        bodies = [body for body in map(writer.body, (False, True)) if body is not None]
        for setup in dict.fromkeys(map(tuple, (writer.plain_setup(), writer.prepared_setup()))):
            for body in bodies:
                text = "\n".join([*setup, *body]) + "\n"
                yield "\n".join([writer.title(), *_imports(text), text])
    yield writer.judged()


def _shows(text: str, finding: Finding) -> bool:
    """Whether a fresh process that runs the script ends with the error that the finding is about."""
    with tempfile.TemporaryDirectory(prefix="touchstone-") as folder:
        file = Path(folder, "script.py")
        file.write_text(text)
        variables = {v for b in registry.backends() for v in registry.backend(b).CPU_VARIABLES}
        environment = {k: v for k, v in os.environ.items() if k not in variables and k != "PYTHONPATH"}
        try:
            done = subprocess.run(
                [sys.executable, str(file)],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SCRIPT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return finding.check == "hang"
    if finding.check in replay.DEADLY:
        return done.returncode < 0
    expected = _subject_of(finding) if finding.check == "raised" else "AssertionError"
    return done.returncode != 0 and expected in done.stderr


class _Writer:
    """The parts of a script, as lines."""

    def __init__(self, least: Minimal, kept: Mapping[str, Any]):
        self.least, self.kept, self.subject, self.case = least, kept, least.subject, least.trial.case
        self.contract = least.subject.contract
        self.inputs = self.contract.build(self.case)
        self.finding = least.finding

    def title(self) -> str:
        kept = self.kept
        return (
            f'"""{kept["op"]}, {kept["target"]} {kept["name"]}, finding {kept["id"]} ({self.finding.check}): '
            f'fails while the bug is there."""'
        )

    def plain_setup(self) -> list[str]:
        """Imports, and the kernel; a user's Triton file in the interpreter as Triton ships it."""
        where = self.kept["source"]
        if "backend" in where or self.subject.arrays != "torch":
            return self.prepared_setup()
        variables = []
        if self.subject.device == "cpu":
            variables = [v for b in diagnosis.reached(self.subject.fn, "cpu") for v in b.CPU_VARIABLES]
        return [*(f'os.environ["{name}"] = "1"' for name in variables), *self._user_kernel()]

    def prepared_setup(self) -> list[str]:
        """Imports, and the kernel, with the backend set up as this clone does it."""
        where = self.kept["source"]
        lines = [f"sys.path.insert(0, {str(registry.IMPORT_PATH)!r})"]
        if "backend" in where:
            module = f"touchstone.backends.{where['backend']}"
            prepare = f'importlib.import_module("{module}").prepare("{self.subject.device}")'
            load = f'kernel = importlib.import_module("{module}.{self.subject.op}").{where["variant"]}'
            return [*lines, prepare, load]
        for backend in diagnosis.reached(self.subject.fn, self.subject.device):
            lines.append(f'importlib.import_module("{backend.__name__}").prepare("{self.subject.device}")')
        lines += self._user_kernel()
        if self.subject.arrays != "torch":
            wrap = (
                f'importlib.import_module("touchstone.conformance.discovery.arrays").on_tensors(kernel, '
                f'"{self.subject.arrays}")'
            )
            lines.append(f"kernel = {wrap}")
        return lines

    def _user_kernel(self) -> list[str]:
        path, function = Path(self.kept["source"]["file"]), self.kept["source"]["function"]
        root = path.parent
        while (root / "__init__.py").is_file():
            root = root.parent
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        return [f"sys.path.insert(0, {str(root)!r})", f'kernel = importlib.import_module("{name}").{function}']

    def body(self, place_all: bool) -> list[str] | None:
        """Operands, the call and the assertion; None where an operand is too large to be written down."""
        if self.least.trial.invalid is not None:
            return self._invalid()
        buffers = place_all or self.finding.check == "inputs"
        lines, names, strided = [], [], False
        for name, operand in self.contract.operands.items():
            placed, exact = self.inputs.placed[name], self.inputs.exact[name]
            if placed is None or exact is None:
                names.append("None" if operand.positional else f"{name}=None")
                continue
            code = self._operand(name, placed.view, exact, buffers)
            if code is None:
                return None
            strided |= code.startswith("strided(")
            lines.append(f"{name} = {code}")
            names.append(name if operand.positional else f"{name}={name}")
        names += [f"{name}={option!r}" for name, option in self.case.params]
        checks = self.assertion
        if checks is None:
            return None
        head = _STRIDED if strided else []
        if self.finding.check == "inputs":
            lines.append("before = [buffer.view(torch.uint8).clone() for buffer in buffers]")
        return ["", *head, *lines, f"got = kernel({', '.join(names)})", *checks]

    def _operand(self, name: str, view: torch.Tensor, exact: torch.Tensor, buffers: bool) -> str | None:
        """An expression for an operand: its values, in its layout."""
        layout = self.case.layout.get(name, "contiguous")
        if layout in layouts.FAR_LAYOUTS:
            return None
        shape = tuple(view.shape)
        narrow = exact
        for axis, stride in enumerate(view.stride()):
            if stride == 0 and shape[axis] > 1:
                narrow = narrow.narrow(axis, 0, 1)
        dtype = view.dtype
        code = self._values(name, narrow.contiguous(), exact, dtype)
        if code is None:
            return None
        device = "" if self.subject.device == "cpu" else f', "{self.subject.device}"'
        if buffers or layout != "contiguous":
            offset = view.storage_offset()
            last = sum((n - 1) * s for n, s in zip(shape, view.stride(), strict=True) if n)
            size = offset + last + 1 + layouts.GUARD_BYTES // view.element_size()
            code = f"strided({code}, {tuple(view.stride())}, {offset}, {size}{device})"
            return f"{code}.expand{shape}" if tuple(narrow.shape) != shape else code
        return f"{code}.cuda()" if device else code

    def _values(self, name: str, narrow: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> str | None:
        rounded = f".to({dtype})" if dtype is not torch.float32 else ""
        if name in self.least.made and narrow.shape == exact.shape:
            return f"{self.least.made[name]}{rounded}"
        if narrow.numel() <= LITERAL:
            code = literal(narrow)
            if not narrow.numel():
                code = f"torch.zeros({tuple(narrow.shape)})"
            return f"{code}{rounded}"
        raw = narrow.to(dtype).contiguous().view(torch.uint8).numpy().tobytes()
        if len(raw) > PACKED:
            return None
        packed = base64.b85encode(zlib.compress(raw, 9)).decode()
        load = f"bytearray(zlib.decompress(base64.b85decode({packed!r})))"
        return f"torch.frombuffer({load}, dtype={dtype}).reshape{tuple(narrow.shape)}"

    @cached_property
    def assertion(self) -> list[str] | None:
        """What must hold of `got`, and does not; None where a few lines of torch cannot say it."""
        check = self.finding.check
        if check in ("raised", *replay.DEADLY):
            return []
        if check == "inputs":
            return [
                "after = [buffer.view(torch.uint8) for buffer in buffers]",
                "assert all(map(torch.equal, before, after))",
            ]
        if check == "values":
            return self._values_assertion()
        if check not in ("shape", "dtype", "returns", "device", "strides"):
            return None
        name, position = self._output()
        if name is None:
            count = len(self.contract.outputs)
            return [f"assert isinstance(got, (tuple, list)) and len(got) == {count}, type(got)"] if count > 1 else None
        output = self.contract.outputs[name]
        shape = self.contract.shape(output.axes, self.case.size)
        conditions = {
            "shape": f"tuple(got{position}.shape) == {shape}, got{position}.shape",
            "dtype": f"got{position}.dtype == {output.dtype or self.case.torch_dtype}, got{position}.dtype",
            "device": f'got{position}.device.type == "{self.subject.device}", got{position}.device',
            "strides": f"got{position}.is_contiguous(), got{position}.stride()",
            "returns": f"isinstance(got{position}, torch.Tensor), type(got{position})",
        }
        return [f"assert {conditions[check]}"]

    def _output(self) -> tuple[str | None, str]:
        """The output that the finding's message begins with, and how to index what the call returns."""
        name = _subject_of(self.finding)
        judged = [n for n in self.contract.outputs if self.subject.outputs is None or n in self.subject.outputs]
        if name not in judged:
            return (judged[0] if len(judged) == 1 and len(self.contract.outputs) == 1 else None), ""
        return name, self._index(name)

    def _index(self, name: str) -> str:
        returned = self.subject.call(self.inputs.arguments)
        named = self.contract.by_name(returned, self.subject.outputs)
        if not isinstance(returned, tuple | list) or isinstance(named, str):
            return ""
        return f"[{list(named).index(name)}]"

    def _values_assertion(self) -> list[str] | None:
        name = _subject_of(self.finding)
        seen = replay.observe(self.subject, self.least.trial)
        where = seen[name].verdict.worst if name in seen else None
        if where is None:
            return None
        found = seen[name]
        bits = diagnosis.exact(self.contract, self.case, name)
        right = diagnosis.closest(found.got, found.expected, self.case.torch_dtype, bits)
        _, answer, allowed = diagnosis.aligned(found.got, right, self.case.torch_dtype)
        expected = answer[where].item()
        if bits:
            expected = answer[where].to(found.got.dtype).double().item()
        element = (
            f"value = got{self._index(name)}[{', '.join(map(str, where))}].item()" if where else "value = got.item()"
        )
        message = f'f"{name}{list(where)} is {{value}}"'
        if math.isnan(expected):
            return [element, f"assert value != value, {message}  # NaN"]
        if math.isinf(expected):
            return [element, f"assert value == {expected!r}, {message}"]
        margin = 0.0 if bits else allowed[where].item()
        return [
            element,
            f"expected, allowed = {expected!r}, {margin:.3g}",
            f'assert abs(value - expected) <= allowed, {message[:-1]}, expected {{expected}} within {{allowed}}"',
        ]

    def _invalid(self) -> list[str] | None:
        invalid = self.least.trial.invalid
        assert invalid is not None
        names = []
        for name, value in invalid.spoil(self.inputs.arguments).items():
            positional = name in self.contract.operands and self.contract.operands[name].positional
            code = repr(value)
            if isinstance(value, torch.Tensor):
                code = f'torch.zeros({tuple(value.shape)}, dtype={value.dtype}, device="{value.device}")'
            elif isinstance(value, list):
                code = "[[0.0]]"
            elif not isinstance(value, int | float | str | bool | None):
                return None
            names.append(code if positional else f"{name}={code}")
        errors = invalid.error if isinstance(invalid.error, tuple) else (invalid.error,)
        caught = ", ".join(error.__name__ if error.__module__ == "builtins" else "Exception" for error in errors)
        return [
            "try:",
            f"    kernel({', '.join(names)})",
            f"except ({caught},) as error:",
            f"    assert re.search({invalid.match!r}, str(error)), error",
            "else:",
            f'    raise AssertionError("{invalid.name}: the call went through")',
        ]

    def judged(self) -> str:
        """The script that has the judge repeat the trial: for properties that more than one call or element shows."""
        trial, case = self.least.trial, self.case
        # values that were replaced are not drawn from the case; the case itself failed before they were
        about = {
            "sizes": case.size,
            "dtype": case.dtype,
            "values": case.values,
            "layouts": case.layout,
            "params": case.param,
            "seed": case.seed,
            "property": trial.prop.name if trial.prop else None,
            "invalid": trial.invalid.name if trial.invalid else None,
            "calls": trial.calls,
            "varied": bool(trial.others),
            "stream": trial.stream,
            "watched": trial.watched,
        }
        lacking = {"message", "trial", "severity"}
        record = {name: value for name, value in self.kept.items() if name not in lacking}
        lines = [
            self.title(),
            "import sys",
            "",
            f"sys.path.insert(0, {str(registry.IMPORT_PATH)!r})",
            "from touchstone.conformance.findings import replay",
            "",
            f"record = {record!r}",
            f"trial = {about!r}",
            'if __name__ == "__main__":',
            "    replay.assert_right(record, trial)",
        ]
        return "\n".join(lines) + "\n"


def _imports(text: str) -> list[str]:
    """The import statements that the lines of a script need."""
    modules = [name for name in ("base64", "importlib", "os", "re", "sys", "zlib") if f"{name}." in text]
    constants = [name for name in ("inf", "nan") if re.search(rf"\b{name}\b", text)]
    lines = [f"import {', '.join(modules)}"]
    return [*lines, *([f"from math import {', '.join(constants)}"] if constants else []), "import torch", ""]


_STRIDED = [
    "buffers = []",
    'def strided(values, strides, offset, size, device="cpu"):',
    "    buffers.append(torch.full((size,), nan, device=device).to(values.dtype))",
    "    view = buffers[-1].as_strided(values.shape, strides, offset)",
    "    return view.copy_(values)",
]


def case_of(about: Mapping[str, Any], op: str) -> Case:
    """The case that a script spells out."""

    def pairs(values: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
        return tuple(values.items())

    return Case(
        op,
        about["dtype"],
        tuple(pairs(about["sizes"])),
        about["values"],
        tuple(pairs(about["layouts"])),
        tuple(pairs(about["params"])),
        about["seed"],
    )


def trial_of(about: Mapping[str, Any], contract: Contract) -> Trial:
    """The trial that a script spells out."""
    prop = next((prop for prop in contract.properties if prop.name == about["property"]), None)
    invalid = next((call for call in contract.invalid if call.name == about["invalid"]), None)
    case = case_of(about, contract.name)
    others = variants(contract, case) if about["varied"] else ()
    return Trial(case, prop, invalid, about["calls"], others, stream=about["stream"], watched=about["watched"])
