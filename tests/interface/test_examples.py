"""docs/examples: other people's kernels, each judged by three lines, run as a reader runs them."""

import re

import pytest

from tests import processes
from touchstone.conformance.discovery import registry

FOLDER = registry.ROOT / "docs" / "examples"
NEEDS = {
    "compiled_rms_norm": ["g++"],
    "flash_linear_attention_layer_norm": ["triton", "fla"],
    "liger_kernel_rms_norm": ["triton", "liger_kernel"],
    "tutorial_matmul": ["triton"],
}
# 10 to 50 seconds of processor time each
LONG = ("compiled_rms_norm", "flash_linear_attention_layer_norm", "liger_kernel_rms_norm")
EXAMPLES = [
    pytest.param(name, marks=[pytest.mark.needs(*needs), *([pytest.mark.level("default")] if name in LONG else [])])
    for name, needs in NEEDS.items()
]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_passes(name, tmp_path):
    """In a folder of its own: `torch.compile` keeps what it makes there, and findings are kept there."""
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}
    done = processes.run_touchstone([str(FOLDER / f"{name}.py")], tmp_path, environment=environment)
    assert re.search(r"^PASSED; judged on \d+ of \d+ trials", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_every_example_is_tested_and_told():
    page = (registry.ROOT / "docs" / "your-kernel.md").read_text()
    files = sorted(FOLDER.glob("*.py"))
    assert [file.stem for file in files] == sorted(NEEDS)
    for file in files:
        assert f"(examples/{file.name})" in page


def test_the_page_shows_an_example_as_it_is():
    page = (registry.ROOT / "docs" / "your-kernel.md").read_text()
    shown = re.findall(r"^`examples/(\w+\.py)`:\n\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert shown
    for name, text in shown:
        assert (FOLDER / name).read_text().partition('"""\n\n')[2] == text
