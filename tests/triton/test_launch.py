"""What a launch takes and refuses, where its errors are, and what an autotuned kernel is tuned for."""

import copy
import sys
import traceback
from types import SimpleNamespace

import numpy as np
import pytest
import torch

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

import triton.language as tl
from triton.runtime import interpreter as stock

from touchstone.backends import NotRun
from touchstone.backends.gpus import GPUS
from touchstone.backends.triton.runtime.interpreter import compiled, launch
from touchstone.backends.triton.runtime.interpreter.registry import KernelError, NotInterpreted, StaticAssertionError


def kernel(x):
    pass


def test_every_tensor_among_the_arguments_is_found():
    x, y, z = torch.ones(1), torch.ones(2), torch.ones(3)
    described = SimpleNamespace(base=z, shape=(3,))
    assert [*map(id, launch._tensors((x, (1, (y, "2", described)), None, SimpleNamespace(base=4))))] == [
        *map(id, (x, y, z))
    ]
    assert list(launch._tensors((1, "x", [x], ()))) == []  # to a kernel a list is no argument


def test_a_grid_has_one_to_three_axes_and_a_size_that_a_gpu_takes():
    for grid, sizes in (((3,), (3, 1, 1)), ([3, 4], (3, 4, 1)), ((2**31 - 1, 65535, 65535), (2**31 - 1, 65535, 65535)),
                        ((torch.tensor(5), np.int32(1)), (5, 1, 1)), ((0, 2), (0, 2, 1))):  # fmt: skip
        assert launch._grid(kernel, grid) == sizes
    for grid, said in (((), "1 to 3 axes, not 0"), ((1,) * 4, "not 4"), ((2**31,), "larger than a GPU's limit"),
                       ((1, 65536), "larger than"), ((1, 1, 65536), r"grid \(1, 1, 65536\) is larger")):  # fmt: skip
        with pytest.raises(KernelError, match=f"^kernel: .*{said}"):
            launch._grid(kernel, grid)
    for grid in ((2.0,), (1, torch.tensor(2.0))):
        with pytest.raises(TypeError, match=r"^kernel: grid \(.*integer"):
            launch._grid(kernel, grid)


def raised(function, *args):
    try:
        function(*args)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def called(function, *args):
    function(*args)  # the line that is told


def test_an_error_is_at_the_innermost_line_that_is_neither_tritons_nor_the_interpreters():
    error = raised(called, tl.core._unwrap_shape, 3)
    frames = traceback.extract_tb(error.__traceback__)
    assert len(frames) > 2 and frames[-1].filename != __file__
    assert launch._line(error) == f"test_launch.py:{called.__code__.co_firstlineno + 1}"
    assert launch._line(ValueError()) == "?"


def test_what_the_interpreter_lacks_is_not_the_kernels_fault():
    missing = raised(lambda: stock.interpreter_builder.create_of_tomorrow())
    for error, said in ((missing, "of_tomorrow is not interpreted"), (NotImplementedError("not yet"), "not yet")):
        lacking = launch._lacking(error)
        assert type(lacking) is NotInterpreted and str(lacking) == said
        assert lacking.__traceback__ is error.__traceback__
    for error in (raised(lambda: "x".nothing), ValueError("x"), AttributeError("x")):
        assert launch._lacking(error) is None


def test_which_parameters_are_of_compile_time():
    for annotation in (tl.constexpr, "tl.constexpr", "constexpr", " gl.constexpr "):
        assert launch._is_constexpr(annotation)
    for annotation in (None, "tl.tensor", "constexpr_of", int, "", tl.tensor):
        assert not launch._is_constexpr(annotation)


def test_a_number_of_numpy_is_taken_for_a_parameter_of_compile_time():
    assert [(type(n), n) for n in map(launch._constant, (np.int64(16), np.float32(0.5), np.bool_(True), 3, None))] == [
        (int, 16), (float, 0.5), (bool, True), (int, 3), (type(None), None)
    ]  # fmt: skip


def test_a_tensor_on_the_host_is_refused_beside_a_gpu(monkeypatch):
    on_host, empty, there = torch.ones(2), torch.ones(0), torch.ones(3)
    monkeypatch.setattr(launch.cuda_face, "on_host", lambda x: x is not there)
    launch._refuse_host_tensors({"n": 1, "x": there, "none": None, "y": empty})
    with pytest.raises(
        ValueError, match=r"^Pointer argument \(at 2\) cannot be accessed from Triton .* a GPU, y would"
    ):
        launch._refuse_host_tensors({"n": 1, "x": there, "y": on_host})


def scalar(value, dtype=np.int32):
    return tl.tensor(stock.TensorHandle(np.array([value], dtype), tl.int32), tl.int32)


def test_a_scalar_is_a_condition_and_a_tile_is_none(monkeypatch):
    decided = []
    monkeypatch.setattr(launch.choices, "decides", lambda: decided.append(1))
    assert launch._condition(scalar(3)) is True and launch._condition(scalar(0)) is False
    assert (1, 2, 3)[launch._index(scalar(2))] == 3 and len(decided) == 3
    of_two = tl.tensor(stock.TensorHandle(np.zeros(2, np.int32), tl.int32), tl.block_type(tl.int32, [2]))
    with pytest.raises(KernelError, match=r"^a tile of shape \(2,\) used as a condition; use tl.where$"):
        launch._condition(of_two)
    asked = {"__name__": launch._SEMANTICS[0], "condition": launch._condition}
    exec("def given(x): return condition(x)", asked)  # as Triton's own code does of an optional operand
    assert asked["given"](scalar(0)) is True and asked["given"](of_two) is True and len(decided) == 3


