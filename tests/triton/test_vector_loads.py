"""Accesses of 16 bytes whatever the size: under a mask that ends at no multiple of 16, elements have one each."""

import json

import pytest
import torch

from tests.processes import output_of
from touchstone.backends.triton.lib import rows

# kernel -> its module, the dtypes of its arguments, its constants; no size is known to be a multiple of anything
KERNELS = {
    "elementwise": (
        "_vectorised_kernel",
        {"a_ptr": "*bf16", "b_ptr": "*bf16", "y_ptr": "*bf16", "size": "i32"},
        {"FUNCTION": "add", "BLOCK": 1024},
    ),
    "reduce": (
        "_persistent_kernel",
        {"x_ptr": "*bf16", "partial_ptr": "*fp32", "done_ptr": "*i32", "y_ptr": "*bf16", "n": "i32"},
        {"stride_x": 1, "FUNCTION": 0, "BLOCK": 1024},
    ),
    "gemv": (
        "_splitk_kernel",
        {
            "a_ptr": "*bf16",
            "x_ptr": "*bf16",
            "partial_ptr": "*fp32",
            "M": "i32",
            "K": "i32",
            "each": "i32",
            "stride_am": "i32",
        },
        {"stride_ak": 1, "stride_x": 1, "BLOCK_M": 4, "BLOCK_K": 512},
    ),
    "rms_norm": (
        "_tiles_kernel",
        {"x_ptr": "*bf16", "w_ptr": "*bf16", "y_ptr": "*bf16", "stride_xm": "i32", "cols": "i32", "eps": "fp32"},
        {"stride_xn": 1, "stride_w": 1, "TILES": 2, "BLOCK": 1024, "UNIT": 8},
    ),
}
MULTIPLES = {"gemv": ["K", "stride_am"]}  # else rows begin anywhere

COMPILED = """
import importlib, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

op, kernel, types, constants, multiples = GIVEN
fn = getattr(importlib.import_module(f"touchstone.backends.triton.{op}"), kernel)
place = {name: (fn.arg_names.index(name),) for name in fn.arg_names}
aligned = [name for name, kind in types.items() if kind.startswith("*") or name in multiples]
source = ASTSource(
    fn,
    {**types, **{name: "constexpr" for name in constants}},
    {place[name]: value for name, value in constants.items()},
    {place[name]: [["tt.divisibility", 16]] for name in aligned},
)
print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"])
"""


@pytest.mark.slow
@pytest.mark.needs("triton")
@pytest.mark.parametrize("op", KERNELS)
def test_whole_tiles_move_16_bytes_at_once(op):
    given = json.dumps([op, *KERNELS[op], MULTIPLES.get(op, [])])
    assert "ld.global.v4.b32" in output_of(f"import json\nGIVEN = json.loads({given!r})\n{COMPILED}")


@pytest.mark.parametrize(
    ("cols", "strides", "dtype", "unit"),
    [
        (5000, (5000, 5000), torch.bfloat16, 8),
        (5000, (5000, 5000), torch.float32, 4),
        (5000, (5002, 5000), torch.bfloat16, 2),  # rows further apart than they are long
        (5001, (5008, 5008), torch.bfloat16, 1),
        (5120, (5120, 5136), torch.bfloat16, 1),  # the compiler knows
        (5120, (5128, 5120), torch.bfloat16, 8),
    ],
)
def test_what_the_compiler_is_told_of_the_rows(cols, strides, dtype, unit):
    each = [torch.empty(2 * stride + cols, dtype=dtype).as_strided((3, cols), (stride, 1)) for stride in strides]
    assert rows.row_unit(*each) == unit
