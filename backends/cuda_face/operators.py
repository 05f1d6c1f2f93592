"""Autocast, and custom operators that are registered for CUDA."""

from typing import Any

import torch
from torch.amp import autocast_mode

from touchstone.backends.cuda_face.asking import answers, outside


def patches() -> list[tuple[Any, str, Any]]:
    """(module or class, attribute, what stands there within `answering`)."""
    return _autocast() + _registration()


def _autocast() -> list[tuple[Any, str, Any]]:
    """That of CUDA is that of the CPU, in the dtype of CUDA."""
    start, enabled, dtype = autocast_mode.autocast.__init__, torch.is_autocast_enabled, torch.get_autocast_dtype

    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if answers() is not None and device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        start(self, device_type, dtype, *args, **kwargs)

    def is_enabled(device_type: str = "cuda") -> bool:
        return enabled("cpu" if device_type == "cuda" else device_type)

    def in_dtype(device_type: str = "cuda") -> torch.dtype:
        return dtype("cpu" if device_type == "cuda" else device_type)

    return [
        (autocast_mode.autocast, "__init__", init),
        (torch, "is_autocast_enabled", is_enabled),
        (torch, "get_autocast_dtype", in_dtype),
        (torch, "get_autocast_gpu_dtype", in_dtype),
    ]


def _registration() -> list[tuple[Any, str, Any]]:
    """Custom operators that are registered for CUDA within `answering` run for tensors on the CPU."""
    library = torch.library
    define, kernel, kernel_of = library.custom_op, library.register_kernel, library.CustomOpDef.register_kernel
    implement, implementing = library.impl, library.Library.impl

    def custom_op(name: str, fn: Any = None, /, *, device_types: Any = None, **kwargs: Any) -> Any:
        return define(name, fn, device_types=_devices(device_types), **kwargs)

    def register_kernel(op: Any, device_types: Any, *args: Any, **kwargs: Any) -> Any:
        return kernel(op, _devices(device_types), *args, **kwargs)

    def register_kernel_of(self: Any, device_types: Any, *args: Any, **kwargs: Any) -> Any:
        return kernel_of(self, _devices(device_types), *args, **kwargs)

    def impl(name: Any, types: Any, *args: Any, **kwargs: Any) -> Any:
        return implement(name, _devices(types), *args, **kwargs)

    def impl_of(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **kwargs: Any) -> Any:
        return implementing(self, op_name, fn, _devices(dispatch_key), **kwargs)

    return [
        (library, "custom_op", custom_op),
        (library, "register_kernel", register_kernel),
        (library.CustomOpDef, "register_kernel", register_kernel_of),
        (library, "impl", impl),
        (library.Library, "impl", impl_of),
    ]


def _devices(types: Any) -> Any:
    """Device types or dispatch keys that other code than torch gives, those of CUDA replaced by the CPU's."""
    if not outside(3):
        return types
    if isinstance(types, str):
        return types.replace("cuda", "cpu").replace("CUDA", "CPU")
    return types if types is None else tuple(dict.fromkeys(str(one).replace("cuda", "cpu") for one in types))
