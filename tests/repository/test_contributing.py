"""CONTRIBUTING.md, followed from top to bottom in a copy of the repository."""

import pytest

from tests.repository import pages


@pytest.mark.level("default")
def test_the_page_can_be_followed(tmp_path):
    pytest.importorskip("triton")
    pages.copy_clone(tmp_path)
    ran = 0
    for command, shown, came in pages.replay((pages.ROOT / "CONTRIBUTING.md").read_text(), tmp_path):
        assert came.splitlines()[: len(shown.splitlines())] == shown.splitlines(), f"$ {command}\n{came}"
        ran += 1
    assert ran >= 4
