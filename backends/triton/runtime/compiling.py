"""Compiling kernels for GPUs that are not there: what launchers launch on CPU tensors is recorded, then compiled.

The compiler refuses what the interpreter lets through: tl.exp of float16, a variable that changes its dtype in a loop,
a tile that needs more shared memory than there is. Triton's own launch path runs up to the point where it would
compile, so its binder decides what a launch is specialised on, as for a GPU; a CPU tensor off 16-byte alignment counts
as such. The process must compile, not interpret.
"""

import os
import re
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import PTXASError
from triton.runtime.jit import JITFunction

from touchstone.backends import NotRun
from touchstone.backends.devices import SHARED_LIMIT
from touchstone.backends.gpus import GPUS
from touchstone.backends.storage import files
from touchstone.backends.triton.runtime import caching
from touchstone.backends.triton.runtime import driver as answers
from touchstone.backends.triton.runtime.tuning import assuming

caching.install()

ARCHITECTURES = ("sm_80", "sm_90")
# what a launch raises for its arguments or options; anything else may be for want of a device
OF_ARGUMENTS = (AssertionError, KeyError, OverflowError, TypeError, ValueError)
PASSES = "PassManager::run failed"  # what Triton raises where its IR cannot be lowered
ERROR = re.compile(r"\berror\s*: *(.+)")  # the first one that a stage prints, behind a place in a file of its own
SPREAD = 12  # launches of a user's kernel that stand for the others, at most


def architectures(needs: str | None = None) -> tuple[str, ...]:
    """The architectures that a variant claims to compile for: sm_80 and sm_90, without those below its `needs`."""
    if needs is None:
        return ARCHITECTURES
    return tuple(arch for arch in ARCHITECTURES if _number(arch) >= _number(needs)) or (f"sm_{_number(needs)}",)


@dataclass(frozen=True)
class Launch:
    """One specialisation: a kernel with the types, alignments and constants of its arguments, and the launch
    options."""

    function: JITFunction
    source: type  # of Triton's compiler: Triton's and Gluon's differ
    signature: dict[str, Any]  # parameter -> type; "constexpr" also for None and for an integer that is 1
    constexprs: dict[tuple[int, ...], Any]  # place of the argument -> value
    attributes: dict[tuple[int, ...], Any]  # place of the argument -> divisibility by 16
    options: dict[str, Any]  # those that differ from the defaults: num_warps, num_stages
    tuned: bool = False  # one of several configurations, of which those that do not fit are left out

    @property
    def kernel(self) -> str:
        return self.function.__name__

    @cached_property
    def key(self) -> str:
        """Equal for launches of the same code."""
        constants = {place: getattr(value, "cache_key", value) for place, value in self.constexprs.items()}
        return (
            f"{self.function.cache_key} {self.signature} {constants} {self.attributes} {sorted(self.options.items())}"
        )

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types of its tensors, each once: what launches of other sizes, layouts and configurations share."""
        types = {str(ty).partition("[")[0] for ty in self.signature.values()}
        return tuple(sorted(ty for ty in types if ty.startswith(("*", "tensordesc", "("))))

    @cached_property
    def features(self) -> frozenset[tuple[str, ...]]:
        """Each thing that the launch is specialised on."""
        known = [(place, f"{place[1:]} = {value}") for place, value in self.constexprs.items()]
        known += [(place, f"{place[1:]} is aligned") for place, attribute in self.attributes.items() if attribute]
        arguments = [
            (name, str(ty), *sorted(what for place, what in known if place[0] == i))
            for i, (name, ty) in enumerate(self.signature.items())
        ]
        return frozenset([*arguments, *((name, str(value)) for name, value in self.options.items())])

    @cached_property
    def weight(self) -> int:
        """Product of the constants, block sizes foremost: the largest tiles need the most registers and shared
        memory."""
        product = 1
        for value in self.constexprs.values():
            product *= value if isinstance(value, int) and value > 1 else 1
        return product

    def __str__(self) -> str:
        names = list(self.signature)
        aligned = {place[0] for place, attribute in self.attributes.items() if attribute}
        types = [
            f"{n}: {ty}{'/16' * (i in aligned)}"
            for i, (n, ty) in enumerate(self.signature.items())
            if ty != "constexpr"
        ]
        constants = {
            ".".join([names[place[0]], *map(str, place[1:])]): value for place, value in self.constexprs.items()
        }
        values = [f"{name}={getattr(value, '__name__', value)}" for name, value in (constants | self.options).items()]
        return f"{self.kernel}({', '.join(types + values)})"


class _NoDevice:
    """Stands for the driver of a GPU that is not there."""

    def __init__(self, arch: str) -> None:
        self.target = _target(arch)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        if f"sm_{self.target.arch}" not in GPUS:
            raise AttributeError(name)
        return getattr(answers.of(GPUS[f"sm_{self.target.arch}"]), name)


def answering(arch: str) -> AbstractContextManager[None]:
    """Within: what a user's file asks of Triton's driver, while it is imported too, is answered as on a GPU of `arch`,
    if that is known."""
    return answers.answering(GPUS[arch]) if arch in GPUS else nullcontext()


@contextmanager
def recording(arch: str = "sm_90") -> Iterator[list[Launch]]:
    """Inside, launches of Triton kernels are recorded and nothing runs: outputs stay as they were allocated.

    Launchers get the configurations pinned for `arch`. Yields the list that grows, one entry a launch. A kernel under
    `triton.autotune` is recorded with every configuration that its pruning leaves. Raises RuntimeError in a process
    that interprets.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("this process interprets Triton kernels; compile them in one without TRITON_INTERPRET")
    launches: list[Launch] = []
    tuned = False
    usual = vars(make_backend(_target(arch)).parse_options({}))

    def record(self, key, signature, device, constexprs, options, attrs, warmup):
        changed = {name: value for name, value in vars(options).items() if value != usual[name]}
        launches.append(Launch(self, self.ASTSource, signature, constexprs, attrs, changed, tuned))
        # Nothing is returned: to Triton's launch path that means there is nothing to run.

    def run_autotuned(self, *args, **kwargs):
        nonlocal tuned
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        configurations = self.prune_configs(kwargs)
        for config in configurations:
            if config.pre_hook is not None:
                config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
            tuned = len(configurations) > 1
            try:
                self.fn.run(*args, **kwargs, **config.all_kwargs())
            finally:
                tuned = False
        self.nargs = None

    stock = driver._active, JITFunction._do_compile, Autotuner.run
    driver.set_active(_NoDevice(arch))
    JITFunction._do_compile, Autotuner.run = record, run_autotuned
    try:
        with assuming(arch):
            yield launches
    finally:
        driver._active, JITFunction._do_compile, Autotuner.run = stock
        for function in {launch.function for launch in launches}:  # their binders were made for no device
            function.device_caches.clear()


