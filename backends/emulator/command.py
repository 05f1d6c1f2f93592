"""Run a CUDA kernel of one's own on the CPU: `python -m touchstone.backends.emulator my.cu --block 256 --arg
"float[1000]" --arg 1000`.

`--numba script.py [ARGS]` runs a Python program whose Numba CUDA kernels are emulated, once, under the race detector.

The kernel runs in three orders of its threads and blocks, with other contents of local variables that are given no
value, and under the race detector. Exit status 1: a finding.
"""

import argparse
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch

from touchstone.backends import emulator
from touchstone.backends.emulator.program import ARCH

TYPES = {
    "float": torch.float32,
    "float32": torch.float32,
    "half": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
    "float64": torch.float64,
    "int": torch.int32,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
}
_ARRAY = re.compile(r"(\w+)\[([\d, x]+)\](?:=(.+))?")


def argument(text: str, generator: torch.Generator) -> Any:
    """What one --arg stands for: `float[64,64]` random, `float[64]=0` filled, `int[9]=arange`, `null`, a number, or
    `half[64,128]@64x64/128`, a tensor map of an array with its box and its swizzle."""
    if text == "null":
        return None
    if mapped := re.fullmatch(r"(.+)@([\dx,]+)(?:/(\d+))?", text.strip()):
        array, box, swizzle = mapped.groups()
        return emulator.TensorMap(argument(array, generator), _sizes(box), int(swizzle or 0))
    found = _ARRAY.fullmatch(text.strip())
    if found:
        name, sizes, fill = found.groups()
        if name not in TYPES:
            raise ValueError(f"--arg {text}: expected one of {', '.join(TYPES)} before the bracket, got {name!r}")
        shape, dtype = [int(n) for n in re.split(r"[, x]+", sizes.strip()) if n], TYPES[name]
        if fill == "arange":
            return torch.arange(math.prod(shape)).to(dtype).reshape(shape)
        if fill is not None:
            return torch.full(shape, float(fill), dtype=torch.float64).to(dtype)
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(dtype)
        return torch.randint(0, 100, shape, generator=generator).to(dtype)
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"--arg {text}: expected an array as float[64,64], float[64]=0 or int[9]=arange, a tensor map as "
            "half[64,128]@64x64/128, a number, or null"
        ) from None


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.split(r"[,x]", text))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE.cu", help="CUDA C++, host code and all")
    parser.add_argument(
        "--numba",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT.py",
        help="run a Python program and its arguments instead, whose Numba CUDA kernels\n"
        "are emulated, under the race detector; other options stand before it",
    )
    parser.add_argument(
        "--kernel",
        metavar="NAME",
        help="its name, or an instance of a template: 'k<32>'; left out where the file has one",
    )
    parser.add_argument("--list", action="store_true", help="compile every kernel and list them; nothing is run")
    parser.add_argument("--grid", type=_sizes, default=(1,), metavar="X[,Y[,Z]]", help="blocks (1)")
    parser.add_argument("--block", type=_sizes, metavar="X[,Y[,Z]]", help="threads of a block")
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="ARG",
        help="one argument, in order: float[64,64] (random), float[64]=0, int[9]=arange, 3, 2.5, null,\n"
        "half[64,128]@64x64/128 (a tensor map: its box, its swizzle)",
    )
    parser.add_argument("--cluster", type=_sizes, metavar="X[,Y[,Z]]", help="blocks of a cluster")
    parser.add_argument("--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory")
    parser.add_argument("--cooperative", action="store_true", help="a cooperative launch: the grid has a barrier")
    parser.add_argument("--arch", default=ARCH, metavar="SM", help=f"what __CUDA_ARCH__ says: sm_80, sm_90a ({ARCH})")
    parser.add_argument(
        "-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]", help="define a macro"
    )
    parser.add_argument(
        "-I", dest="include", action="append", default=[], metavar="FOLDER", help="look here for headers too"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of random arrays and of the shuffled order")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="note what sm_70 and later allow: threads that end before a barrier of "
        "their block, a barrier at several places of the text",
    )
    parser.add_argument("--no-races", action="store_true", help="leave out the race detector, about ten times slower")


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 clean, 1 a finding, 2 a call that cannot be made."""
    parser = argparse.ArgumentParser(
        prog="python -m touchstone.backends.emulator",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except (ValueError, TypeError, KeyError, OSError, RuntimeError) as error:
        print(error.args[0] if isinstance(error, KeyError) else error, file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """The command; the exit status is 0 or 1, a bad call a ValueError, TypeError, KeyError or RuntimeError."""
    reason = emulator.why_not()
    if reason:
        raise RuntimeError(reason)
    if options.numba is not None:
        return _program(options)
    if options.file is None:
        raise ValueError("FILE.cu: expected a file of CUDA C++, or --numba SCRIPT.py")
    if not options.file.is_file():
        raise ValueError(f"FILE.cu: expected a file of CUDA C++; there is none at {options.file}")
    text = options.file.read_text(errors="replace")
    defines = {name: value or "1" for name, _, value in (entry.partition("=") for entry in options.defines)}
    for folder in options.include:
        if not Path(folder).is_dir():
            raise ValueError(f"-I {folder}: expected a folder")
    folders = [str(options.file.parent.resolve()), *options.include]
    chosen = [options.kernel] if options.kernel else None
    program = emulator.compile(text, options.file.name, defines, folders, options.arch, chosen)
    for header, file in program.nearby:
        print(f"{header}: no folder given has it; {file} is taken", file=sys.stderr)
    if options.list:
        return _listed(program)
    if options.block is None:
        raise ValueError("--block: expected the threads of a block, as 256 or 16,16; or --list")
    kernel = options.kernel
    if kernel is None:
        if len(program.kernels) != 1 or program.kernels[0].template:
            names = ", ".join(k.name for k in program.kernels)
            raise ValueError(f"--kernel: expected one of {names or 'none: the file has no kernel'}")
        kernel = program.kernels[0].name
    begun = [argument(entry, torch.Generator().manual_seed(options.seed + i)) for i, entry in enumerate(options.arg)]
    results: dict[str, list[Any]] = {}
    runs: list[tuple[str, Any]] = [
        (order, emulator.schedule(order, options.seed)) for order in ("forward", "reverse", "shuffled")
    ]
    with emulator.zeroed_locals():
        program._load(())
    runs.append(("locals", emulator.zeroed_locals()))
    if not options.no_races:
        runs.append(("races", emulator.races()))
    if options.strict:
        runs.append(("strict", emulator.strict()))
    status = atomics = 0
    for name, context in runs:
        inputs = [_copy(a) for a in begun]
        start = time.perf_counter()
        try:
            with context:
                done = program.launch(
                    kernel,
                    options.grid,
                    options.block,
                    inputs,
                    options.shared,
                    options.cooperative,
                    cluster=options.cluster,
                )
        except emulator.KernelError as finding:
            said = f"{type(finding).__name__}: {finding}"
            if name == "strict":
                print(f"{name:<9} note: {said}; sm_70 and later allow it")
                continue
            print(f"{name:<9} {said}")
            status = 1
            continue
        print(f"{name:<9} clean, {(time.perf_counter() - start) * 1e3:.1f} ms")
        if name not in ("races", "strict"):
            results[name] = [a.array if isinstance(a, emulator.TensorMap) else a for a in inputs]
            atomics += done
    return max(status, _compare(results, atomics > 0), _show(kernel, begun, results))


def _copy(one: Any) -> Any:
    if isinstance(one, emulator.TensorMap):
        return emulator.TensorMap(one.array.clone(), one.box, one.swizzle)
    return one.clone() if isinstance(one, torch.Tensor) else one


def _program(options: argparse.Namespace) -> int:
    """A Python program whose Numba CUDA kernels run here; its own exit status, 1 after a finding."""
    from touchstone.backends.emulator.numba import script

    if not options.numba or options.file is not None:
        raise ValueError("--numba: expected a Python file and its arguments, and no FILE.cu")
    return script.run(options.numba[0], options.numba[1:], races=not options.no_races)


def _listed(program: emulator.Program) -> int:
    """Every kernel with its place, its parameters, and how the file launches it."""
    for kernel in program.kernels:
        where = f"{Path(kernel.file).name}:{kernel.line}"
        named = [f"{t} {n}".strip() for t, n in zip(kernel.types, kernel.parameters, strict=True)]
        print(f"{kernel.name}{'<...>' if kernel.template else ''}({', '.join(named)})  {where}")
    for launch in sorted({f"{la.name}<{la.arguments}>" for la in program.launches if la.arguments}):
        print(f"launched as {launch}")
    return 0


def _compare(results: dict[str, list[Any]], atomics: bool) -> int:
    """Says where another order of threads and blocks, or other contents of local variables, gave another answer. With
    atomics that is no finding: their order is nobody's, and a float sum of theirs has no other."""
    status = 0
    orders = list(results)
    for other in orders[1:]:
        for position, (one, two) in enumerate(zip(results[orders[0]], results[other], strict=True)):
            if isinstance(one, torch.Tensor) and not torch.equal(one.view(torch.uint8), two.view(torch.uint8)):
                differs = (one != two).flatten().nonzero().flatten()
                where = f", first at element {int(differs[0])}" if len(differs) else ""
                said = f"argument {position + 1} differs from that of {orders[0]}{where}"
                if other == "locals" and not atomics:
                    print(f"{other:<9} {said}: the answer depends on a local variable that was given no value")
                    status = 1
                elif atomics:
                    print(f"{other:<9} order-dependent: {said}{_spread(one, two)}")
                else:
                    print(f"{other:<9} {said}: the answer depends on the order")
                    status = 1
    return status


def _spread(one: torch.Tensor, two: torch.Tensor) -> str:
    """How far two float answers are apart, in units in the last place of the larger one."""
    if not one.is_floating_point():
        return f", {int((one != two).sum())} elements"
    last = torch.maximum(one.abs(), two.abs()).double()
    exponent = torch.frexp(last.clamp_min(torch.finfo(one.dtype).tiny))[1].double() - 1
    ulps = (one.double() - two.double()).abs() / (2.0**exponent * torch.finfo(one.dtype).eps)
    ulps = ulps[torch.isfinite(ulps)]
    return f", by up to {ulps.max():.3g} ulp" if len(ulps) else ""


def _show(kernel: str, begun: list[Any], results: dict[str, list[Any]]) -> int:
    for position, (before, after) in enumerate(zip(begun, next(iter(results.values()), []), strict=False)):
        before = before.array if isinstance(before, emulator.TensorMap) else before
        if isinstance(before, torch.Tensor) and not torch.equal(before.view(torch.uint8), after.view(torch.uint8)):
            values = ", ".join(f"{v:g}" for v in after.flatten()[:8].tolist())
            print(f"argument {position + 1} after {kernel}: {values}{', ...' if after.numel() > 8 else ''}")
    return 0
