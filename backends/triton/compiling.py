"""Compiling kernels for GPUs that are not there: what launchers launch is recorded on CPU tensors, then compiled.

The compiler refuses what the interpreter lets through: a variable that changes its dtype in a loop, tl.exp of float16, a
tile that needs more shared memory than there is. `recording()` collects the specialisations (kernel, argument types,
alignment, constexprs, options) as Triton's own binder makes them; `compile_one` and `compile_all` turn them into cubins
with Triton's own ptxas and cache. The process must compile, not interpret.
"""

import dataclasses
import multiprocessing
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

ARCHS = ("sm_80", "sm_90")
SHARED_LIMIT = {"sm_80": 166912, "sm_86": 101376, "sm_89": 101376, "sm_90": 232448, "sm_100": 232448, "sm_120": 101376}


@dataclasses.dataclass(frozen=True)
class Specialisation:
    """One compilation: a kernel with the types, alignments and constants of its arguments, and the launch options."""

    kernel: str  # module.name, as printed
    key: str  # what Triton's cache of compiled kernels tells specialisations apart by
    function: JITFunction = dataclasses.field(compare=False, repr=False)
    signature: dict[str, str] = dataclasses.field(compare=False)
    constexprs: dict[tuple, Any] = dataclasses.field(compare=False)
    attributes: dict[tuple, Any] = dataclasses.field(compare=False, repr=False)
    options: dict[str, Any] = dataclasses.field(compare=False)  # those that differ from the defaults

    def __str__(self) -> str:
        names = list(self.signature)
        constants = {".".join([names[path[0]], *map(str, path[1:])]): value for path, value in self.constexprs.items()}
        types = [f"{name}: {ty}" for name, ty in self.signature.items() if ty != "constexpr"]
        values = [f"{name}={value}" for name, value in (constants | self.options).items()]
        return f"{self.kernel}({', '.join(types + values)})"


class _Absent:
    """Stands for the driver of a GPU that is not there."""

    def __init__(self, arch: str) -> None:
        self.target = _target(arch)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def _target(arch: str) -> GPUTarget:
    return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


@contextmanager
def _driving(arch: str) -> Iterator[None]:
    before = driver._active
    driver.set_active(_Absent(arch))
    try:
        yield
    finally:
        driver._active = before


