"""From a `.cu` file to a launch: by CuPy on a GPU, by the emulator on the CPU, with the same text and the same checks.

    _scalar = Module(__file__, "scalar.cu")
    _scalar.launch("softmax_block", rows, 256, x, y, cols, *x.stride(), dtype=x.dtype)

`#include "..."` is replaced by the text of that file, found beside the one that includes it or in backends/cupy/lib,
with `#line` before and after: CuPy's cache looks at no included file, and a message names the line that was written.
"""

import re
import struct
import warnings
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from touchstone.backends import Unsupported, replay
from touchstone.backends.cupy.runtime.hopper import TensorMap
from touchstone.backends.devices import SHARED_LIMIT
from touchstone.backends.prepared import OfThread, Prepared, letter
from touchstone.backends.storage.files import portable

LIB = Path(__file__).parents[1] / "lib"  # shared headers
ELEMENTS = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
OPTED_IN = 48 * 1024  # more dynamic shared memory than this a kernel has to be allowed first
EMULATED_ARCHS = ("sm_90", "sm_90a")  # whose own instructions run in the emulator
THREADS, BLOCK_LIMIT, GRID_LIMIT = 1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535)

_POINTEES = {
    "float": torch.float32,
    "__half": torch.float16,
    "half": torch.float16,
    "__nv_bfloat16": torch.bfloat16,
    "double": torch.float64,
    "int": torch.int32,
    "long long": torch.int64,
    "unsigned char": torch.uint8,
}
_INTEGERS = {
    "bool": np.bool_,
    "char": np.int8,
    "signed char": np.int8,
    "unsigned char": np.uint8,
    "short": np.int16,
    "unsigned short": np.uint16,
    "int": np.int32,
    "unsigned": np.uint32,
    "unsigned int": np.uint32,
    "long": np.int64,
    "unsigned long": np.uint64,
    "size_t": np.uint64,
    "long long": np.int64,
    "unsigned long long": np.uint64,
}
_FLOATS = {"float": np.float32, "double": np.float64}
_RANGES = {
    name: (0, 1) if number is np.bool_ else (np.iinfo(number).min, np.iinfo(number).max)
    for name, number in _INTEGERS.items()
}
_ANY, _NUMBER, _BOOL = object(), object(), object()
_NO_MAP = bytes(128)  # in the place of a TensorMap
_FORMATS = {  # of the module struct
    name: letter(np.dtype(number).kind, np.dtype(number).itemsize)
    for name, number in (*_INTEGERS.items(), *_FLOATS.items())
    if number is not np.bool_
} | {"bool": "B"}
_QUALIFIERS = {"const", "volatile", "__restrict__", "__restrict", "__grid_constant__"}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b[^\n]*$", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(r"\w+|\S")


class Parameter(NamedTuple):
    """One parameter of a kernel as it is written: `const ELEMENT* __restrict__ x` is ("x", "ELEMENT", True)."""

    name: str
    type: str
    pointer: bool


class Launch(NamedTuple):
    """What a launcher asked for. `definitions` are sorted (name, value) pairs, ELEMENT among them; `shared` is dynamic;
    `arch` is the one whose own instructions the kernel has, or None."""

    module: "Module"
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cooperative: bool
    definitions: tuple[tuple[str, str], ...]
    arguments: tuple[Any, ...]
    arch: str | None = None


# Set while launches are recorded instead of run (backends/cupy/runtime/compiling.py): the architecture, and what takes
# them.
recorder: tuple[str, Callable[[Launch], None]] | None = None
# Set while the kernels that are launched on a GPU are gathered: the cupy.RawKernel by its id.
launched: dict[int, Any] | None = None


def shared_limit(device: torch.device) -> int:
    """Bytes of shared memory, static and dynamic, that one block may have on `device`; the emulator has as much as
    sm_90."""
    if recorder is not None:
        return SHARED_LIMIT[recorder[0].rstrip("af")]
    return SHARED_LIMIT["sm_90"] if device.type == "cpu" else _gpu_shared_limit(device.index or 0)


