"""Folders, artefacts and files: what is refused, what is made again, and where nothing can be kept."""

import ctypes
import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch

from tests import processes
from touchstone import check
from touchstone.backends import NotRun, cupy
from touchstone.backends.storage import artefacts, files, folders
from touchstone.backends.storage.artefacts import Store
from touchstone.conformance.isolation.sandbox import kernel as linux

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to somebody else")
STRANGER = 12345


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def no_other_place(monkeypatch):
    """No temporary folder can be made."""

    def missing():
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", missing)
    monkeypatch.setattr(folders, "SHARED_MEMORY", "/nonexistent")


def store_in(folder):
    return Store(lambda: folder)


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


class Made:
    """What makes an artefact, and how often it did."""

    def __init__(self, content=b"content" * 100):
        self.content, self.times = content, 0

    def __call__(self, path):
        self.times += 1
        path.write_bytes(self.content)


# folders


@pytest.mark.parametrize("error", [OSError(errno.ENOSYS, "Function not implemented"), AttributeError("memfd_create")])
def test_a_file_without_a_name_where_the_system_has_no_such_memory(monkeypatch, error):
    def refuse(name):
        raise error

    monkeypatch.setattr(os, "memfd_create", refuse)
    with files.in_memory() as file:
        file.write(b"kept")
        file.seek(0)
        assert file.read() == b"kept" and os.fstat(file.fileno()).st_size == 4
    error = OSError(errno.EMFILE, "Too many open files")
    with pytest.raises(OSError, match="Too many open files"):
        files.in_memory()


def test_a_folder_is_made_for_this_user_alone(folder):
    before = os.umask(0)
    try:
        assert folders.secured(folder / "deep" / "er") == folder / "deep" / "er"
    finally:
        os.umask(before)
    assert mode(folder / "deep" / "er") == 0o700


def test_a_folder_that_others_may_read_becomes_this_users_alone(folder):
    folder.mkdir(0o755)
    assert mode(folders.secured(folder)) == 0o700


def _linked(path):
    (path.parent / "real").mkdir(0o700)
    path.symlink_to("real")


def _given_away(path):
    path.mkdir(0o700)
    os.chown(path, STRANGER, STRANGER)


def _open_to(permissions):
    def make(path):
        path.mkdir()
        path.chmod(permissions)

    return make


def _in_an_open_folder(path):
    path.mkdir(0o700)
    path.parent.chmod(0o777)


