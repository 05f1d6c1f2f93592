"""What a kernel may read and call in Triton's interpreter: what is Triton's, what is constant, and what computes."""

import dataclasses
import enum
import functools
import math
import operator
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import torch

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime import interpreter as stock

from touchstone import backends
from touchstone.backends.triton.runtime.interpreter import calls
from touchstone.backends.triton.runtime.interpreter.registry import KernelError


class Plain:
    WIDTH = 4

    def method(self):
        return self.WIDTH


@dataclasses.dataclass(order=True)
class Data:
    width: int = 4


class Kind(enum.IntEnum):
    ONE = 1


class Pair(NamedTuple):
    left: int
    right: int


class Called:
    def __call__(self, x):
        return x


class Compared:
    def __eq__(self, other):
        return True

    __hash__ = None


class WithProperty:
    @property
    def width(self):
        return 4


class Cached:
    @functools.cached_property
    def width(self):
        return 4


class Adding:
    def __add__(self, other):
        return other


class Indexed:
    def __getitem__(self, index):
        return index


class Asking:
    def __getattr__(self, name):
        return name


class Borrowing:
    __eq__ = operator.is_
    __hash__ = None


class Inheriting(WithProperty):
    pass


class Named(WithProperty):
    __module__ = "torch"

    def __radd__(self, other):
        return other


class Constant(tl.constexpr):
    @property
    def value(self):
        return 4


def with_method(name, method):
    """A class with such a method."""
    return type("Made", (), {f"__{name}__": method, "__module__": __name__})


HARMLESS = (Plain, Data, Kind, Pair, Called, Compared, int, str, dict, tuple, np.ndarray, torch.Tensor, Fraction)
COMPUTING = (WithProperty, Cached, Adding, Indexed, Asking, Borrowing, Inheriting, Named, Constant)


def test_classes_that_compute():
    assert [kind.__name__ for kind in HARMLESS if calls._computes(kind)] == []
    assert [kind.__name__ for kind in COMPUTING if not calls._computes(kind)] == []
    assert not calls._computes(tl.tensor) and not calls._computes(type(tl.PropagateNan))
    for kind in (Plain, Called):
        assert isinstance(calls._read(kind()), kind)
    for kind in (WithProperty, Adding):
        with pytest.raises(KernelError, match=f"a {kind.__name__} is nothing of Triton's: a kernel has no use for"):
            calls._read(kind())


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge", "get", "set"])
def test_a_comparison_or_a_descriptor_is_of_its_class_or_computes(name):
    """One that was taken from elsewhere may be anything's, an array's for one."""
    assert not calls._computes(with_method(name, lambda *of: True))
    for method in (operator.mul, math.log2, functools.partial(print), Fraction.__mul__):
        assert calls._computes(with_method(name, method)), method


def function(x):
    return x


of_this_module = Plain()


def reading_a_name():
    return [of_this_module for _ in range(3)]  # in a function of its own before 3.12


def test_what_a_function_uses_of_its_module_does_not_compute(monkeypatch):
    calls._begun.clear()
    calls.enter(reading_a_name)
    monkeypatch.setitem(globals(), "of_this_module", WithProperty())
    calls.enter(reading_a_name)  # looked at once in a launch
    calls._begun.clear()
    with pytest.raises(KernelError, match="a WithProperty is nothing of Triton's"):
        calls.enter(reading_a_name)


def test_what_is_tritons_own_is_called_as_it_is():
    own = (
        tl.zeros,
        tl.core.load,
        tl.exp,
        triton.cdiv,
        tl.sum,
        tl.constexpr,
        tl.dtype,
        triton.Config,
        tl.tuple,
        len,
        range,
        isinstance,
        min,
        max,
    )
    own += (print, (1, 2).index, [].append, {}.get, "x".join, tl.float32.is_int, tl.tensor)
    assert [each for each in own if not calls._is_language(each)] == []
    others = (
        function,
        math.log2,
        np.add,
        torch.add,
        open,
        eval,
        Plain().method,
        Plain,
        functools.partial(function),
        sum,
    )
    assert [each for each in others if calls._is_language(each)] == []
    assert calls._is_language(functools.partial(tl.zeros)) and calls._is_language(Pair)
    assert calls._called(tl.zeros) is tl.zeros and type(calls._called(function)) is calls._OnConstants


