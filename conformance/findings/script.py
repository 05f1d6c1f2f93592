"""A stand-alone script that shows the bug of a finding, and what a script needs that has the judge repeat a trial."""

import base64
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, assert_never

import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.findings import kept
from touchstone.conformance.findings.minimise import LITERAL, Minimal, literal
from touchstone.conformance.findings.rerun import DEADLY, observe, rerun
from touchstone.conformance.judging import diagnosis
from touchstone.conformance.judging.executor import reached
from touchstone.conformance.judging.judgement import Finding
from touchstone.conformance.judging.trials import (
    AsGraph,
    CaseTrial,
    Compiled,
    Int64Index,
    InvalidCall,
    Kind,
    ManyCalls,
    OnStream,
    PropertyTrial,
    Trial,
    in_turn,
)
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.cases import variants
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Case, Contract, From, Inputs, Invalid

PACKED = 1 << 18  # bytes of an operand that a script carries compressed where no formula gives a failing one
SCRIPT_SECONDS = 120.0
LINES = 30  # of a script
_PLAIN = str.maketrans({'"': "'", "\\": "/"})  # in a docstring


def script(least: Minimal, record: Mapping[str, Any]) -> str:
    """A script of at most 30 lines that ends with an error while the bug is there; `record` is the kept finding's.

    It needs torch and the kernel's file, and for our own variants this clone. Several ways of writing it are tried, the
    plainest first; where none shows the bug outside the judge, the script has the judge repeat the trial.
    """
    written = [text for text in _scripts(least, record) if len(text.splitlines()) <= LINES]
    for text in written[:-1]:
        if _shows(text, least.finding):
            return text
    return written[-1]


def _scripts(least: Minimal, record: Mapping[str, Any]) -> Iterator[str]:
    writer = _Writer(least, record)
    if isinstance(least.trial, CaseTrial | InvalidCall):
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
            return finding.check == Check.HANG
    if finding.check in DEADLY:
        return done.returncode < 0
    return done.returncode != 0 and (finding.raised or "AssertionError") in done.stderr


