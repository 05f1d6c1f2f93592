"""The wrong kernels in conformance/faults/numba are rejected, and for their fault: without it the same kernel is
right."""

import contextlib
import importlib
import re

import pytest
import torch

from tests.programs.planted import Kernels
from touchstone.backends import emulator, numba
from touchstone.conformance.discovery import registry
from touchstone.conformance.faults import KINDS

if numba.why_not("cpu") or numba.simulated():
    pytest.skip(numba.why_not("cpu") or "NUMBA_ENABLE_CUDASIM is set", allow_module_level=True)
numba.prepare("cpu")

KERNELS = Kernels("numba", work=2e5)

# By what is found first; everything else gives wrong values in a plain call. What is in memory that nobody has set is
# chance.
FOUND = {
    "values: |repeat: |under threads": {"matmul": ["splits_add_to_empty"]},
    "OutOfBounds": {
        "matmul": ["tile_overrun", "negative_index", "store_unguarded"],
        "softmax": ["offset_int32", "shared_memory_of_elements", "store_unguarded"],
        "online_softmax": ["pairs_overrun"],
        "rms_norm": ["negative_column", "tail_unguarded", "weight_stride_ignored"],
        "layer_norm_backward": ["part_too_many"],
    },
    "UninitialisedShared": {
        "matmul": ["no_barrier_before_use", "barrier_in_branch", "tile_unfilled"],
        "softmax": ["no_barrier_in_reduction", "partials_of_absent_warps"],
        "online_softmax": ["no_barrier_before_pairs", "no_barrier_before_result"],
        "rms_norm": ["sum_not_zeroed", "no_barrier_after_zero", "no_barrier_before_factor"],
        "group_norm": ["totals_not_zeroed"],
    },
    "DivergentBarrier": {"matmul": ["early_return"], "softmax": ["early_return"], "rms_norm": ["barrier_in_loop"]},
    "InactiveLanes": {
        "softmax": ["ragged_warp", "launch_order"],
        "online_softmax": ["lanes_left_out", "mask_of_half"],
        "group_norm": ["ballot_of_some"],
    },
    "RaceCondition": {
        "matmul": ["splits_add_without_atomic"],
        "softmax": ["reduction_buffer_reused", "syncwarp_for_syncthreads"],
        "rms_norm": ["sum_without_atomic"],
        "group_norm": ["no_barrier_after_zero", "totals_without_atomic"],
        "layer_norm_backward": ["sums_without_atomic", "reduction_buffer_reused", "no_threadfence"],
    },
    "under threads in reverse": {
        "group_norm": ["no_barrier_before_mean"],
        "layer_norm_backward": ["ticket_of_each_thread"],
    },
    "repeat": {"layer_norm_backward": ["sums_kept"]},
}
EXPECTED = {(op, name): what for what, ops in FOUND.items() for op, names in ops.items() for name in names}


def test_enough_is_planted_and_every_line_is_read():
    assert len(KERNELS.mutants) >= 70 and len(KERNELS.ops) >= 6
    assert sum(one.is_known_good for one in KERNELS.planted.values()) >= 8
    assert set(KERNELS.ops) <= set(registry.ops())
    assert set(EXPECTED) <= set(KERNELS.mutants)
    for one in KERNELS.planted.values():
        assert one.kind in {*KINDS, "known-good"} and re.fullmatch(r"[^A-Z\n].*[^.]", one.about), one.about


@pytest.mark.parametrize("op", KERNELS.ops)
def test_every_switch_of_a_kernel_is_a_fault(op):
    text = KERNELS.text(op)
    first, *switches = importlib.import_module(f"touchstone.conformance.faults.numba.{op}").Fault.__members__
    assert first == "none"
    for name in switches:
        assert text.count(f'"{name}")') == 1 and re.search(rf"\bfault [!=]= Mutant\.{name}\b", text), name


@pytest.mark.parametrize(("op", "name"), KERNELS.sound)
def test_the_kernel_without_a_fault_is_right(op, name):
    assert KERNELS.wrong_on_cases(op, name) is None


@pytest.mark.parametrize(("op", "name"), KERNELS.sound)
def test_the_kernel_without_a_fault_is_right_in_any_order(op, name):
    assert KERNELS.wrong_in_some_order(op, name) is None


@pytest.mark.parametrize(("op", "name"), KERNELS.variants)
def test_a_variant_is_right_in_any_order(op, name):
    assert KERNELS.variant_in_all_orders(op, name)


@pytest.mark.parametrize(("op", "name"), KERNELS.mutants)
def test_the_fault_is_rejected(op, name):
    found = KERNELS.rejected_for(op, name)
    assert found is not None
    assert re.search(EXPECTED.get((op, name), "values: "), found), found


def test_a_race_may_give_the_right_answer_in_any_order():
    """What only the race detector sees, with both lines."""
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 37, generator=draw), torch.randn(37, 7, generator=draw)
    fn = KERNELS.planted["matmul", "splits_add_without_atomic"].make()
    for order in (contextlib.nullcontext(), emulator.schedule("reverse"), emulator.schedule("shuffled", 1)):
        with order:
            assert (fn(a, b) - a @ b).abs().max() < 1e-4
    with pytest.raises(emulator.RaceCondition, match=r"matmul\.py:(\d+)\).* at matmul\.py:\1, "), emulator.races():
        fn(a, b)


def test_an_index_below_zero_reads_another_element_in_silence_on_a_gpu():
    """Where k is whole tiles there is none, and the kernel is right."""
    fn = KERNELS.planted["matmul", "negative_index"].make()
    a, b = torch.ones(3, 32), torch.ones(32, 2)
    assert torch.equal(fn(a, b), a @ b)
    with pytest.raises(emulator.OutOfBounds, match=r"uses index -12 in axis 1 of a, .*count it from the end"):
        fn(a[:, :20], b[:20])
