"""What a contract's file declares for the bench, in an object named `bench` beside its `contract`.

Sizes come from `contract.large`, the cost model from `contract.flops` and `contract.bytes`. Here: the baselines to
compare with.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

Arguments = Mapping[str, Any]
Call = Callable[[], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Baseline:
    """Another way to compute an op's outputs.

    `make(arguments)` does what is not timed (wrapping, compiling, a forward pass) and returns the call that is; that
    call reads the arguments' memory anew each time and returns outputs by name: all of them, or those it has.
    """

    name: str
    make: Callable[[Arguments], Call]
    needs: str | None = None  # a package that has to be installed
    devices: Sequence[str] = ("cpu", "cuda")
    dtypes: Sequence[str] | None = None  # None: all
    compiles: bool = False  # takes seconds before the first call: left out on the CPU unless baselines are asked for


@dataclass(frozen=True)
class Bench:
    """How an op is timed. The first baseline that runs is the one that the table's ratio names."""

    baselines: Sequence[Baseline] = ()
    dtypes: Sequence[str] = ("bfloat16",)  # timed unless others are asked for
    params: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # values to time; others stay at their first
    # groups of axes along which every output is computed independently: ("rows",), or ("Hq", "Hkv") in step. What is
    # too large to be answered whole in float64 is answered on some slices along these.
    independent_axes: Sequence[Sequence[str]] = ()


def eager(name: str, fn: Callable[..., Mapping[str, torch.Tensor]], **about: Any) -> Baseline:
    """A baseline that is one function of the op's arguments, by name."""
    return Baseline(name, lambda arguments: lambda: fn(**arguments), **about)


def compiled(fn: Callable[..., Mapping[str, torch.Tensor]], **about: Any) -> Baseline:
    """`fn` through torch.compile, for exactly these shapes."""

    def make(arguments: Arguments) -> Call:
        made = torch.compile(fn, dynamic=False, fullgraph=True)
        return lambda: made(**arguments)

    return Baseline("torch.compile", make, compiles=True, **about)


def autograd(
    name: str,
    forward: Callable[..., torch.Tensor],
    gradients: Mapping[str, str],
    upstream: str = "dy",
    compile: bool = False,
    slow: bool = False,
    more: Callable[[Arguments], Arguments] = lambda arguments: {},
    **about: Any,
) -> Baseline:
    """The gradient of `forward(**arguments)`, whose graph is kept: `gradients` maps outputs to the operands they belong
    to.

    `more(arguments)` are operands of the forward pass that the gradient's contract does not have. With `compile` it
    goes through torch.compile; `slow` says that `forward` compiles something itself.
    """

    def make(arguments: Arguments) -> Call:
        arguments = {**arguments, **more(arguments)}
        wanted = {n: arguments[n].detach().requires_grad_() for n in gradients.values() if arguments[n] is not None}
        fn = torch.compile(forward, dynamic=False) if compile else forward
        with torch.enable_grad(), _graph_kept() if compile else nullcontext():
            made = fn(**{**arguments, **wanted})
        outputs = [output for output, operand in gradients.items() if operand in wanted]
        leaves = [wanted[gradients[output]] for output in outputs]

        def call() -> Mapping[str, torch.Tensor]:
            found = torch.autograd.grad(made, leaves, arguments[upstream], retain_graph=True)
            return dict(zip(outputs, found, strict=True))

        return call

    return Baseline(name, make, compiles=compile or slow, **about)


def _graph_kept() -> AbstractContextManager[Any]:
    """Within: what torch.compile makes leaves the memory of the graph alone, which runs again and again."""
    return importlib.import_module("torch._functorch.config").patch(donated_buffer=False)


def library(name: str) -> ModuleType:
    """A package that may be missing, imported when it is used."""
    return importlib.import_module(name)
