"""The fields of a candidate's line: their types, and the options of `check` among them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from touchstone.conformance.spec.budget import COMPUTE
from touchstone.conformance.spec.checks import Requirement
from touchstone.conformance.spec.contract import Contract
from touchstone.conformance.spec.narrowing import absent, sizes_of
from touchstone.conformance.spec.words import expected_one_of, not_one_of

TEXTS = ("id", "op", "file", "source", "function", "language")
SHOWN = ("id", "function", "language")  # in tables and messages


def unlike(line: Mapping[str, Any], known: Sequence[str]) -> Iterator[str]:
    """Of each field that is unknown, missing or of another type, a text that begins with its name."""
    for name, value in line.items():
        if name not in known:
            yield not_one_of(name, known)
        elif name in TEXTS and (not isinstance(value, str) or not value.strip()):
            yield f"{name!r}: expected a text that is not empty, got {value!r}"
        elif name in TEXTS and not _is_unicode(value):
            yield f"{name!r}: expected Unicode, got half of a surrogate pair"
        elif name in SHOWN and not value.isprintable():
            yield f"{name!r}: expected printable characters, got {value!r}"
    if "op" not in line:
        yield "'op': is missing; expected the name of an op or the path of an op's file"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeError:
        return False
    return True


def options(line: Mapping[str, Any], contract: Contract, level: str) -> dict[str, Any]:
    """The options of `check` that a line sets. Raises ValueError that begins with the name of the field."""
    found = {}
    for name, checked in OPTIONS.items():
        if name in line:
            try:
                found[name] = checked(line[name], contract, level)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{name!r}: {error}") from None
    return found


def _names(value: Any, known: Sequence[str]) -> list[str]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected a list of names out of {', '.join(known)}, got {value!r}")
    for name in value:
        if name not in known:
            raise ValueError(not_one_of(name, known))
    return value


def _sizes(value: Any, contract: Contract, level: str) -> dict[str, list[Any]]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object of sizes, got {value!r}")
    found = sizes_of(value, contract)
    if missing := absent(found, contract, level):
        raise ValueError(missing)
    return found


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"expected a share from 0 to 1, got {value!r}")
    return float(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {value!r}")
    return value


def _precision(value: Any) -> str:
    if value not in list(COMPUTE):
        raise ValueError(expected_one_of(value, COMPUTE))
    return str(value)


OPTIONS: dict[str, Callable[[Any, Contract, str], Any]] = {
    "dtypes": lambda value, contract, level: _names(value, contract.dtypes),
    "sizes": _sizes,
    "outputs": lambda value, contract, level: _names(value, list(contract.outputs)),
    "require": lambda value, contract, level: _names(value, [str(each) for each in Requirement]),
    "compute": lambda value, contract, level: _precision(value),
    "coverage": lambda value, contract, level: _share(value),
    "deterministic": lambda value, contract, level: _truth(value),
    "strict": lambda value, contract, level: _truth(value),
}
