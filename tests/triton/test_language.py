"""Gluon's language in the interpreter: what becomes of layouts, which operations are refused, what a launch is told."""

import operator
from types import SimpleNamespace

import numpy as np
import pytest
import torch

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle

from touchstone.backends.triton.runtime.interpreter import programs
from touchstone.backends.triton.runtime.interpreter.gluon import interpreted, language, layouts, machine
from touchstone.backends.triton.runtime.interpreter.gluon.machine import Strand
from touchstone.backends.triton.runtime.interpreter.gluon.shared import allocated
from touchstone.backends.triton.runtime.interpreter.registry import KernelError, NotInterpreted, RaceCondition

ROW = gl.BlockedLayout([1], [32], [4], [0])
WIDE = gl.BlockedLayout([2], [32], [4], [0])
TILE = gl.BlockedLayout([1, 2], [8, 4], [4, 1], [1, 0])
TURNED = gl.BlockedLayout([1, 1], [16, 2], [4, 1], [1, 0])  # whose threads have one of two elements each
FLAT = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])


@pytest.fixture(autouse=True, scope="module")
def _installed():
    language.install()


def spoken(body, **options):
    """What `body` returns in a program of four warps, launched with these options."""
    found = []

    def run():
        programs.current().strand = strand = Strand(programs.team(), 0, options.get("num_warps", 4))
        programs.team().state = [strand]
        found.append(body(language.semantic))

    with language.spoken(options):
        programs.run([(0, 0, 0)], run)
    return found[0]


def tile(data, layout=ROW, ty=None):
    data = np.asarray(data)
    ty = ty or {"i": tl.int32, "f": tl.float32, "b": tl.int1}[data.dtype.kind]
    data = data.astype(stock._get_np_dtype(ty))
    return tl.tensor(TensorHandle(data, ty), gl.distributed_type(ty, list(data.shape), layout))


def shared(shape, layout=FLAT, of=None, dtype=tl.float32):
    handle = allocated(dtype, tuple(of or shape), layout, "here")
    handle.data[...] = np.arange(handle.data.size).reshape(handle.data.shape)
    if of:
        handle = handle.index(1)
    return gl.shared_memory_descriptor(handle, dtype, list(shape), layout, list(of or shape))


def test_a_histogram_counts_where_its_mask_holds():
    x, mask = tile([0, 1, 1, 3, 3, 3, 2, 0]), tile(np.array([1, 1, 0, 1, 1, 0, 0, 1], bool))
    counted = spoken(lambda s: s.histogram(x, 4, None, ROW))
    assert counted.handle.data.tolist() == [2, 2, 1, 3] and counted.type == gl.distributed_type(gl.int32, [4], ROW)
    assert spoken(lambda s: s.histogram(x, 4, mask, ROW)).handle.data.tolist() == [2, 1, 0, 2]


def test_shared_memory_is_permuted_and_reshaped_with_its_layout():
    for of in (None, (2, 4, 8)):
        memory = shared((4, 8), of=of)
        data = memory.handle.data
        turned = spoken(lambda s, m=memory: s.memdesc_trans(m, [1, 0]))
        assert turned.handle.data.tolist() == data.T.tolist() and list(turned.shape) == [8, 4]
        assert turned.layout == turned.handle.layout == gl.SwizzledSharedLayout(1, 1, 1, [0, 1])
        assert list(turned.type.alloc_shape) == ([2, 8, 4] if of else [8, 4]) and turned.dtype == tl.float32
        flat = spoken(lambda s, m=memory: s.memdesc_reshape(m, [2, 16]))
        assert flat.handle.data.tolist() == data.reshape(2, 16).tolist() and list(flat.shape) == [2, 16]
        assert np.shares_memory(flat.handle.data, data) and flat.layout == flat.handle.layout
        assert list(flat.type.alloc_shape) == ([2, 2, 16] if of else [2, 16]) and flat.dtype == tl.float32
        assert np.shares_memory(turned.handle.data, data)
    with pytest.raises(KernelError, match=r"^\(0, 0\) is no order of 2 axes$"):
        spoken(lambda s: s.memdesc_trans(shared((4, 8)), [0, 0]))
    with pytest.raises(KernelError, match=r"^a tile of shape \(4, 8\) has no room for shape \(4, 4\)$"):
        spoken(lambda s: s.memdesc_reshape(shared((4, 8)), [4, 4]))