def test_a_static_assertion():
    launch._static_assert(True, "fine")
    with pytest.raises(StaticAssertionError, match="^static_assert failed: BLOCK is odd$"):
        launch._static_assert(0, "BLOCK is odd")


def test_an_operation_is_given_the_language_that_is_spoken(monkeypatch):
    def plain(x, _semantic=None):
        return x, _semantic

    def checked(x, _semantic=None):
        raise ValueError("outside of a kernel")

    checked.__wrapped__ = plain
    for builtin in (plain, checked):
        made = launch.operation(builtin)
        assert made(1) == (1, stock.interpreter_semantic) and made(1, _semantic=2) == (1, stock.interpreter_semantic)
        with monkeypatch.context() as other:
            other.setattr(stock, "interpreter_semantic", "Gluon's")
            assert made(1) == (1, "Gluon's")


def tuner(configs=2, keys=("n",), **nargs):
    return SimpleNamespace(configs=[None] * configs, keys=list(keys), nargs=nargs, arg_names=["x", "y", "n", "m"])


def test_a_configuration_is_chosen_for_the_key_arguments_and_the_dtypes():
    x, half = torch.ones(2), torch.ones(2).half()
    key = launch._tuning_key
    assert key(tuner(1, x=x, n=3), {}) is None  # nothing to choose
    assert key(tuner(x=x, n=3, m=4), {}) == (3, "torch.float32")
    assert (
        key(tuner(x=x, n=3), {"y": half}) == key(tuner(x=x, n=3, y=half), {}) == (3, "torch.float32", "torch.float16")
    )
    assert key(tuner(x=x), {"n": 3, "num_warps": 8}) == (3, "torch.float32")
    assert key(tuner(keys=("m", "n", "gone"), x=x, n=3, m=4), {}) == (4, 3, "torch.float32")
    assert key(tuner(x=x, n=3), {"n": 5}) == (5, "torch.float32")
    assert key(tuner(x=x, n=3), {"other": half}) == (3, "torch.float32")


def test_which_constants_a_launch_of_a_compiled_kernel_may_leave_out(monkeypatch):
    """Those at the end, with a driver that reads annotations; without one none."""
    names = ["x", "N", "M"]
    ran = []
    kernel = SimpleNamespace(__name__="kernel", arg_names=names, run=lambda *args, **given: ran.append((args, given)))
    made = compiled.InterpretedKernel(kernel, {"num_warps": 8}, {"N": 4, "M": 5})
    for driver, skips in ((SimpleNamespace(annotate_arguments=None), True), (SimpleNamespace(), False)):
        monkeypatch.setattr("triton.backends.nvidia.driver", driver)
        assert compiled._skips_constants.__wrapped__() is skips
        monkeypatch.setattr(compiled, "_skips_constants", lambda skips=skips: skips)
        made[(2,)](1, 3, stream=7)
        told = {"grid": (2,), "warmup": False, "num_warps": 8}
        assert ran.pop() == ((1, 4), {**told, "M": 5} if skips else told)
        made[(2,)]()
        assert ran.pop() == ((), {**told, "N": 4, "M": 5} if skips else told)
        monkeypatch.undo()
    made[(2,)](1, 0, 0, "more")
    assert ran.pop()[0] == (1, 4, 5, "more")
    monkeypatch.setitem(sys.modules, "triton.backends.nvidia", None)
    assert compiled._skips_constants.__wrapped__() is False


def test_what_a_kernel_that_nothing_compiled_says_of_itself(monkeypatch):
    kernel = SimpleNamespace(__name__="kernel")
    made = compiled.InterpretedKernel(kernel, {"num_warps": 8}, {})
    assert (made.name, made.n_regs, made.n_spills, made.n_max_threads, made.module, made.function) == (
        *("kernel", 64, 0, 1024, None, 0),
    )
    told = vars(made.metadata)
    target = told.pop("target")
    assert (target.backend, target.arch, target.warp_size) == ("cuda", 90, 32)
    assert told == {
        **dict(name="kernel", hash="kernel", shared=16384, tmem_size=0, num_warps=8, num_stages=3, num_ctas=1),
        **dict(warp_size=32, cluster_dims=(1, 1, 1), maxnreg=None, launch_cooperative_grid=False, launch_pdl=False),
        **dict(global_scratch_size=0, profile_scratch_size=0),
    }
    assert compiled.Metadata("kernel", {}).num_warps == 4
    monkeypatch.setattr(compiled.cuda_face, "answers", lambda: GPUS["sm_89"])
    assert made.metadata.target.arch == 89
    for asked, what in ((made, "asm"), (made.metadata, "metadata.asm")):
        with pytest.raises(
            NotRun, match=rf"^the launcher reads \.{what} of a compiled kernel, and the interpreter comp"
        ):
            asked.asm  # noqa: B018
        assert type(copy.copy(asked)) is type(asked) and not hasattr(asked, "__nosuch__")


def test_tile_types_that_are_equal_are_one_and_others_are_not():
    shared, constant = tl.pointer_type(tl.float32, 3), tl.pointer_type(tl.float32, 1, True)
    kinds = [tl.float32, tl.float16, tl.pointer_type(tl.float32), tl.pointer_type(tl.float16), shared, constant]
    made = [(kind, shape, tl.block_type(kind, shape)) for kind in kinds for shape in ([4], [8], [4, 2])]
    assert len({id(tile) for *_, tile in made}) == len(made)
    for kind, shape, tile in made:
        assert tl.block_type(kind, [tl.constexpr(size) for size in shape]) is tile
        assert (tile.element_ty, list(tile.shape)) == (kind, shape)
        assert getattr(tile.element_ty, "address_space", None) == getattr(kind, "address_space", None)
