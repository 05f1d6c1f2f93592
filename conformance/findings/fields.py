"""The fields of a kept finding, looked at before anything is done with them: a record may come from anywhere.

What a record names is looked up and imported later, and written into scripts: names are names of Python, words are
known words, and no text steers a terminal.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from touchstone.conformance.discovery.arrays import libraries
from touchstone.conformance.discovery.launching import ARCHITECTURES
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.spec.budget import COMPUTE
from touchstone.conformance.spec.cases import LEVELS

LONGEST = 4096  # characters of a text


class _Rule(NamedTuple):
    holds: Callable[[Any], bool]
    expected: str


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST


def _line(value: Any) -> bool:
    return _text(value) and value.isprintable() and bool(value)


def _name(value: Any) -> bool:
    return _text(value) and value.isidentifier()


def _dotted(value: Any) -> bool:
    return _text(value) and all(part.isidentifier() for part in value.split("."))


def _target(value: Any) -> bool:
    return _text(value) and len(parts := value.split("@")) == 2 and all(part.isidentifier() for part in parts)


def _one_of(*words: Any) -> _Rule:
    return _Rule(lambda value: isinstance(value, str) and value in words, f"one of {', '.join(words)}")


def _or_none(rule: _Rule) -> _Rule:
    return _Rule(lambda value: value is None or rule.holds(value), f"null or {rule.expected}")


LINE = _Rule(_line, "a line of printable text")
NAME = _Rule(_name, "a name as Python has them")
PATH = _Rule(_line, "a path")
TRUTH = _Rule(lambda value: isinstance(value, bool), "true or false")
FIELDS = {
    "id": _Rule(lambda value: _name(f"_{value}") and len(value) <= 64, "letters and digits"),
    "op": NAME,
    "target": _Rule(_target, "a backend, @ and a device"),
    "name": LINE,
    "device": _one_of("cpu", "cuda"),
    "level": _one_of(*LEVELS),
    "seed": _Rule(lambda value: type(value) is int, "a whole number"),
    "trial": LINE,
    "kind": _one_of(*Kind),
    "check": LINE,
    "severity": _one_of("failure", "note"),
    "message": _Rule(lambda value: isinstance(value, str), "a text"),
    "compute": _or_none(_one_of(*COMPUTE)),
    "deterministic": TRUTH,
    "outputs": _or_none(
        _Rule(lambda value: isinstance(value, list) and all(map(_name, value)), "a list of names of outputs")
    ),
    "arrays": _one_of(*libraries()),
    "op_file": _or_none(PATH),
    "source": _Rule(lambda value: isinstance(value, dict), "an object"),
}
WORDS = _Rule(
    lambda value: isinstance(value, dict) and all(_text(name) and _text(each) for name, each in value.items()),
    "an object of texts",
)
# which records did not always have
LATER = {"strict": TRUTH, "arch": _one_of(*ARCHITECTURES), "again": _or_none(WORDS)}
SOURCES = (
    {"file": PATH, "function": _Rule(_dotted, "the name of a function")},
    {"backend": NAME, "variant": NAME},
    {"reason": LINE},
)


def problem(record: Any) -> str | None:
    """What is wrong with a record, by the name of the field; None if nothing is."""
    if not isinstance(record, dict):
        return f"expected an object, got {_shown(record)}"
    rules = {**FIELDS, **{name: rule for name, rule in LATER.items() if name in record}}
    wrong = _first(record, rules)
    if wrong is None:
        forms = [form for form in SOURCES if form.keys() & record["source"].keys()] or [SOURCES[0]]
        if len(forms) > 1:
            return "field source: it names more than one"
        wrong = _first(record["source"], forms[0], "source.")
    return wrong


def _first(record: Mapping[str, Any], rules: Mapping[str, _Rule], prefix: str = "") -> str | None:
    for name, (holds, expected) in rules.items():
        if name not in record:
            return f"field {prefix}{name} is missing"
        if not holds(record[name]):
            return f"field {prefix}{name}: expected {expected}, got {_shown(record[name])}"
    return None


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def printable(text: Any) -> str:
    """A text of a record for a terminal: what would steer it is written out."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in str(text))
