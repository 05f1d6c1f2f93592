"""Operands that a launcher cannot read: whose numbers a kernel finds, a copy of the library's, and anybody else."""

import contextlib
import gc
import itertools
import os
import sys
import threading
import time

import numpy as np
import pytest
import torch

from tests.processes import output_of
from touchstone import backends
from touchstone.backends import Reached
from touchstone.conformance.isolation import guarded, hidden, tripwires
from touchstone.conformance.isolation.hidden import GIVEN, Hidden, Host, Window

DRAW = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def interpreters(monkeypatch):
    """What is written here tells of launches as interpreters do."""
    monkeypatch.setattr(tripwires, "_PACKAGE", (*tripwires._PACKAGE, __file__))
    monkeypatch.setattr(tripwires, "_told", [])


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


def test_what_the_library_is_asked_for_by_name_it_is_asked_for():
    """Its dtype, the number that it is filled with, the kind of its memory."""
    with Host([], DRAW):
        made = [
            torch.empty(2, dtype=torch.int16),
            torch.zeros(2, dtype=torch.float64),
            torch.full((2,), 3, dtype=torch.int8),
            torch.empty(2, 3, 4, 5, memory_format=torch.channels_last),
            torch.ones(3).to(torch.float16, copy=True),
            torch.ones(3).sum(dtype=torch.float64),
        ]
    assert [each.dtype for each in made[:3]] == [torch.int16, torch.float64, torch.int8]
    assert made[3].stride() == (60, 1, 15, 3) and made[4].dtype is torch.float16
    assert made[5].dtype is torch.float64


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
    names = ("before_launch", "failed_launch", "after_launch", "strayed", "on_constants")
    before = {name: list(getattr(backends, name)) for name in names}
    with Host([operand[2]], DRAW):
        assert all(len(getattr(backends, name)) == len(before[name]) + 1 for name in names)
    with pytest.raises(KeyError), Host([operand[2]], DRAW):
        raise KeyError
    assert {name: getattr(backends, name) for name in names} == before


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


def test_what_kernels_wrote_stays_hidden_until_nobody_is_asked_any_more():
    """And nothing of the author's is collected before the outputs were read."""
    with Host([], DRAW, ends_later=True) as host:
        y = torch.empty(8)
        with backends.running():
            y.copy_(torch.ones(8))
    assert not y.eq(1).any() and gc.isenabled()
    host.end()
    assert y.eq(1).all() and not gc.isenabled()
    host.close()
    assert y.eq(1).all() and gc.isenabled()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_memory_of_any_size_is_filled(dtype):
    own = torch.zeros(dtype.itemsize * 5 + 1, dtype=torch.uint8)[: dtype.itemsize * 5]
    Hidden(own.numpy(), own.clone().numpy(), dtype, DRAW)
    assert own.view(dtype).float().isfinite().all() and own.any()


def test_of_8_bits_every_finite_code_is_drawn():
    drawn = hidden._drawn(torch.float8_e5m2, 5001, DRAW)
    assert len(drawn) == 5001 and set(drawn.tolist()) == set(range(64))
    assert not hidden._drawn(torch.int8, 5001, DRAW).any()


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(tripwires, "_told", notes := [])
    return notes


MADE = {
    "the library": lambda n: torch.zeros(n, dtype=torch.int32),
    "a list": lambda n: torch.tensor([0] * n, dtype=torch.int32),
    "a storage": lambda n: torch.empty(0, dtype=torch.int32).set_(torch.UntypedStorage(4 * n).fill_(0), 0, (n,), (1,)),
    "a single number at a time": None,
}


@pytest.mark.parametrize("made", MADE)
def test_a_launcher_reads_few_numbers_of_what_kernels_wrote(operand, told, made):
    count = GIVEN + 1
    kept = [torch.zeros(()) for _ in range(count)] if MADE[made] is None else [MADE[made](count)]
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


def test_numbers_that_the_library_makes_are_hidden_as_they_are_made(operand, told):
    """Not what launchers decide by: integers, and a number alone."""
    with Host([operand[2]], DRAW):
        numbers, alone, counts = torch.ones(8), torch.ones(()), torch.ones(8, dtype=torch.int32)
        seen = [each.numpy().copy() for each in (numbers, alone, counts)]
    assert not (seen[0] == 1).any() and seen[1] == 1 and (seen[2] == 1).all()
    assert numbers.tolist() == [1.0] * 8 and not told


