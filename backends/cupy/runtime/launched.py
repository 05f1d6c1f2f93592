"""CuPy's kernels of a user's file on the CPU: `cupy.RawKernel` and `cupy.RawModule` whose launches the emulator runs.

A launch takes and refuses what CuPy's does: its arrays and the addresses of tensors as pointers, whatever their type;
numbers as their bytes, a Python int as eight and a float as a double.
"""

import contextlib
import functools
import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from touchstone.backends import NotRun, cuda_face, emulator

_WITHOUT_ASKING = 48 << 10  # bytes of dynamic shared memory
_NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}  # as CuPy passes Python's


@contextlib.contextmanager
def emulated() -> Iterator[None]:
    """Within: whoever asks CuPy, which is imported, for a raw kernel gets one that runs here."""
    import cupy

    replaced = [(cupy, "RawKernel", _RawKernel), (cupy, "RawModule", _RawModule)]
    replaced += [(cupy.cuda, name, _anywhere(name)) for name in ("Device", "Stream", "ExternalStream")]
    replaced += [(cupy, name, _array(getattr(cupy, name))) for name in ("asarray", "from_dlpack")]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def lacks_gpu(error: BaseException) -> bool:
    """Whether CuPy raised `error` because it finds no GPU."""
    none = ("cudaErrorInsufficientDriver", "cudaErrorNoDevice", "cudaErrorSystemDriverMismatch")
    return type(error).__module__.startswith("cupy") and any(name in str(error) for name in none)


class _RawModule:
    """`cupy.RawModule`."""

    def __init__(self, *, code: str | None = None, **options: Any) -> None:
        _tuple("options", options.get("options", ()))
        given = options.get("name_expressions")
        self.name_expressions = given if given is None else tuple(given)
        self._code, self._options = code, {**options, "name_expressions": self.name_expressions}
        # as CuPy's has them
        self.code, self.file_path = code, options.get("path")
        self.options, self.backend = tuple(options.get("options", ())), options.get("backend", "nvrtc")
        self._programs: dict[str, emulator.Program] = {}  # by architecture
        self._real: Any = None

    def get_function(self, name: str) -> "_RawKernel":
        """The kernel of that name, or the instance of a template."""
        return _RawKernel(self._code, name, module=self, **self._options)

    def compile(self, log_stream: Any = None) -> None:
        """Compile what is not compiled."""
        if (gpu := cuda_face.answers()) is None:
            self.real.compile(log_stream)
        else:
            self.program(gpu.arch)

    def program(self, arch: str) -> emulator.Program:
        """The kernels, compiled for the CPU as for a GPU of `arch`."""
        if arch not in self._programs:
            if self._code is None:
                raise NotRun(f"cupy.RawModule: {self._options.get('path')}: compiled for a GPU, which is not here")
            if found := re.search(r"#\s*include\s*[<\"](cupy/[^>\"]*)", self._code):
                raise NotRun(f"cupy.RawModule: {found[1]} needs CuPy's own compiler, and a GPU")
            defines, folders = _compiler_options(self._options.get("options", ()))
            self._programs[arch] = emulator.compile(self._code, "cupy.cu", defines, folders, arch)
        return self._programs[arch]

    def linked(self, program: emulator.Program, name: str) -> str:
        """The kernel of `program` that CuPy finds by `name`: one of C linkage, or a name expression."""
        if name in (self.name_expressions or ()):
            return name.removeprefix("&")
        known = [kernel.name.split("::")[-1] for kernel in program.kernels if kernel.extern_c]
        if name in known:
            return name
        said = f'no kernel {name!r} of C linkage in {program.name}: declare it extern "C", or name it in'
        raise RuntimeError(f"{said} RawModule's name_expressions; of C linkage: {', '.join(known) or 'none'}")

    @property
    def real(self) -> Any:
        """CuPy's own, for calls with tensors on a GPU."""
        if self._real is None:
            import cupy

            self._real = cupy.RawModule(code=self._code, **self._options)
        return self._real

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if cuda_face.answers() is not None:
            raise NotRun(f"cupy.RawModule.{name} needs a GPU")
        return getattr(self.real, name)


class _RawKernel:
    """`cupy.RawKernel`."""

    def __init__(self, code: str | None, name: str, options: tuple[str, ...] = (), *given: Any, **rest: Any) -> None:
        names = ("backend", "translate_cucomplex")
        module = rest.pop("module", None)
        settings = {"options": options, **dict(zip(names, given, strict=False)), **rest}
        self._module = _RawModule(code=code, **settings) if module is None else module
        self._cooperative = bool(settings.get("enable_cooperative_groups"))
        self.name, self.max_dynamic_shared_size_bytes = name, _WITHOUT_ASKING
        self.code, self.file_path = self._module.code, self._module.file_path
        self.options, self.backend = self._module.options, self._module.backend

    def compile(self, log_stream: Any = None) -> None:
        """Compile it, if it is not compiled."""
        self._module.compile(log_stream)

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        if (gpu := cuda_face.answers()) is None:
            self._real()(grid, block, args, shared_mem=shared_mem, stream=stream)
            return
        if shared_mem > max(_WITHOUT_ASKING, self.max_dynamic_shared_size_bytes):
            raise ValueError(
                f"shared_mem: {shared_mem} bytes, of which CUDA gives {self.max_dynamic_shared_size_bytes} unless "
                "max_dynamic_shared_size_bytes says more"
            )
        cuda_face.note("cupy.RawKernel")
        program = self._module.program(gpu.arch)
        kernel = self._module.linked(program, self.name)
        blocks, threads = _dimensions("grid", grid), _dimensions("block", block)
        if stream is not None:
            int(stream.ptr)  # which a stream of torch does not have
        passed = [_passed(number + 1, value) for number, value in zip(range(len(args)), args, strict=True)]
        passed = passed[: program.takes(kernel)]
        program.launch(kernel, blocks, threads, passed, shared=shared_mem, cooperative=self._cooperative)

    def _real(self) -> Any:
        kernel = self._module.real.get_function(self.name)
        if self.max_dynamic_shared_size_bytes > _WITHOUT_ASKING:
            kernel.max_dynamic_shared_size_bytes = self.max_dynamic_shared_size_bytes
        return kernel

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if cuda_face.answers() is not None:
            raise NotRun(f"cupy.RawKernel.{name} needs a GPU")
        return getattr(self._real(), name)


