"""A program in a fork of the process that has imported torch (tests/warm.py) shows what one of its own shows."""

import subprocess

import pytest

from tests import processes

SEEN = "import os, sys; print(sys.argv, sys.path[:2], os.getcwd(), os.environ.get('CHALK'), __name__, __doc__)"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own.py").write_text(f'"""Its own."""\n{SEEN}\nimport beside\n')
    (tmp_path / "beside.py").write_text("print('beside')\n")
    return tmp_path


def shown(done):
    """Its status and output, and the last line of its errors."""
    return done.returncode, done.stdout, done.stderr.splitlines()[-1:]


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", SEEN, "a", "-b"],
        ["own.py", "a"],
        ["-m", "own", "a"],
        ["-m", "nowhere"],
        ["-c", "1 / 0"],
        ["-c", "import sys; sys.exit('no')"],
        ["-c", "import sys; sys.exit(3)"],
        [
            "-c",
            "import atexit, threading; atexit.register(print, 'end'); threading.Timer(0.1, print, ['late']).start()",
        ],
        ["-c", "import os; os.abort()"],
        ["-c", "import sys; print(repr(sys.stdin.read()))"],
        ["-W", "error", "-c", "import warnings; warnings.warn('this')"],
        ["-W", "ignore", "-c", "import warnings; warnings.warn('this')"],
    ],
    ids=" ".join,
)
def test_a_program_shows_what_one_of_its_own_shows(arguments, folder):
    warm, fresh = (
        processes.run_touchstone(arguments, folder, environment={"CHALK": "1"}, fresh=fresh, **more)
        for fresh, more in ((False, {}), (True, {"stdin": subprocess.DEVNULL}))
    )
    assert shown(warm) == shown(fresh)


def test_torch_is_there_at_once_and_no_kernel_library():
    code = "import sys; print('torch' in sys.modules, {'triton', 'cupy', 'numba', 'touchstone'} & set(sys.modules))"
    assert processes.output_of(code) == "True set()\n"
    assert processes.run_touchstone(["-c", code], fresh=True).stdout == "False set()\n"


@pytest.mark.parametrize("environment", [{"OMP_NUM_THREADS": "2"}, {"PYTHONHASHSEED": "3"}])
def test_what_is_looked_at_at_the_start_takes_a_process_of_its_own(environment):
    code = "import sys; print('torch' in sys.modules)"
    done = processes.run_python(["-c", code], processes.registry.ROOT, environment=environment)
    assert done.stdout == "False\n"


def test_a_limit_of_seconds():
    with pytest.raises(subprocess.TimeoutExpired):
        processes.run_touchstone(["-c", "import time; time.sleep(60)"], timeout=0.5)