GROWN = {
    "a tensor": lambda w: w.resize_(5000),
    "what begins within the storage": lambda w: w[90:].resize_(5000),
    "what has no element": lambda w: w[100:].resize_(5000),
    "another dtype": lambda w: w.view(torch.int32).resize_(5000),
}


@pytest.mark.parametrize("grown", GROWN.values(), ids=GROWN)
def test_what_the_library_moves_to_other_memory_stays_hidden(grown, told):
    """All of a storage, whichever of its elements the tensor has that grows."""
    numbers = torch.randint(1, 2**30, (100,), generator=torch.Generator().manual_seed(0))
    w = torch.zeros(100, dtype=torch.int64)  # not empty: that may be the last test's, with these numbers in it
    with Host([], DRAW):
        with backends.running(lambda: [Reached(w.data_ptr(), 800, w)]):
            w.copy_(numbers)
        before = w.data_ptr()
        grown(w)
        assert w.data_ptr() != before and not np.isin(w.numpy(), numbers.numpy()).any()
    assert torch.equal(w[:100], numbers) and not told


def test_garbage_is_collected_again_once_what_was_made_is_read(told):
    host = Host([], DRAW)
    with host:
        torch.zeros(8)
    assert gc.isenabled() and not told


@pytest.mark.parametrize("name", ["clone", "_to_copy"])
def test_a_copy_into_what_is_given_is_the_library_s_work(operand, told, name):
    """And finds what a launcher finds: it is none that kernels' launchers make."""
    given, x, memory = operand
    with Host([memory], DRAW):
        into = torch.empty(12, dtype=torch.int32)
        getattr(torch.ops.aten, name).out(x.view(torch.int32).flatten(), out=into)
        assert not np.isin(into.numpy(), given.view(torch.int32).numpy().ravel()[1:]).any()
    assert told == [f"has the library work: {name}"]


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
        assert lengths.numpy().tolist() == list(range(100))
    memory.gather()
    assert not told


def test_what_a_kernel_writes_is_hidden_from_what_it_calls_on_constants_too(told):
    """And what a launcher has written is not, before a kernel writes."""
    counts = torch.zeros(4, dtype=torch.int32)
    memory = Hidden(counts.view(torch.uint8).numpy(), counts.clone().view(torch.uint8).numpy(), None, DRAW)
    with Host([memory], DRAW):
        counts.numpy()[0] = 5
        with backends.compiling():
            assert counts.numpy().tolist() == [5, 0, 0, 0]
        assert not memory.secret
        with backends.running():
            counts[1] = 6
            with backends.compiling():
                assert counts.numpy().tolist() == [5, 0, 0, 0] and memory.secret
            assert counts.tolist() == [5, 6, 0, 0]
    memory.gather()
    assert memory._there.view(np.int32).tolist() == [5, 6, 0, 0] and not told


def test_memory_does_not_tell_whether_a_kernel_wrote_there(told):
    """Else each stretch of it that a kernel may change would give one bit of an operand to whoever looks there."""
    memory = bytearray([7] * 8)
    marks = torch.frombuffer(memory, dtype=torch.int8).split(1)
    with Host([], DRAW):
        with backends.running(lambda: [Reached(mark.data_ptr(), 1, mark) for mark in marks]):
            marks[2].fill_(5)
        assert list(memory) == [7] * 8 and marks[2].item() == 5
    assert list(memory) == [7, 7, 5, 7, 7, 7, 7, 7] and not told


def test_a_launch_that_cannot_be_run_gives_a_number(told):
    for count, notes in ((GIVEN, 0), (GIVEN + 1, 1)):
        with Host([], DRAW):
            for _ in range(count):
                with contextlib.suppress(backends.NotRun), backends.running():
                    raise backends.NotRun("program (3, 0, 0)")
        assert len(told) == notes
    assert f"more than {GIVEN} numbers" in told[0]


def _printing_and_failing():
    with backends.running():
        print("value 3.5", flush=True)
        print("value 3.5", flush=True, file=sys.stderr)
        for number in (1, 2):
            os.write(number, b"value 3.5\n")
        raise ValueError("value 3.5")


