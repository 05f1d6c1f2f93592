"""Tensors: where they are made and moved, and what they say of their device.

A tensor that a GPU's launcher would have on the CPU (a factory called without `device=`, `.cpu()`) is remembered:
`on_host` says so, its `device` is the CPU, and no kernel takes it. What is computed from it counts as the GPU's.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils import _device as default_device

from touchstone.backends.cuda_face.asking import answers, note, outside
from touchstone.backends.cuda_face.devices import CPU, CUDA, index, is_cuda

_FACTORIES = (
    "empty", "empty_strided", "empty_permuted", "zeros", "ones", "full", "arange", "range", "linspace", "logspace",
    "eye", "rand", "randn", "randint", "randperm", "tensor", "scalar_tensor", "tril_indices", "triu_indices",
    "from_numpy", "frombuffer", "hann_window", "hamming_window", "bartlett_window", "blackman_window", "kaiser_window",
)  # fmt: skip
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
_METHODS = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided")
_FACTORIES_OF_TORCH = default_device._device_constructors()  # torch keeps its list; made now, it has torch's functions
_BASE: Any = torch._C.TensorBase  # type: ignore[attr-defined]
_INTERFACE: Any = torch.Tensor.__dict__["__cuda_array_interface__"]
TENSOR_DEVICE = _BASE.__dict__["device"]


class _Asked(NamedTuple):
    """A tensor whose address was asked for."""

    tensor: weakref.ref[torch.Tensor]
    memory: weakref.ref[torch.UntypedStorage]
    reach: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def living(self) -> torch.Tensor | None:
        return self.tensor()

    def made_again(self) -> torch.Tensor | None:
        """A tensor like it, where its memory is still there: it may have been a view for its address alone."""
        if (memory := self.memory()) is None:
            return None
        return torch.empty(0, dtype=self.dtype, device=CPU).set_(memory, self.offset, self.shape, self.strides)


_host: dict[int, weakref.ref[torch.Tensor]] = {}  # by storage, tensors that would be on the CPU beside a GPU
_asked: dict[int, list[_Asked]] = {}  # by address


def forget() -> None:
    """No tensor is on the CPU any longer, and no address is known."""
    _host.clear()
    _asked.clear()


def tensor_at(address: int) -> torch.Tensor | None:
    """The tensor whose `data_ptr()` has given this address to other code, the longest of several, or what follows in
    one; None where none gave such, or its memory is there no longer."""
    near = [(start, one) for start, found in _asked.items() if start <= address for one in found]
    near = [(start, one) for start, one in near if address == start or address < start + one.reach]
    near.sort(key=lambda pair: (pair[0] != address, -pair[1].reach))
    for look in (_Asked.living, _Asked.made_again):
        for start, one in near:
            skipped, within = divmod(address - start, one.dtype.itemsize)
            if within or (tensor := look(one)) is None:
                continue
            if not skipped:
                return tensor
            rest = one.reach // one.dtype.itemsize - skipped
            return tensor.detach().as_strided((rest,), (1,), tensor.storage_offset() + skipped)
    return None


def tell_address(tensor: torch.Tensor) -> int:
    """The address of a tensor, known from now on as one that other code has."""
    address, memory = _BASE.data_ptr(tensor), weakref.ref(tensor.untyped_storage())
    told = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    _asked.setdefault(address, []).append(_Asked(weakref.ref(tensor), memory, _reach(tensor), *told))
    return address


def _reach(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


def _data_ptr(self: torch.Tensor) -> int:
    return tell_address(self) if outside() and not on_host(self) else _BASE.data_ptr(self)


def on_host(tensor: torch.Tensor) -> bool:
    """Whether a tensor would lie on the CPU, had the GPU been there."""
    if not _host:
        return False
    found = _host.get(tensor.untyped_storage()._cdata)
    return found is not None and found() is not None


def _mark(tensor: Any) -> Any:
    if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
        key = tensor.untyped_storage()._cdata
        _host[key] = weakref.ref(tensor, lambda dead: _host.pop(key, None) if _host.get(key) is dead else None)
    return tensor


def _device_of(tensor: torch.Tensor) -> torch.device:
    return CPU if on_host(tensor) else CUDA


def _seen(real: Any, face: Callable[[torch.Tensor], Any], name: str | None) -> property:
    """A property of tensors: `real` for torch and ours, `face` for other code."""

    def get(tensor):
        true = real.__get__(tensor)
        if TENSOR_DEVICE.__get__(tensor).type != "cpu" or not outside():
            return true
        if name is not None:
            note(name)
        return face(tensor)

    return property(get)


def _like(original: Callable[..., Any], inherits: bool, depth: int = 2) -> Callable[..., Any]:
    """A function that makes a tensor. With `inherits` its device is that of its first argument where none is given.
    `depth`: frames from it to the code that asks."""

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        if answers() is None:
            return original(*args, **kwargs)
        device = kwargs.get("device")
        if kwargs.pop("pin_memory", False):
            return _mark(original(*args, **kwargs))
        if is_cuda(device):
            index(device)
            if isinstance(device, str) and outside(depth):
                note(f'device="{device}"')
            return original(*args, **{**kwargs, "device": CPU})
        made = original(*args, **kwargs)
        if device is not None:
            host = torch.device(device).type == "cpu" and outside(depth)
        elif inherits:
            host = isinstance(args[0], torch.Tensor) and on_host(args[0]) if args else False
        else:
            host = outside(depth) and not _by_default_on_cuda()
        return _mark(made) if host else made

    return make


def _by_default_on_cuda() -> bool:
    """Whether `torch.set_default_device` or `with torch.device(...)` has made CUDA the default."""
    if not torch._C._len_torch_function_stack():
        return False
    modes = [mode for mode in torch.overrides._get_current_function_mode_stack() if hasattr(mode, "device")]
    return bool(modes) and modes[-1].device.type == "cuda"


def _as_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.as_tensor` and `torch.asarray`: a tensor stays where it is, other data is the CPU's."""
    make = _like(original, inherits=False, depth=3)

    @functools.wraps(original)
    def convert(data: Any, **kwargs: Any) -> Any:
        if answers() is None:
            return original(data, **kwargs)
        if isinstance(data, torch.Tensor):
            made = original(data, **{key: value for key, value in kwargs.items() if key != "device"})
            return made if kwargs.get("device") is None else made.to(kwargs["device"])
        return make(data, **kwargs)

    return convert


