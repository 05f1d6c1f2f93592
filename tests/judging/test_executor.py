"""One call in the process that has the kernel: what of it is seen, and how an error is told."""

import contextlib
import sysconfig
import warnings
from pathlib import Path
from traceback import FrameSummary
from types import SimpleNamespace

import pytest
import torch

from tests.fixed import changeable
from touchstone import backends
from touchstone.backends import NotRun, Unsupported
from touchstone.backends.emulator import program
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import executor
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.executor import CANNOT, DECLINES, RAISES, InProcess, Manner
from touchstone.conformance.spec import layouts

X = torch.arange(6.0).reshape(2, 3)


def call(fn, manner=executor.PLAIN, op="softmax", debug=False, **about):
    return InProcess(Subject(op, fn, "fn", "user@cpu", "cpu", **about)).call({"x": X.clone()}, manner, debug=debug)


def test_late_inputs_arrive_within(monkeypatch):
    """Before that their memory holds what shows; every operand that is given has them."""
    seen, streams = [], []
    placed = {"x": layouts.place(X, "contiguous", "cpu"), "bias": None, "w": layouts.place(X[0], "contiguous", "cpu")}
    given = [placed[name].buffer.clone() for name in ("x", "w")]

    class Stream:
        def synchronize(self):
            seen.append("synchronized")

    @contextlib.contextmanager
    def on(stream):
        streams.append(stream)
        yield
        streams.pop()

    def sleep(cycles):
        assert streams and all(bool((placed[name].buffer == probe.PATTERNS[1]).all()) for name in ("x", "w"))
        seen.append("held back")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append(len(streams)))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "_sleep", sleep)
    with executor._late(placed):
        assert len(streams) == 1 and seen == [0, "held back"]
        for name, values in zip(("x", "w"), given, strict=True):
            assert torch.equal(placed[name].buffer, values)
    assert not streams and seen[-1] == "synchronized"


def test_the_manner_of_a_call():
    seen = call(lambda x: (x * 1.0).requires_grad_(torch.is_grad_enabled()))
    assert (
        seen.values["y"].requires_grad
        and not call(lambda x: (x * 1.0).requires_grad_(torch.is_grad_enabled()), Manner(usual=True))
        .values["y"]
        .requires_grad
    )
    fresh = call(lambda x: torch.empty(1000).clone()[None], Manner(probe.PATTERNS[1], (4000,))).values["y"]
    assert bool((probe.raw(fresh)[16:] == probe.PATTERNS[1]).all())


class Hides(contextlib.nullcontext):
    def __init__(self, told):
        super().__init__()
        self.end = lambda: told.append("shown")


@pytest.mark.parametrize("raises", [False, True])
def test_numbers_are_shown_when_nobody_is_asked_any_more(raises, monkeypatch):
    """What a call has changed is told by what may be the author's: a stream, filters."""
    told = []

    class Filters(list):
        def __iter__(self):
            told.append("asked")
            if raises and len(told) > 1:
                raise KeyError
            return super().__iter__()

    made = InProcess(Subject("softmax", torch.clone, "fn", "user@cpu", "cpu"))
    made.host = Hides(told)
    monkeypatch.setattr(warnings, "filters", Filters(warnings.filters))
    with pytest.raises(KeyError) if raises else contextlib.nullcontext():
        made.call({"x": X.clone()})
    assert told == ["asked", "asked", "shown"]  # before and after the call


def changes(x):
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.rand(1)
    torch.set_default_dtype(torch.float64)
    return x * 1.0


@pytest.mark.parametrize(
    ("manner", "settings", "consumed"),
    [
        (Manner(state=True), 1, ["the number of threads", "the state of torch's generator"]),
        (Manner(state=True, generators=False), 1, ["the number of threads"]),
        (Manner(), 1, ["the number of threads"]),
    ],
)
def test_what_a_call_leaves_changed(manner, settings, consumed):
    threads = torch.get_num_threads()
    try:
        seen = call(changes, manner)
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)
    assert len(seen.settings) == settings
    assert [what.partition(" from ")[0] for what in seen.consumed] == consumed


