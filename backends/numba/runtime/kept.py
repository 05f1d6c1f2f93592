"""Machine code of kernels for a GPU: made without PTX that nobody reads, and kept from one process to the next
(backends/storage).

numba-cuda takes half a second a kernel and types of arguments. Its own cache, `cuda.jit(cache=True)`, knows a kernel by
its file; this one by all that the kernel refers to, as the emulator's does: device functions of other files among it.
"""

import base64
import functools
import json
import sys
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any

import torch

from touchstone.backends.emulator import compiler
from touchstone.backends.emulator.numba import cache
from touchstone.backends.emulator.numba.scopes import replaced
from touchstone.backends.storage.artefacts import store


def look_first(kernel: Any) -> None:
    """Let a `@cuda.jit` kernel that has no cache of its own look for its machine code here before it compiles."""
    if type(getattr(kernel, "_cache", None)).__name__ == "NullCache" and _one_architecture():
        kernel._cache = Kept(kernel)


def without_ptx() -> AbstractContextManager[None]:
    """Within, a kernel that numba-cuda compiles by way of LTO-IR is not compiled to PTX too.

    numba-cuda searches that PTX for names of functions of its own to link, which NVVM IR has as well, and throws it
    away: a third of what NVVM and nvJitLink take for a kernel.
    """
    from numba.cuda.codegen import CUDACodeLibrary

    native = CUDACodeLibrary.get_asm_str

    def searched(library: Any, cc: Any = None) -> str:
        return library.get_llvm_str() if library._lto else native(library, cc)

    return replaced((CUDACodeLibrary, "get_asm_str", searched))


class Kept:
    """What numba-cuda asks for a kernel before it compiles one, and tells of it after."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The kernel for arguments of these types as numba-cuda has it; None if it is not kept."""
        name = self._name(signature)
        data = None if name is None else store().load(name)
        return None if data is None else _read(data, signature, context)

    def save_overload(self, signature: Any, made: Any) -> None:
        """Keep a kernel that was compiled, if it is nothing but machine code."""
        name = self._name(signature)
        if name is not None and (data := _written(made)) is not None:
            store().keep(name, data)

    def enable(self) -> None:
        """Nothing: what to keep is known."""

    disable = flush = enable

    def _name(self, signature: Any) -> str | None:
        described = cache.described(self._kernel, signature) if isinstance(signature, tuple) else None
        return None if described is None else f"numba_gpu_{compiler.digest(described, _compilers())}.json"


def _written(made: Any) -> bytes | None:
    try:
        library = made._codelibrary
        shims = _shims()
        callbacks = {call for shim in shims for call in (shim.setup_callback, shim.teardown_callback)}
        more = (
            *(made.debug, made.extensions, made.launch_config_sensitive, made.shared_memory_carveout is not None),
            *(library._linking_files - shims, library.referenced_objects),
            *({*library._setup_functions, *library._teardown_functions} - callbacks),
        )
        if any(more):
            return None
        code = base64.b64encode(library.get_cubin().code).decode()
        return json.dumps({"name": made.entry_name, "cooperative": bool(made.cooperative), "code": code}).encode()
    except (AttributeError, TypeError):  # of another release of numba-cuda
        return None


def _shims() -> set[Any]:
    """The C++ of numba-cuda's own that is linked into kernels with 16-bit floats: its version says what it is."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("numba.cuda._internal.")]
    return {module.shim_obj for module in modules if hasattr(module, "shim_obj")}


def _read(data: bytes, signature: Any, context: Any) -> Any:
    from numba.cuda import types
    from numba.cuda.codegen import CUDACodeLibrary
    from numba.cuda.cudadrv.driver import ObjectCode
    from numba.cuda.dispatcher import _Kernel
    from numba.cuda.typing import signature as signature_of

    try:
        found = json.loads(data)
        name, cooperative = found["name"], found["cooperative"]
        if not isinstance(name, str) or not isinstance(cooperative, bool):
            return None
        library = CUDACodeLibrary(context.codegen(), name, entry_name=name)
        code = ObjectCode.from_cubin(base64.b64decode(found["code"], validate=True))
        library._cubin_cache[library._ensure_cc(None)] = code
        library.use_cooperative, library._finalized = cooperative, True
        return _Kernel._rebuild(
            cooperative=cooperative,
            name=name,
            signature=signature_of(types.void, *signature),
            codelibrary=library,
            debug=False,
            lineinfo=False,
            call_helper=None,
            extensions=[],
        )
    except (AttributeError, KeyError, TypeError, ValueError):  # of another form, or for another release
        return None


@functools.cache
def _one_architecture() -> bool:
    """Whether all GPUs run the same machine code: what is kept holds for one."""
    return len(set(map(torch.cuda.get_device_capability, range(torch.cuda.device_count())))) == 1


@functools.cache
def _compilers() -> str:
    """What compiles, and what for: the driver's linker, numba-cuda with what it calls, the GPU."""
    from numba.cuda.cudadrv.driver import driver

    known = ("numba", "llvmlite", "numpy", "cuda-", "nvidia-")
    found = {f"{each.name} {each.version}" for each in metadata.distributions() if each.name.startswith(known)}
    versions = [sys.version, str(driver.get_version()), str(torch.cuda.get_device_capability())]
    return compiler.digest(*versions, *sorted(found))
