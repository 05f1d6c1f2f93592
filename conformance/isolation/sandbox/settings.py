"""What confines a child: the measures, how much it may take, and all that `enter` needs to know of the parent."""

import enum
import json
import os
from dataclasses import asdict, dataclass, fields
from typing import Any


class Measure(enum.StrEnum):
    """One means of containment, which a machine offers or not."""

    PROCESSES = "processes"
    FILES = "files"
    NETWORK = "network"
    USER = "user"
    PRIVILEGES = "privileges"
    SYSTEM_CALLS = "system calls"
    LANDLOCK = "landlock"
    LIMITS = "limits"
    MEMORY = "memory"
    SECRECY = "secrecy"


ALL = frozenset(Measure)


@dataclass(frozen=True)
class Limits:
    """How much a confined child may take, with every process it starts.

    `memory`: bytes of private memory that each process may add to what it began with; on a GPU it is not set, since the
    CUDA driver reserves address space. `processes` counts threads too. `file` is the size of one file and `files` that
    of all in the private folder, in bytes; `output` are the bytes of stdout and stderr that are kept. `seconds`: after
    which all of it is killed.
    """

    memory: int = 8 << 30
    processes: int = max(256, 8 * (os.cpu_count() or 1))
    open_files: int = 1024
    file: int = 1 << 30
    files: int = 2 << 30
    output: int = 1 << 20
    seconds: float | None = None

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "seconds":
                continue
            kinds = (int, float) if field.name == "seconds" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
                raise ValueError(f"{field.name}: expected a positive number, got {value!r}")


DEFAULT = Limits()


@dataclass(frozen=True)
class Settings:
    """What the parent tells the child, before it runs any code of a candidate.

    `keep` are the descriptors that stay open; `status` is the pipe on which the child says that it is confined, and
    `output` the file for what is printed. `readable` are folders that have to stay readable for another user, and
    `covered` those that nobody finds anything in.
    """

    folder: str
    measures: frozenset[Measure]
    limits: Limits
    device: str
    readable: tuple[str, ...]
    covered: tuple[str, ...]
    user: int | None
    group: str | None
    environment: dict[str, str]
    keep: tuple[int, ...]
    status: int
    output: int

    @property
    def home(self) -> str:
        """The one folder that the child may write to."""
        return f"{self.folder}/home"

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "measures": sorted(self.measures)})

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        """Of a child that is a fresh process, which gets them as text."""
        read: dict[str, Any] = json.loads(text)
        measures = frozenset(map(Measure, read.pop("measures")))
        limits = Limits(**read.pop("limits"))
        readable, covered, keep = (tuple(read.pop(name)) for name in ("readable", "covered", "keep"))
        return cls(measures=measures, limits=limits, readable=readable, covered=covered, keep=keep, **read)
