"""Launches that are made ready: Triton's own looks at every argument anew and has the driver encode each descriptor,
which takes it 45 us for a kernel of four (an H200's host).

    @prepared
    @triton.jit
    def _tma_kernel(a_desc, b_desc, c_desc, M, N, K, ...):

The first launch of a kernel is Triton's. What it gives the driver then is kept, for launches that Triton would compile
the same kernel for, from the same thread: those only put addresses, descriptors and numbers in their places.
"""

import ctypes
import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from itertools import islice
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.runtime.jit import JITFunction

from touchstone.backends import replay, tensormaps
from touchstone.backends.prepared import Extent, OfThread, Prepared
from touchstone.backends.triton.runtime import tuning

_of_thread = OfThread()
MOST = 1024  # launches that a thread keeps; then all are made anew
_NATIVE = JITFunction.run
_FORMATS = {"u1": "?", "i32": "i", "i64": "q", "u64": "Q", "fp32": "f"}  # of numbers, of the module struct
# the elements of a descriptor, from Triton's number to the driver's (CUtensorMapDataType)
_ELEMENTS = {**{number: number for number in range(16)}, 8: 10, 9: 8, 10: 9}


def prepared(kernel: Any) -> Any:
    """The kernel of `triton.jit` or `gluon.jit`; its launches with a tuple as grid are prepared, if constexprs and
    options alone are given by name.

    Worth it for kernels of descriptors, or of two launches: for others it takes about as long as Triton's own.
    """
    to_run = not knobs.runtime.interpret and hasattr(torch._C, "_cuda_getDevice")  # else it can only be compiled here
    if isinstance(kernel, JITFunction) and to_run:
        kernel.run = _Run(kernel)
    return kernel


class Place(NamedTuple):
    """Where a tensor lies in the memory of GPU `device`, in the place of the tensor itself."""

    dtype: torch.dtype
    address: int
    device: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def data_ptr(self) -> int:
        return self.address

    def get_device(self) -> int:
        return self.device

    def element_size(self) -> int:
        return self.dtype.itemsize

    def stride(self, axis: int | None = None) -> Any:
        return self.strides if axis is None else self.strides[axis]


def kept(describe: Callable[..., Any]) -> Any:
    """`describe(x, ...)`, which describes the tensor x to the copy engine: for one that lies on a GPU where another did
    as it does, what was made then. So that no tensor is kept for it, `describe` gets a Place in x's place."""

    @lru_cache(maxsize=4096)  # TensorDescriptor checks for 4 to 8 us what it is given
    def made(place: Place, *how: Any) -> Any:
        return describe(place, *how)

    @wraps(describe)
    def described(x: torch.Tensor, *how: Any) -> Any:
        if not x.is_cuda:
            return describe(x, *how)
        return made(Place(x.dtype, x.data_ptr(), x.get_device(), x.shape, x.stride()), *how)

    return described


