"""Compiling kernels for GPUs that are not there: what launchers launch on CPU tensors is recorded, then put through
NVVM, NVRTC (for what a kernel is linked with) and nvJitLink.

numba-cuda types, lowers and links a kernel as it does for a GPU, with its defaults (link-time optimisation among them);
no driver is asked. The PTX of a kernel is read (instructions.py): float64 arithmetic, and the code of negative indices
within loops, are refused like what does not compile, with the line of Python that they come from.
"""

import os
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch

from touchstone.backends import numba, without_collection
from touchstone.backends.devices import SHARED_LIMIT
from touchstone.backends.emulator.numba.scopes import replaced
from touchstone.backends.numba.runtime import instructions
from touchstone.backends.numba.runtime.launching import OPTED_IN

if numba.not_installed():
    raise ImportError(numba.not_installed())

try:
    from cuda.bindings import nvjitlink
    from numba import cuda
    from numba.cuda import codegen, dispatcher, types
    from numba.cuda import compiler as numba_compiler
    from numba.cuda.core.errors import NumbaDebugInfoWarning
    from numba.cuda.cudadrv import nvrtc as numba_nvrtc
    from numba.cuda.cudadrv import nvvm
    from numba.cuda.cudadrv.libs import get_cudalib
    from numba.cuda.typing.typeof import Purpose, typeof

    from touchstone.backends import nvrtc

    nvvm.NVVM()
    nvjitlink.version()
except Exception as error:
    raise ImportError(
        f'NVVM, NVRTC or nvJitLink does not load: pip install "numba-cuda[cu13]" ({type(error).__name__}: {error})'
    ) from error

ARCHITECTURES = ("sm_80", "sm_90")
REGISTERS = 65536  # of a block; a warp takes them by 256
FITTING = 256  # threads of a block that have 255 registers each

_USAGE = re.compile(
    r"Function properties for (?P<name>\S+)\s.*?(?P<stack>\d+) bytes stack frame[^\n]*\n[^\n]*Used "
    r"(?P<registers>\d+) registers"
    r"(?P<rest>[^\n]*)",
    re.DOTALL,
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MESSAGE = 2000  # characters of a compiler's message that are kept


def architectures(needs: str | None = None) -> tuple[str, ...]:
    """The architectures that a variant claims to compile for: sm_80 and sm_90, without those below its `needs`.

    Every GPU has "shuffles"; Numba's own simulator lacks them.
    """
    if needs in (None, "shuffles"):
        return ARCHITECTURES
    if needs[-1] in "af":
        return (needs,)
    return tuple(arch for arch in ARCHITECTURES if _number(arch) >= _number(needs)) or (needs,)


_typed: set[Any] = set()  # kernels with the types of their arguments, whatever their layouts


class Launch:
    """One specialisation: a kernel with the types of its arguments, and what a block of it is made of."""

    def __init__(self, function: Any, arguments: tuple[Any, ...], threads: int, shared: int):
        self.function = function
        self.arguments = arguments  # Numba's types
        bounds = function.targetoptions.get("launch_bounds")
        self.bound = bounds[0] if isinstance(bounds, tuple) else bounds
        self.threads = max(threads, self.bound or FITTING)
        self.shared = shared
        kinds = [kind.copy(layout="A") if isinstance(kind, types.Array) else kind for kind in arguments]
        typed = (function, *kinds)
        self.stands_for_others = typed not in _typed  # launches of other layouts, and for other architectures
        _typed.add(typed)

    @property
    def kernel(self) -> str:
        return self.function.__name__

    @cached_property
    def constants(self) -> dict[str, Any]:
        """The numbers that a kernel made by a function has from there."""
        code, cells = self.function.py_func.__code__, self.function.py_func.__closure__ or ()
        values = zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True)
        return {name: value for name, value in values if isinstance(value, (int, float, str))}

    @cached_property
    def key(self) -> str:
        """Equal for launches of the same code that ask for the same of a multiprocessor."""
        return f"{self.function.__module__}.{self.function.__qualname__} {id(self.function)} {self}"

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types of the elements, each once: what launches of other sizes, layouts and configurations share."""
        return tuple(sorted({str(kind.dtype) for kind in self.arguments if isinstance(kind, types.Array)}))

    @cached_property
    def features(self) -> frozenset[tuple[str, str]]:
        """Each thing that the launch is specialised on."""
        named = zip(self._names, map(str, self.arguments), strict=False)
        constants = ((name, str(value)) for name, value in self.constants.items())
        return frozenset([*named, *constants, ("threads", str(self.threads)), ("shared", str(self.shared))])

    @cached_property
    def weight(self) -> int:
        """Product of the integers that it is made with, the threads and the bytes of shared memory."""
        product = self.threads * max(1, self.shared)
        for value in self.constants.values():
            product *= value if isinstance(value, int) and value > 1 else 1
        return product

    @property
    def _names(self) -> tuple[str, ...]:
        return self.function.py_func.__code__.co_varnames

    def __str__(self) -> str:
        parts = [f"{name}: {_short(kind)}" for name, kind in zip(self._names, self.arguments, strict=False)]
        parts += [f"{name}={value}" for name, value in self.constants.items()]
        block = f"{'at most ' * (self.threads == (self.bound or FITTING))}{self.threads} threads"
        block += f", {self.shared} bytes of dynamic shared memory" if self.shared else ""
        return f"{self.kernel}({', '.join(parts)}; {block})"


def _short(kind: Any) -> str:
    """`float32[:, :] C` of an array, else Numba's name."""
    if isinstance(kind, types.Array):
        return f"{kind.dtype}[{', '.join(':' * kind.ndim)}] {kind.layout}"
    return str(kind)