def test_the_linear_form_of_a_layout():
    linear = spoken(lambda s: s.to_linear_layout(ROW, [256]))
    assert linear == gl.DistributedLinearLayout([[128]], [[1 << i] for i in range(5)], [[32], [64]], [], [256])
    assert spoken(lambda s: s.to_linear_layout(linear, [256])) is linear
    assert type(spoken(lambda s: s.to_linear_layout(gl.AutoLayout(), [256]))) is gl.AutoLayout
    memory = spoken(lambda s: s.to_linear_layout(FLAT, [2, 4]))
    assert (
        memory.offset_bases == [[0, 1], [0, 2], [1, 0]]
        and spoken(lambda s: s.to_linear_layout(memory, [2, 4])) is memory
    )


def test_bank_conflicts_are_counted_by_the_compiler():
    column = gl.BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1])

    def conflicts(layout, shape=(32, 32), dtype=tl.float32, of=(32, 32)):
        tile = gl.distributed_type(tl.float32, list(shape), layout)
        memory = gl.shared_memory_descriptor_type(dtype, list(of), FLAT, list(of))
        return spoken(lambda s: s.bank_conflicts(tile, memory))

    assert conflicts(gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])) == 0 and conflicts(column) == 31
    for given in (dict(dtype=tl.int32), dict(of=(32, 64)), dict(dtype=tl.float16)):
        with pytest.raises(KernelError, match="^bank_conflicts: .* differ$"):
            conflicts(column, **given)
    half = gl.distributed_type(tl.float16, [32, 32], column)
    memory = gl.shared_memory_descriptor_type(tl.float16, [32, 32], FLAT, [32, 32])
    assert spoken(lambda s: s.bank_conflicts(half, memory)) == 15  # two of them lie in one bank


def test_what_the_compiler_would_refuse_of_shapes_and_layouts():
    row, scalar = tile(np.zeros((1, 8)), TILE), tl.tensor(TensorHandle(np.zeros(1, np.int32), tl.int32), tl.int32)
    assert spoken(lambda s: s.broadcast_impl_shape(row, [4, 8])).type == gl.distributed_type(tl.float32, [4, 8], TILE)
    assert spoken(lambda s: s.broadcast_impl_shape(row, [1, 8])) is row
    for body, message in (
        (lambda s: s.broadcast_impl_shape(row, [4, 16]), r"a tile of shape \(1, 8\) cannot be broadcast to \(4, 16\)"),
        (lambda s: s.convert_layout(scalar, ROW), "convert_layout: a tile and a layout, not int32 and Blocked"),
        (lambda s: s.convert_layout(row, "ROW"), "convert_layout: a tile and a layout, not .* and ROW"),
        (lambda s: s.convert_layout(row, FLAT), "convert_layout: a tile and a layout, not .* and Swizzled"),
        (lambda s: s.split(tile(np.zeros((4, 4)), TILE)), "split: the last axis has 2 elements, not 4"),
        (lambda s: s.set_auto_layout(row, TILE), "set_auto_layout: the tile has the layout Blocked"),
        (
            lambda s: s.convert_layout(tile(np.zeros(256)), WIDE, True),
            "convert_layout: the conversion from .* to .* is not trivial",
        ),
    ):
        with pytest.raises(KernelError, match=f"^{message}"):
            spoken(body)
    assert spoken(lambda s: s.convert_layout(tile(np.zeros(256)), WIDE)).type.layout == WIDE
    assert spoken(lambda s: s.convert_layout(tile(np.zeros(256)), ROW, True)).type.layout == ROW
    auto = tile(np.zeros(256), gl.AutoLayout())
    assert spoken(lambda s: s.set_auto_layout(auto, WIDE)).type.layout == WIDE
    assert spoken(lambda s: s.convert_layout(auto, WIDE, True)).type.layout == WIDE  # nobody has decided it
    assert spoken(lambda s: s.convert_layout(tile(np.zeros(256)), gl.AutoLayout(), True)).type.layout == gl.AutoLayout()


