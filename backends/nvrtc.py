"""CUDA C++ through NVRTC without a GPU: what cuda.bindings leaves to its callers. Importing it loads the library."""

from collections.abc import Callable, Sequence
from typing import Any

from cuda.bindings import nvrtc

nvrtc.nvrtcVersion()

_WANTED = {
    "CUBIN": (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN),
    "PTX": (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX),
    "LTOIR": (nvrtc.nvrtcGetLTOIRSize, nvrtc.nvrtcGetLTOIR),
}


def compiled(text: str, name: str, options: Sequence[str], *wanted: str) -> tuple[list[bytes] | None, str]:
    """What is `wanted` ("CUBIN", "PTX", "LTOIR") of a source called `name`, None if it is refused; and the compiler's
    log."""
    program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = as_text(_read(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog))
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return None, log or str(status)
        return [_read(program, *_WANTED[what]) for what in wanted], log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def as_text(data: bytes | bytearray) -> str:
    """A log or PTX of CUDA's compilers, which end in zero bytes."""
    return data.decode(errors="replace").rstrip("\0").strip()


def _checked(answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {status}")
    return values[0] if values else None


def _read(program: Any, size: Callable[..., Any], get: Callable[..., Any]) -> bytes:
    buffer = bytes(_checked(size(program)))
    _checked(get(program, buffer))
    return buffer
