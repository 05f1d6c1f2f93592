"""What every test of Touchstone itself is given."""

import pytest

from touchstone.conformance.findings import kept


@pytest.fixture(autouse=True)
def _findings_elsewhere(tmp_path, monkeypatch):
    """Findings of kernels that tests judge are not kept among the user's own; in another folder the name is the usual
    one."""
    monkeypatch.setattr(kept, "FILE", tmp_path / kept.FILE)
