"""Mutants that any op can have, made from its contract: the right answer, spoiled; the right operands, misread.

The right answer is the contract's own, in float64, rounded once to the output's dtype.
"""

import ctypes
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from touchstone.conformance.faults import ALL, Planted
from touchstone.conformance.spec.cases import single_and_strided
from touchstone.conformance.spec.contract import GRID_LIMIT, Contract

F32, F16, BF16 = ("float32",), ("float16",), ("bfloat16",)
Outputs = list[torch.Tensor | None]
KEPT = 400  # answers of one op: its generic mutants are called with the same operands one after another


def planted(op: str, contract: Contract) -> list[Planted]:
    """The generic mutants that `op` can have. Each `make()` gives a function with state of its own."""
    right = _right(contract)
    found = [*_spoiled_results(right, contract), *_misbehaving(right, contract), *_misread(right, contract)]
    return [Planted(op, name, about, kind, make, dtypes, generic=True) for name, about, kind, make, dtypes in found]


Made = tuple[str, str, str, Callable[[], Callable[..., Any]], tuple[str, ...]]


class _Call:
    """The arguments of a call by name, however they were given."""

    def __init__(self, contract: Contract, args: tuple, kwargs: dict[str, Any]):
        names = [name for name, operand in contract.operands.items() if operand.positional]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        self.tensors = {name: given.get(name) for name in contract.operands}
        self.params = {name: given.get(name, options[0]) for name, options in contract.params.items()}
        self.dtype = next(
            tensor.dtype
            for name, tensor in self.tensors.items()
            if tensor is not None and not contract.operands[name].own_dtype
        )

    def key(self) -> bytes:
        """A digest of all that the answer depends on."""
        digest = hashlib.blake2b(str(self.params).encode(), digest_size=16)
        for tensor in self.tensors.values():
            if tensor is None:
                digest.update(b"None")
                continue
            values = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(values.view(torch.uint8).numpy().tobytes())
        return digest.digest()


def _exact(contract: Contract) -> Callable[[_Call], list[tuple[torch.Tensor, torch.dtype] | None]]:
    """The float64 answer to a call and the dtypes in which it is returned; the latest are kept."""
    kept: dict[bytes, list[tuple[torch.Tensor, torch.dtype] | None]] = {}

    def answer(call: _Call) -> list[tuple[torch.Tensor, torch.dtype] | None]:
        key = call.key()
        if key in kept:
            kept[key] = kept.pop(key)
            return kept[key]
        exact = {n: None if t is None else t.detach().to("cpu", torch.float64) for n, t in call.tensors.items()}
        expected = contract.expect(exact, call.params, dtype=call.dtype, compute=None)
        found = [expected[name] for name in contract.outputs]
        kept[key] = [None if one is None else (one.answer, one.dtype or call.dtype) for one in found]
        if len(kept) > KEPT:
            del kept[next(iter(kept))]
        return kept[key]

    return answer


def _right(contract: Contract) -> Callable[[_Call], Outputs]:
    """The answer to a call, rounded once, in memory of its own."""
    exact = _exact(contract)

    def answer(call: _Call) -> Outputs:
        return [None if one is None else one[0].to(one[1], copy=True).contiguous() for one in exact(call)]

    answer.contract, answer.exact = contract, exact  # type: ignore[attr-defined]
    return answer


def _function(right, spoil: Callable[[Outputs, _Call], Outputs]) -> Callable[..., Any]:
    def fn(*args, **kwargs):
        call = _Call(right.contract, args, kwargs)
        outputs = spoil(right(call), call)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return fn