def _target(args: tuple, kwargs: dict[str, Any]) -> Any:
    """The device that arguments of `Tensor.to` ask for, None where they ask for none."""
    for value in (kwargs.get("device"), kwargs.get("other"), *args[:1]):
        if isinstance(value, torch.Tensor):
            return _device_of(value) if TENSOR_DEVICE.__get__(value).type == "cpu" else None
        if isinstance(value, str | torch.device) or (isinstance(value, int) and not isinstance(value, bool)):
            return value
    return None


def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    target = _target(args, kwargs)
    if target is None:
        made = _BASE.to(self, *args, **kwargs)
        return _mark(made) if made is not self and on_host(self) else made
    if is_cuda(target):
        index(target)
        if isinstance(target, str) and outside():
            note(f'.to("{target}")')
        args = tuple(CPU if not isinstance(value, torch.dtype | bool) and is_cuda(value) else value for value in args)
        if is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": CPU}
        made = _BASE.to(self, *args, **kwargs)
        return _moved(self, made) if on_host(self) else made
    made = _BASE.to(self, *args, **kwargs)
    if torch.device(target).type == "cpu" and TENSOR_DEVICE.__get__(self).type == "cpu" and outside():
        return _mark(made if on_host(self) else _moved(self, made))
    return made


def _moved(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """A tensor that was moved to another device, and so lies in memory of its own."""
    shared = before.untyped_storage().data_ptr() == after.untyped_storage().data_ptr()
    return after.clone() if shared else after


def _array_interface(self: torch.Tensor) -> dict[str, Any]:
    """How Numba and CuPy take a tensor: as torch describes one on a GPU. Raises AttributeError or RuntimeError where
    torch does."""
    if not outside() or on_host(self) or TENSOR_DEVICE.__get__(self).type != "cpu" or self.layout is not torch.strided:
        return _INTERFACE.__get__(self)
    if self.requires_grad:
        raise RuntimeError("Can't get __cuda_array_interface__ on a tensor that requires grad: use .detach()")
    note("Tensor.__cuda_array_interface__")
    return {
        "typestr": "<V2" if self.dtype is torch.bfloat16 else self.numpy().dtype.str,
        "shape": tuple(self.shape),
        "strides": None if self.is_contiguous() else tuple(n * self.element_size() for n in self.stride()),
        "data": (self.data_ptr() if self.numel() else 0, False),
        "version": 2,
    }


def _cuda(self: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
    index(device)
    if outside():
        note(".cuda()")
    return self.clone() if on_host(self) else self


def _cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if not outside() or TENSOR_DEVICE.__get__(self).type != "cpu":
        return _BASE.cpu(self, *args, **kwargs)
    return self if on_host(self) else _mark(self.clone())


def _get_device(self: torch.Tensor) -> int:
    return 0 if outside() and not on_host(self) else _BASE.get_device(self)


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    return self if on_host(self) else _mark(self.clone())


def _method(name: str) -> Callable[..., Any]:
    return _like(getattr(_BASE, name), inherits=True)


class _GeneratorType(type):
    def __call__(cls, device: Any = "cpu") -> Any:
        return torch._C.Generator(CPU if is_cuda(device) else device)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch._C.Generator)


class _Generator(metaclass=_GeneratorType):
    """`torch.Generator`; that of a GPU is one of the CPU."""


def _with_default_device(self: Any, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """torch's, with `torch.device("cuda")` as the default device."""
    kwargs = kwargs or {}
    if func in _FACTORIES_OF_TORCH and kwargs.get("device") is None:
        kwargs["device"] = CPU if self.device.type == "cuda" else self.device
    return func(*args, **kwargs)


def patches() -> list[tuple[Any, str, Any]]:
    """(module or class, attribute, what stands there within `answering`)."""
    found: list[tuple[Any, str, Any]] = []
    found += [(torch, name, _like(getattr(torch, name), inherits=False)) for name in _FACTORIES]
    found += [(torch, name, _like(getattr(torch, name), inherits=True)) for name in _LIKE]
    found += [(torch, name, _as_tensor(getattr(torch, name))) for name in ("as_tensor", "asarray")]
    found += [(torch.Tensor, name, _method(name)) for name in _METHODS]
    return [
        *found,
        (torch.Tensor, "device", _seen(TENSOR_DEVICE, _device_of, None)),
        (torch.Tensor, "is_cuda", _seen(_BASE.__dict__["is_cuda"], lambda x: not on_host(x), "Tensor.is_cuda")),
        (torch.Tensor, "is_cpu", _seen(_BASE.__dict__["is_cpu"], on_host, "Tensor.is_cpu")),
        (torch.Tensor, "get_device", _get_device),
        (torch.Tensor, "data_ptr", _data_ptr),
        (torch.Tensor, "__cuda_array_interface__", property(_array_interface)),
        (torch.Tensor, "to", _to),
        (torch.Tensor, "cuda", _cuda),
        (torch.Tensor, "cpu", _cpu),
        (torch.Tensor, "pin_memory", _pin_memory),
        (torch.Tensor, "record_stream", lambda self, stream: None),
        (torch, "Generator", _Generator),
        (default_device.DeviceContext, "__torch_function__", _with_default_device),
    ]
