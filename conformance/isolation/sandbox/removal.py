"""Removing what a candidate has left, which may be made to resist."""

import contextlib
import os
import shutil
import stat
import subprocess
from typing import Any


def remove(path: str) -> None:
    """A file or a folder, whatever its modes and however deep. Raises OSError where that is not possible."""
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
        return
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(path, onerror=_open_and_retry)
    if os.path.exists(path):
        subprocess.run(["rm", "-rf", "--", path], check=False, stderr=subprocess.DEVNULL)
    if os.path.exists(path):
        raise OSError(f"{path} could not be removed")


def _open_and_retry(function: Any, path: str, error: Any) -> None:
    for closed in (os.path.dirname(path), path):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.lstat(closed).st_mode):
                os.chmod(closed, 0o700)
    if function is os.unlink:
        function(path)
    elif os.path.isdir(path):
        shutil.rmtree(path, onerror=_open_and_retry)
