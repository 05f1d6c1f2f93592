"""Operands that a launcher cannot read: whose numbers a kernel finds, a copy of the library's, and anybody else."""

import numpy as np
import pytest
import torch

from touchstone import backends
from touchstone.backends import Reached
from touchstone.conformance.isolation import tripwires
from touchstone.conformance.isolation.hidden import GIVEN, Hidden, Host, Window

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


def test_what_a_launch_calls_on_constants_finds_what_a_launcher_finds(operand):
    given, x, memory = operand
    with Host([memory], DRAW):
        with backends.compiling():  # of a kernel, before its launch
            assert not torch.equal(x, given)
        before = x.clone()
        with backends.running():
            x[2, 3] = 8.0
            with backends.compiling(), backends.compiling():
                seen = x.numpy().copy()
                x[1].fill_(7.0)
            assert x[2, 3] == 8.0 and x[1].eq(7.0).all() and torch.equal(x[0], torch.arange(4.0))
    assert not np.array_equal(seen[0], given[0].numpy()) and torch.equal(before[0], given[0])


def test_modes_of_torch_are_off_while_a_kernel_runs(operand):
    given, x, memory = operand
    asked = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            asked.append(backends.kernel_running())
            return function(*args, **(kwargs or {}))

    with Host([memory], DRAW), Mode():
        with backends.running():
            assert torch.equal(x, given)
        torch.equal(x, given)
    assert asked and not any(asked)


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
        assert y.sum() != 24 and scalar + 0 != 3 and counts.sum() != 9
        assert scalar.item() == 3 and counts.tolist() == [3, 3, 3]  # those that launchers decide by they may read
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


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(tripwires, "_told", notes := [])
    return notes


MADE = {
    "the library": lambda n: torch.zeros(n, dtype=torch.int32),
    "a list": lambda n: torch.tensor([0] * n, dtype=torch.int32),
    "a storage": lambda n: torch.empty(0, dtype=torch.int32).set_(torch.UntypedStorage(4 * n), 0, (n,), (1,)),
    "a single number at a time": None,
}


@pytest.mark.parametrize("made", MADE)
def test_a_launcher_reads_few_numbers_of_what_kernels_wrote(operand, told, made):
    count = GIVEN + 1
    kept = [torch.empty(()) for _ in range(count)] if MADE[made] is None else [MADE[made](count)]
    reached = [Reached(each.data_ptr(), each.numel() * each.element_size(), each) for each in kept]
    with Host([operand[2]], DRAW):
        with backends.running(lambda: reached):
            for each in kept:
                each.copy_(torch.full(each.shape, 7))
        found = [each.item() for each in kept] if len(kept) > 1 else [kept[0][i].item() for i in range(count)]
    assert found[:GIVEN] == [7] * GIVEN and found[GIVEN:] != [7]
    assert len(told) == 1 and f"more than {GIVEN} numbers" in told[0]
    assert all((each == 7).all() for each in kept)


@pytest.mark.parametrize(
    "copied",
    [
        lambda x: x.view(torch.int32).clone(),
        lambda x: torch.zeros(x.shape, dtype=torch.int32).copy_(x.view(torch.int32)),
    ],
)
def test_a_copy_of_what_is_hidden_is_hidden_whatever_its_type(operand, told, copied):
    given, x, memory = operand
    with Host([memory], DRAW):
        made = copied(x)
        assert made.tolist() != given.view(torch.int32).tolist()
    assert torch.equal(made, given.view(torch.int32)) and not told


def test_what_no_kernel_has_written_a_launcher_may_read(operand, told):
    lengths = torch.arange(100, dtype=torch.int32)
    memory = Hidden(lengths.view(torch.uint8).numpy(), lengths.clone().view(torch.uint8).numpy(), None, DRAW)
    sizes = np.arange(5)
    with Host([memory], DRAW):
        with backends.running(lambda: [Reached(sizes.ctypes.data, sizes.nbytes, sizes)]):
            pass
        assert lengths.clone().tolist() == list(range(100)) and sizes.tolist() == [0, 1, 2, 3, 4] and not told
        with backends.running():
            lengths.add_(1)
        assert lengths.numpy().sum() == 0
    memory.gather()
    assert not told


def _printing_and_failing():
    with backends.running():
        print("value 3.5", flush=True)
        raise ValueError("value 3.5")


def test_what_a_kernel_prints_goes_nowhere_and_its_failure_is_told(operand, told, capfd):
    with Host([operand[2]], DRAW):
        print("before", flush=True)
        with pytest.raises(ValueError, match=r"3\.5"):
            _printing_and_failing()
        print("after", flush=True)
    assert capfd.readouterr().out == "before\nafter\n"
    assert told == ["goes on after a kernel of its own has failed: ValueError: value 3.5"]


def test_an_operand_too_large_to_be_hidden_is_left_as_it_is(operand, told):
    large = torch.zeros(64)
    span = range(large.data_ptr(), large.data_ptr() + 256)
    with Host([operand[2]], DRAW, [span]):
        with backends.running(lambda: [Reached(span.start, 256, large)]):
            large[0] = 1
        assert large.sum() == 1
