"""What the contracts' `bench` objects share: the sizes of row-wise ops at which speed matters, and baselines of several
ops."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from touchstone.conformance.spec.baselines import Baseline, compiled, eager, library

ROWS = [{"rows": rows, "cols": cols} for rows, cols in [(16384, 1024), (8192, 4096), (8192, 8192), (8192, 32768)]]
INDEPENDENT_AXES = (("rows",),)

Outputs = Mapping[str, torch.Tensor]


def torch_baselines(fn: Callable[..., Outputs], name: str = "torch eager") -> list[Baseline]:
    """A function of torch's own operations, as it is and compiled."""
    return [eager(name, fn), compiled(fn)]


def liger(module: str, function: str, arguments: Callable[..., tuple[Any, ...]], *outputs: str) -> Baseline:
    """An autograd function of Liger-Kernel, where it is installed; `arguments(**operands)` are its own, in order."""

    def make(operands: Mapping[str, Any]) -> Callable[[], Outputs]:
        apply = getattr(library(f"liger_kernel.ops.{module}"), function).apply

        def call() -> Outputs:
            returned = apply(*arguments(**operands))
            values = returned if isinstance(returned, tuple) else (returned,)
            return dict(zip(outputs, values, strict=False))

        return call

    return Baseline("Liger-Kernel", make, needs="liger_kernel", devices=("cuda",))


def liger_applied(module: str, function: str, *arguments: Any) -> Any:
    """One call of such a function: for a baseline that is its gradient."""
    return getattr(library(f"liger_kernel.ops.{module}"), function).apply(*arguments)


def on_arrays(name: str, package: str, call: Callable[..., Any], output: str) -> Baseline:
    """A function of a CUDA array library, on arrays that share the operands' memory and on torch's current stream.

    `call(library, **arrays)` returns one array.
    """

    def make(operands: Mapping[str, Any]) -> Callable[[], Outputs]:
        arrays_of = library(package)
        stream = arrays_of.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with stream:
            arrays = {n: arrays_of.from_dlpack(t.detach()) for n, t in operands.items() if isinstance(t, torch.Tensor)}

        def run() -> Outputs:
            with stream:
                return {output: torch.from_dlpack(call(arrays_of, **arrays))}

        return run

    return Baseline(name, make, needs=package, devices=("cuda",), dtypes=("float32", "float16"))
