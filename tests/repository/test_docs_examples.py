"""The examples of docs/ run, and say what the page shows."""

import re

import pytest

from tests.repository import pages

VERDICT = re.compile(
    r"^(?:PASSED|FAILED|\[[0-9a-f]{8}\] \w+|\d+ passed|\d+ failed|python -m touchstone \w+: ).*", re.MULTILINE
)


def said(output: str) -> list[str]:
    """The lines that say how it went, or all, without numbers, which may differ between machines."""
    lines = VERDICT.findall(output) or output.splitlines()
    return [re.sub(r"\d+(?:\.\d+)?|\[\w{8}\]", "#", line) for line in lines]


@pytest.mark.needs("triton")
@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_examples_say_what_the_page_shows(page, tmp_path):
    ran = 0
    for command, shown, came in pages.replay(page.read_text(), tmp_path):
        assert said(came) == said(shown), f"$ {command}\n{came}\n(python -m tests.repository.pages renews the page)"
        ran += 1
    assert ran >= 8


def test_a_page_is_renewed(tmp_path):
    page = (
        "`a.py`:\n\n```python\nprint(6 * 7)\n```\n\ntext\n\n```console\n$ python a.py\n41\n$ python "
        "a.py\n41\n$ echo one \\\n  two\n```\n"
    )
    assert pages.renewed(page, tmp_path) == page.replace("41", "42").replace("  two\n", "  two\none two\n")
    assert list(pages.commands("$ a\nb\nc\n$ d\n")) == [("a", "b\nc"), ("d", "")]
