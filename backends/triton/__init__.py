"""Triton: compiled for a GPU, or run on the CPU by its interpreter, patched to match GPU semantics
(backends/triton/runtime/interpreter/)."""

if __name__ != "touchstone.backends.triton":
    raise ImportError(
        f"touchstone.backends.triton was imported as {__name__!r}: start Python in Touchstone's own folder, or "
        "put that folder (none inside it) on PYTHONPATH, so that `import triton` finds Triton itself"
    )

import contextlib
import functools
import importlib.abc
import importlib.util
import math
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from importlib import metadata
from types import FunctionType, MethodType, ModuleType
from typing import Any

from touchstone.backends import INTERPRETER, replay, seen_by
from touchstone.backends.devices import capability_lacks, cuda_unavailable
from touchstone.backends.gpus import DEFAULT, GPUS, Gpu
from touchstone.backends.later import Later

ALIASES = {"interpreter": "cpu"}
CPU_VARIABLES = ("TRITON_INTERPRET",)
PACKAGES = ("triton",)
ENGINE = INTERPRETER  # of its kernels on the CPU
# multiply-adds a second that small tiles get through the interpreter on a busy core; 64 x 64 x 32 on an idle one: 1.3e8
WORK_PER_SECOND = {"cpu": 4e7, "cuda": math.inf}
INTERPRETED = "sm_80", "sm_90", "sm_90a"  # of what a variant can need: tensor descriptors, Gluon for Hopper
NOTES = (
    "A kernel is the program of one tile: no threads, no barriers, no shared memory to declare; the grid counts tiles, "
    "where CUDA C and Numba count blocks and, besides, threads.",
    "The launch order is kernel[grid](arguments, constexprs, num_warps=, num_stages=); CUDA C takes "
    "(grid, block, arguments) and Numba [grid, block, stream, shared bytes].",
    "program_id(0) is blockIdx.x and varies fastest among neighbours; a grid is (2^31 - 1, 65535, 65535) at most.",
    "program_id and tl.arange are int32: cast to int64 before multiplying by a stride.",
    "The sides of a tile are powers of two; what hangs over is masked, and a masked load needs `other` wherever its "
    "value is used.",
    "An accumulator is float32: sums of 16-bit tiles round at every addition, so cast before tl.sum.",
    "tl.dot wants K of at least 16, accumulates in float32, and rounds float32 operands to TF32 unless "
    'input_precision="ieee".',
    "tl.exp, tl.log and their kind take float32 only. A Python literal or constexpr takes the tile's dtype; a float "
    "argument of the kernel is float32 and makes a 16-bit tile float32.",
    "tl.max, tl.min, tl.maximum and tl.minimum skip NaN, as fmaxf does.",
    "A variable keeps its dtype through a loop: the compiler refuses an accumulator that starts as int 0.",
)


def why_not(device: str) -> str | None:
    """None if Triton can run on `device` ("cpu" or "cuda") here, else what is missing and what to do."""
    if importlib.util.find_spec("triton") is None:
        return 'triton is not installed: pip install "triton>=3.6,<3.10" (Linux on x86-64 or aarch64)'
    return (cuda_unavailable() if device == "cuda" else None) or _taken(device)


def _taken(device: str) -> str | None:
    """None unless this process has set Triton up for the other device than `device`."""
    if _mode() in (None, "interpret" if device == "cpu" else "compile"):
        return None
    value = "1" if device == "cpu" else "0"
    return (
        f"triton was imported to {_mode()} before Touchstone could set it up for {device!r}, and a process runs "
        f"one device: start a fresh one with TRITON_INTERPRET={value}, or import nothing that imports triton before"
    )


def prepare(device: str) -> None:
    """Set Triton up to interpret ("cpu") or to compile ("cuda") for the life of the process, before any op file.

    Raises RuntimeError where Triton was imported for the other device already.
    """
    if reason := _taken(device):
        raise RuntimeError(reason)
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        _interpreter().install()
    else:
        os.environ.pop("TRITON_INTERPRET", None)
        from touchstone.backends.triton.runtime import caching, first

        caching.install()
        first.install()


def adopt(fn: Callable[..., Any], device: str) -> None:
    """Set up for a user's `fn` what `prepare` does, where this process has imported its kernels for the device."""
    if _mode() == {"cpu": "interpret", "cuda": "compile"}[device]:
        prepare(device)


def reimport(fn: Callable[..., Any], device: str) -> bool:
    """Whether `fn` reaches a Triton kernel that was decorated for the other device than `device`."""
    if _mode() is None:
        return False
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    stale = JITFunction if device == "cpu" else InterpretedFunction
    other = _mode() != {"cpu": "interpret", "cuda": "compile"}[device]  # a kernel in Gluon is of one class in both
    return any(other if _is_gluon(found) else isinstance(found, stale) for found in _reached(fn))


