"""docs/ci.md: the workflow, the project's tests and the hook do what the page says."""

import re
import shlex
import shutil
import textwrap

import pytest

from tests import processes
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec import known

yaml = pytest.importorskip("yaml")
FOLDER = registry.ROOT / "docs" / "examples" / "ci"
WORKFLOW = yaml.safe_load((FOLDER / "workflow.yml").read_text())
STEPS = {step["name"]: step["run"] for step in WORKFLOW["jobs"]["judge"]["steps"] if "run" in step}


@pytest.fixture
def project(tmp_path):
    """A copy of the project that the page describes."""
    return shutil.copytree(FOLDER, tmp_path / "project")


def run(command, project):
    """A step's command, with this Python in the place of the installed commands."""
    command = command.replace("${LEVEL:-quick}", "quick")
    words = shlex.split(command)
    arguments = ["-m", "touchstone", *words[1:]] if words[0] == "touchstone" else words[1:]
    return processes.run_touchstone([*arguments], project)


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.needs("triton")
def test_a_right_kernel_is_green_and_a_wrong_one_red(project):
    step = STEPS["Judge a kernel"]
    done = run(f"{step} --dtypes float32", project)
    assert done.returncode == 0 and (project / "softmax.json").is_file(), done.stdout + done.stderr
    kernel = project / "kernels" / "softmax.py"
    kernel.write_text(kernel.read_text().replace("given - tl.max(given, 0)", "given"))
    assert run(f"{step} --dtypes float32", project).returncode == 1


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.needs("triton")
def test_the_project_s_own_tests_pass(project):
    done = run(STEPS["The project's own tests"] + " -q -p no:cacheprovider", project)
    assert done.returncode == 0 and re.search(r"3 passed, 1 xfailed", done.stdout), done.stdout + done.stderr


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.needs("triton")
def test_the_hook_judges(project):
    (hook,) = yaml.safe_load((registry.ROOT / ".pre-commit-hooks.yaml").read_text())
    (used,) = yaml.safe_load((project / "pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert hook["id"] == used["id"] and not hook["pass_filenames"]
    assert re.search(used["files"], "kernels/softmax.py")
    done = run(shlex.join([*hook["entry"].split(), *used["args"]]), project)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_shows_the_files_as_they_are():
    page = (registry.ROOT / "docs" / "ci.md").read_text()
    texts = [path.read_text() for path in FOLDER.rglob("*") if path.is_file()]
    shown = re.findall(r"^ *```(?:yaml|python|toml)\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    for block in shown:
        assert any(block in text or textwrap.dedent(block) in text for text in texts), block
    assert len(shown) == 4


def test_the_file_of_what_is_known_can_be_read():
    found = known.read(FOLDER / "known.toml", registry.contract("softmax"))
    assert (len(found.skip), len(found.expected)) == (1, 1)


def test_what_is_installed_is_pinned():
    packages = (FOLDER / "requirements-ci.txt").read_text().split()
    assert packages and all("==" in line for line in packages)
    assert STEPS["Install"] == "pip install -r requirements-ci.txt"
