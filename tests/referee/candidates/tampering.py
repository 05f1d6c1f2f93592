"""Changing the judge, in the process of the kernel: comparison, torch, the messages to the judge."""

import gc
import json
import os
import sys

import torch

from tests.referee.candidates.honest import sockets, softmax, wrong


def compares_all_equal(x):
    """Replaces the comparison by one that finds nothing.

    refused
    """
    from touchstone.conformance.spec import compare

    compare.compare = lambda *arguments, **options: compare.Verdict(True, 0.0, "")
    return wrong(x)


def nothing_is_found(x):
    """Replaces the method that holds something against a kernel.

    refused
    """
    from touchstone.conformance.judging.judgement import Judgement

    Judgement.find = lambda *arguments, **options: None
    return wrong(x)


def torch_says_equal(x):
    """Has torch.equal, allclose and isfinite say yes.

    refused
    """
    torch.equal = torch.allclose = lambda *arguments, **options: True
    torch.isfinite = torch.isclose = lambda x, *rest, **options: torch.ones_like(x, dtype=torch.bool)
    return wrong(x)


def tensor_methods(x):
    """Has the methods of tensors say that nothing differs.

    refused
    """
    torch.Tensor.__ne__ = lambda a, b: torch.zeros(a.shape, dtype=torch.bool)
    torch.Tensor.any = lambda a, *rest: torch.tensor(False)
    torch.Tensor.abs = lambda a: torch.zeros(a.shape, dtype=a.dtype)
    return wrong(x)


def expects_what_it_gets(x):
    """Replaces the op's reference answer by zeros.

    refused
    """
    from touchstone.conformance.discovery import registry
    from touchstone.conformance.spec.budget import Expected

    contract = registry.contract("softmax")
    object.__setattr__(contract, "expect", lambda inputs, *rest, **more: {"y": Expected(torch.zeros_like(inputs["x"]))})
    return wrong(x)


def wide_budget(x):
    """Makes the error budget as wide as the numbers.

    refused
    """
    from touchstone.conformance.spec import budget

    for name, value in vars(budget).items():
        if isinstance(value, float):
            setattr(budget, name, 1e30)
    budget.Expected.budget = lambda *arguments, **options: torch.tensor(torch.inf)
    return wrong(x)


def exits_with_zero(x):
    """Has every way to end this process end it with status 0.

    refused
    """
    sys.exit = os._exit
    sys.excepthook = lambda *arguments: os._exit(0)
    os._exit(0)


def forgets_its_state(x):
    """Leaves the default dtype changed and has the instrument that compares global state see nothing.

    untrusted, refused
    """
    from touchstone.conformance.judging import instruments

    instruments.State.changes = lambda self: ([], [])
    torch.set_default_dtype(torch.float64)
    return softmax(x)


def watches_nothing(x):
    """Calls the library, and has the instrument that lists library calls list none.

    untrusted, refused
    """
    from touchstone.conformance.judging import instruments

    instruments.Watch.__torch_dispatch__ = lambda self, func, types, args=(), kwargs=None: func(*args, **(kwargs or {}))
    return torch.softmax(x, -1)


def always_at_work(x):
    """Calls the library, and says that a kernel of an interpreter is running, so that nobody counts it.

    untrusted, refused
    """
    from touchstone import backends

    backends.kernel_running = lambda: True
    return torch.softmax(x, -1)


def empties_the_list(x):
    """Calls the library, and has a destructor empty the list of calls before it is sent.

    untrusted, refused
    """

    from touchstone.conformance.judging.instruments import Watch

    y = torch.softmax(x, -1)
    for found in gc.get_objects():
        if type(found) is Watch:
            found.library = type("Never", (dict,), {"__setitem__": lambda *arguments: None})()
    return y


def patched_json(x):
    """Has json and struct write that the call declined.

    untrusted, refused
    """

    dumps = json.dumps

    def declined(content, **options):
        if "observed" in content:
            raised = {"kind": "declines", "types": ["NotImplementedError"], "said": "no", "text": "no"}
            content = {**content, "observed": {**content["observed"], "raised": raised}, "values": {}}
        return dumps(content, **options)

    json.dumps = declined
    return wrong(x)


def patched_pack(x):
    """Announces replies that are longer than they are.

    refused
    """
    from touchstone.conformance.isolation import wire

    class Longer:
        size = wire.ANNOUNCED.size
        pack = staticmethod(lambda nonce, size: wire.struct.pack("<QQ", nonce, 1 << 60))

    wire.ANNOUNCED = Longer
    return softmax(x)


def patched_write(x):
    """Has os.write, with which replies are sent, send each reply twice.

    contained
    """
    write = os.write

    def twice(descriptor, data):
        if descriptor in sockets():
            write(descriptor, data)
        return write(descriptor, data)

    os.write = twice
    return softmax(x)
