"""What exists: ops, backends and variants, read off the folders. The path is the registration."""

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.contract import Contract

ROOT = Path(__file__).resolve().parent.parent


def _module_names(folder: Path) -> list[str]:
    names = [p.stem for p in folder.glob("*.py")] + [p.parent.name for p in folder.glob("*/__init__.py")]
    return sorted(name for name in names if not name.startswith("_"))


@lru_cache
def ops() -> tuple[str, ...]:
    """Every op: a contract and a reference of the same name."""
    contracts = _module_names(ROOT / "conformance" / "contracts")
    references = set(_module_names(ROOT / "reference"))
    return tuple(name for name in contracts if name in references)


@lru_cache
def contract(op: str) -> Contract:
    if op not in ops():
        raise ValueError(f"op: {op!r} is not one of {', '.join(ops())}")
    found: Contract = importlib.import_module(f"conformance.contracts.{op}").contract
    found.name = op
    return found


@lru_cache
def backends() -> tuple[str, ...]:
    """Every backend: a folder of `backends` that offers the backend protocol (docs/design.md)."""
    return tuple(name for name in _module_names(ROOT / "backends") if _offers_protocol(ROOT / "backends" / name))


def _offers_protocol(folder: Path) -> bool:
    init = folder / "__init__.py"
    return init.is_file() and "\ndef why_not(" in init.read_text()


def backend(name: str) -> ModuleType:
    if name not in backends():
        raise ValueError(f"backend: {name!r} is not one of {', '.join(backends())}")
    return importlib.import_module(f"backends.{name}")


def kernel_ops(name: str) -> tuple[str, ...]:
    """The ops that a backend has kernels for, without importing them."""
    present = set(_module_names(ROOT / "backends" / name))
    return tuple(op for op in ops() if op in present)


def variants(name: str, op: str) -> dict[str, Callable[..., Any]]:
    """The rungs of an op's ladder in a backend, in ladder order. Imports the op's file: `prepare(device)` comes first."""
    if op not in kernel_ops(name):
        return {}
    module = importlib.import_module(f"backends.{name}.{op}")
    inside = module.__name__ + "."
    return {
        attribute: value
        for attribute, value in vars(module).items()
        if not attribute.startswith("_")
        and inspect.isfunction(value)
        and (value.__module__ == module.__name__ or value.__module__.startswith(inside))
    }


def ladder(name: str, op: str) -> list[str]:
    """The rungs that the docstring of an op's file lists, in ladder order: what can be told without importing it."""
    folder = ROOT / "backends" / name
    path = folder / f"{op}.py" if (folder / f"{op}.py").is_file() else folder / op / "__init__.py"
    if not path.is_file():
        return []
    _, _, body = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")  # the first line is the summary
    return re.findall(r"^[-*\s]*`{0,2}([a-z][a-z0-9_]*)`{0,2}: ", body, flags=re.MULTILINE)
