"""Compiling kernels for GPUs that are not there: what launchers launch on CPU tensors is recorded, then put through
NVRTC.

NVRTC and CUDA's headers come from wheels and need no driver; CuPy takes no part, as it asks for a device even to
compile. The options are those that CuPy passes on, so that the machine code is what a GPU would be given. ptxas says
what a thread and a block of it need, and this process compares that with what the launch asks for and the architecture
has.
"""

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from touchstone.backends.cupy.runtime import module
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.devices import SHARED_LIMIT

try:
    from cuda.pathfinder import find_nvidia_header_directory

    from touchstone.backends import nvrtc
except Exception as error:
    raise ImportError(
        f'NVRTC does not load: pip install cuda-bindings "cupy-cuda13x[ctk]" ({type(error).__name__}: {error})'
    ) from error

ARCHITECTURES = ("sm_80", "sm_90")
REGISTERS = 65536  # of a block; a warp takes them by 256

_USAGE = re.compile(
    r"Function properties for (?P<name>\w+)\s[^\n]*?(?P<stack>\d+) bytes stack frame[^\n]*\n[^\n]*Used "
    r"(?P<registers>\d+) registers"
    r"(?P<rest>[^\n]*)",
    re.DOTALL,
)


def architectures(needs: str | None = None) -> tuple[str, ...]:
    """The architectures that a variant claims to compile for: sm_80 and sm_90, without those below its `needs`, and for
    features of one generation ("sm_90a") that one alone."""
    if needs is None:
        return ARCHITECTURES
    if needs[-1] in "af":
        return (needs,)
    return tuple(arch for arch in ARCHITECTURES if _number(arch) >= _number(needs)) or (needs,)


