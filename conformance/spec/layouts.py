"""Memory layouts an operand can have: the same values seen through other strides and offsets.

Every layout answers one question: given a contiguous tensor of values, build a view with equal values (for the two
broadcasts: with the values of its first slice repeated) inside a buffer that the judge owns. Everything in that buffer
that the view does not cover is poison, so a kernel that ignores a stride or an offset computes with poison: NaN outside
the view, a large number in its gaps. (NaN there would make torch.matmul fail, which on some CPUs multiplies a gap
by zero.)
"""

import math
import mmap
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

FAR = 2**31  # elements: the first offset that a 32-bit integer cannot hold
# Linux; absent from the mmap module before Python 3.13
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
GUARD_BYTES = 512  # on either side of every buffer; the view keeps the alignment that an allocator gives
SMALL = 2**20  # bytes, up to which the CPU fills a buffer for a GPU, and gets a tensor of it by way of pinned memory
GAP = 16  # elements between two rows: keeps rows aligned as far as their width does
GAP_BYTE = 0x7B  # 1e36 in float32 and bfloat16, 6e4 in float16, 2e9 in int32
POISON = {torch.float32: math.nan, torch.float16: math.nan, torch.bfloat16: math.nan}


@dataclass(frozen=True)
class BufferView:
    """An operand in memory: the view a kernel is given, and the whole buffer, guard bands included, as bytes.

    `written` is what of the buffer was ever written, values and poison, as integers; None stands for all of it.
    """

    view: torch.Tensor
    buffer: torch.Tensor
    written: torch.Tensor | None = None

    @property
    def memory(self) -> torch.Tensor:
        """All that was ever written."""
        return self.buffer if self.written is None else self.written

    def snapshot(self) -> torch.Tensor:
        return self.memory.clone()


def changed(placed: Mapping[str, BufferView | None], before: Mapping[str, torch.Tensor]) -> list[str]:
    """The operands whose memory is not as it was `before`, by their snapshots."""
    return changed_beside(placed, before, [])[0]


def changed_beside(
    placed: Mapping[str, BufferView | None], before: Mapping[str, torch.Tensor], others: Sequence[torch.Tensor]
) -> tuple[list[str], list[torch.Tensor]]:
    """The same, and copies of other tensors on the CPU, waited for at once."""
    held = {name: one.memory for name, one in placed.items() if one is not None}
    if not all(tensor.is_cuda for tensor in (*held.values(), *others)):
        same = equal_each([(memory, before[name]) for name, memory in held.items()])
        return [name for name, equal in zip(held, same, strict=True) if not equal], [o.detach().cpu() for o in others]
    found = fetched([*((memory != before[name]).any() for name, memory in held.items()), *others])
    return [name for name, differs in zip(held, found, strict=False) if differs], found[len(held) :]


