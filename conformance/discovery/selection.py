"""Which targets, ops and variants a run judges: the rules, independent of pytest and of the command line.

Asking for something unavailable is a `UsageError` that says why and suggests a fix; anything not asked for is
skipped with a reason. One process runs one device.
"""

import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from touchstone.backends.devices import cuda_unavailable
from touchstone.backends.gpus import DEFAULT
from touchstone.backends.variants import attributes
from touchstone.conformance.discovery import arrays, best, importing, launching, registry
from touchstone.conformance.discovery.opfile import load_op_of_a_run
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.spec.cases import LEVELS
from touchstone.conformance.spec.checks import Requirement
from touchstone.conformance.spec.contract import DTYPES
from touchstone.conformance.spec.words import did_you_mean, expected_one_of, not_one_of

CEILING_SECONDS = {"quick": 0.5, "default": 0.5, "thorough": 10.0}
DEVICES = ("auto", "cpu", "cuda")
TRUE = ("1", "true", "on", "yes", "y")


class UsageError(ValueError):
    """Something was asked for that is not available here."""


class CannotRun(UsageError):
    """What was asked for is in order, but this machine lacks what it takes: a GPU, a compiler, a package."""


class MissingPackage(CannotRun, launching.MissingPackage):
    """The file of a kernel imports a package that is not installed: the kernel is neither right nor wrong here."""


@dataclass
class Selection:
    device: str
    level: str
    backends: list[str]
    ops: list[str]
    variants: list[str] | None  # None: all
    skipped: dict[str, str] = field(default_factory=dict)  # backend -> why it does not run here
    kernel: tuple[Path, str] | None = None
    seed: int = 0
    arrays: str = arrays.TENSORS  # what a kernel of the user's own takes and returns
    require: tuple[str, ...] = ()  # of a kernel of the user's own: the requirements that decide; none stands for all
    arch: str = launching.NONE  # on the CPU, the architecture as which its questions about CUDA are answered
    strict: bool = False  # and whether what its language leaves undefined fails
    here: bool = True  # and whether this process imports its file, which else only a child does

    def target(self, backend: str) -> str:
        return registry.target(backend, self.device)

    def prepare(self, apart: bool = False) -> None:
        """Set this process up for its device; before anything imports a kernel library. `apart`: the kernel is a
        user's and runs in another process, which sets a backend up on the CPU when it imports the library."""
        for name in self.backends:
            if not (apart and self.device == "cpu" and self._later(name)):
                registry.backend(name).prepare(self.device)

    def _later(self, name: str) -> bool:
        """Whether a backend can be set up later, and probably need not be at all: importing its library takes longer
        than many a check, and the file of the kernel does not speak of it."""
        if self.kernel is None or not hasattr(registry.backend(name), "expect"):
            return False
        return re.search(rf"\b{name}\b", self.kernel[0].read_text(errors="replace")) is None

    def ceiling(self, backend: str) -> float:
        """Work per case above which a target drops it."""
        return CEILING_SECONDS[self.level] * registry.backend(backend).WORK_PER_SECOND[self.device]

    def subjects(self) -> list[tuple[str, Subject]]:
        """(backend, subject) of everything selected, op by op in ladder order. Imports the kernels' files; that of a
        kernel of the user's own unless not `here`. Raises UsageError, and MissingPackage of such a file."""
        if self.kernel is not None:
            path, name = self.kernel
            fn: Callable[..., Any] = importing.FileFunction(path, name)
            if self.here:
                launching.expect(self.device)
                try:
                    fn = launching.opened(path, name, self.arch)
                except launching.MissingPackage as error:
                    raise MissingPackage(f"--kernel: {error}") from error
                except ValueError as error:
                    raise UsageError(f"--kernel: {error}") from error
            return [("", self._users(op, fn, name)) for op in self.ops]
        found = []
        for op in self.ops:
            for backend in self.backends:
                for name, fn in variants(backend, op, self.variants).items():
                    found.append((backend, variant_subject(op, backend, name, fn, self.device)))
        if self.variants is not None:
            self._check_variants({subject.name for _, subject in found})
        return found

    def _users(self, op: str, fn: Callable[..., Any], name: str) -> Subject:
        if self.here and (misfit := registry.contract(op).misfit(fn)):
            raise UsageError(f"--kernel: {misfit}")
        target = f"user@{self.device}"
        return Subject(op, fn, name, target, self.device, arrays=self.arrays, strict=self.strict, arch=self.arch)

    def _check_variants(self, present: set[str]) -> None:
        for name in self.variants or ():
            if name not in present:
                known = {v: None for op in self.ops for b in self.backends for v in registry.variants(b, op)}
                known[best.NAME] = None
                raise UsageError(
                    f"--variant: {name!r} is no variant of {', '.join(self.ops)}; there are {', '.join(known)}"
                    f"{did_you_mean(name, known)}"
                )


