"""Programs and data that the tests run or compile."""

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

PROGRAMS = Path(__file__).parent


def names(script: Path) -> list[str]:
    """The functions of a script that are marked @program."""
    return re.findall(r"^@program\ndef (\w+)", script.read_text(), re.MULTILINE)


def report(programs: Iterable[Callable[[], None]]) -> None:
    """Run each and print, as JSON by name, None or its error."""
    outcomes: dict[str, str | None] = {}
    for function in programs:
        outcomes[function.__name__] = None
        try:
            function()
        except BaseException as error:
            outcomes[function.__name__] = f"{type(error).__name__}: {error}"
    json.dump(outcomes, sys.stdout)