class Module:
    """The kernels of one `.cu` file, compiled at their first launch, once for each set of definitions."""

    def __init__(self, beside: str, name: str):
        """`Module(__file__, "scalar.cu")`: the file of that name in the folder of `beside`."""
        self.path = Path(beside).resolve().with_name(name)
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no {self.path}")
        self._programs: dict[Any, Any] = {}
        self._ready = OfThread()

    @cached_property
    def source(self) -> str:
        """The text that is compiled: the file with its own includes inlined."""
        return inlined(self.path)

    @cached_property
    def kernels(self) -> dict[str, tuple[Parameter, ...]]:
        """The parameters of every `__global__` function, by name."""
        return signatures(self.source)

    def launch(
        self,
        kernel: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        *arguments: Any,
        dtype: torch.dtype | None = None,
        shared: int = 0,
        cooperative: bool = False,
        arch: str | None = None,
        **definitions: int | float | str,
    ) -> None:
        """Launch `kernel` on the device of its tensors, there on torch's current stream.

        `grid` blocks of `block` threads, each one to three numbers; `shared` bytes of dynamic shared memory; `dtype`
        defines ELEMENT, other keywords define themselves. Arguments are checked against the parameters as written: a
        tensor of the right dtype or None for a pointer, an int that fits or a float for a number, a NumPy scalar of the
        same size for anything else. `arch` is for instructions of one generation, "sm_90a", which take TensorMaps too.

        Raises TypeError or ValueError naming the argument, and Unsupported where a block needs more shared memory than
        the device has, or the device is not of that `arch`.
        """
        key = (kernel, dtype, cooperative, arch, *definitions.items(), *map(type, definitions.values()))
        ready = self._ready.made.get(key)
        if ready is not None and not _watched() and ready.launch(grid, block, arguments, shared):
            return
        grid, block = _extent(kernel, "grid", grid, GRID_LIMIT), _extent(kernel, "block", block, BLOCK_LIMIT)
        if block[0] * block[1] * block[2] > THREADS:
            raise ValueError(f"{kernel}: a block has at most {THREADS} threads, got {block}")
        if kernel not in self.kernels:
            raise ValueError(f"{self.path.name} has no kernel {kernel!r}; it has {', '.join(self.kernels) or 'none'}")
        device, packed = _pack(kernel, self.kernels[kernel], arguments, dtype)
        if not isinstance(shared, int) or shared < 0:
            raise ValueError(f"{kernel}: shared is a number of bytes, got {shared!r}")
        if shared > (limit := shared_limit(device)):
            raise Unsupported(f"{shared} bytes of shared memory a block; the device has {limit}")
        what = Launch(
            self, kernel, grid, block, shared, cooperative, _defined(kernel, dtype, definitions), packed, arch
        )
        if recorder is not None:
            recorder[1](what)
        elif arch is not None and not _has(device, arch):
            raise Unsupported(f"{kernel} needs {arch}; this is {_arch(device)}")
        elif device.type == "cpu":
            self._emulate(what)
        else:
            replay.spoil("a first launch")
            function = self._run(what, device)
            if launched is None:
                self._ready.made[key] = _ready(self.kernels[kernel], function, what, device)

    def _emulate(self, what: Launch) -> None:
        program = self._programs.get(what.definitions)
        if program is None:
            from touchstone.backends import emulator

            arch = {} if what.arch is None else {"arch": what.arch}
            program = emulator.compile(self.source, name=self.path.name, defines=dict(what.definitions), **arch)
            self._programs[what.definitions] = program
        arguments = [a.emulated() if isinstance(a, TensorMap) else a for a in what.arguments]
        program.launch(what.kernel, what.grid, what.block, arguments, shared=what.shared, cooperative=what.cooperative)

    def _run(self, what: Launch, device: torch.device) -> int:
        """Launch by CuPy, which compiles; the driver's handle of the kernel."""
        import cupy

        index = device.index or 0
        with cupy.cuda.Device(index):
            kernel = self.compiled(what.kernel, what.definitions, index, what.arch)
            if launched is not None:
                launched[id(kernel)] = kernel
            if what.shared:
                static = kernel.shared_size_bytes
                if static + what.shared > (limit := shared_limit(device)):
                    raise Unsupported(f"{static + what.shared} bytes of shared memory a block; the device has {limit}")
                if what.shared > max(OPTED_IN - static, kernel.max_dynamic_shared_size_bytes):
                    kernel.max_dynamic_shared_size_bytes = what.shared
            kernel.kernel(
                what.grid,
                what.block,
                [_passed(a) for a in what.arguments],
                shared_mem=what.shared,
                stream=_stream(torch.cuda.current_stream(device).cuda_stream),
                enable_cooperative_groups=what.cooperative,
            )
            return kernel.kernel.ptr

    def compiled(
        self, kernel: str, definitions: tuple[tuple[str, str], ...], index: int, arch: str | None = None
    ) -> Any:
        """The cupy.RawKernel for GPU number `index`, which has to be CuPy's current device."""
        key = (kernel, definitions, index)
        if key not in self._programs:
            import cupy

            module = self._programs.setdefault(
                (definitions, index),
                cupy.RawModule(code=defined(self.source, definitions), options=options(arch), backend="nvrtc"),
            )
            self._programs[key] = module.get_function(kernel)
        return self._programs[key]


