"""What a backend offers, as `typing.Protocol`s: what the judge asks for, and all it asks for.

`backends/<name>/__init__.py` is a module of the form `Backend`; it imports no kernel library at its top. Further
modules are optional: `compiling.py` (`Compiling`), `arrays.py` (`Arrays`), `porting.py` (`Porting`). So are the
functions of `OptionalParts`.
"""

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

from touchstone.backends.gpus import Gpu
from touchstone.backends.porting import Kernel, Launch, Topic


class Backend(Protocol):
    """A language that kernels are written in, on the devices "cpu" and "cuda"."""

    ALIASES: Mapping[str, str]  # other names, and the device they imply: {"interpreter": "cpu"}
    CPU_VARIABLES: Sequence[str]  # environment variables that mean --device=cpu
    PACKAGES: Sequence[str]  # the distributions whose versions a result depends on
    WORK_PER_SECOND: Mapping[str, float]  # multiply-adds per second by device, from which the limit of work follows
    NOTES: Sequence[str]  # what a port from or to this language must know

    def why_not(self, device: str) -> str | None:
        """None if it runs on `device`, else a sentence that says what to install or type."""

    def prepare(self, device: str) -> None:
        """Set this process up for `device`, before any op file is imported. RuntimeError says why it cannot."""

    def adopt(self, fn: Callable[..., Any], device: str) -> None:
        """Set up what a user's function, imported already, needs in this process."""

    def reimport(self, fn: Callable[..., Any], device: str) -> bool:
        """Whether a user's function was imported for the other device, so that its file has to be imported afresh."""

    def lacks(self, needs: str, device: str) -> str | None:
        """Why `needs` of a variant is not met on `device`, or None."""

    def doctor(self) -> list[tuple[str, str, str]]:
        """(what, value, note) for each thing worth telling, repairs with their upstream issue included."""

    def resources(self, kernel: Any) -> dict[str, int]:
        """`registers` and `spills` (bytes) per thread, `shared` bytes per block, of a compiled kernel."""


class Writers(Protocol):
    """Within it, who wrote a byte is known."""

    def of(self, address: int) -> str | None:
        """Program or thread and source line that wrote a byte: "program (3, 0, 0), line 57 of softmax.py"."""


class OptionalParts(Protocol):
    """Functions that a backend may offer besides."""

    ENGINE: str  # what runs its kernels on the CPU, for those that offer `instruments`

    def writers(self, device: str) -> AbstractContextManager[Writers] | None:
        """Records who writes what; None where that cannot be known."""

    def instruments(self, device: str) -> Mapping[str, Callable[[], AbstractContextManager[Any]]]:
        """By name, contexts in which a right kernel is right and a wrong one may raise or go wrong: other orders of
        programs, a look for races. They are asked for in a process that need not have imported the language, and
        entered where its kernels run, on the engine `ENGINE` of the backend."""

    def undefined(
        self, device: str, conspicuous: Collection[str] | None
    ) -> AbstractContextManager[Mapping[str, str]] | None:
        """Within: what the language does not define, though GPUs agree on it, is what they give; at the `conspicuous`
        places ("k.py:12"; None: everywhere) it is what shows its use. Gives what was undefined by place, as kernels
        run. None where nothing is undefined here, or nothing is known."""

    def answering(self, gpu: Gpu) -> AbstractContextManager[Any]:
        """Within: what a launcher asks the language's own runtime about a GPU is answered as that one would, where
        kernels run on the CPU."""

    def reaches(self, fn: Callable[..., Any]) -> bool:
        """Whether a user's function reaches a kernel that this process runs on the CPU."""

    def interprets(self, fn: Callable[..., Any]) -> bool:
        """Whether a user's function reaches kernels that are interpreted on the CPU: of those the part `compiling` says
        what the compiler refuses."""

    def expect(self, device: str) -> None:
        """Set this process up for `device` should a user's function import the language later."""

    def displaced(self, error: BaseException, device: str) -> bool:
        """Whether a call raised `error` because its kernels were set up for the other device than `device`."""

    def cannot(self, error: BaseException, device: str) -> str | None:
        """Why a user's call that raised `error` says nothing about its kernel, or None."""

    def launched(self, call: Callable[[], Any]) -> list[Any]:
        """The compiled kernels that a call launches on a GPU, as `resources` takes them."""

    def ready(self, text: str) -> Sequence[Path]:
        """The artefacts (backends/storage) that a file of this text will need on the CPU and that hold nothing of its
        kernels, made if they are not there yet; none of a file that does not speak of the language. Raises RuntimeError
        or OSError where they cannot be had."""

    def target(self, device: str) -> str:
        """The name of the backend on a device where it has several ways to run there: "numba@simulator"."""

    def tune(
        self, fn: Callable[..., Any], arguments: Mapping[str, Any], verified: Callable[[], bool], *, write: bool
    ) -> Any:
        """Time the configurations in the `space` of a variant, and pin the fastest right one."""


