"""What CUDA C computes in the emulator and on a GPU, bit by bit; run it for the table of differences in ulp.

    python -m tests.programs.cupy_bits           # the bits of every variant that should have the same, and the table
    python -m tests.programs.cupy_bits --write   # keep the emulator's bits, for a GPU machine without a C++ compiler

A variant that uses only additions, multiplications, divisions and conversions, each rounded as IEEE 754 says, has one
answer. The GPU's compiler would fuse multiplications with additions, and CuPy flushes subnormals: here it may do
neither.
"""

import argparse
import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch

from touchstone.backends import emulator
from touchstone.backends.cupy.lib import norms, norms_backward
from touchstone.backends.cupy.runtime import module
from touchstone.backends.cupy.runtime.module import Launch, Module
from touchstone.backends.devices import capability, cuda_unavailable
from touchstone.backends.variants import attributes
from touchstone.conformance.discovery import registry

RECORDED = Path(__file__).with_name("data") / "cupy_bits.json"
STRICT = ("-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def _random(seed: int, *shape: int) -> torch.Tensor:
    """The same bits on every machine: uniform in [-1, 1), by NumPy's own generator."""
    return torch.from_numpy(np.random.default_rng(seed).random(shape, dtype=np.float32) * 2 - 1)


def _inputs(op: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    if op == "matmul":
        return {"a": _random(1, 70, 136).to(dtype), "b": _random(2, 136, 72).to(dtype)}
    x, dy = _random(3, 37, 520).to(dtype), _random(4, 37, 520).to(dtype)
    if op == "softmax_backward":
        return {"y": x.abs(), "dy": dy}
    given = {"rstd": _random(5, 37).abs() + 0.5} | ({"mean": _random(6, 37)} if op == "layer_norm_backward" else {})
    return {"x": x, "weight": _random(7, 520).to(dtype), "dy": dy, **given}


def cases() -> Iterator[tuple[str, Callable[..., object], dict[str, torch.Tensor]]]:
    """(name, launcher, arguments) of every variant that has one answer, in every dtype; statistics are given.

    None has atomics of floats, instructions of one architecture (tensor cores), or a precision of its own.
    """
    for op in ("matmul", "softmax_backward", "rms_norm_backward", "layer_norm_backward"):
        for variant, fn in registry.variants("cupy", op).items():
            declared = attributes(fn)
            if declared.deterministic and declared.needs is None and declared.compute is None:
                for name, dtype in DTYPES.items():
                    yield f"{op}.{variant} {name}", fn, _inputs(op, dtype)


def digest(fn: Callable[..., object], arguments: dict[str, torch.Tensor], device: str) -> str | None:
    """Of the outputs' bits; None where the variant declines."""
    try:
        outputs = fn(**{name: tensor.to(device) for name, tensor in arguments.items()})
    except NotImplementedError:
        return None
    found = hashlib.sha256()
    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        found.update(output.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@contextlib.contextmanager
def gpu_compiled(*options: str) -> Iterator[None]:
    """Inside, launches on a GPU are compiled by NVRTC with these options and no others of CuPy's choice."""
    from touchstone.backends.cupy.runtime.compiling import compiled

    arch = "sm_{}{}".format(*capability() or (9, 0))

    @cache
    def function(what: Module, definitions: tuple[tuple[str, str], ...], kernel: str):
        from cupy.cuda.function import Module as Loaded

        made = compiled(what, definitions, arch, True, options)
        if made.error:
            raise RuntimeError(made.error)
        loaded = Loaded()
        loaded.load(made.cubin)
        return loaded.get_function(kernel)

    def launch(what: Launch) -> None:
        from cupy_backends.cuda.api import driver

        kernel = function(what.module, what.definitions, what.kernel)
        if what.shared:
            attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.funcSetAttribute(kernel.ptr, attribute, what.shared)
        arguments = [
            np.uint64(0 if a is None else a.data_ptr()) if a is None or isinstance(a, torch.Tensor) else a
            for a in what.arguments
        ]
        torch.cuda.synchronize()
        kernel(what.grid, what.block, arguments, shared_mem=what.shared)
        torch.cuda.synchronize()

    stock, module.recorder = module.recorder, (arch, launch)
    try:
        with _cut_as_in_the_emulator():
            yield
    finally:
        module.recorder = stock


@contextlib.contextmanager
def _cut_as_in_the_emulator() -> Iterator[None]:
    """Inside, a sum is cut into as many parts on a GPU as in the emulator, not into one for each multiprocessor."""
    parts = norms.resident(torch.empty(0), 1)
    users = (norms, norms_backward)
    stock = norms.resident
    for user in users:
        user.resident = lambda x, each: parts
    try:
        yield
    finally:
        for user in users:
            user.resident = stock


def recorded() -> dict[str, str]:
    return json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}


OPERATIONS = {  # name: (CUDA C, float64, range of x)
    "expf": ("expf(x[i])", np.exp, (-80, 80)),
    "exp2f": ("exp2f(x[i])", np.exp2, (-120, 120)),
    "__expf": ("__expf(x[i])", np.exp, (-80, 80)),
    "logf": ("logf(x[i])", np.log, (1e-6, 1e6)),
    "rsqrtf": ("rsqrtf(x[i])", lambda x: 1 / np.sqrt(x), (1e-6, 1e6)),
    "sqrtf": ("sqrtf(x[i])", np.sqrt, (1e-6, 1e6)),
    "tanhf": ("tanhf(x[i])", np.tanh, (-8, 8)),
    "erff": ("erff(x[i])", np.vectorize(math.erf, otypes=[float]), (-4, 4)),
    "x / y": ("x[i] / y[i]", lambda x, y: x / y, (-8, 8)),
    "__fdividef": ("__fdividef(x[i], y[i])", lambda x, y: x / y, (-8, 8)),
    "fmaf": ("fmaf(x[i], y[i], z[i])", lambda x, y, z: x * y + z, (-8, 8)),
    "x * y + z": ("x[i] * y[i] + z[i]", lambda x, y, z: x * y + z, (0.5, 8)),
}


def elementary(operation: str, inputs: list[torch.Tensor], device: str) -> np.ndarray:
    """What OPERATION gives on `device`, compiled as CuPy and the emulator compile a variant."""
    x, y, z = (tensor.to(device) for tensor in inputs)
    out = torch.empty_like(x)
    Module(__file__, "elementary.cu").launch(
        "elementary", -(-x.numel() // 256), 256, x, y, z, out, x.numel(), dtype=x.dtype, OPERATION=operation
    )
    return out.cpu().numpy()


def ulp(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|a - b| in units in the last place of b, rounded to float32."""
    return np.abs(a.astype(np.float64) - b) / np.spacing(np.abs(b).astype(np.float32)).astype(np.float64)


def table(devices: list[str], count: int = 1 << 14) -> list[list[str]]:
    """A row for each operation: greatest error in ulp on each device, and between two, where there are two."""
    heads = {"cpu": "emulator", "cuda": "GPU"}
    rows = [["operation", *(f"{heads[d]}, error" for d in devices), *(["emulator to GPU"] if len(devices) > 1 else [])]]
    for name, (operation, exact, (low, high)) in OPERATIONS.items():
        inputs = [(_random(seed, count) + 1) / 2 * (high - low) + low for seed in (11, 12, 13)]
        wanted = exact(*(t.double().numpy() for t in inputs[: exact.__code__.co_argcount if _is_lambda(exact) else 1]))
        found = {device: elementary(operation, inputs, device) for device in devices}
        row = [f"{ulp(values, wanted).max():.2f}" for values in found.values()]
        if len(devices) > 1:
            row.append(f"{ulp(found['cpu'], found['cuda'].astype(np.float64)).max():.0f}")
        rows.append([name, *row])
    return rows


def _is_lambda(fn: object) -> bool:
    return getattr(fn, "__name__", "") == "<lambda>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"keep the emulator's bits in {RECORDED.name}")
    options = parser.parse_args()
    devices = [device for device, why in (("cpu", emulator.why_not()), ("cuda", cuda_unavailable())) if not why]
    kept = recorded()
    bits = {name: digest(fn, arguments, "cpu") for name, fn, arguments in cases()} if "cpu" in devices else {}
    if options.write:
        RECORDED.parent.mkdir(exist_ok=True)
        RECORDED.write_text(json.dumps({name: found for name, found in bits.items() if found}, indent=1) + "\n")
    for name, fn, arguments in cases():
        wanted = bits.get(name) or kept.get(name)
        verdicts = [f"emulator: {'as kept' if bits.get(name) == kept.get(name) else 'CHANGED'}"] if bits else []
        if "cuda" in devices:
            with gpu_compiled(*STRICT):
                found = digest(fn, arguments, "cuda")
            verdicts.append(f"GPU: {'same bits' if found == wanted else 'OTHER BITS'}")
        print(f"{name:40} {', '.join(verdicts) if wanted else 'declines'}")
    for row in table(devices):
        print("".join(f"{cell:>18}" if i else f"{cell:16}" for i, cell in enumerate(row)))


if __name__ == "__main__":
    main()