class _Ready:
    """A kernel that was launched once, for launches like that one from the same thread.

    `kinds` has for each parameter a tensor's dtype, or what else it takes: _ANY tensor, a _NUMBER, a _BOOL, a
    TensorMap, or a NumPy scalar of so many bytes.
    """

    def __init__(self, prepared: Prepared, kinds: tuple[Any, ...], what: Launch, index: int) -> None:
        self._prepared, self._kinds, self._index = prepared, kinds, index
        self._shared, self._cooperative = what.shared, what.cooperative

    def launch(
        self, grid: int | tuple[int, ...], block: int | tuple[int, ...], arguments: tuple[Any, ...], shared: int
    ) -> bool:
        """Launch if all is as it should be; False leaves it to the launch that checks, and says what is wrong."""
        index = self._index
        if len(arguments) != len(self._kinds) or torch._C._cuda_getDevice() != index:
            return False
        values: list[Any] = []
        tensors = 0
        for kind, value in zip(self._kinds, arguments, strict=True):
            if kind is _NUMBER and type(value) in (int, float):
                values.append(value)
            elif isinstance(value, torch.Tensor):
                if (kind is not _ANY and value.dtype is not kind) or value.get_device() != index:
                    return False
                values.append(value.data_ptr())
                tensors += 1
            elif kind is _NUMBER:
                values.append(value)
            elif kind is TensorMap and (value is None or isinstance(value, TensorMap)):
                values.append(_NO_MAP if value is None else value.encoded())
            elif kind is _BOOL and isinstance(value, bool):
                values.append(value)
            elif type(kind) is int and isinstance(value, np.generic) and value.nbytes == kind:
                values.append(value.tobytes())
            elif value is None and kind is not _BOOL and type(kind) is not int:
                values.append(0)
            else:
                return False
        try:
            size, threads = _three(grid), _three(block)
            self._prepared.fill(values)
        except (TypeError, ValueError, OverflowError, struct.error):
            return False
        if not (tensors and type(shared) is int and 0 <= shared <= self._shared and _fits(size, threads)):
            return False
        stream = torch._C._cuda_getCurrentRawStream(index)
        self._prepared.launch(size, threads, shared, stream, self._cooperative)
        return True