def reaches(fn: Callable[..., Any]) -> bool:
    """Whether `fn` reaches a Triton kernel that this process interprets."""
    if _mode() != "interpret":
        return False
    from triton.runtime.interpreter import InterpretedFunction

    return any(isinstance(found, InterpretedFunction) or _is_gluon(found) for found in _reached(fn))


def interprets(fn: Callable[..., Any]) -> bool:
    """Whether `fn` reaches a Triton kernel, that this process interprets or another one has to."""
    return reaches(fn) or reimport(fn, "cpu")


def displaced(error: BaseException, device: str) -> bool:
    """Whether a call on the CPU raised `error` in Triton, which this process has imported to compile."""
    if device != "cpu" or _mode() != "compile":
        return False
    found: BaseException | None = error
    while found is not None:
        frames = (frame for frame, _ in traceback.walk_tb(found.__traceback__))
        if any(str(frame.f_globals.get("__name__")).startswith("triton.") for frame in frames):
            return True
        found = found.__cause__ or found.__context__
    return False


@contextlib.contextmanager
def answering(gpu: Gpu) -> Iterator[None]:
    """Within, where kernels are interpreted: `triton.runtime.driver.active` answers as on `gpu`."""
    if _mode() == "compile":
        yield
        return
    with _later.within(lambda: _driver().answering(gpu)):
        yield


def expect(device: str) -> None:
    """Interpret the kernels of a Triton that a user's function imports later, when it is called."""
    if device == "cpu" and _mode() is None and importlib.util.find_spec("triton") is not None:
        os.environ["TRITON_INTERPRET"] = "1"
        _later.watch()


def lacks(needs: str, device: str) -> str | None:
    """None if `device` has what a variant `needs` ("sm_90", "sm_90a"), else one sentence."""
    if device == "cuda":
        return capability_lacks(needs)
    return None if needs in INTERPRETED else f"needs {needs}; the interpreter knows {', '.join(INTERPRETED)}"


def doctor() -> list[tuple[str, str, str]]:
    """(what, value, note) rows for `touchstone doctor`."""
    if importlib.util.find_spec("triton") is None:
        return [("triton", "not installed", why_not("cpu") or "")]
    rows = [("triton", metadata.version("triton"), "3.6 to 3.9 are supported")]
    rows.append(("mode", _mode() or "not imported yet", "decided by TRITON_INTERPRET at the first import of triton"))
    rows.append(
        (
            "launchers that demand CUDA",
            f"on the CPU, answered as an {GPUS[DEFAULT]} would",
            "while a user's kernel is imported and called; --arch chooses another GPU: " + ", ".join(GPUS),
        )
    )
    if _mode() == "interpret" or (_mode() is None and cuda_unavailable()):  # here it can only interpret
        prepare("cpu")
        from touchstone.backends.triton.runtime.interpreter import REPAIRS, active

        for repair in REPAIRS:
            note = f"{repair.what} ({repair.answers})" if repair.answers else repair.what
            rows.append((f"repair: {repair.name}", "active" if active(repair.name) else "not installed", note))
    return rows


def resources(kernel: Any) -> dict[str, int]:
    """`registers` and `spills` (bytes) a thread, and `shared` bytes a program, of a compiled kernel or a cubin."""
    if isinstance(kernel, bytes):
        from touchstone.backends.triton.runtime.compiling import cubin_resources

        return cubin_resources(kernel)
    kernel._init_handles()  # loads the kernel, which is when the driver tells
    return {"registers": kernel.n_regs, "spills": 4 * kernel.n_spills, "shared": kernel.metadata.shared}


def launched(call: Callable[[], Any]) -> list[Any]:
    """The compiled kernels that `call` launches on a GPU, each once; `resources` takes them."""
    from triton.runtime.jit import JITFunction

    return seen_by(JITFunction, "run", lambda _, kernel: kernel, call)


def writers(device: str) -> AbstractContextManager[Any] | None:
    """Where kernels are interpreted, a context manager that records who writes where: its `.of(address)` names the
    program and the source line that wrote a byte last, or is None."""
    if device != "cpu" or _mode() != "interpret":
        return None
    return _interpreter().writers()


def instruments(device: str) -> dict[str, Callable[[], AbstractContextManager[None]]]:
    """By name, context managers within which a right kernel is right too, and a wrong one may raise or go wrong."""
    if device != "cpu" or _mode() == "compile":
        return {}
    return {
        "programs in reverse": lambda: _interpreter().schedule("reverse"),
        "programs shuffled": lambda: _interpreter().schedule("shuffled"),
        "races": lambda: _interpreter().races(),
    }


def _interpreter() -> ModuleType:
    import triton  # noqa: F401 - where `_later` waits for it, it needs the whole package below, not one half imported

    from touchstone.backends.triton.runtime import interpreter

    return interpreter


def undefined(device: str, conspicuous: Collection[str] | None) -> AbstractContextManager[dict[str, str]] | None:
    """Where kernels are interpreted, a context manager within which what Triton does not define is what NVIDIA GPUs
    give, but conspicuous at those places ("k.py:12"; None: everywhere); it gives what was undefined, by place."""
    if device != "cpu" or _mode() != "interpret":
        return None
    return _interpreter().undefined(conspicuous)