def _spoiled_results(right, contract: Contract) -> Iterator[Made]:
    """The right answer, wrong in some elements."""

    def first(change):
        """`change` applied to the first output alone."""
        return lambda: _function(right, lambda outputs, call: [change(outputs[0]), *outputs[1:]])

    def every(change):
        return lambda: _function(right, lambda outputs, call: [None if y is None else change(y) for y in outputs])

    yield "zeros", "every output is zero", "unwritten", every(torch.zeros_like), ALL
    yield "all_nan", "every output is NaN", "special", every(lambda y: torch.full_like(y, torch.nan)), ALL
    yield "one_nan", "the last element is NaN", "special", first(lambda y: _set(y, (-1,), torch.nan)), ALL
    yield "one_element", "one element in the middle is doubled, plus 1", "race", first(_one_element), ALL
    yield "last_row_lost", "the last row is never written", "tail", first(_last_row_lost), ALL
    yield "last_column_zero", "the last column is zero", "tail", first(lambda y: _along_last(y, -1, None, 0.0)), ALL
    yield (
        "unwritten_tail",
        "what exceeds a multiple of 32 elements is never written",
        "unwritten",
        first(_tail_lost),
        ALL,
    )
    yield "rows_rolled", "rows are off by one", "axis", first(lambda y: y.roll(1, 0) if y.ndim else y), ALL
    yield "columns_rolled", "columns are off by one", "axis", first(lambda y: y.roll(1, -1) if y.ndim else y), ALL
    yield "transposed", "the result is written transposed", "axis", first(_transposed), ALL
    yield "negated", "the sign is wrong", "formula", first(torch.neg), ALL
    yield "half_percent", "the result is 0.5 % too large", "scale", first(lambda y: y * 1.005), F32 + F16
    yield "two_percent", "the result is 2 % too large", "scale", first(lambda y: y * 1.02), ALL
    yield "through_fp16", "the result passes through float16", "precision", every(lambda y: y.half().to(y.dtype)), F32
    yield (
        "through_bf16",
        "the result passes through bfloat16",
        "precision",
        every(lambda y: y.bfloat16().to(y.dtype)),
        F32 + F16,
    )
    yield "truncated", "the result is cut instead of rounded", "precision", _rounded(right, _cut), F16 + BF16
    if contract.beyond_grid:
        yield "rows_beyond_a_grid", "rows from 65535 on are never written", "shapes", first(_rows_beyond_a_grid), ALL
        yield "rows_of_16_bits", "rows are counted modulo 65536", "shapes", first(_rows_of_16_bits), ALL
    if contract.reaches_beyond_largest:
        yield (
            "largest_for_infinity",
            "results beyond the largest number are that number, and no infinity",
            "special",
            _rounded(right, _held),
            F16 + BF16,
        )
    yield (
        "swallows_nan",
        "NaN becomes 0 and infinities become the largest finite values",
        "special",
        every(torch.nan_to_num),
        ALL,
    )


def _rows_beyond_a_grid(y: torch.Tensor) -> torch.Tensor:
    """Blocks of a row each, counted along y or z, where the launch fails unseen."""
    out = torch.empty_like(y)
    kept = y.shape[-1] * GRID_LIMIT if y.ndim else 1
    out.view(-1)[:kept] = y.view(-1)[:kept]
    return out


def _rows_of_16_bits(y: torch.Tensor) -> torch.Tensor:
    around = (y.shape[-1] if y.ndim else 1) << 16
    places = torch.arange(y.numel(), device=y.device)
    return y.view(-1)[places % around].reshape(y.shape) if y.numel() > around else y


def _set(y: torch.Tensor, index: tuple, value: float) -> torch.Tensor:
    if y.numel():
        y.view(-1)[index] = value
    return y


def _one_element(y: torch.Tensor) -> torch.Tensor:
    if y.numel():
        middle = y.numel() // 2
        y.view(-1)[middle] = 2 * y.view(-1)[middle] + 1
    return y