def _ready(parameters: tuple[Parameter, ...], function: int, what: Launch, device: torch.device) -> _Ready | None:
    """`what` for further launches; None where a parameter is of a type that is passed as it is given."""
    kinds: list[Any] = []
    formats: list[str] = []
    element = dict(what.definitions).get("ELEMENT")
    for parameter, value in zip(parameters, what.arguments, strict=True):
        written = element if parameter.type == "ELEMENT" else parameter.type
        if parameter.pointer:
            kinds.append(_POINTEES.get(str(written), _ANY))
            formats.append("P")
        elif parameter.type == TensorMap.__name__:
            kinds.append(TensorMap)
            formats.append("128s")
        elif parameter.type in _FORMATS:
            kinds.append(_BOOL if parameter.type == "bool" else _NUMBER)
            formats.append(_FORMATS[parameter.type])
        elif isinstance(value, np.generic):
            kinds.append(value.nbytes)
            formats.append(f"{value.nbytes}s")
        else:
            return None
    prepared = Prepared(function, formats, what.module, _watched)
    return _Ready(prepared, tuple(kinds), what, device.index or 0)


def _watched() -> bool:
    return recorder is not None or launched is not None


def _three(extent: int | tuple[int, ...]) -> tuple[int, int, int]:
    """One to three numbers as three. Raises TypeError or ValueError where they are not that."""
    if type(extent) is int:
        return extent, 1, 1
    x, y, z = (*extent, 1, 1)[: max(3, len(extent))]
    if not type(x) is type(y) is type(z) is int:
        raise TypeError(extent)
    return x, y, z


def _fits(grid: tuple[int, int, int], block: tuple[int, int, int]) -> bool:
    (x, y, z), (a, b, c) = grid, block
    within = 0 < x <= GRID_LIMIT[0] and 0 < y <= GRID_LIMIT[1] and 0 < z <= GRID_LIMIT[2] and 0 < c <= BLOCK_LIMIT[2]
    return within and a > 0 and b > 0 and a * b * c <= THREADS


def options(arch: str | None = None) -> tuple[str, ...]:
    """What NVRTC is given; CuPy adds its include folders, -ftz=true and the GPU's architecture.

    CuPy's is sm_90 on a Hopper GPU; of that and -arch=sm_90a, in either order, NVRTC takes sm_90a.
    """
    chosen = () if arch is None else (f"-arch={arch}",)
    return ("-std=c++17", "-lineinfo", *chosen)


def defined(source: str, definitions: tuple[tuple[str, str], ...]) -> str:
    """A text with definitions, in lines before it and not as options: for each tuple of options CuPy compiles an empty
    program in each process, 20 ms on an H200's machine and ten times that where 16 processes share it."""
    return "".join(f"#define {name} {value}\n" for name, value in definitions) + source


def inlined(path: Path) -> str:
    """The text of `path` with every `#include "..."` replaced by that file's text, between `#line` directives.

    A file with `#pragma once` is taken once. Raises FileNotFoundError for an include that is in neither folder, and
    ValueError for files that include each other.
    """
    return f"{_line(1, path)}\n{_inlined(path, set(), ())}"


def _inlined(path: Path, taken: set[Path], within: tuple[Path, ...]) -> str:
    if path in within:
        raise ValueError(f"{path} includes itself, through {' -> '.join(p.name for p in (*within, path))}")
    text = path.read_text()
    if _ONCE.search(text):
        if path in taken:
            return ""
        taken.add(path)
        text = _ONCE.sub("", text)

    def replaced(match: re.Match[str]) -> str:
        line = text.count("\n", 0, match.start()) + 1
        places = [folder / match[1] for folder in (path.parent, LIB)]
        found = next((place.resolve() for place in places if place.is_file()), None)
        if found is None:
            folders = " nor in ".join(dict.fromkeys(str(place.parent) for place in places))
            raise FileNotFoundError(f'{path}:{line}: #include "{match[1]}" is not in {folders}')
        inner = _inlined(found, taken, (*within, path))
        return f"{_line(1, found)}\n{inner.rstrip()}\n{_line(line + 1, path)}"

    return _INCLUDE.sub(replaced, text)