def variants(backend: str, op: str, names: Sequence[str] | None = None) -> dict[str, Callable[..., Any]]:
    """The variants of a ladder, or of these those that are named; `best` only where it is named."""
    found = registry.variants(backend, op)
    if names is None:
        return found
    if found and best.NAME in names:
        found[best.NAME] = best.best(op, backend)
    return {name: fn for name, fn in found.items() if name in names}


def variant_subject(op: str, backend: str, name: str, fn, device: str) -> Subject:
    """One of this repository's variants as a subject, with what it declares in its attributes."""
    declared = attributes(fn)
    return Subject(
        op,
        fn,
        name,
        registry.target(backend, device),
        device,
        own=True,
        compute=declared.compute,
        deterministic=declared.deterministic,
        captures=declared.captures,
    )


def not_run_reason(backend: str, subject: Subject) -> str | None:
    """Why a variant cannot run on this target, from its `needs`; None when it can."""
    needs = attributes(subject.fn).needs
    return registry.backend(backend).lacks(needs, subject.device) if backend and needs else None


def select(
    backend: str | None = None,
    device: str = "auto",
    op: str | None = None,
    variant: str | None = None,
    level: str = "default",
    kernel: str | None = None,
    seed: int = 0,
    environ: Mapping[str, str] = os.environ,
    library: str = arrays.TENSORS,
    op_file: str | None = None,
    require: str | None = None,
    strict: bool = False,
    op_option: str = "--op",
    on_gpu: str | None = None,
    arch: str | None = None,
) -> Selection:
    """Apply the selection rules to options as they were typed (comma-separated lists). Raises UsageError.

    `op_option` is what a command calls its ops. `on_gpu` says what needs a GPU, where nothing else can be asked for:
    "tuning".
    """
    if level not in LEVELS:
        raise UsageError(f"--level: {expected_one_of(level, LEVELS)}")
    if op_file is not None:
        op = _op_of_file(op_file, op, kernel)
    ops = _ops(op, op_option)
    device = _device_of_arrays(library, device, kernel)
    available = [name for name in registry.backends() if registry.kernel_ops(name)]
    modules = {name: registry.backend(name) for name in registry.backends()}
    asked = _split(backend)
    names, implied = _backends(asked, available, modules)
    chosen = _device(device, implied, environ, modules, names or available, on_gpu)
    skipped = {}
    running = names
    if not asked:
        skipped = {name: reason for name in available if (reason := modules[name].why_not(chosen))}
        running = [name for name in available if name not in skipped]
    for name in names:
        if reason := modules[name].why_not(chosen):
            other = "cpu" if chosen == "cuda" else "cuda"
            way = f"; --device={other} would work" if modules[name].why_not(other) is None and not on_gpu else ""
            raise CannotRun(f"--backend={name}: cannot run on {chosen} here: {reason}{way}")
    selection = Selection(chosen, level, running, ops, _split(variant) or None, skipped, seed=seed)
    if kernel is not None:
        selection.kernel, selection.arrays = _kernel(kernel, op, backend, variant, op_option), library
        selection.require, selection.strict, selection.arch = _require(require), strict, _arch(arch, chosen)
        if reason := arrays.lacks(library, {name: DTYPES[name] for name in registry.contract(ops[0]).dtypes}):
            raise CannotRun(f"--{reason}")
        selection.skipped = {}
    elif require is not None or strict:
        raise UsageError(
            "--require and --strict go with --kernel; this repository's variants are judged strictly, on all"
        )
    elif arch is not None:
        raise UsageError("--arch: goes with --kernel; this repository's variants demand no CUDA on the CPU")
    else:
        for name in names:
            if op is not None and not set(ops) & set(registry.kernel_ops(name)):
                raise UsageError(
                    f"--backend={name}: has no kernels for {', '.join(ops)}; it has "
                    f"{', '.join(registry.kernel_ops(name))}"
                )
    return selection


def _op_of_file(op_file: str, op: str | None, kernel: str | None) -> str:
    """Load a user's op; the op to judge."""
    try:
        name = load_op_of_a_run(op_file)
    except ValueError as error:
        raise UsageError(f"--op-file={op_file}: {str(error).removeprefix('op file: ')}") from error
    if op not in (None, name):
        raise UsageError(
            f"--op-file={op_file}: holds the op {name!r}, not {op!r}; name that one, or leave the name out"
        )
    if kernel is None:
        raise UsageError(
            f"--op-file={op_file}: there are no kernels of {name!r} here; give one by --kernel=file.py:function"
        )
    return name


def _device_of_arrays(library: str, device: str, kernel: str | None) -> str:
    """The device that --arrays means, or `device`."""
    if library == arrays.TENSORS:
        return device
    if kernel is None:
        raise UsageError("--arrays: goes with --kernel; this repository's variants take torch tensors")
    try:
        return arrays.device_of(library, None if device == "auto" else device) or device
    except ValueError as error:
        raise UsageError(f"--{error}") from error


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _ops(text: str | None, option: str) -> list[str]:
    if text is None:
        return list(registry.ops())
    for name in _split(text):
        if name not in registry.ops() and registry.op_file(name) is None:
            raise UsageError(f"{option}: {not_one_of(name, registry.ops())}")
    if not _split(text):
        raise UsageError(f"{option}: expected one or more of {', '.join(registry.ops())}")
    return _split(text)