def test_a_call_that_is_watched():
    def fn(x):
        y = torch.empty_like(x).copy_(x.exp())
        y.as_strided((1,), (1,), y.storage_offset() + 6).fill_(0)
        return y

    seen = call(fn, Manner(watched=True))
    assert seen.watched and seen.guarded and seen.library == ["copy_", "exp"] and len(seen.broken) == 1
    seen = call(lambda x: x * 2, Manner(watched=True))
    assert seen.watched and not seen.guarded and not seen.broken and seen.unexplained == {}
    seen = call(lambda x: torch.exp(x))
    assert not (seen.watched or seen.guarded or seen.library)
    empty = call(lambda x: torch.empty(0, 3) * 1, Manner(watched=True))
    assert empty.guarded  # no memory of it to lie elsewhere
    untrusted = call(lambda x: x * 2, Manner(watched=True), untrusted=True)
    assert untrusted.unexplained == {"y": "lies in memory that no call of torch's that was seen has allocated"}


def test_what_is_launched_is_told():
    def launches(x):
        with backends.running():
            return x * 2

    assert call(launches).launched and not call(lambda x: x * 2).launched


def test_a_result_of_another_number_is_a_sentence():
    assert call(lambda x: (x, x)).values == "returned 2 values; expected 1"
    assert call(lambda x: (x, x), Manner(element=("y", (0, 0)))).writer is None


ERRORS = {
    RAISES: lambda x: {}["nothing"],
    DECLINES: lambda x: (_ for _ in ()).throw(Unsupported("float8")),
    CANNOT: lambda x: (_ for _ in ()).throw(NotRun("no compiler")),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_what_is_raised_is_told_by_its_kind(kind):
    seen = call(ERRORS[kind])
    assert not seen.returned and seen.raised.kind == kind and seen.values == {} and seen.lost is None
    assert seen.raised.types[0] in ("KeyError", "Unsupported", "NotRun") and "Exception" in seen.raised.types
    assert seen.raised.text.startswith(f"{seen.raised.types[0]}: ") and seen.raised.said in seen.raised.text
    if kind == RAISES:
        with pytest.raises(KeyError):
            call(ERRORS[kind], debug=True)
    else:
        assert call(ERRORS[kind], debug=True).raised.kind == kind


def raised(error):
    with contextlib.suppress(BaseException):
        raise error
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (raised(ValueError("too long")), r"ValueError: too long (test_executor.py:"),
        (raised(ValueError("")), r"ValueError: no message (test_executor.py:"),
        (ValueError("too long"), "ValueError: too long"),  # nobody has raised it
        (raised(ValueError("in kernel.py:12: too long")), "ValueError: in kernel.py:12: too long"),
    ],
)
def test_an_error_says_where_it_was_raised(error, text):
    told = executor.error_text(error)
    assert told.startswith(text) and (told == text or told[len(text) : -1].isdecimal())


def too_many_blocks(x):
    program.geometry((1, 70000), 32, 0)


def test_what_an_emulator_raises_is_told_by_the_line_of_the_launch():
    line = too_many_blocks.__code__.co_firstlineno + 1
    assert call(too_many_blocks).raised.text.endswith(f" blocks, got (1, 70000, 1) (test_executor.py:{line})")
    on_axis_7 = call(lambda x: torch.nn.functional.softmax(x, dim=7)).raised.text
    assert "got 7) (test_executor.py:" in on_axis_7  # and not torch's functional.py


ROOT = Path(executor.__file__).parents[2]
CALLED = f"{ROOT}/conformance/judging/executor.py", f"{sysconfig.get_paths()['stdlib']}/contextlib.py"
MINE, TORCH, LIGER = "/u/mine.py", "/v/site-packages/torch/functional.py", "/v/site-packages/liger/softmax.py"


