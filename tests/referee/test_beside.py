"""What Python picks up by itself beside a kernel: nothing of it is run by the judge, or in the place of the source."""

import importlib.util
import os
import py_compile
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

from tests import processes
from touchstone import check
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.importing import FileFunction
from touchstone.conformance.judging.judgement import FAILED

NARROW = {"dtypes": ["float32"], "sizes": {"cols": 33}}
WRONG = "def softmax(x):\n    return x.clone()\n"
RIGHT = "import torch\n\n\ndef softmax(x):\n    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()\n"
OPTIONAL = ("cupy", "landlockpy", "ray", "sitecustomize", "usercustomize", "numba", "triton", "nvidia", "matplotlib")


def compiled(source, to, mode) -> None:
    """Bytecode of the text `source`, where Python looks for that of the file `to`."""
    made = to.with_name("another.py")
    made.write_text(source)
    status = to.stat()
    py_compile.compile(str(made), importlib.util.cache_from_source(str(to)), str(to), invalidation_mode=mode)
    if mode is py_compile.PycInvalidationMode.TIMESTAMP:
        path = importlib.util.cache_from_source(str(to))
        with open(path, "r+b") as file:
            file.seek(8)
            file.write(int(status.st_mtime).to_bytes(4, "little") + status.st_size.to_bytes(4, "little"))
    made.unlink()


@pytest.mark.parametrize("mode", py_compile.PycInvalidationMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("where", ["the kernel", "a module beside it"])
def test_bytecode_is_not_taken_for_the_source(tmp_path, where, mode):
    """Of a wrong source: it is the source that is shown, hashed and used later."""
    kernel = tmp_path / "kernel.py"
    kernel.write_text(WRONG if where == "the kernel" else "from the_module_beside import softmax\n")
    beside = tmp_path / "the_module_beside.py"
    beside.write_text(WRONG)
    compiled(RIGHT, kernel if where == "the kernel" else beside, mode)
    options = {"untrusted": True, "allow_library": True, "isolate": "fork"} if where != "the kernel" else {}
    report = check("softmax", FileFunction(kernel, "softmax"), device="cpu", level="quick", **options, **NARROW)
    assert report.verdict == FAILED and any(finding.check == "values" for finding in report.failures)


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.parametrize("mode", [(), ("--untrusted", "--allow-library")], ids=["plain", "untrusted"])
def test_modules_beside_a_kernel_are_not_the_judges(tmp_path, mode):
    """In the kernel's folder, with a module there by the name of every package that the judge may import."""
    for name in {*packages_distributions(), *OPTIONAL}:
        if name.isidentifier() and name != "touchstone":
            (tmp_path / f"{name}.py").write_text("import os\nos.write(2, b'planted')\nraise ImportError('planted')\n")
    (tmp_path / "kernel.py").write_text(RIGHT)
    what = ["softmax", "--kernel=kernel.py:softmax", "--device=cpu", "--quick", "--dtypes=float32", "--sizes=cols=33"]
    done = processes.run_touchstone(["-m", "touchstone", "check", *what, *mode], tmp_path)
    assert "planted" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.level("default")
@pytest.mark.slow
def test_a_kernel_imports_from_the_current_folder_what_is_nowhere_else(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "a_module_of_its_own.py").write_text(RIGHT)
    (tmp_path / "torch.py").write_text("raise ImportError('planted')\n")
    (tmp_path / "kernels" / "kernel.py").write_text("from a_module_of_its_own import softmax\n")
    what = ["softmax", "--kernel=kernels/kernel.py:softmax", "--device=cpu", "--quick", "--sizes=cols=33"]
    done = processes.run_touchstone(["-m", "touchstone", "check", *what, "--dtypes=float32"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_processes_started_in_a_clone_find_touchstone():
    """The current folder is not looked at first; where it is the clone that runs, it is looked at last."""
    code = (
        "import runpy, sys\n"
        "sys.path.insert(0, '')\n"
        "sys.argv = ['touchstone']\n"
        "runpy.run_module('touchstone', run_name='touchstone.__main__')\n"
        "print(sys.path.count(sys.path[-1]), sys.path[-1])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=registry.ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["1", os.path.realpath(registry.ROOT)], done.stderr