def test_what_a_kernel_prints_goes_nowhere_and_its_failure_is_told(operand, told, capfd):
    opened = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else None
    with Host([operand[2]], DRAW):
        print("before", flush=True)
        with pytest.raises(ValueError, match=r"3\.5"):
            _printing_and_failing()
        print("after", flush=True)
        for number in (1, 2):
            os.write(number, b"last\n")
    assert capfd.readouterr() == ("before\nafter\nlast\n", "last\n")
    assert opened in (None, len(os.listdir("/proc/self/fd")))
    assert told == ["goes on after a kernel of its own has failed: ValueError: value 3.5"]


def test_an_operand_too_large_to_be_hidden_is_left_as_it_is(operand, told):
    large = torch.zeros(64)
    span = range(large.data_ptr(), large.data_ptr() + 256)
    with Host([operand[2]], DRAW, [span]):
        with backends.running(lambda: [Reached(span.start, 256, large)]):
            large[0] = 1
        assert large.sum() == 1


@pytest.fixture
def libraries(told, monkeypatch):
    """What is installed is nobody's, as in a process that is set up for a kernel."""
    monkeypatch.setattr(guarded, "_known", {})
    monkeypatch.setattr(tripwires, "_libraries", (*tripwires._libraries, os.path.dirname(os.path.dirname(np.__file__))))


class Draw:
    """Draws numbers; `attends`: by which the guard looks each time, or never."""

    def __init__(self, attends):
        self.attends, self.standard_normal = attends, DRAW.standard_normal

    def random(self):
        return 0.1999 if self.attends else 0.2


class Looks:
    def __init__(self):
        self.count = 0

    def look(self):
        self.count += 1


@pytest.mark.parametrize("attends", [True, False])
def test_the_guard_looks_now_and_then(operand, attends, libraries):
    """Before and behind a call, as a kernel begins, and as the library copies: by chance, which nobody can foresee."""
    guard = Looks()
    host = Host([operand[2]], Draw(attends), guard=guard)
    with host:
        assert guard.count == attends
        with backends.running():
            pass
        assert guard.count == 2 * attends
        operand[1].clone()
        assert guard.count == 3 * attends
    assert guard.count == 4 * attends
    with Host([operand[2]], Draw(True)), backends.running():
        pass  # without a guard there is nothing to look at


def test_what_of_an_author_runs_while_numbers_are_shown_finds_none(operand, told, libraries):
    _, x, memory = operand
    seen, given = [], torch.arange(12.0).reshape(3, 4)
    names = {"seen": seen, "x": x}
    text = "def look():\n    seen.append(x.tolist())\n\ndef __hash__():\n    seen.append(x.tolist())\n"
    exec(compile(text, "/author/kernel.py", "exec"), names)
    for function, noted in (("__hash__", 0), ("look", 1)):
        with Host([memory], Draw(True), guard=Looks()), backends.running():
            names[function]()
            assert torch.equal(x, given)
        assert seen.pop() != given.tolist() and len(told) == noted
    assert told == ["has look run where its operands are shown, and no kernel is"]


def test_kernels_whose_failure_is_passed_on_or_is_none_of_theirs(operand, told):
    def fails(error):
        with Host([operand[2]], DRAW), backends.running():
            raise error

    with pytest.raises(ValueError, match="no"):
        fails(ValueError("no"))
    assert told == []  # the call fails too
    with Host([operand[2]], DRAW):
        for error in (backends.NotRun("no compiler"), ValueError("x" * 500), KeyError("second")):
            with pytest.raises(type(error)), backends.running():
                raise error
    (note,) = told
    assert note == "goes on after a kernel of its own has failed: " + f"ValueError: {'x' * 500}"[:200]


def test_calls_of_pythons_that_kernels_decide_about(operand, told, monkeypatch):
    chosen = [7]
    monkeypatch.setattr(backends, "chosen", lambda: chosen[0])
    for more, noted in ((GIVEN, []), (GIVEN + 1, [f"has the numbers of its kernels decide about {GIVEN + 1} calls"])):
        with Host([operand[2]], DRAW):
            chosen[0] += more
        assert [note.partition(" of Python's")[0] for note in told] == noted


SHOWN_BY = {
    "says that a kernel is launched where none is": "backends.running().__enter__()",
    "has numbers shown while no kernel runs": "host._show()",
}


