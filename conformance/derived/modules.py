"""Functions and modules of torch as one thing: a function of values by position, with a name for each."""

import inspect
import itertools
import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.func import functional_call

from touchstone.conformance.derived.ops import is_float


def function_of(
    reference: Any, inputs: Sequence[Any] | Callable[..., Sequence[Any]], seed: int = 0
) -> tuple[Callable[..., Any], list[str], list[Any], list[str]]:
    """(function, names, example, state): `function(*example)` is the reference on its inputs, a module's parameters and
    buffers last, which `state` names. TypeError or ValueError names `reference` or `inputs`."""
    if not callable(reference):
        raise TypeError(f"reference: expected a function or a torch.nn.Module, got {type(reference).__name__}")
    given = example_of(inputs, seed)
    is_module = isinstance(reference, torch.nn.Module)
    names = _names(reference.forward if is_module else reference, len(given))
    if not is_module:
        return reference, names, given, []
    state = state_of(reference)
    spelt = [_identifier(name) for name in state]
    if len({*names, *spelt}) < len(names) + len(spelt):
        spelt = [f"state_{name}" for name in spelt]
    modules = [reference, *(module for module, _ in siblings(reference))]
    every = [as_function(module, len(given), list(state), attributes_of(module)) for module in modules]
    shapes = [_shapes(state_of(module).values()) for module in modules]
    return (
        by_shapes(dict(zip(reversed(shapes), reversed(every), strict=True)), every[0], len(given)),
        [*names, *spelt],
        [*given, *(t.detach().clone() for t in state.values())],
        spelt,
    )


