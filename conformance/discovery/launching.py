"""A user's function on the CPU: how it is imported and called where it demands CUDA, and what of it is seen.

While it is imported and called, its questions about CUDA are answered as a GPU of an architecture would
(backends/cuda_face, and `answering` of the backends). Functions that torch compiles are the exception: the compiler
would see those answers instead of torch. Where such a function reaches a kernel that is interpreted here, torch's
compiler stands aside; else nothing is answered.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from touchstone.backends import cuda_face
from touchstone.backends.gpus import GPUS
from touchstone.conformance.discovery import importing, registry
from touchstone.conformance.spec.returned import said

NONE = "none"  # the architecture whose questions are not answered
ARCHITECTURES = (*GPUS, NONE)
COMPILER = "torch._dynamo"  # loaded once anything is compiled

_at_import: WeakKeyDictionary[Callable[..., Any], Counter[str]] = WeakKeyDictionary()


@contextlib.contextmanager
def answering(arch: str, asked: Counter[str]) -> Iterator[None]:
    """Within: questions about CUDA, torch's and those of the kernel languages, are answered as `arch` would, and
    counted in `asked`."""
    if arch == NONE:
        yield
        return
    gpu = GPUS[arch]
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_face.answering(gpu, asked))
        for within in _parts("answering"):
            stack.enter_context(within(gpu))
        yield


def imported(path: str | Path, name: str, arch: str, instead: str | None = None) -> Callable[..., Any]:
    """Function `name` of a file, which is imported as `importing.load` does."""
    asked: Counter[str] = Counter()
    with answering(arch, asked):
        fn = importing.load(path, name, instead)
    with contextlib.suppress(TypeError):  # what has no weak references
        _at_import[fn] = asked
    return fn


class MissingPackage(ValueError):
    """The file of a kernel imports a package that is not installed: the kernel is neither right nor wrong here."""


def opened(path: str | Path, name: str, arch: str, instead: str | None = None) -> Callable[..., Any]:
    """As `imported`; ValueError says in a sentence why the file does not import, MissingPackage what it lacks."""
    try:
        return imported(path, name, arch, instead)
    except ValueError:
        raise
    except ModuleNotFoundError as error:
        raise MissingPackage(f"{path} does not import: {said(error)}") from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} does not import: {type(error).__name__}: {said(error)}") from error


def asked_at_import(fn: Callable[..., Any]) -> Mapping[str, int]:
    """What the file of `fn` asked of CUDA while `imported` imported it."""
    try:
        return _at_import.get(fn, {})
    except TypeError:
        return {}


class Launcher:
    """A user's function on the CPU, as it is called."""

    def __init__(self, fn: Callable[..., Any], arch: str, asked: Counter[str]) -> None:
        reaches = arch != NONE and any(reached(fn) for reached in _parts("reaches"))
        self.arch = NONE if compiled(fn) and not reaches else arch
        self.asked = asked
        self.eager = reaches and COMPILER in sys.modules

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Around a call."""
        if self.arch == NONE:
            yield
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(answering(self.arch, self.asked))
            if self.eager:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield


def expect(device: str) -> None:
    """Set this process, which judges a user's function, up for kernel libraries that it imports only when called."""
    for prepare in _parts("expect"):
        prepare(device)


def displaced(error: BaseException, device: str) -> bool:
    """Whether a call may have raised `error` because its kernels, or the operators around them, were set up for another
    device than `device` before the judge was called."""
    elsewhere = device == "cpu" and isinstance(error, NotImplementedError) and "from the 'CPU' backend" in said(error)
    return elsewhere or any(says(error, device) for says in _parts("displaced"))


def cannot(error: BaseException, device: str) -> str | None:
    """Why a call that raised `error` says nothing about its kernel; None where it does."""
    return next((why for says in _parts("cannot") if (why := says(error, device))), None)


def _parts(name: str) -> list[Callable[..., Any]]:
    """The functions of this name of the backends that have one."""
    found = [getattr(registry.backend(backend), name, None) for backend in registry.backends()]
    return [part for part in found if part is not None]


def compiled(fn: Any) -> bool:
    """Whether `fn` is, or directly uses, a torch.compile'd function."""
    code = getattr(fn, "__code__", None)
    cells = [cell.cell_contents for cell in getattr(fn, "__closure__", None) or () if _filled(cell)]
    used = [getattr(fn, "__globals__", {}).get(name) for name in (code.co_names if code else ())]
    return any(hasattr(found, "_torchdynamo_orig_callable") for found in (fn, *cells, *used))


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
