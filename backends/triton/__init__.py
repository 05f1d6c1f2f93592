"""Triton: compiled for a GPU, or run on the CPU by its interpreter, repaired (backends/triton/interpreter.py)."""

assert __name__ == "backends.triton", "run Touchstone from its own root folder: this package must not be found as `triton`"

import importlib.util
import math
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType

from backends.devices import cuda_works

ALIASES = {"interpreter": "cpu"}
CPU_VARIABLES = ("TRITON_INTERPRET",)
# multiply-adds a second through the interpreter in tiles of 64 x 64 x 32; a GPU needs no ceiling
WORK_PER_SECOND = {"cpu": 4e7, "cuda": math.inf}
INTERPRETER_RUNS = ("sm_80", "sm_90")  # of what a rung can need: tensor descriptors, but no Gluon and no inline PTX
NOTES = (
    "A kernel is one program over a tile; there are no threads, no barriers and no shared memory to declare.",
    "Tiles have power-of-two sides; tails are masked, and a masked load needs `other` wherever the value is used.",
    "program_id is int32: cast it to int64 before multiplying by a stride.",
    "tl.dot takes sides of at least 16, accumulates in float32, and rounds float32 operands to tf32 unless "
    'input_precision="ieee".',
    "tl.exp, tl.log and the like take float32 only; load 16-bit values and cast.",
    "tl.max and tl.min ignore NaN, as do tl.maximum and tl.minimum unless told otherwise.",
    "The grid's first axis may be 2^31 - 1 long, the others 65535.",
)


def why_not(device: str) -> str | None:
    """None if Triton runs on `device` here, else what is missing."""
    if importlib.util.find_spec("triton") is None:
        return 'triton is not installed: pip install "triton==3.7.*" (Linux x86-64 and aarch64 only)'
    return cuda_works() if device == "cuda" else None


def prepare(device: str) -> None:
    """Set Triton up to interpret ("cpu") or to compile ("cuda"), for the life of the process.

    Raises RuntimeError where Triton was imported for the other device already.
    """
    loaded = sys.modules.get("triton")
    if loaded is not None and _interprets(loaded) != (device == "cpu"):
        raise RuntimeError(
            f"triton was imported {'to interpret' if device == 'cuda' else 'to compile'} before Touchstone could set it up for "
            f"{device!r}; one process runs one device: start a fresh process, with TRITON_INTERPRET="
            f"{'1' if device == 'cpu' else '0'} from the start"
        )
    if device == "cuda":
        os.environ.pop("TRITON_INTERPRET", None)
        return
    os.environ["TRITON_INTERPRET"] = "1"
    from backends.triton import interpreter

    interpreter.install()


def adopt(fn, device: str) -> None:
    """Repair the interpreter where a user's function, imported already, has kernels that it will run."""
    loaded = sys.modules.get("triton")
    if loaded is not None and device == "cpu" and _interprets(loaded):
        prepare("cpu")


def reimport(fn, device: str) -> bool:
    """Whether `fn` reaches a Triton kernel that was decorated for the other device."""
    if "triton" not in sys.modules:
        return False
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    stale = JITFunction if device == "cpu" else InterpretedFunction
    return any(isinstance(kernel, stale) for kernel in _kernels(fn))


def lacks(needs: str, device: str) -> str | None:
    """Why a rung that `needs` an architecture does not run on `device`, or None."""
    if device == "cpu":
        return None if needs in INTERPRETER_RUNS else f"needs {needs}; the interpreter runs {', '.join(INTERPRETER_RUNS)}"
    import torch

    major, minor = torch.cuda.get_device_capability()
    wanted = needs.removeprefix("sm_")
    exact = wanted.endswith("a")
    number = int(wanted.rstrip("a"))
    have = 10 * major + minor
    if have == number or (have > number and not exact):
        return None
    return f"needs {needs}; this GPU is sm_{have}"


def doctor() -> list[tuple[str, str, str]]:
    """(what, value, note) for `conformance doctor`."""
    if importlib.util.find_spec("triton") is None:
        return [("triton", "not installed", why_not("cpu") or "")]
    rows = [("triton", metadata.version("triton"), "versions 3.6 to 3.9 are supported")]
    loaded = sys.modules.get("triton")
    mode = "not imported yet" if loaded is None else "interprets" if _interprets(loaded) else "compiles"
    rows.append(("mode of this process", mode, "TRITON_INTERPRET=1 before the first import of triton means interpret"))
    if loaded is None or _interprets(loaded):
        prepare("cpu")
        from backends.triton.interpreter import REPAIRS

        rows += [("interpreter repair", repair.__name__.strip("_"), note) for repair, note in REPAIRS]
    return rows


def resources(kernel) -> dict[str, int]:
    """Registers and spilled bytes a thread, and shared memory a program, of a compiled kernel."""
    kernel._init_handles()
    return {"registers": kernel.n_regs, "spills": kernel.n_spills, "shared": kernel.metadata.shared}


def _interprets(triton: ModuleType) -> bool:
    return bool(triton.knobs.runtime.interpret)


def _kernels(fn, depth: int = 4) -> Iterator[object]:
    """Triton kernels that a function reaches through its globals, closure, defaults and the functions it calls."""
    from triton.runtime.jit import KernelInterface

    seen: set[int] = set()
    queue = [(fn, 0)]
    while queue:
        found, level = queue.pop()
        if id(found) in seen or level > depth:
            continue
        seen.add(id(found))
        if isinstance(found, KernelInterface):
            yield found
            inner = getattr(found, "fn", None)
            queue += [(inner, level + 1)] if isinstance(inner, KernelInterface) else []
            continue
        found = getattr(found, "__func__", found)
        found = getattr(found, "func", found)  # functools.partial
        wrapped = getattr(found, "__wrapped__", None)
        queue += [(wrapped, level)] if wrapped is not None else []
        code = getattr(found, "__code__", None)
        if code is None:
            call = getattr(type(found), "__call__", None)  # an object with state: a callable class or a module
            if hasattr(call, "__code__") and not isinstance(found, type):
                queue += [(call, level), *((value, level + 1) for value in vars(found).values() if callable(value))] if hasattr(found, "__dict__") else []
            continue
        names = {name: found.__globals__.get(name) for name in _names(code)}
        cells = [cell.cell_contents for cell in (found.__closure__ or ()) if _filled(cell)]
        queue += [(value, level + 1) for value in (*names.values(), *cells) if callable(value) or isinstance(value, KernelInterface)]


def _names(code) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            names |= _names(constant)
    return names


def _filled(cell) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True