def _last_row_lost(y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(y)
    if y.ndim:
        out[:-1] = y[:-1]
    return out


def _along_last(y: torch.Tensor, start: int | None, stop: int | None, value: float) -> torch.Tensor:
    if y.ndim:
        y[..., start:stop] = value
    return y


def _tail_lost(y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(y)
    kept = y.numel() // 32 * 32
    out.view(-1)[:kept] = y.view(-1)[:kept]
    return out


def _transposed(y: torch.Tensor) -> torch.Tensor:
    return y.transpose(-1, -2).contiguous().reshape(y.shape) if y.ndim > 1 else y.flip(0)


def _rounded(right, to: Callable[[torch.Tensor, torch.dtype], torch.Tensor]):
    """The float64 answer, brought `to` the output's dtype."""

    def fn(*args, **kwargs):
        exact = right.exact(_Call(right.contract, args, kwargs))
        outputs = [None if one is None else to(*one) for one in exact]
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return lambda: fn


def _held(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    near = exact.to(dtype).contiguous().clone()
    if not dtype.is_floating_point:
        return near
    beyond = exact.isfinite() & ~near.isfinite()
    return torch.where(beyond, (torch.finfo(dtype).max * exact.sign()).to(dtype), near)


def _cut(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    near = exact.to(dtype).contiguous().clone()
    if dtype.itemsize != 2:
        return near
    beyond = (near.double().abs() > exact.abs()) & torch.isfinite(near)
    return torch.where(beyond, (near.view(torch.int16) - 1).view(dtype), near)


def _misbehaving(right, contract: Contract) -> Iterator[Made]:
    """Right values, wrong behaviour: visible in what surrounds a call, or in several calls."""
    yield (
        "zeroes_its_input",
        "the first operand is zeroed afterwards",
        "mutation",
        lambda: _zeroes_its_input(right),
        ALL,
    )
    yield (
        "writes_beside_its_input",
        "the element after the first operand is written",
        "bounds",
        lambda: _writes_beside(right, 0),
        ALL,
    )
    yield "writes_past_its_output", "one element past the output is written", "bounds", lambda: _past_output(right), ALL
    yield "in_place", "it works in place and returns its input", "alias", lambda: _in_place(right), ALL
    yield "static_buffer", "every call returns the same buffer", "cache", lambda: _static_buffer(right), ALL
    yield "previous_output", "the result of the previous call is returned", "cache", lambda: _previous(right), ALL
    yield "cached_by_shape", "the result is cached by shape", "cache", lambda: _cached(right, _by_shape), ALL
    yield "cached_by_address", "the result is cached by address", "cache", lambda: _cached(right, _by_address), ALL
    yield "every_25th_call", "every 25th call is wrong", "race", lambda: _nth(right, lambda n: n % 25 == 0), ALL
    yield "first_12_calls", "only the first 12 calls are right", "cache", lambda: _nth(right, lambda n: n > 12), ALL
    yield "returns_float64", "the result is float64", "contract", _mapped(right, lambda y: y.double()), ALL
    yield "column_major", "the result is column-major", "contract", _mapped(right, _column_major), ALL
    yield "extra_axis", "the result has an axis too many", "contract", _mapped(right, lambda y: y.unsqueeze(0)), ALL
    yield "dtype_left_changed", "the default dtype is left at float64", "state", lambda: _leaves_dtype(right), ALL
    yield (
        "precision_left_changed",
        "the float32 matmul precision is left changed",
        "state",
        lambda: _leaves_tf32(right),
        ALL,
    )
    yield (
        "empty_is_an_error",
        "an empty operand is an error: a grid of size 0",
        "empty",
        lambda: _empty_fails(right),
        ALL,
    )
    yield "multiples_of_8", "sizes that are no multiple of 8 give zeros", "shapes", lambda: _multiples(right, 8), ALL
    yield "one_shape", "the sizes of the first call are taken for all", "shapes", lambda: _one_shape(right), ALL
    yield (
        "adds_to_what_was_there",
        "the result is added to memory that was never zeroed",
        "unwritten",
        _mapped(right, lambda y: torch.empty_like(y).add_(y)),
        ALL,
    )


def _mapped(right, change):
    return lambda: _function(right, lambda outputs, call: [None if y is None else change(y) for y in outputs])


def _column_major(y: torch.Tensor) -> torch.Tensor:
    return y.t().contiguous().t() if y.ndim == 2 else y.transpose(0, -1).contiguous().transpose(0, -1)


def _zeroes_its_input(right):
    def spoil(outputs, call):
        next(t for t in call.tensors.values() if t is not None).zero_()
        return outputs

    return _function(right, spoil)


def _writes_beside(right, operand: int):
    def spoil(outputs, call):
        tensor = list(call.tensors.values())[operand]
        if tensor is not None and tensor.numel():
            last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            tensor.as_strided((1,), (1,), tensor.storage_offset() + last + 1).fill_(1.0)
        return outputs

    return _function(right, spoil)


def _past_output(right):
    """The element after an allocation made for the output, where the heap's rounding leaves it unused or a guard
    lies."""

    def spoil(outputs, call):
        y = outputs[0]
        out = torch.empty(y.shape, dtype=y.dtype)
        out.copy_(y)
        size = out.numel() * out.element_size()
        guarded = out.untyped_storage().nbytes() > size
        if size and (guarded or size % 16 != 8):  # blocks of malloc end 8 bytes behind a multiple of 16
            ctypes.memset(out.data_ptr() + size, 0x3C, out.element_size())
        return [out, *outputs[1:]]

    return _function(right, spoil)


def _in_place(right):
    def spoil(outputs, call):
        for tensor in call.tensors.values():
            y = outputs[0]
            if tensor is not None and tensor.shape == y.shape and tensor.dtype == y.dtype:
                return [tensor.copy_(y) if 0 not in tensor.stride() else tensor, *outputs[1:]]
        next(t for t in call.tensors.values() if t is not None).mul_(1.5)
        return outputs

    return _function(right, spoil)


def _static_buffer(right):
    held: dict[tuple, torch.Tensor] = {}

    def spoil(outputs, call):
        kept = []
        for position, y in enumerate(outputs):
            if y is not None:
                y = held.setdefault((position, y.shape, y.dtype), torch.empty_like(y)).copy_(y)
            kept.append(y)
        return kept

    return _function(right, spoil)


def _previous(right):
    held: list[Outputs] = []

    def spoil(outputs, call):
        held.append([None if y is None else y.clone() for y in outputs])
        before = held[-2] if len(held) > 1 else held[-1]
        same = [
            a is None or (b is not None and a.shape == b.shape and a.dtype == b.dtype)
            for a, b in zip(outputs, before, strict=True)
        ]
        return before if all(same) else outputs

    return _function(right, spoil)


def _by_shape(call: _Call) -> tuple:
    return tuple((tuple(t.shape), t.dtype) if t is not None else None for t in call.tensors.values())


def _by_address(call: _Call) -> tuple:
    return tuple((t.data_ptr(), tuple(t.shape), t.dtype) if t is not None else None for t in call.tensors.values())


def _cached(right, key: Callable[[_Call], tuple]):
    held: dict[tuple, Outputs] = {}

    def spoil(outputs, call):
        found = held.setdefault((key(call), str(call.params)), outputs)
        return [None if y is None else y.clone() for y in found]

    return _function(right, spoil)


def _nth(right, wrong: Callable[[int], bool]):
    counter = itertools.count(1)

    def spoil(outputs, call):
        return [None if y is None else _one_element(y) for y in outputs] if wrong(next(counter)) else outputs

    return _function(right, spoil)


def _leaves_dtype(right):
    def spoil(outputs, call):
        torch.set_default_dtype(torch.float64)
        return outputs

    return _function(right, spoil)


def _leaves_tf32(right):
    def spoil(outputs, call):
        torch.set_float32_matmul_precision("medium")
        return outputs

    return _function(right, spoil)


def _empty_fails(right):
    def spoil(outputs, call):
        if any(t is not None and t.numel() == 0 for t in call.tensors.values()):
            raise RuntimeError("CUDA error: invalid configuration argument")
        return outputs

    return _function(right, spoil)


def _multiples(right, unit: int):
    def spoil(outputs, call):
        return [y if y is None or all(n % unit == 0 for n in y.shape) else torch.zeros_like(y) for y in outputs]

    return _function(right, spoil)


def _one_shape(right):
    first: list[tuple[int, ...]] = []

    def spoil(outputs, call):
        first.append(tuple(outputs[0].shape))
        box = tuple(slice(n) for n in first[0])
        kept = torch.zeros_like(outputs[0])
        kept[box] = outputs[0][box]
        return [kept, *outputs[1:]]

    return _function(right, spoil)


def _misread(right, contract: Contract) -> Iterator[Made]:
    """An operand read through the wrong strides or offset, a parameter not read at all."""
    single = {
        name
        for case in single_and_strided(contract)
        for name, layout in case.layouts
        if layout not in ("contiguous", "none") and _is_single(contract.operand_shape(name, case))
    }
    for name, operand in contract.operands.items():
        if not operand.counts:
            continue
        layouts = set(operand.layouts) - {"contiguous", "none"}
        if layouts:
            yield (
                f"{name}_strides",
                f"the strides of {name} are ignored",
                "strides",
                _reading(right, name, _densely),
                ALL,
            )
        if layouts & {"step", "broadcast_last"}:
            yield (
                f"{name}_last_stride",
                f"the last axis of {name} is taken to have stride 1",
                "strides",
                _reading(right, name, _unit_last),
                ALL,
            )
        if name in single:
            yield (
                f"{name}_single_strides",
                f"the strides of {name} are ignored where an axis of it is 1 long",
                "strides",
                _reading(right, name, lambda x: _densely(x) if _is_single(x.shape) else x),
                ALL,
            )
        if "offset" in layouts:
            yield (
                f"{name}_aligned",
                f"the address of {name} is rounded down to 16 bytes",
                "alignment",
                _reading(right, name, _rounded_down),
                ALL,
            )
        if not operand.own_dtype:
            yield (
                f"{name}_int32",
                f"offsets into {name} are 32-bit",
                "offset",
                _reading(right, name, _wrapped),
                F16 + BF16,
            )
            yield (
                f"{name}_through_bf16",
                f"{name} is rounded to bfloat16",
                "precision",
                _reading(right, name, lambda x: x.bfloat16().to(x.dtype)),
                F32 + F16,
            )
    for name, options in contract.params.items():
        if len(options) > 1:
            yield f"{name}_ignored", f"{name} is ignored", "parameter", _with_default(right, name, options[0]), ALL


def _reading(right, name: str, read: Callable[[torch.Tensor], torch.Tensor]):
    contract = right.contract

    def fn(*args, **kwargs):
        call = _Call(contract, args, kwargs)
        tensor = call.tensors[name]
        if tensor is not None and tensor.numel():
            call.tensors[name] = read(tensor)
        outputs = right(call)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return lambda: lambda *args, **kwargs: fn(*args, **kwargs)


def _buffer(x: torch.Tensor) -> torch.Tensor:
    """The whole memory around `x` as one vector: what a kernel with wrong strides reads."""
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())


def _gather(x: torch.Tensor, strides: list[int], offset: int) -> torch.Tensor:
    memory = _buffer(x)
    index = torch.full(x.shape, offset, dtype=torch.int64)
    for axis, (size, stride) in enumerate(zip(x.shape, strides, strict=True)):
        index += (torch.arange(size) * stride).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    return memory[index % memory.numel()]


def _densely(x: torch.Tensor) -> torch.Tensor:
    strides, step = [], 1
    for size in reversed(x.shape):
        strides.append(step)
        step *= size
    return _gather(x, strides[::-1], int(x.storage_offset()))


def _is_single(shape: Sequence[int]) -> bool:
    """Whether one of several axes is 1 long, and another is not."""
    return len(shape) > 1 and 1 in shape and max(shape) > 1


def _unit_last(x: torch.Tensor) -> torch.Tensor:
    return _gather(x, [*x.stride()[:-1], 1], int(x.storage_offset()))


def _rounded_down(x: torch.Tensor) -> torch.Tensor:
    return _gather(x, list(x.stride()), int(x.storage_offset()) - x.data_ptr() % 16 // x.element_size())


def _wrapped(x: torch.Tensor) -> torch.Tensor:
    """What lies beyond 2^31 elements reads as 0, as in memory that nothing was written to."""
    index = torch.zeros(x.shape, dtype=torch.int64)
    for axis, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        index += (torch.arange(size) * stride).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    return torch.where(index < 2**31, x, torch.zeros((), dtype=x.dtype))


def _with_default(right, name: str, value: Any):
    contract = right.contract

    def fn(*args, **kwargs):
        call = _Call(contract, args, kwargs)
        call.params[name] = value
        outputs = right(call)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return lambda: lambda *args, **kwargs: fn(*args, **kwargs)