@pytest.mark.parametrize(
    ("inner", "line"),
    [
        ((MINE, "/u/helper.py"), 4),
        ((MINE, TORCH), 3),
        ((MINE, TORCH, MINE, TORCH), 5),
        ((MINE, "cupy/_core/raw.pyx", "cupy_backends/cuda/api/driver.pyx"), 3),  # as Cython names its files
        ((MINE, f"{ROOT}/backends/emulator/program.py"), 3),
        ((MINE, f"{ROOT.parent}/backends/emulator/numba/driver.py"), 3),  # by the path in the clone
        ((MINE, f"{ROOT}/backends/triton/runtime/interpreter/launch.py"), 3),
        ((MINE, f"{ROOT}/backends/cuda_face/tensors.py"), 3),
        ((MINE, f"{ROOT}/backends/sizes.py"), 3),
        ((MINE, f"{ROOT}/backends/cupy/softmax/rows.py"), 4),  # a kernel of ours
        ((MINE, f"{ROOT}/backends/numba/lib/online.py"), 4),
        ((MINE, f"{ROOT}/conformance/judging/instruments.py"), 3),
        ((f"{ROOT}/conformance/faults/softmax.py", TORCH), 3),
        ((LIGER, TORCH, LIGER, TORCH), 5),  # a library's kernel
        ((f"{ROOT}/backends/emulator/program.py",), 3),  # nobody's
        ((), 2),
    ],
)
def test_the_innermost_line_of_the_kernels_author(inner, line):
    frames = [FrameSummary(name, number, "fn", line="") for number, name in enumerate((*CALLED, *inner), 1)]
    assert executor._innermost(frames).lineno == line


def test_an_end_of_a_process_in_words():
    assert executor.ending_text(SystemExit(3)) == "sys.exit(3)"
    assert executor.ending_text(SystemExit("no")) == "sys.exit('no')"
    assert executor.ending_text(KeyboardInterrupt("stop")) == "KeyboardInterrupt: stop"


def test_which_outputs_lie_on_the_cpu_beside_a_gpu(monkeypatch):
    monkeypatch.setattr(executor.cuda_face, "on_host", lambda tensor: tensor.shape == X.shape)

    def launches(x):
        with backends.running():
            return x * 2

    assert call(launches).on_host == ["y"]
    assert call(lambda x: x * 2).on_host == []  # no kernel was launched: nothing says that it has to lie elsewhere


def test_an_instrument_of_a_backend_is_around_the_call(monkeypatch):
    within = []

    @contextlib.contextmanager
    def races():
        within.append(1)
        yield
        within.pop()

    backend = SimpleNamespace(instruments=lambda device: {"races": races})
    monkeypatch.setattr(registry, "behind", lambda target: ())
    monkeypatch.setattr(registry, "backend", lambda name: {"paper": backend}[name])
    inside = call(lambda x: x + len(within), Manner(instrument=("paper", "races"))).values["y"]
    assert torch.equal(inside, X + 1) and not within and torch.equal(call(lambda x: x + len(within)).values["y"], X)


def test_what_is_undefined_is_gathered_from_every_backend(monkeypatch):
    asked = []

    def offering(found):
        @contextlib.contextmanager
        def undefined(device, conspicuous):
            asked.append((device, conspicuous))
            yield found

        return SimpleNamespace(undefined=undefined)

    offered = {
        "one": offering({"a.py:1": "no other"}),
        "two": offering({"b.py:2": "no mask"}),
        "none": SimpleNamespace(),
        "nothing": SimpleNamespace(undefined=lambda device, conspicuous: None),
    }
    monkeypatch.setattr(registry, "behind", lambda target: tuple(offered))
    monkeypatch.setattr(registry, "backend", lambda name: offered.get(name, SimpleNamespace()))
    seen = call(lambda x: x * 2, Manner(conspicuous=("a.py:1",)))
    assert seen.undefined == {"a.py:1": "no other", "b.py:2": "no mask"}
    assert asked == [("cpu", ("a.py:1",))] * 2
    assert call(lambda x: 1 / 0, Manner(conspicuous=None)).undefined == seen.undefined  # of a call that fails too


def test_the_backends_that_a_function_reaches_are_set_up_for_another_device(monkeypatch):
    def fn():
        pass

    asked = []
    every = {
        name: SimpleNamespace(
            name=name, reimport=lambda of, device, name=name: asked.append((of, device)) or name == "one"
        )
        for name in ("one", "two")
    }
    monkeypatch.setattr(registry, "backends", lambda: list(every))
    monkeypatch.setattr(registry, "backend", every.__getitem__)
    for device, other in (("cpu", "cuda"), ("cuda", "cpu")):
        asked.clear()
        assert executor.reached(fn, device) == [every["one"]] and asked == [(fn, other)] * 2