def example_of(inputs: Sequence[Any] | Callable[..., Sequence[Any]], seed: int = 0) -> list[Any]:
    """The example inputs, drawn where they are a function; of `seed` where it takes one."""
    if callable(inputs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                inputs = inputs(seed) if _takes_one(inputs) else inputs()
            except Exception as error:
                raise ValueError(f"inputs: the function raises {type(error).__name__}: {error}") from error
    if isinstance(inputs, torch.Tensor):
        inputs = [inputs]
    if not isinstance(inputs, list | tuple) or not inputs:
        raise TypeError(f"inputs: expected a list of tensors, numbers and None, got {type(inputs).__name__}")
    for position, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor | bool | int | float | str | type(None)):
            raise TypeError(f"inputs: [{position}]: expected a tensor, a number or None, got {type(value).__name__}")
    return [value.detach().cpu() if isinstance(value, torch.Tensor) else value for value in inputs]


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and the buffers of floating-point numbers, which are operands of a call."""
    every = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: t.cpu() for name, t in every.items() if t.is_floating_point()}


def siblings(module: torch.nn.Module) -> Sequence[tuple[torch.nn.Module, list[Any]]]:
    """The same module built with other sizes, each with an example of its inputs, where whoever built it kept some."""
    return getattr(module, "siblings", ())


def rebuilt_of(module: torch.nn.Module, state: Sequence[str]) -> list[list[Any]]:
    """Examples, with their state, of the module built with other sizes."""
    every = ((inputs, list(state_of(other).values())) for other, inputs in siblings(module))
    return [[*inputs, *(t.detach().clone() for t in own)] for inputs, own in every if len(own) == len(state)]


def _shapes(tensors: Iterable[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(t.shape) for t in tensors)


def by_shapes(
    functions: Mapping[tuple[tuple[int, ...], ...], Callable[..., Any]], usual: Callable[..., Any], inputs: int
) -> Callable[..., Any]:
    """The function of values by position that the shapes of those after the `inputs` choose; `usual` for others."""
    if len(functions) < 2:
        return usual
    return lambda *values: functions.get(_shapes(values[inputs:]), usual)(*values)


def attributes_of(module: torch.nn.Module) -> list[tuple[str, str]]:
    """(name of a submodule, attribute) of each tensor that is neither a parameter nor a buffer."""
    every = module.named_modules()
    return [(of, name) for of, m in every for name, value in vars(m).items() if isinstance(value, torch.Tensor)]


def as_function(
    module: torch.nn.Module, inputs: int, state: Sequence[str], attributes: Sequence[tuple[str, str]] = ()
) -> Callable[..., Any]:
    """The function of `inputs` values and the module's state, by position. Buffers and the tensors among `attributes`
    are copied, and the latter have the dtype of the values: the module may write them. So have complex parameters."""
    written = {name for name, _ in module.named_buffers()}
    owners = dict(module.named_modules())
    found = [(owners[of], name) for of, name in attributes if of in owners]
    kept = [(owner, name, vars(owner)[name]) for owner, name in found if name in vars(owner)]

    def run(*values):
        given = {n: v.clone() if n in written else v for n, v in zip(state, values[inputs:], strict=True)}
        device = next((v.device for v in values if isinstance(v, torch.Tensor)), None)
        dtype = next((v.dtype for v in values if is_float(v)), None)
        own = itertools.chain(module.named_buffers(), module.named_parameters())
        rest = {name: _as(t, device, dtype) for name, t in own if name not in given}
        for owner, name, t in kept:
            setattr(owner, name, _as(t, device, dtype))
        try:
            return functional_call(module, {**rest, **given}, tuple(values[:inputs]))
        finally:
            for owner, name, t in kept:
                setattr(owner, name, t)

    return run


def _as(value: torch.Tensor, device: Any, dtype: torch.dtype | None) -> torch.Tensor:
    """A copy of a tensor that is no operand, of the dtype of the values where it has numbers; no complex ones have 16
    bits."""
    own = dtype if is_float(value) else value.dtype
    if value.is_complex() and dtype is torch.float64:
        own = torch.complex128
    return value.detach().to(device, own, copy=True)


def as_kernel(module: torch.nn.Module, reference: torch.nn.Module) -> Callable[..., Any]:
    """A module under judgement as a function of inputs, and of the reference's state by name.

    ValueError names what of the state it lacks, or has besides.
    """
    return as_kernels([(module, reference)])


def as_kernels(pairs: Sequence[tuple[Callable[..., Any], torch.nn.Module]]) -> Callable[..., Any]:
    """The same for a module built with several sizes, each beside the reference of that size: the shapes of the state
    choose. A function of all values may stand in place of a module."""
    for module, reference in pairs:
        if isinstance(module, torch.nn.Module):
            try:
                module.load_state_dict(reference.state_dict())
            except RuntimeError as error:
                raise ValueError(f"kernel: it does not take the reference's parameters: {error}") from error
            module.train(reference.training)
            _share_attributes(module, reference)
    names = list(state_of(pairs[0][1]))
    shapes = [_shapes(state_of(reference).values()) for _, reference in pairs]

    def run(*inputs, **state):
        given = dict(zip(names, state.values(), strict=True))
        device = next((t.device for t in (*inputs, *given.values()) if isinstance(t, torch.Tensor)), None)
        every = [
            as_function(module.to(device), len(inputs), names, attributes_of(reference))
            if isinstance(module, torch.nn.Module)
            else module
            for module, reference in pairs
        ]
        chosen = dict(zip(reversed(shapes), reversed(every), strict=True))
        return by_shapes(chosen, every[0], len(inputs))(*inputs, *given.values())

    return run


def _share_attributes(module: torch.nn.Module, reference: torch.nn.Module) -> None:
    """The tensors that both keep as plain attributes of one name and shape are the reference's."""
    owners, theirs = dict(module.named_modules()), dict(reference.named_modules())
    for of, name in attributes_of(reference):
        value = vars(theirs[of])[name]
        own = vars(owners[of]).get(name) if of in owners else None
        if isinstance(own, torch.Tensor) and own.shape == value.shape:
            setattr(owners[of], name, value.clone())


def _names(function: Callable[..., Any], count: int) -> list[str]:
    """The names of the parameters that the inputs are for; x0, x1, ... where the function does not say."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [f"x{position}" for position in range(count)]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needed = sum(p.default is p.empty for p in positional)
    if not needed <= count <= len(positional) and not (several and needed <= count):
        raise ValueError(f"inputs: the reference takes {', '.join(p.name for p in positional)}; got {count} values")
    names = [p.name for p in positional[:count]]
    return names + [f"x{position}" for position in range(len(names), count)]


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether a function has to be given an argument."""
    try:
        return any(p.default is p.empty and p.kind < 2 for p in inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False


def _identifier(name: str) -> str:
    spelt = name.replace(".", "_")
    return f"_{spelt}" if not spelt.isidentifier() or keyword.iskeyword(spelt) else spelt
