"""A Python program that launches Numba CUDA kernels, run as it stands on a machine without a GPU."""

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import touchstone
from touchstone.backends.emulator import instruments
from touchstone.backends.emulator.errors import KernelError
from touchstone.backends.emulator.numba import front

CLEAN, FINDING, FAILED = 0, 1, 2
CHILDREN = Path(__file__).parent / "children"  # with what a Python imports as it starts


def run(
    path: str | Path, arguments: Sequence[str] = (), *, races: bool = False, order: str = "forward", seed: int = 0
) -> int:
    """Run the program at `path` with `arguments` as its `sys.argv[1:]`, its kernels in the emulator, and say at the
    end, on standard error, what was found. Pythons that it starts have their kernels in the emulator too; what is found
    there is an error of theirs.

    `races`: under the race detector. `order`, `seed`: of threads and blocks, as `emulator.schedule` takes them.
    Returns 0 where nothing was found, 1 after a finding, 2 where the program itself fails; a program that calls
    `sys.exit(n)` without a finding returns n. Raises ValueError or OSError where `path` is no program that can be
    read, RuntimeError where numba-cuda or a C++ compiler is missing.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a Python file, found none")
    if path.suffix != ".py":
        raise ValueError(f"{path}: expected a Python file (.py)")
    front.install(gpu=False)
    before, known = front.launched.count, len(front.launched.findings)
    status = CLEAN
    with contextlib.ExitStack() as stack:
        stack.enter_context(instruments.schedule(order, seed))
        if races:
            stack.enter_context(instruments.races())
        stack.enter_context(_as_main(path, arguments))
        stack.enter_context(_for_children())
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as left:
            status = _status_of(left)
        except KernelError as error:  # of a launch it is among the findings
            traceback.print_exception(error)
            status = FINDING
        except Exception:
            traceback.print_exc()
            status = FAILED
    sys.stdout.flush()
    found = list(dict.fromkeys(front.launched.findings[known:]))
    for text in found:
        print(text, file=sys.stderr)
    print(f"{path.name}: {front.launched.count - before} launches, {len(found)} findings", file=sys.stderr)
    return FINDING if found else status


def _status_of(left: SystemExit) -> int:
    if left.code is None or isinstance(left.code, int):
        return left.code or CLEAN
    print(left.code, file=sys.stderr)
    return FINDING


@contextlib.contextmanager
def _for_children() -> Iterator[None]:
    """Within, a Python that is started runs its kernels in the emulator."""
    before = os.environ.get("PYTHONPATH")
    root = Path(touchstone.__file__).parents[1]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(CHILDREN), *([before] if before else []), str(root)])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextlib.contextmanager
def _as_main(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Within, `sys.argv` and `sys.path` are as for `python path arguments`."""
    before = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before