def test_layouts_of_results_where_nobody_has_decided_the_operands():
    auto = gl.AutoLayout()
    whole = tile(np.arange(8).reshape(4, 2), auto)
    found = spoken(
        lambda s: (s.permute(whole, (1, 0)), s.reshape(whole, [2, 4], False), *s.split(whole), s.expand_dims(whole, 0))
    )
    assert all(type(each.type.layout) is gl.AutoLayout for each in found)
    assert [list(each.type.shape) for each in found] == [[2, 4], [2, 4], [4], [4], [1, 4, 2]]
    assert found[2].handle.data.tolist() == [0, 2, 4, 6] and found[3].handle.data.tolist() == [1, 3, 5, 7]
    joined = spoken(lambda s: s.join(found[2], found[3]))
    assert joined.handle.data.tolist() == whole.handle.data.tolist() and type(joined.type.layout) is gl.AutoLayout
    assert type(spoken(lambda s: s.tile_type(tl.float32, (4, 2))).layout) is gl.AutoLayout
    assert layouts.sliced(auto, 0) is auto and layouts.sliced(TILE, 1) == gl.SliceLayout(1, TILE)


def test_warps_and_blocks_of_a_program():
    for options, warps in (({}, 4), ({"num_warps": 8}, 8)):
        assert spoken(lambda s: s.num_warps().value, **options) == warps
        assert spoken(lambda s: s.num_ctas().value, **options) == 1
        assert spoken(lambda s: s.builder.options.num_warps, **options) == warps
    with pytest.raises(NotInterpreted, match="^num_ctas=2: clusters of blocks are not interpreted in Gluon$"):
        spoken(lambda s: None, num_ctas=2)
    before = stock.interpreter_semantic, stock.interpreter_builder.options
    assert spoken(lambda s: stock.interpreter_semantic is s and s.builder.options.maxnreg, maxnreg=24) == 24
    assert before == (stock.interpreter_semantic, stock.interpreter_builder.options)
    assert spoken(lambda s: s.builder.options.allowed_dot_input_precisions) == before[1].allowed_dot_input_precisions


def partitions(s, workers=1, warps=(4,), registers=(24,), given=(), inner=None):
    order = []
    functions = [(lambda *args: order.append("first") or "result", ())]
    functions += [(inner or (lambda *args: order.append("worker")), given) for _ in range(workers)]
    return s.warp_specialize(functions, list(warps), registers and list(registers)), sorted(order)


def test_a_program_divides_into_partitions_that_have_their_warps():
    assert spoken(partitions) == ("result", ["first", "worker"])
    assert spoken(lambda s: partitions(s, registers=None)) == ("result", ["first", "worker"])
    assert spoken(lambda s: (partitions(s), partitions(s))[1]) == ("result", ["first", "worker"])  # one after another
    scalar = tl.tensor(TensorHandle(np.zeros(1, np.int32), tl.int32), tl.int32)
    assert spoken(lambda s: partitions(s, given=(scalar, (1, scalar)))) == ("result", ["first", "worker"])
    seen = []
    spoken(lambda s: partitions(s, 2, (1, 2), (24, 24), inner=lambda: seen.append(s.num_warps().value)))
    assert sorted(seen) == [1, 2]
    for given, message in (
        (dict(warps=(4, 4)), "1 workers and 2 numbers of warps"),
        (dict(registers=(24, 24)), "1 workers and 2 numbers of registers"),
        (dict(given=(tile(np.zeros(128)),)), "only the first partition takes tiles"),
        (dict(given=((1, [tile(np.zeros(128))]),)), "only the first partition takes tiles"),
    ):
        with pytest.raises(KernelError, match=f"^warp_specialize: {message}$"):
            spoken(lambda s, given=given: partitions(s, **given))
    with pytest.raises(KernelError, match="^warp_specialize within a partition$"):
        spoken(lambda s: partitions(s, inner=lambda: partitions(s)))