class Launch:
    """One specialisation: a kernel with its definitions, and what a block of it is made of."""

    def __init__(self, launch: module.Launch):
        self.module: Module = launch.module
        self.kernel = launch.kernel
        self.definitions = launch.definitions
        self.threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.shared = launch.shared

    @cached_property
    def key(self) -> str:
        """Equal for launches of the same code that ask for the same of a multiprocessor."""
        return f"{self.module.path} {self}"

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The type of the elements: what launches of other sizes, layouts and configurations share."""
        return tuple(value for name, value in self.definitions if name == "ELEMENT")

    @cached_property
    def features(self) -> frozenset[tuple[str, str]]:
        """Each thing that the launch is specialised on."""
        return frozenset([*self.definitions, ("threads", str(self.threads)), ("shared", str(self.shared))])

    @cached_property
    def weight(self) -> int:
        """Product of the integers defined, the threads and the bytes of shared memory."""
        product = self.threads * max(1, self.shared)
        for _, value in self.definitions:
            product *= int(value) if value.isdigit() and int(value) > 1 else 1
        return product

    def __str__(self) -> str:
        definitions = ", ".join(f"{name}={value}" for name, value in self.definitions)
        block = f"{self.threads} threads" + (f", {self.shared} bytes of dynamic shared memory" if self.shared else "")
        return f"{self.kernel}({definitions}; {block})"


@contextmanager
def recording(arch: str = "sm_90") -> Iterator[list[Launch]]:
    """Inside, launches of CUDA kernels are recorded and nothing runs: outputs stay as they were allocated.

    Launchers find the shared memory of `arch`. Yields the list that grows, one entry a launch.
    """
    launches: list[Launch] = []
    stock = module.recorder
    module.recorder = (arch, lambda launch: launches.append(Launch(launch)))
    try:
        yield launches
    finally:
        module.recorder = stock


class Compiled(NamedTuple):
    """What NVRTC makes of a file: `error` is its message where it refuses, else empty."""

    cubin: bytes = b""
    ptx: str = ""
    log: str = ""
    error: str = ""


def compile_one(launch: Launch, arch: str, to_machine_code: bool = True) -> dict[str, Any]:
    """Compile the file of one specialisation for `arch` ("sm_90"), or put it through the front end only.

    Returns `seconds`, with machine code `registers` and `spills` (bytes of local memory) a thread and `shared` bytes a
    block, and `error`, the compiler's message, where it was refused or a block needs more than it can have.
    """
    start = time.perf_counter()
    made = compiled(launch.module, launch.definitions, arch, to_machine_code)
    found: dict[str, Any] = {}
    error: str | None = made.error
    if not error and to_machine_code:
        found = dict(_resources(made.log)[launch.kernel])
        found["shared"] += launch.shared
        error = _refused_by_a_device(launch, arch, made, found)
    return {**found, **({"error": error} if error else {}), "seconds": time.perf_counter() - start}


def _refused_by_a_device(launch: Launch, arch: str, made: Compiled, found: dict[str, Any]) -> str | None:
    """Why a launch would fail although the kernel compiles; None if it would not."""
    bound = _bounds(made.ptx).get(launch.kernel)
    if bound is not None and launch.threads > bound:
        return f"is launched with {launch.threads} threads; its __launch_bounds__ allow {bound}"
    limit = SHARED_LIMIT.get(arch.rstrip("af"))
    if limit is not None and found["shared"] > limit:
        return f"needs {found['shared']} bytes of shared memory; {arch} has {limit}"
    registers = found["registers"]
    taken = -(-launch.threads // 32) * -(-registers * 32 // 256) * 256
    if taken > REGISTERS:
        return (
            f"{launch.threads} threads of {registers} registers take {taken}; a block has {REGISTERS}: declare "
            f"__launch_bounds__({launch.threads})"
        )
    return None


@lru_cache(maxsize=256)
def compiled(
    source: Module,
    definitions: tuple[tuple[str, str], ...],
    arch: str,
    to_machine_code: bool = True,
    options: tuple[str, ...] = ("-ftz=true",),
) -> Compiled:
    """A file with its definitions, compiled. The default `options` are what CuPy adds to ours."""
    arguments = [
        *module.options(),
        *options,
        f"-arch={arch}",
        "--device-as-default-execution-space",
        *(f"-I{folder}" for folder in _header_folders()),
        # from the cache that CUDA keeps where it has a driver, a kernel comes without ptxas's words
        *(("--ptxas-options=-v", "--no-cache") if to_machine_code else ("--fdevice-syntax-only",)),
    ]
    wanted = ("CUBIN", "PTX") if to_machine_code else ()
    made, log = nvrtc.compiled(module.defined(source.source, definitions), source.path.name, arguments, *wanted)
    if made is None:
        return Compiled(log=log, error=log)
    if not to_machine_code:
        return Compiled(log=log)
    cubin, ptx = made
    return Compiled(cubin, nvrtc.as_text(ptx), log)


def _resources(log: str) -> dict[str, dict[str, int]]:
    """What ptxas prints of each kernel: registers, bytes of local memory a thread, static shared memory a block."""
    found = {}
    for match in _USAGE.finditer(log):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        found[match["name"]] = {
            "registers": int(match["registers"]),
            "spills": int(match["stack"]),
            "shared": int(shared[1]) if shared else 0,
        }
    return found


def _bounds(ptx: str) -> dict[str, int]:
    """The greatest number of threads that each kernel with __launch_bounds__ allows a block."""
    found = {}
    for match in re.finditer(r"\.entry (\w+)\(.*?\)\s*([^{]*)\{", ptx, re.DOTALL):
        bound = re.search(r"\.maxntid (\d+)(?:, (\d+), (\d+))?", match[2])
        if bound is not None:
            found[match[1]] = math.prod(int(number or 1) for number in bound.groups())
    return found


@lru_cache
def _header_folders() -> tuple[str, ...]:
    folders = [find_nvidia_header_directory(name) for name in ("cudart", "cccl")]
    return tuple(folder for folder in folders if folder)


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))