def _line(number: int, path: Path) -> str:
    return f'#line {number} "{portable(str(path))}"'


def signatures(source: str) -> dict[str, tuple[Parameter, ...]]:
    """The parameters of every `__global__` function of a text, by name."""
    found: dict[str, tuple[Parameter, ...]] = {}
    tokens = _TOKEN.findall(_COMMENT.sub(" ", source))
    for start, token in enumerate(tokens):
        if token != "__global__":
            continue
        name, at = "", start + 1
        while at < len(tokens) and tokens[at] not in ("{", ";"):
            if tokens[at] == "(":
                inside, at = _parenthesised(tokens, at)
                if not name.startswith("__"):  # __launch_bounds__(256), __cluster_dims__(2, 1, 1)
                    found[name] = tuple(_parameter(words) for words in _split(inside))
                    break
            else:
                name, at = tokens[at], at + 1
    return found


def _parenthesised(tokens: list[str], at: int) -> tuple[list[str], int]:
    """What is between the parenthesis at `at` and its partner, and the place after that."""
    depth, start = 0, at + 1
    while at < len(tokens):
        depth += {"(": 1, ")": -1}.get(tokens[at], 0)
        at += 1
        if depth == 0:
            break
    return tokens[start : at - 1], at


def _split(tokens: list[str]) -> list[list[str]]:
    """Parameter lists at their commas, those within brackets aside; without what follows a `=`."""
    found: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(token, 0)
        if token == "," and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    return [] if found in ([[]], [["void"]]) else found


def _parameter(words: list[str]) -> Parameter:
    words = [word for word in words if word not in _QUALIFIERS]
    pointer = "*" in words or "[" in words
    words = [word for word in words if word != "*"]
    words = words[: words.index("[")] if "[" in words else words
    return Parameter(words[-1], " ".join(words[:-1]), pointer)


def _extent(kernel: str, what: str, value: int | tuple[int, ...], limits: tuple[int, ...]) -> tuple[int, int, int]:
    sizes = value if isinstance(value, tuple) else (value,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, int) for size in sizes):
        raise TypeError(f"{kernel}: {what} is an int or a tuple of one to three, got {value!r}")
    x, y, z = (*sizes, 1, 1)[:3]
    for axis, size, limit in zip("xyz", (x, y, z), limits, strict=True):
        if not 1 <= size <= limit:
            raise ValueError(f"{kernel}: {what}.{axis} is 1 to {limit}, got {size}")
    return x, y, z


def _defined(
    kernel: str, dtype: torch.dtype | None, definitions: dict[str, int | float | str]
) -> tuple[tuple[str, str], ...]:
    found = {name: str(int(value) if isinstance(value, bool) else value) for name, value in definitions.items()}
    for name, value in definitions.items():
        if len(name) < 2:
            raise ValueError(f"{kernel}: {name} is a macro of one letter, which breaks NVIDIA's headers")
        if not isinstance(value, int | float | str):
            raise TypeError(f"{kernel}: {name} is defined as an int, a float or a str, got {value!r}")
    if dtype is not None:
        if dtype not in ELEMENTS:
            raise TypeError(f"{kernel}: dtype is one of {', '.join(map(str, ELEMENTS))}, got {dtype}")
        found["ELEMENT"] = ELEMENTS[dtype]
    return tuple(sorted(found.items()))