def _while_recorded(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """In the place of `JITFunction.run` while a call is recorded: a kernel that is not prepared is, for that."""
    if replay.is_recording():
        return _runs(kernel)(*args, **kwargs)
    return _NATIVE(kernel, *args, **kwargs)


@contextmanager
def while_recorded() -> Iterator[None]:
    """Within, which only one thread is at a time: the call that is recorded is told of every launch."""
    before = JITFunction.run
    if before is not _NATIVE:  # somebody else's
        replay.spoil("a launch that is watched")
    JITFunction.run = _while_recorded if before is _NATIVE else before
    try:
        yield
    finally:
        JITFunction.run = before


class _Run:
    """In the place of `kernel.run`."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        # of each parameter: None for a constexpr, else whether Triton asks if a number is 1, or it is a multiple of 16
        self._looks = [None if each.is_constexpr else not each.do_not_specialize for each in kernel.params]
        self._positional = {each.name for each in kernel.params if not each.is_constexpr}

    def __call__(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = self._kernel
        native = type(kernel).run
        if native is _while_recorded:
            native = _NATIVE
        if native is not _NATIVE or warmup or kernel.pre_run_hooks or watched():
            replay.spoil("a launch that is watched")
            return native(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        index = torch._C._cuda_getDevice()
        parts: list[Hashable] = [self, index, *kwargs, *kwargs.values(), *map(type, kwargs.values())]
        values = self._values(args, index, parts)
        made = _of_thread.made
        key = None if values is None else tuple(parts)
        try:
            ready = made.get(key)
        except TypeError:  # a constexpr that has no hash
            key = ready = None
        if ready is not None and ready.launch(values, grid, index):
            return ready.compiled
        replay.spoil("a first launch")
        compiled = native(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        if key is not None and key not in made and compiled is not None:
            if len(made) >= MOST:
                made.clear()
            made[key] = self._ready(compiled, len(args), kwargs)
        return compiled

    def _values(self, args: Sequence[Any], index: int, parts: list[Hashable]) -> list[Any] | None:
        """What the driver is given of the arguments, descriptors as they are; `parts` gets what Triton compiles another
        kernel for. None where that is not known here, or a tensor is elsewhere than on the current GPU.

        An integer that takes 64 bits is none of it: there is no room for it in a kernel that was compiled for 32.
        """
        values: list[Any] = []
        for look, value in _leaves(self._looks, args):
            kind = type(value)
            if look is None or value is None:
                parts += (kind, value)
            elif kind is int:
                values.append(value)
                if look:
                    parts.append(2 if value == 1 else not value & 15)
                continue
            elif isinstance(value, torch.Tensor):
                if value.get_device() != index:
                    return None
                address = value.data_ptr()
                values.append(address)
                parts += (value.dtype, not look or not address & 15)
                continue
            elif kind is float or kind is bool:
                parts.append(kind)
            elif hasattr(value, "block_shape"):
                told = vars(value).get("told")
                if told is None:
                    told = value.told = _told(value)
                if told[-1] != index:
                    return None
                parts.append(told)
            else:
                return None
            values.append(value)
        return values

    def _ready(self, compiled: Any, count: int, kwargs: dict[str, Any]) -> "_Ready | None":
        try:
            return None if self._positional & kwargs.keys() else _Ready(compiled, count)
        except (AttributeError, KeyError, NotReady):  # of another release of Triton
            return None


@lru_cache(maxsize=4096)
def _runs(kernel: Any) -> _Run:
    return _Run(kernel)


def _leaves(looks: Sequence[bool | None], args: Sequence[Any]) -> Iterator[tuple[bool | None, Any]]:
    """The arguments, and the parts of those that are tuples, with how Triton looks at each."""
    for look, value in zip(looks, args, strict=False):
        if type(value) is tuple and look is not None:
            yield None, len(value)
            yield from _leaves([True] * len(value), value)
        else:
            yield look, value


def flat_kinds(kinds: Iterable[Any]) -> Iterator[str]:
    """What Triton's signature says of them."""
    for kind in kinds:
        if isinstance(kind, tuple):
            yield "constexpr"
            yield from flat_kinds(kind)
        else:
            yield kind


def _told(descriptor: Any) -> tuple[Hashable, ...]:
    """What Triton looks at of a descriptor, then the GPU."""
    base, layout = descriptor.base, getattr(descriptor, "layout", None)
    return type(descriptor), base.dtype, *descriptor.block_shape, descriptor.padding, layout, base.get_device()


class NotReady(Exception):
    """A launch that Triton has to make each time."""


class _Ready:
    """A launch but for the grid, the addresses, what descriptors describe, and numbers."""

    def __init__(self, compiled: Any, count: int) -> None:
        """Of Triton's compiled kernel, for `count` arguments by place. Raises NotReady where it is launched in a way
        unknown here."""
        self.compiled = compiled  # which unloads it when it goes
        self._configuration = configuration(compiled.metadata)
        self._sent, formats = sent(flat_kinds(islice(compiled.src.signature.values(), count)), compiled.metadata)
        self._prepared = to_launch(compiled.function, formats, compiled)

    def launch(self, values: Sequence[Any], grid: Any, index: int) -> bool:
        """Launch on GPU `index`, which is current; False leaves it to Triton."""
        if type(grid) is not tuple or 0 in grid:
            return False
        if not filled(self._prepared, self._sent, values):
            return False
        block, shared, how = self._configuration
        stream = torch._C._cuda_getCurrentRawStream(index)
        self._prepared.launch((*grid, 1, 1)[:3], block, shared, stream, *how)
        return True


class _Described:
    """How a kernel takes a descriptor; `about` is what Triton's compiler says of it."""

    def __init__(self, about: dict[str, Any] | None) -> None:
        if about is None or about["fp4_padded"]:
            raise NotReady
        rank = len(about["block_size"])
        self.formats = [f"{tensormaps.BYTES}s", *["i"] * rank, *["q"] * rank]
        self._element, self._size = _ELEMENTS[about["elem_type"]], about["elem_size"]
        self._box, self._swizzle = tuple(about["block_size"][::-1]), about["swizzle"]

    def fields(self, descriptor: Any) -> tuple[Any, ...]:
        """What the driver is given of it."""
        made = vars(descriptor).setdefault("made", {})
        if self not in made:
            if descriptor.padding != "zero":
                raise struct.error(descriptor.padding)
            shape, strides = descriptor.shape, descriptor.strides
            pitches = [each * self._size for each in strides[-2::-1]]
            address, how = descriptor.base.data_ptr(), (self._swizzle, tensormaps.PROMOTION_128B)
            encoded = tensormaps.encoded(self._element, address, shape[::-1], pitches, self._box, *how)
            made[self] = encoded, *shape, *strides
        return made[self]


Sent = tuple[int, _Described | None]  # of a kernel's values: which, and how


def configuration(about: Any) -> tuple[Extent, int, tuple[bool, bool]]:
    """The threads of a block, its shared memory, and whether a launch is cooperative and whether dependent, as the
    metadata of a compiled kernel have it. Raises NotReady where it is launched in a way unknown here."""
    how = bool(about.launch_cooperative_grid), bool(about.launch_pdl)
    if about.num_ctas != 1 or about.global_scratch_size or about.profile_scratch_size or all(how):
        raise NotReady
    return (32 * about.num_warps, 1, 1), about.shared, how


def sent(kinds: Iterable[str], about: Any) -> tuple[list[Sent], list[str]]:
    """Which of a kernel's values the driver is given, and how, and the formats of its parameters."""
    found: list[Sent] = []
    formats: list[str] = []
    described = iter(about.tensordesc_meta or ())
    for place, kind in enumerate(kinds):
        if kind.startswith("tensordesc"):
            one = _Described(next(described, None))
            found.append((place, one))
            formats += one.formats
        elif kind != "constexpr":
            found.append((place, None))
            formats.append("P" if kind.startswith("*") else _FORMATS[kind])
    return found, [*formats, "Q", "Q"]  # memory that Triton gives some kernels: none here


def to_launch(function: int, formats: list[str], owner: Any = None) -> Prepared:
    """The driver's kernel `function`. Raises NotReady where it has other parameters than of these formats."""
    if _parameters(function) != list(map(struct.calcsize, formats)):
        raise NotReady
    return Prepared(function, formats, owner, _is_other)


def filled(prepared: Prepared, places: list[Sent], values: Sequence[Any]) -> bool:
    """Whether the values could be put in their places."""
    given: list[Any] = []
    try:
        for place, described in places:
            if described is None:
                given.append(values[place])
            else:
                given += described.fields(values[place])
        prepared.fill([*given, 0, 0])
    except (struct.error, OverflowError):
        return False
    return True


def watched() -> bool:
    """Whether something is to be told of launches, or kernels are to check themselves."""
    runtime = knobs.runtime
    hooks = runtime.launch_enter_hook, runtime.launch_exit_hook
    told = any(hook is not None and getattr(hook, "calls", True) for hook in hooks)
    return bool(told or runtime.debug)


def _is_other() -> bool:
    """Whether a call may launch otherwise than it did before."""
    return JITFunction.run not in (_NATIVE, _while_recorded) or watched() or tuning.is_asked()


def _parameters(function: int) -> list[int]:
    """The sizes in bytes of a kernel's parameters, as the driver knows them; empty where it is too old to tell."""
    ask = _asked()
    found: list[int] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    while ask is not None and ask(function, len(found), ctypes.byref(offset), ctypes.byref(size)) == 0:
        found.append(size.value)
    return found


@lru_cache
def _asked() -> Any:
    ask = getattr(ctypes.CDLL("libcuda.so.1"), "cuFuncGetParamInfo", None)
    if ask is not None:
        ask.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
    return ask
