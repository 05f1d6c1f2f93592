"""The package as a user has it: built into a wheel, installed, used from another folder beside other pytest plugins."""

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import touchstone
from touchstone.conformance.discovery import registry
from touchstone.conformance.reporting.report import IncorrectKernel

ROOT = Path(__file__).resolve().parents[2]

KERNELS = """
import torch


def right(x):
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()


def scaled(x):
    return torch.softmax(1.01 * x.float(), -1).to(x.dtype).contiguous()
"""

OTHER_PLUGIN = """
def pytest_addoption(parser):
    parser.addoption("--backend", default="theirs")
    parser.addoption("--device", default="their-device")


def pytest_report_header(config):
    return f"other plugin: {config.option.backend} on {config.option.device}"
"""

TESTS = """
from kernels import right, scaled
from touchstone import assert_correct


def test_right():
    assert_correct("softmax", right, device="cpu", level="quick", dtypes=["float32"])


def test_scaled():
    assert_correct("softmax", scaled, device="cpu", level="quick", dtypes=["float32"])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this tree, built without network by what the build backend's own hook makes."""
    hatchling = pytest.importorskip("hatchling.build", reason="hatchling builds the wheel: pip install hatchling")
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        folder = tmp_path_factory.mktemp("wheel")
        return folder / hatchling.build_wheel(str(folder))
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A fresh environment with the wheel, and this environment's libraries behind it. Returns its bin folder."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(folder / "bin" / "python"),
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            "--disable-pip-version-check",
            str(wheel),
        ],
        check=True,
    )
    ours = next(path for path in sys.path if (Path(path) / "torch").is_dir())
    (site / "libraries.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return folder / "bin"


@pytest.fixture
def elsewhere(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    return tmp_path


def run(command, folder, timeout=300):
    own = ("PYTHONPATH", "PYTEST_", "TRITON_", "NUMBA_", "TOUCHSTONE_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment = {**clean, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout
    )


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this folder is no git checkout")
    folders = ("reference/", "backends/", "conformance/")
    wanted = {f"touchstone/{name}" for name in listed.stdout.splitlines() if name.startswith(folders)}
    wanted |= {name for name in listed.stdout.splitlines() if name.startswith("touchstone/")}
    wanted -= {f"touchstone/{name.rstrip('/')}" for name in folders}  # the links
    assert held == {name for name in wanted if (ROOT / name).exists()}


@pytest.mark.level("default")
@pytest.mark.slow
def test_a_kernel_is_judged_from_another_folder(installed, elsewhere):
    command = [installed / "touchstone", "check", "softmax", "--device", "cpu", "--quick", "--kernel"]
    done = run([*command, "kernels.py:right"], elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED; judged on" in done.stdout
    done = run([*command, "kernels.py:scaled"], elsewhere)
    assert done.returncode == 1 and "values: y:" in done.stdout, done.stdout + done.stderr
    code = "import touchstone; print(touchstone.__path__[0], touchstone.__version__)"
    where, version = run([installed / "python", "-c", code], elsewhere).stdout.split()
    assert Path(where).is_relative_to(installed.parent) and version == touchstone.__version__


@pytest.mark.level("default")
@pytest.mark.slow
def test_our_own_kernels_run_from_the_wheel(installed, elsewhere):
    """The CUDA sources, the emulator's engine and headers are inside."""
    chosen = [name for name in registry.backends() if registry.backend(name).why_not("cpu") is None]
    command = [installed / "touchstone", "check", "softmax", "--device=cpu", "--quick", "--variant=online"]
    done = run([*command, f"--backend={','.join(chosen)}"], elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in chosen:
        assert f"{name}@cpu" in done.stdout


@pytest.mark.slow
def test_list_and_doctor_run_installed(installed, elsewhere):
    done = run([installed / "touchstone", "list"], elsewhere)
    assert done.returncode == 0 and all(op in done.stdout for op in registry.ops()), done.stderr
    done = run([installed / "touchstone", "doctor"], elsewhere)
    assert done.returncode == 0 and "versions" in done.stdout, done.stderr


@pytest.mark.level("default")
@pytest.mark.slow
def test_nothing_is_written_beside_the_installed_package(installed, elsewhere):
    port = [installed / "touchstone", "port", "softmax", "--from", "triton", "--to", "cupy"]
    done = run(port, elsewhere)
    assert done.returncode == 0 and "nothing is written: -o FILE.py says where to" in done.stdout, done.stderr
    done = run([*port, "-o", "mine.py"], elsewhere)
    assert done.returncode == 0 and (elsewhere / "mine.py").is_file(), done.stdout + done.stderr
    done = run([installed / "touchstone", "report"], elsewhere)
    assert done.returncode == 2 and "RECORD.json: expected files" in done.stderr, done.stdout + done.stderr


@pytest.mark.level("default")
@pytest.mark.slow
def test_nobodys_pytest_is_disturbed(installed, elsewhere):
    """Another plugin keeps its --backend and --device; ours come with `-p touchstone.pytest` only."""
    (elsewhere / "other_plugin.py").write_text(OTHER_PLUGIN)
    (elsewhere / "test_kernels.py").write_text(TESTS)
    pytest_command = [installed / "python", "-m", "pytest", "-p", "no:cacheprovider"]
    done = run([*pytest_command, "-p", "other_plugin", "--backend=mine", "test_kernels.py"], elsewhere)
    assert "other plugin: mine on their-device" in done.stdout, done.stdout + done.stderr
    assert "touchstone: " not in done.stdout.split("collected")[0]
    assert "1 failed, 1 passed" in done.stdout
    (message,) = re.findall(r"^E +\S+IncorrectKernel: (softmax: scaled on \S+: FAILED: .*)$", done.stdout, re.MULTILINE)
    assert "trials" in message and len(done.stdout.splitlines()) < 60
    bare = run([*pytest_command, "--op=softmax"], elsewhere)
    assert bare.returncode == 4 and "unrecognized arguments: --op=softmax" in bare.stderr


@pytest.mark.level("default")
@pytest.mark.slow
def test_the_suite_runs_installed(installed, elsewhere):
    done = run(
        [
            installed / "python",
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "touchstone.pytest",
            "--pyargs",
            "touchstone.conformance.suite.test_kernels",
            "--op=softmax",
            "--kernel=kernels.py:right",
            "--device=cpu",
            "--quick",
            "-q",
        ],
        elsewhere,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


def test_a_failing_kernel_raises_a_short_message(elsewhere, monkeypatch):
    monkeypatch.syspath_prepend(elsewhere)
    from kernels import right, scaled

    narrowed = dict(device="cpu", level="quick", dtypes=["float32"], isolate="none")
    report = touchstone.assert_correct("softmax", right, **narrowed)
    assert report.passed and report.raise_for_failure() is report
    assert repr(report).startswith("<Report softmax: right on user@cpu, level quick: PASSED; judged on ")
    with pytest.raises(IncorrectKernel, match=r"\Asoftmax: scaled on user@cpu: FAILED: \d+ trials;") as raised:
        touchstone.assert_correct("softmax", scaled, **narrowed)
    assert isinstance(raised.value, AssertionError)
    assert "more findings" in str(raised.value) and str(raised.value).count("\n") < 40
    assert not raised.value.report.passed and "FAILED" in repr(raised.value.report)


def test_requirements_are_those_of_tox():
    """tox installs what the package and its extras ask for, pinned; pyproject.toml says the least that works."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    tox = (ROOT / "tox.ini").read_text()
    names = {re.match(r"[\w.-]+", requirement)[0] for requirement in asked} - {"touchstone-kernels"}
    assert names and all(re.search(rf"^(\w+ = | +){re.escape(name)}\b", tox, re.MULTILINE) for name in names), names


def test_the_package_names_what_it_offers():
    for name in touchstone.__all__:
        assert getattr(touchstone, name).__module__.startswith("touchstone.")
    assert set(touchstone._HOMES) == set(touchstone.__all__) <= set(dir(touchstone))
    with pytest.raises(AttributeError, match="module 'touchstone' has no attribute 'chekc'"):
        touchstone.chekc  # noqa: B018
