"""Which function of a source is the kernel, read from its syntax tree: nothing is imported."""

import ast
import inspect

from touchstone.conformance.discovery import neighbours
from touchstone.conformance.spec.contract import Contract


def meant(text: str, contract: Contract) -> str:
    """The name of the op where the source defines it, else the only public function that can be called as the op is.

    Where none can, the name of the op: judging says then what is missing. ValueError where several can.
    """
    try:
        return _meant(neighbours.parsed(text.encode()), contract)
    except (RecursionError, MemoryError):  # nested too deeply to tell
        return contract.name


def _meant(tree: ast.Module | None, contract: Contract) -> str:
    if tree is None or contract.name in _defined(tree):
        return contract.name
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    fitting = [node.name for node in functions if not _compiled(node) and _fits(node, contract)]
    if len(fitting) > 1:
        raise ValueError(
            f"'function': is missing, and {', '.join(fitting)} fit all; name one, or call it {contract.name}"
        )
    return fitting[0] if fitting else contract.name


def _defined(tree: ast.Module) -> set[str]:
    """Names that a module gives a meaning, in `if` and the like too, but not within functions and classes."""
    found: set[str] = set()
    left: list[ast.AST] = list(tree.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        left += ast.iter_child_nodes(node)
    return found


def _compiled(node: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)


def _fits(node: ast.FunctionDef, contract: Contract) -> bool:
    kinds = inspect.Parameter
    given, args = [], node.args
    positional = [*args.posonlyargs, *args.args]
    for index, arg in enumerate(positional):
        kind = kinds.POSITIONAL_ONLY if index < len(args.posonlyargs) else kinds.POSITIONAL_OR_KEYWORD
        optional = index >= len(positional) - len(args.defaults)
        given.append(kinds(arg.arg, kind, default=None if optional else kinds.empty))
    if args.vararg:
        given.append(kinds(args.vararg.arg, kinds.VAR_POSITIONAL))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        given.append(kinds(arg.arg, kinds.KEYWORD_ONLY, default=kinds.empty if default is None else None))
    if args.kwarg:
        given.append(kinds(args.kwarg.arg, kinds.VAR_KEYWORD))

    def called(*arguments: object, **named: object) -> None:
        """Stands for the function."""

    called.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    return contract.misfit(called) is None
