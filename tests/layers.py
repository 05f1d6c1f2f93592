"""The import graph in rooms and floors: `python -m tests.layers` prints it.

A room is a folder of `conformance`, or one of the packages below it; the modules beside those folders (`check`, `cli`)
are the room `root`. An arrow is an import of one room by another, wherever in a file it stands: at the top, in a
function, under TYPE_CHECKING. A floor is one step of the longest chain of imports.
"""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# From the ground up. A room imports from the rooms of lower layers, and from no other room.
LAYERS = (
    ("reference", "backends", "spec"),
    ("contracts", "faults", "derived"),
    ("discovery",),
    ("judging",),
    ("isolation",),
    ("reporting",),
    ("findings", "selftest", "compiling", "porting", "bench", "batch"),
    ("html", "suite"),
    ("root",),
)


def room_of(module: str) -> str | None:
    """The room of a dotted module name; None for what is no part of Touchstone, and for the package itself."""
    parts = module.split(".")
    if parts[0] != "touchstone" or len(parts) < 2:
        return None
    if parts[1] != "conformance":
        return parts[1]
    if len(parts) < 3:
        return None
    return parts[2] if (ROOT / "conformance" / parts[2]).is_dir() else "root"


def imported(path: Path) -> list[str]:
    """The modules that a file imports, anywhere in it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def arrows(root: Path = ROOT) -> Counter[tuple[str, str]]:
    """(from, to) -> how many imports, between different rooms."""
    found: Counter[tuple[str, str]] = Counter()
    for folder in ("reference", "backends", "conformance"):
        for path in sorted((root / folder).rglob("*.py")):
            dotted = ".".join(["touchstone", *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
            here = room_of(dotted)
            for name in imported(path) if here is not None else ():
                there = room_of(name)
                if there is not None and there != here:
                    found[here, there] += 1
    return found


def problems(found: Counter[tuple[str, str]]) -> list[str]:
    """Rooms without a layer, and arrows that do not point down."""
    layer = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
    rooms = {room for arrow in found for room in arrow}
    unknown = [f"{room} has no layer in tests/layers.py" for room in sorted(rooms - set(layer))]
    return unknown + [
        f"{here} imports {there}, which is not below it"
        for here, there in sorted(found)
        if here in layer and there in layer and layer[there] >= layer[here]
    ]


def circles(found: Counter[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Sets of rooms that can be reached from each other."""
    rooms = sorted({room for arrow in found for room in arrow})
    reach = {room: {there for here, there in found if here == room} for room in rooms}
    for middle in rooms:
        for here in rooms:
            if middle in reach[here]:
                reach[here] |= reach[middle]
    return sorted({tuple(b for b in rooms if b in reach[a] and a in reach[b]) for a in rooms if a in reach[a]})


def floors(found: Counter[tuple[str, str]]) -> int:
    """How many rooms the longest chain of imports has."""
    rooms = {room for arrow in found for room in arrow}
    height: dict[str, int] = {}

    def of(room: str) -> int:
        if room not in height:
            height[room] = 0  # a circle ends here; `circles` names it
            height[room] = 1 + max((of(there) for here, there in found if here == room), default=0)
        return height[room]

    return max(map(of, rooms), default=0)


def main() -> None:
    found = arrows()
    rooms = {room for arrow in found for room in arrow}
    for number, names in reversed(list(enumerate(LAYERS))):
        for room in names:
            below = sorted(there for here, there in found if here == room)
            print(f"{number:2} {room:11} -> {', '.join(below) or '-'}")
    print(f"{len(rooms)} rooms, {floors(found)} floors, {len(found)} arrows, {len(circles(found))} circles")
    for problem in problems(found):
        print(problem)


if __name__ == "__main__":
    main()