@pytest.mark.parametrize("name", language._LACKING)
def test_an_operation_that_is_lacking_is_named(name):
    with pytest.raises(NotInterpreted, match=f"^Gluon's {name} is not interpreted$"):
        getattr(gl, name)(1, 2, 3)


@pytest.mark.parametrize(
    ("room", "gpu"), [("nvidia.blackwell", "Blackwell"), ("nvidia.rubin", "Rubin"), ("amd", "AMD")]
)
def test_an_operation_of_another_gpu_is_named(room, gpu):
    def anything(x, _semantic=None):
        return x

    anything.__module__ = f"{gl.__name__}.{room}.tma"
    with pytest.raises(NotInterpreted, match=f"^Gluon's load is not interpreted: it is of {gpu} GPUs$"):
        language._operation(anything, "load")(1, key=2)
    anything.__module__ = f"{gl.__name__}.nvidia.hopper.tma"
    assert language._operation(anything, "load")(1) == 1


def test_operations_for_other_gpus_are_not_interpreted():
    for operation in (
        gl.nvidia.blackwell.allocate_tensor_memory,
        gl.nvidia.blackwell.tcgen05_mma,
        gl.amd.cdna3.buffer_load,
    ):
        with pytest.raises(NotInterpreted, match="^Gluon's .* GPUs$"):
            operation(1, 2, 3)


def test_the_argument_that_a_descriptor_becomes():
    x = torch.arange(64 * 64, dtype=torch.float16).view(64, 64)
    layout = gl.NVMMASharedLayout.get_default_for([16, 32], gl.float16)
    made = language.descriptor(TensorDescriptor.from_tensor(x, [16, 32], layout))
    assert (made.layout, made.handle.layout, list(made.block_shape)) == (layout, layout, [16, 32])
    assert made.dtype == tl.float16 and made.handle.padding == stock._ir.PADDING_OPTION.PAD_ZERO
    for found, ty, values in ((made.shape, tl.int32, [64, 64]), (made.strides, tl.int64, [64, 1])):
        assert [each.dtype for each in found] == [ty, ty] and [each.handle.data.item() for each in found] == values
    assert int(made.handle.base.data.item()) == x.data_ptr()
    nan = language.descriptor(TensorDescriptor.from_tensor(x, [16, 32], layout, "nan"))
    assert nan.handle.padding == stock._ir.PADDING_OPTION.PAD_NAN


def test_operands_of_a_product_of_warpgroups():
    right = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    multiply = language._checked_product(lambda a, b, acc, **options: options)

    def of(layout):
        return SimpleNamespace(type=SimpleNamespace(layout=layout))

    memory, registers = of(gl.NVMMASharedLayout(128, 16, 2)), of(gl.DotOperandLayout(0, right, 2))
    linear = of(layouts.linear(FLAT, (2, 4)))
    assert multiply(linear, linear, of(right)) == {}
    accumulator = SimpleNamespace(type=SimpleNamespace(tensor_type=SimpleNamespace(layout=right)))
    for acc in (of(right), accumulator):
        assert multiply(registers, memory, acc, is_async=True) == {"is_async": True}
    old = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    for layout in (old, ROW):
        with pytest.raises(KernelError, match="^warpgroup_mma: an accumulator in an NVMMADistributedLayout of v"):
            multiply(memory, memory, of(layout))
    for a, b in ((of(FLAT), memory), (memory, of(FLAT)), (memory, of(ROW))):
        with pytest.raises(KernelError, match="^warpgroup_mma: an operand in an NVMMASharedLayout, not"):
            multiply(a, b, of(right))


