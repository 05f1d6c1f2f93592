"""Inline PTX in the interpreter: straight-line code on 32-bit registers, with predicates.

Public kernels use it for approximate instructions (tanh.approx, ex2.approx ...) and for arithmetic that the compiler is
not to fuse. What is more than that raises NotInterpreted. `.approx` results are within the error that the PTX
documentation gives: tanh.approx is cut to the 11 bits that it has, others are rounded from float64.
"""

import re
import types
from collections.abc import Callable

import numpy as np
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from touchstone.backends.triton.runtime.interpreter import libdevice, programs
from touchstone.backends.triton.runtime.interpreter.libdevice import flushed
from touchstone.backends.triton.runtime.interpreter.numerics import BF16, fused_multiply_add
from touchstone.backends.triton.runtime.interpreter.registry import KernelError, NotInterpreted, repair

Operation = Callable[..., np.ndarray]
Registers = dict[str, np.ndarray]


def _wide(function: Operation) -> Operation:
    """Computed in float64 and rounded once."""
    return lambda x: function(x.astype(np.float64)).astype(np.float32)


def _tanh(x: np.ndarray) -> np.ndarray:
    """Of a relative error of up to 2^-11, as the instruction has: the lower 13 bits are rounded away."""
    mantissa, exponent = np.frexp(np.tanh(x.astype(np.float64)))
    return np.ldexp(np.rint(mantissa * 2**11) / 2**11, exponent).astype(np.float32)