class _Pointer:
    """`cupy.ndarray.data`."""

    def __init__(self, tensor: torch.Tensor, offset: int = 0) -> None:
        self.ptr, self._tensor = cuda_face.tell_address(tensor) + offset, tensor
        self._offset = offset

    def __add__(self, offset: int) -> "_Pointer":
        return _Pointer(self._tensor, self._offset + offset)


class _Array:
    """A tensor as `cupy.asarray` gives it: to pass to a kernel, and to say of what shape it is. What CuPy computes
    with needs a GPU."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.data = tensor, _Pointer(tensor)
        self.shape, self.ndim, self.size = tuple(tensor.shape), tensor.ndim, tensor.numel()
        self.itemsize, self.nbytes = tensor.element_size(), tensor.numel() * tensor.element_size()
        self.strides = tuple(n * self.itemsize for n in tensor.stride())
        if tensor.dtype is not torch.bfloat16:
            self.dtype = torch.empty(0, dtype=tensor.dtype).numpy().dtype

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __len__(self) -> int:
        return len(self.tensor)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotRun(f"cupy.ndarray.{name} needs a GPU")


def _array(real: Any) -> Any:
    """`cupy.asarray` or `cupy.from_dlpack`, which takes a tensor here as on a GPU."""

    def taken(value: Any, *args: Any, **options: Any) -> Any:
        if cuda_face.answers() is None or not isinstance(value, torch.Tensor) or args or options:
            return real(value, *args, **options)
        if cuda_face.on_host(value):
            raise NotRun(f"cupy.{real.__name__} of what lies on the host needs a GPU")
        if value.requires_grad:
            error = BufferError if real.__name__ == "from_dlpack" else RuntimeError
            raise error(f"cupy.{real.__name__} of a tensor that requires grad: pass its detach()")
        return _Array(value)

    return taken


@functools.cache
def _anywhere(name: str) -> Any:
    """`cupy.cuda.Device` or a stream: there is one here, and what it is given is done at once."""
    import cupy

    real = getattr(cupy.cuda, name)

    class Here:
        null: Any = None
        id = ptr = 0

        def __new__(cls, *args: Any, **options: Any) -> Any:
            return super().__new__(cls) if cuda_face.answers() is not None else real(*args, **options)

        def __init__(self, *args: Any, **options: Any) -> None:
            pass

        def __enter__(self) -> "Here":
            return self

        def __exit__(self, *raised: object) -> None:
            pass

        def use(self) -> "Here":
            return self

        def synchronize(self) -> None:
            pass

        @classmethod
        def from_external(cls, stream: Any) -> "Here":
            return cls() if cuda_face.answers() is not None else real.from_external(stream)

        def wait_event(self, event: Any) -> None:
            pass

    return Here


def _tuple(name: str, value: Any) -> None:
    """TypeError for what CuPy, compiled by Cython, takes for none, subclasses too."""
    if type(value) is not tuple:
        raise TypeError(f"Argument {name!r} has incorrect type (expected tuple, got {type(value).__name__})")


def _dimensions(name: str, sizes: Any) -> tuple[int, int, int]:
    """A grid or a block as CuPy launches it: at least one along each axis, x a number that is whole by its type."""
    _tuple(name, sizes)
    x, y, z = (max(1, (*sizes, 1, 1)[axis]) for axis in range(3))
    return operator.index(x), int(y), int(z)


def _passed(number: int, given: Any) -> emulator.Address | emulator.Bytes:
    """An argument as CuPy gives it to a kernel."""
    if isinstance(given, _Array):
        return emulator.Address(given.tensor)
    value, told = given.ptr if isinstance(given, _Pointer) else given, ""
    if isinstance(given, torch.Tensor):
        told = ": pass x.data_ptr() or cupy.asarray(x)"
    elif isinstance(given, np.ndarray) and given.size == 1:
        value = given.reshape(())[()]
    elif isinstance(given, np.ndarray):
        told = f" of shape {given.shape}: one of size one is passed by value; a pointer is an address or a CuPy array"
    if value is None:
        return emulator.Bytes(bytes(8))
    address = int(value) if type(value) is int or (isinstance(value, np.integer) and value.itemsize == 8) else None
    if address is not None and (tensor := cuda_face.tensor_at(address)) is not None:
        return emulator.Address(tensor)
    if type(value) in _NUMBERS:
        value = (np.uint64 if address is not None and address >= 1 << 63 else _NUMBERS[type(value)])(value)
    if isinstance(value, np.generic):
        return emulator.Bytes(value.tobytes())
    raise TypeError(f"argument {number}: Unsupported type {type(given)}{told}")


def _compiler_options(options: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """What NVRTC's options define, and the folders of headers."""
    words = [word for option in options for word in re.sub(r"^(-D|-I)\s+", r"\1", option).split()]
    pairs = (re.sub(r"^(-D|--define-macro=)", "", w).partition("=") for w in words if re.match("-D|--define-macro=", w))
    folders = [re.sub(r"^(-I|--include-path=)", "", w) for w in words if re.match("-I|--include-path=", w)]
    return {name: value or "1" for name, _, value in pairs}, folders