@contextmanager
def recording(arch: str = "sm_90") -> Iterator[list[Launch]]:
    """Inside, launches of Numba kernels are recorded and nothing runs: outputs stay as they were allocated.

    Yields the list that grows, one entry a launch.
    """
    launches: list[Launch] = []

    def call(self: Any, args: tuple[Any, ...], configuration: Any) -> None:
        x, y, z = configuration.blockdim
        kinds = tuple(typeof(_plain(value), Purpose.argument) for value in args)
        launches.append(Launch(self, kinds, x * y * z, configuration.sharedmem))

    with replaced((dispatcher.CUDADispatcher, "call", call), (cuda.core.config, "CUDA_LOW_OCCUPANCY_WARNINGS", 0)):
        yield launches


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def compile_one(launch: Launch, arch: str, to_machine_code: bool = True) -> dict[str, Any]:
    """Compile one specialisation for `arch` ("sm_90"), or type and lower it only: once for all layouts and
    architectures, which from sm_75 on numba-cuda lowers alike.

    Returns `seconds`, with machine code `registers` and `spills` (bytes of local memory) a thread and `shared` bytes a
    block, and `error`, the compiler's message, where it was refused, where a block needs more than it can have, or
    where the PTX holds what no variant should.
    """
    start = time.perf_counter()
    found: dict[str, Any] = {}
    try:
        with _device(arch), without_collection():
            if not to_machine_code:
                if launch.stands_for_others:
                    _lowered(launch, arch)
            else:
                compiled = compile_kernel(launch, arch)
                found = resources(compiled)
                found["shared"] += launch.shared
                error = _refused_by_a_device(launch, arch, found) or _refused_by_a_reader(launch, arch, compiled.ptx)
                found |= {"error": error} if error else {}
    except Exception as error:
        found["error"] = _COLOUR.sub("", f"{type(error).__name__}: {error}").strip()[:MESSAGE]
    return {**found, "seconds": time.perf_counter() - start}


class Compiled(NamedTuple):
    """The PTX that NVVM makes of a kernel with its device functions, the machine code, and what ptxas said."""

    name: str
    ptx: str
    cubin: bytes
    log: str