def _nearest_tf32(x: np.ndarray) -> np.ndarray:
    """To TF32, halves away from zero; inf and NaN stay."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded, bits).view(np.float32)


FLOATS: dict[str, Operation] = {
    "mov": lambda x: x,
    "neg": np.negative,
    "abs": np.abs,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma.rn": fused_multiply_add,
    "min": np.fmin,
    "max": np.fmax,
    "min.NaN": np.minimum,
    "max.NaN": np.maximum,
    "div.rn": np.divide,
    "div.full": np.divide,
    "div.approx": libdevice.div_approx,
    "rcp.rn": np.reciprocal,
    "rcp.approx": np.reciprocal,
    "sqrt.rn": np.sqrt,
    "sqrt.approx": np.sqrt,
    "rsqrt.approx": _wide(lambda x: 1 / np.sqrt(x)),
    "ex2.approx": libdevice.ex2_approx,
    "lg2.approx": libdevice.lg2_approx,
    "sin.approx": libdevice.sin_approx,
    "cos.approx": libdevice.cos_approx,
    "tanh.approx": _tanh,
}
FLOATS |= {f"{name}.rn": FLOATS[name] for name in ("add", "sub", "mul")}
INTEGERS: dict[str, Operation] = {
    "mov": lambda x: x,
    "add": np.add,
    "sub": np.subtract,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "min": np.minimum,
    "max": np.maximum,
    "shl": np.left_shift,  # NumPy, too, gives 0 (-1 for negative numbers) where all bits are shifted out
    "shr": np.right_shift,
}
COMPARISONS: dict[str, Operation] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
PACKED = {"cvt.rn.f16x2.f32": np.dtype(np.float16), "cvt.rn.bf16x2.f32": BF16}
TYPES = {"f32": np.float32, "b32": np.uint32, "u32": np.uint32, "s32": np.int32}
# What one program, whose threads run in step, does not notice.
SILENT = re.compile(r"bar(rier)?(\.\w+)*|griddepcontrol\.\w+|nanosleep\.u32|prefetch[\w.:]*|membar\.\w+|fence[\w.]*")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
STATEMENT = re.compile(r"(?:@(!?)(\S+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)


class _Unknown(Exception):
    """Something in inline PTX that is not interpreted."""


def _value(operand: str, ty: str, registers: Registers) -> np.ndarray:
    dtype = TYPES[ty]
    if (register := registers.get(operand)) is not None:
        return register.view(dtype)
    try:
        if operand.startswith(("0f", "0F")):  # the bits of a float
            return np.array([int(operand[2:], 16)], np.uint32).view(dtype)
        if ty == "f32":
            return np.array([float(operand)], dtype)
        return np.array([int(operand, 0) % 2**32], np.uint32).view(dtype)
    except ValueError:
        raise _Unknown(f"the operand {operand}") from None


def _result(opcode: str, operands: list[str], registers: Registers) -> np.ndarray:
    """What an instruction computes of all operands but the first."""
    *words, ty = opcode.split(".")
    if opcode == "cvt.rna.tf32.f32":
        return _nearest_tf32(_value(operands[0], "f32", registers))
    if opcode in PACKED:  # the first operand into the upper half
        upper, lower = (_value(operand, "f32", registers).astype(PACKED[opcode]) for operand in operands)
        return np.stack(np.broadcast_arrays(lower, upper), -1).view(np.uint32)[..., 0]
    if ty not in TYPES:
        raise _Unknown(opcode)
    flush = flushed if "ftz" in words else lambda x: x
    name = ".".join(word for word in words if word != "ftz")
    if name == "selp":
        chosen = registers.get(operands[2])
        if chosen is None:
            raise _Unknown(f"the predicate {operands[2]}")
        left, right = (_value(operand, ty, registers) for operand in operands[:2])
        return np.where(chosen, left, right)
    values = [flush(_value(operand, ty, registers)) for operand in operands]
    if words[0] == "setp" and name.removeprefix("setp.") in COMPARISONS:
        return COMPARISONS[name.removeprefix("setp.")](*values)
    operation = (FLOATS if ty == "f32" else INTEGERS).get(name)
    if operation is None:
        raise _Unknown(opcode)
    return flush(operation(*values).astype(TYPES[ty], copy=False))


def _execute(asm: str, registers: Registers, lanes: int) -> None:
    """Run straight-line code; a register is an array of one uint32, or of one bool for a predicate, for each lane."""
    for statement in COMMENT.sub(" ", asm).split(";"):
        statement = statement.strip(" \t\n{}") if statement.strip().strip("{}") else ""
        found = STATEMENT.fullmatch(statement)
        if not statement or statement.startswith(".reg") or (found and SILENT.fullmatch(found[3])):
            if found and found[3].startswith("bar") and programs.divided():
                raise _Unknown(f"{found[3]} within a partition")
            continue
        if found is None or "{" in statement or "[" in statement:
            raise _Unknown(statement)
        negated, guard, opcode, rest = found.groups()
        target, *operands = (operand.strip() for operand in rest.split(","))
        result = np.broadcast_to(_result(opcode, operands, registers), (lanes,))
        if guard is not None:
            if guard not in registers:
                raise _Unknown(f"the predicate {guard}")
            before = registers.get(target, np.zeros(lanes, np.uint32))
            result = np.where(registers[guard] ^ bool(negated), result, before.view(result.dtype))
        registers[target] = np.array(result if result.dtype == np.bool_ else result.view(np.uint32))


@repair("inline asm", "straight-line PTX on 32-bit registers runs, tanh.approx and its kind; what is more is not run")
def _inline_asm() -> None:
    def create_inline_asm(self, asm, constraints, values, results, is_pure, pack):
        try:
            found = _elementwise(asm, constraints, values, results, pack)
        except _Unknown as unknown:
            raise NotInterpreted(f'inline PTX is not interpreted: {unknown} (in "{asm.strip()}")') from None
        return types.SimpleNamespace(get_result=lambda i: found[i])

    InterpreterBuilder.create_inline_asm = create_inline_asm


def _elementwise(
    asm: str, constraints: str, values: list[TensorHandle], results: list, pack: int
) -> list[TensorHandle]:
    """Run the code on `pack` elements at a time, which share the registers that `constraints` lists."""
    shape = values[0].data.shape if values else (1,)
    size = int(np.prod(shape))
    if size % pack:
        raise KernelError(f"inline assembly takes {pack} elements at a time: {size} is no multiple of that")
    lanes = size // pack
    dtypes = [stock._get_np_dtype(result) for result in results]
    widths = [pack * dtype.itemsize / 4 for dtype in dtypes]
    registers: Registers = {}
    number = sum(constraint.strip().startswith("=") for constraint in constraints.split(","))
    for value in values:
        columns = np.ascontiguousarray(value.data).reshape(lanes, pack)
        if columns.dtype.itemsize == 8 or columns.dtype.itemsize * pack % 4:
            number += pack  # of another width than 32 bits: known to no instruction
            continue
        for register in columns.view(np.uint32).T:
            registers[f"${number}"] = np.array(register)
            number += 1
    if number != len(constraints.split(",")):
        raise _Unknown(f'the constraints "{constraints}" for {number} registers')
    _execute(asm, registers, lanes)
    found, first = [], 0
    for result, dtype, width in zip(results, dtypes, widths, strict=True):
        names = [f"${first + i}" for i in range(max(1, round(width)))]
        written = [registers.get(name) for name in names]
        if any(register is None for register in written):
            data = np.zeros(shape, dtype)  # of code that only has an effect
        elif width != round(width):
            raise _Unknown(f"a result of {8 * dtype.itemsize} bits, {pack} at a time")
        else:
            data = np.ascontiguousarray(np.stack(written, 1)).view(dtype).reshape(shape)
        found.append(TensorHandle(data, result.scalar))
        first += len(names)
    return found