def tune(launcher: Callable[..., Any], arguments: dict[str, Any], verify: Callable[[], bool], write: bool = True):
    """Time the configurations in the `space` of a launcher on one call; see
    touchstone.backends.triton.runtime.tuning.tune."""
    from touchstone.backends.triton.runtime import tuning

    return tuning.tune(launcher, arguments, verify, write)


class _Alone(importlib.abc.MetaPathFinder):
    """Finds nothing, but patches the interpreter before the first file here that a process of TRITON_INTERPRET=1
    imports by itself: nobody has called `prepare`, and a stock interpreter multiplies bfloat16 as integers."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        own = name.startswith(f"{__name__}.") and not name.startswith(f"{__name__}.runtime")  # plumbing has no kernels
        if own and os.environ.get("TRITON_INTERPRET", "0") != "0":
            sys.meta_path.remove(self)
            if importlib.util.find_spec("triton") is not None:
                import triton.language  # noqa: F401 - decides the mode

                if _mode() == "interpret":
                    prepare("cpu")


sys.meta_path.insert(0, _Alone())


_later = Later("triton", lambda: prepare("cpu"))


def _driver() -> ModuleType:
    from touchstone.backends.triton.runtime import driver

    return driver


def _recorded() -> AbstractContextManager[None]:
    from touchstone.backends.triton.runtime import ready

    return ready.while_recorded()


replay.around_recording.append(_recorded)
_OTHERS = ("numba", "llvmlite", "cupy")  # libraries that lead to no kernel of Triton's


def _mode() -> str | None:
    """ "interpret" or "compile" as Triton was imported, None while it is not."""
    standard = sys.modules.get("triton.language.standard")
    if standard is None:
        return None
    return "interpret" if type(standard.sum).__name__ == "InterpretedFunction" else "compile"


def _reached(fn: Any, limit: int = 20_000) -> Iterator[object]:
    """What a function reaches through globals it names, its closure, defaults, attributes and the functions it calls.

    Modules of Triton, torch, NumPy, other kernel libraries and the standard library are not entered.
    """
    seen: set[tuple[int, frozenset[str]]] = set()
    queue: list[tuple[Any, frozenset[str]]] = [(fn, frozenset())]
    while queue and len(seen) < limit:
        found, names = queue.pop()
        module = isinstance(found, ModuleType)
        identity = (id(found), names if module else frozenset())
        if identity in seen:
            continue
        seen.add(identity)
        if module:
            queue += [(vars(found)[name], names) for name in names if name in vars(found) and _entered(found)]
            continue
        queue.append((getattr(found, "__self__", None), names))  # MyFunction.apply is torch's, MyFunction the user's
        if str(type(found).__module__).startswith(("triton.runtime.", "triton.experimental.gluon.")):
            yield found
            queue.append((getattr(found, "fn", None), names))
        elif _entered(found):
            queue += [(value, names) for value in _parts(found)]
            if isinstance(found, FunctionType):  # a compiled function's class has a __code__ too, a descriptor
                names = _names(found.__code__)
                queue += [(found.__globals__[name], names) for name in names if name in found.__globals__]


def _is_gluon(found: Any) -> bool:
    return type(found).__name__ == "GluonJITFunction"


def _parts(found: Any) -> Iterator[Any]:
    """The objects that one object holds."""
    if isinstance(found, FunctionType):
        yield from found.__defaults__ or ()
        yield from (found.__kwdefaults__ or {}).values()
        for cell in found.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not assigned yet
                continue
    elif isinstance(found, list | tuple | set | frozenset):
        yield from found
    elif isinstance(found, dict):
        yield from found.values()
    elif isinstance(found, property):
        yield found.fget
    elif isinstance(found, type):
        yield from found.__mro__[1:]
    else:
        # Only of known kinds: any other object may answer to every name, or raise (pytest.mark does).
        if isinstance(found, MethodType | staticmethod | classmethod):
            yield found.__func__
        elif isinstance(found, functools.partial | functools.partialmethod | functools.cached_property):
            yield found.func
        yield type(found)
    yield from getattr(found, "__dict__", {}).values()


def _entered(found: Any) -> bool:
    module = found.__name__ if isinstance(found, ModuleType) else getattr(found, "__module__", None)
    top = str(module).partition(".")[0]
    if str(type(found).__module__).partition(".")[0] in _OTHERS:  # a kernel of another library calls itself the user's
        return False
    return top == "functools" or top not in ("triton", "torch", "numpy", *_OTHERS, *sys.stdlib_module_names)


def _names(code: Any) -> frozenset[str]:
    """Names that a code object and the functions nested in it use."""
    nested = (_names(constant) for constant in code.co_consts if hasattr(constant, "co_names"))
    return frozenset(code.co_names).union(*nested)
