"""Seals of results: a code over the whole line, made with a key that only this user reads.

A run that goes on believes lines with its own seal alone. The key lies in a folder that confined kernels find empty.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from touchstone.backends.storage import files, folders

NAME = "judge.key"
LENGTH = 32


def key() -> bytes:
    """The key of this user, made where there is none. Raises OSError where it cannot be kept or is not the user's.

    It is read for every line and not held, so that no process forked meanwhile has it.
    """
    path = folders.secured(folders.state()) / NAME
    if not os.path.lexists(path):
        _make(path)
    with files.opened(path, follow=False) as file:
        about = os.fstat(file.fileno())
        found = file.read(LENGTH + 1)
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077 or len(found) != LENGTH:
        raise folders.Refused(f"{path} is no key of this user alone: remove it, and a new one is made")
    return found


def why_not() -> str | None:
    """Why lines have no seal, so that no later run goes on with them; None: they have one."""
    try:
        key()
    except OSError as error:
        return str(error)
    return None


def seal(record: Mapping[str, Any]) -> str | None:
    """That of a record of `judge`, as `dumps` writes it or as JSON gives it back. None where there is no key."""
    try:
        return _code(record, key())
    except OSError:
        return None


def sealed(record: Mapping[str, Any]) -> bool:
    """Whether a record from a file has the seal of this user, and nothing of it was changed since."""
    given = record["candidate"].get("seal")
    made = seal(record) if isinstance(given, str) else None
    return made is not None and hmac.compare_digest(made.encode(), given.encode("utf-8", "replace"))


def _code(record: Mapping[str, Any], secret: bytes) -> str:
    """Other tools may write a line anew, with other spaces, names in another order, 1 for 1.0."""
    about = {name: value for name, value in record["candidate"].items() if name != "seal"}
    content = json.dumps(_alike({**record, "candidate": about}), sort_keys=True)
    return hmac.new(secret, content.encode(), hashlib.sha256).hexdigest()


def _alike(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _alike(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_alike(each) for each in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value)
    return value


def _make(path: Path) -> None:
    """Of two processes that make one at once, the first one's stays."""
    fresh = path.with_name(f".{NAME}.{secrets.token_hex(8)}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(LENGTH))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