def compile_kernel(launch: Launch, arch: str) -> Compiled:
    """Compile one specialisation as a GPU of `arch` would be given it."""
    with _device(arch):
        library = _library(launch)
        lto = library._lto
        parts = [library.get_ltoir() if lto else library.get_asm_str().encode()]
        parts += [_compiled_source(file, arch, lto) for file in library._linking_files]
        runtime = get_cudalib("cudadevrt", static=True) if library.needs_cudadevrt else None
        cubin, log = _link(parts, runtime, arch, lto, library._max_registers)
        return Compiled(library._entry_name, library.get_asm_str(), cubin, log)


def ptx_with_lines(launch: Launch, arch: str) -> str:
    """The PTX with the lines of the kernel that it comes from; of a device function, the line that calls it."""
    with _device(arch):
        return _library(launch, lineinfo=True).get_asm_str()


def _library(launch: Launch, **options: Any) -> Any:
    """numba-cuda's kernel, its PTX made: types are inferred, and what it calls is compiled, too."""
    with warnings.catch_warnings():  # of functions that have no source, which it would like lines of
        warnings.simplefilter("ignore", NumbaDebugInfoWarning)
        kernel = dispatcher._Kernel(
            launch.function.py_func, launch.arguments, **{**launch.function.targetoptions, **options}
        )
    return kernel._codelibrary


def resources(compiled: Compiled) -> dict[str, int]:
    """`registers` and `spills` (bytes of local memory) a thread, and `shared` (static bytes a block)."""
    usage = {match["name"]: match for match in _USAGE.finditer(compiled.log)}[compiled.name]
    shared = re.search(r"(\d+) bytes smem", usage["rest"])
    declared = re.findall(r"^\s*\.shared [^;]*\[(\d+)\];", compiled.ptx, re.MULTILINE)  # without LTO ptxas does not say
    return {
        "registers": int(usage["registers"]),
        "spills": int(usage["stack"]),
        "shared": int(shared[1]) if shared else sum(map(int, declared)),
    }


