"""Ops derived from functions of torch: kept as op files, so that other processes and later replays have them too.

The op file of a derived op is written below `.touchstone/derived` in the current folder; beside it lies, as JSON, what
its contract is made of: where the reference is, the example of its inputs, and what running it has shown.
"""

import base64
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from touchstone.backends.storage import files, folders
from touchstone.conformance.derived import modules, selftest
from touchstone.conformance.derived.axes import Axis
from touchstone.conformance.derived.contract import DerivedContract, Found, Options, Strength, derive, made_of
from touchstone.conformance.derived.ops import bytes_of
from touchstone.conformance.discovery import importing, problems, registry
from touchstone.conformance.spec.contract import dtype_name

FOLDER = Path(".touchstone", "derived")
MUTANTS = {"quick": 12, "default": 24, "thorough": 60}  # with which a contract is tested, by level
OP_FILE = '''"""The contract of {what}, derived by Touchstone."""

from touchstone.conformance.discovery.derivation import restored

contract = restored(__file__)
'''
KERNEL_FILE = '''"""{name} of {kernel} as a function, with the parameters of {problem}."""

from touchstone.conformance.discovery.problems import kernel_of

{name} = kernel_of({kernel!r}, {name!r}, {problem!r})
'''


def load_derived(
    reference: Callable[..., Any],
    inputs: Sequence[Any] | Callable[..., Sequence[Any]],
    *,
    level: str = "default",
    way: tuple | None = None,
    **options: Any,
) -> str:
    """Derive the contract of `reference`, test it, and load it as an op; return the op's name.

    `options` are those of `derive`; `level` says with how many mutants it is tested; `way` is where another process
    finds the reference (None: in its file, by its name). Raises ValueError and TypeError as `derive` does, and
    Refused where the contract accuses right forms of the reference.
    """
    made = derive(reference, modules.example_of(inputs, options.get("seed", 0)), **options)
    tested = selftest.examine(made, MUTANTS[level])
    selftest.demand_trust(tested)
    made.tested = tested.strength
    what = importing.describe(reference)
    written = _written(made, what, [way or _way(reference), *map(_way, options.get("references", ()))])
    digest = hashlib.sha256(written.encode()).hexdigest()[:8]  # the same on every run, as findings' ids are
    stem = "".join(c if c.isalnum() else "_" for c in what.rpartition(".")[2]).strip("_")
    path = FOLDER / f"{stem if stem[:1].isalpha() else f'function{stem}'}_{digest}.py"
    folders.owned(FOLDER.parent)
    folders.owned(FOLDER)
    files.replace(path.with_suffix(".json"), written, mode=0o600, follow=False)
    files.replace(path, OP_FILE.format(what=what.replace('"', "'").replace("\\", "/")), mode=0o600, follow=False)
    made.name = path.stem
    registry.register(path.stem, made, path.resolve())
    return path.stem


def restored(op_file: str) -> DerivedContract:
    """The contract of a derived op's file."""
    read = json.loads(Path(op_file).with_suffix(".json").read_text())
    example = tuple(map(_read, read["example"]))
    reference, *others = (_arrived(way, read["what"]) for way in read["references"])
    found, options = read["found"], read["options"]
    function = modules.function_of(reference, list(example[: len(example) - len(options["state"])]))[0]
    made = made_of(
        function,
        read["names"],
        example,
        Options(**{name: _frozen(value) for name, value in options.items()}),
        Found(
            axes=tuple(Axis(**{**axis, "places": _frozen(axis["places"])}) for axis in found["axes"]),
            sizes=tuple(found["sizes"]),
            outputs=_frozen(found["outputs"]),
            moves=found["moves"],
            left_out=found["left_out"],
            ends=found.get("ends", {}),
            layouts=found.get("layouts", {}),
        ),
        tuple(others),
        tuple(tuple(map(_read, each)) for each in read["rebuilt"]),
    )
    made.tested = Strength(**{name: _frozen(value) for name, value in read["tested"].items()})
    return made


def _written(made: DerivedContract, what: str, ways: Sequence[Sequence[str]]) -> str:
    """What `restored` reads. `ways`: where the reference is, then the further right answers."""
    return json.dumps(
        {
            "what": what,
            "references": ways,
            "names": made.names,
            "example": [_plain(value) for value in made.example],
            "rebuilt": [[_plain(value) for value in each] for each in made.rebuilt],
            "options": asdict(made.options),
            "found": asdict(made.found),
            "tested": asdict(made.tested or Strength(0, 0)),
        }
    )


def _plain(value: Any) -> Any:
    """A value of the example as JSON has it: a tensor by its bytes."""
    if not isinstance(value, torch.Tensor):
        return value
    text = base64.b64encode(bytes_of(value)).decode()
    return {"dtype": dtype_name(value.dtype), "shape": list(value.shape), "bytes": text}


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    raw = torch.frombuffer(bytearray(base64.b64decode(value["bytes"])) or bytearray(8), dtype=torch.uint8)
    dtype = getattr(torch, value["dtype"])
    return raw.view(dtype)[: math.prod(value["shape"])].reshape(value["shape"])