def compile_one(launch: Launch, arch: str, to_machine_code: bool = True) -> dict[str, Any]:
    """Compile one specialisation for `arch` ("sm_90"), or put it through the front end only, which checks the types.

    Returns `seconds`, with machine code `registers` and `spills` (bytes) a thread and `shared` bytes a block, and
    `error`, the compiler's message, where it was refused or needs more shared memory than the architecture has.
    """
    start = time.perf_counter()
    source = launch.source(launch.function, launch.signature, launch.constexprs, launch.attributes)
    found: dict[str, Any] = {}
    with _standard_error() as printed:
        try:
            if to_machine_code:
                compiled = triton.compile(source, target=_target(arch), options=dict(launch.options))
                found = {**cubin_resources(compiled.asm["cubin"]), "shared": compiled.metadata.shared}
            else:
                _front_end(source, _target(arch), launch.options)
        except NotRun:
            raise
        except Exception as error:
            found["error"] = _message(error, printed())
    if beyond := _beyond(found.get("shared", 0), arch):
        found["error"] = beyond
    return {**found, "seconds": time.perf_counter() - start}


def spread(launches: Sequence[Launch]) -> list[Launch]:
    """Of launches those that stand for the others: of each kernel those that add most to what is specialised on, until
    all of it is seen, SPREAD at most."""
    left: dict[Any, dict[str, Launch]] = {}
    for launch in launches:
        left.setdefault(launch.function, {}).setdefault(launch.key, launch)
    chosen = []
    for of_kernel in left.values():
        seen = frozenset[tuple[str, ...]]()
        for _ in range(SPREAD):
            best = max(of_kernel.values(), key=lambda launch: len(launch.features - seen), default=None)
            if best is None or (seen and best.features <= seen):
                break
            seen |= best.features
            chosen.append(of_kernel.pop(best.key))
    return chosen


def refused(launch: Launch, arch: str) -> str | None:
    """What the front end holds against a kernel, with the line of the source that it names; None: nothing. What else
    goes wrong in it is not the kernel's, and raised."""
    source = launch.source(launch.function, launch.signature, launch.constexprs, launch.attributes)
    with _standard_error():
        try:
            _front_end(source, _target(arch), launch.options)
        except CompilationError as error:
            inner = _innermost(error)
            if isinstance(inner, CompileTimeAssertionFailure):
                return None  # of a configuration, that a launcher can leave out
            return f"{launch.kernel}{_place(launch, error)} for {arch}: {_told(inner)}"
    return None


def heaviest(launches: Sequence[Launch]) -> list[Launch]:
    """Of each kernel the launch with the largest tiles; none of those that are tuned. Of several that with the widest
    types, and with most arguments that are aligned: tiles of these are loaded ahead of their use."""

    def needs(launch: Launch) -> tuple[int, int, int]:
        widths = [int(number) for ty in launch.types for number in re.findall(r"\d+", ty)[:1]]
        return launch.weight, sum(widths), sum(map(bool, launch.attributes.values()))

    found: dict[Any, Launch] = {}
    for launch in launches:
        known = found.get(launch.function)
        if not launch.tuned and (known is None or needs(launch) > needs(known)):
            found[launch.function] = launch
    return list(found.values())


