"""The examples of docs/ run, and say what the page shows."""

import re

import pytest

from tests.repository import pages

VERDICT = re.compile(
    r"^(?:PASSED|FAILED|NOT RUN|(?:\d+ trials: )?\[[0-9a-f]{8}\] \w+|\d+ passed|\d+ failed"
    r"|python -m touchstone \w+: ).*",
    re.MULTILINE,
)


def said(output: str) -> list[str]:
    """The lines that say how it went, or all, without numbers, which may differ between machines."""
    lines = VERDICT.findall(output) or output.splitlines()
    return [re.sub(r"\d+(?:\.\d+)?|\[\w{8}\]", "#", line) for line in lines]


def places(output: str) -> set[str]:
    """The lines of files that a text names."""
    return set(re.findall(r"\b[Ll]ines? \d+(?:(?:, | to | and )\d+\b(?! elements))*|\b\w+\.(?:py|cu|cuh):\d+", output))


@pytest.mark.level("default")
@pytest.mark.needs("triton")
@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_examples_say_what_the_page_shows(page, tmp_path):
    ran = 0
    if page.name in pages.IN_CLONE:
        pages.copy_clone(tmp_path)
    for command, shown, came in pages.replay(page.read_text(), tmp_path):
        again = f"$ {command}\n{came}\n(python -m tests.repository.pages renews the page)"
        assert said(came) == said(shown), again
        assert places(came) == places(shown), again
        ran += 1
    assert ran >= 8


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_line_numbers_stand_in_output_alone(page):
    """Those in output are renewed with it, and compared; one that is typed into the text goes stale."""
    text = page.read_text()
    assert not places(pages.BLOCK.sub("", text))
    assert page.name != "porting.md" or len(places(text)) > 10


def test_places_are_the_line_numbers_of_files():
    told = "in lines 20 to 30 and line 4 of x.py, see y.cu:17 and a.py lines 21, 25: 3 lines, 12 elements, online 7"
    assert places(told) == {"lines 20 to 30", "line 4", "y.cu:17", "lines 21, 25"}
    assert places("Line 49 writes, lines 27 and 28 read") == {"Line 49", "lines 27 and 28"}


def test_a_page_is_renewed(tmp_path):
    page = (
        "`a.py`:\n\n```python\nprint(6 * 7)\n```\n\ntext\n\n```console\n$ python a.py\n41\n$ python "
        "a.py\n41\n$ echo one \\\n  two\n```\n"
    )
    assert pages.renewed(page, tmp_path) == page.replace("41", "42").replace("  two\n", "  two\none two\n")
    assert list(pages.commands("$ a\nb\nc\n$ d\n")) == [("a", "b\nc"), ("d", "")]