class _Writer:
    """The parts of a script, as lines."""

    def __init__(self, least: Minimal, record: Mapping[str, Any]):
        self.least, self.record, self.subject, self.case = least, record, least.subject, least.trial.case
        self.contract = least.subject.contract
        self.finding = least.finding

    @cached_property
    def inputs(self) -> Inputs:
        return self.contract.build(self.case)

    def title(self) -> str:
        record = self.record
        what = f"{record['op']}, {record['target']} {record['name']}, finding {record['id']} ({self.finding.check})"
        return f'"""{what.translate(_PLAIN)}: fails while the bug is there."""'

    def plain_setup(self) -> list[str]:
        """Imports, and the kernel; a user's Triton file in the interpreter as Triton ships it."""
        where = self.record["source"]
        if "backend" in where or self.subject.arrays != "torch":
            return self.prepared_setup()
        variables = []
        if self.subject.device == "cpu":
            variables = [v for b in reached(self.subject.fn, "cpu") for v in b.CPU_VARIABLES]
        return [*(f'os.environ["{name}"] = "1"' for name in variables), *self._user_kernel()]

    def prepared_setup(self) -> list[str]:
        """Imports, and the kernel, with the backend set up as this clone does it."""
        where = self.record["source"]
        lines = [f"sys.path.insert(0, {str(registry.IMPORT_PATH)!r})"]
        if "backend" in where:
            module = f"touchstone.backends.{where['backend']}"
            prepare = f'importlib.import_module("{module}").prepare("{self.subject.device}")'
            load = f'kernel = importlib.import_module("{module}.{self.subject.op}").{where["variant"]}'
            return [*lines, prepare, load]
        for backend in reached(self.subject.fn, self.subject.device):
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
        path, function = Path(self.record["source"]["file"]), self.record["source"]["function"]
        root = path.parent
        while (root / "__init__.py").is_file():
            root = root.parent
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        load = f"kernel = importlib.import_module({json.dumps(name)}).{function}"
        return [f"sys.path.insert(0, {str(root)!r})", load]

    def body(self, place_all: bool) -> list[str] | None:
        """Operands, the call and the assertion; None where an operand is too large to be written down."""
        if isinstance(self.least.trial, InvalidCall):
            return self._invalid(self.least.trial.invalid)
        buffers = place_all or self.finding.check == Check.INPUTS
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
        if self.finding.check == Check.INPUTS:
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
        if check in (Check.RAISED, *DEADLY):
            return []
        if check == Check.INPUTS:
            return [
                "after = [buffer.view(torch.uint8) for buffer in buffers]",
                "assert all(map(torch.equal, before, after))",
            ]
        if check == Check.VALUES:
            return self._values_assertion()
        if check not in (Check.SHAPE, Check.DTYPE, Check.RETURNS, Check.DEVICE, Check.STRIDES):
            return None
        name, position = self._output()
        if name is None:
            count = len(self.contract.outputs)
            return [f"assert isinstance(got, (tuple, list)) and len(got) == {count}, type(got)"] if count > 1 else None
        shape, dtype = self.contract.output_shape(name, self.case), self.contract.output_dtype(name, self.case)
        conditions = {
            Check.SHAPE: f"tuple(got{position}.shape) == {shape}, got{position}.shape",
            Check.DTYPE: f"got{position}.dtype == {dtype}, got{position}.dtype",
            Check.DEVICE: f'got{position}.device.type == "{self.subject.device}", got{position}.device',
            Check.STRIDES: f"got{position}.is_contiguous(), got{position}.stride()",
            Check.RETURNS: f"isinstance(got{position}, torch.Tensor), type(got{position})",
        }
        return [f"assert {conditions[Check(check)]}"]

    def _output(self) -> tuple[str | None, str]:
        """The output that the finding is about, and how to index what the call returns."""
        name = self.finding.about
        judged = [n for n in self.contract.outputs if self.subject.outputs is None or n in self.subject.outputs]
        if name is None or name not in judged:
            return (judged[0] if len(judged) == 1 and len(self.contract.outputs) == 1 else None), ""
        return name, self._index(name)

    def _index(self, name: str) -> str:
        returned = self.subject.call(self.inputs.arguments)
        named = self.contract.by_name(returned, self.subject.outputs)
        if not isinstance(returned, tuple | list) or isinstance(named, str):
            return ""
        return f"[{list(named).index(name)}]"

    def _values_assertion(self) -> list[str] | None:
        name = self.finding.about
        found = observe(self.subject, self.least.trial).get(name) if name is not None else None
        where = found.verdict.worst if found is not None else None
        if name is None or found is None or where is None:
            return None
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

    def _invalid(self, invalid: Invalid) -> list[str] | None:
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
        # values that were replaced are not drawn from the case; the case itself failed before they were
        about = spelled(self.least.trial)
        lacking = {"message", "trial", "kind", "severity"}
        record = {name: value for name, value in self.record.items() if name not in lacking}
        lines = [
            self.title(),
            "import sys",
            "",
            f"sys.path.insert(0, {str(registry.IMPORT_PATH)!r})",
            "from touchstone.conformance.findings.script import assert_right",
            "",
            f"record = {record!r}",
            f"trial = {about!r}",
            'if __name__ == "__main__":',
            "    assert_right(record, trial)",
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


def assert_right(record: dict[str, Any], trial: dict[str, Any]) -> None:
    """Judge a kernel on one trial, both spelled out by a script; AssertionError holds what is found of the record's
    check."""
    subject = kept.load(record)
    outcome = rerun(subject, trial_of(trial, subject.contract), record["check"])
    found = [finding for finding in outcome.findings if finding.check == record["check"]]
    if found:
        raise AssertionError(str(found[0]))


def spelled(trial: Trial) -> dict[str, Any]:
    """A trial as a script spells it out."""
    case = trial.case
    about: dict[str, Any] = {
        "kind": trial.kind.value,
        "sizes": case.size,
        "dtype": case.dtype,
        "values": case.values,
        "layouts": case.layout,
        "params": {name: value for name, value in case.params if not isinstance(value, From)},
        "seed": case.seed,
    }
    if case.dtypes:
        about["dtypes"] = dict(case.dtypes)
    match trial:
        case CaseTrial():
            return {**about, "watched": trial.watched, "instrumented": trial.instrumented}
        case PropertyTrial():
            return {**about, "property": trial.prop.name}
        case InvalidCall():
            return {**about, "invalid": trial.invalid.name}
        case ManyCalls():
            return {**about, "calls": trial.count, "varied": bool(trial.others), "in_turn": trial.in_turn}
        case OnStream() | AsGraph() | Int64Index():
            return about
        case Compiled():
            raise ValueError(f"{trial.id} has no script")
        case _:
            assert_never(trial)


def trial_of(about: Mapping[str, Any], contract: Contract) -> Trial:
    """The trial that a script spells out."""
    case = Case(
        contract.name,
        about["dtype"],
        tuple(about["sizes"].items()),
        about["values"],
        tuple(about["layouts"].items()),
        tuple((name, about["params"].get(name, options[0])) for name, options in contract.params.items()),
        about["seed"],
        dtypes=tuple(about.get("dtypes", {}).items()),
    )
    match kind := Kind(about["kind"]):
        case Kind.CASE:
            return CaseTrial(case, about["watched"], about["instrumented"])
        case Kind.PROPERTY:
            return PropertyTrial(case, next(prop for prop in contract.properties if prop.name == about["property"]))
        case Kind.INVALID:
            return InvalidCall(case, next(call for call in contract.invalid if call.name == about["invalid"]))
        case Kind.CALLS if about.get("in_turn"):
            return in_turn(contract, case)
        case Kind.CALLS:
            others = variants(contract, case) if about["varied"] else ()
            return ManyCalls(case, about["calls"], others, case.size != contract.sizes[0])
        case Kind.STREAM:
            return OnStream(case)
        case Kind.GRAPH:
            return AsGraph(case)
        case Kind.INT64_INDEX:
            return Int64Index(case)
        case Kind.COMPILED:
            raise ValueError(f"{kind}: such a trial has no script")
        case _:
            assert_never(kind)
