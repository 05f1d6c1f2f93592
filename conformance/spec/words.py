"""What an error says of a word that is not one of those expected."""

import difflib
from collections.abc import Callable, Iterable
from typing import Any

CUTOFF = 0.6  # how alike two words are, from 0 to 1, of which one is taken for the other mistyped


def not_one_of(value: Any, options: Iterable[str]) -> str:
    """ "'sofmax' is not one of matmul, softmax; did you mean 'softmax'?" """
    known = list(options)
    return f"{value!r} is not one of {', '.join(known) or 'none'}{did_you_mean(value, known)}"


def expected_one_of(value: Any, options: Iterable[Any], show: Callable[[Any], str] = str) -> str:
    """ "expected one of quick, default, got 'quik'; did you mean 'quick'?" """
    known = list(options)
    return f"expected one of {', '.join(map(show, known))}, got {value!r}{did_you_mean(value, known)}"


def did_you_mean(value: Any, options: Iterable[Any]) -> str:
    """ "; did you mean 'softmax'?", or nothing where no option is like `value`."""
    known = {option.lower(): option for option in options if isinstance(option, str)}
    found = difflib.get_close_matches(str(value).lower(), known, n=1, cutoff=CUTOFF)
    return f"; did you mean {known[found[0]]!r}?" if found else ""