def _refused_by_a_device(launch: Launch, arch: str, found: dict[str, Any]) -> str | None:
    """Why a launch would fail although the kernel compiles; None if it would not."""
    if launch.shared <= OPTED_IN and found["shared"] > OPTED_IN:
        return f"needs {found['shared']} bytes of shared memory; numba-cuda lets a block have {OPTED_IN}"
    if found["shared"] > SHARED_LIMIT.get(arch, found["shared"]):
        return f"needs {found['shared']} bytes of shared memory; {arch} has {SHARED_LIMIT[arch]}"
    if launch.bound and launch.threads > launch.bound:
        return f"is launched with {launch.threads} threads; its launch_bounds allow {launch.bound}"
    taken = -(-launch.threads // 32) * -(-found["registers"] * 32 // 256) * 256
    if taken > REGISTERS:
        return f"{launch.threads} threads of {found['registers']} registers take {taken}; a block has {REGISTERS}"
    return None


def _refused_by_a_reader(launch: Launch, arch: str, ptx: str) -> str | None:
    """What the PTX holds that it should not, with the lines of Python that it comes from."""
    if not instructions.unwanted(ptx):
        return None
    return "\n".join(instructions.unwanted(ptx_with_lines(launch, arch))[:5])


class _NoDevice(NamedTuple):
    """Stands for a GPU that is not there."""

    compute_capability: tuple[int, int]


@contextmanager
def _device(arch: str) -> Iterator[None]:
    """numba-cuda compiles as for a GPU of `arch`, and asks no driver."""
    number = _number(arch)
    device = _NoDevice((number // 10, number % 10))
    capability = (*device.compute_capability, "a" if number >= 90 else "")  # as numba-cuda itself chooses

    def current_device() -> _NoDevice:
        return device

    def ensured(self: Any, cc: Any) -> Any:
        return capability if cc is None else cc

    places = [(module, "get_current_device", current_device) for module in (dispatcher, numba_compiler)]
    places.append((codegen.CUDACodeLibrary, "_ensure_cc", ensured))
    with replaced(*places):
        yield


def _lowered(launch: Launch, arch: str) -> None:
    """What numba-cuda does first: Python to NVVM's IR, where types are inferred."""
    options = launch.function.targetoptions
    dispatcher.compile_cuda(
        launch.function.py_func,
        types.void,
        launch.arguments,
        debug=False,
        lineinfo=False,
        forceinline=False,
        fastmath=options.get("fastmath"),
        nvvm_options={"opt": 3},
        cc=(_number(arch) // 10, _number(arch) % 10),
    )


@lru_cache(maxsize=64)
def _source(text: str, name: str, arch: str, lto: bool) -> bytes:
    """CUDA C++ that a kernel is linked with, compiled as numba-cuda compiles it: to PTX or, with `lto`, to LTO-IR."""
    folders = [folder for folder in _header_folders() if folder]
    options = [
        f"-arch={arch}",
        "-rdc=true",
        "--device-as-default-execution-space",
        *(["-dlto"] if lto else []),
        *(f"-I{folder}" for folder in folders),
    ]
    made, log = nvrtc.compiled(text, name, options, "LTOIR" if lto else "PTX")
    if made is None:
        raise RuntimeError(f"{name} does not compile:\n{log}")
    return made[0]


def _compiled_source(file: Any, arch: str, lto: bool) -> bytes:
    if isinstance(file, str):
        with open(file) as opened:
            return _source(opened.read(), file, _architecture(arch), lto)
    if file.kind != "cu":
        raise RuntimeError(f"a kernel linked with {file.name}: only CUDA C++ is compiled here")
    data = file.data
    return _source(data.decode() if isinstance(data, bytes) else data, file.name, _architecture(arch), lto)


@lru_cache(maxsize=1)
def _header_folders() -> tuple[str, ...]:
    """What numba-cuda includes: its own headers, the toolkit's, CCCL's."""
    from cuda.pathfinder import find_nvidia_header_directory
    from numba.cuda.cuda_paths import get_cuda_paths

    own = os.path.dirname(os.path.dirname(os.path.abspath(numba_nvrtc.__file__)))
    version = numba_nvrtc._get_nvrtc_version()[0]
    return (
        os.path.join(own, "include", str(version)),
        str(get_cuda_paths()["include_dir"].info),
        find_nvidia_header_directory("cccl") or "",
        os.path.join(own, "memory_management"),
    )


def _link(parts: list[bytes], runtime: str | None, arch: str, lto: bool, registers: int | None) -> tuple[bytes, str]:
    """The machine code of `parts`, and what ptxas says of it."""
    # from the cache that CUDA keeps where it has a driver, a kernel comes without ptxas's words
    options = [f"-arch={_architecture(arch)}", "-Xptxas=-v", "-no-cache", *(["-lto"] if lto else [])]
    options += [f"-maxrregcount={registers}"] if registers else []
    linker = nvjitlink.create(len(options), options)
    try:
        kind = nvjitlink.InputType.LTOIR if lto else nvjitlink.InputType.PTX
        try:
            for part in parts:
                nvjitlink.add_data(linker, kind, part, len(part), "kernel")
            if runtime:
                nvjitlink.add_file(linker, nvjitlink.InputType.LIBRARY, runtime)
            nvjitlink.complete(linker)
        except nvjitlink.nvJitLinkError as error:
            log = bytearray(nvjitlink.get_error_log_size(linker))
            nvjitlink.get_error_log(linker, log)
            raise RuntimeError(f"{error}\n{nvrtc.as_text(log)}") from error
        cubin = bytearray(nvjitlink.get_linked_cubin_size(linker))
        nvjitlink.get_linked_cubin(linker, cubin)
        log = bytearray(nvjitlink.get_info_log_size(linker))
        nvjitlink.get_info_log(linker, log)
        return bytes(cubin), nvrtc.as_text(log)
    finally:
        nvjitlink.destroy(linker)


def _architecture(arch: str) -> str:
    """As numba-cuda itself chooses: with the features of its one generation from sm_90 on."""
    number = _number(arch)
    return f"sm_{number}{'a' if number >= 90 else ''}"


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))
