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

import touchstone
from touchstone.backends.storage import files
from touchstone.conformance.faults import Planted, _generic, planted_in
from touchstone.conformance.spec.contract import Contract
from touchstone.conformance.spec.words import not_one_of

ROOT = files.ROOT  # the folder of reference, backends and conformance
IMPORT_PATH = Path(touchstone.__file__).resolve().parents[1]  # the folder from which `touchstone` is imported


def is_clone() -> bool:
    """Whether this is a clone of the repository, where new kernels and results have a folder of their own.

    There `touchstone` holds links to the folders beside it; an installed package holds the folders themselves.
    """
    return Path(touchstone.__file__).resolve().parent != ROOT


def _module_names(folder: Path) -> list[str]:
    names = [p.stem for p in folder.glob("*.py")] + [p.parent.name for p in folder.glob("*/__init__.py")]
    return sorted(name for name in names if not name.startswith("_"))


@lru_cache
def ops() -> tuple[str, ...]:
    """Every op: a contract, a reference and mutants of the same name."""
    contracts = _module_names(ROOT / "conformance" / "contracts")
    others = set(_module_names(ROOT / "reference")) & set(_module_names(ROOT / "conformance" / "faults"))
    return tuple(name for name in contracts if name in others)


@lru_cache
def contract(op: str) -> Contract:
    if op in _own:
        return _own[op][0]
    if op not in ops():
        raise ValueError(f"op: {not_one_of(op, (*_own, *ops()))}")
    found: Contract = importlib.import_module(f"touchstone.conformance.contracts.{op}").contract
    found.name = op
    return found


_own: dict[str, tuple[Contract, Path]] = {}  # ops of users' files, by name


def register(op: str, own: Contract, path: Path) -> None:
    """Make the op of a user's file known to this process."""
    _own[op] = own, path
    contract.cache_clear()


def op_file(op: str) -> Path | None:
    """The user's file that an op was loaded from; None for the ops of this repository."""
    return _own[op][1] if op in _own else None


@lru_cache
def backends() -> tuple[str, ...]:
    """Every backend: a folder of `backends` that offers the backend protocol (docs/design.md)."""
    return tuple(name for name in _module_names(ROOT / "backends") if _offers_protocol(ROOT / "backends" / name))


def _offers_protocol(folder: Path) -> bool:
    init = folder / "__init__.py"
    return init.is_file() and "\ndef why_not(" in init.read_text()


def backend(name: str) -> ModuleType:
    if name not in backends():
        raise ValueError(f"backend: {not_one_of(name, backends())}")
    return importlib.import_module(f"touchstone.backends.{name}")


def behind(target: str) -> tuple[str, ...]:
    """The backends whose kernels a target's function can reach: its own, or any of a user's function."""
    name = target.partition("@")[0]
    return (name,) if name in backends() else backends()


def offers(name: str, part: str) -> bool:
    """Whether a backend has the optional module `part` of the protocol: "arrays", "compiling", "porting"."""
    return (ROOT / "backends" / name / "runtime" / f"{part}.py").is_file()


def backend_part(name: str, part: str) -> ModuleType:
    """Import the optional module `part` of a backend."""
    return importlib.import_module(f"touchstone.backends.{name}.runtime.{part}")


def target(name: str, device: str) -> str:
    """What a backend on a device is called: "triton@cpu", or what the backend's own `target(device)` says, an optional
    part of the protocol for one that has several ways to run there."""
    own = getattr(backend(name), "target", None)
    return own(device) if own is not None else f"{name}@{device}"


def kernel_ops(name: str) -> tuple[str, ...]:
    """The ops that a backend has kernels for, without importing them."""
    present = set(_module_names(ROOT / "backends" / name))
    return tuple(op for op in ops() if op in present)


def variants(name: str, op: str) -> dict[str, Callable[..., Any]]:
    """The variants of an op's ladder in a backend, in ladder order. Imports the op's file: `prepare(device)` comes
    first."""
    if op not in kernel_ops(name):
        return {}
    module = importlib.import_module(f"touchstone.backends.{name}.{op}")
    inside = module.__name__ + "."
    return {
        attribute: value
        for attribute, value in vars(module).items()
        if not attribute.startswith("_")
        and inspect.isfunction(value)
        and (value.__module__ == module.__name__ or value.__module__.startswith(inside))
    }


def ladder(name: str, op: str) -> list[str]:
    """The variants that the docstring of an op's file lists, in ladder order: what can be told without importing it."""
    folder = ROOT / "backends" / name
    path = folder / f"{op}.py" if (folder / f"{op}.py").is_file() else folder / op / "__init__.py"
    if not path.is_file():
        return []
    _, _, body = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")  # the first line is the summary
    return re.findall(r"^[-*\s]*`{0,2}([a-z][a-z0-9_]*)`{0,2}: ", body, flags=re.MULTILINE)


def planted(op: str) -> list[Planted]:
    """The mutants and known-good kernels of an op: those of its own file, then what goes wrong alike in every op.

    The file's `EQUIVALENT` names those of the latter that are no mutants of this op, with the reason.
    """
    found: list[Planted] = []
    equivalent: dict[str, str] = {}
    if op in _module_names(ROOT / "conformance" / "faults"):
        module = importlib.import_module(f"touchstone.conformance.faults.{op}")
        found += planted_in(module, op)
        equivalent = getattr(module, "EQUIVALENT", {})
    taken = {planted.name for planted in found} | set(equivalent)
    return found + [planted for planted in _generic.planted(op, contract(op)) if planted.name not in taken]


def has_planted_kernels(name: str, op: str) -> bool:
    return op in _module_names(ROOT / "conformance" / "faults" / name)


def planted_kernels(name: str, op: str) -> list[Planted]:
    """The mutants of an op written in a backend's language. Imports the file: `prepare(device)` comes first."""
    if not has_planted_kernels(name, op):
        return []
    return planted_in(importlib.import_module(f"touchstone.conformance.faults.{name}.{op}"), op, name)
