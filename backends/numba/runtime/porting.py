"""What `touchstone port` has to know of Numba CUDA (backends/protocol.py: `Porting`)."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from touchstone.backends.porting import Kernel, Launch, Topic, extent, keywords, python_kernel, text

TOPICS = {
    "index order": Topic(
        ("A kernel is one thread's",), r"\bcuda\.(grid|gridsize|threadIdx|blockIdx|laneid)|\bblockDim"
    ),
    "index width": Topic(("Indices are int64",), r"\bint64\b|\bnp\.u?int(32|64)\b"),
    "masks": Topic(("Guard the tail",), r"\.shape\[|^\s*if\b.*<"),
    "barriers": Topic(("Every thread of a block",), r"\bsync(threads|warp)|_sync\(|\b(block|warp)_(sum|max|min)\("),
    "accumulator type": Topic(("Accumulate in",), r"\bfloat32\("),
    "literals": Topic(("A literal is",), r"\b(np\.)?float32\(|\bmath\.\w+\("),
    "launch order": Topic(("The launch order",)),
    "shared memory": Topic(("cuda.shared.array",), r"\bshared\.array\b"),
    "NaN": Topic((), r"\b(max|min)\("),
}
_STRIDES = re.compile(r"\*?\w+\.stride\(\d*\)")


def launch_of(call: ast.Call) -> Launch | None:
    """The launch that `launch(kernel, grid, block, arguments)` or `kernel[grid, block, ...](arguments)` is, else
    None."""
    if isinstance(call.func, ast.Name) and call.func.id == "launch" and len(call.args) > 1:
        grid, threads, arguments = extent(call.args[1:])
        shared = dict(keywords(call)).get("shared")
        return Launch(text(call.args[0]), grid, threads, tuple(arguments), shared=shared)
    if isinstance(call.func, ast.Subscript) and isinstance(call.func.value, ast.Name):
        inside = call.func.slice
        found = list(inside.elts) if isinstance(inside, ast.Tuple) else [inside]
        grid, threads, rest = extent(found)
        shared = rest[1] if len(rest) > 1 else None
        return Launch(call.func.value.id, grid, threads, tuple(map(text, call.args)), shared=shared)
    return None


def launch_text(launch: Launch, op: str) -> str:
    """A launch in Numba; arrays bring their strides along."""
    arguments = [argument for argument in launch.arguments if not _STRIDES.fullmatch(argument)]
    shared = [f"shared={launch.shared}"] if launch.shared else []
    threads = launch.threads or "THREADS"
    return f"launch({', '.join([f'_{launch.kernel}', launch.grid, threads, *arguments, *shared])})"


def stem(kernel: str, op: str) -> str:
    """What a kernel is called in every language."""
    return kernel.strip("_")


def find_kernel(files: Sequence[Path], name: str) -> Kernel | None:
    """Where the kernel `name` stands, in one of an op's Python files."""
    return python_kernel(files, name)


def imports(path: Path) -> str:
    """The first lines of a file of kernels."""
    return (
        "import math\n\nimport numpy as np\nimport torch\nfrom numba import cuda, float32\n\n"
        "from touchstone.backends import Unsupported, shapes\nfrom touchstone.backends.numba.runtime.launching "
        "import launch\n"
    )


def declaration(name: str, op: str) -> str:
    """How a kernel of that name begins."""
    return f"@cuda.jit\ndef _{name}(...):"


def beside(path: Path, op: str, kernels: Sequence[str]) -> dict[Path, str]:
    """Files that a file of kernels needs besides itself."""
    return {}