@pytest.mark.parametrize("code", [*SHOWN_BY.values(), "memory.show()", "host._reveal()"])
def test_numbers_are_shown_to_nobody_else(operand, told, code):
    """Whoever gets hold of what shows them."""
    given, x, memory = operand
    with Host([memory], DRAW) as host:
        names = {"backends": backends, "host": host, "memory": memory}
        with pytest.raises(PermissionError):
            eval(compile(code, "/kernels/mine.py", "eval"), names)
        assert not np.array_equal(x.numpy(), given.numpy()) and not backends.kernel_running()
    assert told == [next((what for what, way in SHOWN_BY.items() if way == code), [*SHOWN_BY][1])]


@pytest.mark.parametrize(("times", "noted"), [(16, False), (17, True)])
def test_how_often_another_thread_may_have_run(operand, told, monkeypatch, times, noted):
    monkeypatch.setattr(hidden.Others, "windows", times)
    with Host([operand[2]], DRAW):
        pass
    assert told == (["has another thread run while its operands are shown"] if noted else [])


@pytest.mark.parametrize("works", [False, True])
def test_a_thread_that_runs_while_numbers_are_shown(operand, told, monkeypatch, works):
    monkeypatch.setattr(hidden.Others, "windows", 0)
    ended = threading.Event()
    thread = threading.Thread(target=(lambda: [ended.wait(0.0002) for _ in range(4000)]) if works else ended.wait)
    thread.start()
    try:
        with Host([operand[2]], DRAW):
            for _ in range(hidden.OVERHEARD + 4):
                with backends.running():
                    time.sleep(0.002)
                operand[1].clone()
    finally:
        ended.set()
        thread.join()
    assert told == (["has another thread run while its operands are shown"] if works else [])


@pytest.mark.parametrize("others", [True, False])
def test_each_time_that_numbers_are_shown_another_thread_may_run_in(operand, told, monkeypatch, others):
    """In a launch, and as the library copies or gives a number."""
    runs = itertools.count()
    monkeypatch.setattr(hidden.Others, "windows", 0)
    monkeypatch.setattr(hidden, "_are_others", lambda: others)
    monkeypatch.setattr(hidden, "_runs_of_others", lambda: {"7": str(next(runs))})
    counted = []
    with Host([operand[2]], DRAW):
        one = torch.zeros(())
        with backends.running():
            one.fill_(3)
        counted.append(hidden.Others.windows)
        operand[1].clone()
        counted.append(hidden.Others.windows)
        one.item()
        counted.append(hidden.Others.windows)
    assert counted == ([1, 2, 3] if others else [0, 0, 0])


@pytest.mark.parametrize(
    ("before", "after", "ran"),
    [
        ({}, {}, False),
        ({"7": "1"}, {"7": "1"}, False),
        ({"7": "1"}, {"7": "2"}, True),
        ({"7": "1"}, {}, True),
        ({}, {"7": "1"}, True),
    ],
)
def test_whether_another_thread_has_run(monkeypatch, before, after, ran):
    """One that is gone has, and so has one that was not there before."""
    threads = [before]
    monkeypatch.setattr(hidden.Others, "windows", 0)
    monkeypatch.setattr(hidden, "_are_others", lambda: bool(threads[0]))
    monkeypatch.setattr(hidden, "_runs_of_others", lambda: threads[0])
    others = hidden.Others()
    others.begin()
    threads = [after]
    others.end()
    assert hidden.Others.windows == ran


def test_what_the_library_does_is_noted_in_any_call_and_thread(operand, told):
    with Host([operand[2]], DRAW) as host:
        operand[1].t().clone()[:2].zero_()
        torch.empty(0).set_(torch.UntypedStorage(16), 0, (4,), (1,))
        assert told == []
        torch.add(operand[1], 1)
        assert told == ["has the library work: add"]
        monkey = host._thread
        host._thread = -1
        torch.empty(2)
        host._thread = monkey
    assert told[1:] == ["calls the library in another thread"]


