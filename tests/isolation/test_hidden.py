"""Operands that a launcher cannot read: whose numbers a kernel finds, a copy of the library's, and anybody else."""

import numpy as np
import pytest
import torch

from touchstone import backends
from touchstone.conformance.isolation.hidden import Hidden, Host, Window

DRAW = np.random.default_rng(0)


@pytest.fixture
def operand():
    """The operand as the judge has it, as the launcher has it, and the memory."""
    given, window = torch.arange(12.0).reshape(3, 4), Window()
    shared = given.clone().view(torch.uint8).flatten()
    own = window.bytes(512, shared.numel())
    memory = Hidden(own.numpy(), shared.numpy(), torch.float32, DRAW)
    return shared.view(torch.float32).reshape(3, 4), own.view(torch.float32).reshape(3, 4), memory


def test_a_launcher_finds_other_numbers_and_a_kernel_the_operand_s(operand):
    given, x, memory = operand
    with Host([memory], DRAW):
        assert not torch.equal(x, given) and not torch.equal(x + 0, given) and x.numpy()[0, 1] != 1
        with backends.running():
            assert torch.equal(x, given)
            with backends.running():  # a launch within
                pass
            assert torch.equal(x, given)
        assert not torch.equal(x, given)


@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x.clone(),
        lambda x: x.t().contiguous().t(),
        lambda x: x.to(torch.float64),
        lambda x: torch.empty(x.shape).copy_(x),
        lambda x: torch.zeros(4, 4)[:3].copy_(x),
    ],
)
def test_the_library_copies_the_operand_and_hides_the_copy(operand, copy):
    given, x, memory = operand
    with Host([memory], DRAW):
        made = copy(x)
        assert not torch.equal(x, given) and not torch.equal(made + 0, given.to(made.dtype))
        again = made.clone()
        with backends.running():
            assert torch.equal(made, given.to(made.dtype))
            made[0, 0] = 5
    assert torch.equal(made.flatten()[1:], given.to(made.dtype).flatten()[1:]) and made[0, 0] == 5
    assert torch.equal(again, given.to(made.dtype))


@pytest.mark.parametrize("launched", [False, True])
def test_what_a_launcher_or_a_kernel_writes_is_seen(operand, launched):
    given, x, memory = operand
    with Host([memory], DRAW):
        x[1].fill_(7.0)
        if launched:
            with backends.running():
                assert x[1].eq(7.0).all() and torch.equal(x[0], torch.arange(4.0))
                x[2, 3] = 8.0
            assert not torch.equal(x, given)
    memory.gather()
    expected = torch.arange(12.0).reshape(3, 4)
    expected[1] = 7.0
    expected[2, 3] = 8.0 if launched else 11.0
    assert torch.equal(given, expected)


def test_nothing_is_called_at_launches_afterwards(operand):
    before = len(backends.before_launch), len(backends.after_launch)
    with pytest.raises(KeyError), Host([operand[2]], DRAW):
        raise KeyError
    assert (len(backends.before_launch), len(backends.after_launch)) == before


def test_what_kernels_write_is_hidden_until_the_end(operand):
    with Host([operand[2]], DRAW):
        y, scalar, counts = torch.empty(8), torch.zeros(()), torch.zeros(3, dtype=torch.int64)
        with backends.running():
            for made in (y, scalar, counts):
                made.copy_(torch.full(made.shape, 3))
        assert y.sum() != 24 and scalar == 3 and counts.sum() == 9  # those that launchers decide by they may read
        y[:2].zero_()
        view = y[4:]
        view.copy_(torch.ones(4))
        y.resize_(400)
    assert y.tolist()[:8] == [0, 0, 3, 3, 1, 1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_memory_of_any_size_is_filled(dtype):
    own = torch.zeros(dtype.itemsize * 5 + 1, dtype=torch.uint8)[: dtype.itemsize * 5]
    Hidden(own.numpy(), own.clone().numpy(), dtype, DRAW)
    assert own.view(dtype).float().isfinite().all() and own.any()