@contextmanager
def recording(arch: str = "sm_90") -> Iterator[list[Specialisation]]:
    """Inside, launches of Triton kernels are recorded and nothing runs: outputs stay as allocated.

    Yields the list that grows; each specialisation is in it once. A kernel under `triton.autotune` is recorded with
    every configuration that its pruning leaves. Raises RuntimeError in a process that interprets.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("this process interprets Triton kernels; compile them in one without TRITON_INTERPRET")
    found: dict[Specialisation, None] = {}
    specialisations: list[Specialisation] = []
    touched: list[JITFunction] = []
    defaults = dataclasses.asdict(make_backend(_target(arch)).parse_options({}))

    def record(self, key, signature, device, constexprs, options, attrs, warmup):
        changed = {name: value for name, value in dataclasses.asdict(options).items() if value != defaults[name]}
        made = Specialisation(f"{self.__module__}.{self.__name__}", key, self, signature, constexprs, attrs, changed)
        touched.append(self)
        if made not in found:
            found[made] = None
            specialisations.append(made)

    def autotuned(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        for config in self.prune_configs(kwargs):
            if config.pre_hook is not None:
                config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
            self.fn.run(*args, **kwargs, **config.all_kwargs())
        self.nargs = None

    compile_now, tune_now = JITFunction._do_compile, Autotuner.run
    JITFunction._do_compile, Autotuner.run = record, autotuned
    try:
        with _driving(arch):
            yield specialisations
    finally:
        JITFunction._do_compile, Autotuner.run = compile_now, tune_now
        for function in touched:  # their binders were made for a GPU that is not there
            function.device_caches.clear()


def compile_one(specialisation: Specialisation, arch: str) -> dict[str, Any]:
    """Compile one specialisation for `arch` ("sm_90").

    Returns `kernel`, `arch`, `specialisation` (text), `seconds`, and either `registers` and `spills` (bytes) a thread
    with `shared` (bytes a program), or `error`, the compiler's message.
    """
    start = time.perf_counter()
    record = {"kernel": specialisation.kernel, "arch": arch, "specialisation": str(specialisation)}
    source = specialisation.function.ASTSource(
        specialisation.function, specialisation.signature, specialisation.constexprs, specialisation.attributes
    )
    try:
        with _driving(arch):
            compiled = triton.compile(source, target=_target(arch), options=dict(specialisation.options))
        found = cubin_resources(compiled.asm["cubin"])
    except Exception as error:
        return {**record, "seconds": time.perf_counter() - start, "error": _message(error)}
    record["seconds"] = time.perf_counter() - start
    shared, limit = compiled.metadata.shared, SHARED_LIMIT.get(arch)
    if limit is not None and shared > limit:
        record["error"] = f"needs {shared} bytes of shared memory; {arch} has {limit}"
    return {**record, "registers": found["registers"], "spills": found["spills"], "shared": shared}


def compile_all(
    specialisations: Sequence[Specialisation],
    archs: Sequence[str] = ARCHS,
    processes: int = 2,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """`compile_one` of every specialisation for every architecture, in forked processes, in order.

    `progress` is called with each record as it comes. A compiler that crashes gives an error record.
    """
    return _compile([(spec, arch) for spec in specialisations for arch in archs], processes, progress)


def check(
    calls: Iterable[tuple[str, Callable[[], Any], str | None]],
    archs: Sequence[str] = ARCHS,
    processes: int = 2,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Record every call and compile what it launches, each specialisation once an architecture.

    `calls` are (label, thunk, needs): the thunk calls a launcher on CPU tensors, `needs` ("sm_90" or None) leaves out
    older architectures. A record is that of `compile_one` with `labels`, the calls that launch it. A thunk that raises
    NotImplementedError has declined; another exception gives a record with `error`.
    """
    wanted: dict[tuple[str, str], tuple[Specialisation, list[str]]] = {}
    failed = []
    for label, call, needs in calls:
        with recording() as found:
            try:
                call()
            except NotImplementedError:
                continue
            except Exception as error:
                failed.append(
                    {"kernel": label, "arch": "any", "labels": [label], "seconds": 0.0, "error": _message(error)}
                )
                continue
        for made in found:
            for arch in archs:
                if needs is None or _number(arch) >= _number(needs):
                    labels = wanted.setdefault((f"{made.kernel} {made.key}", arch), (made, []))[1]
                    labels.append(label)
    records = _compile([(spec, arch) for (_, arch), (spec, _) in wanted.items()], processes, progress)
    for record, (_, labels) in zip(records, wanted.values(), strict=True):
        record["labels"] = labels
    return failed + records


def cubin_resources(cubin: bytes) -> dict[str, int]:
    """`registers` and `spills` (bytes of local memory) a thread, and `shared` (static bytes a block), of a cubin."""
    tool = triton.knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    usage = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", text)}
    return {"registers": usage["REG"], "spills": usage["STACK"] + usage["LOCAL"], "shared": usage["SHARED"]}


def _compile(tasks: list[tuple[Specialisation, str]], processes: int, progress) -> list[dict[str, Any]]:
    records: list[dict[str, Any] | None] = [None] * len(tasks)
    waiting = iter(range(len(tasks)))
    busy: dict[Connection, tuple[int, Any]] = {}

    def start(process=None, connection=None) -> None:
        index = next(waiting, None)
        if index is None:
            if process is not None:
                connection.send(None)
                process.join()
            return
        if process is None:
            connection, other = context.Pipe()
            process = context.Process(target=_serve, args=(other, tasks), daemon=True)
            process.start()
            other.close()
        connection.send(index)
        busy[connection] = (index, process)

    context = multiprocessing.get_context("fork")
    for _ in range(min(processes, len(tasks))):
        start()
    while busy:
        for connection in wait(list(busy)):
            index, process = busy.pop(connection)
            try:
                record = connection.recv()
            except EOFError:
                process.join()
                spec, arch = tasks[index]
                record = {"kernel": spec.kernel, "arch": arch, "specialisation": str(spec), "seconds": 0.0}
                record["error"] = f"the compiler ended the process with status {process.exitcode}"
                process = None
            records[index] = record
            if progress is not None:
                progress(record)
            start(process, connection)
    return records


def _serve(connection: Connection, tasks: list[tuple[Specialisation, str]]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    while (index := connection.recv()) is not None:
        connection.send(compile_one(*tasks[index]))


def _message(error: Exception) -> str:
    """The compiler's own sentence: the innermost cause that has one."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    texts = [f"{type(e).__name__}: {e}".strip() for e in causes if str(e).strip()]
    return "\n".join(dict.fromkeys(texts)) or type(error).__name__


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))