class RecordedLaunch(Protocol):
    """One launch that was recorded instead of run; `str` names it in messages."""

    kernel: str  # its name
    key: Any  # equal for the same code
    types: Any  # what a change of size, layout or configuration leaves as it is
    features: Any  # all that it is specialised on
    weight: int  # greater for greater tiles


class Compiling(Protocol):
    """`compiling.py`: kernels compile without a GPU. Imported with none of the backend's CPU_VARIABLES set; raises
    ImportError where its library is missing."""

    def architectures(self, needs: str | None) -> Sequence[str]:
        """What a variant with that `needs` claims to compile for, the oldest first."""

    def recording(self, arch: str) -> AbstractContextManager[list[RecordedLaunch]]:
        """Append launches on CPU tensors, with the configurations pinned for `arch`, to the list; run nothing."""

    def compile_one(self, launch: Any, arch: str, to_machine_code: bool = True) -> Mapping[str, Any]:
        """`registers`, `spills` and `shared`, or `error`; and `seconds`."""

    # Of a backend that interprets kernels on the CPU: what its compiler says of a user's.

    def answering(self, arch: str) -> AbstractContextManager[Any]:
        """Within: what a user's file asks the language's runtime about a GPU is answered as that one would."""

    def spread(self, launches: Sequence[Any]) -> Sequence[Any]:
        """Of recorded launches those that stand for the others."""

    def refused(self, launch: Any, arch: str) -> str | None:
        """Why the language refuses the kernel of a recorded launch, or None; in what the user wrote, with its line.
        Raises what keeps it from being told."""

    def heaviest(self, launches: Sequence[Any]) -> Sequence[Any]:
        """Of recorded launches one of each kernel, that of the largest tiles, of which the next one tells."""

    def refused_later(self, launch: Any, arch: str) -> str | None:
        """Why what comes after the front end refuses a recorded launch, or None. Raises what keeps it from being
        told."""

    def refused_launch(self, error: BaseException) -> str | None:
        """What a launch said that was not recorded, if `error` comes from the language; None: from the launcher."""


class Arrays(Protocol):
    """`arrays.py`: users' kernels take the library's arrays."""

    DEVICE: str  # where its arrays lie: "cpu" or "cuda"
    TYPE: str  # what a kernel must return, for messages: "numpy.ndarray"

    def why_not(self, dtype: torch.dtype) -> str | None:
        """None if it has `dtype`, else a sentence that says what to do."""

    def to_array(self, tensor: torch.Tensor) -> Any:
        """The array over the memory of `tensor`, with its strides."""

    def to_tensor(self, value: Any) -> torch.Tensor:
        """The tensor over the memory of `value`. TypeError or ValueError completes "expected a TYPE, got ..."."""

    def calling(self) -> AbstractContextManager[Any]:
        """Around each call of a kernel: makes its stream torch's current one."""


class Porting(Protocol):
    """`porting.py`: `touchstone port` reads from and writes for the language. It imports no kernel library."""

    TOPICS: Mapping[str, Topic]  # ways in which languages differ, by name; conformance/porting/port.py lists REQUIRED

    def launch_of(self, call: ast.Call) -> Launch | None:
        """The launch that a call in a launcher is, or None."""

    def launch_text(self, launch: Launch, op: str) -> str:
        """A launch as this language writes it."""

    def stem(self, kernel: str, op: str) -> str:
        """The name of a kernel without what this language adds."""

    def find_kernel(self, files: Sequence[Path], name: str) -> Kernel | None:
        """Where a kernel stands, given the op's Python files and those that they take launchers from."""

    def imports(self, path: Path) -> str:
        """How a file of launchers begins."""

    def declaration(self, name: str, op: str) -> str:
        """How a kernel begins."""

    def beside(self, path: Path, op: str, kernels: Sequence[str]) -> Mapping[Path, str]:
        """Other files that a port needs, by path."""
