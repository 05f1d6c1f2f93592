"""What stands in the file of an untrusted kernel that no kernel needs, read from its syntax tree by the judge; and in
modules beside it, which it imports.

A kernel can keep quiet in its own process about what it does there; the text of its file it cannot change. Names that
are put together while it runs are not seen.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

from touchstone.backends.storage import files
from touchstone.conformance.discovery import importing, neighbours

# modules, or the beginnings of their names, and what is imported from others
MODULES = (
    *("touchstone.conformance", "touchstone.reference", "gc", "torch.utils._python_dispatch"),
    *("ctypes", "cffi", "llvmlite.binding"),  # what gives addresses of C's functions, which device code could call
)
FROM = {
    "touchstone.backends": {"running", "compiling", "launches", "kernel_running", "kernel_code"},
    "sys": {"modules", "_getframe"},
}
NAMES = {"exec", "eval", "compile", "__import__", "__builtins__", "__loader__", "__spec__"}
ATTRIBUTES = {
    *("_getframe", "_current_frames", "tb_frame", "f_back", "f_locals", "f_globals", "f_builtins", "f_code"),
    *("gi_frame", "cr_frame", "ag_frame", "__code__", "__globals__", "__closure__", "__subclasses__", "__builtins__"),
    *("__traceback__", "_disable_current_modes", "_DisableTorchDispatch", "_disable_dispatch", "redispatch"),
    *(
        "_len_torch_dispatch_stack",
        "_pop_torch_dispatch_stack",
        "_get_current_dispatch_mode",
        "_ExcludeDispatchKeyGuard",
    ),
    *("getprofile", "setprofile", "gettrace", "settrace", "before_launch", "failed_launch", "strayed", "on_constants"),
    *("address_of_symbol", "get_cython_function_address", "load_library_permanently"),
    *("_set_dispatch_mode", "_unset_dispatch_mode", "_AutoDispatchBelowAutograd", "after_launch", "addaudithook"),
}


def unneeded(path: Path) -> list[str]:
    """Of each such thing, a text that goes on from "the kernel"; nothing where a file is no Python."""
    found: dict[str, str] = {}
    for file in (path, *neighbours.imported(path)):
        try:
            raw = files.read(file, importing.LARGEST)
            tree = neighbours.parsed(raw)
        except OSError:
            continue
        except (ValueError, RecursionError, MemoryError):
            found[f"has code in {file.name} that is too large or too deep to read"] = "the whole file"
            continue
        if tree is None and not _is_known(raw):  # but may be by then, to the process that imports it
            found[f"has code in {file.name} in an encoding that Python does not have"] = "the whole file"
        for node in ast.walk(tree) if tree is not None else ():
            for what in _of(node):
                found.setdefault(what, f"line {getattr(node, 'lineno', 0)} of {file.name}")
    return [f"{what} ({where})" for what, where in found.items()]


def _is_known(raw: bytes) -> bool:
    """Whether the first lines of a file name an encoding that Python has, or none."""
    try:
        tokenize.detect_encoding(io.BytesIO(raw).readline)
    except SyntaxError as error:
        return "unknown encoding" not in str(error)
    return True


def _of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (f"imports {alias.name}" for alias in names if _forbidden(alias.name))
        case ast.ImportFrom(module=str(module), names=names):
            whole = [f"{module}.{alias.name}" for alias in names]
            yield from (f"imports {name}" for name in whole if _forbidden(name))
            within = FROM.get(module, set()) | ATTRIBUTES
            yield from (f"imports {module}.{alias.name}" for alias in names if alias.name in within)
        case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
            yield "uses sys.modules"
        case ast.Attribute(attr=attribute) if attribute in ATTRIBUTES:
            yield f"uses {attribute}"
        case ast.Name(id=name) if name in NAMES:
            yield f"uses {name}"
        case ast.Constant(value=str(text)) if text in ATTRIBUTES | NAMES or _forbidden(text):
            yield f"names {text}"


def _forbidden(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in MODULES)
