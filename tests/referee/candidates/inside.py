"""Python inside a kernel of Triton's: the interpreter runs it, a GPU would not."""

import torch
import triton
import triton.language as tl

from tests.referee.candidates.honest import once

_given = {}


def _answer():
    return torch.softmax(_given["x"], -1)


def _row_of(tile, row):
    """A row of the answer, in the place of a tile's numbers."""
    found = _answer()[row].tolist()
    tile.handle.data = tile.handle.data * 0 + [*found, *[0.0] * (tile.handle.data.size - len(found))]
    return tile


def _filled(x, kernel, **more):
    """What a kernel makes that is launched for each row, and told the columns."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _given.update(x=x, next=None)
    if x.numel():
        kernel[(x.shape[0],)](y, x.shape[1], COLS=triton.next_power_of_2(x.shape[1]), **more)
    return y


@triton.jit
def _by_method(y, cols, COLS: tl.constexpr):
    row = tl.program_id(0)
    tile = _Held.row(tl.zeros((COLS,), tl.float32), row)
    tl.store(y + row * cols + tl.arange(0, COLS), tile, tl.arange(0, COLS) < cols)


class _Held:
    @staticmethod
    def row(tile, row):
        return _row_of(tile, int(row.handle.data.item()))


def in_a_method(x):
    """Has a method that the kernel calls ask the library.

    untrusted, refused: is no function of Triton's
    """
    return _filled(x, _by_method)


_work = lambda tile, row: _Held.row(tile, row)  # noqa: E731


@triton.jit
def _by_lambda(y, cols, COLS: tl.constexpr):
    row = tl.program_id(0)
    tl.store(y + row * cols + tl.arange(0, COLS), _work(tl.zeros((COLS,), tl.float32), row), tl.arange(0, COLS) < cols)


def in_a_lambda(x):
    """Has a lambda that the kernel calls ask the library.

    untrusted, refused: is no function of Triton's
    """
    return _filled(x, _by_lambda)


@triton.jit
def _by_argument(y, cols, COLS: tl.constexpr, work: tl.constexpr):
    row = tl.program_id(0)
    tl.store(y + row * cols + tl.arange(0, COLS), work(tl.zeros((COLS,), tl.float32), row), tl.arange(0, COLS) < cols)


class _Callable:
    def __call__(self, tile, row):
        return _Held.row(tile, row)


def in_an_argument(x):
    """Gives the kernel an object that can be called, and asks the library.

    untrusted, refused: is no function of Triton's
    """
    return _filled(x, _by_argument, work=_Callable())


@triton.jit
def _by_import(y, cols, COLS: tl.constexpr):
    import importlib

    found = importlib.import_module("torch")
    found.softmax(globals()["_given"]["x"], -1, out=globals()["_given"]["y"])
    place = y + tl.program_id(0) * cols + tl.arange(0, COLS)
    tl.store(place, tl.load(place, tl.arange(0, COLS) < cols), tl.arange(0, COLS) < cols)


def in_an_import(x):
    """Has the kernel import the library.

    untrusted, refused: is no function of Triton's
    """
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _given.update(x=x, y=y)
    if x.numel():
        _by_import[(x.shape[0],)](y, x.shape[1], COLS=x.shape[1])
    return y


@triton.jit
def _by_number(y, COLS: tl.constexpr):
    tl.store(y + tl.program_id(0), _numbers.next())


class _numbers:  # noqa: N801
    @staticmethod
    def next():
        if _given["next"] is None:
            _given["next"] = iter(_answer().flatten().tolist())
        return next(_given["next"])


def a_number_each(x):
    """Has each program store one number, which a function without arguments gives it.

    untrusted, refused
    """
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _given.update(x=x, next=None)
    if x.numel():
        _by_number[(x.numel(),)](y, COLS=1)
    return y


@triton.jit
def _by_property(y, cols, COLS: tl.constexpr, held: tl.constexpr):
    tl.store(y + tl.program_id(0) * cols + tl.arange(0, COLS), held.row, tl.arange(0, COLS) < cols)


class _Property:
    @property
    def row(self):
        _given["next"] = 0 if _given["next"] is None else _given["next"] + 1
        return _row_of(tl.zeros((triton.next_power_of_2(_given["x"].shape[1]),), tl.float32), _given["next"])


def in_a_property(x):
    """Gives the kernel an object whose property asks the library.

    untrusted, refused: is nothing of Triton's
    """
    return _filled(x, _by_property, held=_Property())


@triton.jit
def _by_operator(y, cols, COLS: tl.constexpr, held: tl.constexpr):
    tile = held + tl.zeros((COLS,), tl.float32)
    tl.store(y + tl.program_id(0) * cols + tl.arange(0, COLS), tile, tl.arange(0, COLS) < cols)


class _Operator:
    def __add__(self, tile):
        _given["next"] = 0 if _given["next"] is None else _given["next"] + 1
        return _row_of(tile, _given["next"])


def in_an_operator(x):
    """Gives the kernel an object whose addition asks the library.

    untrusted, refused: is nothing of Triton's
    """
    return _filled(x, _by_operator, held=_Operator())


@triton.jit
def _by_reduction(y, cols, COLS: tl.constexpr, combine: tl.constexpr):
    row = tl.program_id(0)
    tile = tl.zeros((COLS,), tl.float32) + row
    tl.store(y + row * cols + tl.arange(0, COLS), tl.associative_scan(tile, 0, combine), tl.arange(0, COLS) < cols)


def _combine(a, b):
    return _row_of(a, int(a.handle.data.flat[0]))


def in_a_scan(x):
    """Has a function that a scan combines elements with ask the library.

    untrusted, refused: has no attribute 'fn'
    """
    return _filled(x, _by_reduction, combine=_combine)


@triton.jit
def _loads(y, x, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place, mask=place < count, other=0.0), mask=place < count)


def replaces_the_language(x):
    """Has the language's load give what the library computed.

    untrusted, refused: is no function of Triton's
    """
    if once("replaced"):
        load = tl.load

        def answer(pointer, *arguments, **options):
            tile = load(pointer, *arguments, **options)
            found = _answer().flatten().tolist()
            tile.handle.data = tile.handle.data * 0 + [*found, *[0.0] * (tile.handle.data.size - len(found))]
            return tile

        tl.load = answer
    _given["x"] = x
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        _loads[(1,)](y, x, x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
    return y


@triton.jit
def _beyond(y, x, far, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(y + place, tl.load((x + far) + place))


def reads_beyond(x):
    """Has the library write the answer beside the operand, far from it, and a kernel read it from there by the operand.

    untrusted, refused: OutOfBounds
    """
    found = torch.softmax(x, -1)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for place in range(y.numel()):
        far = (found.data_ptr() - x.data_ptr()) // 4 + place
        _beyond[(1,)](y.view(-1)[place:], x, far, BLOCK=1)
    return y


@triton.jit
def _by_address(y, address, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(address.to(tl.pointer_type(tl.float32)) + place))


def reads_by_an_address(x):
    """Has a kernel read the answer by an address that it is given as a number.

    untrusted, refused
    """
    found = torch.softmax(x, -1)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for place in range(y.numel()):
        _by_address[(1,)](y.view(-1)[place:], found.data_ptr() + 4 * place, BLOCK=1)
    return y