def test_an_axis_that_moves_nothing_has_no_index_but_0():
    wide = torch.zeros(3, 1).expand(3, 4)
    assert executor._index(wide, wide.data_ptr() + 2 * 4) == (2, 0) and executor._index(wide, wide.data_ptr()) == (0, 0)
    assert executor._index(wide, wide.data_ptr() + 3 * 4) is None
    column = torch.zeros(3, 2)[:, :1]
    assert executor._index(column, column.data_ptr() + 4) is None  # the column beside it


def test_a_context_that_is_lost_says_so_to_every_further_call(monkeypatch):
    """By the first line of CUDA's error; the first one is the reason for what follows."""
    errors = []

    def synchronize():
        if errors:
            raise RuntimeError(errors[-1])

    monkeypatch.setattr(executor, "lost_context", [])
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert executor._lost("cuda") is None and executor.lost_context == []
    errors.append("an illegal memory access\nCompile with debugging")
    assert executor._lost("cpu") is None and executor.lost_context == []
    assert executor._lost("cuda") == "an illegal memory access"
    errors.append("unspecified launch failure")
    assert executor._lost("cuda") == "unspecified launch failure"
    assert executor.lost_context == ["an illegal memory access", "unspecified launch failure"]


def test_a_call_on_a_gpu_is_waited_for(monkeypatch):
    """Before its outputs are looked at; and once more after an error, whose consequences may come later."""
    happened = []
    monkeypatch.setattr(executor, "lost_context", [])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: happened.append("waited for"))

    def on_gpu(fn):
        return InProcess(Subject("softmax", fn, "fn", "user@cuda", "cuda")).call({"x": X.clone()})

    seen = on_gpu(lambda x: happened.append("called") or x * 2)
    assert happened == ["called", "waited for"] and seen.lost is None and seen.on_host == ["y"]

    def lost():
        raise RuntimeError("an illegal memory access")

    happened.clear()
    assert on_gpu(lambda x: 1 / 0).lost is None and happened == ["waited for"]
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    for fn, raised in ((lambda x: 1 / 0, "ZeroDivisionError"), (lambda x: x * 2, "RuntimeError")):
        seen = on_gpu(fn)
        assert seen.raised.types[0] == raised and seen.lost == "an illegal memory access"


def test_who_wrote_an_element_is_asked_of_the_backends_that_know(monkeypatch):
    known = SimpleNamespace(of=lambda address: f"byte {address - outputs[-1].data_ptr()}")
    outputs = []
    offered = {
        "silent": SimpleNamespace(),
        "elsewhere": SimpleNamespace(writers=lambda device: None),
        "paper": SimpleNamespace(writers=lambda device: contextlib.nullcontext(known) if device == "cpu" else None),
    }
    monkeypatch.setattr(registry, "behind", lambda target: tuple(offered))
    monkeypatch.setattr(registry, "backend", lambda name: offered.get(name, SimpleNamespace()))

    def fn(x):
        outputs.append(x * 2)
        return outputs[-1]

    seen = call(fn, Manner(element=("y", (1, 1))))
    assert seen.returned and seen.writer == "byte 16" and call(fn).writer is None


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(Manner, executor.Raised) == []


def test_a_replay_gives_what_the_captured_call_computes(monkeypatch):
    """After a call that compiles; what the outputs hold before it is no answer."""
    done, kept = [], []

    @contextlib.contextmanager
    def within(*what):
        done.append(what)
        yield
        done.append("end")

    class Graph:
        def replay(self):
            done.append([tensor.tolist() for tensor in kept])

    def call(arguments):
        done.append(arguments)
        kept[:] = [torch.ones(2), torch.ones(2, dtype=torch.int32)]
        return tuple(kept)

    monkeypatch.setattr(torch.cuda, "Stream", lambda: "a stream")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: within("on", stream))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("waited"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: within("captured", graph, stream))
    made = InProcess(SimpleNamespace(fn=call, device="cuda", call=call))
    returned = made._replayed("arguments")
    graph = made._graph
    *before, last = done
    first = [("on", "a stream"), "arguments", "end", "waited"]
    assert before == [*first, ("captured", graph, "a stream"), "arguments", "end"] and isinstance(graph, Graph)
    assert [str(numbers) for numbers in last] == ["[nan, nan]", "[123, 123]"] and list(returned) == kept
