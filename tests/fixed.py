"""What the judge's parts pass on to one another, which none of them may change."""

from dataclasses import FrozenInstanceError, fields


def changeable(*kinds: type) -> list[str]:
    """The names of those dataclasses of which an instance takes another value for a field."""
    found = []
    for kind in kinds:
        try:
            setattr(object.__new__(kind), fields(kind)[0].name, None)
        except FrozenInstanceError:
            continue
        found.append(kind.__name__)
    return found
