"""One judge for all attacks: it copies the clone, and starts a process that has imported everything."""

import pytest

from tests.referee.harness import Judge


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    judge = Judge(tmp_path_factory.mktemp("referee"))
    yield judge
    judge.close()
