"""Removing what a candidate has left: closed folders, links, folders too deep for a path."""

import os
import shutil
import stat
import sys
import tempfile

import pytest

if sys.platform != "linux":
    pytest.skip("confining a process takes Linux", allow_module_level=True)

from tests.processes import in_a_fork
from touchstone.conformance.isolation.sandbox import removal
from touchstone.conformance.isolation.sandbox.removal import remove

NOBODY = 65534


def test_closed_folders_are_opened_and_removed(monkeypatch, tmp_path):
    """By a user whom modes hold back; no other program is asked, and what a link leads to stays as it is."""
    asked = []
    monkeypatch.setattr(removal.subprocess, "run", lambda *given, **named: asked.append(given))

    def removes():
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        folder = tempfile.mkdtemp(dir="/tmp")
        descriptor, kept = tempfile.mkstemp(dir="/tmp")
        os.fchmod(descriptor, 0o604)
        for mode in (0o000, 0o400, 0o100, 0o500):
            inner = f"{folder}/closed-{mode}/inner"
            os.makedirs(f"{inner}/folder")
            open(f"{inner}/file", "w").close()
            os.symlink("/nowhere", f"{inner}/link")
            os.mkdir(f"{inner}/links")
            os.symlink(kept, f"{inner}/links/own")
            for closed in (f"{inner}/folder", f"{inner}/links", inner, os.path.dirname(inner)):
                os.chmod(closed, mode)
        os.chmod(folder, 0o500)
        remove(folder)
        mode = stat.S_IMODE(os.stat(kept).st_mode)
        os.unlink(kept)
        return os.path.lexists(folder), mode, asked

    assert in_a_fork(removes, tmp_path) == [False, 0o604, []]


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "left").mkdir()
    for link in (tmp_path / "link", tmp_path / "left" / "link"):
        link.symlink_to(tmp_path / "kept")
    (tmp_path / "file").touch()
    for each in ("link", "left", "file"):
        remove(str(tmp_path / each))
    assert os.listdir(tmp_path) == ["kept"] and os.listdir(tmp_path / "kept") == ["file"]
    with pytest.raises(FileNotFoundError):
        remove(str(tmp_path / "file"))


def test_what_shutil_gives_up_on_another_program_removes(monkeypatch, tmp_path):
    """Whatever the folder is called."""
    errors = [RecursionError("too deep"), OSError("too long")]

    def gives_up(path, onerror):
        raise errors.pop()

    monkeypatch.setattr(shutil, "rmtree", gives_up)
    monkeypatch.chdir(tmp_path)
    while errors:
        (tmp_path / "-left" / "inner").mkdir(parents=True)
        remove("-left")
        assert not (tmp_path / "-left").exists()


def test_what_cannot_be_removed_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "rmtree", lambda path, onerror: None)
    monkeypatch.setattr(removal.subprocess, "run", lambda command, **named: None)
    with pytest.raises(OSError, match="could not be removed$"):
        remove(str(tmp_path))