def test_types_of_tiles_are_interned_by_all_that_they_are_of():
    one = gl.distributed_type(tl.float32, [4, 8], TILE)
    assert gl.distributed_type(tl.float32, [tl.constexpr(4), 8], tl.constexpr(TILE)) is one
    others = [
        gl.distributed_type(tl.float16, [4, 8], TILE),
        gl.distributed_type(tl.float32, [8, 4], TILE),
        gl.distributed_type(tl.float32, [4, 8], gl.AutoLayout()),
        gl.distributed_type(tl.pointer_type(tl.float32), [4, 8], TILE),
        gl.distributed_type(tl.pointer_type(tl.float32, 3), [4, 8], TILE),
        gl.distributed_type(tl.pointer_type(tl.float32, 1, True), [4, 8], TILE),
    ]
    assert len({id(each) for each in (one, *others)}) == 7
    assert [list(each.shape) for each in others[:2]] == [[4, 8], [8, 4]] and others[0].element_ty == tl.float16


def test_a_layout_that_the_compiler_refuses():
    layouts.check(4, ROW, (128,))
    layouts.check(4, gl.AutoLayout(), (128,))
    layouts.check(8, gl.BlockedLayout([1], [32], [8], [0]), (256,))
    for warps, layout, shape in ((8, ROW, (128,)), (4, TILE, (128,)), (4, ROW, (4, 32))):
        with pytest.raises(KernelError, match=rf"^the compiler refuses .* for \[.*\] in {warps} warps$"):
            layouts.check(warps, layout, shape)
    with pytest.raises(KernelError, match="^the compiler refuses it"):
        layouts.split(4, TURNED, (64, 2))


def test_a_kernel_is_made_an_interpreted_one_once():
    @gluon.jit
    def kernel(x_ptr, N: gl.constexpr = 4):
        gl.store(x_ptr, N)

    made = interpreted(kernel)
    assert type(made) is stock.InterpretedFunction and interpreted(kernel) is made and made.arg_names == ["x_ptr", "N"]


def test_a_kernel_may_close_over_constants():
    width, height = gl.constexpr(3), gl.constexpr(4)

    @gluon.jit
    def kernel(x_ptr, N: gl.constexpr = 4):
        gl.store(x_ptr + height - 4, width + N)

    x = torch.zeros(1, dtype=torch.int32)
    kernel[(1,)](x)
    assert x.tolist() == [7]
    kernel[(1,)](x, 6)
    assert x.tolist() == [9]


def test_a_program_does_not_end_while_it_copies_out():
    def program():
        if number := stock.interpreter_builder.grid_idx[0]:
            machine.strand().stores.append(SimpleNamespace(access=SimpleNamespace(line=f"line {number}")))

    with language.spoken({}):
        programs.run([(0, 0, 0)], program)
        with pytest.raises(
            RaceCondition, match="^the program ends while line 7 may still copy out of its shared memory"
        ):
            programs.run([(0, 0, 0), (7, 0, 0)], program)


def test_a_list_of_a_kernel_is_added_to_as_a_tuple_is():
    made = stock._touchstone_list
    for one, other in (
        (made([1]), (2,)),
        (made([1]), [2]),
        ((1,), made([2])),
        ([1], made([2])),
        (made([1]), made([2])),
    ):
        assert list(operator.add(one, other)) == [1, 2]
    assert type(operator.add(made([1]), (2,))) is type(operator.add((1,), made([2]))) is made


@pytest.mark.parametrize(("order", "rank"), [((0, 0), 2), ((0, 1, 2), 2), ((1,), 1), ((0,), 2)])
def test_an_order_of_axes_names_each_once(order, rank):
    layouts.check_permutation((1, 0, 2), 3)
    with pytest.raises(KernelError, match=rf"is no order of {rank} axes$"):
        layouts.check_permutation(order, rank)