def equal_each(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[bool]:
    """Whether the two tensors of each pair, of one shape and dtype, have the same numbers."""
    if len(pairs) > 1 and all(one.is_cuda for one, _ in pairs):
        return [not bool(differs) for differs in fetched([(one != other).any() for one, other in pairs])]
    return [torch.equal(one, other) for one, other in pairs]


def fetched(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors on the CPU: copies of those of a GPU, which is waited for once for all that are not large. If other
    processes share it, each wait takes as long as their turns."""
    on_host = [_sent(tensor.detach()) for tensor in tensors]
    if any(tensor.is_cuda for tensor in tensors):
        torch.cuda.current_stream().synchronize()
    return on_host


def _sent(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the CPU, the copy of one of a GPU, which may still be on its way."""
    if not tensor.is_cuda or tensor.numel() * tensor.element_size() > SMALL:
        return tensor.cpu()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def surround(placed: BufferView, byte: int) -> bool:
    """Fill what lies around a view, and in its gaps, with a byte; whether there is anything to fill. Far layouts are
    left alone."""
    if placed.written is not None or not placed.view.numel():
        return False
    narrow = once(placed.view)
    kept = narrow.clone()
    placed.buffer.fill_(byte)
    narrow.copy_(kept)
    return True


def once(view: torch.Tensor) -> torch.Tensor:
    """The part of a view that has each element of its memory once: an axis that is broadcast is 1 long there."""
    for axis, stride in enumerate(view.stride()):
        if stride == 0:
            view = view.narrow(axis, 0, 1)
    return view


class NoRoom(RuntimeError):
    """This machine cannot map the memory that a layout needs."""


def _strides(shape: tuple[int, ...]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


def _usual_where_single(shape: tuple[int, ...], strides: Sequence[int]) -> list[int]:
    """`strides` with those of axes of one element as in a contiguous tensor.

    No address depends on them, `x.contiguous()` leaves them as they are, and published launchers assert them.
    """
    return [usual if size == 1 else own for size, own, usual in zip(shape, strides, _strides(shape), strict=True)]


def _contiguous(shape):
    return shape, _strides(shape), 0


def _swapped(first: int, second: int):
    def plan(shape):
        axes = list(range(len(shape)))
        axes[first], axes[second] = axes[second], axes[first]
        return _stored(shape, axes)

    return plan


def _channels_last(shape):
    return _stored(shape, [0, *range(2, len(shape)), 1])


def _stored(shape: tuple[int, ...], order: Sequence[int]):
    """Of axes that lie in memory in this order, the outermost first."""
    strides = dict(zip(order, _strides(tuple(shape[axis] for axis in order)), strict=True))
    return shape, [strides[axis] for axis in range(len(shape))], 0


def _sliced(shape):
    wide = (*shape[:-1], shape[-1] + GAP)
    return shape, _strides(wide), 0


def _transposed_sliced(shape):
    *outer, rows, cols = shape
    *strides, step, _ = _strides((*outer, cols, rows + GAP))
    return shape, [*strides, 1, step], 0


def _step(shape):
    return shape, [2 * s for s in _strides(shape)], 0


def _offset(shape):
    return shape, _strides(shape), 1


def _interleaved(shape):
    strides = _strides(shape)
    return shape, [2 * strides[0], *strides[1:]], 0


def _broadcast(axis: int):
    def plan(shape):
        if not shape:
            return _contiguous(shape)
        kept = list(shape)
        kept[axis] = min(shape[axis], 1)
        strides = _strides(tuple(kept))
        strides[axis] = 0
        return tuple(kept), strides, 0

    return plan


def _far(axis: int):
    """The last index of `axis` lies 2^31 elements or more from the first; the stride itself fits into 32 bits."""

    def plan(shape):
        if shape[axis] < 3:
            raise ValueError(
                f"layout {FAR_LAYOUTS[axis]}: expected at least 3 elements along axis {axis}, got shape {shape}"
            )
        return shape, _outside(shape, axis, -(-FAR // (shape[axis] - 1) // 64) * 64 + 64), 0

    return plan


def _near(axis: int):
    """`axis` outside all others, with a gap between its slices."""
    return lambda shape: (shape, _outside(shape, axis, math.prod(shape[:axis] + shape[axis + 1 :]) + GAP), 0)


def _outside(shape: Sequence[int], axis: int, stride: int) -> list[int]:
    """The strides of `shape` as if `axis` had one element, and for `axis` this one."""
    rest = _strides(tuple(1 if i == axis else n for i, n in enumerate(shape)))
    return [*rest[:axis], stride, *rest[axis + 1 :]]


FAR_LAYOUTS = tuple(f"far{axis}" for axis in range(5))  # offsets beyond 2^31 along one axis
NEAR_LAYOUTS = tuple(f"near{axis}" for axis in range(5))  # the same neighbours along the other axes, and none so far


def far_axis(layout: str) -> int | None:
    """The axis along which the offsets of a layout exceed 2^31; None where none do."""
    return FAR_LAYOUTS.index(layout) if layout in FAR_LAYOUTS else None


def nearer(layout: str) -> str:
    """The near layout in place of a far one; any other as it is."""
    axis = far_axis(layout)
    return layout if axis is None else NEAR_LAYOUTS[axis]


# name -> shape -> (shape of the stored values, strides of the view, offset in elements)
PLANS: dict[str, Callable] = {
    "contiguous": _contiguous,
    "transposed": _swapped(-1, -2),  # the last two axes swapped in memory: nn.Linear's weight.t()
    "heads_inside": _swapped(1, 2),  # (batch, seq, heads, dim) memory seen as (batch, heads, seq, dim)
    "second_outside": _swapped(0, 1),  # (rows, parts, dim) memory seen as (parts, rows, dim)
    "channels_last": _channels_last,  # (N, *, C) memory seen as (N, C, *)
    "sliced": _sliced,  # rows with a gap between them
    "transposed_sliced": _transposed_sliced,  # columns with a gap between them: a leading dimension beyond the length
    "step": _step,  # every second element: stride 2 on the last axis too
    "interleaved": _interleaved,  # one half of (P, 2, *) memory seen as (P, *): keys and values of a page side by side
    "offset": _offset,  # storage offset of one element: no longer 16-byte aligned
    "broadcast": _broadcast(0),  # stride 0 on the first axis
    "broadcast_second": _broadcast(1),  # stride 0 on the second axis: one for all heads
    "broadcast_last": _broadcast(-1),  # stride 0 on the last axis
    **{layout: _far(axis) for axis, layout in enumerate(FAR_LAYOUTS)},
    **{layout: _near(axis) for axis, layout in enumerate(NEAR_LAYOUTS)},
}

MATRIX = (
    *("contiguous", "transposed", "sliced", "transposed_sliced", "step", "offset"),
    *("broadcast", "broadcast_last"),
)
VECTOR = ("contiguous", "step", "offset", "broadcast_last")
PAGES = ("contiguous", "interleaved", "heads_inside", "offset", "step")  # (pages, rows of a page, heads, dim)
HEADS = ("contiguous", "heads_inside", "transposed", "sliced", "step", "offset", "broadcast", "broadcast_second")
TABLE = ("contiguous", "transposed", "step", "sliced")  # integers by (batch, place), often cut from a wider one
BROADCASTS = ("broadcast", "broadcast_second", "broadcast_last")
WRITABLE = tuple(name for name in PLANS if name not in (*BROADCASTS, *FAR_LAYOUTS))  # one place for each element


def has_last_stride(shape: tuple[int, ...], layout: str) -> bool:
    """Whether elements that are neighbours along the last axis of a shape are none in memory."""
    return bool(shape) and shape[-1] > 1 and PLANS[layout](shape)[1][-1] != 1


def values_of(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The values that an operand has in this layout: `values`, or its first slice repeated for a broadcast."""
    _, strides, _ = PLANS[layout](tuple(values.shape))
    for axis, stride in enumerate(strides):
        if stride == 0 and values.shape[axis] > 1:
            values = values.narrow(axis, 0, 1).expand(values.shape)
    return values


def place(values: torch.Tensor, layout: str, device: str | torch.device, integer: int | None = None) -> BufferView:
    """Put `values` (already rounded to their dtype) into a guarded, poisoned buffer on `device` in `layout`.

    `integer` is the poison of a buffer of integers; None: 0x7B in every byte.
    """
    shape = tuple(values.shape)
    if (axis := far_axis(layout)) is not None:
        return _place_far(values, axis, device)
    _, strides, offset = PLANS[layout](shape)
    strides = _usual_where_single(shape, strides)
    item = values.element_size()
    extent = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n > 0) + 1
    body = -(-max(extent, 1) * item // GUARD_BYTES) * GUARD_BYTES
    first = "cpu" if body <= SMALL else device
    buffer = torch.empty(body + 2 * GUARD_BYTES, dtype=torch.uint8, device=first)
    typed = buffer.view(values.dtype)
    if values.dtype in POISON:
        typed.fill_(POISON[values.dtype])
        buffer[GUARD_BYTES + offset * item : GUARD_BYTES + extent * item].fill_(GAP_BYTE)
    elif integer is None:
        buffer.fill_(GAP_BYTE)
    else:
        typed.fill_(integer)
    if values.numel():
        narrow = values
        for axis, stride in enumerate(strides):
            if stride == 0 and shape[axis] > 1:
                narrow = narrow.narrow(axis, 0, 1)
        typed.as_strided(tuple(narrow.shape), strides, GUARD_BYTES // item + offset).copy_(narrow)
    buffer = buffer.to(device, non_blocking=True)  # out of pageable memory, which is read before this returns
    return BufferView(buffer.view(values.dtype).as_strided(shape, strides, GUARD_BYTES // item + offset), buffer)


def _place_far(values: torch.Tensor, axis: int, device: str | torch.device) -> BufferView:
    """Memory is mapped and, on the CPU, hardly touched: only the slices along the far axis and a guard band beside
    each.

    On the CPU as much lies before the view as behind it, so that an offset that wraps reads zeros and does not crash.
    """
    shape, item = tuple(values.shape), values.element_size()
    _, strides, _ = _far(axis)(shape)
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    assert last >= FAR, f"{FAR_LAYOUTS[axis]} of {shape} reaches {last} elements only"
    on_cpu = torch.device(device).type == "cpu"
    guard = GUARD_BYTES // item
    base = (FAR if on_cpu else 0) + guard
    total = (base + last + 1 + guard + 64) // 64 * 64 * item
    buffer = _mapped(total) if on_cpu else _allocated(total, device)
    slice_size = values[(slice(None),) * axis + (0,)].numel()
    typed = buffer.view(values.dtype)
    rows = (shape[axis], slice_size + 2 * guard)
    poison = POISON.get(values.dtype, 0)
    typed.as_strided(rows, (strides[axis], 1), base - guard).fill_(poison)
    view = typed.as_strided(shape, strides, base)
    view.copy_(values)
    integers = buffer.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[item])
    return BufferView(view, buffer, integers.as_strided(rows, (strides[axis], 1), base - guard))


def _mapped(size: int) -> torch.Tensor:
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    except (OSError, ValueError, OverflowError) as error:
        raise NoRoom(f"{size / 2**30:.1f} GiB of address space cannot be mapped here: {error}") from error
    return torch.frombuffer(memory, dtype=torch.uint8)


def _allocated(size: int, device: str | torch.device) -> torch.Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        raise NoRoom(f"{size / 2**30:.1f} GiB of GPU memory are not free here") from error