def test_constants():
    constants = (
        1,
        2.5,
        True,
        None,
        "x",
        1j,
        tl.float32,
        tl.constexpr(3),
        (1, (2.0, None)),
        [1, "x"],
        Kind.ONE,
        Fraction(1),
    )
    assert [each for each in constants if not calls._is_constant(each)] == []
    tensor = tl.tensor(stock.TensorHandle(np.zeros(1, np.float32), tl.float32), tl.float32)
    others = (tensor, (1, tensor), [tensor], torch.ones(1), np.zeros(2), {}, Plain(), function, object())
    assert [type(each) for each in others if calls._is_constant(each)] == []
    assert calls._constant(3) == 3 and calls._constant("x") == "x" and calls._constant(None) is None
    assert type(calls._constant(tl.constexpr(7))) is int


def test_python_is_called_once_in_a_launch_and_on_constants():
    calls._given.clear()
    counted = []

    def count(x, y=1):
        counted.append(x)
        return x + y

    on_constants = calls._called(count)
    assert [on_constants(1), on_constants(1), on_constants(2), on_constants(1, y=2)] == [2, 2, 3, 3]
    assert counted == [1, 2, 1]
    calls._given.clear()
    assert on_constants(1) == 2 and len(counted) == 4
    tensor = tl.tensor(stock.TensorHandle(np.zeros(1, np.float32), tl.float32), tl.float32)
    for arguments, named in (((tensor,), {}), ((1,), {"y": tensor}), (((tensor, 1),), {})):
        with pytest.raises(KernelError, match="count is no function of Triton's: a kernel cannot call it but on const"):
            on_constants(*arguments, **named)
    with pytest.raises(KernelError, match="gives a kernel what is no constant"):
        calls._called(lambda: object())()
    assert calls._called(lambda: tl.zeros)() is tl.zeros


def test_a_launch_begins_with_nothing_known(monkeypatch):
    begun, code = [], function.__code__
    monkeypatch.setattr(calls.choices, "begin", begun.append)
    calls._given[function] = 3
    calls._begun.add(open)
    calls.begin(function, [1, Plain()])
    assert calls._given == {} and calls._begun == {code} and begun == [code]
    with pytest.raises(KernelError, match="a WithProperty is nothing of Triton's"):
        calls.begin(function, [1, WithProperty()])


def test_of_what_numbers_decide_the_calls_are_told(monkeypatch):
    """Those that one launch makes and the one before it did not, and the other way round."""
    told = []
    monkeypatch.setattr(backends, "chosen", lambda more=0: told.append(more))

    def launched(*made, decided=True, code=function.__code__):
        told.clear()
        calls.choices.begin(code)
        calls.choices.called(function, "before")
        if decided:
            calls.choices.decides()
        for key in made:
            calls.choices.called(function, key)
        return sum(told)

    assert launched("a", "b", decided=False) == 0
    assert launched("a", "b") == 2
    assert launched("a", "b") == 0
    assert launched("a", code=open_one.__code__) == 1  # of another kernel
    assert launched("b", "c") == 1
    assert launched("b") == 1  # the one before made "a", which that one did not
    assert launched("b") == 1
    assert launched("b") == 0
    told.clear()
    calls.choices.decides()
    for tells_nobody in (math.log2, operator.add):
        calls.choices.called(tells_nobody, "d")
    assert told == []


def open_one():
    pass


def test_layouts_are_gluons_by_name_and_module():
    def made(name, module):
        return type(name, (), {"__module__": module})

    inside = "triton.experimental.gluon.language"
    assert calls.is_layout(made("BlockedLayout", inside)) and calls.is_layout(made("SharedLayout", inside))
    assert not calls.is_layout(made("Descriptor", inside)) and not calls.is_layout(made("BlockedLayout", "mine"))


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(backends, "before_launch", [lambda reached: None])


LEAVING = "numbers could leave the kernel by it"


