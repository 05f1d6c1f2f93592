"""Outputs that are no plain tensors, that are not there yet, or that share memory; inputs that are written."""

import ctypes
import threading

import torch

from tests.referee.candidates.honest import softmax, wrong


class _Agreeable(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ in ("equal", "allclose", "all"):
            return True
        return super().__torch_function__(function, types, args, kwargs or {})


def subclass(x):
    """Returns a tensor of a class of its own that agrees with everything.

    refused
    """
    return wrong(x).as_subclass(_Agreeable)


def parameter(x):
    """Returns an nn.Parameter.

    refused
    """
    return torch.nn.Parameter(softmax(x), requires_grad=False)


def own_attributes(x):
    """Returns a tensor with methods of its own in its dictionary.

    refused
    """
    y = softmax(x)
    y.double = lambda: torch.softmax(x.double(), -1)
    return y


def lazy(x):
    """Returns an object that computes once it is looked at.

    refused
    """

    class Lazy:
        shape, dtype, device = x.shape, x.dtype, x.device

        def __getattr__(self, name):
            return getattr(torch.softmax(x, -1), name)

    return Lazy()


def poses(x):
    """Returns an object whose __class__ is torch.Tensor.

    refused
    """

    class Poser:
        __class__ = property(lambda self: torch.Tensor)

        def __getattr__(self, name):
            return getattr(torch.softmax(x, -1), name)

    return Poser()


def raises_when_looked_at(x):
    """Returns an object that raises at every attribute.

    refused
    """

    class Shy:
        def __getattribute__(self, name):
            raise RuntimeError("do not look")

    return Shy()


def list_subclass(x):
    """Returns a list of its own class, which changes when it is read.

    refused
    """

    class Changing(list):
        def __iter__(self):
            return iter([torch.softmax(x, -1)])

        def __len__(self):
            return 1

    return Changing([wrong(x)])


def endless_tuple(x):
    """Returns an iterable that never ends.

    refused
    """

    class Endless(tuple):
        def __iter__(self):
            while True:
                yield torch.zeros(1)

    return Endless((wrong(x),))


def meta(x):
    """Returns a tensor without memory.

    refused
    """
    return torch.empty(x.shape, device="meta")


def sparse(x):
    """Returns a sparse tensor.

    refused
    """
    return softmax(x).to_sparse()


def nested(x):
    """Returns a nested tensor.

    refused
    """
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])


def quantised(x):
    """Returns a quantised tensor.

    refused
    """
    return torch.quantize_per_tensor(softmax(x), 0.01, 0, torch.quint8)


def fake(x):
    """Returns a FakeTensor.

    refused
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(x.shape)


def functional(x):
    """Returns a tensor of a functionalisation that has ended.

    refused
    """
    return torch._to_functional_tensor(softmax(x))


def batched(x):
    """Returns a tensor of a vmap that has ended.

    refused
    """
    found = []
    torch.vmap(lambda row: found.append(row) or row)(x)
    return found[0]


def expanded(x):
    """Returns one element, expanded to 2^40.

    refused
    """
    return torch.zeros(1).expand(1 << 20, 1 << 20)


def conjugated(x):
    """Returns a view that is negated only when it is read.

    refused: has yet to negate
    """
    return torch._neg_view(-softmax(x))


def negated(x):
    """Returns a view of its numbers that torch has yet to negate.

    refused: has yet to negate
    """
    return torch._neg_view(softmax(x))


def freed(x):
    """Returns a tensor whose memory is gone.

    refused
    """
    y = softmax(x)
    y.untyped_storage().resize_(0)
    return y


def foreign_memory(x):
    """Returns a tensor over memory that is unmapped before it is read.

    refused
    """
    import mmap

    room = mmap.mmap(-1, max(4096, 4 * x.numel()))
    y = torch.frombuffer(room, dtype=torch.float32, count=x.numel()).view(x.shape)
    y.copy_(softmax(x))
    library = ctypes.CDLL(None)
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.munmap(y.data_ptr(), len(room))
    return y


def needs_grad(x):
    """Returns a tensor with a graph behind it.

    contained
    """
    return softmax(x).requires_grad_(True) * 1


def the_input(x):
    """Returns the input.

    refused
    """
    return x


def the_input_overwritten(x):
    """Writes the answer into the input and returns that.

    refused
    """
    return x.copy_(softmax(x))


def makes_it_right(x):
    """Writes zeros into the input, whose softmax is what it returns.

    refused
    """
    x.zero_()
    return torch.full(x.shape, 1 / max(1, x.shape[1]))


def makes_it_right_for_a_while(x):
    """Writes zeros into the input, returns their softmax, and puts the input back from a thread.

    refused
    """
    before = x.clone()
    x.zero_()
    threading.Timer(0.05, x.copy_, (before,)).start()
    return torch.full(x.shape, 1 / max(1, x.shape[1]))


def around_the_input(x):
    """Writes beside the input, in the memory around it.

    refused
    """
    whole = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())
    if whole.numel() > x.numel():
        whole[0] = 7.0
        whole[-1] = 7.0
    return softmax(x)


def too_many(x):
    """Returns more than there are outputs.

    refused
    """
    return softmax(x), softmax(x)


def none(x):
    """Returns nothing.

    refused
    """
    return None


def a_megabyte_of_text(x):
    """Raises an error with a megabyte of text.

    refused: ValueError: xxx
    """
    raise ValueError("x" * (1 << 20))


def no_text(x):
    """Raises an error whose text cannot be had.

    refused: Silent
    """

    class Silent(Exception):
        def __str__(self):
            raise RuntimeError("no text")

        __repr__ = __str__

    raise Silent


def text_of_another_class(x):
    """Raises an error whose text is of a class of its own.

    refused: Odd
    """

    class Text(str):
        def __getitem__(self, key):
            raise RuntimeError("no slice")

        def strip(self, *arguments):
            return 7

    class Odd(Exception):
        def __str__(self):
            return Text("odd")

    raise Odd


def zeros_without_memory(x):
    """Returns zeros that torch keeps without memory.

    refused: keeps without memory
    """
    softmax(x)
    return torch._efficientzerotensor(tuple(x.shape), dtype=x.dtype)