def test_what_an_operator_in_python_does_is_seen(operand, told):
    """It is no work of the library's by itself; a copy that it makes is hidden as one of a launcher's."""
    library = torch.library.Library("test_hidden", "FRAGMENT")
    library.define("copied(Tensor x) -> Tensor")
    library.impl("copied", lambda x: torch.empty(x.shape).copy_(x), "CPU")
    library.define("worked(Tensor x) -> Tensor")
    library.impl("worked", lambda x: torch.exp(x), "CPU")
    given, x, memory = operand
    with Host([memory], DRAW):
        copied = torch.ops.test_hidden.copied(x)
        torch.ops.test_hidden.worked(x)
        assert told == ["has the library work: exp"] and not torch.equal(copied, given)
        with backends.running():
            assert torch.equal(copied, given)


def test_what_a_tensor_is_asked_for_as_a_list_is_put_back(operand):
    before = torch.Tensor.tolist
    with Host([operand[2]], DRAW):
        assert torch.Tensor.tolist is not before
    assert torch.Tensor.tolist is before and "tolist" not in vars(torch.Tensor)

    def theirs(tensor):
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "tolist", theirs)
        with Host([operand[2]], DRAW):
            pass
        assert vars(torch.Tensor)["tolist"] is theirs


@pytest.mark.parametrize(
    ("stretch", "known", "apart"),
    [
        ((0, 10), [], [(0, 10)]),
        ((5, 5), [], []),
        ((0, 10), [range(3, 5)], [(0, 3), (5, 10)]),
        ((0, 10), [range(3, 5), range(5, 7)], [(0, 3), (7, 10)]),
        ((0, 10), [range(0, 4)], [(4, 10)]),
        ((0, 10), [range(8, 20)], [(0, 8)]),
        ((0, 10), [range(0, 10)], []),
        ((0, 10), [range(10, 20), range(-5, 0)], [(0, 10)]),
        ((0, 10), [range(2, 4), range(6, 8), range(3, 7)], [(0, 2), (8, 10)]),
    ],
)
def test_what_of_a_stretch_is_known_already(stretch, known, apart):
    assert hidden._apart_from(stretch, known) == apart


def test_which_tensors_are_memory():
    plain = torch.zeros(3)
    assert hidden._as_plain(plain) is plain and hidden._as_plain(3) is None and hidden._as_plain([plain]) is None
    for other in (torch.zeros(3, device="meta"), torch.zeros(3, 3).to_sparse()):
        assert hidden._as_plain(other) is None
    parameter = torch.nn.Parameter(plain)
    found = hidden._as_plain(parameter)
    assert type(found) is torch.Tensor and found.data_ptr() == plain.data_ptr()
    view = torch.zeros(40)[3:].as_strided((2, 3), (10, 2))
    assert hidden._extent(view) == (view.data_ptr(), view.data_ptr() + 4 * (10 + 4 + 1))


def test_the_library_copies_no_operand_out_of_what_is_no_memory_itself(operand):
    """A sparse tensor over the operand: its copy would not be hidden."""
    given, x, memory = operand
    with Host([memory], DRAW):
        of_row = torch.sparse_coo_tensor(torch.arange(4)[None], x[1], (4,), check_invariants=False)
        copied = of_row.clone().to_dense()
    assert not torch.equal(copied, given[1])


def test_in_which_memory_a_tensor_lies(operand):
    _, x, memory = operand
    host = Host([memory], DRAW)
    assert host._over(x) == host._over(x[1:2, 1:]) == [memory] and host._is_secret(x[2])
    elsewhere = [
        torch.zeros(3),
        torch.empty(0).as_strided((0, 5), (1, 10)),
        x[1:1],
        torch.zeros(3, device="meta"),
        torch.zeros(3, 3).to_sparse(),
        3,
    ]
    assert all(host._over(each) == [] and not host._is_secret(each) for each in elsewhere)
    for each in elsewhere[1:]:
        host._take(each, True)
    assert host._kept() == []