def test_where_launches_are_watched_no_number_leaves_a_kernel(watched):
    tensor = tl.tensor(stock.TensorHandle(np.zeros(1, np.float32), tl.float32), tl.float32)
    kept: list = []
    for leave in (
        lambda: calls._called(kept.append),
        lambda: calls._called({}.update),
        lambda: calls._called(print)("x", file=kept),
        lambda: calls._stored(Plain()),
        lambda: calls._inner(tensor),
        lambda: calls._added(kept, [1]),
        lambda: calls._formatted(tensor),
        lambda: calls._remainder("%s", tensor),
        lambda: calls._read(np.zeros(1)),
        lambda: calls._read(tensor.handle),
        lambda: calls._called(getattr)(tensor, "__dict__"),
        lambda: calls._called(getattr)(tensor, "handle"),
        lambda: calls._refused("match"),
    ):
        with pytest.raises(KernelError, match=LEAVING):
            leave()
    assert calls._called([1, 2].index)(2) == 1 and calls._called({1: 2}.get)(1) == 2
    assert calls._called(getattr)(tl.constexpr(3), "value") == 3 and calls._called(getattr)(Plain(), "x", 5) == 5
    assert calls._formatted(3) == 3 and calls._remainder(7, 4) == 3 and calls._remainder("%d", 4) == "4"
    assert calls._added(tensor, 1) == calls._added((1,), 1) == calls._added(2, 1) == 1
    assert type(calls._called("x".join)) is calls._OnConstants and type(calls._called(breakpoint)) is calls._OnConstants


def test_a_launch_begins_anew():
    counted = []
    on_constants = calls._called(lambda: counted.append(1) or len(counted))
    for turn in (1, 2):
        calls.begin(lambda: None, ())
        assert [on_constants(), on_constants()] == [turn, turn]


def test_elsewhere_a_kernel_is_python(capsys):
    tensor = tl.tensor(stock.TensorHandle(np.zeros(1, np.float32), tl.float32), tl.float32)
    kept: list = []
    calls._called(kept.append)(tensor)
    assert kept == [tensor] and calls._stored(kept) is kept and calls._inner(tensor) is tensor
    assert (
        calls._added(kept, 1) == 1
        and calls._formatted(tensor) is tensor
        and calls._read(tensor.handle) is tensor.handle
    )
    calls._called(print)("said", end="")
    calls._refused("match")
    assert capsys.readouterr().out == "said"


def told(*given):
    """Whatever it is told."""


class Own(tuple):
    def __new__(cls, *given):
        return tuple.__new__(cls, told(*given) or given)


class OwnList(list):
    def __init__(self, *given):
        told(*given)


class Borrowed(tuple):
    __new__ = functools.partial(told)


class Known(type):
    def __instancecheck__(cls, value):
        return not told(value)


class Part(metaclass=Known):
    pass


class OfClasses(tuple, metaclass=Known):
    pass


def aggregate(init, part=tl.tensor):
    return tl.core._aggregate(type("Aggregate", (), {"__annotations__": {"a": part}, "__init__": init}))


def names(self, a):
    self.a = a


def wraps(self, a, n=4):
    self.a, self.n = tl.constexpr(a), n


def tells(self, a):
    told(a)
    self.a = a


def asks(self, a):
    self.a = a.handle


def gets(self, a):
    self.a = getattr(a, "handle")  # noqa: B009


def makes(self, a):
    self.a = Own(a)


def enclosed(kept):
    def keeps(self, a):
        kept[0] = self.a = a

    return keeps


PLAINLY_MADE = [Pair, tuple, list, *map(aggregate, (names, wraps, triton.constexpr_function(wraps)))]
MADE_BY_ITSELF = [Own, OwnList, Borrowed, OfClasses, aggregate(names, Part)]
MADE_BY_ITSELF += map(aggregate, (tells, asks, gets, makes, enclosed([0]), triton.constexpr_function(tells)))


def test_what_a_class_of_somebody_s_calls_when_a_kernel_makes_its_object():
    assert [kind for kind in PLAINLY_MADE if calls._maker(kind) is not None] == []
    assert [kind for kind in MADE_BY_ITSELF if calls._maker(kind) is None] == []


def test_none_of_it_is_called_where_somebody_is_told_of_launches(monkeypatch):
    assert calls._called(Own) is Own
    monkeypatch.setattr(backends, "before_launch", [lambda reached: None])
    assert calls._called(Pair) is Pair
    with pytest.raises(KernelError, match="a Own, which __new__ of its own makes: Triton does not compile it"):
        calls._called(Own)
    with pytest.raises(KernelError, match="which a class of classes makes"):
        calls._called(aggregate(names, Part))


def test_a_method_of_an_aggregate_s_that_is_python_is_called_on_constants_alone(monkeypatch):
    class Told(tl.core.base_value):
        def tell(self, value):
            return value

    monkeypatch.setattr(backends, "before_launch", [lambda reached: None])
    assert isinstance(calls._called(Told().tell), calls._OnConstants)
