"""torch.cuda and torch.accelerator: properties, streams, events, memory."""

import contextlib
import functools
import time
import types
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from touchstone.backends import NotRun
from touchstone.backends.cuda_face.asking import note, outside
from touchstone.backends.cuda_face.devices import CUDA, Device, DeviceOf, index, is_cuda
from touchstone.backends.gpus import Gpu


class Properties:
    """`torch.cuda.get_device_properties`."""

    def __init__(self, gpu: Gpu) -> None:
        self.name, self.total_memory = gpu.name, gpu.memory
        self.major, self.minor = gpu.capability
        self.multi_processor_count, self.regs_per_multiprocessor = gpu.multiprocessors, gpu.registers
        self.shared_memory_per_block, self.shared_memory_per_block_optin = 49152, gpu.shared_per_block
        self.shared_memory_per_multiprocessor = gpu.shared_per_multiprocessor
        self.max_threads_per_multi_processor = gpu.threads_per_multiprocessor
        self.max_threads_per_block, self.warp_size, self.L2_cache_size = gpu.threads_per_block, gpu.warp, gpu.l2
        self.clock_rate, self.memory_clock_rate, self.memory_bus_width = gpu.clock, gpu.memory_clock, gpu.bus
        self.is_integrated = self.is_multi_gpu_board = 0
        self.gcnArchName, self.uuid = gpu.name, "GPU-00000000-0000-0000-0000-000000000000"
        self.pci_bus_id = self.pci_device_id = self.pci_domain_id = 0


class Stream:
    """Everything is done when it is asked for, so a stream has nothing to wait for."""

    cuda_stream = 0
    stream_id = device_index = device_type = priority = 0
    device = CUDA

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._within: list[Any] = []

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *error: object) -> None: ...


class Event:
    """A moment on this machine's clock."""

    cuda_event = 0
    device = CUDA

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds, at least one nanosecond."""
        return max((end.at - self.at) * 1000, 1e-6)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def wait(self, stream: Any = None) -> None: ...


def _refused(what: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotRun(f"the launcher needs {what}, which takes a GPU")

    return refuse


def _asked(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """`answer`, counted where neither torch nor Touchstone asks."""

    @functools.wraps(answer)
    def ask(*args: Any, **kwargs: Any) -> Any:
        if outside():
            note(name)
        return answer(*args, **kwargs)

    return ask


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _torch_cuda(gpu: Gpu) -> dict[str, Any]:
    """The functions of torch.cuda, by name."""
    stream = Stream()
    properties = Properties(gpu)

    def of(value: Any) -> Callable[..., Any]:
        def get(device: Any = None) -> Any:
            index(device)
            return value

        return get

    functions: dict[str, Callable[..., Any]] = {
        "is_available": _constant(True),
        "is_initialized": _constant(True),
        "is_bf16_supported": _constant(True),
        "is_tf32_supported": _constant(True),
        "is_current_stream_capturing": _constant(False),
        "init": _constant(None),
        "device_count": _constant(1),
        "current_device": _constant(0),
        "set_device": of(None),
        "synchronize": of(None),
        "get_device_name": of(gpu.name),
        "get_device_capability": of(gpu.capability),
        "get_device_properties": of(properties),
        "get_arch_list": _constant([gpu.arch]),
        "get_gencode_flags": _constant(""),
        "can_device_access_peer": _constant(False),
        "current_stream": of(stream),
        "default_stream": of(stream),
        "stream": lambda given: contextlib.nullcontext(given),
        "set_stream": _constant(None),
        "empty_cache": _constant(None),
        "ipc_collect": _constant(None),
        "memory_allocated": of(0),
        "max_memory_allocated": of(0),
        "memory_reserved": of(0),
        "max_memory_reserved": of(0),
        "memory_stats": of({}),
        "mem_get_info": of((gpu.memory, gpu.memory)),
        "reset_peak_memory_stats": of(None),
        "reset_max_memory_allocated": of(None),
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": torch.default_generator.manual_seed,
        "seed": torch.default_generator.seed,
        "seed_all": torch.default_generator.seed,
        "initial_seed": torch.default_generator.initial_seed,
        "get_rng_state": lambda device=None: torch.default_generator.get_state(),
        "set_rng_state": lambda state, device=None: torch.default_generator.set_state(state),
        "get_rng_state_all": lambda: [torch.default_generator.get_state()],
        "set_rng_state_all": lambda states: torch.default_generator.set_state(states[0]),
        "_sleep": _constant(None),
        "cudart": _refused("the CUDA runtime"),
        "graph": _refused("CUDA graphs"),
        "make_graphed_callables": _refused("CUDA graphs"),
    }
    kinds = ("Float", "Half", "BFloat16", "Double", "Int", "Long", "Short", "Char", "Byte", "Bool")
    functions |= {f"{kind}Tensor": getattr(torch, f"{kind}Tensor") for kind in kinds}
    made: dict[str, Any] = {name: _asked(f"torch.cuda.{name}", function) for name, function in functions.items()}
    made |= {"Stream": Stream, "ExternalStream": Stream, "Event": Event, "device": Device, "device_of": DeviceOf}
    made |= {"CUDAGraph": type("CUDAGraph", (), {"__init__": _refused("CUDA graphs")})}
    made |= {"_lazy_init": _constant(None), "_is_compiled": _constant(True), "_is_in_bad_fork": _constant(False)}
    return made | {"_get_device_properties": _constant(properties), "StreamContext": contextlib.nullcontext}


def _accelerator(cuda: dict[str, Any]) -> dict[str, Any]:
    """The functions of torch.accelerator, by name, as far as this torch has them."""
    found = {
        "is_available": _constant(True),
        "current_accelerator": _constant(torch.device("cuda")),
        "device_count": _constant(1),
        "current_device_index": _constant(0),
        "current_device_idx": _constant(0),
        "set_device_index": cuda["set_device"],
        "set_device_idx": cuda["set_device"],
        "current_stream": cuda["current_stream"],
        "set_stream": _constant(None),
        "synchronize": cuda["synchronize"],
        "device_index": Device,
    }
    return {name: value for name, value in found.items() if hasattr(torch.accelerator, name)}


def _device_module(device: Any = None) -> types.ModuleType:
    return torch.cuda if device is None or is_cuda(device) else getattr(torch, torch.device(device).type)


def patches(gpu: Gpu) -> list[tuple[Any, str, Any]]:
    """(module or class, attribute, what stands there within `answering`)."""
    cuda = _torch_cuda(gpu)
    raw = {"getDeviceCount": 1, "getDevice": 0, "setDevice": None, "exchangeDevice": 0, "maybeExchangeDevice": 0}
    raw |= {"getCurrentRawStream": 0, "synchronize": None}
    found: list[tuple[Any, str, Any]] = [(torch.cuda, name, value) for name, value in cuda.items()]
    found += [(torch.accelerator, name, value) for name, value in _accelerator(cuda).items()]
    found += [(torch._C, f"_cuda_{name}", _constant(value)) for name, value in raw.items()]
    found += [(torch.cuda.nvtx, name, _constant(0)) for name in ("range_push", "range_pop", "range_start", "range_end")]
    return [
        *found,
        (torch.cuda.nvtx, "mark", _constant(None)),
        (torch, "get_device_module", _device_module),
        (torch.version, "cuda", torch.version.cuda or "12.8"),
        (torch.backends.cuda, "is_built", _constant(True)),
    ]
