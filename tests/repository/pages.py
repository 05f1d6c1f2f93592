"""Pages of docs/ whose examples run.

`python -m tests.repository.pages [NAME]` runs them and renews the output that they show, line numbers included.

A python block right after a line "`name.py`:" is a file; a console block holds commands after "$ " and what each
prints. All of a page's files and commands share one folder, from top to bottom.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.processes import with_touchstone
from touchstone.conformance.discovery import registry

ROOT = registry.ROOT
PAGES = [ROOT / "docs" / name for name in ("your-kernel.md", "porting.md", "first-hour.md", "records.md", "judge.md")]
IN_CLONE = ("first-hour.md", "CONTRIBUTING.md")  # pages whose commands run in the clone's own folder
BLOCK = re.compile(r"(?:^`(?P<file>[\w./]+)`:\n\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(body: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output that the page shows."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        while command.endswith("\\"):
            more, _, output = output.partition("\n")
            command += "\n" + more
        yield command, output.strip("\n")


def files() -> list[Path]:
    """What is, or would be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    hidden = ("__pycache__", ".git", ".tox", ".venv", ".hypothesis")
    return [
        p
        for p in ROOT.rglob("*")
        if p.is_file() and not any(part in hidden or part.endswith("_cache") for part in p.parts)
    ]


def copy_clone(folder: Path) -> None:
    """Copy the repository to `folder`, with the links that make it a package."""
    for path in files():
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for name in ("backends", "conformance", "reference"):
        (folder / "touchstone" / name).symlink_to(f"../{name}")


def run(command: str, folder: Path) -> str:
    """What a command prints, standard error left out; in a copy of the clone it is that copy's."""
    clone = folder if (folder / "touchstone").is_dir() else ROOT
    environment = {**with_touchstone(COLUMNS="100"), "PYTHONPATH": str(clone)}
    words = f'python() {{ "{sys.executable}" "$@"; }}; pytest() {{ "{sys.executable}" -m pytest "$@"; }}; {command}'
    done = subprocess.run(
        ["bash", "-c", words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    return done.stdout.strip("\n") or done.stderr.strip("\n")


def replay(text: str, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Write a page's files and run its commands in `folder`: (command, output that is shown, output that came)."""
    for block in BLOCK.finditer(text):
        if block["file"] and block["kind"] == "python":
            (folder / block["file"]).parent.mkdir(parents=True, exist_ok=True)
            (folder / block["file"]).write_text(block["body"])
        elif block["kind"] == "console":
            for command, shown in commands(block["body"]):
                yield command, shown, run(command, folder)


def renewed(text: str, folder: Path) -> str:
    """The page with the output that its commands print now."""
    at = 0
    for command, shown, came in replay(text, folder):
        was, now = (f"$ {command}\n" + (f"{output}\n" if output else "") for output in (shown, came))
        at = text.index(was, at)  # a command may come again
        text = text[:at] + now + text[at + len(was) :]
        at += len(now)
    return text


if __name__ == "__main__":
    import tempfile

    for page in [page for page in PAGES if page.name in sys.argv[1:] or not sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as scratch:
            if page.name in IN_CLONE:
                copy_clone(Path(scratch))
            page.write_text(renewed(page.read_text(), Path(scratch)))
