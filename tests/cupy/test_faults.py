"""The wrong kernels in conformance/faults/cupy are rejected, and for their fault: without it the same kernel is
right."""

import contextlib
import re

import pytest
import torch

from tests.programs.planted import Kernels
from touchstone.backends import emulator
from touchstone.conformance.discovery import registry
from touchstone.conformance.faults import KINDS
from touchstone.conformance.faults.cupy import _module

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

KERNELS = Kernels("cupy", work=3e6)

# By what is found first; everything else gives wrong values in a plain call.
FOUND = {
    "OutOfBounds": {
        "matmul": ["tile_row_overrun", "load_unguarded", "store_unguarded", "offset_int"],
        "softmax": ["offset_int", "store_unguarded"],
        "softmax_backward": ["load_unguarded"],
        "online_softmax": ["warps_overrun"],
        "rms_norm": ["shared_memory_of_elements", "partials_overrun", "run_too_many", "weight_stride_ignored"],
        "layer_norm_backward": ["part_too_many"],
        "attention": ["load_unguarded", "offset_int", "strides_of_k", "tile_overrun"],
        "group_norm": ["load_unguarded"],
    },
    "Misaligned": {"rms_norm": ["pointer_unaligned", "row_stride_unaligned"]},
    "UninitialisedShared": {
        "matmul": ["no_barrier_before_use", "unfilled_tile", "absent_lanes_summed"],
        "softmax": ["no_barrier_in_reduction", "partials_of_absent_warps"],
        "online_softmax": ["no_barrier_before_result"],
        "rms_norm": ["no_barrier_before_rstd", "no_barrier_before_partials"],
        "attention": ["no_barrier_before_use", "keys_unfilled"],
        "group_norm": ["totals_not_zeroed"],
    },
    "DivergentBarrier": {
        "matmul": ["early_return", "barrier_in_branches"],
        "attention": ["early_return"],
        "group_norm": ["barrier_in_loop"],
    },
    "InactiveLanes": {
        "matmul": ["lanes_left_out"],
        "softmax": ["ragged_warp"],
        "softmax_backward": ["mask_of_lower_half", "mask_of_all", "step_across"],
        "online_softmax": ["lanes_left_out"],
        "group_norm": ["ballot_of_some"],
    },
    "RaceCondition": {
        "matmul": ["splits_add_without_atomic"],
        "softmax": ["reduction_buffer_reused", "warp_synchronous"],
        "layer_norm_backward": ["no_threadfence", "reduction_buffer_reused"],
        "group_norm": ["no_barrier_after_zero", "totals_without_atomic"],
    },
    "under threads in reverse": {
        "layer_norm_backward": ["ticket_of_each_thread"],
        "group_norm": ["no_barrier_before_mean"],
    },
    "ValueError": {"matmul": ["elements_along_y"], "softmax": ["block_of_all_columns"]},
    "repeat": {"matmul": ["sums_kept"], "layer_norm_backward": ["tickets_kept"]},
}
EXPECTED = {(op, name): what for what, ops in FOUND.items() for op, names in ops.items() for name in names}


def test_enough_is_planted_and_every_line_is_read():
    assert len(KERNELS.mutants) >= 90 and len(KERNELS.ops) >= 8
    assert set(KERNELS.ops) <= set(registry.ops())
    assert set(EXPECTED) <= set(KERNELS.mutants)
    for one in KERNELS.planted.values():
        assert one.kind in {*KINDS, "known-good"} and re.fullmatch(r"[^A-Z\n].*[^.]", one.about), one.about


@pytest.mark.parametrize("op", KERNELS.ops)
def test_every_switch_of_a_kernel_is_a_fault(op):
    text = KERNELS.text(op)
    source = (KERNELS.folder / f"{op}.cu").read_text()
    first, *switches = _module.Faulty(str(KERNELS.folder / f"{op}.py"), f"{op}.cu").mutants
    assert first == "none"
    for name in switches:
        assert f'"{name}")' in text and len(re.findall(rf"\bfault [!=]= {name}\b", source)) >= 1, name


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
    assert EXPECTED.get((op, name), "values: ") in found


def test_a_race_may_give_the_right_answer_in_any_order():
    """What only the race detector sees, with both lines."""
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 37, generator=draw), torch.randn(37, 7, generator=draw)
    fn = KERNELS.planted["matmul", "splits_add_without_atomic"].make()
    for order in (contextlib.nullcontext(), emulator.schedule("reverse"), emulator.schedule("shuffled", 1)):
        with order:
            assert (fn(a, b) - a @ b).abs().max() < 1e-4
    with pytest.raises(emulator.RaceCondition, match=r"matmul\.cu:(\d+)\).* at matmul\.cu:\1, "), emulator.races():
        fn(a, b)