def refused_later(launch: Launch, arch: str) -> str | None:
    """What the stages behind the front end hold against a launch: the passes over Triton's IR, the assembler, the
    shared memory of the architecture; None: nothing. What else goes wrong is not the kernel's, and raised."""
    source = launch.source(launch.function, launch.signature, launch.constexprs, launch.attributes)
    with _standard_error() as printed:
        try:
            shared = triton.compile(source, target=_target(arch), options=dict(launch.options)).metadata.shared
        except CompilationError:
            return None  # the front end's
        except (PTXASError, RuntimeError) as error:
            if not isinstance(error, PTXASError) and PASSES not in str(error):
                raise
            if (first := ERROR.search(f"{printed()}\n{str(error).rpartition('stderr:')[2]}")) is None:
                raise  # an architecture that the assembler does not know
            return f"{launch} for {arch}: {first[1].strip()}"
    beyond = _beyond(shared, arch)
    if beyond is None or "OutOfResources" in _text(launch):  # which a launcher can catch
        return None
    return f"{launch} for {arch}: {beyond}"


def _beyond(shared: int, arch: str) -> str | None:
    """That a block needs more shared memory than an architecture has, where its limit is known, in words."""
    limit = SHARED_LIMIT.get(arch)
    fits = limit is None or shared <= limit
    return None if fits else f"needs {shared} bytes of shared memory; {arch} has {limit}"


def _text(launch: Launch) -> str:
    """Of the file of a kernel."""
    try:
        return Path(launch.function.fn.__code__.co_filename).read_text(errors="replace")
    except (AttributeError, OSError):
        return ""


def refused_launch(error: BaseException) -> str | None:
    """What Triton says of the arguments or options of a launch; None: it is not Triton that raised."""
    if not isinstance(error, OF_ARGUMENTS):
        return None
    inner, place = list[str](), ""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_filename != "<string>" and not module.startswith(("triton.", __name__)):
            place = f"{Path(frame.f_code.co_filename).name}:{line}"
            break
        inner.append(module)
    if not any(module.startswith("triton.runtime.") for module in inner):
        return None
    return f"a launch ({place}): {type(error).__name__}: {error}"


def _place(launch: Launch, error: CompilationError) -> str:
    """The line of the kernel that the error is about, or calls what it is about."""
    code, line = getattr(launch.function.fn, "__code__", None), getattr(error.node, "lineno", None)
    if code is None or line is None:
        return ""
    source = launch.function.raw_src  # with the decorators, which the compiler's lines leave out
    before = next((n for n, text in enumerate(source) if re.match(r"\s*def\s", text)), 0)
    return f" ({Path(code.co_filename).name}:{launch.function.starting_line_number + before + line - 1})"


def _innermost(error: CompilationError) -> CompilationError:
    """The error in the function that a kernel calls, where there is one."""
    while isinstance(error.__cause__, CompilationError):
        error = error.__cause__
    return error


def _told(error: CompilationError) -> str:
    """What is wrong, in the compiler's words, and the source line that it is about."""
    said = error.error_message or str(error.__cause__ or error)
    line, source = getattr(error.node, "lineno", None), (error.src or "").splitlines()
    quoted = f", in `{source[line - 1].strip()}`" if line is not None and line <= len(source) else ""
    return f"{type(error).__name__}: {' '.join(said.split())}{quoted}"


def cubin_resources(cubin: bytes) -> dict[str, int]:
    """`registers` and `spills` (bytes of local memory) a thread, and `shared` (static bytes a block), of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", text)}
    return {"registers": usage["REG"], "spills": usage["STACK"] + usage["LOCAL"], "shared": usage["SHARED"]}


def _front_end(source: Any, target: GPUTarget, options: dict[str, Any]) -> None:
    """What `triton.compile` does first: Python to Triton's IR, where dtypes and shapes are checked."""
    backend = make_backend(target)
    parsed = backend.parse_options(dict(options))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source.make_ir(target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context)


@contextmanager
def _standard_error() -> Iterator[Callable[[], str]]:
    """Keep what the compiler's C++ prints to standard error; yields a function that returns it."""
    with files.in_memory() as file:
        stock = os.dup(2)
        os.dup2(file.fileno(), 2)

        def printed() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield printed
        finally:
            os.dup2(stock, 2)
            os.close(stock)


def _message(error: BaseException, printed: str) -> str:
    """The compiler's own words: the exceptions from the outermost to the cause, and the errors that it printed."""
    texts = []
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).strip()
        if not texts or text not in texts[-1]:
            texts.append(f"{type(cause).__name__}: {text}")
        cause = cause.__cause__
    texts += [line for line in printed.splitlines() if "error:" in line]
    return "\n".join(dict.fromkeys(texts))


def _target(arch: str) -> GPUTarget:
    return GPUTarget("cuda", _number(arch), 32)


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))