def _pack(
    kernel: str, parameters: tuple[Parameter, ...], arguments: tuple[Any, ...], dtype: torch.dtype | None
) -> tuple[torch.device, tuple[Any, ...]]:
    """The device of the tensors, and the arguments with every number in the type that the kernel declares."""
    if len(arguments) != len(parameters):
        names = ", ".join(parameter.name for parameter in parameters)
        raise TypeError(f"{kernel} takes {len(parameters)} arguments ({names}), got {len(arguments)}")
    first: tuple[str, torch.device] | None = None
    packed = []
    for parameter, value in zip(parameters, arguments, strict=True):
        if isinstance(value, torch.Tensor):
            _check_tensor(kernel, parameter, value, dtype)
            if first is None:
                first = (parameter.name, value.device)
            elif value.device != first[1]:
                raise ValueError(f"{kernel}: {parameter.name} is on {value.device}, but {first[0]} is on {first[1]}")
            packed.append(value)
        elif parameter.type == TensorMap.__name__ and not parameter.pointer:
            if value is not None and not isinstance(value, TensorMap):
                raise TypeError(f"{kernel}: {parameter.name}: expected a TensorMap or None, got {value!r}")
            packed.append(_NO_MAP if value is None else value)
        elif parameter.pointer:
            if value is not None:
                raise TypeError(f"{kernel}: {parameter.name} is a pointer: expected a tensor or None, got {value!r}")
            packed.append(None)
        else:
            packed.append(_number(kernel, parameter, value))
    if first is None:
        raise TypeError(f"{kernel}: no argument is a tensor, so there is no device to launch on")
    return first[1], tuple(packed)


def _check_tensor(kernel: str, parameter: Parameter, tensor: torch.Tensor, dtype: torch.dtype | None) -> None:
    if not parameter.pointer:
        raise TypeError(f"{kernel}: {parameter.name} is {parameter.type}, not a pointer, got a tensor")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{kernel}: {parameter.name} is on {tensor.device}; kernels run on cpu and cuda")
    expected = dtype if parameter.type == "ELEMENT" else _POINTEES.get(parameter.type)
    if expected is not None and tensor.dtype != expected:
        raise TypeError(f"{kernel}: {parameter.name} points to {expected}, got a tensor of {tensor.dtype}")


def _number(kernel: str, parameter: Parameter, value: Any) -> Any:
    """`value` as a NumPy scalar of the type that the kernel declares."""
    where = f"{kernel}: {parameter.name} is {parameter.type}"
    if parameter.type in _INTEGERS:
        if not isinstance(value, int | np.integer | np.bool_):
            raise TypeError(f"{where}, got {value!r}")
        number = _INTEGERS[parameter.type]
        low, high = _RANGES[parameter.type]
        if not low <= value <= high:
            raise ValueError(f"{where}, {low} to {high}, got {value}")
        return number(value)
    if parameter.type in _FLOATS:
        if not isinstance(value, int | float | np.integer | np.floating):
            raise TypeError(f"{where}, got {value!r}")
        return _FLOATS[parameter.type](value)
    if not isinstance(value, np.generic | np.ndarray) or value.size != 1:
        raise TypeError(f"{where}: expected a NumPy scalar of that size, got {value!r}")
    return value


def _passed(argument: Any) -> Any:
    """A packed argument as CuPy takes it: bytes that it copies."""
    if isinstance(argument, TensorMap):
        argument = argument.encoded()
    if isinstance(argument, bytes):
        return np.frombuffer(argument, f"V{len(argument)}")
    if argument is None or isinstance(argument, torch.Tensor):
        return np.uint64(0 if argument is None else argument.data_ptr())
    return argument


def _has(device: torch.device, arch: str) -> bool:
    """Whether `device` has the instructions of one generation."""
    return arch in EMULATED_ARCHS if device.type == "cpu" else _arch(device) == arch.rstrip("af")


def _arch(device: torch.device) -> str:
    return "the emulator" if device.type == "cpu" else "sm_{}{}".format(*torch.cuda.get_device_capability(device))


@lru_cache
def _gpu_shared_limit(index: int) -> int:
    import cupy

    return cupy.cuda.Device(index).attributes["MaxSharedMemoryPerBlockOptin"]


@lru_cache
def _stream(handle: int) -> Any:
    """CuPy's view of a CUDA stream; torch draws its own from a small pool."""
    import cupy

    with warnings.catch_warnings():  # from_external, its successor, wants torch 2.12
        warnings.simplefilter("ignore", DeprecationWarning)
        return cupy.cuda.ExternalStream(handle)
