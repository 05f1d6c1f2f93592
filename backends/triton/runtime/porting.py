"""What `touchstone port` has to know of Triton (backends/protocol.py: `Porting`)."""

import ast
from collections.abc import Sequence
from pathlib import Path

from touchstone.backends.porting import Kernel, Launch, Topic, keywords, python_kernel, text, times, warps

TOPICS = {
    "index order": Topic(("program_id(0)",), r"\bprogram_id|\barange|\bnum_programs"),
    "index width": Topic(("program_id and tl.arange",), r"\bint64\b"),
    "masks": Topic(("The sides of a tile",), r"\bmask=|\bother=|\btl\.where"),
    "barriers": Topic(
        ("A kernel is the program",), r"\btl\.(sum|max|min|argmax|argmin|reduce|dot|cumsum|debug_barrier)\("
    ),
    "accumulator type": Topic(("An accumulator is", "tl.dot wants", "A variable keeps"), r"float32|\btl\.dot\("),
    "literals": Topic(("tl.exp, tl.log",), r"\btl\.(exp|exp2|log|rsqrt|sqrt|erf|sigmoid)\w*\(|(?<![\w.])\d+\.\d"),
    "launch order": Topic(("The launch order",)),
    "shared memory": Topic(("A kernel is the program",)),
    "NaN": Topic(("tl.max, tl.min",), r"\btl\.(max|min|maximum|minimum)\("),
}
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "launch_cooperative_grid")


def launch_of(call: ast.Call) -> Launch | None:
    """The launch that `kernel[grid](arguments, CONSTANT=..., num_warps=...)` is, else None."""
    if not isinstance(call.func, ast.Subscript):
        return None
    kernel = call.func.value
    if isinstance(kernel, ast.Call) and len(kernel.args) == 1:
        kernel = kernel.args[0]  # torch.library.wrap_triton(kernel)[grid](...)
    if not isinstance(kernel, ast.Name):
        return None
    named = keywords(call)
    options = dict(item for item in named if item[0] in _OPTIONS)
    if "num_warps" in options:
        threads = times(32, options.pop("num_warps"))
    else:
        spread = [value for name, value in named if name == "**"]
        threads = f'32 * {spread[0]}["num_warps"]' if spread else "128"
    return Launch(
        kernel.id,
        text(call.func.slice),
        threads,
        tuple(map(text, call.args)),
        tuple(item for item in named if item[0] not in _OPTIONS),
        rest=tuple(options.items()),
    )


def launch_text(launch: Launch, op: str) -> str:
    """A launch in Triton."""
    named = [f"**{value}" if name == "**" else f"{name}={value}" for name, value in launch.constants]
    if launch.threads is not None:
        named.append(f"num_warps={warps(launch.threads)}")
    return f"_{launch.kernel}_kernel[{launch.grid}]({', '.join([*launch.arguments, *named])})"


def stem(kernel: str, op: str) -> str:
    """What a kernel is called in every language."""
    return kernel.strip("_").removesuffix("_kernel")


def find_kernel(files: Sequence[Path], name: str) -> Kernel | None:
    """Where the kernel `name` stands, in one of an op's Python files."""
    return python_kernel(files, name)


def imports(path: Path) -> str:
    """The first lines of a file of kernels."""
    return (
        "import torch\nimport triton\nimport triton.language as tl\n\nfrom touchstone.backends import "
        "Unsupported, shapes\n"
    )


def declaration(name: str, op: str) -> str:
    """How a kernel of that name begins."""
    return f"@triton.jit\ndef _{name}_kernel(..., BLOCK: tl.constexpr):"


def beside(path: Path, op: str, kernels: Sequence[str]) -> dict[Path, str]:
    """Files that a file of kernels needs besides itself."""
    return {}
