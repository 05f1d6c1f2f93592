"""Copies of the clone, in which code is changed and tests are run: never the working tree itself."""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
# Process ids and mounts of its own: what a mutant starts ends with it, and it can signal nothing else.
NAMESPACES = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".tox", ".venv", ".*_cache", ".hypothesis", ".benchmarks", ".device", "shared", "build"
)


class Tree:
    """One copy of the clone in a folder of its own, with its own home, caches and temporary files."""

    def __init__(self, folder: Path, clone: Path = ROOT) -> None:
        self.folder, self.root = folder, folder / "clone"
        if self.root.exists():
            shutil.rmtree(folder)
        shutil.copytree(clone, self.root, symlinks=True, ignore=LEFT_OUT)
        self._stamp = 1_000_000_000.0  # of files as they are written: bytecode of an earlier text never fits

    def write(self, path: str, text: str) -> None:
        """Replace a file of the copy."""
        self._stamp += 2
        (self.root / path).write_text(text)
        os.utime(self.root / path, (self._stamp, self._stamp))

    @contextlib.contextmanager
    def changed(self, path: str, text: str) -> Iterator[None]:
        """Within: a file has another text."""
        before = (self.root / path).read_text()
        self.write(path, text)
        try:
            yield
        finally:
            self.write(path, before)

    def pytest(
        self,
        arguments: Sequence[str],
        seconds: float,
        variables: Mapping[str, str] | None = None,
        caches_kept: bool = True,
    ) -> tuple[int | None, str]:
        """Run pytest in the copy; its exit status, None after `seconds`, and what it printed.

        With `caches_kept=False` what is compiled meanwhile is thrown away.
        """
        temporary, home = self.folder / "tmp", self.folder / "home"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        home.mkdir(exist_ok=True)
        if not caches_kept:
            home = Path(shutil.copytree(home, temporary / "home", copy_function=os.link))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "XDG_"))}
        environment["CUDA_VISIBLE_DEVICES"] = ""  # the same with a GPU as without
        environment |= {"HOME": str(home), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1", **(variables or {})}
        command = [*_alone(), sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--device=cpu", *arguments]
        with open(temporary / "output", "w+b") as output:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end(process)
            output.seek(0)
            said = output.read().decode(errors="replace")
        shutil.rmtree(temporary, ignore_errors=True)
        return status, said


@functools.cache
def _alone() -> tuple[str, ...]:
    """What a command begins with that is to run in namespaces of its own, where they can be had.

    The shell is the first process there, which ends what others have left.
    """
    with contextlib.suppress(OSError):
        if subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode == 0:
            return (*NAMESPACES, "sh", "-c", '"$@"; exit $?', "sh")
    return ()


def _end(process: subprocess.Popen) -> None:
    """End a process and all that it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.kill()
    process.wait()