def _frozen(value: Any) -> Any:
    """JSON's lists as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def load_files(reference: str, inputs: str | None, **options: Any) -> Path:
    """Derive from "FILE.py:FUNCTION" texts as commands take them; the op file. ValueError names the option."""
    function, given, way = _named(reference, inputs)
    return _file_of(load_derived(function, given, way=way, **options))


def load_problem(problem: str, **options: Any) -> Path:
    """Derive from a KernelBench problem file, one with `Model`, `get_inputs` and `get_init_inputs`; the op file."""
    path = _python_file("--kernelbench", problem)
    model, inputs = _small(path)
    return _file_of(load_derived(model, inputs, way=("problem", str(path.resolve())), **options))


def of_files(reference: str, inputs: str | None) -> DerivedContract:
    """The contract that `load_files` loads, not loaded and not tested."""
    function, given, _ = _named(reference, inputs)
    return derive(function, given)


def of_problem(problem: str) -> DerivedContract:
    """The contract that `load_problem` loads, not loaded and not tested."""
    return derive(*_small(_python_file("--kernelbench", problem)))


def _named(reference: str, inputs: str | None) -> tuple[Callable[..., Any], Callable[..., Any], tuple]:
    """Reference, inputs, and how another process gets the reference."""
    path, name = file_and_name("--reference", reference)
    function = _loaded("--reference", path, name)
    if isinstance(function, type):
        raise ValueError(f"--reference: {name} is a class; name a function that calls one, or give --kernelbench")
    if inputs is None:
        raise ValueError("--reference: goes with --inputs=FILE.py:FUNCTION, which returns a list of example inputs")
    given = _loaded("--inputs", *file_and_name("--inputs", inputs))
    return function, given, ("file", str(path.resolve()), name)


def kernel_file(kernel: str, problem: str) -> str:
    """ "FILE.py:NAME" of a function that calls the module of "FILE.py:CLASS" with the parameters of a problem's."""
    path, name = file_and_name("--kernel", kernel)
    text = KERNEL_FILE.format(name=name, kernel=str(path.resolve()), problem=str(Path(problem).resolve()))
    made = FOLDER / f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    folders.owned(FOLDER.parent)
    folders.owned(FOLDER)
    files.replace(made, text, mode=0o600, follow=False)
    return f"{made}:{name}"


def notes(op: str) -> list[str]:
    """What a report of a derived op says besides: what was not judged, and how strong the contract is."""
    contract = registry.contract(op)
    if not isinstance(contract, DerivedContract):
        return []
    found = [f"{what} ({count} cases)" for what, count in contract.notes.items()]
    for name, share in determined(op).items():
        if share < 0.5:
            found.append(
                f"{name} is hardly determined in float32: {1 - share:.0%} of its elements have a budget above 1 % of "
                "their value (an ill-conditioned reference, or values that it is not meant for)"
            )
    for op_name in sorted(contract.unknown):
        found.append(
            f"no error rule for {op_name}: taken to be backward stable; give references=, or write `expect` by hand, "
            "if a right kernel is accused"
        )
    found += [f"values {family!r} left out: {why}" for family, why in contract.found.left_out.items()]
    found += [f"size {size} left out: {why}" for size, why in contract.found.ends.items()]
    found += contract.found.layouts_left_out()
    return found if contract.tested is None else [*found, str(contract.tested)]


def determined(op: str) -> dict[str, float]:
    """Of each output of a derived op, the share of elements whose budget in float32 was below 1 % of them so far."""
    contract = registry.contract(op)
    shares = contract.determined if isinstance(contract, DerivedContract) else {}
    return {name: sum(each) / len(each) for name, each in shares.items()}


def strength(op: str) -> Strength | None:
    """How many wrong versions of its reference the contract of a derived op rejects; None of another op."""
    contract = registry.contract(op)
    return contract.tested if isinstance(contract, DerivedContract) else None


def file_and_name(option: str, text: str) -> tuple[Path, str]:
    """File and function of "FILE.py:FUNCTION"; ValueError names the option."""
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py") or not name:
        raise ValueError(f"{option}: expected file.py:function, got {text!r}")
    return _python_file(option, path), name


def _python_file(option: str, path: str) -> Path:
    if not path.endswith(".py") or not Path(path).is_file():
        raise ValueError(f"{option}: there is no Python file {path}")
    return Path(path)


def _small(path: Path) -> tuple[Any, Any]:
    """Of a problem file, found once for it and for the kernel, whose file names the whole path."""
    path = path.resolve()
    _tried("--kernelbench", path, lambda: problems.small(path))
    return problems.small(path)


def _tried(option: str, path: Path, load: Callable[[], Any]) -> None:
    try:
        importing.tried(load)
    except ValueError as error:
        raise ValueError(f"{option}: {path} does not import: {error}") from None


def _loaded(option: str, path: Path, name: str) -> Callable[..., Any]:
    _tried(option, path, lambda: importing.load(path, name))
    try:
        return importing.load(path, name)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    except (Exception, SystemExit) as error:
        raise ValueError(f"{option}: {path} does not import: {type(error).__name__}: {error}") from error


def _file_of(op: str) -> Path:
    path = registry.op_file(op)
    assert path is not None
    return path


def _way(function: Callable[..., Any]) -> tuple[str, ...]:
    """Where another process finds a function: ("file", path, name), or ("nowhere",)."""
    try:
        return ("file", *importing.source_of(function))
    except ValueError:
        return ("nowhere",)


def _arrived(way: Sequence[str], what: str) -> Callable[..., Any]:
    kind, *rest = way
    if kind == "file":
        return importing.load(*rest)
    if kind == "problem":
        return problems.small(Path(*rest))[0]

    def gone(*_: Any, **__: Any) -> Any:
        raise ValueError(
            f"reference: {what} was in the memory of the process that derived a contract from it; define it at the top "
            "level of a file to have it judged again"
        )

    return gone
