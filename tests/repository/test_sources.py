"""Citations are keys of docs/sources.md, and every key there is cited."""

import re
import subprocess
from pathlib import Path

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "docs" / "sources.md").is_file())
SOURCES = ROOT / "docs" / "sources.md"
SUFFIXES = (".py", ".cu", ".cuh", ".h", ".cpp", ".md", ".json", ".ini", ".toml")
HIDDEN = ("__pycache__", ".git", ".tox", ".venv", ".hypothesis")

# A key has three letters or more and a year; what stands right after a name or a bracket is an index.
KEY = r"[a-z]{3,}(?:19|20)[0-9]{2}[a-z0-9]*"
CITED = re.compile(rf"(?<![\w\])])\[({KEY})\]")
ROW = re.compile(rf"^\| \[({KEY})\] \|((?: [^|]+ \|){{4}})$", re.MULTILINE)
# The codes of a list that was never part of the repository: a letter, perhaps a digit, a hyphen and a number.
OLD = re.compile(r"(?<![\w.+-])(?:S[0-9]-[0-9]{2}|[BCELMV]-[0-9]{2}\b)")


def files() -> list[Path]:
    """What is, or would be, committed, without recorded data."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode == 0:
        found = [ROOT / name for name in listed.stdout.splitlines()]
    else:
        found = [p for p in ROOT.rglob("*") if not any(part in HIDDEN for part in p.relative_to(ROOT).parts)]
    return [
        path
        for path in found
        if path.is_file()
        and path.suffix in SUFFIXES
        and ROOT / "tests" / "programs" / "data" not in path.parents
        and not (path.suffix == ".json" and ROOT / "docs" / "results" in path.parents)
    ]


TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files()}
DEFINED = [found[1] for found in ROW.finditer(SOURCES.read_text())]


def test_citations_and_sources_agree():
    cited: dict[str, str] = {}
    for name, text in TEXTS.items():
        if name != "docs/sources.md":
            cited.update(dict.fromkeys(CITED.findall(text), name))
    assert sorted(set(DEFINED)) == DEFINED
    assert not {key: name for key, name in cited.items() if key not in DEFINED}
    assert not set(DEFINED) - set(cited)


def test_every_source_has_a_year_and_an_address():
    rows = SOURCES.read_text().count("\n| [")
    assert rows == len(DEFINED) > 0
    for found in ROW.finditer(SOURCES.read_text()):
        *_, year, address = (cell.strip() for cell in found[2].split("|")[:4])
        assert year in found[1], found[1]
        assert re.fullmatch(r"https?://\S+", address), found[1]


def test_no_citation_of_the_old_form():
    left = [f"{name}: {found[0]}" for name, text in TEXTS.items() for found in OLD.finditer(text)]
    assert not left
