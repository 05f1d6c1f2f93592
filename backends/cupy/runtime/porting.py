"""What `touchstone port` has to know of CUDA C (backends/protocol.py: `Porting`)."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from touchstone.backends.porting import Kernel, Launch, Topic, extent, keywords, text

TOPICS = {
    "index order": Topic(("A kernel is one thread's",), r"\b(blockIdx|threadIdx|blockDim|gridDim)\b"),
    "index width": Topic(("Indices are int",), r"\blong long\b"),
    "masks": Topic(("Guard the tail",), r"\bif \(.*<|\bload_or\(|\? .* : "),
    "barriers": Topic(("Every thread of a block",), r"__sync|_sync\(|\b(block|warp)_(sum|max|min|merge)\("),
    "accumulator type": Topic(("Accumulate in float",), r"\bfloat \w+\b|\bto_float\("),
    "literals": Topic(("A literal without suffix",), r"\d\.\d*f|\b(exp|log|sqrt|rsqrt|erf|tanh)2?f\("),
    "launch order": Topic(("A launch is",)),
    "shared memory": Topic(("Shared memory holds", "gridDim.y and z"), r"__shared__"),
    "NaN": Topic(("fmaxf and fminf",), r"\bf(max|min)f\("),
    "files and types": Topic(("NVRTC has no", "ELEMENT is", "A float4 wants"), r"\bELEMENT\b|\bfloat4\b|\buint4\b"),
}
_LIB = Path(__file__).parents[1] / "lib"
_KERNEL = re.compile(r"__global__[^;{]*?\b((?!__)\w+)\s*\(([^;{]*)\)\s*\{")


def launch_of(call: ast.Call) -> Launch | None:
    """The launch that `module.launch("name", grid, block, arguments, dtype=, shared=, DEFINITION=...)` is, or CuPy's
    own `kernel((grid,), (block,), (arguments,), shared_mem=)`; else None."""
    if isinstance(call.func, ast.Name) and len(call.args) == 3 and all(isinstance(a, ast.Tuple) for a in call.args):
        grid, threads, given = call.args
        arguments = tuple(text(each) for each in given.elts) if isinstance(given, ast.Tuple) else ()
        shared = dict(keywords(call)).get("shared_mem")
        return Launch(call.func.id, text(grid), text(threads), arguments, shared=shared)
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "launch" and len(call.args) > 1):
        return None
    name = call.args[0]
    grid, threads, arguments = extent(call.args[1:])
    named = keywords(call)
    own = ("dtype", "shared", "cooperative")
    return Launch(
        name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else text(name),
        grid,
        threads,
        tuple(arguments),
        tuple(item for item in named if item[0] not in own),
        dict(named).get("shared"),
        tuple(item for item in named if item[0] == "cooperative"),
    )


def launch_text(launch: Launch, op: str) -> str:
    """A launch in CUDA C; tensors pass as pointers, so their strides are arguments."""
    first = launch.arguments[0] if launch.arguments and launch.arguments[0].isidentifier() else "x"
    named = [f"dtype={first}.dtype"]
    named += [f"shared={launch.shared}"] if launch.shared else []
    named += [f"**{value}" if name == "**" else f"{name}={value}" for name, value in launch.constants]
    threads = launch.threads or "THREADS"
    words = [f'"{op}_{launch.kernel}"', launch.grid, threads, *launch.arguments, *named]
    return f"_module.launch({', '.join(words)})"


def stem(kernel: str, op: str) -> str:
    """What a kernel is called in every language."""
    return kernel.removeprefix(f"{op}_")


def find_kernel(files: Sequence[Path], name: str) -> Kernel | None:
    """Where the kernel `name` stands: in a Python file's own text, or in a .cu or .cuh file beside it."""
    folders = dict.fromkeys([*(file.parent for file in files), _LIB])
    beside = [path for folder in folders for path in sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")])]
    for source in [*files, *beside]:
        written = source.read_text()
        for match in _KERNEL.finditer(written):
            if match[1] == name:
                first = written.count("\n", 0, match.start()) + 1
                end = re.compile(r"^\}", re.MULTILINE).search(written, match.end())
                last = written.count("\n", 0, end.start() if end else len(written)) + 1
                return Kernel(source, first, last, f"{name}({' '.join(match[2].split())})")
    return None


def imports(path: Path) -> str:
    """The first lines of a file of launchers."""
    return (
        "import torch\n\nfrom touchstone.backends import Unsupported, shapes\nfrom "
        "touchstone.backends.cupy.runtime.module import Module\n\n"
        f'_module = Module(__file__, "{path.with_suffix(".cu").name}")\n'
    )


def declaration(name: str, op: str) -> str:
    """How a kernel of that name begins."""
    return f'extern "C" __global__ void {op}_{name}(const ELEMENT* x, ELEMENT* y, ...) {{'


def beside(path: Path, op: str, kernels: Sequence[str]) -> dict[Path, str]:
    """The file of the kernels themselves."""
    begun = "\n".join(f"// {declaration(name, op)}" for name in kernels)
    return {path.with_suffix(".cu"): f'#include "common.cuh"\n\n{begun}\n'}
