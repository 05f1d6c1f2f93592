"""The wrong kernels in conformance/faults/<backend> are rejected, and for their fault: without it the same kernel is
right.

What is found first in each stands in its declaration. Kernels for the emulator are judged in this process, those for
Triton's interpreter by tests/programs/planted_kernels.py, one process per op.
"""

import contextlib
import functools
import json
import re
from importlib.util import find_spec

import pytest
import torch

from tests.faults.kernels import Kernels, folder_of, ops_of
from tests.night import one_of_each, some
from tests.processes import interpret
from tests.programs import PROGRAMS
from touchstone.backends import emulator, numba
from touchstone.conformance.discovery import registry
from touchstone.conformance.faults import KINDS


def absent() -> dict[str, str]:
    """The backends whose mutants cannot run on the CPU here, with the reason."""
    reasons = {
        "cupy": emulator.why_not(),
        "numba": numba.why_not("cpu") or ("NUMBA_ENABLE_CUDASIM is set" if numba.simulated() else None),
        "triton": None if find_spec("triton") else "triton is not installed",
    }
    return {backend: str(reason) for backend, reason in reasons.items() if reason}


LEAST = {"cupy": (90, 8), "numba": (70, 6), "triton": (60, 10)}  # mutants, ops
ABSENT = absent()
EMULATED = {"cupy": 3e6, "numba": 2e5}  # the most work of a case on which a kernel without a fault is judged
KERNELS = {backend: Kernels(backend, work) for backend, work in EMULATED.items() if backend not in ABSENT}
MUTANTS = [(backend, *key) for backend, kernels in KERNELS.items() for key in kernels.mutants]
SOUND = [(backend, *key) for backend, kernels in KERNELS.items() for key in kernels.sound]
VARIANTS = [(backend, *key) for backend, kernels in KERNELS.items() for key in kernels.variants]


def needs(backend: str) -> None:
    if backend in ABSENT:
        pytest.skip(ABSENT[backend])


@functools.cache
def declared(backend: str) -> dict[str, dict[str, list[str]]]:
    """Op -> name -> kind, text and what is found first, of a backend's mutants and known-good kernels."""
    if backend in KERNELS:
        return KERNELS[backend].declared()
    return run_program("--list", *ops_of(backend))


def run_program(*arguments: str):
    done = interpret(str(PROGRAMS / "planted_kernels.py"), *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("backend", LEAST)
def test_enough_is_planted_and_every_line_is_read(backend):
    needs(backend)
    assert set(ops_of(backend)) <= set(registry.ops())
    every = [one for planted in declared(backend).values() for one in planted.values()]
    mutants, ops = LEAST[backend]
    assert sum(kind != "known-good" for kind, _, _ in every) >= mutants and len(ops_of(backend)) >= ops
    for kind, about, found in every:
        assert kind in {*KINDS, "known-good"} and re.fullmatch(r"[^A-Z\n].*[^.]", about), about
        assert (found is None) == (kind == "known-good"), about


@pytest.mark.parametrize("backend", EMULATED)
def test_enough_known_good_kernels_are_planted(backend):
    needs(backend)
    assert sum(one.is_known_good for one in KERNELS[backend].planted.values()) >= 8


@pytest.mark.parametrize(("backend", "op"), [(backend, op) for backend in LEAST for op in ops_of(backend)])
def test_every_switch_of_a_kernel_is_a_mutant(backend, op):
    """And is used; what is kept between calls needs none."""
    needs(backend)
    paths = [folder_of(backend) / f"{op}{suffix}" for suffix in (".py", ".cu")]
    text = "\n".join(path.read_text() for path in paths if path.is_file())
    used = set(re.findall(r'\b(?:fault|FAULT) [!=]= (?:Fault\.|")?(\w+)', text)) - {"none"}
    used |= set(re.findall(r'"(\w+)"', " ".join(re.findall(r"\bfault in \((.*?)\)", text))))
    enum = re.findall(r"^(?:class Fault\(IntEnum\):|enum Fault \{)\n(.*?)^(?:\};|\n)", text, re.DOTALL | re.MULTILINE)
    assert len(enum) == (0 if backend == "triton" else 1)
    assert set(re.findall(r"^ +(\w+)(?: = \d+|,)", "".join(enum), re.MULTILINE)) - {"none"} <= used
    mutants = {name for name, (kind, _, _) in declared(backend)[op].items() if kind != "known-good"}
    assert used == mutants - {"sums_kept", "tickets_kept"}


@pytest.mark.parametrize(("backend", "op", "name"), some(SOUND, 24))
def test_the_kernel_without_a_fault_is_right(backend, op, name):
    assert KERNELS[backend].wrong_on_cases(op, name) is None


@pytest.mark.parametrize(("backend", "op", "name"), some(SOUND, 24))
def test_the_kernel_without_a_fault_is_right_in_any_order(backend, op, name):
    assert KERNELS[backend].wrong_in_some_order(op, name) is None


@pytest.mark.parametrize(("backend", "op", "name"), some(VARIANTS, 8))
def test_a_variant_is_right_in_any_order(backend, op, name):
    assert KERNELS[backend].variant_in_all_orders(op, name)


@pytest.mark.parametrize(("backend", "op", "name"), some(one_of_each(MUTANTS, lambda mutant: mutant[1]), 2))
def test_a_mutant_is_rejected_for_its_fault(backend, op, name):
    found = KERNELS[backend].rejected_for(op, name)
    assert found is not None
    assert re.search(KERNELS[backend].planted[op, name].found, found), found


@pytest.mark.parametrize("op", some(ops_of("triton"), 34))  # one item per op: its process serves all of them
def test_each_interpreted_mutant_is_rejected_for_its_fault_and_the_kernel_without_one_is_right(op):
    needs("triton")
    planted, report = declared("triton")[op], run_program(op)[op]
    assert set(report["mutants"]) == set(planted)
    accused = {
        name: wrong for name, every in report["launchers"].items() for wrong in every.values() if wrong is not None
    }
    assert accused == {}
    assert {name for name, first in report["mutants"].items() if not re.search(planted[name][2], str(first))} == set()
    races = {name: report["races"][name] for name, (kind, _, _) in planted.items() if kind == "race"}
    assert [name for name, what in races.items() if not str(what).startswith("RaceCondition")] == []


@pytest.mark.parametrize("backend", EMULATED)
def test_a_race_may_give_the_right_answer_in_any_order(backend):
    """What only the race detector sees, with both lines."""
    needs(backend)
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 37, generator=draw), torch.randn(37, 7, generator=draw)
    fn = KERNELS[backend].planted["matmul", "splits_add_without_atomic"].make()
    for order in (contextlib.nullcontext(), emulator.schedule("reverse"), emulator.schedule("shuffled", 1)):
        with order:
            assert (fn(a, b) - a @ b).abs().max() < 1e-4
    twice = r"matmul\.(?:cu|py):(\d+)\).* at matmul\.(?:cu|py):\1, "
    with pytest.raises(emulator.RaceCondition, match=twice), emulator.races():
        fn(a, b)


def test_an_index_below_zero_reads_another_element_in_silence_on_a_gpu():
    """Where k is whole tiles there is none, and the kernel is right."""
    needs("numba")
    fn = KERNELS["numba"].planted["matmul", "negative_index"].make()
    a, b = torch.ones(3, 32), torch.ones(32, 2)
    assert torch.equal(fn(a, b), a @ b)
    with pytest.raises(emulator.OutOfBounds, match=r"uses index -12 in axis 1 of a, .*count it from the end"):
        fn(a[:, :20], b[:20])
