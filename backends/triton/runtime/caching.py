"""Triton's cache of compiled kernels with a digest beside each file, and in a folder of this user alone.

Triton takes any file that it finds under a kernel's hash. What lies where is left as it is, since torch.compile looks
for machine code there by itself.
"""

import functools
import hashlib
import json
import sys
from pathlib import Path

from triton import knobs
from triton.runtime.cache import FileCacheManager

from touchstone.backends.storage import artefacts, folders


def install() -> None:
    """Have Triton use it in this process, unless another cache was asked for (TRITON_CACHE_MANAGER)."""
    if knobs.cache.manager_class is None:
        knobs.cache.manager_class = VerifiedCache
        if not _trusted(Path(knobs.cache.dir).absolute()):
            _elsewhere().settle()


class VerifiedCache(FileCacheManager):
    """A file that is missing, damaged or not this user's makes Triton compile its kernel again. What cannot be written
    goes to a temporary folder; NotRun where there is no room there either."""

    def __init__(self, key, override=False, dump=False):
        self.key, self._plain, self._folder = key, override or dump, None
        if self._plain:
            super().__init__(key, override, dump)
        elif _trusted(Path(knobs.cache.dir).absolute()):
            self._folder = Path(knobs.cache.dir).absolute() / key

    def get_file(self, filename):
        """The path of a file as it was put; None if it has to be made."""
        if self._plain:
            return super().get_file(filename)
        path = self._path(filename)
        return str(path) if path is not None and artefacts.verified(path) else None

    def put(self, data, filename, binary=True):
        """Keep a file; its path."""
        if self._plain:
            return super().put(data, filename, binary)
        raw = data if isinstance(data, bytes) else str(data).encode()
        path = self._path(filename)
        if path is not None:
            try:
                path.parent.mkdir(mode=0o700, exist_ok=True)
                artefacts.put(path, raw)
                return str(path)
            except OSError as error:
                _say(f"{path.parent}: {error.strerror}")
        name = hashlib.sha256(f"{self.key} {filename}".encode()).hexdigest()
        return str(_elsewhere().put(f"{name}{Path(filename).suffix}", raw))

    def get_group(self, filename):
        """The paths of the files of a kernel by their names; None if any of them has to be made."""
        if self._plain:
            return super().get_group(filename)
        listed = self.get_file(_group(filename))
        if listed is None:
            return None
        try:
            names = json.loads(Path(listed).read_text())["child_paths"]
            found = {name: self.get_file(name) for name in names}
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return None if None in found.values() else found

    def put_group(self, filename, group):
        """Keep which files belong together."""
        return self.put(json.dumps({"child_paths": group}), _group(filename))

    def _path(self, filename):
        return None if self._folder is None or Path(filename).name != filename else self._folder / filename


def _group(filename: str) -> str:
    return f"__grp__{filename}"


@functools.cache
def _trusted(folder: Path) -> bool:
    """Whether kernels are kept in `folder`, which is made; if not, it is said once."""
    try:
        folders.secured(folder)
    except OSError as error:
        _say(error if isinstance(error, folders.Refused) else f"{folder}: {error.strerror}")
        return False
    return True


@functools.cache
def _say(why: object) -> None:
    print(f"touchstone: {why}; Triton's compiled kernels are not kept", file=sys.stderr)


@functools.cache
def _elsewhere() -> artefacts.Store:
    return artefacts.Store(folders.nowhere)
