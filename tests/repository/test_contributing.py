"""CONTRIBUTING.md, followed from top to bottom in a copy of the repository."""

import shutil

import pytest

from tests.repository import pages
from tests.repository.test_repository import FILES, ROOT


def test_the_page_can_be_followed(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    for path in FILES:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for name in ("backends", "conformance", "reference"):
        (tmp_path / "touchstone" / name).symlink_to(f"../{name}")
    monkeypatch.setattr(pages.registry, "ROOT", tmp_path)
    ran = 0
    for command, shown, came in pages.replay((ROOT / "CONTRIBUTING.md").read_text(), tmp_path):
        assert came.splitlines()[: len(shown.splitlines())] == shown.splitlines(), f"$ {command}\n{came}"
        ran += 1
    assert ran >= 4