def _backends(
    asked: Sequence[str], available: Sequence[str], modules: Mapping[str, ModuleType]
) -> tuple[list[str], dict[str, str]]:
    """The backends asked for, aliases resolved, and the device that each alias implies."""
    aliases = {alias: (name, device) for name, module in modules.items() for alias, device in module.ALIASES.items()}
    names: list[str] = []
    implied: dict[str, str] = {}
    for text in asked:
        name = text
        if text in aliases:
            name, implied[text] = aliases[text]
        if name not in modules:
            raise UsageError(f"--backend: {not_one_of(text, [*modules, *aliases])}")
        if name not in available:
            raise UsageError(
                f"--backend={text}: has no kernels in this clone yet (no op files in backends/{name}); use "
                f"{', '.join(available)}"
            )
        if name not in names:
            names.append(name)
    return names, implied


def _device(
    device: str,
    implied: Mapping[str, str],
    environ: Mapping[str, str],
    modules: Mapping[str, ModuleType],
    names: Sequence[str],
    on_gpu: str | None,
) -> str:
    """The one device of this process."""
    if device not in DEVICES:
        raise UsageError(f"--device: expected auto, cpu or cuda, got {device!r}{did_you_mean(device, DEVICES)}")
    switches = [v for name in modules for v in modules[name].CPU_VARIABLES if environ.get(v, "").lower() in TRUE]
    wanted = {f"--backend={alias}": where for alias, where in implied.items()} | {
        f"{v}={environ[v]}": "cpu" for v in switches
    }
    for source, where in wanted.items():
        if on_gpu and where != device:
            raise UsageError(f"{source} means the CPU, but {on_gpu} needs a GPU; drop it")
        if device not in ("auto", where):
            raise UsageError(f"{source} means --device={where}, but --device={device} was given; drop one of the two")
    if device == "auto":
        if wanted:
            return next(iter(wanted.values()))
        return "cpu" if cuda_unavailable() else "cuda"
    if device == "cuda" and (reason := cuda_unavailable()):
        if on_gpu:
            raise CannotRun(f"{on_gpu} needs a GPU: {reason}")
        raise CannotRun(
            f"--device=cuda: {reason}; use --device=cpu, which runs {', '.join(names)} on the CPU where it can"
        )
    return device


def _kernel(text: str, op: str | None, backend: str | None, variant: str | None, op_option: str) -> tuple[Path, str]:
    path, name = kernel_of(text)
    if op is None or len(_split(op)) != 1:
        raise UsageError(f"--kernel: needs {op_option} with the one op whose signature the function has")
    if backend or variant:
        raise UsageError(
            "--kernel: a function of your own goes with neither --backend nor --variant; use --device=cpu or "
            "--device=cuda"
        )
    return path, name


def kernel_of(text: str) -> tuple[Path, str]:
    """File and function of "FILE.py:FUNCTION". Raises UsageError."""
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise UsageError(f"--kernel: expected file.py:function, got {text!r}")
    if not Path(path).is_file():
        raise UsageError(f"--kernel: there is no file {path}")
    if (size := Path(path).stat().st_size) > importing.LARGEST:
        raise UsageError(f"--kernel: {path} has {size} bytes; {importing.LARGEST} are read at most")
    return Path(path), name


def _arch(arch: str | None, device: str) -> str:
    """The architecture of --arch, or the default one."""
    if arch is not None and arch not in launching.ARCHITECTURES:
        raise UsageError(f"--arch: {expected_one_of(arch, launching.ARCHITECTURES)}")
    if arch is not None and device != "cpu":
        raise UsageError(f"--arch: goes with --device=cpu; on {device}, the GPU of this machine answers")
    return (arch or DEFAULT) if device == "cpu" else launching.NONE


def _require(text: str | None) -> tuple[str, ...]:
    """The requirements of --require; () where it was not given."""
    for name in _split(text):
        if name not in tuple(Requirement):
            raise UsageError(f"--require: {not_one_of(name, Requirement)}")
    if text is not None and not _split(text):
        raise UsageError(f"--require: expected one or more of {', '.join(Requirement)}")
    return tuple(_split(text))


def import_check(selection: Selection) -> list[str]:
    """The kernel files of the selection that fail to import, one sentence each: errors, never skips."""
    broken = []
    for backend in selection.backends if selection.kernel is None else ():
        for op in selection.ops:
            if op in registry.kernel_ops(backend):
                try:
                    importlib.import_module(f"touchstone.backends.{backend}.{op}")
                except Exception as error:
                    broken.append(f"backends/{backend}/{op}: {type(error).__name__}: {error}")
    return broken
