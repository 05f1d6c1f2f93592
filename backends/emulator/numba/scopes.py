"""Context managers around a compilation by numba-cuda."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(*places: tuple[Any, str, Any]) -> Iterator[None]:
    """Within, attributes have other values: (owner, name, value)."""
    missing = object()
    stock = [getattr(owner, name, missing) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(places, stock, strict=True):
            delattr(owner, name) if value is missing else setattr(owner, name, value)