REFUSED = {
    "a link": (_linked, "is a symbolic link"),
    "a dangling link": (lambda path: path.symlink_to("nowhere"), "is a symbolic link"),
    "a file": (lambda path: path.write_text(""), "is not a folder"),
    "0777": (_open_to(0o777), "others may write to .* \\(mode 0777\\)"),
    "0770": (_open_to(0o770), "mode 0770"),
    "0702": (_open_to(0o702), "mode 0702"),
    "1777": (_open_to(0o1777), "mode 1777"),
    "in a folder of mode 0777": (_in_an_open_folder, "where everybody may replace it \\(mode 0777\\)"),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_a_folder_that_others_may_have_filled_is_refused(folder, make, said):
    make(folder)
    with pytest.raises(folders.Refused, match=said):
        folders.secured(folder)


@root
def test_a_folder_of_somebody_else_is_refused(folder):
    _given_away(folder)
    with pytest.raises(folders.Refused, match=f"belongs to user {STRANGER}, not to user"):
        folders.secured(folder)


def test_a_folder_in_one_that_is_everybodys_and_sticky_is_taken(folder):
    folder.parent.chmod(0o1777)
    assert folders.secured(folder) == folder


def _of(user, permissions, group=None):
    def make(path):
        path.chmod(permissions)
        os.chown(path, user, user if group is None else group)

    return make


REPLACEABLE = {
    "of another user": (_of(STRANGER, 0o755), f"where user {STRANGER} may replace it"),
    "of another user, sticky": (_of(STRANGER, 0o1777), f"where user {STRANGER} may replace it"),
    "of a group": (_of(0, 0o775, STRANGER), f"where group {STRANGER} may replace it"),
}


@root
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize(("make", "said"), REPLACEABLE.values(), ids=REPLACEABLE)
def test_a_folder_that_another_user_may_replace_is_refused(folder, make, said, linked):
    """What was looked at there need not be what is loaded."""
    above = folder.parent / "above"
    above.mkdir()
    make(above)
    if linked:
        (folder.parent / "link").symlink_to("above")
    with pytest.raises(folders.Refused, match=said):
        folders.secured(folder.parent / ("link" if linked else "above") / "cache" / "deeper")


def as_stranger(folder, namespace=False):
    """What `secured(folder)` gives, or says, to a user of whom nothing but the number is known; with `namespace` in a
    user namespace that has no other."""
    for above in folder.parents:
        if not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o001)
    reading, writing = os.pipe()
    if not os.fork():
        try:
            os.setgroups([])
            os.setresgid(STRANGER, STRANGER, STRANGER)
            os.setresuid(STRANGER, STRANGER, STRANGER)
            if namespace:
                linux.prctl(linux.PR_SET_DUMPABLE, 1)  # or its map is root's to write
                said = "no user namespace" if ctypes.CDLL(None).unshare(linux.CLONE_NEWUSER) else ""
                Path("/proc/self/uid_map").write_text(f"{STRANGER} {STRANGER} 1")
            said = str(folders.secured(folder))
        except Exception as error:
            said = str(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    os.wait()
    with open(reading) as found:
        return found.read()


@root
def test_a_group_of_ones_own_replaces_nothing(folder):
    """Folders are made for it to write where each user has one."""
    _of(STRANGER, 0o775)(folder.parent)
    assert as_stranger(folder) == str(folder)
    _of(STRANGER, 0o775, STRANGER + 1)(folder.parent)
    assert f"where group {STRANGER + 1} may replace it" in as_stranger(folder)


@root
def test_in_a_user_namespace_nobody_is_the_machines_root(folder):
    """Whose number nobody has there: else no folder at all could be used."""
    _of(STRANGER, 0o755)(folder.parent)
    assert as_stranger(folder, namespace=True) == str(folder)


def test_which_folder_is_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("TOUCHSTONE_CACHE", "here")
    assert folders.chosen() == tmp_path.cwd() / "here"
    monkeypatch.setenv("TOUCHSTONE_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert str(folders.chosen()) == "/shared/touchstone/emulator"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", "/me")
    assert str(folders.chosen()) == "/me/.cache/touchstone/emulator"


def test_a_user_without_a_home(monkeypatch, capsys):
    for name in ("HOME", "XDG_CACHE_HOME", "TOUCHSTONE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as where the user's number has no entry
    with pytest.raises(folders.Refused, match="there is no home folder; set HOME or TOUCHSTONE_CACHE"):
        folders.chosen()
    made = Made()
    path = artefacts.store().file("a", made)
    assert path.read_bytes() == made.content
    assert "there is no home folder" in capsys.readouterr().err


def test_another_process_gets_caches_of_its_own(tmp_path):
    found = folders.environment(tmp_path / "private")
    assert {os.path.commonpath([value, tmp_path / "private"]) for value in found.values()} == {
        str(tmp_path / "private")
    }
    assert len(set(found.values())) == len(found)
    assert mode(tmp_path / "private") == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(folders.Refused):
        folders.environment(tmp_path / "open")


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.needs("triton", "numba")
def test_libraries_keep_what_they_compile_where_the_variables_say(tmp_path):
    code = (
        "import triton.knobs, numba.core.config, torch._inductor.runtime.cache_dir_utils as inductor, sys\n"
        "from touchstone.backends.storage import folders\n"
        "print(triton.knobs.cache.dir, numba.core.config.CACHE_DIR, inductor.cache_dir(), sys.pycache_prefix,"
        " folders.chosen(), sep='\\n')"
    )
    printed = processes.output_of(code, **folders.environment(tmp_path / "private"))
    assert [line.startswith(f"{tmp_path}/private/") for line in printed.split()] == [True] * 5, printed


# artefacts


def test_an_artefact_is_made_once(folder):
    made = Made()
    path = store_in(folder).file("kernel.so", made)
    assert path == folder / "kernel.so"
    assert path.read_bytes() == made.content
    assert store_in(folder).file("kernel.so", made) == path
    assert made.times == 1
    assert {file.name: mode(file) for file in (path, folder / "kernel.so.sha256")} == {
        "kernel.so": 0o700,
        "kernel.so.sha256": 0o600,
    }
    assert not list(folder.glob("scratch-*"))


def test_of_those_that_want_the_same_artefact_one_makes_it(folder):
    made = Made()

    def make(path):
        time.sleep(0.05)
        made(path)

    threads = [threading.Thread(target=store_in(folder).file, args=("kernel.so", make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made.times == 1 and (folder / "kernel.so").read_bytes() == made.content


def test_an_artefact_has_its_name_when_it_is_whole(folder):
    def make(path):
        path.write_bytes(b"half")
        assert not (folder / "kernel.so").exists()
        path.write_bytes(b"whole")

    assert store_in(folder).file("kernel.so", make).read_bytes() == b"whole"


def test_who_has_opened_an_artefact_reads_on_while_another_is_kept(folder):
    store = store_in(folder)
    for suffix in ("", ".sha256"):
        store.keep("kernel.so", b"one")
        with open(folder / f"kernel.so{suffix}", "rb") as file:
            before = file.read()
            file.seek(0)
            store.keep("kernel.so", b"two, which is longer")
            assert file.read() == before
    assert store.load("kernel.so") == b"two, which is longer"


def test_names_are_plain(folder):
    for name in ("", "../a", "a/b", ".hidden", "a\0", "a.sha256", "é b"):
        with pytest.raises(ValueError, match="^name: expected letters"):
            store_in(folder).file(name, Made())
    assert not folder.exists()


def _digest_of(path):
    return path.with_name(path.name + ".sha256")


def _flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _planted(path):
    """By somebody who does not know how digests are made."""
    path.write_bytes(b"planted")
    _digest_of(path).write_bytes(subprocess.run(["sha256sum", path], capture_output=True, check=True).stdout)


def _swapped(path):
    """With the digest of the other."""
    other = path.with_name("other.so")
    store_in(path.parent).file("other.so", Made(b"another"))
    for one, two in ((path, other), (_digest_of(path), _digest_of(other))):
        held = one.with_name("held")
        one.rename(held)
        two.rename(one)
        held.rename(two)


def _replaced_by_link(path):
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def _replaced_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGE = {
    "removed": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut short": lambda path: os.truncate(path, 300),
    "one byte less": lambda path: os.truncate(path, path.stat().st_size - 1),
    "grown": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "a bit flipped": _flipped,
    "no digest": lambda path: _digest_of(path).unlink(),
    "an empty digest": lambda path: _digest_of(path).write_text(""),
    "a wrong digest": lambda path: _digest_of(path).write_text("0" * 64),
    "no text for a digest": lambda path: _digest_of(path).write_bytes(b"\xff" * 64),
    "planted": _planted,
    "swapped": _swapped,
    "a link": _replaced_by_link,
    "a pipe": _replaced_by_pipe,
    "a pipe for a digest": lambda path: _replaced_by_pipe(_digest_of(path)),
    "others may write": lambda path: path.chmod(0o766),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("known", [False, True], ids=["new process", "same process"])
def test_what_is_not_as_it_was_kept_is_made_again(folder, damage, known):
    made = Made()
    store = store_in(folder)
    path = store.file("kernel.so", made)
    damage(path)
    store = store if known else store_in(folder)
    assert store.load("kernel.so") is None
    assert store.file("kernel.so", made) == path
    assert (path.read_bytes(), made.times) == (made.content, 2)
    assert store_in(folder).file("kernel.so", made) == path
    assert made.times == 2


@root
def test_what_belongs_to_somebody_else_is_made_again(folder):
    made = Made()
    path = store_in(folder).file("kernel.so", made)
    os.chown(path, STRANGER, STRANGER)
    store_in(folder).file("kernel.so", made)
    assert (made.times, path.stat().st_uid) == (2, os.geteuid())
    os.chown(_digest_of(path), STRANGER, STRANGER)
    store_in(folder).file("kernel.so", made)
    assert made.times == 3


def test_what_cannot_be_replaced_is_made_elsewhere(folder, capsys):
    made = Made()
    path = store_in(folder).file("kernel.so", made)
    path.unlink()
    path.mkdir()
    elsewhere = store_in(folder).file("kernel.so", made)
    assert elsewhere != path
    assert elsewhere.read_bytes() == made.content
    assert f"{folder}" in capsys.readouterr().err


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_nothing_is_taken_from_a_folder_that_is_refused(folder, capsys, make, said):
    make(folder)
    if folder.is_dir():
        store = store_in(folder)
        store._folder = folder.resolve()  # whoever fills it knows how digests are made
        store.file("kernel.so", Made(b"planted"))
    made = Made()
    path = store_in(folder).file("kernel.so", made)
    assert (made.times, path.read_bytes(), mode(path.parent)) == (1, made.content, 0o700)
    assert not path.is_relative_to(folder.resolve())
    assert capsys.readouterr().err.count("compiled kernels are not kept") == 1


def test_a_temporary_folder_goes_with_its_process(tmp_path):
    (tmp_path / "file").write_text("")
    code = f"""
import os
from pathlib import Path
from touchstone.backends.storage.artefacts import Store
from touchstone.conformance.isolation.sandbox import kernel as linux
store = Store(lambda: Path({str(tmp_path / "file")!r}))
path = store.file("a", lambda path: path.write_text("x"))
if os.fork() == 0:  # a child's end does not take it along
    raise SystemExit
os.wait()
print(path, path.read_text())
"""
    path, text = processes.output_of(code).split()
    assert text == "x"
    assert not os.path.exists(os.path.dirname(path))


def test_temporary_folders_of_killed_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(folders, "JUST_MADE", 0.0)
    reader, writer = os.pipe()
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            os.write(writer, f"{next(folders.temporaries())}\n".encode())
            signal.pause()
        children.append(child)
        os.read(reader, 1000)
    dead, alive = children
    os.kill(dead, signal.SIGKILL)
    os.waitpid(dead, 0)
    assert len(list(tmp_path.iterdir())) == 2
    mine = next(folders.temporaries())
    left = list(tmp_path.iterdir())
    assert mine in left and len(left) == 2
    os.kill(alive, signal.SIGKILL)
    os.waitpid(alive, 0)


def test_it_is_said_once_by_all_processes_of_a_folder(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    store = store_in(tmp_path / "file")
    assert store.folder
    for number in range(3):
        child = os.fork()
        if child == 0:
            store.file(f"a{number}", Made())
            sys.stderr.flush()
            os._exit(0)
        os.waitpid(child, 0)
    assert capfd.readouterr().err.count("file is not a folder; compiled kernels are not kept, but go to") == 1


def test_there_may_be_no_place_at_all(tmp_path, no_other_place):
    (tmp_path / "file").write_text("")
    store = store_in(tmp_path / "file")
    with pytest.raises(NotRun, match="there is no folder for compiled kernels: .*file is not a folder"):
        store.file("a", Made())
    assert store.load("a") is None
    assert not store.keep("a", b"x")


def full(path):
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_left_for_another(folder, capsys):
    made = Made()

    def make(path):
        if path.is_relative_to(folder):
            full(path)
        made(path)

    store = store_in(folder)
    path = store.file("a", make)
    assert path.read_bytes() == made.content
    assert not path.is_relative_to(folder)
    assert "No space left on device; compiled kernels are not kept" in capsys.readouterr().err
    assert store.file("b", make).parent == path.parent
    assert [file.name for file in folder.iterdir() if file.suffix not in (".lock", "")] == []


def test_all_disks_may_be_full(folder, no_other_place):
    with pytest.raises(NotRun, match="No space left on device"):
        store_in(folder).file("a", full)


@root
def test_a_disk_that_is_full(tmp_path, no_other_place):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        store = store_in(small / "cache")
        assert store.keep("a", b"x" * 100_000)
        assert not store.keep("b", b"x" * 200_000)
        with pytest.raises(NotRun, match="No space left on device"):
            store.file("b", Made(b"x" * 200_000))
        assert store_in(small / "cache").load("a") == b"x" * 100_000
        subprocess.run(["mount", "-o", "remount,ro", small], check=True)
        with pytest.raises(NotRun, match=r"cache cannot be written to|Read-only file system"):
            store_in(small / "cache").file("b", Made())
        subprocess.run(["mount", "-o", "remount,rw,noexec", small], check=True)
        with pytest.raises(NotRun, match="noexec"):
            store_in(small / "cache").file("b", Made())
    finally:
        subprocess.run(["umount", small], check=True)


def test_files_that_may_not_grow(folder, no_other_place):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            try:
                store_in(folder).file("a", Made(b"x" * 2000))
            except NotRun as error:
                status = 0 if "File too large" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert store_in(folder).load("a") is None


def test_work_that_finds_no_room_is_done_elsewhere(folder):
    def work(scratch):
        if scratch.is_relative_to(folder):
            full(scratch)
        (scratch / "x").touch()
        return scratch

    store = store_in(folder)
    assert not (done := store.scratch(work)).exists() and not done.is_relative_to(folder)
    with pytest.raises(OSError, match="File name too long"):
        store.scratch(lambda scratch: (scratch / ("x" * 300)).touch())  # which is so in every folder
    assert store.folder == done.parent


def test_bytes_are_kept_and_read(folder):
    store = store_in(folder)
    assert store.load("entry.json") is None
    assert store.keep("entry.json", b"{}")
    assert store_in(folder).load("entry.json") == b"{}"
    assert store.keep("entry.json", b"[]")
    assert store_in(folder).load("entry.json") == b"[]"


def test_what_was_left_behind_is_removed(folder):
    made = Made()
    store_in(folder).file("new", made)
    store_in(folder).file("old", made)
    for left in ("scratch-old", "scratch-new", "mine"):
        (folder / left).mkdir()
    (folder / "mine" / "file").write_text("")
    long_ago = 1e9
    for name in ("scratch-old", "old", "mine", "swept"):
        os.utime(folder / name, (long_ago, long_ago))
    assert store_in(folder).folder
    assert sorted(entry.name for entry in folder.iterdir() if not entry.name.endswith((".lock", ".sha256"))) == [
        "mine",
        "new",
        "scratch-new",
        "swept",
    ]
    (folder / "scratch-again").mkdir()
    os.utime(folder / "scratch-again", (long_ago, long_ago))
    assert store_in(folder).folder  # not again on the same day
    assert (folder / "scratch-again").exists()


# locks


def test_one_holds_a_lock_at_a_time(tmp_path):
    inside, most = 0, 0

    def work():
        nonlocal inside, most
        for _ in range(20):
            with files.alone(tmp_path / "file") as had:
                inside += 1
                most = max(most, inside if had else 99)
                threading.Event().wait(0.001)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


@pytest.mark.parametrize("ending", [signal.SIGSTOP, signal.SIGKILL])
def test_the_lock_of_a_process_that_does_not_go_on(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(files, "WAIT_SECONDS", 0.3)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with files.alone(tmp_path / "file"):
            os.write(writer, b"x")
            signal.pause()
    os.read(reader, 1)
    os.kill(child, ending)
    if ending is signal.SIGKILL:
        os.waitpid(child, 0)
    with files.alone(tmp_path / "file") as had:
        assert had is (ending is signal.SIGKILL)
    made = Made()
    assert store_in(tmp_path).file("file", made).read_bytes() == made.content  # without the lock, too
    if ending is signal.SIGSTOP:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_that_cannot_be_had_at_all(tmp_path):
    (tmp_path / "file.lock").mkdir()
    with files.alone(tmp_path / "file") as had:
        assert not had


# files


def test_a_file_is_replaced_whole(tmp_path):
    file = tmp_path / "record.json"
    before = os.umask(0o027)
    try:
        files.replace(file, "one")
    finally:
        os.umask(before)
    assert (file.read_text(), mode(file)) == ("one", 0o640)
    file.chmod(0o604)
    link = tmp_path / "link"
    link.symlink_to("record.json")
    files.replace(link, b"two")
    assert (file.read_text(), mode(file), link.is_symlink()) == ("two", 0o604, True)
    files.replace(link, b"three", follow=False)
    assert (file.read_text(), link.read_text(), link.is_symlink()) == ("two", "three", False)
    files.replace("/dev/null", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "record.json"]


def test_who_has_opened_a_file_reads_on_while_it_is_replaced(tmp_path):
    file = tmp_path / "record.json"
    files.replace(file, "one")
    with open(file) as opened:
        files.replace(file, "two")
        assert (opened.read(), file.read_text()) == ("one", "two")


def test_a_file_that_cannot_be_written_stays_as_it_is(tmp_path):
    file = tmp_path / "record.json"
    files.replace(file, "one")
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            files.replace(file, "x" * 2000)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert file.read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]
    with pytest.raises(FileNotFoundError):
        files.replace(tmp_path / "nowhere" / "file", "x")


def test_a_file_in_memory_needs_no_folder(no_other_place):
    with files.in_memory() as file:
        file.write(b"x")
        file.seek(0)
        assert file.read() == b"x"


def test_a_kernel_is_judged_without_a_folder_for_temporary_files(no_other_place):
    def right(x):
        return torch.softmax(x.double(), -1).to(x.dtype).contiguous()

    for isolate in ("fork", "none"):
        assert check("softmax", right, device="cpu", level="quick", dtypes=["float16"], isolate=isolate).passed


@pytest.mark.parametrize("usable", [True, False])
def test_cupy_keeps_kernels_in_memory_where_its_folder_cannot_be_used(monkeypatch, tmp_path, usable):
    """It would raise in the middle of a kernel's call."""
    monkeypatch.setattr(cupy, "why_not", lambda device: None)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "")  # so that it is taken away again
    monkeypatch.delenv("CUPY_CACHE_IN_MEMORY")
    if not usable:
        (tmp_path / "cache").write_text("")
    cupy.prepare("cuda")
    assert os.environ.get("CUPY_CACHE_IN_MEMORY") == (None if usable else "1")


def test_a_pipe_is_written_to_and_not_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no plain file"):
        files.read(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.replace(pipe, "x")
    assert os.read(reader, 9) == b"x"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_is_not_read(tmp_path):
    with pytest.raises(OSError, match="no plain file"):
        files.read(tmp_path)
    (tmp_path / "large").write_bytes(b"x" * 11)
    with pytest.raises(ValueError, match="it has 11 bytes; 10 are read at most"):
        files.read(tmp_path / "large", most=10)
    (tmp_path / "deep").write_bytes(b"[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        files.read_json(tmp_path / "deep")
    (tmp_path / "link").symlink_to("large")
    with pytest.raises(OSError, match="symbolic links"):
        files.read(tmp_path / "link", follow=False)


def test_artefacts_that_were_given_are_read_and_never_written(folder, tmp_path, monkeypatch):
    made, given = Made(), tmp_path / "given"
    artefacts.give([store_in(folder).file("kernel.so", made)], given)
    monkeypatch.setenv(artefacts.GIVEN, str(given))
    assert store_in(tmp_path / "empty").file("kernel.so", made) == given / "kernel.so" and made.times == 1
    before = sorted(os.listdir(given))
    assert store_in(tmp_path / "empty").file("other.so", made).parent == tmp_path / "empty"
    for spoil in (
        lambda path: path.chmod(0o666),  # others may have written to it
        lambda path: path.write_bytes(made.content + b"x"),
        lambda path: path.rename(path.with_name("old")),
    ):
        path = given / "kernel.so"
        spoil(path)
        assert store_in(tmp_path / "empty").file("kernel.so", made).parent == tmp_path / "empty"
        path.write_bytes(made.content)
        path.chmod(0o644)
        assert store_in(tmp_path / "empty").file("kernel.so", made) == path
    (given / "old").unlink()
    assert sorted(os.listdir(given)) == before