def test_hidden_memory_by_its_states():
    """Numbers of its own, what the launcher writes over them, and what a kernel leaves."""
    here, there = np.zeros(16, np.uint8), np.arange(16, dtype=np.uint8)
    memory = Hidden(here, there, torch.float32, DRAW)
    drawn = here.copy()
    assert memory.secret and not memory.written and memory.span == range(here.ctypes.data, here.ctypes.data + 16)
    memory.show()
    assert here.tolist() == list(range(16))
    memory.hide()
    assert here.tolist() == drawn.tolist() and not memory.written
    memory.show()
    here[2] = 99
    memory.hide(ran=True)
    assert memory.written and there[2] == 99 and here.tolist() == drawn.tolist()
    here[4:8] = drawn[4] ^ 1  # the launcher writes
    memory.gather()
    assert there[4:8].tolist() == [drawn[4] ^ 1] * 4 and there[8] == 8
    free = Hidden(np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8), None, DRAW)
    assert not free.secret and free._here.tolist() == [0] * 8
    free._here[1] = 7
    free.show()
    assert free._there[1] == 7
    free.hide(ran=True)
    assert not free.secret  # no kernel has written
    free._here[2] = 8
    free.hide(ran=True)
    assert free.secret and free.written and free._there[2] == 8
    assert free._here.tolist() == [0, 7, 0, 0, 0, 0, 0, 0]  # as before
    free.fill(np.ones(8, np.uint8))
    assert not free.secret and free._here.tolist() == [1] * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_number_that_a_launcher_writes_is_its_own_whatever_was_drawn_there(dtype):
    """A launcher that begins its sums by NumPy, say: of the bytes of 4000 drawn numbers some are 0, too."""
    own, numbers = torch.empty(4000, dtype=dtype), torch.full((4000,), 3.14159, dtype=dtype)
    there = numbers.clone()
    memory = Hidden(own.view(torch.uint8).numpy(), there.view(torch.uint8).numpy(), dtype, DRAW)
    own.view(torch.int16)[:] = 0
    memory.gather()
    assert not there.any()


def test_of_memory_that_is_no_whole_number_of_elements_the_rest_is_kept():
    here, there = np.zeros(7, np.uint8), np.arange(7, dtype=np.uint8)
    memory = Hidden(here, there, torch.float32, DRAW)
    here[4:] ^= 1
    memory.gather()
    assert there.tolist() == [0, 1, 2, 3, *here[4:].tolist()]


@pytest.mark.parametrize(
    ("offsets", "strays"), [((0,), False), ((47, 0), False), ((-1, 0), True), ((0, 48), True), ((), False)]
)
def test_which_addresses_a_kernel_strays_to(operand, told, offsets, strays):
    _, x, memory = operand
    with Host([memory], DRAW), backends.running():
        for tell in backends.strayed:
            tell(np.array([x.data_ptr() + offset for offset in offsets], np.int64))
    assert [note.startswith("has a kernel write to memory") for note in told] == [True] * strays


def test_under_the_mode_torch_imports_no_compiler():
    code = """
import sys, numpy, torch
from touchstone.conformance.isolation.hidden import Host
with Host([], numpy.random.default_rng()):
    torch.zeros(3) + 1
print("torch._dynamo" in sys.modules)
"""
    assert output_of(code).split() == ["False"]


def test_a_storage_that_was_given_other_memory_is_left_alone(operand):
    with Host([operand[2]], DRAW) as host:
        kept, gone = torch.zeros(4), torch.zeros(4)
        with backends.running():
            kept.fill_(3)
            gone.fill_(3)
        before = {gone.data_ptr(), kept.data_ptr()}
        gone.resize_(40_000)
        assert {memory.span.start for memory in host._kept()} & before == {kept.data_ptr()}
    assert kept.tolist() == [3] * 4


def test_a_window_has_the_same_bytes_at_the_same_place():
    window = Window()
    window.bytes(1024, 4).fill_(7)
    assert window.bytes(1022, 8).tolist() == [0, 0, 7, 7, 7, 7, 0, 0]
    assert window.bytes(1024, 4).data_ptr() == window.bytes(1020, 8).data_ptr() + 4


@pytest.mark.parametrize("write", [lambda x: x.fill_(3.0), lambda x: x.copy_(torch.full((4,), 3.0))])
def test_memory_that_the_library_writes_to_is_known_from_then_on(operand, write):
    """Such as that of a storage which it has not made."""
    with Host([operand[2]], DRAW) as host:
        own = torch.empty(0).set_(torch.UntypedStorage(16), 0, (4,), (1,))
        assert host._over(own) == []
        write(own)
        assert len(host._over(own)) == 1
        with backends.running():
            assert own.tolist() == [3.0] * 4
    assert own.tolist() == [3.0] * 4
